"""Starts and ends of queries, resolved to offsets of the partitions that the stores hold."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.option_types import (
    AT_EARLIEST,
    AT_LATEST,
    OffsetRangeLimit,
    parse_offset_range_limit,
    parse_timestamp,
)
from dafka_spark.options import Bound, SourceOptions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.memory_reader import MemoryReader

A, B, C = (TopicPartition("t", name) for name in "ABC")
HEADS = {A: PartitionInfo("t", "A", 5, 50), B: PartitionInfo("t", "B", 0, 7)}
NOW_US = 1_000_000_000
OPTIONS = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "1000"})
READER = OffsetReader(OPTIONS, MemoryReader().connect)


def starting(limit: str, heads: dict[TopicPartition, PartitionInfo] = HEADS) -> object:
    bound = Bound("startingOffsets", parse_offset_range_limit(limit), AT_EARLIEST)
    return READER.resolve(bound, OffsetsSnapshot(heads)).offsets


def ending(limit: str) -> object:
    bound = Bound("endingOffsets", parse_offset_range_limit(limit), AT_LATEST)
    return READER.resolve(bound, OffsetsSnapshot(HEADS)).offsets


@pytest.mark.parametrize(
    ("limit", "offsets"),
    [
        ("earliest", {A: 5, B: 0}),
        ("latest", {A: 50, B: 7}),
        ("latest-10", {A: 40, B: 0}),
        ("latest-999", {A: 5, B: 0}),
        ("earliest+10", {A: 15, B: 7}),
        ('{"t": "latest-3"}', {A: 47, B: 4}),
    ],
)
def test_relative_positions_stay_within_each_partition(
    limit: str, offsets: dict[TopicPartition, int]
) -> None:
    assert starting(limit) == offsets
    assert ending(limit) == offsets


def test_offsets_by_partition() -> None:
    assert starting('{"t": {"A": 20}}') == {A: 20, B: 0}
    assert starting('{"t": {"A": -1, "B": -2}}') == {A: 50, B: 0}
    assert starting('{"t": {"A": "latest-2"}}') == {A: 48, B: 0}
    assert ending('{"t": {"A": 20}}') == {A: 20, B: 7}
    assert ending('{"t": {"A": -1}}') == {A: 50, B: 7}


def test_partitions_at_no_store_are_left_out() -> None:
    assert starting('{"t": {"A": 50, "C": -2}}') == {A: 50, B: 0}
    assert ending('{"t": {"A": 50, "C": 0}}') == {A: 50, B: 7}
    assert starting('{"t": {"C": -1}}', {}) == {}
    assert starting('{"t": {"C": "-10m"}}', {}) == {}


def test_offsets_beyond_the_end() -> None:
    says = r"'startingOffsets' = 51: .* offsets 5 up to, not including, 50"
    with pytest.raises(ConfigError, match=says):
        starting('{"t": {"A": 51}}')
    says = r"'endingOffsets' = 1: no store has topic 't', partition C"
    with pytest.raises(ConfigError, match=says):
        ending('{"t": {"C": 1}}')


def test_an_offset_before_the_earliest_stays_as_it_is() -> None:
    """The reader finds the trimmed records, and ``failOnDataLoss`` decides."""
    assert starting('{"t": {"A": 3}}') == {A: 3, B: 0}


def test_a_time_without_a_store_with_flight_is_refused() -> None:
    says = r"'startingOffsets' = '-10m': no store can find times in topic 't', partition"
    with pytest.raises(ConfigError, match=says):
        starting("-10m")


@pytest.mark.parametrize(
    ("limit", "since_us"),
    [
        (OffsetRangeLimit(AT_EARLIEST), None),
        (OffsetRangeLimit(AT_LATEST), NOW_US),
        (parse_offset_range_limit("latest-5"), NOW_US),
        (parse_offset_range_limit("-10s"), NOW_US - 10_000_000),
        (parse_timestamp("500"), 500_000),
        (parse_timestamp("99999999"), NOW_US),
        (parse_offset_range_limit('{"t": "latest"}'), None),
    ],
)
def test_where_later_partitions_start(limit: OffsetRangeLimit, since_us: int | None) -> None:
    bound = Bound("startingOffsets", limit, AT_EARLIEST)
    assert READER.resolve(bound, OffsetsSnapshot({}), NOW_US).since_us == since_us
