"""Reading tasks into Arrow batches: columns, typed values, and the check of completeness."""

import datetime as dt
import logging
from itertools import pairwise
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
from dafka_spark import DafkaDataSource
from dafka_spark.errors import BadValueError, IncompleteBatchError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import arrow_batches
from dafka_spark.source.arrow_batches import ArrowBatches
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange
from dafka_spark.source.partition_reader import Fetched, LostOffsets, PartitionReader, complete
from tests.memory_reader import MemoryReader

A, B, C, U = (TopicPartition(*name) for name in ("tA", "tB", "tC", "uA"))
ODD = TopicPartition("bad\udcff\n", "\x1b")
OPTIONS = SourceOptions.of({"subscribe": "t"})
CONTENTS = st.binary(max_size=3) | st.just(closed(None, b"k", (("h", b"1"), ("h", None))))
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def source() -> MemoryReader:
    return MemoryReader({A: 100, B: 30, U: 1})


def columns(*names: str) -> StructType:
    return StructType([full()[name] for name in names])


def read(
    source: MemoryReader, *ranges: OffsetRange, schema: StructType | None = None, **given: str
) -> list[pa.RecordBatch]:
    options = SourceOptions.of({"subscribe": "t,u", **given})
    reader = PartitionReader(schema or full(), options, source.connect)
    batches = list(reader.read(DafkaInputPartition(ranges)))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(schema or full(), timezone="UTC"))
    return batches


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_a_batch_without_ranges_has_no_rows(source: MemoryReader) -> None:
    """Spark makes ``InputPartition(None)`` of it."""
    assert list(PartitionReader(full(), OPTIONS, source.connect).read(InputPartition(None))) == []
    assert source.calls == []


def test_all_columns_of_several_ranges(source: MemoryReader) -> None:
    source.written = [(1, 1_000_000), (2, 2_000_000)]
    (batch,) = read(source, OffsetRange(*A, 1, 3), OffsetRange(*B, 0, 4), OffsetRange(*U, 0, 1))
    one, two = EPOCH + dt.timedelta(seconds=1), EPOCH + dt.timedelta(seconds=2)
    assert batch.to_pydict() == {
        "key": [None] * 7,
        "value": [b"1", b"2", b"0", b"1", b"2", b"3", b"0"],
        "topic": ["t"] * 6 + ["u"],
        "partition": ["A", "A", "B", "B", "B", "B", "A"],
        "offset": [1, 2, 0, 1, 2, 3, 0],
        "timestamp": [one, two, None, one, two, two, None],  # unknown times are null
        "timestampType": [None] * 7,
    }


