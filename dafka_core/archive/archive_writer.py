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

    files: list[ArchivedFile]
    failed: dict[TopicPartition, DafkaError]


class ArchiveWriter:
    """Writes to the archive of one topic.  For one thread; there may be any number of writers.

    Raises ArchiveError if the directory is not an archive, cannot be used, or has damaged files.
    """

    def __init__(self, directory: Path | str, topic: str) -> None:
        self.manifest = Manifest(Path(directory), topic)
        make_archive(self.manifest.directory)
        recover(self.manifest)
        self.manifest.refresh()

    def archive(self, wanted: Sequence[Wanted], read: Read) -> Added:
        """Add those of these records that the archive lacks; they are on disk when this returns.

        A partition of which ``read`` fails is reported; files of it that were finished before are
        added, unless its history has changed.  After an ArchiveError of the disk, files added
        before remain.
        """
        self.manifest.refresh()
        added = Added([], {})
        while missing := [part for part in self._missing(wanted) if part.tp not in added.failed]:
            with Staging(self.manifest) as staging:
                files = self._stage(staging, missing, read, added)
                staging.add(files)
                added.files.extend(self._commit([file for _, file in files]))
        return added

    def _missing(self, wanted: Sequence[Wanted]) -> Iterator[Wanted]:
        for each in wanted:
            for start, end in self.manifest.missing(each.tp.partition, each.start, each.end):
                after = self.manifest.life_before(each.tp.partition, start)
                yield each._replace(start=start, end=end, after=after)

    def _stage(
        self, staging: Staging, parts: Sequence[Wanted], read: Read, added: Added
    ) -> list[tuple[Path, ArchivedFile]]:
        """Write the files of the first of these ranges, perhaps not all; note failures."""
        files: list[tuple[Path, ArchivedFile]] = []
        size_bytes = 0
        for part in parts:
            if part.tp in added.failed:
                continue
            try:
                for path, made, values_bytes in self._written(staging, part, read):
                    files.append((path, made))
                    size_bytes += values_bytes
                    if size_bytes >= COMMIT_BYTES or len(files) >= MAX_COMMIT_FILES:
                        return files
            except ArchiveError:
                raise
            except HistoryChangedError as error:
                # Files finished before may have records that were set aside since.
                files = [each for each in files if each[1].partition != part.tp.partition]
                added.failed[part.tp] = self.manifest.other_records(part.tp, error.wanted)
            except DafkaError as error:
                added.failed[part.tp] = error
        return files

    def _written(
        self, staging: Staging, part: Wanted, read: Read
    ) -> Iterator[tuple[Path, ArchivedFile, int]]:
        """Yield the finished files of a range, each with the size of its values."""
        pieces = self._pieces(part, read)
        day, piece = next(pieces, (None, None))
        while piece is not None:
            path = staging.directory / f"open-{secrets.token_hex(8)}"
            with RecordFile(self.manifest.directory, path) as file:
                file_day = day
                while piece is not None and day == file_day and file.values_bytes < FILE_BYTES:
                    file.write(piece)
                    day, piece = next(pieces, (None, None))
                size_bytes = file.finish()
            where = part.tp.partition, file.start, file.end, file_day, size_bytes
            span_us = file.least_us, file.greatest_us
            least_us, greatest_us = (None if us == UNKNOWN_US else us for us in span_us)
            made = ArchivedFile(*where, least_us, greatest_us, staging.id, part.life)
            yield path, made, file.values_bytes

    def _pieces(self, part: Wanted, read: Read) -> Iterator[tuple[str | None, RecordBatch]]:
        """Yield the records, each batch of one day; raise ArchiveError if they have a gap."""
        position = part.start
        newest_us = self.manifest.newest_us(part.tp.partition, part.start)
        for group in coalesce(read(part), GROUP_RECORDS, GROUP_BYTES):
            for batch in group.split(GROUP_RECORDS, GROUP_BYTES):
                if batch.offset != position:
                    why = f"{part.tp}: offset {batch.offset} arrived instead of {position}"
                    raise ArchiveError(self.manifest.directory, why)
                yield from by_day(batch, newest_us)
                position = batch.end
                newest_us = max(newest_us, least_and_greatest_us(batch)[1])
        if position != part.end:
            why = f"{part.tp}: the records end at {position}, not at {part.end}"
            raise ArchiveError(self.manifest.directory, why)

    def _commit(self, files: Sequence[ArchivedFile]) -> Sequence[ArchivedFile]:
        """Name files in the manifest, except those that another writer has added first."""
        manifest = self.manifest
        while files and not manifest.commit(files):
            if not manifest.refresh():
                time.sleep(RETRY_S)  # NFS shows a directory as it was a moment ago
            files = [f for f in files if not manifest.between(f.partition, f.start, f.end)]
        return files
