"""The reader of option ``metadata``: tables about topics, partitions, stores and queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from dafka_core.flight.requests import PartitionFacts, furthest_facts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import escape
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_lag import PartitionLag, QueryLag, query_lags
from dafka_spark import metadata
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.cluster.worker_process import warn_if_reused
from dafka_spark.option_types import EVERY_TOPIC
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from dafka_spark.source.partition_reader import QueryReader
from dafka_spark.source.progress_publisher import described
from dafka_spark.tracebacks import hide_frames

Columns = Mapping[str, pa.Array]

MOST_ASKED_BY_NAME: Final = 10
"""Up to this number of topics each is asked for by name; else a store lists all its partitions."""

_TIME: Final = pa.timestamp("us", "UTC")


def topics(options: SourceOptions, connect: Connect) -> Columns:
    """Return a row for each topic: the totals of its partitions."""
    rows = pa.table({**partitions(options, connect)})
    totals = [
        ("partition", "count"),
        ("records", "sum"),
        ("size_bytes", "sum", pc.ScalarAggregateOptions(skip_nulls=False)),
        ("first_timestamp", "min"),
        ("last_timestamp", "max"),
    ]
    found = rows.group_by("topic", use_threads=False).aggregate(totals)
    columns = found.select(["topic", *(f"{name}_{total}" for name, total, *_ in totals)])
    return dict(zip(metadata.COLUMNS[metadata.TOPICS], columns, strict=True))


def partitions(options: SourceOptions, connect: Connect) -> Columns:
    """Return a row for each partition, by name."""
    snapshot = _snapshot(options, connect)
    facts = _facts(options, connect)
    heads = snapshot.heads
    known = [facts.get(tp) for tp in heads]
    ends = pa.array([each.end for each in heads.values()], pa.int64())
    firsts = pa.array([each.earliest for each in heads.values()], pa.int64())
    stores = [[held.location.store for held in snapshot.holders.get(tp, ())] for tp in heads]
    return {
        "topic": pa.array([escape(tp.topic) for tp in heads], pa.string()),
        "partition": pa.array([escape(tp.partition) for tp in heads], pa.string()),
        "earliest": firsts,
        "end": ends,
        "records": pc.subtract(ends, firsts),
        "size_bytes": pa.array([each and each.bytes for each in known], pa.int64()),
        "first_timestamp": pa.array([each and each.first_time_us for each in known], _TIME),
        "last_timestamp": pa.array([each and each.last_time_us for each in known], _TIME),
        "stores": pa.array(stores, pa.list_(pa.string())),
    }


def stores(options: SourceOptions, connect: Connect) -> Columns:
    """Return a row for each known store: the reachable ones, then those that are away."""
    snapshot = _snapshot(options, connect)
    answers = {
        location.store: (location, facts)
        for location, facts in OffsetReader(options, connect).query_stores(_ask_facts)
    }
    with connect(options.mesh_address) as reader:
        there, endpoints = reader.stores(), reader.endpoints()
        away = reader.missing_stores(timeout_s=timing.DISCOVERY_TIMEOUT_S)
    held: dict[str, list[int]] = {}
    for holders in snapshot.holders.values():
        for each in holders:
            held.setdefault(each.location.store, []).append(each.end - each.earliest)
    rows: list[dict[str, Any]] = []
    for name in sorted({*there} - {each.store for each in away}):
        row: dict[str, Any] = {"store": escape(name), "state": "there"}
        row["locations"] = endpoints.get(name, ())
        if name in answers:
            location, facts = answers[name]
            counts = held.get(name, [])
            row |= {"locations": location.locations, "partitions": len(counts)}
            row |= {"records": sum(counts), **facts}
        elif name in endpoints:
            row["state"] = "silent"
        rows.append(row)
    for gone in away:
        row = {"store": escape(gone.store), "state": "away", "last_heard": gone.heard_us or None}
        rows.append({**row, "locations": [gone.endpoint] if gone.endpoint else []})
    return _by_column(metadata.STORES, rows)


def queries(options: SourceOptions, connect: Connect) -> Columns:
    """Return a row for each run that reports and reads a selected partition."""
    rows = [each._asdict() for each, _ in _lags(options, connect)]
    return _by_column(metadata.QUERIES, rows)


def lag(options: SourceOptions, connect: Connect) -> Columns:
    """Return a row for each run and each selected partition that it reads."""
    found = _lags(options, connect)
    rows = [{**lag._asdict(), "run": query.run} for query, lags in found for lag in lags]
    return _by_column(metadata.LAG, rows)


def _lags(
    options: SourceOptions, connect: Connect
) -> list[tuple[QueryLag, Sequence[PartitionLag]]]:
    """Return each run with its selected partitions that stores with Flight hold."""
    _snapshot(options, connect)
    found = OffsetReader(options, connect).query_stores(lambda client: client.location)
    with ExitStack() as lent:
        borrow, keys = connections.borrow_client, options.keys
        clients = [lent.enter_context(borrow(each, keys)) for each, _ in found]
        queries = query_lags(clients, options.progress_topic, timeout_s=options.fetch_timeout_s)
    has = options.selection.has
    narrowed = [
        (query, [each for each in query.lags if has(TopicPartition(each.topic, each.partition))])
        for query in queries
    ]
    everything = options.selection.pattern == EVERY_TOPIC
    return [(query, lags) for query, lags in narrowed if lags or everything]


def _snapshot(options: SourceOptions, connect: Connect) -> OffsetsSnapshot:
    offsets = OffsetReader(options, connect)
    offsets.check_stores()
    snapshot = offsets.snapshot(thorough=True)
    offsets.check_found(snapshot.heads)
    return snapshot


def _facts(options: SourceOptions, connect: Connect) -> dict[TopicPartition, PartitionFacts]:
    asked = options.selection.asked
    names = asked if asked is not None and len(asked) <= MOST_ASKED_BY_NAME else [None]

    def ask(client: StoreClient) -> list[PartitionFacts]:
        timeout_s = options.fetch_timeout_s
        return [each for name in names for each in client.facts(name, timeout_s=timeout_s)]

    answers = OffsetReader(options, connect).query_stores(ask)
    return furthest_facts(each for _, facts in answers for each in facts)


def _ask_facts(client: StoreClient) -> dict[str, Any]:
    """Return the columns that a store alone knows; its clock is compared with this machine's."""
    space = asdict(client.space(timeout_s=timing.REQUEST_TIMEOUT_S))
    asked_us = time.time_ns() // 1_000
    clock_us = client.clock_us(timeout_s=timing.REQUEST_TIMEOUT_S)
    ahead_us = clock_us - (asked_us + time.time_ns() // 1_000) / 2
    return {**space, "clock_ahead_s": ahead_us / 1e6}


def _by_column(kind: str, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the rows as columns; a missing member is null."""
    columns = {name: [row.get(name) for row in rows] for name in metadata.COLUMNS[kind]}
    for name in {"query", "topic", "partition"} & columns.keys():
        columns[name] = [escape(str(each)) for each in columns[name]]
    return {
        name: pa.array(column, _TIME if name == "last_heard" else None)
        for name, column in columns.items()
    }


TABLES: Final[Mapping[str, Callable[[SourceOptions, Connect], Columns]]] = {
    metadata.TOPICS: topics,
    metadata.PARTITIONS: partitions,
    metadata.STORES: stores,
    metadata.QUERIES: queries,
    metadata.LAG: lag,
}


@dataclass
class MetadataRows(InputPartition):
    """All rows, as an Arrow stream."""

    packed: bytes


class MetadataReader(QueryReader, DataSourceReader):
    """Makes the table when the query is planned."""

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """Return one task with all rows, in the columns of the query.

        Raises:
            ConfigError: a named topic or partition does not exist, or fewer stores than
                ``minStores`` are reachable.
            NoStoreError: no store answered within ``fetchTimeoutMs``.
        """
        columns = TABLES[self._options.metadata](self._options, self._connect)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [columns[field.name.lower()].cast(field.type) for field in schema]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return [MetadataRows(sink.getvalue().to_pybytes())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        warn_if_reused(self._planned_ns, described(self._options))
        assert isinstance(partition, MetadataRows)
        yield from pa.ipc.open_stream(partition.packed)
