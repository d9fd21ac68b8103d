"""Reads an archive: the list of archived records, and the records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dafka_core.archive import layout
from dafka_core.archive.layout import ArchiveError, translated
from dafka_core.archive.manifest import ArchivedFile, Manifest, path_of, staged_path
from dafka_core.archive.record_files import first_from, read_records
from dafka_core.errors import DataLossError
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition

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
            if not (self.directory / layout.MANIFEST).is_dir():
                why = (
                    f"it is not an archive: it has no directory {layout.MANIFEST}. Name the "
                    "directory that 'dafka archive' wrote to"
                )
                raise ArchiveError(self.directory, why)

    def topics(self) -> list[str]:
        """Return the archived topics, in order."""
        with translated(self.directory):
            found = map(layout.topic_of, _names(self.directory / layout.MANIFEST))
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
        for above in (manifest.commits / layout.STAGED, manifest.records):
            for each in _names(above):
                found |= {f"{each}/{name}" for name in _names(above / each)}
    return found


def _is_in(existing: set[str], file: ArchivedFile) -> bool:
    published = f"{layout.day_name(file.day)}/{file.name}"
    return published in existing or f"{file.staged}/{file.name}.staged" in existing


def _names(directory: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path.name for path in directory.iterdir()]
    return []