def test_only_the_columns_asked_for(source: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arrow_batches, "opened_columns")  # nothing opens envelopes
    (batch,) = read(source, OffsetRange(*A, 0, 5), schema=columns("offset", "topic"))
    assert batch.schema.names == ["offset", "topic"]
    assert "times" not in source.calls


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"maxrecordsperbatch": "30"}, [28, 12, 30]),
        ({"maxrecordsperbatch": "5"}, [5, 2, 5, 2, 5, 2, 5, 2, 5, 2, 5, 5, 2, 5, 2, 5, 2, 5, 4]),
        ({"maxbytesperbatch": "20"}, [14, 7, 7, 7, 5, 14, 7, 9]),
    ],
)
def test_options_limit_batches(source: MemoryReader, given: Any, counts: list[int]) -> None:
    """The mesh sends seven at once: small batches are joined, none is split to fill another."""
    ranges = OffsetRange(*A, 0, 40), OffsetRange(*B, 0, 30)
    both = read(source, *ranges, **given)
    assert [batch.num_rows for batch in both] == counts
    assert offsets(both) == [*range(40), *range(30)]
    one = read(source, ranges[0], **given)
    assert [batch.num_rows for batch in one] == counts[: len(one)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_gap_is_an_error(source: MemoryReader, fail: str) -> None:
    source.missing = {25}
    with pytest.raises(IncompleteBatchError) as caught:
        read(source, OffsetRange(*A, 0, 20), OffsetRange(*B, 20, 30), failondataloss=fail)
    assert (caught.value.partition, caught.value.expected, caught.value.found) == ("B", 25, 26)


# -- completeness ----------------------------------------------------------------------------------

WANTED = OffsetRange(*A, 10, 30), OffsetRange(*B, 0, 5)
WHOLE_B = (B, 0, 5)


def records(tp: TopicPartition, start: int, end: int) -> RecordBatch:
    return RecordBatch.of(tp, start, [b""] * (end - start))


@pytest.mark.parametrize(
    ("came", "expected", "found"),
    [
        ([(A, 10, 20), WHOLE_B], 20, None),
        ([(A, 10, 15), (A, 16, 30)], 15, 16),
        ([(A, 10, 15), (A, 10, 15), (A, 15, 30)], 15, 10),
        ([(A, 10, 31)], 10, 10),
        ([(A, 10, 30), (A, 30, 31)], 30, 30),
        ([(A, 9, 30)], 10, 9),
        ([WHOLE_B], 10, None),
        ([(C, 10, 30)], 0, 10),
    ],
)
def test_rows_that_are_not_those_of_the_range_are_an_error(
    came: list[tuple[TopicPartition, int, int]], expected: int, found: int | None
) -> None:
    with pytest.raises(IncompleteBatchError, match=r"^\[DAFKA_INCOMPLETE_BATCH\].* rows") as caught:
        list(complete((records(*each) for each in came), WANTED))
    error = caught.value
    planned = (0, 0) if error.partition == "C" else (10, 30)
    assert (error.start, error.end, error.expected, error.found) == (*planned, expected, found)


@given(st.sets(st.integers(11, 29)), st.sets(st.integers(0, 20)), st.data())
def test_records_and_lost_offsets_cover_the_ranges(
    cuts: set[int], holes: set[int], data: st.DataObject
) -> None:
    """In any pieces, and with those of another partition between them."""
    pieces: list[Fetched] = []
    for number, (start, end) in enumerate(pairwise([10, *sorted(cuts), 30])):
        lost = number in holes
        pieces.append(LostOffsets(A, start, end) if lost else records(A, start, end))
    pieces.insert(data.draw(st.integers(0, len(pieces))), records(*WHOLE_B))
    found = [each for each in pieces if not isinstance(each, LostOffsets)]
    assert list(complete(pieces, WANTED)) == found
    without = data.draw(st.sampled_from(pieces))
    with pytest.raises(IncompleteBatchError):
        list(complete((each for each in pieces if each is not without), WANTED))


# -- typed values ----------------------------------------------------------------------------------

GOOD = [b'{"id":%d}' % n for n in range(20)]
JSON = {"valueformat": "json", "valueschema": "id BIGINT"}


def typed(values: list[bytes], *names: str, **given: str) -> list[dict[str, Any]]:
    """Return the rows of a task that reads the values from two partitions, A with ten of them."""
    source = MemoryReader()
    source.logs = {A: values[:10], B: values[10:]}
    given = {"subscribe": "t", **({} if "valueformat" in given else JSON), **given}
    schema = DafkaDataSource(given).schema()
    schema = StructType([schema[name] for name in names]) if names else schema
    ranges = OffsetRange(*A, 0, 10), OffsetRange(*B, 0, len(values) - 10)
    batches = read(source, *ranges, schema=schema, **given)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


def test_values_are_structs_beside_the_other_columns() -> None:
    rows = typed([closed(b'{"id":0}', b"k"), closed(None, b"k"), *GOOD[2:]])
    assert [row["value"] for row in rows] == [{"id": 0}, None, *({"id": n} for n in range(2, 20))]
    assert [row["key"] for row in rows] == [b"k", b"k", *[None] * 18]
    assert [row["offset"] for row in rows] == [*range(10), *range(10)]
    assert {row["value"] for row in typed([b"text"] * 11, valueformat="string")} == {"text"}


def test_a_bad_value_fails_the_query_with_its_offset() -> None:
    values = [*GOOD[:15], b"{", *GOOD[16:]]
    pattern = r"not valueFormat = json.*JSON parse.*mode = PERM"
    with pytest.raises(BadValueError, match=pattern) as caught:
        typed(values)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == (*B, 5)
    assert len(typed(values, "offset")) == 20  # a query without values decodes none


def test_a_bad_value_is_kept_with_its_reason() -> None:
    rows = typed([*GOOD[:9], b"", closed(b"{", b"k"), *GOOD[11:]], mode="permissive")
    good = [row for row in rows if row["_error"] is None]
    bad = [row for row in rows if row["_error"] is not None]
    assert [row["value"]["id"] for row in good] == [*range(9), *range(11, 20)]
    assert {row["_corrupt_record"] for row in good} == {None}
    names = "partition", "offset", "key", "value", "_corrupt_record"
    found = [[row[name] for name in names] for row in bad]
    assert found == [["A", 9, None, None, b""], ["B", 0, b"k", None, b"{"]]
    assert all("JSON" in row["_error"] for row in bad)
    (row, *_) = typed([b"{"] * 11, "_error", "offset", mode="permissive")
    assert "JSON" in row["_error"]
    assert {row["_error"] for row in typed(GOOD, mode="permissive")} == {None}


def test_bad_values_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    values = [b"x", *GOOD[1:10], b"", *GOOD[11:]]
    with caplog.at_level(logging.WARNING):
        rows = typed(values, mode="dropmalformed")
    ids = [row["value"]["id"] for row in rows]
    assert ids == [row["offset"] + 10 * (row["partition"] == "B") for row in rows]
    assert ids == [*range(1, 10), *range(11, 20)]
    assert "leaves out 2 of 20 records" in caplog.text
    assert "partition A: the value at offset 0" in caplog.text
    assert len(typed(values, "topic", mode="dropmalformed")) == 18
    assert typed([b"\xff"] * 12, valueformat="string", mode="dropmalformed") == []


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


def made(schema: StructType, envelope: str = "auto") -> dict[str, list[Any]]:
    """Columns of four records, of a partition with an odd name."""
    contents = [b"bare", closed(b"v", b"k"), closed(None, b"k"), closed(b"v", None, [("h", None)])]
    options = SourceOptions.of({"subscribe": "t", "envelope": envelope})
    batch = ArrowBatches(schema, options).of([RecordBatch.of(ODD, 0, contents)])
    found: dict[str, list[Any]] = batch.to_pydict()
    return found


def test_envelopes_are_opened_and_names_escaped() -> None:
    rows = made(full(headers=True))
    assert rows["headers"] == [None, None, None, [{"key": "h", "value": None}]]
    assert rows["value"] == [b"bare", b"v", None, b"v"]
    assert rows["key"] == made(columns("key"))["key"] == [None, b"k", b"k", None]
    assert (rows["topic"], rows["partition"]) == ([r"bad\xff\x0a"] * 4, [r"\x1b"] * 4)
    rows = made(columns("key", "value"), "none")
    assert rows["value"][:2] == [b"bare", closed(b"v", b"k")]
    assert rows["key"] == [None] * 4


def test_columns_with_fewer_rows_than_records_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "opened_columns", lambda *_: {"value": pa.array([b""])})
    with pytest.raises(IncompleteBatchError, match="1 rows were made of 4 records"):
        made(columns("value"))
