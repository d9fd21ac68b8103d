"""Offsets and plans of the streaming source, and the traps of Spark's contract."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dafka_core.errors import DataLossError
from dafka_spark import connections
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.stream import DafkaStreamReader
from tests.spark.memory import MemorySource

ALL = ReadAllAvailable()


@pytest.fixture
def source() -> MemorySource:
    memory = MemorySource()
    memory.add("t", "A", 10)
    memory.add("t", "B", 20)
    return memory


def reader(source: MemorySource, **given: str) -> DafkaStreamReader:
    options = SourceOptions.of({"subscribe": "t", "startingoffsets": "earliest", **given})
    return DafkaStreamReader(full(), options, source.connect)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline


def json_round(offset: Any) -> Any:
    """What Spark does with an offset."""
    return json.loads(json.dumps(offset))


def everything(stream: DafkaStreamReader) -> dict[str, Any]:
    return stream.latestOffset(stream.initialOffset(), ALL)


def planned(stream: DafkaStreamReader, start: Any, end: Any) -> Any:
    parts = stream.partitions(json_round(start), json_round(end))
    return {(part.partition, part.start, part.end) for part in parts}


def test_nothing_is_opened_before_it_is_needed(source: MemorySource) -> None:
    stream = reader(source)
    stream.getDefaultReadLimit()
    assert source.calls == []
    assert stream.reportLatestOffset() is None


def test_it_is_picklable() -> None:
    options = SourceOptions.of({"subscribe": "t"})
    stream = pickle.loads(pickle.dumps(DafkaStreamReader(full(), options)))
    assert stream._connect is connections.lend


def test_first_and_following_batches(source: MemorySource) -> None:
    stream = reader(source)
    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    assert planned(stream, start, first) == {("A", 0, 10), ("B", 0, 20)}
    source.add("t", "A", 5)
    second = stream.latestOffset(first, ALL)
    assert planned(stream, first, second) == {("A", 10, 15)}
    assert second["start"] == {}


def test_an_unchanged_offset_is_the_same_text(source: MemorySource) -> None:
    """Trap: Spark compares offsets as text."""
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.backwards = True
    assert json.dumps(stream.latestOffset(json_round(first), ALL)) == json.dumps(first)
    source.backwards = False
    again = reader(source)
    assert json.dumps(again.latestOffset(again.initialOffset(), ALL)) == json.dumps(first)


def test_empty_ranges_make_no_tasks(source: MemorySource) -> None:
    """Trap: Spark plans empty batches, also with a start that is its own batch's."""
    stream = reader(source)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, start) == set()
    assert planned(stream, end, end) == set()


def test_batch_zero_replayed_with_latest_reads_the_same(source: MemorySource) -> None:
    """Trap: at a replay of batch 0 Spark asks for the initial offset again."""
    stream = reader(source, startingoffsets="latest")
    start = stream.initialOffset()
    source.add("t", "A", 5)
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("A", 10, 15)}
    source.add("t", "A", 100)
    replay = reader(source, startingoffsets="latest")
    assert planned(replay, replay.initialOffset(), end) == {("A", 10, 15)}
    after = replay.latestOffset(json_round(end), ALL)
    assert planned(replay, end, after) == {("A", 15, 115)}


def test_an_empty_batch_zero_replayed_with_latest(source: MemorySource) -> None:
    stream = reader(source, startingoffsets="latest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end == start
    source.add("t", "A", 5)
    replay = reader(source, startingoffsets="latest")
    assert planned(replay, replay.initialOffset(), end) == set()
    after = replay.latestOffset(json_round(end), ALL)
    assert planned(replay, end, after) == {("A", 10, 15)}


def test_new_partitions_start_at_their_first_record(source: MemorySource) -> None:
    stream = reader(source, startingoffsets="latest")
    start = stream.initialOffset()
    source.add("t", "C", 9)
    source.trim("t", "C", 4)
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("C", 4, 9)}
    source.add("t", "C", 1)
    after = stream.latestOffset(json_round(end), ALL)
    assert planned(stream, end, after) == {("C", 9, 10)}


def test_a_replay_starts_a_new_partition_where_it_did_before(source: MemorySource) -> None:
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.add("t", "C", 9)
    end = stream.latestOffset(first, ALL)
    source.trim("t", "C", 4)
    assert planned(reader(source), first, end) == {("C", 0, 9)}


def test_starting_offsets_by_partition(source: MemorySource) -> None:
    stream = reader(source, startingoffsets='{"t": {"A": 7}}')
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert planned(stream, start, end) == {("A", 7, 10), ("B", 0, 20)}


