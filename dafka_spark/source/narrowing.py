"""Which offsets of a batch can have what is asked for: a topic is a table indexed by time.

Conditions on topic, partition, offset and timestamp narrow the ranges that a batch reads.  They
narrow them to what certainly has every record that fits, and perhaps others: whoever asks looks at
the records themselves, too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from dafka_core.names import escape
from dafka_core.records import TopicPartition
from dafka_core.where import AT_LEAST, AT_MOST, EQUAL, GREATER, IN, LESS, Comparison
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.time_offsets import spans_of_times

Spans = Mapping[TopicPartition, tuple[int, int]]
"""The offsets to read of each partition: the first, and where to end (exclusive)."""

_ALL: Final = (-(2**63), 2**63 - 1)
_ORDERED: Final = (EQUAL, IN, LESS, AT_MOST, GREATER, AT_LEAST)
_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)


@dataclass(frozen=True)
class Narrowing:
    """What conditions leave, all of which have to be met.

    Attributes:
        topics, partitions: their names, escaped; None: all.
        offsets, times_us: the first one, and where they end (exclusive).
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    offsets: tuple[int, int] = _ALL
    times_us: tuple[int, int] = _ALL

    @classmethod
    def of(cls, conditions: Iterable[Comparison]) -> Self:
        """What these leave; those that say nothing of these columns are passed over."""
        made = cls()
        for each in conditions:
            made = made._and(each)
        return made

    def _and(self, condition: Comparison) -> Self:
        values = condition.value if condition.operator == IN else [condition.value]
        match condition.column:
            case ("topic" | "partition") as name if condition.operator in (EQUAL, IN):
                return self._among(f"{name}s", frozenset(values))
            case "offset" if condition.operator in _ORDERED:
                return self._within("offsets", condition.operator, values)
            case "timestamp" if condition.operator in _ORDERED:
                times_us = [(each - _EPOCH) // dt.timedelta(microseconds=1) for each in values]
                return self._within("times_us", condition.operator, times_us)
        return self

    def _among(self, name: str, values: frozenset[str]) -> Self:
        before = getattr(self, name)
        return self._with(name, values if before is None else before & values)

    def _within(self, name: str, operator: str, numbers: list[int]) -> Self:
        least, most = min(numbers, default=_ALL[1]), max(numbers, default=_ALL[0])
        start, end = getattr(self, name)
        if operator in (EQUAL, IN, GREATER, AT_LEAST):
            start = max(start, least + (operator == GREATER))
        if operator in (EQUAL, IN, LESS, AT_MOST):
            end = min(end, most + (operator != LESS))
        return self._with(name, (start, end))

    def _with(self, name: str, value: Any) -> Self:
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)

    def narrowed(self, spans: Spans, snapshot: OffsetsSnapshot, timeout_s: float) -> Spans:
        """What remains of these spans; a partition that certainly has nothing is left out.

        Stores are asked for times, if need be.  Where one that has some of a partition does not
        answer, or none can tell, that partition is not narrowed by time.
        """
        first, stop = self.offsets
        found = {
            tp: (max(start, first), min(end, stop))
            for tp, (start, end) in spans.items()
            if self.topics is None or escape(tp.topic) in self.topics
            if self.partitions is None or escape(tp.partition) in self.partitions
        }
        found = {tp: span for tp, span in found.items() if span[0] < span[1]}
        since_us, before_us = self.times_us
        if found and self.times_us != _ALL:
            if since_us >= before_us:
                return {}
            times_us = [None if each in _ALL else each for each in self.times_us]
            told = spans_of_times(
                times_us,
                found,
                snapshot.heads,
                snapshot.holders,
                timeout_s,
                archived=snapshot.archived,
                keys=snapshot.keys,
            )
            for tp, (start, end) in told.items():
                found[tp] = max(found[tp][0], start), min(found[tp][1], end)
        return {tp: span for tp, span in found.items() if span[0] < span[1]}


EVERYTHING: Final = Narrowing()
