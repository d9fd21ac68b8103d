"""Data loss: partitions that seem shorter than before, and the reaction of a query.

Both sides of a query only gather facts: the driver compares what the stores have with how far the
query has read (``regression_detector``), and a task asks each source for its records
(``range_fetch``).  ``docs/source.md`` has the conditions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dafka_core.errors import DafkaError, DataLossError, HistoryChangedError
from dafka_core.model.packed_offset import Positions
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_spark.errors import (
    HeadBehindError,
    HistoryReplacedError,
    PartitionVanishedError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import HeldRange
from dafka_spark.source.offset_reader import Heads, OffsetsSnapshot

_log = logging.getLogger("dafka_spark")


@dataclass(frozen=True, slots=True)
class DataLossPolicy:
    """What options ``failOnDataLoss`` and ``fetchTimeoutMs`` say about lost records."""

    options: SourceOptions

    def waits(self, loss: DataLossError, waited_s: float, *, silent: bool = False) -> bool:
        """Whether the records may still come back, so that it is too early to decide.

        A store that starts or catches up makes a partition end too early for a moment.  Trimmed
        records do not come back, unless a store that is ``silent`` has them.
        """
        can_pass = silent or not _is_gap(loss)
        return can_pass and waited_s < self.options.fetch_timeout_s

    def fail_or_warn(self, loss: SourceLossError) -> None:
        """Raises ``loss``, or warns of what is left out and of what can be done about it."""
        if self.options.fail_on_data_loss:
            raise loss
        left_out = "what is missing is left out"
        if isinstance(loss, HistoryReplacedError):
            left_out = "the query goes on with the records that are there now"
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
    """What is wrong with a partition of which offsets ``start`` up to ``end`` should be there.

    None if nothing is.  ``held`` is what all stores that answer have together, None if none has
    the partition; ``away`` is a store that has been seen with more and does not answer, if any.
    Where ``start`` is ``end`` the question is whether a query that has read so far can go on.
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
    """What sources say that were asked for offset ``start``; None unless all of them lack it.

    It is a ``SourceLossError`` if it tells by itself what is lost of a range up to ``end``.  Else
    ``classify`` does, once the stores have said what they hold.
    """
    losses = [error for error in errors if isinstance(error, DataLossError)]
    if not losses or len(losses) < len(errors):
        return None
    gaps = [loss for loss in losses if _is_gap(loss)]
    said = min(gaps, key=lambda gap: gap.available or 0, default=losses[0])
    if said.available is None or not gaps or isinstance(said, SourceLossError):
        return said
    tp, lost_end = (said.topic, said.partition), min(said.available, end)
    return RetentionAheadError(*tp, start, said.available, lost_end=lost_end)


def replaced(error: HistoryChangedError, position: int) -> HistoryReplacedError:
    """What it means to a query at ``position`` that its records are of another history now."""
    start = min(error.wanted, position)
    return HistoryReplacedError(error.topic, error.partition, start, end=error.position)


def _is_gap(loss: DataLossError) -> bool:
    """Whether records are missing before others that are there, not at the partition's end."""
    return loss.available is not None and loss.available > loss.wanted


# Partitions that look shorter than what has been read of them, and for how long they have.
#
# While a store starts or catches up, a partition may end too early, or no store may know it.
# ``DataLossPolicy`` decides when that has lasted for long enough.


class RegressionDetector:
    """Remembers, from one look at the stores to the next, what looked wrong and which store had it.

    Attributes:
        is_slow: the last two triggers lay so far apart that the next one would come too late.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.is_slow = False
        self._options = options
        self._policy = DataLossPolicy(options)
        self._snapshot = OffsetsSnapshot({}, {})
        self._last_holders: dict[TopicPartition, HeldRange] = {}
        self._triggered_at: float | None = None
        self._since: dict[TopicPartition, float] = {}
        self._warned: dict[TopicPartition, str] = {}

    def take(self, snapshot: OffsetsSnapshot) -> None:
        """Remembers of each partition the last store that was seen with most of it."""
        self._snapshot = snapshot
        for tp, holders in snapshot.holders.items():
            known = self._last_holders.get(tp)
            furthest = max(holders, key=lambda held: held.end)
            if known is None or furthest.end >= known.end:
                self._last_holders[tp] = furthest

    def begin_trigger(self) -> None:
        """Begins a trigger, which may look at the stores several times."""
        now = time.monotonic()
        before, self._triggered_at = self._triggered_at, now
        self.is_slow = before is not None and now - before > self._options.fetch_timeout_s
        if self.is_slow:
            # The query has not looked at the stores meanwhile: that time does not count.
            self._since = dict.fromkeys(self._since, now)

    def check(self, positions: Positions, heads: Heads) -> set[TopicPartition]:
        """Compares how far a query has read with what there is; gives the partitions to wait for.

        Raises:
            SourceLossError: records have been lost for long enough, and option
                ``failOnDataLoss`` is true.
        """
        now = time.monotonic()
        is_silent = bool(self._snapshot.silent)
        waiting = set()
        for tp, position in positions.items():
            waited_s = now - self._since.get(tp, now)
            loss = self._loss(tp, position, heads.get(tp), waited_s)
            if loss is None:
                self._warned.pop(tp, None)
                if self._since.pop(tp, None) is not None:
                    _log.info("%s looked shorter for %.1f s", tp, waited_s)
                continue
            self._since.setdefault(tp, now)
            if self._policy.waits(loss, waited_s, silent=is_silent):
                waiting.add(tp)
            elif self._warned.get(tp) != loss.condition:
                self._policy.fail_or_warn(loss)
                self._warned[tp] = loss.condition
        return waiting

    def _loss(
        self, tp: TopicPartition, position: int, held: PartitionInfo | None, waited_s: float
    ) -> SourceLossError | None:
        if held is None:
            # A partition without records has none to lose, and may go away again.
            is_wrong = position > 0
        elif held.earliest > position:
            # A task that finds its records trimmed asks every store, and fails then.
            is_wrong = not self._options.fail_on_data_loss
        else:
            is_wrong = held.end < position
        if not is_wrong or not self._options.selection.has(tp):
            return None
        # The store that may have what is missing and does not answer, if there is one.
        away = next(iter(self._snapshot.silent), "")
        last = self._last_holders.get(tp)
        if last and last.end >= position and last.location.store not in self._snapshot.answered:
            away = last.location.store
        return classify(tp, position, position, held, away=away, waited_s=waited_s)
