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
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dafka_core.archive.manifest import (
    DAY_US,
    MANIFEST,
    MAX_COMMIT_FILES,
    STAGED,
    ArchivedFile,
    ArchiveError,
    Manifest,
    Staging,
    damaged,
    day_name,
    day_of,
    make_archive,
    names_in,
    path_of,
    reading,
    recover,
    staged_path,
    topic_of,
    translated,
)
from dafka_core.errors import DafkaError, DataLossError, HistoryChangedError
from dafka_core.model.envelope_columns import HEADERS_TYPE, close_columns, opened_columns
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.names import escape
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    coalesce,
)
from dafka_core.model.timestamps import ANY_US
from dafka_core.model.values import Longs, Values

# -- Parquet files: records of a partition and a day, in Spark's columns of a topic ----------------

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Columns ``topic`` and ``day`` are the names of directories."""

COMPRESSION: Final = "zstd"
_REPEATING: Final = ["key", "partition", "timestamp", "headers.list.element.key"]
"""Columns with repeating values; for others a dictionary is useless."""


class RecordFile:
    """A new file of consecutive records at ``path``; a context that leaves an unfinished one."""

    def __init__(self, directory: Path, path: Path) -> None:
        self.start = self.end = -1  # the offsets of its records, ``end`` exclusive
        self.least_us, self.greatest_us = ANY_US, UNKNOWN_US  # as ``least_and_greatest_us``
        self.values_bytes = 0  # the size of their values
        self._directory = directory
        self._path = path
        with translated(directory), ExitStack() as opened:
            self._file = opened.enter_context(path.open("xb"))
            self._writer = pq.ParquetWriter(
                self._file,
                SCHEMA,
                compression=COMPRESSION,
                compression_level=1,
                use_dictionary=_REPEATING,
                write_page_checksum=True,
                store_schema=False,
            )
            opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.is_open = False  # else an unfinished one's end would be written
        with suppress(OSError):  # the disk may be full
            self._file.close()

    def write(self, batch: RecordBatch) -> None:
        """Add records, as a row group; raise ArchiveError if the disk does not accept them."""
        with translated(self._directory):
            self._writer.write_batch(columns_of(batch))
        self.start = batch.offset if self.start < 0 else self.start
        self.end = batch.end
        least_us, greatest_us = least_and_greatest_us(batch)
        self.least_us = min(self.least_us, least_us)
        self.greatest_us = max(self.greatest_us, greatest_us)
        self.values_bytes += batch.values.size_bytes

    def finish(self) -> int:
        """Complete the file, which is not synced yet, and return its size in bytes."""
        with translated(self._directory):
            self._writer.close()
            self._file.close()
            return self._path.stat().st_size


def columns_of(batch: RecordBatch) -> pa.RecordBatch:
    """Return records as columns: keys, headers and null values from their envelopes."""
    count = batch.count
    columns = opened_columns(batch.values) or {"value": batch.values.to_arrow()}
    times = pa.nulls(count, SCHEMA.field("timestamp").type)
    if batch.times is not None:
        stamps = np.repeat(batch.times[:, 1], batch.times[:, 0])
        unknown = stamps == UNKNOWN_US
        masked = pa.array(stamps, pa.int64(), mask=unknown if unknown.any() else None)
        times = masked.view(times.type)
    columns |= {
        "partition": pa.repeat(pa.scalar(escape(batch.tp.partition)), count),
        "offset": pa.array(batch.offsets),
        "timestamp": times,
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def by_day(batch: RecordBatch, newest_us: int) -> Iterator[tuple[str | None, RecordBatch]]:
    """Split the records by day (UTC): that of the greatest time so far.

    So late records begin no new file, and no record is newer than its file's day.  ``newest_us`` is
    the greatest time before them, ``UNKNOWN_US`` if there is none.
    """
    if batch.times is None:
        yield None, batch
        return
    counts, times = batch.times.T
    newest = np.maximum.accumulate(np.maximum(times, newest_us))
    times = np.where(times == UNKNOWN_US, UNKNOWN_US, newest)
    changes = np.flatnonzero(np.diff(times // DAY_US)) + 1
    ends = counts.cumsum()
    cuts = [batch.offset, *(batch.offset + ends[changes - 1]).tolist(), batch.end]
    for (start, end), run in zip(pairwise(cuts), [0, *changes.tolist()], strict=True):
        yield day_of(int(times[run])), batch.between(start, end)


def least_and_greatest_us(batch: RecordBatch) -> tuple[int, int]:
    """Return the least and the greatest time of records; ``UNKNOWN_US`` is below all times."""
    if batch.times is None:
        return UNKNOWN_US, UNKNOWN_US
    return int(batch.times[:, 1].min()), int(batch.times[:, 1].max())


def read_records(
    directory: Path, path: Path, tp: TopicPartition, file: ArchivedFile, start: int, end: int
) -> Iterator[RecordBatch]:
    """Yield records ``start`` to ``end`` (exclusive) of a file, as in a log.

    Raises ArchiveError if it is damaged, or the disk fails; FileNotFoundError if it is missing.
    """
    at = file.start
    with _opened(directory, path, file) as parquet:
        for group in range(parquet.num_row_groups):
            stop = at + parquet.metadata.row_group(group).num_rows
            if at < end and start < stop:
                with reading(directory, path):
                    (columns,) = parquet.read_row_group(group).combine_chunks().to_batches()
                batch = _batch(directory, path, tp, at, columns)
                yield batch.between(max(start, at), min(end, stop))
            at = stop


def first_from(directory: Path, path: Path, file: ArchivedFile, time_us: int) -> int | None:
    """Return the first offset at a time or later; None if all are earlier; as ``read_records``."""
    with _opened(directory, path, file) as parquet, reading(directory, path):
        found = parquet.read(columns=["timestamp"]).column(0)
    at = np.flatnonzero(_stamps(found.combine_chunks()) >= time_us)
    return file.start + int(at[0]) if len(at) else None


@contextmanager
def _opened(directory: Path, path: Path, file: ArchivedFile) -> Iterator[pq.ParquetFile]:
    with reading(directory, path):
        parquet = pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
    with parquet:
        rows, size_bytes = parquet.metadata.num_rows, path.stat().st_size
        if rows != file.end - file.start or size_bytes != file.size_bytes:
            why = f"has {rows} records and {size_bytes} bytes, not {file.end - file.start} and "
            raise damaged(directory, path, f"{why}{file.size_bytes}")
        if not parquet.schema_arrow.equals(SCHEMA):
            raise damaged(directory, path, "has other columns")
        yield parquet


def _batch(
    directory: Path, path: Path, tp: TopicPartition, start: int, columns: pa.RecordBatch
) -> RecordBatch:
    count = len(columns)
    offsets = columns.column("offset").to_numpy()
    if not np.array_equal(offsets, np.arange(start, start + count)):
        raise damaged(directory, path, f"has other offsets than {start} to {start + count}")
    value, key, headers = (columns.column(name) for name in ("value", "key", "headers"))
    with reading(directory, path):
        values = Values.from_arrow(close_columns(value, key, headers))
    stamps = _stamps(columns.column("timestamp"))
    firsts = np.flatnonzero(np.diff(stamps, prepend=stamps[:1] - 1))
    times = np.column_stack((np.diff(firsts, append=count), stamps[firsts]))
    return RecordBatch(tp, start, values, times=times)


def _stamps(times: pa.Array) -> Longs:
    return times.view(pa.int64()).fill_null(UNKNOWN_US).to_numpy()  # type: ignore[no-any-return]


# -- writing and reading an archive ----------------------------------------------------------------

FILE_BYTES: Final = 256 << 20
"""Values in one file: few enough for one Spark task, and many enough that files are few."""

COMMIT_BYTES: Final = 1 << 30
"""Values staged before they are named in the manifest: the cost of a kill."""

COMMIT_RETRY_S: Final = 0.1

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
                time.sleep(COMMIT_RETRY_S)  # NFS shows a directory as it was a moment ago
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
            found = map(topic_of, names_in(self.directory / MANIFEST))
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
            for each in names_in(above):
                found |= {f"{each}/{name}" for name in names_in(above / each)}
    return found


def _is_in(existing: set[str], file: ArchivedFile) -> bool:
    published = f"{day_name(file.day)}/{file.name}"
    return published in existing or f"{file.staged}/{file.name}.staged" in existing
