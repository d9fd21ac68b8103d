"""Writes records to the archive of a topic, each offset once, beside any other writers.

Records missing in the manifest are written to staged files, a commit names them, and then they are
published.  A kill before the commit leaves only files that no reader sees, and one after it leaves
files that readers find in their staging place, and that the next writer publishes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.archive.layout import ArchiveError, make_archive
from dafka_core.archive.manifest import MAX_COMMIT_FILES, ArchivedFile, Manifest, Staging, recover
from dafka_core.archive.record_files import RecordFile, by_day, least_and_greatest_us
from dafka_core.errors import DafkaError, HistoryChangedError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition, coalesce
from dafka_core.model.timestamps import ANY_US

FILE_BYTES: Final = 256 << 20
"""Values in one file: few enough for one Spark task, and many enough that files are few."""

COMMIT_BYTES: Final = 1 << 30
"""Values staged before they are named in the manifest: the cost of a kill."""

RETRY_S: Final = 0.1

GROUP_RECORDS: Final = 1 << 18
GROUP_BYTES: Final = 32 << 20
"""A row group: its writer, and a reader of one record, have it in memory."""


class Wanted(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of a partition to archive.

    ``life`` is the partition's newest known producer; ``after`` the newest when the records before
    ``start`` were archived.
    """

    tp: TopicPartition
    start: int
    end: int
    life: EpochId = NO_LIFE
    after: EpochId = NO_LIFE


Read = Callable[[Wanted], Iterable[RecordBatch]]
"""The records of a range, with their times, complete and in order."""


class Added(NamedTuple):
    """The files that a writer has added, and the failed partitions with their reasons."""

    files: int = 0
    records: int = 0
    size_bytes: int = 0
    failed: tuple[tuple[TopicPartition, DafkaError], ...] = ()

    def with_all_of(self, other: Added) -> Added:
        """Return the files of both, and the failures of the other."""
        return Added(
            self.files + other.files,
            self.records + other.records,
            self.size_bytes + other.size_bytes,
            other.failed,
        )

    def and_then(self, files: Sequence[ArchivedFile]) -> Added:
        """Return it with more files."""
        records = sum(file.end - file.start for file in files)
        size_bytes = sum(file.size_bytes for file in files)
        return self._replace(
            files=self.files + len(files),
            records=self.records + records,
            size_bytes=self.size_bytes + size_bytes,
        )


class ArchiveWriter:
    """Writes to the archive of one topic.  For one thread; there may be any number of writers.

    Raises:
        ArchiveError: the directory cannot be read or written, is not an archive, or has damaged
            files.
    """

    def __init__(self, directory: Path | str, topic: str) -> None:
        self.manifest = Manifest(Path(directory), topic)
        make_archive(self.manifest.directory)
        recover(self.manifest)
        self.manifest.refresh()

    def archive(self, wanted: Sequence[Wanted], read: Read) -> Added:
        """Add those of these records that the archive lacks; they are on disk when this returns.

        A partition of which ``read`` fails is unchanged, and reported.

        Raises:
            ArchiveError: the archive cannot be written to.  Files added before remain.
        """
        self.manifest.refresh()
        added = Added()
        failed: dict[TopicPartition, DafkaError] = {}
        while missing := [part for part in self._missing(wanted) if part.tp not in failed]:
            with Staging(self.manifest) as staging:
                files = _Stage(self.manifest, staging, read).written(missing, failed)
                staging.add(files)
                added = added.and_then(self._commit([file for _, file in files]))
        return added._replace(failed=tuple(failed.items()))

    def _missing(self, wanted: Sequence[Wanted]) -> Iterator[Wanted]:
        for each in wanted:
            for start, end in self.manifest.missing(each.tp.partition, each.start, each.end):
                after = self.manifest.life_before(each.tp.partition, start)
                yield each._replace(start=start, end=end, after=after)

    def _commit(self, files: Sequence[ArchivedFile]) -> Sequence[ArchivedFile]:
        """Name files in the manifest, except those that another writer has added first."""
        manifest = self.manifest
        while files and not manifest.commit(files):
            if not manifest.refresh():
                time.sleep(RETRY_S)  # NFS shows a directory as it was a moment ago
            files = [f for f in files if not manifest.between(f.partition, f.start, f.end)]
        return files


