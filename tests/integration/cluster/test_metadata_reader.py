"""Tables about a cluster, as Spark receives them."""

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
from dafka_spark.options import SourceOptions
from dafka_spark.source.batch_reader import MetadataReader
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import A, B, Logged, Mesh, Patch, Serve, Served

ODD = TopicPartition("u\n", "A")
Rows = list[dict[str, Any]]


def read(query: MetadataReader, task: Any) -> Rows:
    return [row for batch in query.read(task) for row in batch.to_pylist()]


def rows(mesh: Mesh | None, kind: str, **given: str) -> Rows:
    """Return the rows that Spark receives."""
    options = SourceOptions.of({"metadata": kind, "fetchtimeoutms": "20000", **given}).for_batch()
    connect = mesh.connect if mesh else connections.borrow_reader
    query = MetadataReader(metadata.full(kind), options, connect)
    (task,) = query.partitions()
    return read(query, task)


@pytest.fixture
def one(serve: Serve) -> Served:
    return serve("one").add(A, 5, 50).add(B, 7, 50).add(ODD, 3, 50)


def test_columns_are_chosen_in_any_case_and_rows_travel_with_their_task(serve: Serve) -> None:
    store = serve("one")
    schema = metadata.full("topics")
    schema.fields = [schema["records"], schema["topic"]]
    schema.fields[0].name = "Records"
    query = MetadataReader(schema, SourceOptions.of({"metadata": "topics"}), Mesh([store]).connect)
    (task,) = pickle.loads(pickle.dumps(query.partitions()))
    assert read(query, task) == []
    store.add(A, 4)
    (task,) = pickle.loads(pickle.dumps(query.partitions()))
    store.stop()
    assert read(query, task) == [{"Records": 4, "topic": "t"}]


def test_partitions_combine_all_stores_and_topics_their_partitions(
    serve: Serve, mesh: Mesh
) -> None:
    before = dt.datetime.now(dt.UTC)
    ahead = serve("ahead").add(A, 100, size_bytes=50)
    ahead.log.trim(A, 20)
    mesh.served.append(ahead)
    first, second, odd = rows(mesh, "partitions")
    assert (first["topic"], first["partition"]) == ("t", "A")
    assert (first["earliest"], first["end"], first["records"]) == (0, 100, 100)
    assert 80 * 50 < first["size_bytes"] < 120 * 60
    assert before <= first["first_timestamp"] <= first["last_timestamp"]
    assert sorted(first["stores"]) == ["ahead", "one"]
    assert (odd["topic"], odd["records"], odd["stores"]) == (r"u\x0a", 3, ["one"])
    topic, odd = rows(mesh, "topics")
    assert (topic["topic"], topic["partitions"], topic["records"]) == ("t", 2, 107)
    assert topic["size_bytes"] == first["size_bytes"] + second["size_bytes"]
    times = [[each[f"{end}_timestamp"] for each in (first, second)] for end in ("first", "last")]
    assert [topic["first_timestamp"], topic["last_timestamp"]] == [min(times[0]), max(times[1])]
    assert (odd["topic"], odd["records"]) == (r"u\x0a", 3)


def test_partitions_of_c_stores_have_no_size(serve: Serve) -> None:
    mesh = Mesh([serve("ours").add(A, 5)], ["C node"])
    mesh.add(B, 3)
    (topic,) = rows(mesh, "topics")
    assert (topic["partitions"], topic["records"], topic["size_bytes"]) == (2, 8, None)
    known, unknown = rows(mesh, "partitions")
    assert known["size_bytes"] > 0
    assert (unknown["records"], unknown["size_bytes"], unknown["stores"]) == (3, None, [])
    assert unknown["first_timestamp"] is None
    c_node, _ = rows(mesh, "stores")
    assert (c_node["state"], c_node["file_bytes"]) == ("there", None)


