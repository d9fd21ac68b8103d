"""Partitions that look shorter than what has been read of them, and for how long they have.

While a store starts or catches up, a partition may end too early, or no store may know it.
``DataLossPolicy`` decides when that has lasted for long enough.
"""

from __future__ import annotations

import logging
import time

from dafka_core.packed_offset import Positions
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.errors import SourceLossError
from dafka_spark.options import SourceOptions
from dafka_spark.source.data_loss import DataLossPolicy, classify
from dafka_spark.source.latest_offsets import Heads, OffsetsSnapshot
from dafka_spark.source.range_planner import HeldRange

_log = logging.getLogger("dafka_spark")


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
