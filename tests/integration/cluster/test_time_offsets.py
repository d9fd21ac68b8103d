"""Queries that begin and end at times, which stores find in their records."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import micro_batch_stream
from dafka_spark.source.batch_reader import DafkaBatchReader, PushingBatchReader
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot, RequestedTime
from tests.integration.cluster.stores import HeardOf, Serve, Served, value
from tests.integration.cluster.test_stream_reader import Clock, positions, rows
from tests.unit.dafka_spark.streams import ALL, json_round, reader

A, B = (TopicPartition("t", name) for name in "AB")
HOUR_MS = 3_600_000
T0_MS = 1_767_225_600_000
"""When the first record was published: the beginning of 2026."""


OPTIONS = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "10000"})
READER = OffsetReader(OPTIONS, HeardOf().connect)


def write(store: Served, tp: TopicPartition, *times_ms: int) -> None:
    """One record of each time."""
    start = store.log.end(tp)
    values = Values.of([value(offset) for offset in range(start, start + len(times_ms))])
    times = np.array([[1, time_ms * 1_000] for time_ms in times_ms], np.int64)
    store.log.append([RecordBatch(tp, start, values, times=times)])


def hourly(store: Served, tp: TopicPartition, count: int, first_ms: int = T0_MS) -> None:
    write(store, tp, *range(first_ms, first_ms + count * HOUR_MS, HOUR_MS))


def batch(source: HeardOf, **given: Any) -> dict[str, list[int]]:
    """The offsets that a batch query reads, by partition."""
    given = {"subscribe": "t", "fetchTimeoutMs": "10000", **given}
    options = SourceOptions.of({name: str(each) for name, each in given.items()}).for_batch()
    query = DafkaBatchReader(full(), options, source.connect)
    found: dict[str, list[int]] = {}
    for part in query.partitions():
        table = pa.Table.from_batches(list(query.read(part)))
        for name, offset in zip(*map(table.column, ("partition", "offset")), strict=True):
            found.setdefault(name.as_py(), []).append(offset.as_py())
    return found


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
        ({"startingTimestamp": T0_MS + 4 * HOUR_MS}, range(4, 10), range(1, 5)),
        ({"startingTimestamp": T0_MS + 4 * HOUR_MS + 1}, range(5, 10), range(2, 5)),
        ({"startingTimestamp": "2026-01-01T04:00:00Z"}, range(4, 10), range(1, 5)),
        ({"startingTimestamp": 0}, range(10), range(5)),
        ({"endingTimestamp": T0_MS + 4 * HOUR_MS}, range(4), range(1)),
        ({"endingTimestamp": T0_MS + 99 * HOUR_MS}, range(10), range(5)),
        (
            {"startingOffsetsByTimestamp": f'{{"t": {{"A": {T0_MS + 8 * HOUR_MS}}}}}'},
            range(8, 10),
            range(5),
        ),
        (
            {"endingOffsetsByTimestamp": f'{{"t": {{"B": {T0_MS + 4 * HOUR_MS}}}}}'},
            range(10),
            range(1),
        ),
        (
            {"startingOffsets": "2026-01-01T04:00:00Z", "endingOffsets": "2026-01-01T06:00:00Z"},
            range(4, 6),
            range(1, 3),
        ),
        ({"startingOffsets": "2026-01-01T08:30:00Z"}, range(9, 10), ()),
        ({"startingOffsets": "latest-2"}, range(8, 10), range(3, 5)),
        ({"startingOffsets": '{"t": {"A": "2026-01-01T09:00:00Z", "B": 4}}'}, [9], [4]),
        (
            {
                "startingTimestamp": T0_MS + 9 * HOUR_MS,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [9],
            (),
        ),
    ],
)
def test_what_a_batch_reads(one: Served, given: dict[str, Any], a: Any, b: Any) -> None:
    """Also where nothing was published so late, for options that bear it."""
    expected = {"A": [*a], "B": [*b]}
    found = batch(HeardOf([one]), **given)
    assert found == {name: offsets for name, offsets in expected.items() if offsets}


def test_a_time_at_which_a_partition_has_nothing_fails_as_in_kafkas(one: Served) -> None:
    time_ms = T0_MS + 9 * HOUR_MS
    says = (
        rf"'startingTimestamp' = '{time_ms}': topic 't', partition B has no record of "
        r"2026-01-01T09:00:00Z or later; with startingOffsetsByTimestampStrategy = latest"
    )
    with pytest.raises(ConfigError, match=says):
        batch(HeardOf([one]), startingTimestamp=time_ms)
    stream = reader(HeardOf([one]), startingtimestamp=str(time_ms))
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
    source = HeardOf([store])
    for text, offset in (("-1h", 1), ("-10m", 2), ("-1d", 0), ("-5s", 3)):
        stream = reader(source, startingoffsets=text)
        assert positions(stream.initialOffset()) == {"A": offset}


def test_a_stream_begins_there_and_goes_on(one: Served) -> None:
    source = HeardOf([one])
    stream = reader(source, startingoffsets="2026-01-01T06:00:00Z")
    begun = stream.initialOffset()
    first = stream.latestOffset(begun, ALL)
    assert rows(stream, begun, first) == {"A": [6, 7, 8, 9], "B": [3, 4]}
    hourly(one, A, 1, T0_MS + 10 * HOUR_MS)
    again = reader(source, startingoffsets="earliest")
    second = again.latestOffset(json_round(first), ALL)
    assert rows(again, first, second) == {"A": [10]}


def test_partitions_that_appear_later_begin_there_too(one: Served, serve: Serve) -> None:
    """Their store was away; what they had before the time, and a minute, is not read."""
    away = serve("two")
    C = TopicPartition("t", "C")  # noqa: N806
    hourly(away, C, 10)
    source = HeardOf([one])
    stream = reader(source, startingtimestamp=str(T0_MS + 6 * HOUR_MS))
    begun = stream.initialOffset()
    source.served.append(away)
    first = stream.latestOffset(begun, ALL)
    assert rows(stream, begun, first) == {"A": [6, 7, 8, 9], "B": [3, 4], "C": [6, 7, 8, 9]}


def test_by_partition_later_ones_are_read_from_their_first_record(
    one: Served, serve: Serve
) -> None:
    """As in Kafka's connector."""
    away = serve("two")
    hourly(away, TopicPartition("t", "C"), 3)
    source = HeardOf([one])
    by_time = f'{{"t": {{"A": {T0_MS + 6 * HOUR_MS}}}}}'
    stream = reader(source, startingoffsetsbytimestamp=by_time)
    begun = stream.initialOffset()
    assert SourceOffset.parse(begun).begun_us is None
    source.served.append(away)
    first = stream.latestOffset(begun, ALL)
    assert rows(stream, begun, first)["C"] == [0, 1, 2]


