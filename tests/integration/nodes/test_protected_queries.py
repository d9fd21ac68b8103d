"""How far protected queries are, by their reports in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka_core import EmbeddedCluster, Producer, Store
from dafka_core.names import QUERIES_TOPIC
from dafka_core.nodes import retention_thread
from dafka_core.nodes.protected_queries import ProtectedQueries
from dafka_core.queries.query_progress import QueryProgress, partition_of
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.retention import Unread
from dafka_core.testing import wait_until

A, B, C = (TopicPartition("flights", name * 32) for name in "ABC")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as opened:
        yield opened


def report(query: str, run: str, *topics: str, **positions: int) -> bytes:
    at = {TopicPartition("flights", name * 32): offset for name, offset in positions.items()}
    return QueryProgress(query, run, 60, topics).at(at).packed()


def say(log: Log, query: str, *contents: bytes) -> None:
    tp = partition_of(query)
    log.append([RecordBatch.of(tp, log.end(tp), contents)])


def unread(queries: ProtectedQueries) -> list[tuple[int, str] | None]:
    queries.look()
    return [queries.unread(tp) for tp in (A, B, C)]


def test_the_query_that_is_furthest_behind_counts(log: Log) -> None:
    queries = ProtectedQueries(log, ["*"])
    assert unread(queries) == [None] * 3
    say(log, "hourly", report("hourly", "R1", A=5, B=7), report("hourly", "R1", A=6, B=9))
    say(log, "daily", report("daily", "R1", B=3))
    assert unread(queries) == [Unread(6, "hourly"), Unread(3, "daily"), None]
    # Of a topic that a query reads, it has read nothing of what it has not said.
    say(log, "daily", report("daily", "R1", "flights", B=8))
    assert unread(queries) == [Unread(0, "daily"), Unread(8, "daily"), Unread(0, "daily")]


def test_a_run_that_was_followed_does_not_count(log: Log) -> None:
    queries = ProtectedQueries(log, ["*"])
    say(log, "q", report("q", "R1", A=5), report("q", "R2", A=9))
    assert unread(queries)[0] == Unread(9, "q")
    # Two that go on at once: the one that is behind.
    say(log, "q", report("q", "R3", A=2), report("q", "R2", A=11), report("q", "R3", A=4))
    assert unread(queries)[0] == Unread(4, "q")


def test_what_is_no_report_is_passed_over(log: Log) -> None:
    queries = ProtectedQueries(log, ["*"])
    say(log, "q", report("q", "R1", A=5), b"none", report("other", "R1", A=1))
    assert unread(queries)[0] == Unread(5, "q")


def test_only_those_that_are_named_are_waited_for(log: Log) -> None:
    queries = ProtectedQueries(log, ["hour*", "daily"])
    say(log, "weekly", report("weekly", "R1", A=1))
    # One that is named in full, and has never said a word, has read nothing.
    assert unread(queries) == [Unread(0, "daily")] * 3
    say(log, "daily", report("daily", "R1", A=7))
    assert unread(queries) == [Unread(7, "daily"), None, None]
    say(log, "hourly", report("hourly", "R1", A=4, B=4))
    assert unread(queries) == [Unread(4, "hourly"), Unread(4, "hourly"), None]


def test_a_store_waits_for_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_thread, "INTERVAL_S", 0.05)
    with EmbeddedCluster(stores=0) as cluster:
        options = {"tower": cluster.tower}
        rules = {"retain": "flights=0.001s", "retain_until_read": "flights=1h"}
        names = {"protected_queries": "hourly, daily"}
        with Store(tmp_path, **options, **rules, **names) as store:
            with Producer("flights", **options) as producer:
                producer.publish_many([b"0", b"1", b"2"])
            tp = TopicPartition("flights", producer.address)
            passes = store.retention.counts.passes
            wait_until(lambda: store.retention.counts.passes > passes + 2)
            assert store.log.partitions("flights")[0].earliest == 0
            for query in ("hourly", "daily"):
                content = QueryProgress(query, "R1", 60).at({tp: 3}).packed()
                batch = RecordBatch.of(partition_of(query, QUERIES_TOPIC), 0, [content])
                store.append_queue.put(batch).result(30)
            wait_until(lambda: store.log.partitions("flights")[0].earliest == 3)
