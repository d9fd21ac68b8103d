"""Queries that start and end at times, which stores find in their records."""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.option_types import TIME, Position
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import micro_batch_stream
from dafka_spark.source.batch_reader import DafkaBatchReader, PushingBatchReader
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot
from tests.integration.cluster.stores import HeardOf, Serve, Served, value
from tests.unit.dafka_spark.streams import ALL, Clock, json_round, positions, reader, rows

A, B, C = (TopicPartition("t", name) for name in "ABC")
HOUR_MS = 3_600_000
T0_MS = 1_767_225_600_000
"""The time of the first record: the beginning of 2026."""
OPTIONS = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "10000"})
READER = OffsetReader(OPTIONS, HeardOf().connect)


def hour(number: float) -> str:
    return str(int(T0_MS + number * HOUR_MS))


def write(store: Served, tp: TopicPartition, *times_ms: int) -> None:
    """Append one record for each time."""
    start = store.log.end(tp)
    values = Values.of([value(offset) for offset in range(start, start + len(times_ms))])
    times = np.array([[1, time_ms * 1_000] for time_ms in times_ms], np.int64)
    store.log.append([RecordBatch(tp, start, values, times=times)])


def hourly(store: Served, tp: TopicPartition, count: int, first_ms: int = T0_MS) -> None:
    write(store, tp, *range(first_ms, first_ms + count * HOUR_MS, HOUR_MS))


def batch(source: HeardOf, **given: str) -> dict[str, list[int]]:
    """Return the offsets that a batch query reads, by partition."""
    options = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "10000", **given})
    query = DafkaBatchReader(full(), options.for_batch(), source.connect)
    return rows(query, query.partitions())


@pytest.fixture
def one(serve: Serve) -> Served:
    """A store with a record an hour in A, ten, and five in B, which begins three hours later."""
    store = serve("one")
    hourly(store, A, 10)
    hourly(store, B, 5, T0_MS + 3 * HOUR_MS)
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
        (
            {"startingOffsetsByTimestamp": f'{{"t": {{"A": {hour(8)}}}}}'},
            range(8, 10),
            range(5),
        ),
        ({"endingOffsetsByTimestamp": f'{{"t": {{"B": {hour(4)}}}}}'}, range(10), range(1)),
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


BY_PARTITION = json.dumps({"t": {"B": int(hour(9))}})


