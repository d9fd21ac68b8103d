"""Readers of batch queries: records, and with option ``metadata`` tables about the cluster.

Option ``where`` narrows the ranges of records. A narrowed range includes every record that matches,
and perhaps others: the sources of records apply the whole condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from dafka_core.errors import ConfigError
from dafka_core.flight.requests import furthest_facts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import escape
from dafka_core.model.positions import AT_EARLIEST
from dafka_core.model.records import TopicPartition
from dafka_core.model.where import AT_LEAST, AT_MOST, EQUAL, GREATER, IN, IS_NULL, LESS, Comparison
from dafka_core.queries.query_progress import PartitionLag, QueryLag, query_lags
from dafka_spark import metadata
from dafka_spark.cluster import timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.option_types import EVERY_TOPIC
from dafka_spark.options import SourceOptions
from dafka_spark.python_workers import hide_frames, warn_if_reused
from dafka_spark.source.offset_ranges import OffsetRange, plan_input_partitions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from dafka_spark.source.partition_reader import PartitionReader, QueryReader
from dafka_spark.source.progress_publisher import described

# -- records ---------------------------------------------------------------------------------------

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
        bounds = options.starting(AT_EARLIEST), options.ending()
        start, end = (offsets.resolve(each, snapshot).offsets for each in bounds)
        for each in bounds:
            offsets.check_found(snapshot.heads, each)
        for tp in start:
            if start[tp] > end[tp]:
                why = f"{tp} starts after it, at {start[tp]}"
                raise ConfigError(bounds[1].option, end[tp], why)
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
    since_us, before_us = _bounds(conditions, "timestamp")
    if since_us >= before_us:
        return {}
    if since_us != _ALL[0]:
        starts = reader.bounds_of_time(since_us, spans, snapshot, after_all=False)
        if not starts:
            return spans  # no store answers
        spans = _intersect(spans, {tp: (start, _ALL[1]) for tp, start in starts.items()})
    if before_us != _ALL[1]:
        ends = reader.bounds_of_time(before_us, spans, snapshot, after_all=True)
        spans = _intersect(spans, {tp: (_ALL[0], end) for tp, end in ends.items()})
    return spans


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


# -- tables about the cluster ----------------------------------------------------------------------

Columns = Mapping[str, pa.Array]

_TIME: Final = pa.timestamp("us", "UTC")
_TOTALS: Final = [
    ("partition", "count"),
    ("records", "sum"),
    ("size_bytes", "sum", pc.ScalarAggregateOptions(skip_nulls=False)),
    ("first_timestamp", "min"),
    ("last_timestamp", "max"),
]


class ClusterTables:
    """The tables about one snapshot of the stores; each method makes the table of its name."""

    def __init__(self, options: SourceOptions, connect: Connect) -> None:
        self._options = options
        self._connect = connect
        self._offsets = OffsetReader(options, connect)
        self._offsets.check_stores()
        self._snapshot = self._offsets.snapshot(thorough=True)
        self._offsets.check_found(self._snapshot.heads)

    def topics(self) -> Columns:
        """Return a row for each topic: the totals of its partitions."""
        rows = pa.table({**self.partitions()})
        found = rows.group_by("topic", use_threads=False).aggregate(_TOTALS)
        columns = found.select(["topic", *(f"{name}_{total}" for name, total, *_ in _TOTALS)])
        return dict(zip(metadata.COLUMNS[metadata.TOPICS], columns, strict=True))

    def partitions(self) -> Columns:
        """Return a row for each partition, by name."""
        heads = self._snapshot.heads
        topics: Sequence[str | None] = self._options.selection.asked or [None]
        timeout_s = self._options.fetch_timeout_s

        answers = self._offsets.query_stores(
            lambda client: [
                fact for each in topics for fact in client.facts(each, timeout_s=timeout_s)
            ]
        )
        facts = furthest_facts(each for _, answer in answers for each in answer)
        known = [facts.get(tp) for tp in heads]
        ends = pa.array([each.end for each in heads.values()], pa.int64())
        firsts = pa.array([each.earliest for each in heads.values()], pa.int64())
        stores = [[held.location.store for held in self._snapshot.holders(tp)] for tp in heads]
        return {
            "topic": pa.array([escape(tp.topic) for tp in heads], pa.string()),
            "partition": pa.array([escape(tp.partition) for tp in heads], pa.string()),
            "earliest": firsts,
            "end": ends,
            "records": pc.subtract(ends, firsts),
            "size_bytes": pa.array([each and each.size_bytes for each in known], pa.int64()),
            "first_timestamp": pa.array([each and each.first_time_us for each in known], _TIME),
            "last_timestamp": pa.array([each and each.last_time_us for each in known], _TIME),
            "stores": pa.array(stores, pa.list_(pa.string())),
        }

    def stores(self) -> Columns:
        """Return a row for each known store: the reachable ones, then those that are away."""
        answers = {at.store: (at, facts) for at, facts in self._offsets.query_stores(_store_facts)}
        held = {at.store: heads.values() for at, heads in self._snapshot.answers}
        with self._connect(self._options.mesh_address) as reader:
            endpoints, reachable = reader.endpoints(), set(reader.stores())
            away = reader.missing_stores(timeout_s=timing.DISCOVERY_TIMEOUT_S)
        rows: list[dict[str, Any]] = []
        for name in sorted(reachable - {each.store for each in away}):
            row: dict[str, Any] = {"store": escape(name), "state": "there"}
            if name in answers:
                location, facts = answers[name]
                row |= {"locations": location.locations, **facts}
                if (infos := held.get(name)) is not None:  # null with fetch = mesh
                    row["partitions"] = len(infos)
                    row["records"] = sum(each.end - each.earliest for each in infos)
            elif name in endpoints:
                row |= {"locations": endpoints[name], "state": "silent"}
            rows.append({"locations": (), **row})
        for gone in away:
            row = {"store": escape(gone.store), "state": "away"}
            row |= {"last_heard": gone.seen_us or None}
            rows.append({**row, "locations": [gone.endpoint] if gone.endpoint else []})
        return _by_column(metadata.STORES, rows)

    def queries(self) -> Columns:
        """Return a row for each run that reports and reads a selected partition."""
        return _by_column(metadata.QUERIES, [each._asdict() for each, _ in self._lags()])

    def lag(self) -> Columns:
        """Return a row for each run and each selected partition that it reads."""
        rows = [{**lag._asdict(), "run": each.run} for each, lags in self._lags() for lag in lags]
        return _by_column(metadata.LAG, rows)

    def _lags(self) -> list[tuple[QueryLag, Sequence[PartitionLag]]]:
        """Return each run with its selected partitions that stores with Flight hold."""
        topic, timeout_s = self._options.progress_topic, self._options.fetch_timeout_s
        with self._offsets.clients() as clients:
            queries = query_lags(clients, topic, timeout_s=timeout_s)
        selection = self._options.selection
        narrowed = [
            (each, [lag for lag in each.lags if selection.has(TopicPartition(*lag[1:3]))])
            for each in queries
        ]
        return [(each, lags) for each, lags in narrowed if lags or selection.pattern == EVERY_TOPIC]


def _store_facts(client: StoreClient) -> dict[str, Any]:
    """Return the columns that a store alone knows; its clock is compared with this machine's."""
    space = asdict(client.space(timeout_s=timing.REQUEST_TIMEOUT_S))
    began_us = time.time_ns() // 1_000
    clock_us = client.clock_us(timeout_s=timing.REQUEST_TIMEOUT_S)
    ahead_us = clock_us - (began_us + time.time_ns() // 1_000) / 2
    return {**space, "clock_ahead_s": ahead_us / 1e6}


def _by_column(kind: str, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the rows as columns; a missing member is null."""
    columns = {name: [row.get(name) for row in rows] for name in metadata.COLUMNS[kind]}
    for name in {"query", "topic", "partition"} & columns.keys():
        columns[name] = [escape(str(each)) for each in columns[name]]
    types = {"last_heard": _TIME}
    return {name: pa.array(each, types.get(name)) for name, each in columns.items()}


@dataclass
class MetadataRows(InputPartition):
    """All rows, in the columns of the query."""

    table: pa.Table


class MetadataReader(QueryReader, DataSourceReader):
    """Makes the table when the query is planned."""

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """Return one task with all rows, in the columns of the query."""
        tables = ClusterTables(self._options, self._connect)
        make: Callable[[], Columns] = getattr(tables, self._options.metadata)
        columns = make()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [columns[field.name.lower()].cast(field.type) for field in schema]
        return [MetadataRows(pa.Table.from_arrays(arrays, schema=schema))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        warn_if_reused(self._planned_ns, described(self._options))
        assert isinstance(partition, MetadataRows)
        yield from partition.table.to_batches()
