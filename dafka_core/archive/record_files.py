"""Parquet files of records: Spark's columns of a topic, of one partition and day."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dafka_core.archive.manifest import DAY_US, ArchivedFile, damaged, day_of, reading, translated
from dafka_core.model.envelope_columns import HEADERS_TYPE, close_columns, opened_columns
from dafka_core.model.names import escape
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition
from dafka_core.model.timestamps import ANY_US
from dafka_core.model.values import Longs, Values

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
        with translated(directory), contextlib.ExitStack() as opened:
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
        with contextlib.suppress(OSError):  # the disk may be full
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


@contextlib.contextmanager
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
