"""What to do about lost records: the only place that decides between failing and warning."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.errors import (
    HeadBehindError,
    PartitionVanishedError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)

_log = logging.getLogger("dafka_spark")


@dataclass(frozen=True, slots=True)
class DataLossPolicy:
    """Option ``failOnDataLoss``."""

    fail: bool

    def meet(self, loss: SourceLossError) -> None:
        """Raises ``loss``, or warns of what is left out and of what can be done about it."""
        if self.fail:
            raise loss
        left_out = "what is missing is left out"
        if loss.lost_end is not None:
            left_out = f"offsets {loss.wanted} to {loss.lost_end} (exclusive) are left out"
        _log.warning("%s; %s, as failOnDataLoss is false. %s", loss.finding, left_out, loss.advice)


def judged(
    key: TopicPartition,
    start: int,
    end: int,
    held: PartitionInfo | None,
    *,
    away: str = "",
    waited_s: float = 0.0,
) -> SourceLossError | None:
    """What is wrong with a partition of which offsets ``start`` up to ``end`` should be there.

    None when nothing is.  ``held`` is what all stores that answer have together, ``away`` a store
    that has been seen with more and does not answer.  With ``start`` equal to ``end`` it is asked
    whether a reader that has come so far can go on.
    """
    lost_end = end if end > start else None
    if held is None:
        return PartitionVanishedError(*key, start, away, lost_end)
    if held.earliest > start:
        return RetentionAheadError(*key, start, held.earliest)
    if held.end >= end:
        return None
    if away:
        return HeadBehindError(*key, max(start, held.end), held.end, away, waited_s, lost_end)
    return StoreLostDataError(*key, max(start, held.end), end=held.end, lost_end=lost_end)
