"""Tables about a cluster, as Spark receives them."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, DafkaError, NotAllowedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import KnownStore, TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.testing import PATIENCE_S
from dafka_spark import metadata
from dafka_spark.cluster import connections
from dafka_spark.cluster.connections import Connect
from dafka_spark.options import SourceOptions
from dafka_spark.source.metadata_reader import MetadataReader
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import HeardOf, Serve

A = TopicPartition("t", "A")


def test_columns_are_chosen_in_any_case(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 4)
    options = SourceOptions.of({"metadata": "topics"})
    schema = metadata.full("topics")
    schema.fields = [schema["records"], schema["topic"]]
    schema.fields[0].name = "Records"
    reader = MetadataReader(schema, options, HeardOf([store]).connect)
    (task,) = reader.partitions()
    assert [row for batch in reader.read(task) for row in batch.to_pylist()] == [
        {"Records": 4, "topic": "t"}
    ]


def test_an_empty_table_and_rows_that_travel_with_their_task(serve: Serve) -> None:
    store = serve("one")
    reader = MetadataReader(
        metadata.full("topics"), SourceOptions.of({"metadata": "topics"}), HeardOf([store]).connect
    )
    (task,) = pickle.loads(pickle.dumps(reader.partitions()))
    assert sum(batch.num_rows for batch in reader.read(task)) == 0
    store.add(A, 1)
    (task,) = pickle.loads(pickle.dumps(reader.partitions()))
    store.stop()
    assert sum(batch.num_rows for batch in reader.read(task)) == 1


B = TopicPartition("t", "B")
ODD = TopicPartition("u\n", "A")


def rows(source: HeardOf | Connect, kind: str, **given: str) -> list[dict[str, Any]]:
    """Return the rows that Spark receives."""
    options = SourceOptions.of({"metadata": kind, "fetchtimeoutms": "20000", **given}).for_batch()
    connect = source.connect if isinstance(source, HeardOf) else source
    reader = MetadataReader(metadata.full(kind), options, connect)
    (task,) = reader.partitions()
    return [row for batch in reader.read(task) for row in batch.to_pylist()]


def test_partitions_combine_all_stores(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    before = dt.datetime.now(dt.UTC)
    ahead.add(A, 100, size_bytes=50)
    ahead.log.trim(A, 20)
    behind.add(A, 60, size_bytes=50)
    behind.add(ODD, 1)
    first, odd = rows(HeardOf([ahead, behind]), "partitions")
    assert (first["topic"], first["partition"]) == ("t", "A")
    assert (first["earliest"], first["end"], first["records"]) == (0, 100, 100)
    assert 80 * 50 < first["size_bytes"] < 120 * 60
    assert before <= first["first_timestamp"] <= first["last_timestamp"]
    assert sorted(first["stores"]) == ["ahead", "behind"]
    assert (odd["topic"], odd["records"], odd["stores"]) == (r"u\x0a", 1, ["behind"])


def test_a_topic_is_the_sum_of_its_partitions(serve: Serve) -> None:
    store = serve("one")
    for tp, count in ((A, 5), (B, 7), (ODD, 1)):
        store.add(tp, count)
    found = {row["topic"]: row for row in rows(HeardOf([store]), "topics")}
    partitions = rows(HeardOf([store]), "partitions")
    assert (found["t"]["partitions"], found["t"]["records"]) == (2, 12)
    assert found["t"]["size_bytes"] == sum(
        row["size_bytes"] for row in partitions if row["topic"] == "t"
    )
    assert found["t"]["first_timestamp"] <= found["t"]["last_timestamp"]
    assert found[r"u\x0a"]["records"] == 1


def test_partitions_of_c_stores_have_no_size(serve: Serve) -> None:
    store = serve("ours")
    store.add(A, 5)
    source = HeardOf([store], ["C node"])
    source.add(B, 3)
    (topic,) = rows(source, "topics")
    assert (topic["partitions"], topic["records"], topic["size_bytes"]) == (2, 8, None)
    known, unknown = rows(source, "partitions")
    assert known["size_bytes"] > 0
    assert (unknown["records"], unknown["size_bytes"], unknown["stores"]) == (3, None, [])
    assert unknown["first_timestamp"] is None
    there = {row["store"]: row for row in rows(source, "stores")}
    assert there["C node"]["state"] == "there"
    assert there["C node"]["file_bytes"] is None


def test_a_selection_narrows_every_table(serve: Serve) -> None:
    store = serve("one")
    for tp in (A, B, ODD):
        store.add(tp, 2)
    for given in (
        {"subscribe": "t"},
        {"subscribepattern": "."},
        {"assign": '{"t": ["A", "B"]}'},
    ):
        (topic,) = rows(HeardOf([store]), "topics", **given)
        assert (topic["topic"], topic["partitions"]) == ("t", 2)
    (row,) = rows(HeardOf([store]), "stores", assign='{"t": ["A"]}')
    assert (row["partitions"], row["records"]) == (1, 2)
    with pytest.raises(ConfigError, match="no store has topic 'tt'"):
        rows(HeardOf([store]), "topics", subscribe="tt")


def test_stores_report_their_files_and_missing_stores(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    store, gone = serve("one"), serve("gone")
    store.add(A, 3)
    source = HeardOf([store, gone])
    heard = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    source.away = [KnownStore("W" * 32, "tcp://h:1", int(heard.timestamp() * 1e6))]
    gone.stop()
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        found = {row["store"]: row for row in rows(source, "stores")}
    assert f"store {'W' * 32} (tcp://h:1" in caplog.text
    assert list(found) == ["gone", "one", "W" * 32]
    assert [row["state"] for row in found.values()] == ["silent", "there", "away"]
    assert found["W" * 32]["last_heard"] == heard
    assert found["W" * 32]["locations"] == ["tcp://h:1"]
    one = found["one"]
    assert (one["partitions"], one["records"], one["leases"]) == (1, 3, 0)
    assert one["file_bytes"] >= one["free_bytes"] >= 0
    assert one["locations"] == list(store.location.locations)
    assert abs(one["clock_ahead_s"]) < 1


def test_queries_and_their_lag_are_tables(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    store.add(ODD, 3)
    source = HeardOf([store])
    assert rows(source, "queries") == []
    for query, topics in (("both", ("t", ODD.topic)), ("odd\n", (ODD.topic,))):
        report = QueryProgress(query, "r", 60, topics).at({A: 1} if "t" in topics else {})
        publish([store.client()], QUERIES_TOPIC, report, timeout_s=PATIENCE_S)
    found = {row["query"]: row for row in rows(source, "queries")}
    assert {name: row["records_behind"] for name, row in found.items()} == {
        "both": 7,
        r"odd\x0a": 3,
    }
    assert found["both"]["state"] == "running"
    assert found["both"]["seconds_behind"] > 0
    assert [row["query"] for row in rows(source, "queries", subscribe="t")] == ["both"]
    first, *_ = lag = rows(source, "lag")
    assert len(lag) == 3
    assert (first["topic"], first["partition"], first["position"], first["end"]) == ("t", "A", 1, 5)
    (row,) = rows(source, "lag", assign='{"t": ["A"]}')
    assert (row["query"], row["run"], row["records_behind"]) == ("both", "r", 4)
    assert rows(source, "queries", progresstopic="__dafka.other") == []
    ended = QueryProgress("both", "r", 1e-6, ("t",), finished=True).at({A: 5})
    publish([store.client()], QUERIES_TOPIC, ended, timeout_s=PATIENCE_S)
    (row,) = rows(source, "queries", subscribe="t")
    assert (row["query"], row["state"]) == ("both", "finished")


def test_a_wrong_clock_is_reported(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("one")
    store.add(A, 1)
    source = HeardOf([store])
    rows(source, "stores")
    own_ns = time.time_ns
    served = "dafka_core.flight.server_actions.time"

    class Ahead:
        monotonic = time.monotonic

        @staticmethod
        def time_ns() -> int:
            return own_ns() + 3_600 * 10**9

    monkeypatch.setattr(served, Ahead)
    (row,) = rows(source, "stores")
    assert row["clock_ahead_s"] == pytest.approx(3_600, abs=1)


@pytest.fixture(scope="module")
def locked() -> Iterator[EmbeddedCluster]:
    """A store with keys, a topic ``flights``, a topic ``payroll`` and a query that reads it."""
    with ForkedCluster(keys=True) as running:
        for topic in ("flights", "payroll"):
            with Producer(topic, tower=running.tower, **running.key()) as producer:
                producer.publish(b"1")
        location = StoreLocation(running.stores[0], running.locations())
        report = QueryProgress("payroll query", "r", 60, ("payroll",))
        with StoreClient(location, KeyFiles(**running.key())) as client:
            publish([client], QUERIES_TOPIC, report, timeout_s=PATIENCE_S)
        running.key("analyst", ("consume",), consume=("flights",))
        yield running


def known(cluster: EmbeddedCluster, kind: str, key: str, **given: str) -> list[dict[str, Any]]:
    """The rows that the owner of a key gets."""
    options = {f"dafka.{name}": value for name, value in cluster.key(key).items()} | given
    return rows(connections.borrow_reader, kind, tower=cluster.tower, **options)


@pytest.mark.parametrize("fetch", ["auto", "mesh"])
@pytest.mark.parametrize("kind", ["topics", "partitions", "stores"])
def test_a_table_names_only_topics_that_its_key_may_consume(
    locked: EmbeddedCluster, caplog: pytest.LogCaptureFixture, kind: str, fetch: str
) -> None:
    found = known(locked, kind, "analyst", fetch=fetch)
    assert "payroll" in str(known(locked, "topics", "client", fetch=fetch))
    # A key that may report queries knows the partitions of their topic, not their names.
    assert {row.get("topic", "flights") for row in found} - {QUERIES_TOPIC} == {"flights"}
    assert "payroll" not in f"{found} {caplog.text}"
    with pytest.raises(DafkaError) as caught:
        known(locked, kind, "analyst", fetch=fetch, subscribe="payrol")
    assert "'payroll'" not in f"{caught.value} {caplog.text}"


@pytest.mark.parametrize("kind", ["queries", "lag"])
def test_reports_of_queries_need_a_key_that_may_consume_their_topic(
    locked: EmbeddedCluster, kind: str
) -> None:
    assert [row["query"] for row in known(locked, kind, "client")] == ["payroll query"]
    with pytest.raises(
        NotAllowedError, match=r"may consume 'flights', and not consume '__dafka\.queries'"
    ):
        known(locked, kind, "analyst")
