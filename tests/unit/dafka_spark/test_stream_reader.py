"""Offsets and plans of the streaming source, and the traps of Spark's contract."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

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

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")
C = TopicPartition("t", "C")


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader()
    memory.add(A, 10)
    memory.add(B, 20)
    return memory


def test_nothing_is_opened_before_it_is_needed(source: MemoryReader) -> None:
    stream = reader(source)
    stream.getDefaultReadLimit()
    assert source.calls == []
    assert stream.reportLatestOffset() is None


def test_it_travels_and_connects_where_it_comes_to(
    source: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SourceOptions.of({"subscribe": "t", "startingOffsets": "earliest"})
    pickled = pickle.dumps(DafkaMicroBatchStream(full(), options))
    monkeypatch.setattr(connections, "lend_kept", source.connect)
    stream: DafkaMicroBatchStream = pickle.loads(pickled)
    start = stream.initialOffset()
    assert planned(stream, start, stream.latestOffset(start, ALL)) == {("A", 0, 10), ("B", 0, 20)}


def test_first_and_following_batches(source: MemoryReader) -> None:
    stream = reader(source)
    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    assert planned(stream, start, first) == {("A", 0, 10), ("B", 0, 20)}
    source.add(A, 5)
    second = stream.latestOffset(first, ALL)
    assert planned(stream, first, second) == {("A", 10, 15)}
    assert second["start"] == {}


def test_an_unchanged_offset_is_the_same_text(source: MemoryReader) -> None:
    """Trap: Spark compares offsets as text."""
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.backwards = True
    assert json.dumps(stream.latestOffset(json_round(first), ALL)) == json.dumps(first)
    source.backwards = False
    again = reader(source)
    assert json.dumps(again.latestOffset(again.initialOffset(), ALL)) == json.dumps(first)


def test_empty_ranges_make_no_tasks(source: MemoryReader) -> None:
    """Trap: Spark plans empty batches, also with a start that is its own batch's."""
    stream = reader(source)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, start) == set()
    assert planned(stream, end, end) == set()


def test_batch_zero_replayed_with_latest_reads_the_same(source: MemoryReader) -> None:
    """Trap: at a replay of batch 0 Spark asks for the initial offset again."""
    stream = reader(source, startingoffsets="latest")
    start = stream.initialOffset()
    source.add(A, 5)
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("A", 10, 15)}
    source.add(A, 100)
    replay = reader(source, startingoffsets="latest")
    assert planned(replay, replay.initialOffset(), end) == {("A", 10, 15)}
    after = replay.latestOffset(json_round(end), ALL)
    assert planned(replay, end, after) == {("A", 15, 115)}


def test_an_empty_batch_zero_replayed_with_latest(source: MemoryReader) -> None:
    stream = reader(source, startingoffsets="latest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end == start
    source.add(A, 5)
    replay = reader(source, startingoffsets="latest")
    assert planned(replay, replay.initialOffset(), end) == set()
    after = replay.latestOffset(json_round(end), ALL)
    assert planned(replay, end, after) == {("A", 10, 15)}


def test_new_partitions_start_at_their_first_record(source: MemoryReader) -> None:
    stream = reader(source, startingoffsets="latest")
    start = stream.initialOffset()
    source.add(C, 9)
    source.trim(C, 4)
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("C", 4, 9)}
    source.add(C, 1)
    after = stream.latestOffset(json_round(end), ALL)
    assert planned(stream, end, after) == {("C", 9, 10)}


def test_a_replay_starts_a_new_partition_where_it_did_before(source: MemoryReader) -> None:
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.add(C, 9)
    end = stream.latestOffset(first, ALL)
    source.trim(C, 4)
    assert planned(reader(source), first, end) == {("C", 0, 9)}


def test_starting_offsets_by_partition(source: MemoryReader) -> None:
    stream = reader(source, startingoffsets='{"t": {"A": 7}}')
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("A", 7, 10), ("B", 0, 20)}


