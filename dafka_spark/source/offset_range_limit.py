"""``startingOffsets`` and ``endingOffsets`` as offsets of what the stores hold."""

from __future__ import annotations

from functools import partial
from typing import Final

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


def _offsets(
    option: str, unnamed: int, limit: OffsetRangeLimit, heads: Heads
) -> dict[TopicPartition, int]:
    if isinstance(limit, str):
        unnamed, limit = {EARLIEST: EARLIEST_OFFSET, LATEST: LATEST_OFFSET}[limit], {}
    for tp, offset in limit.items():
        known = heads.get(tp)
        if offset > (known.end if known else 0):
            why = f"no store has {tp}"
            if known:
                why = f"{tp} has offsets {known.earliest} up to, not including, {known.end}"
            raise ConfigError(option, offset, why)
    return {tp: _offset(limit.get(tp, unnamed), info) for tp, info in heads.items()}


def _offset(offset: int, info: PartitionInfo) -> int:
    return {EARLIEST_OFFSET: info.earliest, LATEST_OFFSET: info.end}.get(offset, offset)


starting_offsets: Final = partial(_offsets, "startingOffsets", EARLIEST_OFFSET)
"""The first offset to read of every partition that is known; the earliest if not named.

Raises ``ConfigError``: an offset lies beyond its partition's end, or no store has the partition.
"""

ending_offsets: Final = partial(_offsets, "endingOffsets", LATEST_OFFSET)
"""The offset to stop before; the latest if not named.  Raises as ``starting_offsets`` does."""
