"""Queries that began at ``latest``, and partitions that they find later."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import wait_until
from dafka_spark.source import micro_batch_stream
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served, value
from tests.unit.dafka_spark.streams import ALL, json_round, reader

A, B, C = (TopicPartition("t", name) for name in "ABC")
HOUR_S = 3_600


class Clock:
    """A module ``time`` whose wall clock is wrong."""

    def __init__(self, ahead_s: int) -> None:
        self._ahead_ns = ahead_s * 1_000_000_000

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return time.time_ns() + self._ahead_ns


@pytest.fixture
def one(serve: Serve) -> Served:
    store = serve("one")
    store.add(A, 5)
    return store


def write(store: Served, tp: TopicPartition, count: int, ago_s: float = 0.0) -> None:
    """Records of so long ago."""
    start, time_us = store.log.end(tp), int((time.time() - ago_s) * 1e6)
    values = Values.of([value(offset) for offset in range(start, start + count)])
    times = np.array([[count, time_us]], np.int64)
    store.log.append([RecordBatch(tp, start, values, times=times)])


def latest(source: HeardOf, **given: str) -> DafkaMicroBatchStream:
    return reader(source, startingoffsets="latest", **{"fetchtimeoutms": "10000"} | given)


def rows(stream: DafkaMicroBatchStream, start: Any, end: Any) -> dict[str, list[int]]:
    """The offsets that a batch has read, by partition."""
    found: dict[str, list[int]] = {}
    for part in stream.partitions(json_round(start), json_round(end)):
        table = pa.Table.from_batches(list(stream.read(part)))
        for name, offset in zip(*map(table.column, ("partition", "offset")), strict=True):
            found.setdefault(name.as_py(), []).append(offset.as_py())
    return found


def positions(offset: dict[str, Any]) -> dict[str, int]:
    return {tp.partition: at for tp, at in SourceOffset.parse(offset).positions.items()}


def test_history_that_was_away_is_not_read(
    one: Served, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The store with it comes back after the query has begun."""
    away = serve("two")
    write(away, B, 50, HOUR_S)
    source = HeardOf([one])
    stream = latest(source)
    begun = stream.initialOffset()
    assert positions(begun) == {"A": 5}
    source.served.append(away)
    first = stream.latestOffset(begun, ALL)
    assert positions(first) == {"A": 5, "B": 50}  # though there is nothing to read
    assert rows(stream, begun, first) == {}
    assert stream.latestOffset(json_round(first), ALL) == json_round(first)
    (warning,) = [each.getMessage() for each in caplog.records if "'latest'" in each.message]
    assert "topic 't', partition B appeared after the query began" in warning
    assert "50 older records are left out, offsets 0 to 50" in warning
    write(away, B, 3)
    one.add(A, 2)
    second = stream.latestOffset(json_round(first), ALL)
    assert rows(stream, first, second) == {"A": [5, 6], "B": [50, 51, 52]}


def test_what_was_written_since_is_read(one: Served, serve: Serve) -> None:
    """Also where a minute's difference between clocks makes it look a little older."""
    away = serve("two")
    write(away, B, 50, HOUR_S)
    source = HeardOf([one])
    stream = latest(source)
    begun = stream.initialOffset()
    write(away, B, 4, 30)
    write(away, C, 3)
    source.served.append(away)
    first = stream.latestOffset(begun, ALL)
    assert rows(stream, begun, first) == {"B": [50, 51, 52, 53], "C": [0, 1, 2]}


