"""Archives what a store is about to give up: an ``Archiver`` of its log.

Records go to the archive in few files: a day of a partition at a time, or ``FILE_BYTES`` if that is
less.  Until there is as much, the store keeps what its rules would have it give up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dafka_core.archive.archive_writer import GROUP_BYTES, GROUP_RECORDS, ArchiveWriter, Wanted
from dafka_core.archive.layout import DAY_US, ArchiveError, make_archive
from dafka_core.archive.manifest import Manifest
from dafka_core.errors import CHANGED, ClosedError, DafkaError, DataLossError, HistoryChangedError
from dafka_core.model.epochs import MAX_EPOCHS, EpochId, History, known_until
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log

FILE_BYTES: Final = 64 << 20
"""What is waiting of a partition is archived when it is about as much, or a whole day."""

_log = logging.getLogger("dafka.store")


@dataclass(slots=True)
class ArchivedCounts:
    """What was archived since the store was started, and of how many partitions that failed."""

    files: int = 0
    records: int = 0
    size_bytes: int = 0
    failing: int = 0


class LogArchiver:
    """Archives records of a log in a directory, which other stores may share; for one thread.

    Raises:
        ArchiveError: the directory cannot be one of an archive.
    """

    def __init__(self, log: Log, directory: str | Path) -> None:
        make_archive(Path(directory))
        self.counts = ArchivedCounts()
        self._log = log
        self._directory = directory
        self._writers: dict[str, ArchiveWriter] = {}
        self._failed: dict[TopicPartition, str] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Has what goes on in another thread end soon, with ``ClosedError``."""
        self._stopped.set()

    def archive(self, tp: TopicPartition, before: int) -> int:
        """See ``Archiver``; a partition that fails is told of once, and kept.

        Raises:
            ArchiveError: the archive cannot be written to.
            ClosedError: after ``stop``.
        """
        info = self._log.info(tp)
        if info is None:
            return before
        try:
            writer = self._writers.get(tp.topic)
            if writer is None:
                writer = self._writers[tp.topic] = ArchiveWriter(self._directory, tp.topic)
            return self._archived(writer, info, before)
        except ArchiveError:
            # Somebody may have moved the topic's directories away: the next writer begins anew.
            self._writers.pop(tp.topic, None)
            raise

    def _archived(self, writer: ArchiveWriter, info: PartitionInfo, before: int) -> int:
        tp, error = info.tp, self._difference(writer.manifest, info, before)
        first = self._first_missing(writer, info, before)
        if error is None and first < before and (due := self._due(info, first, before)) > first:
            added = writer.archive([Wanted(tp, info.earliest, due, info.life)], self._read)
            self.counts.files += added.files
            self.counts.records += added.records
            self.counts.size_bytes += added.size_bytes
            error = next((each for _, each in added.failed), None)
            if error is None:  # another store may have been first
                error = self._difference(writer.manifest, info, before)
            first = self._first_missing(writer, info, before)
        self._note_failure(tp, error)
        return first if error is None else info.earliest

    def _difference(
        self, manifest: Manifest, info: PartitionInfo, before: int
    ) -> DafkaError | None:
        """Why what is archived of these offsets may be other records than the log's."""
        history = self._log.lives(info.tp).history
        for file in manifest.between(info.partition, info.earliest, before):
            try:
                _check_history(info.tp, history, file.life, min(file.end, info.end))
            except HistoryChangedError as error:
                return manifest.other_records(info.tp, error.wanted)
            except DafkaError as error:
                return error
        return None

    def _first_missing(self, writer: ArchiveWriter, info: PartitionInfo, before: int) -> int:
        missing = writer.manifest.missing(info.partition, info.earliest, before)
        return next(missing, (before, before))[0]

    def _due(self, info: PartitionInfo, first: int, before: int) -> int:
        """Up to where what is waiting is to be archived now; ``first`` if nothing is."""
        with self._log.snapshot() as snapshot:
            sizes = snapshot.record_sizes(info.tp, first, before) or [0]
        if (before - first) * sum(sizes) / len(sizes) >= FILE_BYTES:
            return before
        last_day_us = self._time_us(info.tp, before - 1) // DAY_US * DAY_US
        next_day = self._log.offset_for_time(info.tp, last_day_us + DAY_US)
        # Where nothing newer has come, the clock says whether the day is over.
        is_over = before >= info.end and self._log.now_us() >= last_day_us + DAY_US
        if next_day == before or (next_day is None and is_over):
            return before
        return min(self._log.offset_for_time(info.tp, last_day_us) or 0, before)

    def _time_us(self, tp: TopicPartition, offset: int) -> int:
        return self._log.times(tp, offset, offset + 1)[0][1]

    def _read(self, wanted: Wanted) -> Iterator[RecordBatch]:
        """Of the log's history, which must be the one that was archived before."""
        history = self._log.lives(wanted.tp).history
        _check_history(wanted.tp, history, wanted.after, wanted.start)
        at = wanted.start
        while at < wanted.end:
            if self._stopped.is_set():
                raise ClosedError("archiver")
            found = self._log.read(
                wanted.tp, at, wanted.end, max_records=GROUP_RECORDS, max_bytes=GROUP_BYTES
            )
            if not found or found[0].offset != at:
                available = found[0].offset if found else None
                raise DataLossError(*wanted.tp, at, available, "they were given up meanwhile")
            yield from found
            at = found[-1].end

    def _note_failure(self, tp: TopicPartition, error: DafkaError | None) -> None:
        if isinstance(error, ClosedError):
            raise error
        if error is None:
            self._failed.pop(tp, None)
        elif self._failed.get(tp) != (why := str(error)):
            self._failed[tp] = why
            _log.error(
                "%(tp)s: it is not archived, and nothing of it is given up: %(why)s",
                {"tp": str(tp), "why": why},
                extra={"event": "archive_failed"},
            )
        self.counts.failing = len(self._failed)


def _check_history(tp: TopicPartition, history: History, life: EpochId, end: int) -> None:
    """Sees that records before ``end`` that were archived when ``life`` was known are the log's.

    Raises:
        HistoryChangedError: they are not, from its ``wanted`` on.
        DafkaError: the log has not heard of that life yet.
    """
    if len(history) >= MAX_EPOCHS and life < history[0].life:
        return  # the log has forgotten it
    known = known_until(history, life)
    if known is None:
        raise DafkaError(f"{tp}: the archive has records of a newer producer than the store")
    if known < end:
        raise HistoryChangedError(*tp, known, None, CHANGED, end)