def test_the_store_with_earlier_records_is_asked_too(serve: Serve) -> None:
    """Another one has the same end, and has trimmed where the time lies."""
    whole, trimmed = serve("one"), serve("two")
    for store in (trimmed, whole):
        hourly(store, A, 10)
    trimmed.log.trim(A, 7)
    for served in ([whole, trimmed], [trimmed, whole]):
        assert batch(HeardOf(served), startingTimestamp=T0_MS + 3 * HOUR_MS)["A"][0] == 3
    hourly(trimmed, A, 1, T0_MS + 10 * HOUR_MS)  # now it has most, too
    assert batch(HeardOf([whole, trimmed]), startingTimestamp=T0_MS + 3 * HOUR_MS)["A"][0] == 3


def test_what_a_store_has_not_got_may_be_newer(one: Served, serve: Serve) -> None:
    """A store that is behind says that nothing is so new; the end of what it has is the answer."""
    behind = serve("two")
    hourly(behind, A, 4)
    location = behind.location
    head = PartitionInfo(*A, 0, 10)
    asked = {A: RequestedTime((T0_MS + 8 * HOUR_MS) * 1_000)}
    held = OffsetsSnapshot({A: head}, [(location, {A: head._replace(end=4)})])
    answers = READER.offsets_for_times(asked, held)
    assert answers.found == {A: 4}
    assert answers.ahead_us is not None
    assert abs(answers.ahead_us) < 60_000_000


def test_another_store_answers_for_one_that_is_gone(one: Served, serve: Serve) -> None:
    gone = serve("two")
    hourly(gone, A, 11)
    head = PartitionInfo(*A, 0, 11)
    both = [(gone.location, {A: head}), (one.location, {A: head._replace(end=10)})]
    gone.close()
    asked = {A: RequestedTime((T0_MS + 8 * HOUR_MS) * 1_000)}
    answers = READER.offsets_for_times(asked, OffsetsSnapshot({A: head}, both))
    assert (answers.found, answers.failures) == ({A: 8}, {})


