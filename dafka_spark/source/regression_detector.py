"""Partitions that look shorter than what has been read of them, and for how long they have.

A store that starts, or that is catching up, makes a partition end too early for a moment, or
makes nobody know it.  Nothing is decided before that has lasted as long as the query's patience.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.errors import RetentionAheadError, SourceLossError
from dafka_spark.options import SourceOptions
from dafka_spark.source.data_loss import judged
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.offset_range_limit import Heads
from dafka_spark.source.source_offset import Positions

_log = logging.getLogger("dafka_spark")


class Regressions(NamedTuple):
    """What is to be done about partitions that look wrong."""

    due: list[SourceLossError]
    """They have looked so for long enough, and this has not been said yet."""
    waiting: set[TopicPartition]
    """They may look right again."""


class _LastHolder(NamedTuple):
    store: str
    end: int


@dataclass(slots=True)
class _Suspicion:
    since: float
    told: str = ""
    """The condition that has been met by ``failOnDataLoss`` already: it is not said twice."""


@dataclass(slots=True)
class RegressionDetector:
    """Remembers, between looks at the stores, what looked wrong and who had had it."""

    options: SourceOptions
    slow: bool = False
    """The last two looks lay so far apart that waiting for the next one would not do."""
    _seen: OffsetsSnapshot = field(default_factory=lambda: OffsetsSnapshot([], {}))
    _suspicions: dict[TopicPartition, _Suspicion] = field(default_factory=dict)
    _witnesses: dict[TopicPartition, _LastHolder] = field(default_factory=dict)
    _paced_at: float | None = None

    def note(self, seen: OffsetsSnapshot) -> None:
        """Remembers of each partition which store has been seen with most of it."""
        self._seen = seen
        for key, holders in seen.holders.items():
            known = self._witnesses.get(key)
            best = max(holders, key=lambda held: held.end)
            # Of those with as much the one that answers now will do.
            if known is None or best.end >= known.end:
                self._witnesses[key] = _LastHolder(best.location.store, best.end)

    def pace(self) -> None:
        """Begins a trigger, which may look several times."""
        now = time.monotonic()
        before, self._paced_at = self._paced_at, now
        self.slow = before is not None and now - before > self.options.fetch_timeout_s
        if self.slow:
            # Nobody has looked meanwhile: all of that time counts for nothing.
            for suspicion in self._suspicions.values():
                suspicion.since = now

    def check(self, positions: Positions, heads: Heads) -> Regressions:
        """Compares how far a query has come with what there is."""
        now = time.monotonic()
        wrong = self._wrong(positions, heads, now)
        for key in [key for key in self._suspicions if key not in wrong]:
            since = self._suspicions.pop(key).since
            _log.info("topic %r, partition %s looked shorter for %.1f s", *key, now - since)
        verdicts = Regressions([], set())
        for key, loss in wrong.items():
            suspicion = self._suspicions.setdefault(key, _Suspicion(now))
            if not self._is_over(loss, suspicion, now):
                verdicts.waiting.add(key)
            elif self.options.fail_on_data_loss or suspicion.told != loss.condition:
                suspicion.told = loss.condition
                verdicts.due.append(loss)
        return verdicts

    def _wrong(
        self, positions: Positions, heads: Heads, now: float
    ) -> Mapping[TopicPartition, SourceLossError]:
        found = {}
        for key, position in positions.items():
            held = heads.get(key)
            # Of a partition without a record nothing can be lost, and it may go away again.
            if (held is None and position == 0) or not self.options.selection.has(key):
                continue
            loss = None
            if held is None or not held.earliest <= position <= held.end:
                loss = self._judged(key, position, held, now)
            if loss is not None:
                found[key] = loss
        return found

    def _judged(
        self, key: TopicPartition, position: int, held: PartitionInfo | None, now: float
    ) -> SourceLossError | None:
        if held is not None and held.earliest > position and self.options.fail_on_data_loss:
            return None  # it fails in the task that reads it, after that has asked everybody
        since = self._suspicions[key].since if key in self._suspicions else now
        away = self._away(key, position)
        return judged(key, position, position, held, away=away, waited_s=now - since)

    def _away(self, key: TopicPartition, position: int) -> str:
        """A store that may have what is missing and does not answer; empty: there is none."""
        witness = self._witnesses.get(key)
        if witness and witness.end >= position and witness.store not in self._seen.answered:
            return witness.store
        return next(iter(self._seen.silent), "")

    def _is_over(self, loss: SourceLossError, suspicion: _Suspicion, now: float) -> bool:
        if isinstance(loss, RetentionAheadError) and not self._seen.silent:
            return True  # a store that has trimmed records does not get them back
        return now - suspicion.since >= self.options.fetch_timeout_s
