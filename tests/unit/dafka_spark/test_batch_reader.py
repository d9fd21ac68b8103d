"""The plan of a batch query: what the stores hold when it is made, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from dafka_core.errors import ConfigError
from dafka_core.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.memory_reader import MemoryReader


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader()
    memory.add(TopicPartition("t", "A"), 10)
    memory.add(TopicPartition("t", "B"), 20)
    memory.trim(TopicPartition("t", "B"), 5)
    memory.add(TopicPartition("u", "A"), 7)
    return memory


def reader(source: MemoryReader, **given: str) -> DafkaBatchReader:
    options = SourceOptions.of({"subscribe": "t", **given})
    return DafkaBatchReader(full(), options.for_batch(), source.connect)


def planned(source: MemoryReader, **given: str) -> set[tuple[str, int, int]]:
    parts: list[Any] = reader(source, **given).partitions()
    assert all(part.topic == "t" for part in parts)
    return {(part.partition, part.start, part.end) for part in parts}


@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        ({}, {("A", 0, 10), ("B", 5, 20)}),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, {("A", 0, 10), ("B", 5, 20)}),
        ({"startingOffsets": '{"t": {"A": 3}}'}, {("A", 3, 10), ("B", 5, 20)}),
        ({"endingOffsets": '{"t": {"A": 3}}'}, {("A", 0, 3), ("B", 5, 20)}),
        ({"startingOffsets": '{"t": {"A": -1, "B": -2}}'}, {("B", 5, 20)}),
        ({"startingOffsets": '{"t": {"A": 10, "B": 20}}'}, set()),
        ({"maxRecordsPerPartition": "9"}, {("A", 0, 5), ("A", 5, 10), ("B", 5, 12), ("B", 12, 20)}),
    ],
)
def test_what_the_stores_hold_between_the_bounds_is_planned(
    source: MemoryReader, given: dict[str, str], ranges: set[tuple[str, int, int]]
) -> None:
    assert planned(source, **given) == ranges


def test_what_comes_after_the_plan_is_not_read(source: MemoryReader) -> None:
    batch = reader(source)
    parts = batch.partitions()
    source.add(TopicPartition("t", "A"), 5)
    source.add(TopicPartition("t", "C"), 5)
    rows = [row for part in parts for each in batch.read(part) for row in each.to_pylist()]
    found = {(row["partition"], row["offset"]) for row in rows}
    assert found == {*(("A", n) for n in range(10)), *(("B", n) for n in range(5, 20))}
    assert len(rows) == len(found)


@pytest.mark.parametrize(
    ("start", "end", "option", "says"),
    [
        ('{"t": {"A": 7}}', '{"t": {"A": 3}}', "endingOffsets", "starts after it, at 7"),
        ('{"t": {"A": 11}}', "latest", "startingOffsets", "offsets 0 up to, not including, 10"),
        ("earliest", '{"t": {"B": 3}}', "endingOffsets", "partition B starts after it, at 5"),
        ("earliest", '{"t": {"Z": 1}}', "endingOffsets", "no store has topic 't', partition Z"),
    ],
)
def test_bounds_outside_of_a_partition_are_refused(
    source: MemoryReader, start: str, end: str, option: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        reader(source, startingOffsets=start, endingOffsets=end).partitions()
    assert caught.value.option == option


def test_nothing_is_opened_before_it_is_planned(source: MemoryReader) -> None:
    reader(source)
    assert source.calls == []


def test_no_rows_of_no_range(source: MemoryReader) -> None:
    """Trap: Spark makes ``InputPartition(None)`` of a batch without partitions."""
    assert list(reader(source).read(InputPartition(None))) == []
    assert source.calls == []
