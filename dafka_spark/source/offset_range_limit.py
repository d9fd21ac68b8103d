"""``startingOffsets`` and ``endingOffsets`` as offsets of what the stores hold."""

from __future__ import annotations

from dafka_core.errors import ConfigError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.option_values import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    OffsetRangeLimit,
)
from dafka_spark.source.latest_offsets import Heads


def starting_offsets(limit: OffsetRangeLimit, heads: Heads) -> dict[TopicPartition, int]:
    """The first offset to read of every partition that is known; the earliest if not named.

    Raises:
        ConfigError: an offset lies beyond the end of its partition, or no store has the partition.
    """
    return _offsets("startingOffsets", limit, heads, EARLIEST_OFFSET)


def ending_offsets(limit: OffsetRangeLimit, heads: Heads) -> dict[TopicPartition, int]:
    """The offset to stop before, of every partition that is known; the latest if not named.

    Raises:
        ConfigError: an offset lies beyond the end of its partition, or no store has the partition.
    """
    return _offsets("endingOffsets", limit, heads, LATEST_OFFSET)


def _offsets(
    option: str, limit: OffsetRangeLimit, heads: Heads, unnamed: int
) -> dict[TopicPartition, int]:
    named = {}
    if isinstance(limit, dict):
        named = limit
    else:
        unnamed = {EARLIEST: EARLIEST_OFFSET, LATEST: LATEST_OFFSET}[limit]
    for tp, offset in named.items():
        known = heads.get(tp)
        if offset > (known.end if known else 0):
            where = f"topic {tp.topic!r}, partition {tp.partition}"
            why = f"no store has {where}"
            if known:
                why = f"{where} has offsets {known.earliest} up to, not including, {known.end}"
            raise ConfigError(option, offset, why)
    return {tp: _offset(named.get(tp, unnamed), info) for tp, info in heads.items()}


def _offset(offset: int, info: PartitionInfo) -> int:
    return {EARLIEST_OFFSET: info.earliest, LATEST_OFFSET: info.end}.get(offset, offset)
