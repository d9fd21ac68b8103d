"""Queries that start and end at times, which stores find in their records."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any
from unittest.mock import Mock

import pytest

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.positions import TIME, Position
from dafka_core.model.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_reader import OffsetReader
from tests.integration.cluster.stores import HeardOf, Serve, Served, timed
from tests.unit.dafka_spark.streams import Query, positions, reader, rows, set_clock

A, B, C = (TopicPartition("t", name) for name in "ABC")
HOUR_MS = 3_600_000
T0_MS = 1_767_225_600_000
"""The time of the first record: the beginning of 2026."""


def hour(number: float) -> str:
    return str(int(T0_MS + number * HOUR_MS))


def by_time(partition: str, number: float) -> str:
    return f'{{"t": {{"{partition}": {hour(number)}}}}}'


def hourly(store: Served, tp: TopicPartition, count: int, first: int = 0) -> None:
    """Append one record an hour, from hour ``first`` on."""
    store.add_at(tp, *(int(hour(number)) for number in range(first, first + count)))


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "10000", **given}).for_batch()


def batch(source: HeardOf, **given: str) -> dict[str, list[int]]:
    """Return the offsets that a batch query reads, by partition."""
    query = DafkaBatchReader(full(), options(**given), source.connect)
    return rows(query, query.partitions())


def fail(monkeypatch: pytest.MonkeyPatch, store: Served) -> list[StoreClient]:
    """Let a store not answer requests for times; return its clients, in order."""
    requests, answer = [], StoreClient.offset_for_times

    def failing(client: StoreClient, *given: Any, **named: Any) -> Any:
        if client.location != store.location:
            return answer(client, *given, **named)
        requests.append(client)
        raise StoreUnreachableError(store.address, "it is gone")

    monkeypatch.setattr(StoreClient, "offset_for_times", failing)
    return requests


@pytest.fixture
def one(serve: Serve) -> Served:
    """A store with a record an hour in A, ten, and five in B, which begins three hours later."""
    store = serve("one")
    hourly(store, A, 10)
    hourly(store, B, 5, 3)
    return store


@pytest.mark.parametrize(
    ("given", "a", "b"),
    [
        ({"startingTimestamp": hour(4)}, range(4, 10), range(1, 5)),
        ({"startingTimestamp": str(int(hour(4)) + 1)}, range(5, 10), range(2, 5)),
        ({"startingTimestamp": "2026-01-01T04:00:00Z"}, range(4, 10), range(1, 5)),
        ({"startingTimestamp": "0"}, range(10), range(5)),
        ({"startingTimestamp": hour(9)}, [9], ()),
        ({"endingTimestamp": hour(4)}, range(4), range(1)),
        ({"endingTimestamp": hour(99)}, range(10), range(5)),
        ({"startingOffsetsByTimestamp": by_time("A", 8)}, range(8, 10), range(5)),
        ({"endingOffsetsByTimestamp": by_time("B", 4)}, range(10), range(1)),
        (
            {"startingOffsets": "2026-01-01T04:00:00Z", "endingOffsets": "2026-01-01T06:00:00Z"},
            range(4, 6),
            range(1, 3),
        ),
        ({"startingOffsets": "2026-01-01T08:30:00Z"}, range(9, 10), ()),
        ({"startingOffsets": "latest-2"}, range(8, 10), range(3, 5)),
        ({"startingOffsets": '{"t": {"A": "2026-01-01T09:00:00Z", "B": 4}}'}, [9], [4]),
    ],
)
def test_what_a_batch_reads(one: Served, given: dict[str, str], a: Any, b: Any) -> None:
    """A partition without a record so new is read from its end on."""
    expected = {"A": [*a], "B": [*b]}
    found = batch(HeardOf([one]), **given)
    assert found == {name: offsets for name, offsets in expected.items() if offsets}


@pytest.mark.parametrize(
    ("given", "read", "warns"),
    [
        ({"startingTimestamp": hour(9)}, {"A": [9]}, False),
        ({"startingOffsetsByTimestamp": by_time("B", 9)}, {"A": [*range(10)]}, True),
        ({"startingTimestamp": hour(99)}, {}, True),
        ({"startingOffsets": "-1s"}, {}, False),
    ],
)
def test_partitions_without_a_record_so_new(
    one: Served,
    given: dict[str, str],
    read: dict[str, list[int]],
    caplog: pytest.LogCaptureFixture,
    *,
    warns: bool,
) -> None:
    """An ended producer is normal; where no partition matches at all the time may be wrong."""
    source = HeardOf([one])
    assert batch(source, **given) == read
    query = Query(reader(source, **given))
    assert query.read() == read
    assert caplog.text.count("no partition has a record of this time or later") == 2 * warns
    hourly(one, B, 1, 100)
    assert query.read() == {"B": [5]}


def test_with_strategy_error_they_fail_as_in_kafkas(one: Served) -> None:
    given = {"startingTimestamp": hour(9), "startingOffsetsByTimestampStrategy": "error"}
    error = (
        rf"'startingTimestamp' = '{hour(9)}': topic 't', partition B has no record of "
        r"2026-01-01T09:00:00Z or later; with startingOffsetsByTimestampStrategy = latest"
    )
    with pytest.raises(ConfigError, match=error):
        batch(HeardOf([one]), **given)
    query = Query(reader(HeardOf([one]), **given))
    with pytest.raises(ConfigError, match=error):
        query.read()


@pytest.mark.parametrize("ahead_s", [-36_000, 36_000])
def test_ago_is_by_the_clock_of_the_stores(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The driver's may be wrong by hours."""
    store, now_ms = serve("one"), time.time_ns() // 1_000_000
    store.add_at(A, now_ms - 2 * HOUR_MS, now_ms - 30 * 60_000, now_ms - 60_000)
    set_clock(monkeypatch, ahead_s)
    for text, offset in (("-1h", 1), ("-10m", 2), ("-1d", 0), ("-5s", 3)):
        stream = reader(HeardOf([store]), startingOffsets=text)
        assert positions(stream.initialOffset()) == {"A": offset}


