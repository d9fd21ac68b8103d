"""Data loss: its conditions, and the one decision about them (``docs/guarantees.md``).

The driver compares the stores' offsets with the query's (``RegressionDetector``), and a task
reports the sources that lack its records (``RangeFetch``).  Both let ``DataLossPolicy`` decide.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dafka_core.errors import DafkaError, DataLossError, HistoryChangedError
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.queries.source_offset import Positions, SourceOffset
from dafka_spark.errors import (
    HeadBehindError,
    HistoryReplacedError,
    PartitionVanishedError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_reader import Heads, OffsetsSnapshot

_log = logging.getLogger("dafka_spark")


@dataclass(frozen=True, slots=True)
class DataLossPolicy:
    """The reaction to lost records that ``failOnDataLoss`` and ``fetchTimeoutMs`` demand."""

    options: SourceOptions

    def waits(self, loss: DataLossError, waited_s: float, *, silent: bool = False) -> bool:
        """Return whether the records may still come back.

        A store that starts or catches up makes a partition end too early for a moment.  Trimmed
        records do not come back, unless a store that is ``silent`` has them.
        """
        can_pass = silent or not _is_gap(loss)
        return can_pass and waited_s < self.options.fetch_timeout_s

    def fail_or_warn(self, loss: SourceLossError) -> None:
        """Raise ``loss``, or warn of the records that are left out and of the remedy."""
        if self.options.fail_on_data_loss:
            raise loss
        left_out = "the missing records are left out"
        if isinstance(loss, HistoryReplacedError):
            left_out = "the query continues with the partition's present records"
        elif loss.lost_end is not None:
            left_out = f"offsets {loss.wanted} to {loss.lost_end} (exclusive) are left out"
        _log.warning("%s; %s, as failOnDataLoss is false. %s", loss.finding, left_out, loss.advice)


def classify(
    tp: TopicPartition,
    start: int,
    end: int,
    held: PartitionInfo | None,
    *,
    away: str = "",
    waited_s: float = 0.0,
) -> SourceLossError | None:
    """Return the loss of a partition that should have offsets ``start`` to ``end`` (exclusive).

    ``held`` is the range of all stores that answer, None if none has the partition; ``away`` is a
    store that had more and does not answer.  With ``start`` equal to ``end`` the question is
    whether a query at this offset can continue.
    """
    lost_end = end if end > start else None
    if held is None:
        return PartitionVanishedError(*tp, start, store=away, lost_end=lost_end)
    if held.earliest > start:
        lost_end = min(held.earliest, lost_end or held.earliest)
        return RetentionAheadError(*tp, start, held.earliest, lost_end=lost_end)
    if held.end >= end:
        return None
    wanted = max(start, held.end)
    if not away:
        return StoreLostDataError(*tp, wanted, end=held.end, lost_end=lost_end)
    return HeadBehindError(
        *tp, wanted, end=held.end, store=away, waited_s=waited_s, lost_end=lost_end
    )


def denial(errors: Sequence[DafkaError], start: int, end: int) -> DataLossError | None:
    """Return the loss that all sources of offset ``start`` report; None if one has not lost it.

    For a gap before records that exist it states which part of the range up to ``end`` is lost;
    otherwise ``classify`` does, once the stores have answered.
    """
    losses = [error for error in errors if isinstance(error, DataLossError)]
    if not losses or len(losses) < len(errors):
        return None
    gaps = [loss for loss in losses if _is_gap(loss)]
    nearest = min(gaps, key=lambda gap: gap.available or 0, default=losses[0])
    if nearest.available is None or not gaps:
        return nearest
    tp, lost_end = (nearest.topic, nearest.partition), min(nearest.available, end)
    return RetentionAheadError(*tp, start, nearest.available, lost_end=lost_end)


def replaced(error: HistoryChangedError, position: int) -> HistoryReplacedError:
    """Return the loss of a query at ``position`` in a partition with a changed history."""
    start = min(error.wanted, position)
    return HistoryReplacedError(error.topic, error.partition, start, end=error.position)


def _is_gap(loss: DataLossError) -> bool:
    """Return whether later records exist, so that the missing ones are not at the end."""
    return loss.available is not None and loss.available > loss.wanted


class RegressionDetector:
    """Finds partitions that look shorter than a query has read them, and for how long they have.

    Attributes:
        is_slow: the last two triggers were so far apart that the next one would come too late.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.is_slow = False
        self._policy = DataLossPolicy(options)
        self._snapshot = OffsetsSnapshot({})
        self._last_answers: dict[str, Heads] = {}
        self._triggered_at: float | None = None
        self._since: dict[TopicPartition, float] = {}
        self._warned: dict[TopicPartition, str] = {}

    def add(self, snapshot: OffsetsSnapshot) -> None:
        """Remember the last answer of each store."""
        self._snapshot = snapshot
        self._last_answers |= {at.store: heads for at, heads in snapshot.answers}

    def begin_trigger(self) -> None:
        """Begin a trigger, which may take several snapshots."""
        now = time.monotonic()
        before, self._triggered_at = self._triggered_at, now
        self.is_slow = before is not None and now - before > self._policy.options.fetch_timeout_s
        if self.is_slow:
            # The query took no snapshots in between: that time does not count.
            self._since = dict.fromkeys(self._since, now)

    def check(self, begin: SourceOffset, heads: Heads) -> set[TopicPartition]:
        """Compare a query's positions with the stores; return the partitions to wait for.

        A partition is absent if all stores have an older producer's records than the query read:
        those behind its position belong to another history.

        Raises SourceLossError for records lost for long enough, if ``failOnDataLoss`` is true.
        """
        now, waiting, positions = time.monotonic(), set(), begin.positions
        lives = begin.lives.items()
        older = {tp for tp, life in lives if tp in heads and NO_LIFE < heads[tp].life < life}
        if older:
            heads = {tp: heads[tp] for tp in heads.keys() - older}
        short = self._short(positions, heads)
        for tp in self._since.keys() - short:
            del self._since[tp]
            self._warned.pop(tp, None)
        for tp in sorted(short):
            position, waited_s = positions[tp], now - self._since.setdefault(tp, now)
            away = self._away(tp, position)
            loss = classify(tp, position, position, heads.get(tp), away=away, waited_s=waited_s)
            assert loss is not None  # as it is short
            if self._policy.waits(loss, waited_s, silent=bool(self._snapshot.silent)):
                waiting.add(tp)
            elif self._warned.get(tp) != loss.condition:
                self._policy.fail_or_warn(loss)
                self._warned[tp] = loss.condition
        return waiting

    def _short(self, positions: Positions, heads: Heads) -> set[TopicPartition]:
        def is_short(tp: TopicPartition, position: int) -> bool:
            held = heads.get(tp)
            if held is None:
                return position > 0  # a partition without records has none to lose
            # With failOnDataLoss the task that reads trimmed records asks every store, and fails.
            is_trimmed = held.earliest > position and not self._policy.options.fail_on_data_loss
            return held.end < position or is_trimmed

        found = {tp for tp, position in positions.items() if is_short(tp, position)}
        return {tp for tp in found if self._policy.options.selection.has(tp)}

    def _away(self, tp: TopicPartition, position: int) -> str:
        """Return the store that may have the missing records and does not answer, if any."""
        answered = {at.store for at in self._snapshot.locations}
        for store, heads in self._last_answers.items():
            if store not in answered and tp in heads and heads[tp].end >= position:
                return store
        return next(iter(self._snapshot.silent), "")
