"""Values that are decoded on their way to Spark, and invalid values among them."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from dafka_core.model.envelope import closed
from dafka_core.model.records import TopicPartition
from dafka_spark import DafkaDataSource
from dafka_spark.errors import BadValueError
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange
from dafka_spark.source.partition_reader import PartitionReader
from tests.memory_reader import MemoryReader

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
GOOD = [b'{"id":%d}' % n for n in range(20)]


def read(values: list[bytes], columns: tuple[str, ...] = (), **given: str) -> list[dict[str, Any]]:
    """Rows of partitions A and B, which share the values, read by one task."""
    source = MemoryReader()
    source.logs = {A: values[:10], B: values[10:]}
    json = {} if "valueformat" in given else {"valueformat": "json", "valueschema": "id BIGINT"}
    given = {"subscribe": "t", **json, **given}
    schema = DafkaDataSource(given).schema()
    if columns:
        schema = type(schema)([schema[name] for name in columns])
    ranges = OffsetRange(*A, 0, 10), OffsetRange(*B, 0, len(values) - 10)
    reader = PartitionReader(schema, SourceOptions.of(given), source.connect)
    batches = list(reader.read(DafkaInputPartition(ranges)))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


def test_values_are_structs_beside_the_other_columns() -> None:
    values = [closed(b'{"id":0}', b"k"), closed(None, b"k"), *GOOD[2:]]
    rows = read(values)
    assert [row["value"] for row in rows] == [{"id": 0}, None, *({"id": n} for n in range(2, 20))]
    assert [row["key"] for row in rows] == [b"k", b"k", *[None] * 18]
    assert [row["offset"] for row in rows] == [*range(10), *range(10)]
    texts = read([b"text"] * 11, valueformat="string")
    assert [row["value"] for row in texts] == ["text"] * 11


def test_a_bad_value_fails_the_query_with_its_offset() -> None:
    values = [*GOOD[:15], b"{", *GOOD[16:]]
    pattern = r"not valueFormat = json.*JSON parse.*mode = PERM"
    with pytest.raises(BadValueError, match=pattern) as caught:
        read(values)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == (*B, 5)
    assert len(read(values, ("offset",))) == 20  # a query without values decodes none


def test_a_bad_value_is_kept_with_its_reason() -> None:
    values = [*GOOD[:9], b"", closed(b"{", b"k"), *GOOD[11:]]
    rows = read(values, mode="permissive")
    good = [row for row in rows if row["_error"] is None]
    bad = [row for row in rows if row["_error"] is not None]
    assert [row["value"]["id"] for row in good] == [*range(9), *range(11, 20)]
    assert {row["_corrupt_record"] for row in good} == {None}
    found = [[row[name] for name in ("partition", "offset", "key", "value")] for row in bad]
    assert found == [["A", 9, None, None], ["B", 0, b"k", None]]
    assert [row["_corrupt_record"] for row in bad] == [b"", b"{"]
    assert all("JSON" in row["_error"] for row in bad)
    assert read(values, ("_error", "offset"), mode="permissive") == [
        {"_error": row["_error"], "offset": row["offset"]} for row in rows
    ]
    assert {row["_error"] for row in read(GOOD, mode="permissive")} == {None}


def test_bad_values_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    values = [b"x", *GOOD[1:10], b"", *GOOD[11:]]
    with caplog.at_level(logging.WARNING):
        rows = read(values, mode="dropmalformed")
    assert [row["value"]["id"] for row in rows] == [*range(1, 10), *range(11, 20)]
    assert [row["offset"] for row in rows] == [*range(1, 10), *range(1, 10)]
    assert "leaves out 2 of 20 records" in caplog.text
    assert "partition A: the value at offset 0" in caplog.text
    assert len(read(values, ("topic",), mode="dropmalformed")) == 18


def test_records_that_are_all_bad() -> None:
    rows = read([b"\xff"] * 12, valueformat="string", mode="permissive")
    expected = {(None, "it is not UTF-8", b"\xff")}
    assert {(row["value"], row["_error"], row["_corrupt_record"]) for row in rows} == expected
    assert read([b"\xff"] * 12, valueformat="string", mode="dropmalformed") == []