def test_the_limit_given_is_obeyed(source: MemorySource) -> None:
    """Trap: Spark may ask for everything, whatever ``maxOffsetsPerTrigger`` says."""
    stream = reader(source, maxoffsetspertrigger="6")
    assert stream.getDefaultReadLimit() == ReadMaxRows(6)
    start = stream.initialOffset()
    limited = stream.latestOffset(start, ReadMaxRows(6))
    assert planned(stream, start, limited) == {("A", 0, 2), ("B", 0, 4)}
    everything = stream.latestOffset(start, ALL)
    assert planned(stream, start, everything) == {("A", 0, 10), ("B", 0, 20)}
    with pytest.raises(TypeError, match=r"ReadMaxBytes"):
        stream.latestOffset(start, ReadMaxBytes(1))


def test_no_partition_starves(source: MemorySource) -> None:
    source.add("t", "C", 100_000)
    stream = reader(source)
    offset = stream.initialOffset()
    for _ in range(60):
        offset = json_round(stream.latestOffset(offset, ReadMaxRows(2)))
    assert offset["topics"]["t"]["A"] == 10
    assert offset["topics"]["t"]["B"] == 20


def test_no_limit_by_default(source: MemorySource) -> None:
    assert reader(source).getDefaultReadLimit() == ALL


def test_available_now_freezes_heads_and_partitions(source: MemorySource) -> None:
    stream = reader(source)
    assert isinstance(stream, SupportsTriggerAvailableNow)
    stream.prepareForTriggerAvailableNow()
    source.add("t", "A", 1000)
    source.add("t", "C", 1000)
    start = stream.initialOffset()
    half = stream.latestOffset(start, ReadMaxRows(15))
    end = stream.latestOffset(half, ReadMaxRows(15))
    assert end["topics"] == {"t": {"A": 10, "B": 20}}
    assert stream.latestOffset(end, ReadMaxRows(15)) == end
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(end, ALL)["topics"] == {"t": {"A": 1010, "B": 20, "C": 1000}}


def test_the_report_tells_the_ends(source: MemorySource) -> None:
    stream = reader(source)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 10, "B": 20}}


def test_offsets_never_go_backwards(source: MemorySource) -> None:
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.cut("t", "A", 3)
    del source.logs["t", "B"]
    assert stream.latestOffset(json_round(first), ALL) == first
    source.add("t", "B", 1)
    assert stream.latestOffset(json_round(first), ALL) == first


def test_a_partition_that_stays_too_short_is_lost_data(source: MemorySource) -> None:
    stream = reader(source, fetchtimeoutms="1")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.cut("t", "A", 3)

    def look() -> bool:
        return stream.latestOffset(first, ALL) != first

    with pytest.raises(DataLossError, match=r"it ends at 3 now.*failOnDataLoss"):
        wait_until(look)


def test_a_partition_that_stays_too_short_is_warned_of(
    source: MemorySource, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(source, fetchtimeoutms="1", failondataloss="false")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.cut("t", "A", 3)

    def look() -> bool:
        assert stream.latestOffset(first, ALL) == first
        return "it ends at 3 now" in caplog.text

    wait_until(look)


def test_available_now_waits_for_a_store_that_is_catching_up(source: MemorySource) -> None:
    first = everything(reader(source))
    source.cut("t", "A", 3)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    threading.Timer(0.1, source.add, ("t", "A", 7)).start()
    assert stream.latestOffset(first, ALL) == first


def test_available_now_fails_for_lost_records(source: MemorySource) -> None:
    first = everything(reader(source))
    source.cut("t", "A", 3)
    stream = reader(source, fetchtimeoutms="1")
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=r"it ends at 3 now.*failOnDataLoss"):
        stream.latestOffset(first, ALL)


def test_trimmed_records_are_skipped_only_if_allowed(
    source: MemorySource, caplog: pytest.LogCaptureFixture
) -> None:
    first = reader(source).initialOffset()
    source.trim("t", "B", 15)
    strict, lenient = reader(source), reader(source, failondataloss="false")
    assert ("B", 0, 20) in planned(strict, first, strict.latestOffset(first, ALL))
    end = lenient.latestOffset(first, ALL)
    assert planned(lenient, first, end) == {("A", 0, 10), ("B", 15, 20)}
    assert "offset 0 was asked for, offset 15 on is available" in caplog.text


def test_ranges_are_split(source: MemorySource) -> None:
    stream = reader(source, maxrecordsperpartition="6")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert len(planned(stream, start, end)) == 6
