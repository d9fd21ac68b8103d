"""The lag of queries, by their reports and the stores."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_lag import FINISHED, LATE, RUNNING, QueryLag, query_lags
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.testing import PATIENCE_S
from tests.integration.cluster.stores import Serve, Served

A, B, NEW = TopicPartition("t", "A"), TopicPartition("t", "B"), TopicPartition("t", "C")
OTHER = TopicPartition("u", "A")


def lags(*stores: Served) -> list[QueryLag]:
    with ExitStack() as stack:
        clients = [stack.enter_context(StoreClient(store.location)) for store in stores]
        return query_lags(clients, timeout_s=PATIENCE_S)


def add_report(store: Served, progress: QueryProgress, ends: dict[TopicPartition, int]) -> None:
    with StoreClient(store.location) as client:
        publish([client], QUERIES_TOPIC, progress.at(ends), timeout_s=PATIENCE_S)


def test_records_bytes_and_seconds_behind(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 10, size_bytes=100)
    store.add(B, 5, size_bytes=100)
    store.add(OTHER, 9)
    query = QueryProgress("q", "r", 60, ("t",))
    add_report(store, query, {A: 4, B: 5})
    (found,) = lags(store)
    assert (found.query, found.run, found.state, found.partitions) == ("q", "r", RUNNING, 2)
    assert found.records_behind == 6
    assert found.bytes_behind is not None
    assert 600 <= found.bytes_behind < 800
    assert found.seconds_behind is not None
    assert 0 < found.seconds_behind < PATIENCE_S
    first, second = found.lags
    assert (first.topic, first.partition, first.position, first.end) == ("t", "A", 4, 10)
    assert (second.records_behind, second.bytes_behind, second.seconds_behind) == (0, 0, 0)
    add_report(store, query, {A: 10, B: 5})
    (found,) = lags(store)
    assert (found.records_behind, found.bytes_behind, found.seconds_behind) == (0, 0, 0)


def test_new_partitions_of_its_topics_count_as_unread(
    serve: Serve,
) -> None:
    store = serve("one")
    for tp in (A, NEW, OTHER):
        store.add(tp, 3)
    add_report(store, QueryProgress("by topic", "r", 60, ("t",)), {A: 3})
    add_report(store, QueryProgress("assigned", "r", 60), {A: 1})
    assert {each.query: each.records_behind for each in lags(store)} == {
        "by topic": 3,
        "assigned": 2,
    }


def test_lag_combines_stores_that_differ(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 10)
    behind.add(A, 4)
    behind.add(B, 2)
    add_report(behind, QueryProgress("q", "r", 60, ("t",)), {A: 2})
    (found,) = lags(behind, ahead)
    assert found.records_behind == 10
    assert found.seconds_behind is not None


def test_trimmed_records_do_not_count(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 10)
    store.log.trim(A, 8)
    add_report(store, QueryProgress("q", "r", 60, ("t",)), {A: 1})
    (found,) = lags(store)
    assert (found.records_behind, found.lags[0].position) == (2, 8)


@pytest.mark.parametrize(("finished", "state"), [(False, LATE), (True, FINISHED)])
def test_a_query_that_ended_is_finished_or_late_and_its_lag_grows(
    serve: Serve, *, finished: bool, state: str
) -> None:
    store = serve("one")
    store.add(A, 1)
    add_report(store, QueryProgress("q", "r", 1e-6, ("t",), finished=finished), {A: 0})
    (before,) = lags(store)
    store.add(A, 4)
    (after,) = lags(store)
    assert (before.state, after.state) == (state, state)
    assert (before.records_behind, after.records_behind) == (1, 5)
    assert 0 < before.reported_s < after.reported_s
    add_report(store, QueryProgress("q", "started again", 60, ("t",)), {A: 0})
    assert [(each.run, each.state) for each in lags(store)] == [("started again", RUNNING)]


def test_lag_ignores_the_clock_of_this_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores of this process keep the right clock."""
    store = serve("one")
    store.add(A, 3)
    add_report(store, QueryProgress("q", "r", 60, ("t",)), {A: 0})

    class Hours:
        monotonic = time.monotonic

        @staticmethod
        def time_ns() -> int:
            return time.time_ns() + 5 * 3_600 * 10**9

    for module in ("queries.query_progress", "flight.store_client"):
        monkeypatch.setattr(f"dafka_core.{module}.time", Hours, raising=False)
    monkeypatch.setattr("dafka_core.queries.query_lag.time", Hours, raising=False)
    (found,) = lags(store)
    assert found.state == RUNNING
    assert found.seconds_behind is not None
    assert 0 <= found.seconds_behind < PATIENCE_S
    assert 0 <= found.reported_s < PATIENCE_S