@pytest.mark.parametrize(
    ("option", "start", "first"),
    [
        ("startingTimestamp", hour(6), 6),
        ("startingOffsetsByTimestamp", by_time("A", 6), 0),  # as in Kafka's connector
    ],
)
def test_a_stream_starts_there_in_later_partitions_too(
    one: Served, serve: Serve, option: str, start: str, first: int
) -> None:
    """Records that are older than the time, and a minute, are left out of them."""
    source = HeardOf([one])
    query = Query(reader(source, **{option: start}))
    source.served.append(serve("two"))
    hourly(source.served[1], C, 10)
    found = query.read()
    assert (found["A"], found["C"]) == ([*range(6, 10)], [*range(first, 10)])


def test_the_store_with_earlier_records_answers_too(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has the same end, and has trimmed the records of the time."""
    whole, trimmed = serve("one"), serve("two")
    for store in (trimmed, whole):
        hourly(store, A, 10)
    trimmed.log.trim(A, 7)
    for served in ([whole, trimmed], [trimmed, whole]):
        assert batch(HeardOf(served), startingTimestamp=hour(3))["A"][0] == 3
    hourly(trimmed, A, 1, 10)  # now it is also the furthest
    both = HeardOf([whole, trimmed])
    assert batch(both, startingTimestamp=hour(3))["A"][0] == 3
    fail(monkeypatch, whole)
    assert batch(both, startingTimestamp=hour(8), fetchTimeoutMs="300")["A"] == [8, 9, 10]
    with pytest.raises(StoreUnreachableError, match="it is gone"):
        batch(both, startingTimestamp=hour(3), fetchTimeoutMs="300")


def test_records_after_the_snapshot_do_not_count(one: Served) -> None:
    offsets = OffsetReader(options(), HeardOf([one]).connect)
    before = offsets.snapshot()
    hourly(one, A, 5, 10)
    times = {A: Position(TIME, int(hour(12)) * 1_000)}
    assert offsets.offsets_for_times(times, before).found == {A: before.heads[A].end}


def test_stores_that_do_not_answer_are_retried_and_named(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = fail(monkeypatch, one)
    with pytest.raises(StoreUnreachableError, match="it is gone"):
        batch(HeardOf([one]), startingTimestamp=hour(0), fetchTimeoutMs="1000")
    assert len(requests) > 1


def test_many_partitions_are_one_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("one")
    tps = [TopicPartition("t", f"{number:032X}") for number in range(1_000)]
    store.log.append([timed(tp, 0, T0_MS, T0_MS + HOUR_MS) for tp in tps])
    times_of = Mock(wraps=store.client().offset_for_times)
    monkeypatch.setattr(StoreClient, "offset_for_times", times_of)
    stream = reader(HeardOf([store]), startingTimestamp=hour(0.5))
    assert set(positions(stream.initialOffset()).values()) == {1}
    assert times_of.call_count == 1


def filtered(source: HeardOf, *conditions: tuple[str, int]) -> dict[str, Any]:
    """Return the ranges of a batch with conditions on ``timestamp``, in hours since the first."""
    times = [dt.datetime.fromtimestamp(int(hour(at)) / 1_000, dt.UTC) for _, at in conditions]
    texts = [f"timestamp {each[0]} '{at}'" for each, at in zip(conditions, times, strict=True)]
    where = " AND ".join(texts)
    parts: list[Any] = DafkaBatchReader(full(), options(where=where), source.connect).partitions()
    return {each.partition: (each.start, each.end) for part in parts for each in part.ranges}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([(">=", 4)], {"A": (4, 10), "B": (1, 5)}),
        ([(">", 4)], {"A": (5, 10), "B": (2, 5)}),
        ([("<", 4)], {"A": (0, 4), "B": (0, 1)}),
        ([("<=", 4)], {"A": (0, 5), "B": (0, 2)}),
        ([(">=", 4), ("<", 6)], {"A": (4, 6), "B": (1, 3)}),
        ([(">=", -5)], {"A": (0, 10), "B": (0, 5)}),
        ([("<", 99)], {"A": (0, 10), "B": (0, 5)}),
        ([("<", -5)], {}),
        ([(">=", 8)], {"A": (8, 10)}),
        ([(">=", 99)], {}),
    ],
)
def test_filters_by_time_narrow_the_ranges(
    one: Served, conditions: list[tuple[str, int]], expected: dict[str, Any]
) -> None:
    assert filtered(HeardOf([one]), *conditions) == expected


@pytest.mark.parametrize(
    ("count", "first", "conditions", "span"),
    [
        (8, 1, [(">=", 4), ("<", 6)], (3, 6)),
        (8, 1, [("<=", 99)], (0, 10)),
        (8, 1, [(">=", 99)], None),
        (2, 0, [(">=", 4), ("<", 6)], (4, 6)),
        (10, -1, [("<", 9)], (0, 10)),
    ],
)
def test_a_range_includes_records_that_match_at_any_store(
    one: Served,
    serve: Serve,
    count: int,
    first: int,
    conditions: list[tuple[str, int]],
    span: tuple[int, int] | None,
) -> None:
    """Another store has stamped the first of the same records at other hours."""
    other = serve("other")
    hourly(other, A, count, first)
    assert filtered(HeardOf([one, other]), *conditions).get("A") == span


def test_a_store_that_does_not_answer_narrows_nothing(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = serve("other")
    hourly(other, A, 3)
    fail(monkeypatch, other)
    assert filtered(HeardOf([one, other]), (">=", 4)) == {"A": (0, 10), "B": (0, 5)}
    assert "the query's ranges are not narrowed by time" in caplog.text


def test_records_of_c_nodes_are_read(one: Served) -> None:
    """They may be older than those of stores with Flight, and newer."""
    source = HeardOf([one], ["c"])
    for tp in A, B:
        source.add(tp, 12)
    assert filtered(source, (">=", 0)) == {"A": (0, 12), "B": (0, 12)}
    assert filtered(source, (">=", 9)) == {"A": (9, 12), "B": (5, 12)}
    assert filtered(source, ("<", 4)) == {"A": (0, 4), "B": (0, 1)}
    assert filtered(source, ("<", 99)) == {"A": (0, 12), "B": (0, 12)}