class _Stage:
    """The staged files of one commit."""

    def __init__(self, manifest: Manifest, staging: Staging, read: Read) -> None:
        self._manifest = manifest
        self._staging = staging
        self._read = read
        self._files: list[tuple[Path, ArchivedFile]] = []
        self._size_bytes = 0

    def written(
        self, parts: Sequence[Wanted], failed: dict[TopicPartition, DafkaError]
    ) -> list[tuple[Path, ArchivedFile]]:
        """Write the files of the first of these ranges, perhaps not all; add to ``failed``."""
        for part in parts:
            if self._is_full:
                break
            if part.tp in failed:
                continue
            try:
                self._write(part)
            except ArchiveError:
                raise
            except HistoryChangedError as error:
                failed[part.tp] = self._manifest.other_records(part.tp, error.wanted)
            except DafkaError as error:
                failed[part.tp] = error
        return self._files

    @property
    def _is_full(self) -> bool:
        return self._size_bytes >= COMMIT_BYTES or len(self._files) >= MAX_COMMIT_FILES

    def _write(self, part: Wanted) -> None:
        position, open_file = part.start, None
        newest_us = self._manifest.newest_us(part.tp.partition, part.start)
        try:
            batches = (
                batch
                for group in coalesce(self._read(part), GROUP_RECORDS, GROUP_BYTES)
                for batch in group.split(GROUP_RECORDS, GROUP_BYTES)
            )
            for batch in batches:
                for day, piece in by_day(batch, newest_us):
                    if open_file and not open_file.takes(day):
                        self._finish(open_file)
                        open_file = None
                        if self._is_full:
                            return
                    if piece.offset != position:
                        why = f"{part.tp}: offset {piece.offset} arrived instead of {position}"
                        raise ArchiveError(self._manifest.directory, why)
                    open_file = open_file or _OpenFile(
                        self._manifest, self._staging, part, day, piece
                    )
                    open_file.write(piece)
                    position, newest_us = piece.end, max(newest_us, open_file.greatest_us)
            if open_file:
                self._finish(open_file)
                open_file = None
            if position != part.end:
                why = f"{part.tp}: the records end at {position}, not at {part.end}"
                raise ArchiveError(self._manifest.directory, why)
        finally:
            if open_file:
                open_file.drop()

    def _finish(self, open_file: _OpenFile) -> None:
        self._files.append(open_file.finished())
        self._size_bytes += open_file.values_bytes


class _OpenFile:
    """A file for the records of one partition and day.

    Attributes:
        greatest_us: the greatest time of its records so far.
    """

    def __init__(
        self,
        manifest: Manifest,
        staging: Staging,
        part: Wanted,
        day: str | None,
        first: RecordBatch,
    ) -> None:
        self.values_bytes = 0
        self._part = part
        self._day = day
        self._staging = staging
        self._start = self._end = first.offset
        self._least_us, self.greatest_us = ANY_US, UNKNOWN_US
        self._path = staging.directory / f"open-{secrets.token_hex(8)}"
        self._file = RecordFile(manifest.directory, self._path)

    def takes(self, day: str | None) -> bool:
        return day == self._day and self.values_bytes < FILE_BYTES

    def write(self, batch: RecordBatch) -> None:
        self._file.write(batch)
        self._end = batch.end
        least_us, greatest_us = least_and_greatest_us(batch)
        self._least_us = min(self._least_us, least_us)
        self.greatest_us = max(self.greatest_us, greatest_us)
        self.values_bytes += batch.values.size_bytes

    def finished(self) -> tuple[Path, ArchivedFile]:
        size_bytes = self._file.finish()
        made = ArchivedFile(
            self._part.tp.partition,
            self._start,
            self._end,
            self._day,
            size_bytes,
            None if self._least_us == UNKNOWN_US else self._least_us,
            None if self.greatest_us == UNKNOWN_US else self.greatest_us,
            self._staging.id,
            self._part.life,
        )
        return self._path, made

    def drop(self) -> None:
        self._file.drop()
