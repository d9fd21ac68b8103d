"""Tables about a cluster, as Spark receives them."""

from __future__ import annotations

import datetime as dt
import pickle
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.config.node_options import KeyFiles
from dafka_core.errors import ConfigError, DafkaError, NotAllowedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import KnownStore, TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.security.key_files import read_public
from dafka_core.testing import PATIENCE_S
from dafka_spark import metadata
from dafka_spark.cluster import connections
from dafka_spark.cluster.connections import Connect
from dafka_spark.options import SourceOptions
from dafka_spark.source.metadata_reader import MetadataReader
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import HeardOf, Serve, Served

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
ODD = TopicPartition("u\n", "A")
Rows = list[dict[str, Any]]


def read(query: MetadataReader, task: Any) -> Rows:
    return [row for batch in query.read(task) for row in batch.to_pylist()]


def rows(source: HeardOf | Connect, kind: str, **given: str) -> Rows:
    """Return the rows that Spark receives."""
    options = SourceOptions.of({"metadata": kind, "fetchtimeoutms": "20000", **given}).for_batch()
    connect = source.connect if isinstance(source, HeardOf) else source
    query = MetadataReader(metadata.full(kind), options, connect)
    (task,) = query.partitions()
    return read(query, task)


@pytest.fixture
def one(serve: Serve) -> Served:
    store = serve("one")
    for tp, count in ((A, 5), (B, 7), (ODD, 3)):
        store.add(tp, count, size_bytes=50)
    return store


def test_columns_are_chosen_in_any_case_and_rows_travel_with_their_task(serve: Serve) -> None:
    store = serve("one")
    schema = metadata.full("topics")
    schema.fields = [schema["records"], schema["topic"]]
    schema.fields[0].name = "Records"
    options = SourceOptions.of({"metadata": "topics"})
    query = MetadataReader(schema, options, HeardOf([store]).connect)
    (task,) = pickle.loads(pickle.dumps(query.partitions()))
    assert read(query, task) == []
    store.add(A, 4)
    (task,) = pickle.loads(pickle.dumps(query.partitions()))
    store.stop()
    assert read(query, task) == [{"Records": 4, "topic": "t"}]


def test_partitions_combine_all_stores(serve: Serve, one: Served) -> None:
    before = dt.datetime.now(dt.UTC)
    ahead = serve("ahead")
    ahead.add(A, 100, size_bytes=50)
    ahead.log.trim(A, 20)
    first, *_, odd = rows(HeardOf([one, ahead]), "partitions")
    assert (first["topic"], first["partition"]) == ("t", "A")
    assert (first["earliest"], first["end"], first["records"]) == (0, 100, 100)
    assert 80 * 50 < first["size_bytes"] < 120 * 60
    assert before <= first["first_timestamp"] <= first["last_timestamp"]
    assert sorted(first["stores"]) == ["ahead", "one"]
    assert (odd["topic"], odd["records"], odd["stores"]) == (r"u\x0a", 3, ["one"])


def test_a_topic_is_the_sum_of_its_partitions(one: Served) -> None:
    topic, odd = rows(HeardOf([one]), "topics")
    first, second, _ = rows(HeardOf([one]), "partitions")
    assert (topic["topic"], topic["partitions"], topic["records"]) == ("t", 2, 12)
    assert topic["size_bytes"] == first["size_bytes"] + second["size_bytes"]
    assert topic["first_timestamp"] == first["first_timestamp"]
    assert topic["last_timestamp"] == second["last_timestamp"]
    assert (odd["topic"], odd["records"]) == (r"u\x0a", 3)


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
    c_node, _ = rows(source, "stores")
    assert (c_node["state"], c_node["file_bytes"]) == ("there", None)


