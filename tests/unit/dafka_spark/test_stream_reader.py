"""Offsets and plans of the streaming source, and the traps of Spark's contract."""

import json
import math
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.errors import ConfigError
from dafka_core.model.records import TopicPartition
from dafka_spark.cluster import connections
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.micro_batch_stream import (
    LONG_S,
    PAUSE_S,
    POLLING_GAP_S,
    SHORT_S,
    DafkaMicroBatchStream,
    idle_wait_s,
)
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, json_round, planned, reader

A, B, C, D = (TopicPartition("t", name) for name in "ABCD")
U = TopicPartition("u", "A")


@pytest.fixture
def source() -> MemoryReader:
    return MemoryReader({A: 10, B: 20})


def test_it_is_pickled_and_connects_on_demand(
    source: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SourceOptions.of({"subscribe": "t", "startingOffsets": "earliest", "queryname": "q"})
    pickled = pickle.dumps(DafkaMicroBatchStream(full(), options))
    monkeypatch.setattr(connections, "borrow_reader_for_query", source.connect)
    stream: DafkaMicroBatchStream = pickle.loads(pickled)
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
    for wrong in (first, {**second, "topics": {"t": {"B": 20}}}):
        with pytest.raises(ConfigError, match=r"'checkpointLocation' = 't/A': .* ends before it"):
            stream.partitions(json_round(second), {**json_round(wrong), "start": {}})


def test_a_start_beyond_the_end_fails_only_new_queries(source: MemoryReader) -> None:
    given = {"startingOffsets": '{"t": {"A": 7}}'}
    stream = reader(source, **given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("A", 7, 10), ("B", 0, 20)}
    source.cut(A, 3)
    replay, fresh = reader(source, **given), reader(source, **given)
    assert planned(replay, replay.initialOffset(), end) == {("A", 7, 10), ("B", 0, 20)}
    with pytest.raises(ConfigError, match=r"'startingOffsets' = 7: .* offsets 0 up to, not incl"):
        fresh.latestOffset(json_round(fresh.initialOffset()), ALL)


def test_an_error_reaches_spark_without_frames(source: MemoryReader) -> None:
    with pytest.raises(ConfigError) as caught:
        reader(source, fetch="flight").prepareForTriggerAvailableNow()
    assert {each.path for each in caught.traceback} == {Path(__file__)}


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
    after = planned(replay, end, replay.latestOffset(json_round(end), ALL))
    assert {("D", 0, 3), ("D", 3, 7)} <= after
    assert min(first for name, first, _ in after if name == "A") == 10 + count


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


def test_every_partition_advances_by_the_given_limit(source: MemoryReader) -> None:
    """Spark may request everything, whatever ``maxOffsetsPerTrigger`` is."""
    stream = reader(source, maxOffsetsPerTrigger="6")
    start = stream.initialOffset()
    limited = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert planned(stream, start, limited) == {("A", 0, 2), ("B", 0, 4)}
    assert stream.latestOffset(start, ALL)["topics"] == {"t": {"A": 10, "B": 20}}
    source.add(C, 100_000)
    offset = start
    for _ in range(60):
        offset = json_round(stream.latestOffset(offset, ReadMaxRows(2)))
    assert (offset["topics"]["t"]["A"], offset["topics"]["t"]["B"]) == (10, 20)


def test_a_small_batch_waits_for_more(source: MemoryReader) -> None:
    """The first batch comes at once, later ones with enough records, or after the delay."""
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
    began, third = time.monotonic(), second
    while third == second:
        third = json_round(stream.latestOffset(second, limit))
        assert time.monotonic() < began + 60
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


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"subscribe": "t,u"}, ""),
        ({"subscribePattern": "[tu]"}, ""),
        ({"subscribe": "u"}, "option subscribe = 'u' does not select 2"),
        ({"subscribePattern": "u.*"}, "option subscribePattern = 'u.*' does not select 2"),
        (
            {"assign": '{"t": ["B"], "u": ["A"]}'},
            """option assign = '{"t": ["B"], "u": ["A"]}' does not select 1""",
        ),
    ],
)
def test_partitions_of_the_checkpoint_that_are_not_selected_are_warned_of(
    source: MemoryReader, given: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They keep their positions: with the option set back the query continues there."""
    source.add(U, 3)
    first = json_round(everything(reader(source, subscribe="t,u")))
    source.add(A, 1)
    source.add(U, 1)
    stream = reader(source, **given)
    second = stream.latestOffset(first, ALL)
    stream.latestOffset(json_round(second), ALL)
    assert len(caplog.messages) == bool(warning)
    for text in caplog.messages:
        assert text.startswith(f"{warning} of the checkpoint's 3 partitions any more")
        assert "the first one topic 't', partition A: the query does not read them" in text
    read_a = set() if warning else {("A", 10, 11)}
    assert planned(stream, first, second) == {("A", 3, 4)} | read_a
    again = reader(source, subscribe="t,u")
    assert ("A", 10, 11) in planned(again, first, again.latestOffset(json_round(second), ALL))


def test_an_idle_query_waits_unless_it_has_a_trigger_interval() -> None:
    gaps_s = (0.012, POLLING_GAP_S + 0.001, PAUSE_S + 0.1, math.inf)
    assert [*map(idle_wait_s, gaps_s)] == [LONG_S, SHORT_S, 0.0, 0.0]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_idle_sources_delay_each_other_little(count: int) -> None:
    """Each trigger comes to a source after the waits of the others."""
    waits_s = [LONG_S] * count
    for _ in range(20):
        for index in range(count):
            waits_s[index] = idle_wait_s(0.01 + sum(waits_s) - waits_s[index])
    assert 0 < sum(waits_s) <= LONG_S