@pytest.mark.parametrize("ahead_s", [-10 * HOUR_S, 10 * HOUR_S])
def test_the_clock_of_the_driver_may_be_wrong(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    away = serve("two")
    write(away, B, 50, HOUR_S)
    source = HeardOf([one])
    stream = latest(source)
    with monkeypatch.context() as patched:
        patched.setattr(micro_batch_stream, "time", Clock(ahead_s))
        begun = stream.initialOffset()
    write(away, B, 2)
    write(away, C, 3)
    source.served.append(away)
    monkeypatch.setattr(micro_batch_stream, "time", Clock(ahead_s))
    first = stream.latestOffset(begun, ALL)
    assert rows(stream, begun, first) == {"B": [50, 51], "C": [0, 1, 2]}


def test_a_restart_does_not_change_it(one: Served, serve: Serve) -> None:
    away = serve("two")
    write(away, B, 50, HOUR_S)
    source = HeardOf([one])
    stream = latest(source)
    begun = stream.initialOffset()
    write(away, B, 2)
    source.served.append(away)
    first = json_round(stream.latestOffset(begun, ALL))
    write(away, B, 5)
    again = latest(source)
    assert rows(again, again.initialOffset(), first) == {"B": [50, 51]}
    third = serve("three")
    write(third, C, 7, 10 * HOUR_S)
    source.served.append(third)
    second = again.latestOffset(first, ALL)
    assert positions(second) == {"A": 5, "B": 57, "C": 7}
    assert rows(again, first, second) == {"B": [52, 53, 54, 55, 56]}


def test_where_it_begins_is_fixed_at_once(one: Served, serve: Serve) -> None:
    """Also where the limit leaves no room for the partition in this batch."""
    away = serve("two")
    for tp in (B, C):
        write(away, tp, 50, HOUR_S)
        write(away, tp, 5)
    source = HeardOf([one])
    stream = latest(source)
    begun = stream.initialOffset()
    source.served.append(away)
    first = stream.latestOffset(begun, ReadMaxRows(1))
    assert sum(positions(first).values()) == 5 + 50 + 50 + 1
    second = stream.latestOffset(json_round(first), ALL)
    read = [rows(stream, begun, first), rows(stream, first, second)]
    for name in "BC":
        assert [offset for each in read for offset in each.get(name, [])] == list(range(50, 55))


def test_the_store_that_has_most_is_asked(one: Served, serve: Serve) -> None:
    behind, ahead = serve("two"), serve("zzz")
    source = HeardOf([one])
    stream = latest(source)
    begun = stream.initialOffset()
    write(behind, B, 10, HOUR_S)
    for count in (10, 20):
        write(ahead, B, count, HOUR_S)
    source.served += [behind, ahead]
    assert positions(stream.latestOffset(begun, ALL)) == {"A": 5, "B": 30}


def test_another_store_is_asked_where_one_does_not_answer(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [serve("two"), serve("three")]
    asked, answer = [], StoreClient.offset_for_times

    def fails_first(client: StoreClient, *given: Any, **named: Any) -> Any:
        asked.append(client.location.store)
        if len(asked) == 1:
            raise StoreUnreachableError(client.location.store, "it is stopped")
        return answer(client, *given, **named)

    monkeypatch.setattr(StoreClient, "offset_for_times", fails_first)
    source = HeardOf([one])
    stream = latest(source)
    begun = stream.initialOffset()
    for store in both:
        write(store, B, 50, HOUR_S)
    source.served += both
    assert positions(stream.latestOffset(begun, ALL)) == {"A": 5, "B": 50}
    assert sorted(asked) == ["three", "two"]


def test_a_partition_waits_for_a_store_that_can_tell(
    one: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For ``fetchTimeoutMs``; then it is read as a whole, rather than not at all."""

    def fails(client: StoreClient, *_: Any, **__: Any) -> Any:
        raise StoreUnreachableError(client.location.store, "it is stopped")

    stream = latest(HeardOf([one]), fetchtimeoutms="1000")
    begun = stream.initialOffset()
    write(one, B, 50, HOUR_S)
    write(one, A, 1)
    monkeypatch.setattr(StoreClient, "offset_for_times", fails)
    first = stream.latestOffset(begun, ALL)
    assert positions(first) == {"A": 6}
    wait_until(lambda: "B" in positions(stream.latestOffset(json_round(first), ALL)))
    assert "no store can find which of its records are older" in caplog.text
    monkeypatch.undo()
    again = latest(HeardOf([one]))
    assert positions(again.latestOffset(json_round(first), ALL)) == {"A": 6, "B": 50}


def test_what_only_c_nodes_have_is_read_as_a_whole(
    one: Served, caplog: pytest.LogCaptureFixture
) -> None:
    source = HeardOf([one], ["a C node"])
    stream = latest(source)
    begun = stream.initialOffset()
    source.add(B, 4)
    with caplog.at_level(logging.WARNING):
        first = stream.latestOffset(begun, ALL)
    assert rows(stream, begun, first) == {"B": [0, 1, 2, 3]}
    assert "partition B appeared after the query began" in caplog.text


def test_a_query_from_earliest_reads_all(one: Served, serve: Serve) -> None:
    away = serve("two")
    write(away, B, 50, HOUR_S)
    source = HeardOf([one])
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.served.append(away)
    second = stream.latestOffset(json_round(first), ALL)
    assert rows(stream, first, second) == {"B": list(range(50))}
