"""Offsets and plans of the streaming source, and the traps of Spark's contract."""

from __future__ import annotations

import json
import logging
import pickle
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxFiles, ReadMaxRows

from dafka_core.errors import ConfigError
from dafka_core.model.records import TopicPartition
from dafka_spark.cluster import connections
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.micro_batch_stream import (
    LONG_S,
    PAUSE_S,
    SHORT_S,
    DafkaMicroBatchStream,
    IdleWait,
)
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, json_round, planned, reader

A, B, C, D = (TopicPartition("t", name) for name in "ABCD")


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader()
    memory.add(A, 10)
    memory.add(B, 20)
    return memory


def test_it_is_pickled_and_connects_on_demand(
    source: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SourceOptions.of({"subscribe": "t", "startingOffsets": "earliest"})
    pickled = pickle.dumps(DafkaMicroBatchStream(full(), options))
    monkeypatch.setattr(connections, "borrow_reader_for_query", source.connect)
    stream: DafkaMicroBatchStream = pickle.loads(pickled)
    assert stream.getDefaultReadLimit() == ReadMaxBytes(4 << 30)
    assert stream.reportLatestOffset() is None
    assert source.calls == []
    start = stream.initialOffset()
    assert planned(stream, start, stream.latestOffset(start, ALL)) == {("A", 0, 10), ("B", 0, 20)}


def test_batches_follow_each_other(source: MemoryReader) -> None:
    """Spark compares offsets as text, and plans empty batches, too."""
    stream = reader(source)
    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    assert planned(stream, start, first) == {("A", 0, 10), ("B", 0, 20)}
    source.backwards = True
    assert json.dumps(stream.latestOffset(json_round(first), ALL)) == json.dumps(first)
    assert json.dumps(everything(reader(source))) == json.dumps(first)
    assert planned(stream, start, start) == planned(stream, first, first) == set()
    source.add(A, 5)
    second = stream.latestOffset(first, ALL)
    assert planned(stream, first, second) == {("A", 10, 15)}
    assert second["start"] == {}


def test_a_start_beyond_the_end_fails_only_new_queries(source: MemoryReader) -> None:
    given = {"startingOffsets": '{"t": {"A": 7}}'}
    stream = reader(source, **given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("A", 7, 10), ("B", 0, 20)}
    source.cut(A, 3)
    replay = reader(source, **given)
    assert planned(replay, replay.initialOffset(), end) == {("A", 7, 10), ("B", 0, 20)}
    fresh = reader(source, **given)
    with pytest.raises(ConfigError, match=r"'startingOffsets' = 7: .* offsets 0 up to, not incl"):
        fresh.latestOffset(json_round(fresh.initialOffset()), ALL)


@pytest.mark.parametrize("count", [0, 9])
def test_a_repeated_first_batch_is_the_same(source: MemoryReader, count: int) -> None:
    """Spark requests the initial offset again, and the stores have changed since."""
    given = {"startingOffsets": "latest", "maxRecordsPerPartition": "4"}
    stream = reader(source, **given)
    start = stream.initialOffset()
    source.add(A, count)
    source.add(C, count // 3)
    end = stream.latestOffset(start, ALL)
    plan: list[Any] = stream.partitions(json_round(start), json_round(end))
    tasks = [("A", 10, 13), ("A", 13, 16), ("A", 16, 19), ("C", 0, 3)] if count else []
    ranges = [each for part in plan for each in part.ranges]
    assert [(each.partition, each.start, each.end) for each in ranges] == tasks
    source.add(A, 50)
    source.add(D, 7)
    source.trim(A, 10 + count)
    source.backwards = True
    replay = reader(source, **given)
    again = replay.initialOffset()
    assert again != start
    assert replay.partitions(json_round(again), json_round(end)) == plan
    after = replay.latestOffset(json_round(end), ALL)
    assert {("D", 0, 3), ("D", 3, 7)} <= planned(replay, end, after)
    assert min(span[1] for span in planned(replay, end, after) if span[0] == "A") == 10 + count


def test_a_new_partition_starts_at_its_first_record_forever(source: MemoryReader) -> None:
    stream = reader(source, startingOffsets="latest")
    start = stream.initialOffset()
    source.add(C, 9)
    source.trim(C, 4)
    end = stream.latestOffset(start, ALL)
    source.trim(C, 6)
    assert planned(reader(source), start, end) == {("C", 4, 9)}
    source.add(C, 1)
    assert planned(stream, end, stream.latestOffset(json_round(end), ALL)) == {("C", 9, 10)}


def test_the_given_limit_applies(source: MemoryReader) -> None:
    """Spark may request everything, whatever ``maxOffsetsPerTrigger`` is."""
    stream = reader(source, maxOffsetsPerTrigger="6")
    assert stream.getDefaultReadLimit() == ReadMaxRows(6)
    start = stream.initialOffset()
    limited = stream.latestOffset(start, ReadMaxRows(6))
    assert planned(stream, start, limited) == {("A", 0, 2), ("B", 0, 4)}
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 10, "B": 20}}
    with pytest.raises(TypeError, match=r"ReadMaxFiles"):
        stream.latestOffset(start, ReadMaxFiles(1))
    source.add(C, 100_000)
    offset = stream.initialOffset()
    for _ in range(60):
        offset = json_round(stream.latestOffset(offset, ReadMaxRows(2)))
    assert (offset["topics"]["t"]["A"], offset["topics"]["t"]["B"]) == (10, 20)


