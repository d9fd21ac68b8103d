"""The reader of option ``metadata``: tables about topics, partitions and stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from dafka_core.flight.requests import PartitionFacts, SpaceUsed, furthest_facts
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
from dafka_spark.source.offset_reader import (
    OffsetsSnapshot,
    ask_known,
    check_found,
    check_stores,
    fetch_latest_offsets,
)
from dafka_spark.source.partition_reader import QueryReader
from dafka_spark.source.progress_publisher import described
from dafka_spark.tracebacks import hide_frames

Columns = Mapping[str, pa.Array]

MOST_ASKED_BY_NAME: Final = 10
"""Topics that are asked for one by one; of more, a store lists all that it has."""

_TIME: Final = pa.timestamp("us", "UTC")


def topics(options: SourceOptions, connect: Connect) -> Columns:
    """A row for each topic: what its partitions have together."""
    rows = pa.table({**partitions(options, connect)})
    known = pc.ScalarAggregateOptions(skip_nulls=False)
    found = rows.group_by("topic", use_threads=False).aggregate(
        [
            ("partition", "count"),
            ("records", "sum"),
            ("size_bytes", "sum", known),
            ("first_timestamp", "min"),
            ("last_timestamp", "max"),
        ]
    )
    return {
        "topic": found["topic"],
        "partitions": found["partition_count"],
        "records": found["records_sum"],
        "size_bytes": found["size_bytes_sum"],
        "first_timestamp": found["first_timestamp_min"],
        "last_timestamp": found["last_timestamp_max"],
    }


def partitions(options: SourceOptions, connect: Connect) -> Columns:
    """A row for each partition, in the order of their names."""
    snapshot = _look(options, connect)
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


class _StoreFacts(NamedTuple):
    """What a store says of itself."""

    space: SpaceUsed | None
    clock_ahead_s: float | None


def stores(options: SourceOptions, connect: Connect) -> Columns:
    """A row for each store that is known: those that are there, then those that are away."""
    snapshot = _look(options, connect)
    said = {
        location.store: (location, facts)
        for location, facts in ask_known(options, connect, _ask_of_itself)
    }
    with connect(options.mesh_address) as reader:
        there, endpoints = reader.stores(), reader.endpoints()
        away = reader.missing_stores(timeout_s=timing.FIND_S)
    held: dict[str, list[int]] = {}
    for holders in snapshot.holders.values():
        for each in holders:
            held.setdefault(each.location.store, []).append(each.end - each.earliest)
    rows: list[dict[str, Any]] = []
    for name in sorted({*there} - {each.store for each in away}):
        is_silent = name in endpoints and name not in said
        location, facts = said.get(name, (None, None))
        row: dict[str, Any] = {"store": escape(name), "state": "silent" if is_silent else "there"}
        row["locations"] = location.locations if location else endpoints.get(name, ())
        if facts is not None:
            row["partitions"], row["records"] = len(held.get(name, ())), sum(held.get(name, ()))
            row["clock_ahead_s"] = facts.clock_ahead_s
            for field in SpaceUsed.__struct_fields__ if facts.space else ():
                row[field] = getattr(facts.space, field)
        rows.append(row)
    for gone in away:
        row = {"store": escape(gone.store), "state": "away", "last_heard": gone.heard_us or None}
        rows.append({**row, "locations": [gone.endpoint] if gone.endpoint else []})
    return _by_column(metadata.STORES, rows)


def queries(options: SourceOptions, connect: Connect) -> Columns:
    """A row for each query that reports, and reads some of what is selected."""
    rows = [each._asdict() for each, _ in _lags(options, connect)]
    return _by_column(metadata.QUERIES, rows)


def lag(options: SourceOptions, connect: Connect) -> Columns:
    """A row for each query and each partition that it reads, of those that are selected."""
    rows = [
        {**lag._asdict(), "run": query.run}
        for query, lags in _lags(options, connect)
        for lag in lags
    ]
    return _by_column(metadata.LAG, rows)


def _lags(
    options: SourceOptions, connect: Connect
) -> list[tuple[QueryLag, Sequence[PartitionLag]]]:
    """The queries, each with its partitions that are selected; of no store without Flight."""
    _look(options, connect)
    found = ask_known(options, connect, lambda client: client.location)
    with ExitStack() as lent:
        lend, keys = connections.lend_client, options.keys
        clients = [lent.enter_context(lend(each, keys)) for each, _ in found]
        queries = query_lags(clients, options.progress_topic, timeout_s=options.fetch_timeout_s)
    has = options.selection.has
    narrowed = [
        (query, [each for each in query.lags if has(TopicPartition(each.topic, each.partition))])
        for query in queries
    ]
    everything = options.selection.pattern == EVERY_TOPIC
    return [(query, lags) for query, lags in narrowed if lags or everything]


def _look(options: SourceOptions, connect: Connect) -> OffsetsSnapshot:
    check_stores(options, connect)
    snapshot = fetch_latest_offsets(options, connect, thorough=True)
    check_found(options, snapshot.heads, connect)
    return snapshot


def _facts(options: SourceOptions, connect: Connect) -> dict[TopicPartition, PartitionFacts]:
    asked = options.selection.asked
    names = asked if asked is not None and len(asked) <= MOST_ASKED_BY_NAME else [None]

    def ask(client: StoreClient) -> list[PartitionFacts]:
        timeout_s = options.fetch_timeout_s
        return [each for name in names for each in client.facts(name, timeout_s=timeout_s)]

    answers = ask_known(options, connect, ask)
    return furthest_facts(each for _, facts in answers for each in facts)


def _ask_of_itself(client: StoreClient) -> _StoreFacts:
    space = client.space(timeout_s=timing.ANSWER_S)
    asked_us = time.time_ns() // 1_000
    clock_us = client.clock_us(timeout_s=timing.ANSWER_S)
    return _StoreFacts(space, (clock_us - (asked_us + time.time_ns() // 1_000) / 2) / 1e6)


def _by_column(kind: str, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Few rows; what one has not is null."""
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
    """All rows, as a stream of Arrow's."""

    packed: bytes


class MetadataReader(QueryReader, DataSourceReader):
    """Reads what is known of topics and stores when the query is planned."""

    @hide_frames
    def partitions(self) -> list[InputPartition]:
        """One task with the rows, in the columns that were asked for.

        Raises:
            ConfigError: no store has a topic or partition that is named, or there are fewer
                stores than ``minStores``.
            NoStoreError: no store was heard of within ``fetchTimeoutMs``.
        """
        columns = TABLES[self._options.metadata](self._options, self._connect)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [columns[field.name.lower()].cast(field.type) for field in schema]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return [MetadataRows(sink.getvalue().to_pybytes())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows."""
        warn_if_reused(self._planned_ns, described(self._options))
        assert isinstance(partition, MetadataRows)
        yield from pa.ipc.open_stream(partition.packed)
