"""Queries that began at ``latest``, and partitions that they find later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import Query, positions, reader, rows, set_clock

A, B, C = (TopicPartition("t", name) for name in "ABC")
HOUR_S = 3_600


@pytest.fixture
def source(serve: Serve) -> HeardOf:
    """A mesh with one store, which has five records of A when a query begins."""
    return HeardOf([serve("one").add(A, 5)])


@pytest.fixture
def away(serve: Serve) -> Served:
    """A store with a history, which is unreachable when the query begins."""
    store = serve("two")
    write(store, B, 50, HOUR_S)
    return store


def write(store: Served, tp: TopicPartition, count: int, ago_s: float = 0.0) -> None:
    """Append records of this age."""
    store.add_at(tp, *[(time.time() - ago_s) * 1e3] * count)


def latest(source: HeardOf) -> Query:
    return Query(reader(source, startingOffsets="latest", fetchTimeoutMs="10000"))


def test_a_history_is_not_read(
    source: HeardOf, away: Served, caplog: pytest.LogCaptureFixture
) -> None:
    query = latest(source)
    assert positions(query.end) == {"A": 5}
    source.served.append(away)
    assert query.read() == {}
    assert positions(query.end) == {"A": 5, "B": 50}  # without a record to read
    assert query.read() == {}
    assert query.start == query.end
    (warning,) = [each.getMessage() for each in caplog.records if "older" in each.message]
    assert "topic 't', partition B appeared after the query's start" in warning
    assert "its older records, offsets 0 to 50 (exclusive), are left out" in warning
    write(away, B, 3)
    source.served[0].add(A, 2)
    assert query.read() == {"A": [5, 6], "B": [50, 51, 52]}


@pytest.mark.parametrize("ahead_s", [-10 * HOUR_S, 0, 10 * HOUR_S])
def test_records_since_the_start_are_read(
    source: HeardOf, away: Served, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """Also if the driver's clock is wrong, or a producer's half a minute behind."""
    set_clock(monkeypatch, ahead_s)
    query = latest(source)
    write(away, B, 4, 30)
    write(away, C, 3)
    source.served.append(away)
    assert query.read() == {"B": [50, 51, 52, 53], "C": [0, 1, 2]}


def test_a_restart_changes_nothing(source: HeardOf, away: Served, serve: Serve) -> None:
    query = latest(source)
    write(away, B, 2)
    source.served.append(away)
    assert query.read() == {"B": [50, 51]}
    write(away, B, 5)
    again = latest(source)
    assert rows(again.stream, again.stream.partitions(again.end, query.end)) == {"B": [50, 51]}
    third = serve("three")
    write(third, C, 7, 10 * HOUR_S)
    source.served.append(third)
    again.end = query.end
    assert again.read() == {"B": [52, 53, 54, 55, 56]}
    assert positions(again.end) == {"A": 5, "B": 57, "C": 7}


def test_the_start_is_fixed_at_once(source: HeardOf, away: Served) -> None:
    """Also if the limit leaves no room for the partition in this batch."""
    write(away, C, 50, HOUR_S)
    for tp in (B, C):
        write(away, tp, 5)
    query = latest(source)
    source.served.append(away)
    batches = [query.read(ReadMaxRows(1)), query.read()]
    assert sum(positions(query.start).values()) == 5 + 50 + 50 + 1
    for name in "BC":
        assert [offset for each in batches for offset in each.get(name, [])] == [*range(50, 55)]


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ("", {"A": [5]}),
        # The store that answers lacks the last records, which may be newer.
        ("zzz", {"A": [5], "B": [*range(50, 70)]}),
        # None answers: the partition waits for the next trigger.
        ("zzz two", {"A": [5]}),
    ],
)
def test_stores_that_do_not_answer_for_a_time(
    source: HeardOf,
    away: Served,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    expected: dict[str, list[int]],
) -> None:
    ahead = serve("zzz")
    write(ahead, B, 70, HOUR_S)
    query = latest(source)
    source.served += [away, ahead]
    source.served[0].add(A, 1)
    answer: Callable[..., Any] = StoreClient.offset_for_times

    def fails(client: StoreClient, *given: Any, **named: Any) -> Any:
        if client.location.store in failing.split():
            raise StoreUnreachableError(client.location.store, "it is stopped")
        return answer(client, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(StoreClient, "offset_for_times", fails)
        assert query.read() == expected
    assert ("B" in positions(query.end)) == (failing != "zzz two")
    assert query.read() == {}
    assert positions(query.end) == {"A": 6, "B": 70}


def test_partitions_of_c_nodes_are_read_as_a_whole(source: HeardOf) -> None:
    source.c_nodes = ["a C node"]
    query = latest(source)
    source.add(B, 4)
    assert query.read() == {"B": [0, 1, 2, 3]}


def test_a_query_from_earliest_reads_all(source: HeardOf, away: Served) -> None:
    query = Query(reader(source))
    assert query.read() == {"A": [*range(5)]}
    source.served.append(away)
    assert query.read() == {"B": [*range(50)]}
