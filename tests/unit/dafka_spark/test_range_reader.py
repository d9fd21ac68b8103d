"""From batches of records to Arrow's."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dafka_core.model.envelope import closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.errors import (
    IncompleteBatchError,
    PartitionVanishedError,
    RetentionAheadError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import arrow_batches
from dafka_spark.source.arrow_batches import ArrowBatches
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange
from dafka_spark.source.partition_reader import RangeReader
from tests.memory_reader import MemoryReader

A = TopicPartition("t", "A")
OPTIONS = SourceOptions.of({"subscribe": "t"})
ODD = TopicPartition("bad\udcff\n", "\x1b")

CONTENTS = st.binary(max_size=3) | st.just(closed(None, b"k", (("h", b"1"), ("h", None))))

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
    task = DafkaInputPartition((wanted,))
    return list(RangeReader(schema or full(), options, source.connect).read(task))


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
        "timestampType": [None] * 4,
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


def test_a_gap_is_an_error(source: MemoryReader) -> None:
    source.missing = {50}
    for fail in ("true", "false"):
        with pytest.raises(IncompleteBatchError) as caught:
            rows(source, 0, 100, failondataloss=fail)
        assert (caught.value.expected, caught.value.found) == (50, 51)


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
    with caplog.at_level(logging.WARNING):
        batches = rows(source, 10, 30, failondataloss="false")
    offsets = pa.Table.from_batches(batches)["offset"].to_pylist()
    assert offsets == [*range(20, 30)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "failOnDataLoss is false" in caplog.text


def test_nothing_left_is_warned_of(source: MemoryReader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batches = rows(source, 90, 110, failondataloss="false")
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(90, 100))
    assert "offset 100" in caplog.text


def test_times_and_offsets_are_those_of_each_batch() -> None:
    batches = ArrowBatches(columns("value", "offset", "timestamp"), OPTIONS)
    found: list[tuple[int, int]] = []
    kept: list[pa.RecordBatch] = []
    expected: list[tuple[int, int]] = []
    offset = 0
    for runs in ([(3, 7)], [(2, 7)], [(5, 7)], [(4, 9)], [(6, 8)], [(1, 8), (2, 9)], [(3, 7)]):
        count = sum(rows for rows, _ in runs)
        values = Values.of([b"v"] * count)
        batch = RecordBatch(A, offset, values, times=np.array(runs, np.int64))
        kept.append(batches.of([batch]))
        times = [time_us for rows, time_us in runs for _ in range(rows)]
        expected += zip(range(offset, offset + count), times, strict=True)
        offset += count
    for made in kept:  # at the end: no batch lies in memory that a later one has been given
        times = made.column("timestamp").cast(pa.int64())
        found += zip(made.column("offset").to_pylist(), times.to_pylist(), strict=True)
    assert found == expected


# -- tasks of several ranges -----------------------------------------------------------------------

B, U = TopicPartition("t", "B"), TopicPartition("u", "A")


def shared(source: MemoryReader, *wanted: OffsetRange, **given: str) -> list[pa.RecordBatch]:
    options = SourceOptions.of({"subscribe": "t,u", **given})
    return list(RangeReader(full(), options, source.connect).read(DafkaInputPartition(wanted)))


def test_small_ranges_come_in_one_arrow_batch(source: MemoryReader) -> None:
    source.add(B, 30)
    source.add(U, 1)
    source.written = [(0, 1_000_000), (2, 2_000_000)]
    (batch,) = shared(source, OffsetRange(*A, 1, 3), OffsetRange(*B, 0, 4), OffsetRange(*U, 0, 1))
    assert batch.schema.equals(to_arrow_schema(full(), timezone="UTC"))
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "key": [None] * 7,
        "value": [b"1", b"2", b"0", b"1", b"2", b"3", b"0"],
        "topic": ["t"] * 6 + ["u"],
        "partition": ["A", "A", "B", "B", "B", "B", "A"],
        "offset": [1, 2, 0, 1, 2, 3, 0],
        "timestamp": [EPOCH + second * dt.timedelta(seconds=1) for second in (1, 2, 1, 1, 2, 2, 1)],
        "timestampType": [None] * 7,
    }


def test_a_shared_task_knows_the_limits_of_a_batch(source: MemoryReader) -> None:
    source.add(B, 30)
    wanted = OffsetRange(*A, 0, 20), OffsetRange(*B, 0, 20)
    batches = shared(source, *wanted, maxrecordsperbatch="15")
    assert max(batch.num_rows for batch in batches) <= 15
    offsets = pa.Table.from_batches(batches)["offset"].to_pylist()
    assert offsets == [*range(20), *range(20)]


def test_every_range_of_a_shared_task_is_counted(source: MemoryReader) -> None:
    source.add(B, 30)
    wanted = OffsetRange(*A, 0, 20), OffsetRange(*B, 20, 35)
    with pytest.raises(StoreLostDataError, match=r"partition B.* offset 30 was asked for"):
        shared(source, *wanted)
    table = pa.Table.from_batches(shared(source, *wanted, failondataloss="false"))
    assert table["offset"].to_pylist() == [*range(20), *range(20, 30)]


def test_odd_names_are_escaped() -> None:
    made = ArrowBatches(columns("topic", "partition"), OPTIONS).of(
        [RecordBatch.of(ODD, 0, [b"", b""])]
    )
    assert made.to_pylist() == [{"topic": r"bad\xff\x0a", "partition": r"\x1b"}] * 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, U, ODD]),
            st.integers(0, 2**60),
            st.lists(CONTENTS, min_size=1, max_size=5),
            st.none() | st.integers(-(2**62), 2**62),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_joined_columns_are_those_of_each_batch(parts: list[Any]) -> None:
    batches = []
    for tp, offset, values, time_us in parts:
        times = None if time_us is None else np.array([[len(values), time_us]], np.int64)
        batches.append(RecordBatch(tp, offset, Values.of(values), times=times))
    arrow = ArrowBatches(full(headers=True), OPTIONS)
    apart = pa.Table.from_batches([arrow.of([batch]) for batch in batches])
    together = arrow.of(batches)
    together.validate(full=True)
    assert pa.Table.from_batches([together]).equals(apart.combine_chunks())


def made(schema: StructType, envelope: str = "auto") -> list[dict[str, Any]]:
    """Of one batch, and of two that are joined."""
    contents = [b"bare", closed(b"v", b"k"), closed(None, b"k"), closed(b"v", None, [("h", None)])]
    arrow = ArrowBatches(schema, SourceOptions.of({"subscribe": "t", "envelope": envelope}))
    whole = RecordBatch.of(A, 0, contents)
    rows: list[dict[str, Any]] = arrow.of([whole]).to_pylist()
    assert arrow.of([whole.between(0, 2), whole.between(2, 4)]).to_pylist() == rows
    return rows


def test_envelopes_are_opened() -> None:
    wanted = StructType([full(headers=True)[name] for name in ("headers", "value", "key")])
    headers = [None, None, None, [{"key": "h", "value": None}]]
    values = [b"bare", b"v", None, b"v"]
    keys = [None, b"k", b"k", None]
    expected = zip(headers, values, keys, strict=True)
    assert [tuple(row.values()) for row in made(wanted)] == list(expected)
    assert [row["key"] for row in made(columns("key"))] == keys


def test_contents_may_be_left_as_they_are() -> None:
    rows = made(columns("key", "value"), "none")
    assert [row["value"] for row in rows][:2] == [b"bare", closed(b"v", b"k")]
    assert {row["key"] for row in rows} == {None}


def test_envelopes_are_opened_only_where_a_column_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(arrow_batches, "opened_columns")
    assert len(made(columns("offset", "topic", "timestamp", "timestampType"))) == 4