@pytest.mark.parametrize(
    ("given", "read", "warns"),
    [
        ({"startingTimestamp": hour(9)}, {"A": [9]}, False),
        ({"startingOffsetsByTimestamp": BY_PARTITION}, {"A": [*range(10)]}, True),
        ({"startingTimestamp": hour(99)}, {}, True),
        ({"startingOffsets": "2027-01-01T00:00:00Z"}, {}, True),
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
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        assert batch(HeardOf([one]), **given) == read
        stream = reader(HeardOf([one]), **given)
        begun = stream.initialOffset()
        end = stream.latestOffset(begun, ALL)
        assert rows(stream, stream.partitions(begun, end)) == read
    assert caplog.text.count("no partition has a record of this time or later") == 2 * warns
    hourly(one, B, 1, T0_MS + 100 * HOUR_MS)
    later = stream.latestOffset(json_round(end), ALL)
    assert rows(stream, stream.partitions(end, later)) == {"B": [5]}


def test_with_strategy_error_they_fail_as_in_kafkas(one: Served) -> None:
    given = {"startingTimestamp": hour(9), "startingOffsetsByTimestampStrategy": "error"}
    says = (
        rf"'startingTimestamp' = '{hour(9)}': topic 't', partition B has no record of "
        r"2026-01-01T09:00:00Z or later; with startingOffsetsByTimestampStrategy = latest"
    )
    with pytest.raises(ConfigError, match=says):
        batch(HeardOf([one]), **given)
    stream = reader(HeardOf([one]), **given)
    begun = stream.initialOffset()
    with pytest.raises(ConfigError, match=says):
        stream.latestOffset(begun, ALL)


@pytest.mark.parametrize("ahead_s", [-36_000, 36_000])
def test_ago_is_by_the_clock_of_the_stores(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The driver's may be wrong by hours."""
    store, now_ms = serve("one"), time.time_ns() // 1_000_000
    write(store, A, now_ms - 2 * HOUR_MS, now_ms - 30 * 60_000, now_ms - 60_000)
    monkeypatch.setattr(micro_batch_stream, "time", Clock(ahead_s))
    for text, offset in (("-1h", 1), ("-10m", 2), ("-1d", 0), ("-5s", 3)):
        stream = reader(HeardOf([store]), startingOffsets=text)
        assert positions(stream.initialOffset()) == {"A": offset}


def test_a_stream_starts_there_in_later_partitions_too(one: Served, serve: Serve) -> None:
    """Records that are older than the time, and a minute, are left out of them."""
    away = serve("two")
    hourly(away, C, 10)
    source = HeardOf([one])
    stream = reader(source, startingTimestamp=hour(6))
    begun = stream.initialOffset()
    source.served.append(away)
    first = stream.latestOffset(begun, ALL)
    found = rows(stream, stream.partitions(begun, first))
    assert found == {"A": [6, 7, 8, 9], "B": [3, 4], "C": [6, 7, 8, 9]}


def test_by_partition_later_ones_are_read_from_their_first_record(
    one: Served, serve: Serve
) -> None:
    """As in Kafka's connector."""
    away = serve("two")
    hourly(away, C, 3)
    source = HeardOf([one])
    by_time = f'{{"t": {{"A": {hour(6)}}}}}'
    stream = reader(source, startingOffsetsByTimestamp=by_time)
    begun = stream.initialOffset()
    assert SourceOffset.parse(begun).begun_us is None
    source.served.append(away)
    first = stream.latestOffset(begun, ALL)
    assert rows(stream, stream.partitions(begun, first))["C"] == [0, 1, 2]


def test_the_store_with_earlier_records_answers_too(serve: Serve) -> None:
    """Another one has the same end, and has trimmed the records of the time."""
    whole, trimmed = serve("one"), serve("two")
    for store in (trimmed, whole):
        hourly(store, A, 10)
    trimmed.log.trim(A, 7)
    for served in ([whole, trimmed], [trimmed, whole]):
        assert batch(HeardOf(served), startingTimestamp=hour(3))["A"][0] == 3
    hourly(trimmed, A, 1, T0_MS + 10 * HOUR_MS)  # now it is also the furthest
    assert batch(HeardOf([whole, trimmed]), startingTimestamp=hour(3))["A"][0] == 3


def test_records_that_a_store_lacks_may_be_newer(one: Served, serve: Serve) -> None:
    """A store that is behind has no record so new; the answer is the end of its range."""
    behind = serve("two")
    hourly(behind, A, 4)
    head = PartitionInfo(*A, 0, 10)
    times = {A: Position(TIME, int(hour(8)) * 1_000)}
    held = OffsetsSnapshot({A: head}, [(behind.location, {A: head._replace(end=4)})])
    answers = READER.offsets_for_times(times, held)
    assert answers.found == {A: 4}
    assert answers.ahead_us is not None
    assert abs(answers.ahead_us) < 60_000_000


def test_another_store_answers_for_one_that_is_gone(one: Served, serve: Serve) -> None:
    gone = serve("two")
    hourly(gone, A, 11)
    head = PartitionInfo(*A, 0, 11)
    both = [(gone.location, {A: head}), (one.location, {A: head._replace(end=10)})]
    gone.close()
    times = {A: Position(TIME, int(hour(8)) * 1_000)}
    answers = READER.offsets_for_times(times, OffsetsSnapshot({A: head}, both))
    assert (answers.found, answers.failures) == ({A: 8}, {})


def test_stores_that_do_not_answer_are_retried_and_named(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def silent(self: StoreClient, *given: object, timeout_s: float) -> list[int | None]:
        requests.append(given)
        raise StoreUnreachableError("one", "no answer")

    monkeypatch.setattr(StoreClient, "offset_for_times", silent)
    with pytest.raises(StoreUnreachableError, match="no answer"):
        batch(HeardOf([one]), startingTimestamp=hour(0), fetchTimeoutMs="1000")
    assert len(requests) > 1


def test_many_partitions_are_one_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    store = serve("one")
    tps = [TopicPartition("t", f"{number:032X}") for number in range(1_000)]
    times = np.array([[1, int(hour(0)) * 1_000], [1, int(hour(1)) * 1_000]], np.int64)
    store.log.append([RecordBatch(tp, 0, Values.of([b"a", b"b"]), times=times) for tp in tps])
    requests, answer = [], StoreClient.offset_for_times

    def counted(client: StoreClient, *given: Any, **named: Any) -> Any:
        requests.append(given)
        return answer(client, *given, **named)

    monkeypatch.setattr(StoreClient, "offset_for_times", counted)
    stream = reader(HeardOf([store]), startingTimestamp=hour(0.5))
    assert set(positions(stream.initialOffset()).values()) == {1}
    assert len(requests) == 1


def filtered(source: HeardOf, *conditions: tuple[str, int]) -> dict[str, Any]:
    """Return the ranges of a batch with filters of ``timestamp`` and hours since the first."""
    query = PushingBatchReader(full(), OPTIONS.for_batch(), source.connect)
    kinds = {">=": GreaterThanOrEqual, ">": GreaterThan, "<": LessThan, "<=": LessThanOrEqual}
    epoch = dt.datetime.fromtimestamp(T0_MS // 1_000, dt.UTC)
    query.pushFilters(
        [kinds[name](("timestamp",), epoch + dt.timedelta(hours=at)) for name, at in conditions]
    )
    parts: list[Any] = query.partitions()
    ranges = [each for part in parts for each in part.ranges]
    return {each.partition: (each.start, each.end) for each in ranges}


@pytest.mark.parametrize(
    ("conditions", "a", "b"),
    [
        ([(">=", 4)], (4, 10), (1, 5)),
        ([(">", 4)], (5, 10), (2, 5)),
        ([("<", 4)], (0, 4), (0, 1)),
        ([("<=", 4)], (0, 5), (0, 2)),
        ([(">=", 4), ("<", 6)], (4, 6), (1, 3)),
        ([(">=", -5)], (0, 10), (0, 5)),
        ([("<", 99)], (0, 10), (0, 5)),
        ([("<", -5)], None, None),
        ([(">=", 8)], (8, 10), None),
        ([(">=", 99)], None, None),
    ],
)
def test_filters_by_time_narrow_the_ranges(
    one: Served, conditions: list[tuple[str, int]], a: Any, b: Any
) -> None:
    expected = {name: span for name, span in (("A", a), ("B", b)) if span}
    assert filtered(HeardOf([one]), *conditions) == expected


def test_a_range_includes_records_that_match_at_any_store(one: Served, serve: Serve) -> None:
    """Another store has stamped the same records an hour later, and lacks the last of them."""
    other = serve("other")
    hourly(other, A, 8, T0_MS + HOUR_MS)
    source = HeardOf([one, other])
    assert filtered(source, (">=", 4), ("<", 6))["A"] == (3, 6)
    assert filtered(source, ("<=", 99))["A"] == (0, 10)
    assert filtered(source, (">=", 99)) == {}
    late = serve("late")
    hourly(late, A, 2)
    assert filtered(HeardOf([one, late]), (">=", 4), ("<", 6))["A"] == (4, 6)
    early = serve("early")
    hourly(early, A, 10, T0_MS - HOUR_MS)
    assert filtered(HeardOf([one, early]), ("<", 9))["A"] == (0, 10)


def test_a_store_that_does_not_answer_narrows_nothing(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = serve("other")
    hourly(other, A, 3)
    answer = StoreClient.offset_for_times

    def failing(client: StoreClient, times: Any, **more: Any) -> Any:
        if client.location == other.location:
            raise StoreUnreachableError(other.address, "it is gone")
        return answer(client, times, **more)

    monkeypatch.setattr(StoreClient, "offset_for_times", failing)
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
