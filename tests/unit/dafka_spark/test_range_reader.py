"""From batches of records to Arrow's."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.values import Values
from dafka_spark.errors import (
    IncompleteBatchError,
    PartitionVanishedError,
    RetentionAheadError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.range_fetch import RangeFetch
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.range_reader import ArrowBatches, RangeReader
from tests.memory_reader import MemoryReader

A = TopicPartition("t", "A")

MICROSECOND = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader()
    memory.add(A, 100)
    return memory


def columns(*names: str) -> StructType:
    return StructType([full()[name] for name in names])


def rows(
    source: MemoryReader, start: Any, end: Any, schema: StructType | None = None, **given: Any
) -> Any:
    options = SourceOptions.of({"subscribe": "t", **given})
    wanted = OffsetRange("t", "A", start, end)
    return list(RangeReader(schema or full(), options, source.connect).read(wanted))


def test_all_columns(source: MemoryReader) -> None:
    source.written = [(0, 1_000_000), (12, 2_000_000)]
    (batch,) = rows(source, 10, 14)
    assert batch.schema.equals(to_arrow_schema(full(), timezone="UTC"))
    assert batch.to_pydict() == {
        "key": [None] * 4,
        "value": [b"10", b"11", b"12", b"13"],
        "topic": ["t"] * 4,
        "partition": ["A"] * 4,
        "offset": [10, 11, 12, 13],
        "timestamp": [EPOCH + second * dt.timedelta(seconds=1) for second in (1, 1, 2, 2)],
    }


def test_unknown_times_are_null(source: MemoryReader) -> None:
    (batch,) = rows(source, 0, 3, columns("timestamp"))
    assert batch["timestamp"].to_pylist() == [None] * 3
    source.written = [(2, 7)]
    (batch,) = rows(source, 0, 4, columns("timestamp"))
    written = EPOCH + 7 * MICROSECOND
    assert batch["timestamp"].to_pylist() == [None, None, written, written]


def test_only_the_columns_asked_for(source: MemoryReader) -> None:
    (batch,) = rows(source, 0, 5, columns("offset", "value"))
    assert batch.schema.names == ["offset", "value"]
    assert "times" not in source.calls


def test_batches_are_cut_by_rows(source: MemoryReader) -> None:
    # The mesh brings seven at a time: small ones are joined, and none is cut to fill another.
    for limit, counts in ("30", [28, 28, 28, 16]), ("5", [5, 2] * 14 + [2]), ("7", [7] * 14 + [2]):
        batches = rows(source, 0, 100, maxrecordsperbatch=limit)
        assert [batch.num_rows for batch in batches] == counts
        assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(100))


def test_batches_are_cut_by_bytes(source: MemoryReader) -> None:
    batches = rows(source, 0, 100, maxbytesperbatch="20")
    assert all(sum(map(len, batch["value"].to_pylist())) <= 20 for batch in batches)
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(100))


def test_a_gap_is_noticed(source: MemoryReader) -> None:
    source.missing = {50}
    with pytest.raises(
        StoreLostDataError, match=r"offset 50 was asked for.*failOnDataLoss"
    ) as caught:
        rows(source, 0, 100)
    assert caught.value.wanted == 50


def test_an_early_end_is_noticed(source: MemoryReader) -> None:
    with pytest.raises(
        StoreLostDataError, match=r"offset 100 was asked for, nothing is available"
    ) as caught:
        rows(source, 90, 110)
    assert caught.value.end == 100


def test_trimmed_records_fail(source: MemoryReader) -> None:
    source.trim(A, 20)
    with pytest.raises(
        RetentionAheadError, match=r"offset 10 was asked for, offset 20 on is available"
    ):
        rows(source, 10, 30)


def test_a_partition_that_is_gone_fails(source: MemoryReader) -> None:
    source.drop(A)
    with pytest.raises(PartitionVanishedError, match=r"no store has the partition"):
        rows(source, 10, 30)


def test_trimmed_records_are_warned_of(
    source: MemoryReader, caplog: pytest.LogCaptureFixture
) -> None:
    source.trim(A, 20)
    source.missing = {25}
    with caplog.at_level(logging.WARNING):
        batches = rows(source, 10, 30, failondataloss="false")
    offsets = pa.Table.from_batches(batches)["offset"].to_pylist()
    assert offsets == [20, 21, 22, 23, 24, 26, 27, 28, 29]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "failOnDataLoss is false" in caplog.text


def test_nothing_left_is_warned_of(source: MemoryReader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batches = rows(source, 90, 110, failondataloss="false")
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(90, 100))
    assert "offset 100" in caplog.text


# -- every range is counted ------------------------------------------------------------------------


def some(start: int, end: int) -> RecordBatch:
    return RecordBatch.of(A, start, [b"%d" % n for n in range(start, end)])


@pytest.mark.parametrize(
    ("given", "expected", "found"),
    [
        ([some(10, 20)], 20, None),
        ([some(10, 15), some(16, 30)], 15, 16),
        ([some(10, 15), some(10, 15), some(15, 30)], 15, 10),
        ([some(10, 31)], 10, 10),
        ([], 10, None),
    ],
)
@pytest.mark.parametrize("fail", ["true", "false"])
def test_rows_that_are_not_those_of_the_range_are_an_error(
    source: MemoryReader,
    monkeypatch: pytest.MonkeyPatch,
    given: list[RecordBatch],
    expected: int,
    found: int | None,
    fail: str,
) -> None:
    """Whoever made the mistake, and whatever ``failOnDataLoss`` says."""
    monkeypatch.setattr(RangeFetch, "batches", lambda _: iter(given))
    with pytest.raises(IncompleteBatchError, match=r"^\[DAFKA_INCOMPLETE_BATCH\]") as caught:
        rows(source, 10, 30, columns("offset", "value"), failondataloss=fail)
    error = caught.value
    assert (error.start, error.end) == (10, 30)
    assert (error.expected, error.found) == (expected, found)


def test_only_what_is_known_to_be_lost_may_be_missing(
    source: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holed(fetch: RangeFetch) -> Any:
        yield some(10, 15)
        fetch.lost.extend([range(15, 18), range(18, 20)])
        yield some(20, 28)
        fetch.lost.append(range(28, 30))

    monkeypatch.setattr(RangeFetch, "batches", holed)
    assert [batch.num_rows for batch in rows(source, 10, 30, columns("value"))] == [5, 8]


def test_times_and_offsets_are_those_of_each_batch() -> None:
    batches = ArrowBatches(OffsetRange("t", "A", 0, 100), columns("value", "offset", "timestamp"))
    found: list[tuple[int, int]] = []
    kept: list[pa.RecordBatch] = []
    expected: list[tuple[int, int]] = []
    offset = 0
    for runs in ([(3, 7)], [(2, 7)], [(5, 7)], [(4, 9)], [(6, 8)], [(1, 8), (2, 9)], [(3, 7)]):
        count = sum(rows for rows, _ in runs)
        values = Values.of([b"v"] * count)
        kept.append(batches.of(RecordBatch(A, offset, values, times=np.array(runs, np.int64))))
        times = [time_us for rows, time_us in runs for _ in range(rows)]
        expected += zip(range(offset, offset + count), times, strict=True)
        offset += count
    for batch in kept:  # at the end: no batch lies in memory that a later one has been given
        times = batch.column("timestamp").cast(pa.int64())
        found += zip(batch.column("offset").to_pylist(), times.to_pylist(), strict=True)
    assert found == expected
