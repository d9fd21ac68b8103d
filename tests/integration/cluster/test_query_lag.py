"""Progress reports of streaming queries, and the lag that follows from them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from unittest.mock import Mock

import pyarrow as pa
import pytest

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_lag import FINISHED, LATE, RUNNING, QueryLag, query_lags
from dafka_core.queries.query_progress import (
    QueryProgress,
    Report,
    partition_of,
    publish,
    reports,
)
from dafka_core.testing import PATIENCE_S
from tests.integration.cluster.stores import Serve, Served

A, B, NEW = (TopicPartition("t", name) for name in ("A", "B", "\udcff"))
OTHER = TopicPartition("u", "A")
SHORT_S = 1e-9


def add(
    *stores: Served,
    query: str = "q",
    run: str = "r",
    every_s: float = 60,
    topics: tuple[str, ...] = ("t",),
    ends: Mapping[TopicPartition, int] | None = None,
    finished: bool = False,
) -> None:
    """Publish a report."""
    report = QueryProgress(query, run, every_s, topics, finished=finished).at(ends or {A: 0})
    clients = [store.client() for store in stores]
    publish(clients, QUERIES_TOPIC, report, timeout_s=PATIENCE_S)


def found(store: Served) -> list[Report]:
    return reports([store.client()], QUERIES_TOPIC, timeout_s=PATIENCE_S)


def runs(store: Served) -> list[tuple[str, str]]:
    return [(each.progress.query, each.progress.run) for each in found(store)]


def lags(*stores: Served) -> list[QueryLag]:
    return query_lags([store.client() for store in stores], timeout_s=PATIENCE_S)


def test_reports_are_the_last_of_each_query(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("one")
    assert found(store) == []
    for end in range(40):
        add(store, query="a", ends={A: end, NEW: 7})
    add(store, query="b\udcff", every_s=SHORT_S)
    monkeypatch.delattr(StoreClient, "read")  # all reports come with one request
    first, second = found(store)
    assert (first.progress.offsets(), first.is_late) == ({A: 39, NEW: 7}, False)
    assert 0 <= first.age_s < PATIENCE_S
    assert (second.progress.query, second.is_late) == ("b\udcff", True)


def test_a_new_run_replaces_the_previous_one(serve: Serve) -> None:
    store = serve("one")
    for run in ("first", "first", "second"):
        add(store, run=run)
    assert runs(store) == [("q", "second")]
    for run in ("third", "second", "third"):  # two that report in turn are two
        add(store, run=run)
    assert {run for _, run in runs(store)} == {"second", "third"}


def test_positions_of_many_partitions_are_packed() -> None:
    many = {TopicPartition("t", f"{number:032X}"): number for number in range(10_000)}
    progress = QueryProgress("q", "r", 60).at(many)
    assert progress.positions == {}
    assert len(progress.packed()) < 250_000
    assert QueryProgress.parse(progress.packed()).offsets() == many


def test_a_report_goes_to_the_store_with_most_reports_that_answers(serve: Serve) -> None:
    first, second = serve("first"), serve("second")
    tp = partition_of("q")
    add(second)
    add(first, second)
    assert (first.log.end(tp), second.log.end(tp)) == (0, 2)
    second.stop()
    add(first, second)
    assert first.log.end(tp) == 1
    first.stop()
    with pytest.raises(StoreUnreachableError):
        add(first, second)
    with pytest.raises(DafkaError, match="no store"):
        add()


def test_invalid_reports_are_skipped(serve: Serve) -> None:
    store = serve("one")
    good, foreign = (QueryProgress(query, "r", 60).at({A: 1}).packed() for query in "qx")
    members: list[dict[str, object]] = [
        {"v": 2},
        {"positions": {"t": {"A": -1}}},
        {"packed_positions": "c-n"},
        {"every_s": 0},
    ]
    invalid = [json.dumps({**json.loads(good), **each}).encode() for each in members]
    values = [good, b"", b"\xff", b"[]", *invalid, foreign]
    with store.client().put(partition_of("q"), 0, timeout_s=PATIENCE_S) as put:
        put.write(pa.array(values, pa.binary()))
        put.finish(PATIENCE_S)
    assert runs(store) == [("q", "r")]


def test_records_bytes_and_seconds_behind(serve: Serve) -> None:
    store = serve("one")
    for tp, count in ((A, 10), (B, 5), (OTHER, 9)):
        store.add(tp, count, size_bytes=100)
    add(store, ends={A: 4, B: 5})
    (lag,) = lags(store)
    assert (lag.query, lag.run, lag.state, lag.partitions) == ("q", "r", RUNNING, 2)
    assert lag.records_behind == 6
    assert lag.bytes_behind == pytest.approx(700, abs=100)
    assert lag.seconds_behind is not None
    assert 0 < lag.seconds_behind < PATIENCE_S
    first, second = lag.lags
    assert (first.topic, first.partition, first.position, first.end) == ("t", "A", 4, 10)
    assert (second.records_behind, second.bytes_behind, second.seconds_behind) == (0, 0, 0)
    add(store, ends={A: 10, B: 5})
    (lag,) = lags(store)
    assert (lag.records_behind, lag.bytes_behind, lag.seconds_behind) == (0, 0, 0)


def test_new_partitions_of_its_topics_count_as_unread(serve: Serve) -> None:
    store = serve("one")
    for tp in (A, NEW, OTHER):
        store.add(tp, 3)
    add(store, query="by topic", ends={A: 3})
    add(store, query="assigned", topics=(), ends={A: 1})
    behind = {each.query: each.records_behind for each in lags(store)}
    assert behind == {"by topic": 3, "assigned": 2}


def test_lag_combines_stores_that_differ(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 10)
    behind.add(A, 4)
    behind.add(B, 2)
    add(behind, ends={A: 2})
    (lag,) = lags(behind, ahead)
    assert lag.records_behind == 10
    assert lag.seconds_behind is not None


def test_trimmed_records_do_not_count(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 10)
    store.log.trim(A, 8)
    add(store, ends={A: 1})
    (lag,) = lags(store)
    assert (lag.records_behind, lag.lags[0].position) == (2, 8)


@pytest.mark.parametrize(("finished", "state"), [(False, LATE), (True, FINISHED)])
def test_a_query_that_ended_is_finished_or_late_and_its_lag_grows(
    serve: Serve, *, finished: bool, state: str
) -> None:
    store = serve("one")
    store.add(A, 1)
    add(store, every_s=SHORT_S, finished=finished)
    (before,) = lags(store)
    store.add(A, 4)
    (after,) = lags(store)
    assert (before.state, after.state) == (state, state)
    assert (before.records_behind, after.records_behind) == (1, 5)
    assert 0 < before.reported_s < after.reported_s
    add(store, run="started again")
    assert [(each.run, each.state) for each in lags(store)] == [("started again", RUNNING)]


def test_lag_ignores_the_clock_of_this_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores of this process keep the right clock."""
    store = serve("one")
    store.add(A, 3)
    add(store)
    hours = Mock(wraps=time, time_ns=lambda: time.time_ns() + 5 * 3_600 * 10**9)
    for module in ("queries.query_progress", "queries.query_lag", "flight.store_client"):
        monkeypatch.setattr(f"dafka_core.{module}.time", hours, raising=False)
    (lag,) = lags(store)
    assert lag.state == RUNNING
    assert lag.seconds_behind is not None
    assert max(lag.seconds_behind, lag.reported_s) < PATIENCE_S