def test_a_selection_narrows_every_table(one: Served) -> None:
    source = HeardOf([one])
    for option, value in (
        ("subscribe", "t"),
        ("subscribepattern", "."),
        ("assign", '{"t": ["A", "B"]}'),
    ):
        (topic,) = rows(source, "topics", **{option: value})
        assert (topic["topic"], topic["partitions"]) == ("t", 2)
    (row,) = rows(source, "stores", assign='{"t": ["A"]}')
    assert (row["partitions"], row["records"]) == (1, 5)
    with pytest.raises(ConfigError, match="no store has topic 'tt'"):
        rows(source, "topics", subscribe="tt")


def test_stores_report_their_files_and_missing_stores(
    serve: Serve, one: Served, caplog: pytest.LogCaptureFixture
) -> None:
    gone = serve("gone")
    source = HeardOf([one, gone])
    heard = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    source.away = [KnownStore("W" * 32, "tcp://h:1", int(heard.timestamp() * 1e6))]
    gone.stop()
    silent, there, away = rows(source, "stores")
    assert f"store {'W' * 32} (tcp://h:1" in caplog.text
    assert [silent["store"], there["store"], away["store"]] == ["gone", "one", "W" * 32]
    assert [silent["state"], there["state"], away["state"]] == ["silent", "there", "away"]
    assert (away["last_heard"], away["locations"]) == (heard, ["tcp://h:1"])
    assert (there["partitions"], there["records"], there["leases"]) == (3, 15, 0)
    assert there["file_bytes"] >= there["free_bytes"] >= 0
    assert there["locations"] == list(one.location.locations)
    assert abs(there["clock_ahead_s"]) < 1


def test_queries_and_their_lag_are_tables(one: Served) -> None:
    source = HeardOf([one])
    assert rows(source, "queries") == []

    def report(query: str, *topics: str, every_s: float = 60, finished: bool = False) -> None:
        given = QueryProgress(query, "r", every_s, topics, finished=finished)
        positions = {A: 1, B: 7} if "t" in topics else {}
        publish([one.client()], QUERIES_TOPIC, given.at(positions), timeout_s=PATIENCE_S)

    report("both", "t", ODD.topic)
    report("odd\n", ODD.topic)
    both, odd = rows(source, "queries")
    assert (both["query"], both["state"], both["records_behind"]) == ("both", "running", 7)
    assert (odd["query"], odd["records_behind"]) == (r"odd\x0a", 3)
    assert both["seconds_behind"] > 0
    assert [row["query"] for row in rows(source, "queries", subscribe="t")] == ["both"]
    first, *_ = lag = rows(source, "lag")
    assert len(lag) == 4
    assert (first["topic"], first["partition"], first["position"], first["end"]) == ("t", "A", 1, 5)
    (row,) = rows(source, "lag", assign='{"t": ["A"]}')
    assert (row["query"], row["run"], row["records_behind"]) == ("both", "r", 4)
    assert rows(source, "queries", progresstopic="__dafka.other") == []
    report("both", "t", every_s=1e-6, finished=True)
    (row,) = rows(source, "queries", subscribe="t")
    assert (row["query"], row["state"]) == ("both", "finished")


def test_a_wrong_clock_is_reported(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    own_ns = time.time_ns
    ahead = Mock(wraps=time, time_ns=lambda: own_ns() + 3_600 * 10**9)
    monkeypatch.setattr("dafka_core.flight.server_actions.time", ahead)
    (row,) = rows(HeardOf([one]), "stores")
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
            owner = read_public(running.keys / "client.key").permissions
            publish([client], QUERIES_TOPIC, report, owner=owner, timeout_s=PATIENCE_S)
        running.key("analyst", ("consume",), consume=("flights",))
        yield running


def known(cluster: EmbeddedCluster, kind: str, key: str, **given: str) -> Rows:
    """Return the rows that the owner of a key gets."""
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
    error = r"may consume 'flights', and not consume '__dafka\.queries'"
    with pytest.raises(NotAllowedError, match=error):
        known(locked, kind, "analyst")
