"""Writes records to the archive of a topic, each offset once, and reads them.

Records missing in the manifest are written to staged files, a commit names them, and then they are
published.  A kill before the commit leaves only files that no reader sees, and one after it leaves
files that readers find in their staging place, and that the next writer publishes.  Any number of
writers work beside each other.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.archive.manifest import (
    MANIFEST,
    MAX_COMMIT_FILES,
    STAGED,
    ArchivedFile,
    ArchiveError,
    Manifest,
    Staging,
    day_name,
    make_archive,
    path_of,
    recover,
    staged_path,
    topic_of,
    translated,
)
from dafka_core.archive.record_files import (
    RecordFile,
    by_day,
    first_from,
    least_and_greatest_us,
    read_records,
)
from dafka_core.errors import DafkaError, DataLossError, HistoryChangedError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    coalesce,
)

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
                is_archived = error.wanted < part.start
                other = self.manifest.other_records(part.tp, error.wanted)
                added.failed[part.tp] = other if is_archived else error
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


Held = dict[TopicPartition, tuple[ArchivedFile, ...]]
"""The existing files of each partition, in the order of their offsets."""


class Archive:
    """The archive in a directory, for reading; ArchiveError if that has none.

    Missing files of the manifest have *expired*: they were removed to make the archive smaller.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._manifests: dict[str, Manifest] = {}
        with translated(self.directory):
            if not (self.directory / MANIFEST).is_dir():
                why = (
                    f"it is not an archive: it has no directory {MANIFEST}. Name the "
                    "directory that 'dafka archive' wrote to"
                )
                raise ArchiveError(self.directory, why)

    def topics(self) -> list[str]:
        """Return the archived topics, in order."""
        with translated(self.directory):
            found = map(topic_of, _names(self.directory / MANIFEST))
        return sorted(topic for topic in found if topic is not None)

    def held(self, topics: Collection[str] | None = None) -> Held:
        """Return the existing files of these topics or of all; raises as ``Manifest.refresh``."""
        found: Held = {}
        archived = self.topics()
        for topic in archived if topics is None else sorted(set(topics) & set(archived)):
            manifest = self._manifests.setdefault(topic, Manifest(self.directory, topic))
            manifest.refresh()
            existing = _existing(manifest)
            for partition, files in sorted(manifest.files.items()):
                if held := tuple(file for file in files if _is_in(existing, file)):
                    found[TopicPartition(topic, partition)] = held
        return found


def info_of(tp: TopicPartition, files: Sequence[ArchivedFile]) -> PartitionInfo:
    """Return the archived offsets of a partition, from the first of these files to the last one."""
    return PartitionInfo(*tp, files[0].start, files[-1].end, files[-1].life)


def read(
    directory: Path | str, tp: TopicPartition, files: Sequence[ArchivedFile], start: int, end: int
) -> Iterator[RecordBatch]:
    """Yield records ``start`` to ``end`` (exclusive) of a partition, in order and complete.

    Raises DataLossError if no file has some of them, or it has expired, and ArchiveError if a file
    is damaged, or the disk fails.
    """
    manifest, at = Manifest(Path(directory), tp.topic), start
    for number, file in enumerate(files):
        if not file.start < end or not at < file.end:
            continue
        if file.start > at:
            break
        stop = min(end, file.end)
        for path in _places(manifest, file):
            with suppress(FileNotFoundError):
                yield from read_records(manifest.directory, path, tp, file, at, stop)
                at = stop
                break
        if at < stop:
            later = next((each.start for each in files[number + 1 :]), None)
            raise DataLossError(*tp, at, later, f"{file.name} has expired")
    if at < end:
        later = next((each.start for each in files if each.start > at), None)
        raise DataLossError(*tp, at, later, f"the archive at {directory} does not have it")


def offset_of_time(
    directory: Path | str, tp: TopicPartition, files: Sequence[ArchivedFile], time_us: int
) -> int | None:
    """Return the first offset in these files of a time (microseconds since 1970 UTC) or later.

    None if all are earlier.  Raises as ``read``.
    """
    manifest = Manifest(Path(directory), tp.topic)
    for file in files:
        if file.greatest_us is not None and file.greatest_us >= time_us:
            if file.least_us is not None and file.least_us >= time_us:
                return file.start
            for path in _places(manifest, file):
                with suppress(FileNotFoundError):
                    return first_from(manifest.directory, path, file, time_us)
    return None


def _places(manifest: Manifest, file: ArchivedFile) -> tuple[Path, Path, Path]:
    """Return where to look for a file, in order; it may be published in between."""
    published = path_of(manifest, file)
    return published, staged_path(manifest, file), published


def _existing(manifest: Manifest) -> set[str]:
    """Return the existing files, staged and published, each with its directory's name."""
    found: set[str] = set()
    with translated(manifest.directory):
        # Staged ones first: files published in between are found twice instead of never.
        for above in (manifest.commits / STAGED, manifest.records):
            for each in _names(above):
                found |= {f"{each}/{name}" for name in _names(above / each)}
    return found


def _is_in(existing: set[str], file: ArchivedFile) -> bool:
    published = f"{day_name(file.day)}/{file.name}"
    return published in existing or f"{file.staged}/{file.name}.staged" in existing


def _names(directory: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path.name for path in directory.iterdir()]
    return []
