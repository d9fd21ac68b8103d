"""Short-circuit reads: a reader on the store's machine reads the log's file itself."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import pyarrow as pa

from dafka_core.errors import (
    ClosedError,
    DafkaError,
    LeaseEndedError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight.requests import AskedRange, GetRequest, LeaseGranted, Part
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import SESSION_FILE, StoreLocation
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import RecordBatch, TopicPartition, coalesce
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

MAX_SESSION_BYTES: Final = 256
"""Of the file ``session``; a longer one is not a store's."""

_FileId = tuple[int, int] | None


class LocalLogs(ProcessBound):
    """The logs of stores on this machine, each opened once, for reading only.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, tuple[_Files, _FileId]] = {}
        self._closed = False

    def open(self, location: StoreLocation) -> LocalLog | None:
        """Return a store's log, if it is on this machine, readable, and the right one.

        The right one has the location's session in its directory: a directory on another machine,
        or in another container, may have the same name.  A network file system is not opened.

        Raises:
            ClosedError: after ``close``.
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
            known = self._files.get(directory)
            if known is None or known[1] != _file_id(directory):
                # Reads of the earlier log continue; it is closed when nothing refers to it.
                self._files.pop(directory, None)
                try:
                    known = _Files(directory), _file_id(directory)
                except OSError:
                    return None
                self._files[directory] = known
            return LocalLog(known[0], location.store)

    def close(self) -> None:
        """Close all logs; results stay valid.  Idempotent."""
        with self._lock:
            self._closed = True
            for files, _ in self._files.values():
                files.closed = True
            self._files.clear()