def test_a_small_batch_waits_for_more(source: MemoryReader) -> None:
    """The first batch comes at once, later ones when there are enough records, or in time."""
    stream = reader(source, minOffsetsPerTrigger="10", maxTriggerDelay="300ms")
    limit = stream.getDefaultReadLimit()
    first = json_round(stream.latestOffset(stream.initialOffset(), limit))
    source.add(A, 9)
    assert stream.latestOffset(first, limit) == first
    assert stream.latestOffset(first, ALL) != first
    source.add(A, 1)
    second = json_round(stream.latestOffset(first, limit))
    assert planned(stream, first, second) == {("A", 10, 20)}
    source.add(A, 1)
    began = time.monotonic()
    third = second
    while third == second:
        third = json_round(stream.latestOffset(second, limit))
        assert time.monotonic() < began + 10
    assert time.monotonic() - began > 0.2
    assert planned(stream, second, third) == {("A", 20, 21)}
    source.add(A, 1)
    stream.prepareForTriggerAvailableNow()
    assert planned(stream, third, stream.latestOffset(third, limit)) == {("A", 21, 22)}


def test_available_now_freezes_ends_and_partitions(source: MemoryReader) -> None:
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    source.add(A, 1000)
    source.add(C, 1000)
    half = stream.latestOffset(stream.initialOffset(), ReadMaxRows(15))
    end = stream.latestOffset(half, ReadMaxRows(15))
    assert end["topics"] == {"t": {"A": 10, "B": 20}}
    assert stream.latestOffset(end, ReadMaxRows(15)) == end
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(end, ALL)["topics"] == {"t": {"A": 1010, "B": 20, "C": 1000}}


def test_the_report_has_the_ends_and_the_lag(source: MemoryReader) -> None:
    stream = reader(source)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 10, "B": 20}}
    assert report["lag"]["avgOffsetsBehindLatest"] == 29 / 2


def test_a_batch_that_goes_backwards_is_refused(source: MemoryReader) -> None:
    stream = reader(source)
    end = everything(stream)
    source.add(A, 5)
    later = stream.latestOffset(end, ALL)
    for wrong in (end, {**later, "topics": {"t": {"B": 20}}}):
        with pytest.raises(ConfigError, match=r"'checkpointLocation' = 't/A': .* ends before it"):
            stream.partitions(json_round(later), {**json_round(wrong), "start": {}})


U = TopicPartition("u", "A")


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"subscribe": "t,u"}, None),
        ({"subscribePattern": "[tu]"}, None),
        ({"subscribe": "u"}, "option subscribe = 'u' does not select 2 of its partitions"),
        (
            {"subscribePattern": "u.*"},
            "option subscribePattern = 'u.*' does not select 2 of its partitions",
        ),
        (
            {"assign": '{"t": ["B"], "u": ["A"]}'},
            """option assign = '{"t": ["B"], "u": ["A"]}' does not select 1 of its partitions""",
        ),
    ],
)
def test_partitions_of_the_checkpoint_that_are_not_selected_are_warned_of(
    source: MemoryReader,
    given: dict[str, str],
    warning: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.add(U, 3)
    first = json_round(everything(reader(source, subscribe="t,u")))
    source.add(A, 1)
    source.add(U, 1)
    stream = reader(source, **given)
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        second = stream.latestOffset(first, ALL)
        stream.latestOffset(json_round(second), ALL)
    texts = [each.getMessage() for each in caplog.records if "checkpoint" in each.getMessage()]
    if warning is None:
        assert texts == []
    else:
        (text,) = texts
        assert text.startswith(
            f"the checkpoint has offsets of topics 't', 'u', and {warning} any more, in topics 't'"
        )
    read_a = set() if warning else {("A", 10, 11)}
    assert planned(stream, first, second) == {("A", 3, 4)} | read_a
    # They keep their positions: with the option set back the query continues there.
    again = reader(source, subscribe="t,u")
    assert ("A", 10, 11) in planned(again, first, again.latestOffset(json_round(second), ALL))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def allowed_after(self, idle: IdleWait, gap_s: float) -> float:
        """Return the wait of a question, which lasts as long, after this gap."""
        self.now += gap_s
        allowed_s = idle.allowed_s()
        self.now += allowed_s
        return allowed_s

    def idle_for(self, idle: IdleWait, seconds: float, gap_s: float) -> list[float]:
        found, end = [], self.now + seconds
        while self.now < end:
            idle.answered(idle=True)
            found.append(self.allowed_after(idle, gap_s))
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_wait_grows_while_a_query_is_idle(clock: Clock) -> None:
    idle = IdleWait()
    assert clock.allowed_after(idle, 0.01) == 0
    waits = clock.idle_for(idle, 10, 0.012)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (SHORT_S, LONG_S)
    idle.answered(idle=False)
    assert clock.allowed_after(idle, 0.012) == 0
    idle.answered(idle=True)
    assert clock.allowed_after(idle, 0.012) == SHORT_S


def test_a_query_with_a_trigger_interval_never_waits(clock: Clock) -> None:
    assert set(clock.idle_for(IdleWait(), 10, PAUSE_S + 0.1)) == {0.0}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_sources_delay_each_other_little(clock: Clock, count: int) -> None:
    """Each question comes after the others' waits."""
    sources = [IdleWait() for _ in range(count)]
    for source in sources:
        source.answered(idle=True)
    rounds_s = []
    for _ in range(200):
        clock.now += 0.01
        began = clock.now
        for source in sources:
            clock.allowed_after(source, 0.001)
            source.answered(idle=True)
        rounds_s.append(clock.now - began)
    assert max(rounds_s) <= count * (SHORT_S + 0.001) + 0.001
    assert min(rounds_s[10:]) >= SHORT_S
