"""The reader of batch queries; option ``where`` narrows its ranges.

A narrowed range includes every record that matches, and perhaps others: the sources of records
apply the whole condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dafka_core.errors import ConfigError
from dafka_core.model.names import escape
from dafka_core.model.positions import AT_EARLIEST
from dafka_core.model.records import TopicPartition
from dafka_core.model.where import AT_LEAST, AT_MOST, EQUAL, GREATER, IN, IS_NULL, LESS, Comparison
from dafka_spark.cluster.worker_process import warn_if_reused
from dafka_spark.source.offset_ranges import OffsetRange, plan_input_partitions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from dafka_spark.source.partition_reader import PartitionReader
from dafka_spark.source.progress_publisher import described
from dafka_spark.tracebacks import hide_frames

Spans = Mapping[TopicPartition, tuple[int, int]]
"""The offsets to read of each partition: the first one, and the end (exclusive)."""

_ALL: Final = (-(2**63), 2**63 - 1)


class DafkaBatchReader(PartitionReader, DataSourceReader):
    """Reads what the stores hold when the query is planned."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task, as ``PartitionReader`` does."""
        warn_if_reused(self._planned_ns, described(self._options))
        return super().read(partition)

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """Return the tasks with their ranges; none for an empty batch.

        Raises ConfigError if an option does not fit what the stores and the archive hold.
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
        spans = narrow(planned, needed, snapshot, offsets)
        ranges = [OffsetRange(*tp, *spans[tp], life=snapshot.heads[tp].life) for tp in spans]
        holders, archived = snapshot.holders, snapshot.archived
        return list(plan_input_partitions(ranges, holders, options, archived=archived))


def narrow(
    spans: Spans, conditions: Sequence[Comparison], snapshot: OffsetsSnapshot, reader: OffsetReader
) -> Spans:
    """Return the spans that may have records for which all conditions hold.

    Stores find the offsets of times. Conditions on other columns narrow nothing.
    """
    for column, operator, value in conditions:
        if column in ("topic", "partition") and operator in (EQUAL, IN):
            names = set(value) if operator == IN else {value}
            spans = {tp: spans[tp] for tp in spans if escape(getattr(tp, column)) in names}
    spans = _intersect(spans, dict.fromkeys(spans, _bounds(conditions, "offset")))
    times = _bounds(conditions, "timestamp")
    if times == _ALL or not spans:
        return spans
    if times[0] >= times[1]:
        return {}
    times_us = [None if each in _ALL else each for each in times]
    return _intersect(spans, reader.spans_for_times(times_us, spans, snapshot))


def _bounds(conditions: Iterable[Comparison], column: str) -> tuple[int, int]:
    """Return the first number that all conditions on a column allow, and the end (exclusive)."""
    start, end = _ALL
    for name, operator, value in conditions:
        if name != column or operator == IS_NULL:
            continue
        numbers: Sequence[int] = value if operator == IN else [value]
        if operator in (EQUAL, IN, GREATER, AT_LEAST):
            start = max(start, min(numbers, default=_ALL[1]) + (operator == GREATER))
        if operator in (EQUAL, IN, LESS, AT_MOST):
            end = min(end, max(numbers, default=_ALL[0]) + (operator != LESS))
    return start, end


def _intersect(spans: Spans, others: Spans) -> Spans:
    both = {tp: (span, others.get(tp, _ALL)) for tp, span in spans.items()}
    found = {tp: (max(one[0], two[0]), min(one[1], two[1])) for tp, (one, two) in both.items()}
    return {tp: (start, end) for tp, (start, end) in found.items() if start < end}