def test_the_limit_given_is_obeyed(source: MemoryReader) -> None:
    """Trap: Spark may ask for everything, whatever ``maxOffsetsPerTrigger`` says."""
    stream = reader(source, maxoffsetspertrigger="6")
    assert stream.getDefaultReadLimit() == ReadMaxRows(6)
    start = stream.initialOffset()
    limited = stream.latestOffset(start, ReadMaxRows(6))
    assert planned(stream, start, limited) == {("A", 0, 2), ("B", 0, 4)}
    everything = stream.latestOffset(start, ALL)
    assert planned(stream, start, everything) == {("A", 0, 10), ("B", 0, 20)}
    with pytest.raises(TypeError, match=r"ReadMaxFiles"):
        stream.latestOffset(start, ReadMaxFiles(1))


def test_no_partition_starves(source: MemoryReader) -> None:
    source.add(C, 100_000)
    stream = reader(source)
    offset = stream.initialOffset()
    for _ in range(60):
        offset = json_round(stream.latestOffset(offset, ReadMaxRows(2)))
    assert offset["topics"]["t"]["A"] == 10
    assert offset["topics"]["t"]["B"] == 20


def test_what_the_limit_is_by_default(source: MemoryReader) -> None:
    assert reader(source).getDefaultReadLimit() == ReadMaxBytes(4 << 30)
    assert reader(source, maxbytespertrigger="unlimited").getDefaultReadLimit() == ALL


def test_a_small_batch_waits_for_more(source: MemoryReader) -> None:
    """As Kafka's: the first batch comes at once, later ones when there is enough, or in time."""
    given = {"minoffsetspertrigger": "10", "maxtriggerdelay": "300ms"}
    stream = reader(source, **given)
    limit = stream.getDefaultReadLimit()
    first = stream.latestOffset(stream.initialOffset(), limit)
    source.add(A, 9)
    assert stream.latestOffset(json_round(first), limit) == json_round(first)
    source.add(A, 1)
    second = stream.latestOffset(json_round(first), limit)
    assert planned(stream, first, second) == {("A", 10, 20)}
    source.add(A, 1)
    began = time.monotonic()
    third = second
    while third == second:
        third = json_round(stream.latestOffset(json_round(second), limit))
        assert time.monotonic() < began + 10
    assert 0.2 < time.monotonic() - began < 5
    assert planned(stream, second, third) == {("A", 20, 21)}


def test_what_ends_by_itself_waits_for_nothing(source: MemoryReader) -> None:
    stream = reader(source, minoffsetspertrigger="1000", maxtriggerdelay="1h")
    limit = stream.getDefaultReadLimit()
    first = stream.latestOffset(stream.initialOffset(), limit)
    source.add(A, 9)
    assert stream.latestOffset(json_round(first), limit) == json_round(first)
    assert stream.latestOffset(json_round(first), ALL) != json_round(first)
    stream.prepareForTriggerAvailableNow()
    assert planned(stream, first, stream.latestOffset(first, limit)) == {("A", 10, 19)}


def test_available_now_freezes_heads_and_partitions(source: MemoryReader) -> None:
    stream = reader(source)
    assert isinstance(stream, SupportsTriggerAvailableNow)
    stream.prepareForTriggerAvailableNow()
    source.add(A, 1000)
    source.add(C, 1000)
    start = stream.initialOffset()
    half = stream.latestOffset(start, ReadMaxRows(15))
    end = stream.latestOffset(half, ReadMaxRows(15))
    assert end["topics"] == {"t": {"A": 10, "B": 20}}
    assert stream.latestOffset(end, ReadMaxRows(15)) == end
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(end, ALL)["topics"] == {"t": {"A": 1010, "B": 20, "C": 1000}}


def test_the_report_tells_the_ends(source: MemoryReader) -> None:
    stream = reader(source)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 10, "B": 20}}


def test_offsets_never_go_backwards(source: MemoryReader) -> None:
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.cut(A, 3)
    source.drop(B)
    assert stream.latestOffset(json_round(first), ALL) == first
    source.add(B, 1)
    assert stream.latestOffset(json_round(first), ALL) == first


def test_ranges_are_split(source: MemoryReader) -> None:
    stream = reader(source, maxrecordsperpartition="6")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert len(planned(stream, start, end)) == 6


# -- the first offset is fixed for ever ------------------------------------------------------------


