"""Leases: a store's promise not to reuse some pages of its file yet.

A process that reads a store's file beside it must know that it has read the intended pages,
although LMDB reuses the pages of merged and trimmed blocks.  LMDB's own way, a list of readers by
process id, fails if readers cannot write to the directory, or if processes of two containers have
one id; and a stopped reader would pin its pages for ever.  So the store reads in the reader's
place: a lease is a read transaction in the store's own process, and LMDB reuses none of its pages
until the store ends it.

The reader learns of the end from the file ``leases``, where each lease has its random id in a slot
of its own.  This order is safe, without clocks and without process ids:

    store:    writes zeros to the slot; ends the transaction; only then may a write use the pages
    reader:   copies from the pages; then reads the slot, and drops the copy unless it has its id

A copy with anything of a page's next life was thus made after the slot was cleared, so the reader
does not find its id afterwards.  A killed store ends no lease, but nothing is written either until
the next one opens the directory, which first clears all slots in this same file.  A reader that
sees another directory, such as a copy, does not find its id there.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dafka_core.errors import StoreError
from dafka_core.system.files import mode_within

if TYPE_CHECKING:
    import lmdb

LEASE_FILE: Final = "leases"

ID_BYTES: Final = 16

MAX_LEASES: Final = 256
"""Leases at one time: a task holds one, and LMDB has 1,024 read transactions for everything."""

FRESH_S: Final = 1.0
"""The guaranteed duration of a lease if there are too many: the oldest makes room then, so that a
client which never returns leases locks no other out."""

LEASE_S: Final = 10.0
"""The guaranteed duration of a lease if space is not short.  A reader copies the pages of one lease
in less than a second, unless it is slowed down, and takes the next one then."""

LEASE_WRITTEN_BYTES: Final = 256 << 20
"""Bytes that the store may write during a lease: the most space that readers cost, however many
follow each other.  Everything free when the oldest of them began can be used again."""


class Lease(NamedTuple):
    """A lease for a reader: a random id, as hexadecimal digits, and its position in the file."""

    id: str
    slot: int


class _Held(NamedTuple):
    id: str
    txn: lmdb.Transaction[memoryview]
    begun_s: float
    written_bytes: int


class LeaseTable:
    """The leases of a directory's writer; StoreError if it cannot be written.  Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}  # by slot, the oldest first
        try:
            # Never replaced: readers of a previous process have this file open.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(directory / LEASE_FILE, flags, mode_within(directory))
            self._closing = weakref.finalize(self, os.close, self._fd)  # also if it is dropped
            os.pwrite(self._fd, bytes(MAX_LEASES * ID_BYTES), 0)
        except OSError as error:
            raise StoreError(directory, f"file {LEASE_FILE}: {error.strerror}") from error

    def grant(self, txn: lmdb.Transaction[memoryview], written_bytes: int) -> Lease | None:
        """Take over a read transaction, which ends with the lease; return None beyond the limit.

        ``written_bytes`` is the store's total so far.
        """
        with self._lock:
            now_s = time.monotonic()
            if len(self._held) == MAX_LEASES:
                oldest = next(iter(self._held.values()))
                if oldest.begun_s > now_s - FRESH_S:
                    return None
                self._end(lambda held: held is oldest)
            slot = min(set(range(MAX_LEASES)) - self._held.keys())
            lease_id = secrets.token_bytes(ID_BYTES)
            os.pwrite(self._fd, lease_id, slot * ID_BYTES)
            self._held[slot] = _Held(lease_id.hex(), txn, now_s, written_bytes)
            return Lease(lease_id.hex(), slot)

    def end(self, lease_id: str) -> None:
        """End a lease that is not needed any more, if it has not ended yet."""
        with self._lock:
            self._end(lambda held: held.id == lease_id)

    def end_due(self, written_bytes: int) -> None:
        """End leases that are too old, or during which the store has written too much.

        Before each write: until then, a lease costs nothing.
        """
        with self._lock:
            begun_s = time.monotonic() - LEASE_S
            least_bytes = written_bytes - LEASE_WRITTEN_BYTES
            self._end(lambda held: held.begun_s < begun_s or held.written_bytes < least_bytes)

    def ages_s(self) -> list[float]:
        """Return the ages of the current leases."""
        with self._lock:
            now_s = time.monotonic()
            return [now_s - held.begun_s for held in self._held.values()]

    def end_all(self) -> None:
        """End all, before their pages are closed."""
        with self._lock:
            self._end(lambda _: True)

    def close(self) -> None:
        """Close the file, after all leases have ended."""
        self._closing()

    def _end(self, which: Callable[[_Held], bool]) -> None:
        for slot, held in list(self._held.items()):
            if which(held):
                # In this order (see above).
                os.pwrite(self._fd, bytes(ID_BYTES), slot * ID_BYTES)
                held.txn.abort()
                del self._held[slot]
