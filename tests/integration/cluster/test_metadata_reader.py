"""How tables of what is known of a cluster reach Spark."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import time
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import KnownStore, TopicPartition
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.testing import PATIENCE_S
from dafka_spark import metadata
from dafka_spark.options import SourceOptions
from dafka_spark.source.metadata_reader import MetadataReader
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


def test_nothing_is_an_empty_table_and_rows_travel_with_their_task(serve: Serve) -> None:
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


def rows(source: HeardOf, kind: str, **given: str) -> list[dict[str, Any]]:
    """What Spark is given, by the way that it goes."""
    options = SourceOptions.of({"metadata": kind, "fetchtimeoutms": "20000", **given}).for_batch()
    reader = MetadataReader(metadata.full(kind), options, source.connect)
    (task,) = reader.partitions()
    return [row for batch in reader.read(task) for row in batch.to_pylist()]


def test_partitions_have_what_all_stores_say_together(serve: Serve) -> None:
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


def test_what_only_c_stores_have_is_of_no_known_size(serve: Serve) -> None:
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


def test_stores_say_what_they_take_and_which_are_away(
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


def test_a_wrong_clock_is_seen(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
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