def test_stores_that_do_not_answer_are_waited_for_and_named(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def silent(self: StoreClient, *given: object, timeout_s: float) -> list[int | None]:
        asked.append(given)
        raise StoreUnreachableError("one", "no answer")

    monkeypatch.setattr(StoreClient, "offset_for_times", silent)
    with pytest.raises(StoreUnreachableError, match="no answer"):
        batch(HeardOf([one]), startingTimestamp=T0_MS, fetchTimeoutMs="1000")
    assert len(asked) > 1


def test_ten_thousand_partitions_take_seconds(serve: Serve) -> None:
    store, count = serve("one"), 10_000
    tps = [TopicPartition("t", f"{number:032X}") for number in range(count)]
    times = np.array([[1, T0_MS * 1_000], [1, (T0_MS + HOUR_MS) * 1_000]], np.int64)
    for start in range(0, count, 1_000):
        store.log.append(
            [RecordBatch(tp, 0, Values.of([b"a", b"b"]), times=times) for tp in tps[start:][:1_000]]
        )
    began = time.monotonic()
    heads = {tp: PartitionInfo(*tp, 0, 2) for tp in tps}
    asked = dict.fromkeys(tps, RequestedTime((T0_MS + 1) * 1_000))
    answers = READER.offsets_for_times(asked, OffsetsSnapshot(heads, [(store.location, heads)]))
    assert set(answers.found.values()) == {1}
    assert len(answers.found) == count
    assert time.monotonic() - began < 30  # 3 s when the machine does nothing else


def filtered(source: HeardOf, *conditions: tuple[str, int]) -> dict[str, Any]:
    """What a batch reads whose filters are these, of ``timestamp`` and hours since the first."""
    options = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "10000"})
    query = PushingBatchReader(full(), options.for_batch(), source.connect)
    kinds = {">=": GreaterThanOrEqual, ">": GreaterThan, "<": LessThan, "<=": LessThanOrEqual}
    epoch = dt.datetime.fromtimestamp(T0_MS // 1_000, dt.UTC)
    query.pushFilters(
        [kinds[name](("timestamp",), epoch + dt.timedelta(hours=at)) for name, at in conditions]
    )
    return {part.partition: (part.start, part.end) for part in query.partitions()}  # type: ignore[attr-defined]


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
def test_filters_by_time_narrow_what_is_read(
    one: Served, conditions: list[tuple[str, int]], a: Any, b: Any
) -> None:
    expected = {name: span for name, span in (("A", a), ("B", b)) if span}
    assert filtered(HeardOf([one]), *conditions) == expected


def test_all_stores_are_asked_and_all_that_fits_at_any_of_them_is_read(
    one: Served, serve: Serve
) -> None:
    """Another one has stamped the same records an hour later, and lacks the last of them."""
    other = serve("other")
    hourly(other, A, 8, T0_MS + HOUR_MS)
    source = HeardOf([one, other])
    assert filtered(source, (">=", 4), ("<", 6))["A"] == (3, 6)
    assert filtered(source, ("<=", 99))["A"] == (0, 10)
    # One that is behind says nothing of what it lacks.
    assert filtered(source, (">=", 99)) == {}
    late = serve("late")
    hourly(late, A, 2)
    assert filtered(HeardOf([one, late]), (">=", 4), ("<", 6))["A"] == (4, 6)


def test_a_store_that_does_not_tell_narrows_nothing_of_what_it_has(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = serve("other")
    hourly(other, A, 3)
    asked = StoreClient.offset_for_times

    def failing(client: StoreClient, times: Any, **more: Any) -> Any:
        if client.location == other.location:
            raise StoreUnreachableError(other.address, "it is gone")
        return asked(client, times, **more)

    monkeypatch.setattr(StoreClient, "offset_for_times", failing)
    assert filtered(HeardOf([one, other]), (">=", 4)) == {"A": (0, 10), "B": (1, 5)}
    assert "its partitions are not narrowed by time" in caplog.text


def test_records_of_which_no_store_tells_are_read(one: Served) -> None:
    """What only C nodes have may be older than what stores have, and newer."""
    source = HeardOf([one], ["c"])
    for tp in A, B:
        source.add(tp, 12)
    assert filtered(source, (">=", 0)) == {"A": (0, 12), "B": (0, 12)}
    assert filtered(source, (">=", 9)) == {"A": (9, 12), "B": (5, 12)}
    assert filtered(source, ("<", 4)) == {"A": (0, 4), "B": (0, 1)}
    assert filtered(source, ("<", 99)) == {"A": (0, 12), "B": (0, 12)}
