"""Starts and ends of queries, resolved to offsets of the partitions that the stores hold."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.positions import AT_EARLIEST, AT_LATEST
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.option_types import OffsetRangeLimit, parse_offset_range_limit, parse_timestamp
from dafka_spark.options import Bound, SourceOptions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot, Resolved
from tests.memory_reader import MemoryReader

A, B = (TopicPartition("t", name) for name in "AB")
HEADS = {A: PartitionInfo("t", "A", 5, 50), B: PartitionInfo("t", "B", 0, 7)}
NOW_US = 1_000_000_000
OPTIONS = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "1000"})


def resolved(name: str, limit: OffsetRangeLimit, *, is_empty: bool = False) -> Resolved:
    default = AT_EARLIEST if name == "startingOffsets" else AT_LATEST
    reader = OffsetReader(OPTIONS, MemoryReader().connect)
    snapshot = OffsetsSnapshot({} if is_empty else HEADS)
    return reader.resolve(Bound(name, limit, default), snapshot, NOW_US)


@pytest.mark.parametrize(
    ("text", "starts", "ends"),
    [
        ("earliest", (5, 0), (5, 0)),
        ("latest", (50, 7), (50, 7)),
        ("latest-10", (40, 0), (40, 0)),
        ("latest-999", (5, 0), (5, 0)),
        ("earliest+10", (15, 7), (15, 7)),
        ('{"t": "latest-3"}', (47, 4), (47, 4)),
        ('{"t": {"A": 20}}', (20, 0), (20, 7)),
        ('{"t": {"A": -1, "B": -2}}', (50, 0), (50, 0)),
        ('{"t": {"A": "latest-2"}}', (48, 0), (48, 7)),
        ('{"t": {"A": 50, "C": -2}}', (50, 0), (50, 7)),  # no store has C
        ('{"t": {"A": 3}}', (3, 0), (3, 7)),  # failOnDataLoss decides about trimmed records
    ],
)
def test_positions(text: str, starts: tuple[int, int], ends: tuple[int, int]) -> None:
    limit = parse_offset_range_limit(text)
    for name, (a, b) in (("startingOffsets", starts), ("endingOffsets", ends)):
        assert resolved(name, limit).offsets == {A: a, B: b}
        assert resolved(name, OffsetRangeLimit(AT_LATEST), is_empty=True).offsets == {}


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        (
            "startingOffsets",
            '{"t": {"A": 51}}',
            "'startingOffsets' = 51: .* offsets 5 up to, not including, 50",
        ),
        (
            "endingOffsets",
            '{"t": {"C": 1}}',
            "'endingOffsets' = 1: no store has topic 't', partition C",
        ),
        (
            "startingOffsets",
            "-10m",
            "'startingOffsets' = '-10m': no store can find times in topic 't', partition",
        ),
    ],
)
def test_positions_without_an_offset(name: str, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        resolved(name, parse_offset_range_limit(text))


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
def test_the_start_of_later_partitions(limit: OffsetRangeLimit, since_us: int | None) -> None:
    assert resolved("startingOffsets", limit, is_empty=True).since_us == since_us