def test_batch_zero_is_the_same_whatever_has_changed(source: MemoryReader) -> None:
    stream = reader(source, startingoffsets="latest", maxrecordsperpartition="4")
    start = stream.initialOffset()
    source.add(A, 9)
    source.add(C, 3)
    end = stream.latestOffset(start, ALL)
    plan: list[Any] = stream.partitions(json_round(start), json_round(end))
    source.add(A, 50)
    source.add(TopicPartition("t", "D"), 7)
    source.trim(A, 14)
    source.backwards = True
    replay = reader(source, startingoffsets="latest", maxrecordsperpartition="4")
    again = replay.initialOffset()
    assert again != start
    assert replay.partitions(json_round(again), json_round(end)) == plan
    assert [(each.partition, each.start, each.end) for part in plan for each in part.ranges] == [
        ("A", 10, 13),
        ("A", 13, 16),
        ("A", 16, 19),
        ("C", 0, 3),
    ]
    after = replay.latestOffset(json_round(end), ALL)
    assert {("D", 0, 3), ("D", 3, 7)} <= planned(replay, end, after)


def test_starting_offsets_that_only_look_too_far_do_not_stop_a_replay(
    source: MemoryReader,
) -> None:
    given = {"startingoffsets": '{"t": {"A": 7}}'}
    stream = reader(source, **given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    source.cut(A, 3)
    replay = reader(source, **given)
    assert planned(replay, replay.initialOffset(), end) == {("A", 7, 10), ("B", 0, 20)}
    fresh = reader(source, **given)
    with pytest.raises(ConfigError, match=r"'startingOffsets' = 7: .* offsets 0 up to, not incl"):
        fresh.latestOffset(json_round(fresh.initialOffset()), ALL)


def test_a_batch_that_goes_backwards_is_refused(source: MemoryReader) -> None:
    stream = reader(source)
    end = everything(stream)
    source.add(A, 5)
    later = stream.latestOffset(end, ALL)
    for wrong in (end, {**later, "topics": {"t": {"B": 20}}}):
        with pytest.raises(ConfigError, match=r"'checkpointLocation' = 't/A': .* ends before it"):
            stream.partitions(json_round(later), {**json_round(wrong), "start": {}})


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def asked_after(self, idle: IdleWait, gap_s: float, *, waits: bool = True) -> float:
        """How long a question waits that comes so long after the last answer."""
        self.now += gap_s
        allowed_s = idle.allowed_s()
        self.now += allowed_s if waits else 0
        return allowed_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def rounds(clock: Clock, idle: IdleWait, gap_s: float, seconds: float) -> list[float]:
    """What is waited, question by question, while nothing comes for so long."""
    found, end = [], clock.now + seconds
    while clock.now < end:
        found.append(clock.asked_after(idle, gap_s))
        idle.answered(idle=True)
    return found


def test_nobody_waits_before_there_was_nothing(clock: Clock) -> None:
    idle = IdleWait()
    assert clock.asked_after(idle, 0.01) == 0
    idle.answered(idle=False)
    assert clock.asked_after(idle, 0.01) == 0


def test_who_is_idle_for_longer_waits_for_longer(clock: Clock) -> None:
    idle = IdleWait()
    idle.answered(idle=True)
    waited = rounds(clock, idle, 0.012, 10)
    assert waited == sorted(waited)
    assert (waited[0], waited[-1]) == (SHORT_S, LONG_S)
    idle.answered(idle=False)
    assert clock.asked_after(idle, 0.012) == 0
    idle.answered(idle=True)
    assert clock.asked_after(idle, 0.012) == SHORT_S


def test_a_query_with_a_trigger_interval_is_not_kept_waiting(clock: Clock) -> None:
    idle = IdleWait()
    idle.answered(idle=True)
    assert set(rounds(clock, idle, PAUSE_S + 0.1, 10)) == {0.0}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_sources_do_not_keep_each_other_waiting_for_long(clock: Clock, count: int) -> None:
    """Each is asked after the others: what they wait is the gap between its questions."""
    sources = [IdleWait() for _ in range(count)]
    for source in sources:
        source.answered(idle=True)
    rounds_s = []
    for _ in range(200):
        clock.now += 0.01
        began = clock.now
        for source in sources:
            clock.asked_after(source, 0.001)
            source.answered(idle=True)
        rounds_s.append(clock.now - began)
    assert max(rounds_s) <= count * (SHORT_S + 0.001) + 0.001
    assert min(rounds_s[10:]) >= SHORT_S
