"""Short-circuit reads: the log of a store on this machine, mapped by who reads it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.errors import ClosedError, StoreError
from dafka_core.flight import complete_range
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.request_members import check_names, check_range, checked_size
from dafka_core.flight.store_location import SESSION_FILE, StoreLocation
from dafka_core.records import RecordBatch, TopicPartition, coalesce
from dafka_core.storage import Log
from dafka_core.storage.storage_errors import DATA_FILE

SNAPSHOT_BYTES: Final = 64 << 20
SNAPSHOT_S: Final = 2.0
"""How long one moment of the log is read, at the most: the store cannot use again the space of
what it merges or trims meanwhile."""

MAX_SESSION_BYTES: Final = 256
"""Of the file ``session``; a longer one is not a store's."""


class _Opened(NamedTuple):
    log: Log
    file: tuple[int, int] | None


class LocalLogs:
    """The logs of stores on this machine, each opened once, for reading only.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, _Opened] = {}
        self._process = os.getpid()
        self._closed = False

    def open(self, location: StoreLocation) -> LocalLog | None:
        """The log of a place; None unless it is of this machine, may be read, and is the one meant.

        The one meant has the place's session in its directory: another machine's directory, or
        another container's, may have the same name.  None, too, in a process forked from one that
        has opened logs.

        Raises:
            ClosedError: after ``close``.
        """
        if not (location.here and location.directory and location.session):
            return None
        with self._lock:
            if self._closed:
                raise ClosedError("local logs")
            if self._inherited():
                return None
            if _session(location.directory) != location.session:
                return None
            known = self._logs.get(location.directory)
            if known is not None and known.file == _file(location.directory):
                return LocalLog(known.log)
            # What reads the one of before goes on; it is closed when nothing refers to it.
            self._logs.pop(location.directory, None)
            try:
                log = Log(location.directory, read_only=True)
            except StoreError:
                return None
            self._logs[location.directory] = _Opened(log, _file(location.directory))
        return LocalLog(log)

    def close(self) -> None:
        """Closes all; what was handed out stays valid.  May be repeated."""
        with self._lock:
            self._closed = True
            if self._inherited():
                return
            logs, self._logs = self._logs, {}
        for opened in logs.values():
            opened.log.close()

    def _inherited(self) -> bool:
        """Whether the logs are those of the process that forked this one.

        LMDB can neither use nor close them here, nor open them again.
        """
        if not self._logs:
            self._process = os.getpid()
        return self._process != os.getpid()


class LocalLog:
    """A store's log, read in place beside the process that writes it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        max_records: int,
        max_bytes: int,
    ) -> Generator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive), in order and complete.

        Values lie in the store's file and stay valid as long as anything refers to them; let go
        of them soon.  Sizes are as those of ``StoreClient.read``.

        Raises:
            ConfigError: an argument cannot be used; at once.
            DataLossError: the log does not hold all of the range.
            StoreError: a block is damaged.
            ClosedError: the ``LocalLogs`` it is of is closed.
        """
        check_names(*tp)
        check_range(start, end)
        records = checked_size("max_records", max_records, MAX_BATCH_RECORDS)
        size_bytes = checked_size("max_bytes", max_bytes, MAX_BATCH_BYTES)
        return self._read(tp, start, end, records, size_bytes)

    def _read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        max_records: int,
        max_bytes: int,
    ) -> Generator[RecordBatch]:
        at = start
        while at < end:
            taken = self._taken(tp, at, end)
            for batch in coalesce(taken, max_records, max_bytes):
                yield from batch.split(max_records, max_bytes)
                at = batch.end

    def _taken(self, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        """The batches of one snapshot, which ends after a while."""
        deadline = time.monotonic() + SNAPSHOT_S
        left_bytes = SNAPSHOT_BYTES
        with self._log.snapshot() as snapshot:
            for batch in complete_range.batches(snapshot, tp, start, end):
                yield batch
                left_bytes -= batch.values.size_bytes
                if left_bytes <= 0 or time.monotonic() > deadline:
                    return


def _session(directory: str) -> str | None:
    try:
        with (Path(directory) / SESSION_FILE).open("rb") as file:
            return file.read(MAX_SESSION_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None


def _file(directory: str) -> tuple[int, int] | None:
    """What tells the store's file from one that has been put in its place."""
    try:
        found = (Path(directory) / DATA_FILE).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
