"""Short-circuit reads: a reader on the store's machine reads the log's file itself."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import pyarrow as pa

from dafka_core.errors import ClosedError, DafkaError, LeaseEndedError, StoreError
from dafka_core.flight.requests import GetRequest, LeaseGranted, LeaseRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import SESSION_FILE, StoreLocation
from dafka_core.model.records import RecordBatch, coalesce
from dafka_core.storage.block import ALIGNMENT, Block
from dafka_core.storage.leases import ID_BYTES, LEASE_FILE, LEASE_S
from dafka_core.storage.open_environment import not_local
from dafka_core.storage.storage_errors import DATA_FILE, damaged
from dafka_core.system.closing import ProcessBound

LEASE_TIMEOUT_S: Final = 10.0
"""Time for the store to grant a lease: it answers in milliseconds if the blocks are in memory, and
at its disk's pace otherwise; or it is stopped."""

CACHE_LINE_BYTES: Final = 64
"""A block begins in one of these in memory where it does in the file, 16 bytes after a page there
as in LMDB: the system takes a tenth longer for a copy with another alignment."""

MAX_SESSION_BYTES: Final = 256  # of the file ``session``; a longer one is not a store's

_FileId = tuple[int, int] | None


class LocalLogs(ProcessBound):
    """The logs of stores on this machine, each opened once, for reading only.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, tuple[LocalLog, _FileId]] = {}
        self._closed = False

    def open(self, location: StoreLocation) -> LocalLog | None:
        """Return a store's log, if it is on this machine, readable, and the right one.

        The right one has the location's session in its directory: a directory on another machine,
        or in another container, may have the same name.  A network file system is not opened.
        """
        self.check_process()
        directory = location.directory
        if not (location.here and directory and location.session):
            return None
        with self._lock:
            if self._closed:
                raise ClosedError("local logs")
            if _session(directory) != location.session or not_local(directory):
                return None
            known = self._logs.get(directory)
            if known is None or known[1] != _file_id(directory):
                # Reads of the earlier log continue; it is closed when nothing refers to it.
                self._logs.pop(directory, None)
                try:
                    known = LocalLog(directory, location.store), _file_id(directory)
                except OSError:
                    return None
                self._logs[directory] = known
            return known[0]

    def close(self) -> None:
        """Close all logs; results stay valid.  Idempotent."""
        with self._lock:
            self._closed = True
            for log, _ in self._logs.values():
                log.closed = True
            self._logs.clear()


class LocalLog:
    """A store's log, read from its file beside the process that writes it.

    The store returns the positions of blocks with a lease of them (``storage/leases.py``).  Each
    block is copied, checked, and yielded only if the lease lasted until then.  So it stays valid
    for ever, and costs the store nothing.  The files are open as long as anything refers to this.
    """

    def __init__(self, directory: str, store: str) -> None:
        self.closed = False
        self._directory, self._store = Path(directory), store
        self._data = os.open(self._directory / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._data)
        self._leases = os.open(self._directory / LEASE_FILE, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._leases)

    def records(self, client: StoreClient, request: GetRequest) -> Generator[RecordBatch]:
        """Yield the records of a get, in order and complete, without a condition.

        ``client`` is one of the store.  A ``partial`` get also leaves out the rest of ranges whose
        lease the store ends at once.

        Raises, besides the errors of ``StoreClient.records``:
            LeaseEndedError: the store has ended a lease before anything was read of it.
            StoreUnreachableError: the store grants no lease, or has no records of ``life`` yet.
            StoreError: a block is damaged, or the disk fails.
            ClosedError: its ``LocalLogs`` is closed.
        """
        return self._records(client, request.fitted())

    def _records(self, client: StoreClient, request: GetRequest) -> Generator[RecordBatch]:
        if self.closed:
            raise ClosedError("local logs")
        left, done = [each for each in request.ranges if each.start < each.end], ""
        sizes = request.max_records, request.max_bytes
        while left:
            asked = LeaseRequest(tuple(left), request.partial, done)
            granted = client.lease(asked, timeout_s=LEASE_TIMEOUT_S)
            places = {number: list(of) for number, of in groupby(granted.blocks, itemgetter(0))}
            has_read, done = False, granted.lease
            rest: list[RecordRange] = []
            for number, wanted in enumerate(left[: granted.ranges]):
                at, blocks = wanted.start, self._blocks(granted, places.get(number, ()), wanted)
                for batch in coalesce(blocks, *sizes):
                    yield from batch.split(*sizes)
                    has_read, at = True, batch.end
                if at < wanted.end and (number in places or not request.partial):
                    after = wanted.after if at == wanted.start else None
                    rest.append(wanted._replace(start=at, after=after))
            # If the lease has ended meanwhile, because the caller was slow, the next one is for the
            # rest; a store that ends each at once needs its space.
            if not has_read and not request.partial:
                raise LeaseEndedError(*left[0].tp, self._store, left[0].start, LEASE_S)
            left[: max(granted.ranges, 1)] = rest if has_read else []
        if done:
            # The store ends it by itself, too, later.
            with contextlib.suppress(DafkaError):
                client.lease(LeaseRequest(done=done), timeout_s=LEASE_TIMEOUT_S)

    def _blocks(
        self,
        granted: LeaseGranted,
        places: Iterable[tuple[int, int, int, int]],
        wanted: RecordRange,
    ) -> Iterator[RecordBatch]:
        at = wanted.start
        for _, first, position, size_bytes in places:
            why = ""
            try:
                block = self._block(position, size_bytes)
                if not first <= at < first + block.count:
                    why = f"it holds offsets {first} to {first + block.count} (exclusive)"
            except (ValueError, OSError) as error:
                why = str(error)
            # After reading, before the records are used.
            if not self._holds(granted):
                return
            if why:
                why = f"cannot be read at byte {position} of {DATA_FILE}: {why}"
                why = f"{wanted.tp}: the block at offset {first} {why}"
                raise damaged(self._directory, why)
            batch = RecordBatch(wanted.tp, first, block.values, times=block.times)
            batch = batch.between(at, min(batch.end, wanted.end))
            yield batch
            at = batch.end

    def _block(self, position: int, size_bytes: int) -> Block:
        """Copy the block at a position; raise ValueError if it is not a block."""

        def read_into(piece: memoryview, at: int) -> None:
            if os.preadv(self._data, [piece], position + at) != len(piece):
                raise ValueError("the file ends within it")

        start = position % CACHE_LINE_BYTES // ALIGNMENT * ALIGNMENT
        # Arrow keeps freed memory for the next block; numpy would request it from the system again.
        buffer = memoryview(pa.allocate_buffer(start + size_bytes))[start:]
        return Block.read(buffer, read_into)

    def _holds(self, granted: LeaseGranted) -> bool:
        """Return True if everything read so far was read during the lease."""
        try:
            found = os.pread(self._leases, ID_BYTES, granted.slot * ID_BYTES)
        except OSError as error:
            raise StoreError(self._directory, f"file {LEASE_FILE}: {error.strerror}") from error
        return found.hex() == granted.lease


def _session(directory: str) -> str | None:
    path = Path(directory) / SESSION_FILE
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(MAX_SESSION_BYTES).decode("ascii").strip()
    return None


def _file_id(directory: str) -> _FileId:
    with contextlib.suppress(OSError):
        found = (Path(directory) / DATA_FILE).stat()
        return found.st_dev, found.st_ino
    return None