class _Files:
    """A store's data and its leases, open for reading as long as anything refers to this."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.closed = False
        self._data = os.open(self.directory / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._data)
        self._leases = os.open(self.directory / LEASE_FILE, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._leases)

    def holds(self, granted: LeaseGranted) -> bool:
        """Return True if everything read so far was read during the lease."""
        try:
            found = os.pread(self._leases, ID_BYTES, granted.slot * ID_BYTES)
        except OSError as error:
            raise StoreError(self.directory, f"file {LEASE_FILE}: {error.strerror}") from error
        return found.hex() == granted.lease

    def block(self, position: int, size_bytes: int) -> Block:
        """Copy the block at a position; raise ValueError if it is not a block."""

        def read_into(piece: memoryview, at: int) -> None:
            if os.preadv(self._data, [piece], position + at) != len(piece):
                raise ValueError("the file ends within it")

        start = position % CACHE_LINE_BYTES // ALIGNMENT * ALIGNMENT
        # Arrow keeps freed memory for the next block; numpy would request it from the system again.
        buffer = memoryview(pa.allocate_buffer(start + size_bytes))[start:]
        return Block.read(buffer, read_into)


class LocalLog:
    """A store's log, read from its file beside the process that writes it.

    The store returns the positions of blocks with a lease of them (``storage/leases.py``).  Each
    block is copied, checked, and yielded only if the lease lasted until then.  So it stays valid
    for ever, and costs the store nothing.
    """

    def __init__(self, files: _Files, store: str) -> None:
        self._files = files
        self._store = store

    def read(
        self,
        client: StoreClient,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        life: EpochId | None = None,
        after: EpochId | None = None,
        max_records: int,
        max_bytes: int,
    ) -> Generator[RecordBatch]:
        """Yield the records from ``start`` to ``end`` (exclusive), in order and complete.

        ``client`` is one of the store.  Sizes and lives are as those of ``StoreClient.read``.

        Raises:
            InvalidRequestError: an argument is invalid; at once.
            DataLossError: the log does not hold all of the range.
            HistoryChangedError: a newer producer has replaced ``life`` or ``after``.
            LeaseEndedError: the store has ended a lease before anything was read of it.
            StoreUnreachableError: the store grants no lease, or has no records of ``life`` yet.
            StoreError: a block is damaged, or the disk fails.
            ClosedError: its ``LocalLogs`` is closed.
        """
        request = GetRequest(
            *tp, start, end, max_records=max_records, max_bytes=max_bytes, life=life, after=after
        )
        return self._read(client, request.fitted(), life, after)

    def read_many(
        self,
        client: StoreClient,
        ranges: Sequence[AskedRange],
        *,
        max_records: int,
        max_bytes: int,
    ) -> Generator[list[Part]]:
        """Yield the records of up to 1,000 ranges, in order, with few leases.

        See ``StoreClient.read_many``: those of some ranges may be incomplete or missing, also after
        the end of a lease.  Raises the errors of ``read``.
        """
        if self._files.closed:
            raise ClosedError("local logs")
        done, first = "", 0
        while first < len(ranges):
            granted = client.lease_many(ranges[first:], done=done, timeout_s=LEASE_TIMEOUT_S)
            done = granted.lease
            for number, blocks in groupby(granted.blocks, operator.itemgetter(0)):
                if first + number >= len(ranges):
                    why = f"it leases blocks of range {number}, which was not requested"
                    raise StoreUnreachableError(self._store, why)
                requested = ranges[first + number]
                lease = LeaseGranted(done, granted.slot, tuple(block[1:] for block in blocks))
                request = GetRequest(*requested[:4])
                for batch in self._blocks(lease, request, requested.start):
                    for part in batch.split(max_records, max_bytes):
                        yield [Part(first + number, part)]
            first += granted.ranges
        with contextlib.suppress(DafkaError):
            client.lease(ranges[0].tp, 0, 0, done=done, timeout_s=LEASE_TIMEOUT_S)

    def _read(
        self,
        client: StoreClient,
        request: GetRequest,
        life: EpochId | None,
        after: EpochId | None,
    ) -> Generator[RecordBatch]:
        if self._files.closed:
            raise ClosedError("local logs")
        at, tp, done = request.start, request.tp, ""
        timeout_s = LEASE_TIMEOUT_S
        while at < request.end:
            granted = client.lease(
                tp,
                at,
                request.end,
                life=life,
                after=after if at == request.start else None,
                done=done,
                timeout_s=timeout_s,
            )
            begun, done = at, granted.lease
            blocks = self._blocks(granted, request, at)
            for batch in coalesce(blocks, request.max_records, request.max_bytes):
                yield from batch.split(request.max_records, request.max_bytes)
                at = batch.end
            # If the lease has ended meanwhile, because the caller was slow, the next one is for the
            # rest; a store that ends each at once needs its space.
            if at == begun:
                raise LeaseEndedError(*tp, self._store, at, LEASE_S)
        if done:
            # The store ends it by itself, too, later.
            with contextlib.suppress(DafkaError):
                client.lease(tp, at, at, done=done, timeout_s=timeout_s)

    def _blocks(self, granted: LeaseGranted, request: GetRequest, at: int) -> Iterator[RecordBatch]:
        for first, position, size_bytes in granted.blocks:
            why = ""
            try:
                block = self._files.block(position, size_bytes)
                if not first <= at < first + block.count:
                    why = f"it holds offsets {first} to {first + block.count} (exclusive)"
            except (ValueError, OSError) as error:
                why = str(error)
            # After reading, before the records are used.
            if not self._files.holds(granted):
                return
            if why:
                why = f"cannot be read at byte {position} of {DATA_FILE}: {why}"
                why = f"{request.tp}: the block at offset {first} {why}"
                raise damaged(self._files.directory, why)
            batch = RecordBatch(request.tp, first, block.values, times=block.times)
            batch = batch.between(at, min(batch.end, request.end))
            yield batch
            at = batch.end


def _session(directory: str) -> str | None:
    try:
        with (Path(directory) / SESSION_FILE).open("rb") as file:
            return file.read(MAX_SESSION_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None


def _file_id(directory: str) -> _FileId:
    try:
        found = (Path(directory) / DATA_FILE).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
