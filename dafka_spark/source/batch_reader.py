"""The reader of batch queries; filters on topic, partition, offset and timestamp narrow its ranges.

A narrowed range includes every record that matches, and perhaps others: Spark, or option ``where``,
filters the records as well.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from dafka_core.errors import ConfigError
from dafka_core.model.names import escape
from dafka_core.model.records import TopicPartition
from dafka_core.model.where import AT_LEAST, AT_MOST, EQUAL, GREATER, IN, LESS, Comparison
from dafka_spark.cluster.worker_process import warn_if_reused
from dafka_spark.option_types import AT_EARLIEST
from dafka_spark.source.offset_ranges import OffsetRange, plan_tasks
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from dafka_spark.source.partition_reader import RangeReader
from dafka_spark.source.progress_publisher import described
from dafka_spark.tracebacks import hide_frames

Spans = Mapping[TopicPartition, tuple[int, int]]
"""The offsets to read of each partition: the first one, and the end (exclusive)."""

_ALL: Final = (-(2**63), 2**63 - 1)
_ORDERED: Final = (EQUAL, IN, LESS, AT_MOST, GREATER, AT_LEAST)
_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)


@dataclass(frozen=True)
class Narrowing:
    """The records that may satisfy some conditions, each of which must hold.

    Attributes:
        topics, partitions: escaped names; None: all.
        offsets, times_us: the first one and the end (exclusive).
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    offsets: tuple[int, int] = _ALL
    times_us: tuple[int, int] = _ALL

    @classmethod
    def of(cls, conditions: Iterable[Comparison]) -> Self:
        """Combine conditions; those on other columns narrow nothing."""
        made = cls()
        for each in conditions:
            made = made._and(each)
        return made

    def _and(self, condition: Comparison) -> Self:
        operator = condition.operator
        values = condition.value if operator == IN else [condition.value]
        match condition.column:
            case ("topic" | "partition") as name if operator in (EQUAL, IN):
                return self._among(f"{name}s", frozenset(values))
            case "offset" if operator in _ORDERED:
                return self._within("offsets", operator, values)
            case "timestamp" if operator in _ORDERED:
                times_us = [(each - _EPOCH) // dt.timedelta(microseconds=1) for each in values]
                return self._within("times_us", operator, times_us)
        return self

    def _among(self, name: str, values: frozenset[str]) -> Self:
        before = getattr(self, name)
        changes: dict[str, Any] = {name: values if before is None else before & values}
        return replace(self, **changes)

    def _within(self, name: str, operator: str, numbers: list[int]) -> Self:
        least, most = min(numbers, default=_ALL[1]), max(numbers, default=_ALL[0])
        start, end = getattr(self, name)
        if operator in (EQUAL, IN, GREATER, AT_LEAST):
            start = max(start, least + (operator == GREATER))
        if operator in (EQUAL, IN, LESS, AT_MOST):
            end = min(end, most + (operator != LESS))
        changes: dict[str, Any] = {name: (start, end)}
        return replace(self, **changes)

    def narrowed(self, spans: Spans, snapshot: OffsetsSnapshot, reader: OffsetReader) -> Spans:
        """Return the spans that may have matching records; the stores find the times."""
        found: Spans = {
            tp: span
            for tp, span in spans.items()
            if self.topics is None or escape(tp.topic) in self.topics
            if self.partitions is None or escape(tp.partition) in self.partitions
        }
        found = _intersected(found, dict.fromkeys(found, self.offsets))
        since_us, before_us = self.times_us
        if self.times_us == _ALL or not found:
            return found
        if since_us >= before_us:
            return {}
        times_us = [None if each in _ALL else each for each in self.times_us]
        return _intersected(found, reader.spans_for_times(times_us, found, snapshot))


def _intersected(spans: Spans, others: Spans) -> Spans:
    both = {tp: (span, others.get(tp, _ALL)) for tp, span in spans.items()}
    found = {tp: (max(one[0], two[0]), min(one[1], two[1])) for tp, (one, two) in both.items()}
    return {tp: (start, end) for tp, (start, end) in found.items() if start < end}


class DafkaBatchReader(RangeReader, DataSourceReader):
    """Reads what the stores hold when the query is planned."""

    _pushed: Sequence[Comparison] = ()
    """Spark's filters on columns by which stores find records."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task, as ``RangeReader`` does."""
        warn_if_reused(self._planned_ns, described(self._options))
        return super().read(partition)

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """Return the tasks with their ranges; none for an empty batch.

        Raises:
            ArchiveError: option ``archive`` is not an archive, or it is damaged.
            ConfigError: the start or the end is outside of a partition, no store has a topic or
                partition that is named, no store can do what option ``fetch`` demands, or there
                are fewer stores than ``minStores``.
        """
        options, offsets = self._options, OffsetReader(self._options, self._connect)
        offsets.check_stores()
        snapshot = offsets.snapshot(thorough=True)
        offsets.check_found(snapshot.heads)
        stop = options.ending()
        start = offsets.resolve(options.starting(AT_EARLIEST), snapshot).offsets
        end = offsets.resolve(stop, snapshot).offsets
        for tp in start:
            if start[tp] > end[tp]:
                why = f"{tp} starts after it, at {start[tp]}"
                raise ConfigError(stop.option, end[tp], why)
        planned = {tp: (start[tp], end[tp]) for tp in start}
        needed = options.where.needed if options.where else ()
        spans = Narrowing.of([*self._pushed, *needed]).narrowed(planned, snapshot, offsets)
        ranges = [OffsetRange(*tp, *spans[tp], life=snapshot.heads[tp].life) for tp in spans]
        return list(plan_tasks(ranges, snapshot.holders, options, archived=snapshot.archived))


# ruff: noqa: N802 -- Spark names the method


_OPERATORS: Final[dict[type[Filter], str]] = {
    spark.EqualTo: EQUAL,
    spark.EqualNullSafe: EQUAL,
    spark.In: IN,
    spark.LessThan: LESS,
    spark.LessThanOrEqual: AT_MOST,
    spark.GreaterThan: GREATER,
    spark.GreaterThanOrEqual: AT_LEAST,
}

_TYPES: Final = {"topic": str, "partition": str, "offset": int, "timestamp": dt.datetime}

SHARES_PLANS: Final = not hasattr(DataSourceReader, "pushLimit")
"""True if Spark, as 4.3 does, runs all queries of one DataFrame with its newest plan.  Later
versions, which push limits down, too, keep a plan with its scan."""

_SHARED: Final = (
    "pushFilters: the query reads only what may pass %s. This version of Spark may run other "
    "queries of the same DataFrame with this plan, and they would lack rows: load one for each "
    "filter"
)

_log = logging.getLogger("dafka_spark")


class PushingBatchReader(DafkaBatchReader):
    """Reads only the ranges that may pass Spark's filters.

    A separate class: Spark refuses to plan a reader that defines ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters that narrow ranges; Spark applies every filter itself, too."""
        used = [each for each in filters if conditions(each)]
        if SHARES_PLANS and used:
            _log.warning(_SHARED, " and ".join(map(str, used)))
        self._pushed = [found for each in used for found in conditions(each)]
        return filters


def conditions(pushed: Filter) -> list[Comparison]:
    """Return the comparison of a filter that narrows ranges; empty for any other filter."""
    operator = _OPERATORS.get(type(pushed))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    column = ".".join(path).lower()
    if operator is None or column not in _TYPES:
        return []
    value: Any = getattr(pushed, "value", None)
    # Nothing equals null: nulls in a list match no record.
    values = [each for each in value if each is not None] if operator == IN else [value]
    if not all(_narrows(each, _TYPES[column]) for each in values):
        return []
    return [Comparison(column, operator, values if operator == IN else value)]


def _narrows(value: Any, kind: type) -> bool:
    return type(value) is kind and getattr(value, "tzinfo", dt.UTC) is not None
