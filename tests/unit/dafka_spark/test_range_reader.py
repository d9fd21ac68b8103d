"""Reading tasks into Arrow batches, from records in memory."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dafka_core.model.envelope import closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.errors import (
    IncompleteBatchError,
    PartitionVanishedError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import arrow_batches
from dafka_spark.source.arrow_batches import ArrowBatches
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange
from dafka_spark.source.partition_reader import RangeReader
from tests.memory_reader import MemoryReader

A, B, U = TopicPartition("t", "A"), TopicPartition("t", "B"), TopicPartition("u", "A")
ODD = TopicPartition("bad\udcff\n", "\x1b")
OPTIONS = SourceOptions.of({"subscribe": "t"})
CONTENTS = st.binary(max_size=3) | st.just(closed(None, b"k", (("h", b"1"), ("h", None))))
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader()
    memory.add(A, 100)
    memory.add(B, 30)
    memory.add(U, 1)
    return memory


def columns(*names: str) -> StructType:
    return StructType([full()[name] for name in names])


def read(
    source: MemoryReader, *ranges: OffsetRange, schema: StructType | None = None, **given: str
) -> list[pa.RecordBatch]:
    options = SourceOptions.of({"subscribe": "t,u", **given})
    reader = RangeReader(schema or full(), options, source.connect)
    batches = list(reader.read(DafkaInputPartition(ranges)))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(schema or full(), timezone="UTC"))
    return batches


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_a_batch_without_ranges_has_no_rows(source: MemoryReader) -> None:
    assert list(RangeReader(full(), OPTIONS, source.connect).read(InputPartition(None))) == []


def test_all_columns_of_several_ranges(source: MemoryReader) -> None:
    source.written = [(0, 1_000_000), (2, 2_000_000)]
    (batch,) = read(source, OffsetRange(*A, 1, 3), OffsetRange(*B, 0, 4), OffsetRange(*U, 0, 1))
    assert batch.to_pydict() == {
        "key": [None] * 7,
        "value": [b"1", b"2", b"0", b"1", b"2", b"3", b"0"],
        "topic": ["t"] * 6 + ["u"],
        "partition": ["A", "A", "B", "B", "B", "B", "A"],
        "offset": [1, 2, 0, 1, 2, 3, 0],
        "timestamp": [EPOCH + second * dt.timedelta(seconds=1) for second in (1, 2, 1, 1, 2, 2, 1)],
        "timestampType": [None] * 7,
    }


def test_unknown_times_are_null(source: MemoryReader) -> None:
    wanted = OffsetRange(*A, 0, 4)
    (batch,) = read(source, wanted, schema=columns("timestamp"))
    assert batch["timestamp"].to_pylist() == [None] * 4
    source.written = [(2, 7)]
    (batch,) = read(source, wanted, schema=columns("timestamp"))
    time = EPOCH + dt.timedelta(microseconds=7)
    assert batch["timestamp"].to_pylist() == [None, None, time, time]


def test_only_the_columns_asked_for(source: MemoryReader) -> None:
    (batch,) = read(source, OffsetRange(*A, 0, 5), schema=columns("offset", "value"))
    assert batch.schema.names == ["offset", "value"]
    assert "times" not in source.calls


@pytest.mark.parametrize(
    ("limit", "counts"),
    [("30", [28, 28, 28, 16]), ("5", [5, 2] * 14 + [2]), ("7", [7] * 14 + [2])],
)
def test_batches_have_at_most_max_records(
    source: MemoryReader, limit: str, counts: list[int]
) -> None:
    """The mesh sends seven at once: small batches are joined, none is cut to fill another."""
    batches = read(source, OffsetRange(*A, 0, 100), maxrecordsperbatch=limit)
    assert [batch.num_rows for batch in batches] == counts
    assert offsets(batches) == list(range(100))
    both = read(source, OffsetRange(*A, 0, 20), OffsetRange(*B, 0, 20), maxrecordsperbatch=limit)
    assert max(batch.num_rows for batch in both) <= int(limit)
    assert offsets(both) == [*range(20), *range(20)]


def test_batches_have_at_most_max_bytes(source: MemoryReader) -> None:
    batches = read(source, OffsetRange(*A, 0, 100), maxbytesperbatch="20")
    assert all(sum(map(len, batch["value"].to_pylist())) <= 20 for batch in batches)
    assert offsets(batches) == list(range(100))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_gap_is_an_error(source: MemoryReader, fail: str) -> None:
    source.missing = {25}
    with pytest.raises(IncompleteBatchError) as caught:
        read(source, OffsetRange(*A, 0, 20), OffsetRange(*B, 20, 30), failondataloss=fail)
    assert (caught.value.partition, caught.value.expected, caught.value.found) == ("B", 25, 26)


@pytest.mark.parametrize(
    ("error", "wanted", "left"),
    [
        (RetentionAheadError, 10, range(20, 30)),
        (StoreLostDataError, 100, range(90, 100)),
        (PartitionVanishedError, 10, range(0)),
    ],
)
def test_lost_records_fail_a_query_or_are_skipped(
    source: MemoryReader,
    caplog: pytest.LogCaptureFixture,
    error: type[SourceLossError],
    wanted: int,
    left: range,
) -> None:
    ranges = OffsetRange(*B, 0, 20), OffsetRange(*A, *((90, 110) if wanted == 100 else (10, 30)))
    if error is RetentionAheadError:
        source.trim(A, 20)
    elif error is PartitionVanishedError:
        source.drop(A)
    with pytest.raises(error) as caught:
        read(source, *ranges)
    assert (caught.value.partition, caught.value.wanted) == ("A", wanted)
    assert offsets(read(source, *ranges, failondataloss="false")) == [*range(20), *left]
    assert caplog.text.count("failOnDataLoss is false") == 1


# -- columns ---------------------------------------------------------------------------------------


def test_times_and_offsets_are_those_of_each_batch() -> None:
    arrow = ArrowBatches(columns("value", "offset", "timestamp"), OPTIONS)
    made: list[pa.RecordBatch] = []
    expected: list[int] = []
    for runs in ([(3, 7)], [(2, 7)], [(5, 7)], [(4, 9)], [(6, 8)], [(1, 8), (2, 9)], [(3, 7)]):
        times = [time_us for rows, time_us in runs for _ in range(rows)]
        values = Values.of([b"v"] * len(times))
        batch = RecordBatch(A, len(expected), values, times=np.array(runs, np.int64))
        made.append(arrow.of([batch]))
        expected += times
    # Compared at the end: no batch may share memory that a later one overwrites.
    table = pa.Table.from_batches(made)
    assert table["offset"].to_pylist() == list(range(len(expected)))
    assert table["timestamp"].cast(pa.int64()).to_pylist() == expected


def test_odd_names_are_escaped() -> None:
    arrow = ArrowBatches(columns("topic", "partition"), OPTIONS)
    made = arrow.of([RecordBatch.of(ODD, 0, [b"", b""])])
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
    """Rows of four contents."""
    contents = [b"bare", closed(b"v", b"k"), closed(None, b"k"), closed(b"v", None, [("h", None)])]
    options = SourceOptions.of({"subscribe": "t", "envelope": envelope})
    rows: list[dict[str, Any]] = (
        ArrowBatches(schema, options).of([RecordBatch.of(A, 0, contents)]).to_pylist()
    )
    return rows


def test_envelopes_are_opened() -> None:
    rows = made(StructType([full(headers=True)[name] for name in ("headers", "value", "key")]))
    assert [row["headers"] for row in rows] == [None, None, None, [{"key": "h", "value": None}]]
    assert [row["value"] for row in rows] == [b"bare", b"v", None, b"v"]
    assert [row["key"] for row in rows] == [None, b"k", b"k", None]
    assert [row["key"] for row in made(columns("key"))] == [None, b"k", b"k", None]


def test_contents_may_be_left_as_they_are() -> None:
    rows = made(columns("key", "value"), "none")
    assert [row["value"] for row in rows][:2] == [b"bare", closed(b"v", b"k")]
    assert {row["key"] for row in rows} == {None}


def test_envelopes_are_opened_only_if_a_column_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arrow_batches, "opened_columns")
    assert len(made(columns("offset", "topic", "timestamp", "timestampType"))) == 4


def test_columns_with_fewer_rows_than_records_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "opened_columns", lambda *_: {"value": pa.array([b""])})
    with pytest.raises(IncompleteBatchError, match="1 rows were made of 4 records"):
        made(columns("value"))
