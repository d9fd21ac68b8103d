"""The plan of a batch query, and the conditions that narrow it."""

from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.records import TopicPartition
from dafka_core.model.where import Comparison
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader, Spans, narrow
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.memory_reader import MemoryReader

A, B, C = (TopicPartition("t", name) for name in "ABC")
ODD = TopicPartition("u\udcff", "A")


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader({A: 10, B: 20, ODD: 7})
    memory.trim(B, 5)
    return memory


def reader(source: MemoryReader, **given: str) -> DafkaBatchReader:
    options = SourceOptions.of({"subscribe": "t", **given})
    return DafkaBatchReader(full(), options.for_batch(), source.connect)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, {(A, 0, 10), (B, 5, 20)}),
        ({"startingOffsets": '{"t": {"A": 3}}'}, {(A, 3, 10), (B, 5, 20)}),
        ({"endingOffsets": '{"t": {"A": 3}}'}, {(A, 0, 3), (B, 5, 20)}),
        ({"startingOffsets": '{"t": {"A": -1, "B": -2}}'}, {(B, 5, 20)}),
        ({"startingOffsets": '{"t": {"A": 10, "B": 20}}'}, set()),
        ({"maxRecordsPerPartition": "9"}, {(A, 0, 5), (A, 5, 10), (B, 5, 12), (B, 12, 20)}),
    ],
)
def test_the_plan_has_the_ranges_between_the_bounds(
    source: MemoryReader, given: dict[str, str], expected: set[Any]
) -> None:
    tasks: list[Any] = reader(source, **given).partitions()
    ranges = [each for task in tasks for each in task.ranges]
    assert {(each.tp, each.start, each.end) for each in ranges} == expected


@pytest.mark.parametrize(
    ("start", "end", "option", "pattern"),
    [
        ('{"t": {"A": 7}}', '{"t": {"A": 3}}', "endingOffsets", "starts after it, at 7"),
        ('{"t": {"A": 11}}', "latest", "startingOffsets", "offsets 0 up to, not including, 10"),
        ("earliest", '{"t": {"B": 3}}', "endingOffsets", "partition B starts after it, at 5"),
        ("earliest", '{"t": {"Z": 1}}', "endingOffsets", "no store has topic 't', partition Z; "),
    ],
)
def test_bounds_outside_of_a_partition_are_refused(
    source: MemoryReader, start: str, end: str, option: str, pattern: str
) -> None:
    with pytest.raises(ConfigError, match=pattern) as caught:
        reader(source, startingOffsets=start, endingOffsets=end).partitions()
    assert caught.value.option == option


SPANS: Spans = {A: (0, 10), B: (5, 20), ODD: (0, 3)}
TIME = 1_767_225_600_000_000


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ([], SPANS),
        ([("topic", "=", "t")], {A: (0, 10), B: (5, 20)}),
        ([("topic", "=", r"u\xff")], {ODD: (0, 3)}),
        ([("topic", "IN", ["t", "x"]), ("partition", "=", "B")], {B: (5, 20)}),
        ([("topic", "IN", ["t", "x"]), ("topic", "IN", ["x", "y"])], {}),
        ([("partition", "IN", [])], {}),
        ([("partition", "<", "B")], SPANS),
        ([("offset", "=", 7)], {A: (7, 8), B: (7, 8)}),
        ([("offset", "IN", [2, 12])], {A: (2, 10), B: (5, 13), ODD: (2, 3)}),
        ([("offset", ">", 2), ("offset", "<=", 6)], {A: (3, 7), B: (5, 7)}),
        ([("offset", ">=", 3), ("offset", "<", 3)], {}),
        ([("offset", ">=", -5)], SPANS),
        ([("offset", "<>", 5), ("timestamp", "IS NULL", None)], SPANS),
        ([("value", "=", b"x"), ("key", "IN", [b"x"])], SPANS),
        ([("timestamp", ">=", TIME)], SPANS),  # no store has these partitions
        ([("timestamp", ">", TIME), ("timestamp", "<=", TIME)], {}),
    ],
)
def test_conditions_narrow_spans(conditions: list[tuple[str, str, object]], left: Spans) -> None:
    offsets = OffsetReader(SourceOptions.of({"subscribe": "t"}), MemoryReader().connect)
    found = [Comparison(*each) for each in conditions]
    assert narrow(SPANS, found, OffsetsSnapshot({}), offsets) == left
