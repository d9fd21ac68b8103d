"""Records to archive, and the records of an archive."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from dafka_core.archive import archive
from dafka_core.archive.archive import ArchiveWriter, Read, Wanted
from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values

A = TopicPartition("flights", "A" * 32)
B = TopicPartition("flights", "B" * 32)

HOUR_US = 3_600_000_000
BEGIN_US = 1_767_225_600_000_000
"""2026-01-01, UTC; each record is an hour later than the previous one."""


def content(offset: int) -> bytes:
    return b"value %d" % offset


def batch(tp: TopicPartition, start: int, end: int) -> RecordBatch:
    times = np.array([[1, BEGIN_US + offset * HOUR_US] for offset in range(start, end)], np.int64)
    made = RecordBatch.of(tp, start, [content(offset) for offset in range(start, end)])
    return RecordBatch(tp, start, made.values, times=times)


def read(wanted: Wanted) -> Iterator[RecordBatch]:
    """Read records in chunks, as a store does."""
    for start in range(wanted.start, wanted.end, 7):
        yield batch(wanted.tp, start, min(start + 7, wanted.end))


def enveloped(tp: TopicPartition, start: int) -> RecordBatch:
    """Return records with keys, headers and null values, and bare ones."""
    values = pa.array([b"v", None, b"bare", b""], pa.binary())
    keys = pa.array([b"k", b"gone", None, None], pa.binary())
    header = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    headers = pa.array([header, None, None, None], kind)
    contents = close_columns(values, keys, headers)
    return RecordBatch(tp, start, Values.from_arrow(contents))


def archived(
    directory: Path, tp: TopicPartition, end: int, start: int = 0, read: Read = read
) -> None:
    added = ArchiveWriter(directory, tp.topic).archive([Wanted(tp, start, end)], read)
    assert added.failed == {}


def offsets_in_manifest(directory: Path, tp: TopicPartition) -> list[int]:
    """Return the records that an archive's reader gets, with contents opened."""
    files = archive.Archive(directory).held([tp.topic]).get(tp, ())
    found: list[int] = []
    for file in files:
        for each in archive.read(directory, tp, files, file.start, file.end):
            assert each.values.to_list() == [content(offset) for offset in each.offsets.tolist()]
            found += each.offsets.tolist()
    return found


def offsets_in_files(directory: Path, tp: TopicPartition) -> list[int]:
    """Return the records that a plain Parquet reader gets, without the manifest."""
    if not any(directory.glob("topic=*/day=*/*.parquet")):
        return []
    table = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    table = table.filter(ds.field("partition") == tp.partition)
    return sorted(table.column("offset").to_pylist())
