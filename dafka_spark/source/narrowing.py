"""Which offsets of a batch can have what is asked for: a topic is a table indexed by time.

Conditions on topic, partition, offset and timestamp narrow the ranges that a batch reads.  They
narrow them to what certainly has every record that fits, and perhaps others: whoever asks looks at
the records themselves, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from dafka_core.names import escape
from dafka_core.records import TopicPartition
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.time_offsets import spans_of_times

Spans = Mapping[TopicPartition, tuple[int, int]]
"""The offsets to read of each partition: the first, and where to end (exclusive)."""

EQUAL, IN, LESS, AT_MOST, GREATER, AT_LEAST = "=", "in", "<", "<=", ">", ">="

_ALL: Final = (-(2**63), 2**63 - 1)


class Condition(NamedTuple):
    """What a column has to be: a record for which that is not so, or not known, does not fit.

    ``value`` is a text for ``topic`` and ``partition``, as the column shows it, and a number for
    ``offset`` and ``timestamp`` (microseconds since the epoch UTC); with ``IN`` a list of them.
    """

    column: str
    operator: str
    value: Any


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
    def of(cls, conditions: Iterable[Condition]) -> Self:
        """What these leave; those that say nothing of these columns are passed over."""
        made = cls()
        for each in conditions:
            made = made._and(each)
        return made

    def _and(self, condition: Condition) -> Self:
        values = condition.value if condition.operator == IN else [condition.value]
        match condition.column:
            case ("topic" | "partition") as name if condition.operator in (EQUAL, IN):
                return self._among(f"{name}s", frozenset(values))
            case "offset":
                return self._within("offsets", condition.operator, values)
            case "timestamp":
                return self._within("times_us", condition.operator, values)
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
            holders = snapshot.holders
            told = spans_of_times(times_us, found, snapshot.heads, holders, timeout_s)
            for tp, (start, end) in told.items():
                found[tp] = max(found[tp][0], start), min(found[tp][1], end)
        return {tp: span for tp, span in found.items() if span[0] < span[1]}


EVERYTHING: Final = Narrowing()