def test_a_selection_narrows_every_table(mesh: Mesh) -> None:
    for given in {"subscribe": "t"}, {"subscribepattern": "."}, {"assign": '{"t": ["A", "B"]}'}:
        (topic,) = rows(mesh, "topics", **given)
        assert (topic["topic"], topic["partitions"]) == ("t", 2)
    (row,) = rows(mesh, "stores", assign='{"t": ["A"]}')
    assert (row["partitions"], row["records"]) == (1, 5)
    with pytest.raises(ConfigError, match="no store has topic 'tt'"):
        rows(mesh, "topics", subscribe="tt")


def test_stores_report_their_files_clocks_and_missing_stores(
    serve: Serve, one: Served, mesh: Mesh, logged: Logged, patch: Patch
) -> None:
    gone = serve("gone")
    mesh.served.append(gone)
    heard = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    mesh.away = [KnownStore("W" * 32, "tcp://h:1", int(heard.timestamp() * 1e6))]
    gone.stop()
    own_ns = time.time_ns
    ahead = Mock(wraps=time, time_ns=lambda: own_ns() + 3_600 * 10**9)
    patch.setattr("dafka_core.flight.server_requests.time", ahead)
    silent, there, away = rows(mesh, "stores")
    assert f"store {'W' * 32} (tcp://h:1" in logged.text
    assert [silent["store"], there["store"], away["store"]] == ["gone", "one", "W" * 32]
    assert [silent["state"], there["state"], away["state"]] == ["silent", "there", "away"]
    assert (away["last_heard"], away["locations"]) == (heard, ["tcp://h:1"])
    assert (there["partitions"], there["records"], there["leases"]) == (3, 15, 0)
    assert there["file_bytes"] >= there["free_bytes"] >= 0
    assert there["locations"] == list(one.location.locations)
    assert there["clock_ahead_s"] == pytest.approx(3_600, abs=1)
    patch.undo()
    _, there, _ = rows(mesh, "stores")
    assert abs(there["clock_ahead_s"]) < 1


def test_queries_and_their_lag_are_tables(one: Served, mesh: Mesh) -> None:
    assert rows(mesh, "queries") == []

    def report(query: str, *topics: str, every_s: float = 60, finished: bool = False) -> None:
        given = QueryProgress(query, "r", every_s, topics, finished=finished)
        positions = {A: 1, B: 7} if "t" in topics else {}
        publish([one.client()], QUERIES_TOPIC, given.at(positions), timeout_s=PATIENCE_S)

    report("both", "t", ODD.topic)
    report("odd\n", ODD.topic)
    both, odd = rows(mesh, "queries")
    assert (both["query"], both["state"], both["records_behind"]) == ("both", "running", 7)
    assert (odd["query"], odd["records_behind"]) == (r"odd\x0a", 3)
    assert both["seconds_behind"] > 0
    assert [row["query"] for row in rows(mesh, "queries", subscribe="t")] == ["both"]
    first, *_ = lag = rows(mesh, "lag")
    assert len(lag) == 4
    assert (first["topic"], first["partition"], first["position"], first["end"]) == ("t", "A", 1, 5)
    (row,) = rows(mesh, "lag", assign='{"t": ["A"]}')
    assert (row["query"], row["run"], row["records_behind"]) == ("both", "r", 4)
    assert rows(mesh, "queries", progresstopic="__dafka.other") == []
    report("both", "t", every_s=1e-6, finished=True)
    (row,) = rows(mesh, "queries", subscribe="t")
    assert (row["query"], row["state"]) == ("both", "finished")


def test_tables_over_the_mesh_ask_stores_for_what_only_they_know(one: Served, mesh: Mesh) -> None:
    """Option ``fetch`` decides how records are read."""
    report = QueryProgress("q", "r", 60, ("t",))
    publish([one.client()], QUERIES_TOPIC, report, timeout_s=PATIENCE_S)
    (query,) = rows(mesh, "queries", fetch="mesh")
    assert (query["query"], query["records_behind"]) == ("q", 12)
    (store,) = rows(mesh, "stores", fetch="mesh")
    assert (store["state"], store["records"]) == ("there", None)
    assert store["file_bytes"] > 0


# -- keys ------------------------------------------------------------------------------------------


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
    return rows(None, kind, tower=cluster.tower, **options)


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
