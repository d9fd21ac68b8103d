"""Short-circuit reads: a reader on the store's machine maps the log itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from dafka_core.closing import Closing
from dafka_core.errors import ClosedError, DataLossError, StoreError
from dafka_core.flight.requests import GetRequest
from dafka_core.flight.store_location import SESSION_FILE, StoreLocation
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition, coalesce
from dafka_core.storage import Log
from dafka_core.storage.storage_errors import DATA_FILE

SNAPSHOT_BYTES: Final = 64 << 20
SNAPSHOT_S: Final = 2.0
"""How much is read of one snapshot, and for how long, at most: until it is closed the store cannot
use again the space of what it merges or trims."""

MAX_SESSION_BYTES: Final = 256
"""Of the file ``session``; a longer one is not a store's."""

_FileId = tuple[int, int] | None


class LocalLogs(Closing):
    """The logs of stores on this machine, each opened once, for reading only.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, tuple[Log, _FileId]] = {}
        self._process = os.getpid()
        self._closed = False

    def open(self, location: StoreLocation) -> LocalLog | None:
        """A store's log; None unless it is on this machine, can be read, and is the one meant.

        The one meant has the location's session in its directory: a directory on another machine,
        or in another container, may have the same name.  None, too, in a process forked from one
        that has opened logs.

        Raises:
            ClosedError: after ``close``.
        """
        directory = location.directory
        if not (location.here and directory and location.session):
            return None
        with self._lock:
            if self._closed:
                raise ClosedError("local logs")
            if self._inherited() or _session(directory) != location.session:
                return None
            known = self._logs.get(directory)
            if known is not None and known[1] == _file_id(directory):
                return LocalLog(known[0])
            # Reads of the earlier log go on; it is closed when nothing refers to it.
            self._logs.pop(directory, None)
            try:
                log = Log(directory, read_only=True)
            except StoreError:
                return None
            self._logs[directory] = log, _file_id(directory)
            return LocalLog(log)

    def close(self) -> None:
        """Closes all logs; what was handed out stays valid.  May be repeated."""
        with self._lock:
            self._closed = True
            if self._inherited():
                return
            logs, self._logs = self._logs, {}
        for log, _ in logs.values():
            log.close()

    def _inherited(self) -> bool:
        """Whether the logs are those of the process that forked this one.

        LMDB can neither use nor close them here, nor open them again (lmdb.h, "Caveats").
        """
        if not self._logs:
            self._process = os.getpid()
        return self._process != os.getpid()


class LocalLog:
    """A store's log, read in place beside the process that writes it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def read(
        self, tp: TopicPartition, start: int, end: int, *, max_records: int, max_bytes: int
    ) -> Generator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive), in order and complete.

        Values lie in the store's file and stay valid as long as anything refers to them; let go
        of them soon.  Sizes are as those of ``StoreClient.read``.

        Raises:
            InvalidRequestError: an argument cannot be used; at once.
            DataLossError: the log does not hold all of the range.
            StoreError: a block is damaged.
            ClosedError: the ``LocalLogs`` it is of is closed.
        """
        request = GetRequest(*tp, start, end, max_records=max_records, max_bytes=max_bytes)
        return self._read(request.fitted())

    def _read(self, request: GetRequest) -> Generator[RecordBatch]:
        at = request.start
        while at < request.end:
            blocks = self._blocks(request.tp, at, request.end)
            for batch in coalesce(blocks, request.max_records, request.max_bytes):
                yield from batch.split(request.max_records, request.max_bytes)
                at = batch.end

    def _blocks(self, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        """The batches of one snapshot, which ends after a while."""
        deadline = time.monotonic() + SNAPSHOT_S
        left_bytes = SNAPSHOT_BYTES
        with self._log.snapshot() as snapshot:
            check_held(snapshot.info(tp), tp, start, end)
            for batch in snapshot.read(tp, start, end):
                yield batch
                left_bytes -= batch.values.size_bytes
                if left_bytes <= 0 or time.monotonic() > deadline:
                    return


def check_held(held: PartitionInfo | None, tp: TopicPartition, start: int, end: int) -> None:
    """Raises DataLossError unless the records from ``start`` up to ``end`` are held.

    Its ``available`` is the first offset held where the range begins before it, else None; its
    ``wanted`` is the first offset of the range that is not held.
    """
    if held is None:
        held = PartitionInfo(*tp, 0, 0)
    if start < held.earliest and start < end:
        why = "the store has no records before it"
        raise DataLossError(*tp, start, held.earliest, why)
    if end > held.end:
        why = f"the store has the records from {held.earliest} up to {held.end} (exclusive)"
        raise DataLossError(*tp, max(start, held.end), None, why)


def _session(directory: str) -> str | None:
    try:
        with (Path(directory) / SESSION_FILE).open("rb") as file:
            return file.read(MAX_SESSION_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None


def _file_id(directory: str) -> _FileId:
    """What tells the store's file from one that has been put in its place."""
    try:
        found = (Path(directory) / DATA_FILE).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
