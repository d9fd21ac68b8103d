"""The reader of batch queries, with the ranges that pushed filters leave."""

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
from dafka_spark.source.offset_reader import (
    ArchiveLook,
    OffsetsSnapshot,
    check_found,
    check_stores,
    fetch_latest_offsets,
    resolved,
    spans_of_times,
)
from dafka_spark.source.partition_reader import RangeReader
from dafka_spark.source.progress_publisher import described
from dafka_spark.tracebacks import hide_frames

# Which offsets of a batch can have what is asked for: a topic is a table indexed by time.
#
# Conditions on topic, partition, offset and timestamp narrow the ranges that a batch reads. They
# narrow them to what certainly has every record that fits, and perhaps others: whoever asks looks
# at the records themselves, too.


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


class DafkaBatchReader(RangeReader, DataSourceReader):
    """Reads what the stores hold when the query is planned."""

    _pushed: Sequence[Comparison] = ()
    """What Spark's filters say of columns by which stores find records."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task, as ``RangeReader`` reads them."""
        warn_if_reused(self._planned_ns, described(self._options))
        return super().read(partition)

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """The tasks, each with the ranges that it reads; none when there is nothing to read.

        Raises:
            ArchiveError: option ``archive`` names what is no archive, or is damaged.
            ConfigError: where it starts or ends lies outside of a partition, no
                store has a topic or partition that is named, option ``fetch`` asks for what no
                store offers, or there are fewer stores than ``minStores``.
        """
        options = self._options
        check_stores(options, self._connect)
        snapshot = fetch_latest_offsets(options, self._connect, thorough=True)
        if options.archive:
            snapshot = ArchiveLook(options).added_to(snapshot)
        check_found(options, snapshot.heads, self._connect)
        begin, stop = options.starting(AT_EARLIEST), options.ending()
        start = resolved(begin, snapshot, options.fetch_timeout_s).offsets
        end = resolved(stop, snapshot, options.fetch_timeout_s).offsets
        for tp in start:
            if start[tp] > end[tp]:
                why = f"{tp} starts after it, at {start[tp]}"
                raise ConfigError(stop.option, end[tp], why)
        planned = {tp: (start[tp], end[tp]) for tp in start}
        needed = options.where.needed if options.where else ()
        spans = Narrowing.of([*self._pushed, *needed]).narrowed(
            planned, snapshot, options.fetch_timeout_s
        )
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
"""Whether Spark reads all that is made of one DataFrame with the plan that was made last: 4.3 does.
Later versions, which push limits down, too, keep a plan with its scan."""

_SHARED: Final = (
    "pushFilters: only what may pass %s is read. This version of Spark may read other queries of "
    "the same DataFrame so, too, and they would lack rows: load another one for each filter"
)

_log = logging.getLogger("dafka_spark")


class PushingBatchReader(DafkaBatchReader):
    """Reads only where records can be that pass Spark's filters, which Spark applies itself, too.

    A class of its own: Spark refuses to plan a reader that defines ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes note of filters, all of which remain Spark's work."""
        used = [each for each in filters if conditions(each)]
        if SHARES_PLANS and used:
            _log.warning(_SHARED, " and ".join(map(str, used)))
        self._pushed = [found for each in used for found in conditions(each)]
        return filters


def conditions(pushed: Filter) -> list[Comparison]:
    """The comparison that a filter is, if it is one that narrows; else none."""
    operator = _OPERATORS.get(type(pushed))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    column = ".".join(path).lower()
    if operator is None or column not in _TYPES:
        return []
    value: Any = getattr(pushed, "value", None)
    # Nothing equals null, so that those do not matter in a list.
    values = [each for each in value if each is not None] if operator == IN else [value]
    if not all(_narrows(each, _TYPES[column]) for each in values):
        return []
    return [Comparison(column, operator, values if operator == IN else value)]


def _narrows(value: Any, kind: type) -> bool:
    return type(value) is kind and getattr(value, "tzinfo", dt.UTC) is not None
