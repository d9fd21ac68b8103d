"""``startingOffsets`` and ``endingOffsets`` against what the stores hold."""

from __future__ import annotations

from collections.abc import Mapping

from dafka_core.errors import ConfigError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.option_values import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    OffsetRangeLimit,
)

Heads = Mapping[TopicPartition, PartitionInfo]
"""What the stores hold of each selected partition."""


def starting(bound: OffsetRangeLimit, heads: Heads) -> dict[TopicPartition, int]:
    """The first offset to read of every partition that is known.

    Raises:
        ConfigError: an offset lies beyond the end of its partition, or nobody has the partition.
    """
    return _resolved("startingOffsets", bound, heads, EARLIEST_OFFSET)


def ending(bound: OffsetRangeLimit, heads: Heads) -> dict[TopicPartition, int]:
    """The offset to stop before, of every partition that is known.

    Raises:
        ConfigError: an offset lies beyond the end of its partition, or nobody has the partition.
    """
    return _resolved("endingOffsets", bound, heads, LATEST_OFFSET)


def _resolved(
    option: str, bound: OffsetRangeLimit, heads: Heads, default: int
) -> dict[TopicPartition, int]:
    named = bound if isinstance(bound, dict) else {}
    for key, offset in named.items():
        if offset > (heads[key].end if key in heads else 0):
            raise ConfigError(option, offset, _beyond(key, heads))
    if not isinstance(bound, dict):
        default = {EARLIEST: EARLIEST_OFFSET, LATEST: LATEST_OFFSET}[bound]
    return {key: _offset(named.get(key, default), info) for key, info in heads.items()}


def _offset(offset: int, info: PartitionInfo) -> int:
    if offset == EARLIEST_OFFSET:
        return info.earliest
    return info.end if offset == LATEST_OFFSET else offset


def _beyond(key: TopicPartition, heads: Heads) -> str:
    location = f"topic {key.topic!r}, partition {key.partition}"
    if key not in heads:
        return f"no store has {location}"
    info = heads[key]
    return f"{location} has offsets {info.earliest} up to, not including, {info.end}"
