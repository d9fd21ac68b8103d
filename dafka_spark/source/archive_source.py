"""The archive as a source of records: an executor reads its Parquet files itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.epochs import EpochId
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_spark.source.range_planner import OffsetRange


class ArchiveSource:
    """Files of one partition that follow each other without a hole; a ``RecordSource``."""

    def __init__(self, directory: str, tp: TopicPartition, files: Sequence[ArchivedFile]) -> None:
        self.name = f"the archive at {directory}"
        self.known = range(files[0].start, files[-1].end)
        self._directory = directory
        self._tp = tp
        self._files = files

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """The records of a range."""
        yield from archive.read(self._directory, self._tp, self._files, wanted.start, wanted.end)

    def life_before(self, offset: int) -> EpochId:
        """The newest life that was known when the records before an offset were archived."""
        return next(file.life for file in self._files if offset <= file.end)

    def heads(self, topic: str) -> list[PartitionInfo]:
        """What there is, in these files."""
        return [archive.info_of(self._tp, self._files)] if topic == self._tp.topic else []


def archive_sources(
    directory: str, tp: TopicPartition, files: Sequence[ArchivedFile]
) -> list[ArchiveSource]:
    """A source for each run of files without a hole."""
    runs: list[list[ArchivedFile]] = []
    for file in files:
        if runs and runs[-1][-1].end == file.start:
            runs[-1].append(file)
        else:
            runs.append([file])
    return [ArchiveSource(directory, tp, run) for run in runs]


def sources_now(directory: str, tp: TopicPartition, start: int, end: int) -> list[ArchiveSource]:
    """The sources of what the archive has of offsets ``start`` to ``end`` (exclusive) now.

    Raises:
        ArchiveError: it cannot be read.
    """
    files = archive.Archive(directory).held([tp.topic]).get(tp, ())
    return archive_sources(directory, tp, [f for f in files if f.start < end and start < f.end])
