"""Partitions that look shorter than what was read of them: waited for, and then decided."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
from dafka_spark.errors import PartitionVanishedError, StoreLostDataError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import regression_detector
from dafka_spark.source.stream_reader import DafkaStreamReader
from tests.memory_reader import MemoryReader
from tests.unit.dafka_spark.streams import ALL, everything, json_round, planned, reader

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")


class ChangingReader(MemoryReader):
    """Changes while a query waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._changes: list[Callable[[], object]] = []

    def change_later(self, change: Callable[[], object]) -> None:
        """At the third look from now on."""
        self._changes = [lambda: None, lambda: None, change]

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        if self._changes:
            self._changes.pop(0)()
        return super().partitions(topics, timeout_s=timeout_s)


class Clock:
    """Goes on when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(regression_detector, "time", found)
    return found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> ChangingReader:
    monkeypatch.setattr(timing, "LOOK_AGAIN_S", 0.001)
    memory = ChangingReader()
    memory.add(A, 10)
    memory.add(B, 20)
    return memory


LOSSES = [
    (lambda source: source.cut(A, 3), StoreLostDataError, "it ends at 3 now"),
    (lambda source: source.drop(A), PartitionVanishedError, "no store has the partition"),
]


@pytest.mark.parametrize(("lose", "error", "says"), LOSSES)
def test_what_stays_lower_is_lost(
    source: MemoryReader, clock: Clock, lose: Any, error: type[Exception], says: str
) -> None:
    stream = reader(source, fetchtimeoutms="1")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    lose(source)
    assert stream.latestOffset(first, ALL) == first  # a moment may be all that it was

    def look() -> bool:
        clock.now_s += 0.0009  # triggers follow each other soon enough for the time to count
        return stream.latestOffset(first, ALL) != first

    with pytest.raises(error, match=rf"^\[DAFKA_.*{says}.*Start .*failOnDataLoss") as caught:
        wait_until(look)
    assert caught.value.wanted == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize(("lose", "error", "says"), LOSSES)
def test_what_stays_lower_is_warned_of_once(
    source: MemoryReader,
    caplog: pytest.LogCaptureFixture,
    lose: Any,
    error: type[Exception],
    says: str,
) -> None:
    stream = reader(source, fetchtimeoutms="1", failondataloss="false")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    lose(source)

    def look() -> bool:
        assert stream.latestOffset(first, ALL) == first
        return says in caplog.text

    wait_until(look)
    source.add(TopicPartition("t", "C"), 4)
    after = stream.latestOffset(first, ALL)  # the others go on
    assert planned(stream, first, after) == {("C", 0, 4)}
    assert caplog.text.count(says) == 1
    assert "as failOnDataLoss is false. Start" in caplog.text


@pytest.mark.parametrize(("lose", "error", "says"), LOSSES)
def test_what_was_lower_for_a_moment_only_is_forgotten(
    source: MemoryReader, clock: Clock, lose: Any, error: type[Exception], says: str
) -> None:
    """The next moment is not added to it."""
    stream = reader(source, fetchtimeoutms="1000")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    kept = list(source.logs[A])
    for _ in range(6):
        lose(source)
        assert stream.latestOffset(first, ALL) == first
        clock.now_s += 0.3
        source.logs[A] = list(kept)
        assert stream.latestOffset(first, ALL) == first


def test_nothing_else_waits_for_a_partition_that_looks_lower(source: MemoryReader) -> None:
    stream = reader(source)
    first = stream.latestOffset(stream.initialOffset(), ALL)
    source.drop(A)
    source.add(B, 5)
    after = stream.latestOffset(first, ALL)
    assert planned(stream, first, after) == {("B", 20, 25)}
    assert after["topics"]["t"]["A"] == 10


def test_a_partition_without_records_may_go_away(source: MemoryReader) -> None:
    source.add(TopicPartition("t", "Z"), 0)
    stream = reader(source, fetchtimeoutms="1")
    stream.prepareForTriggerAvailableNow()
    first = stream.latestOffset(stream.initialOffset(), ALL)
    assert json_round(stream.initialOffset())["topics"]["t"]["Z"] == 0
    source.drop(TopicPartition("t", "Z"))
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(first, ALL) == first


def test_partitions_that_are_not_read_any_more_are_not_missed(source: MemoryReader) -> None:
    first = everything(reader(source))
    source.drop(A)
    options = {"assign": '{"t": ["B"]}', "startingoffsets": "earliest", "fetchtimeoutms": "1"}
    stream = DafkaStreamReader(full(), SourceOptions.of(options), source.connect)
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(first, ALL) == first


def test_available_now_waits_for_a_store_that_is_catching_up(source: ChangingReader) -> None:
    first = everything(reader(source))
    source.cut(A, 3)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    source.change_later(lambda: source.add(A, 9))
    source.add(B, 9)  # came later: not of this run
    after = stream.latestOffset(first, ALL)
    assert planned(stream, first, after) == {("A", 10, 12)}
    assert stream.latestOffset(after, ALL) == after


def test_available_now_waits_for_a_partition_that_nobody_knows(source: ChangingReader) -> None:
    first = everything(reader(source))
    kept = source.logs.pop(A)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    source.change_later(lambda: source.logs.update({A: kept}))
    assert stream.latestOffset(first, ALL) == first


@pytest.mark.parametrize(("lose", "error", "says"), LOSSES)
def test_available_now_fails_for_lost_records(
    source: MemoryReader, lose: Any, error: type[Exception], says: str
) -> None:
    first = everything(reader(source))
    lose(source)
    stream = reader(source, fetchtimeoutms="1")
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(error, match=says):
        stream.latestOffset(first, ALL)


def test_a_query_that_looks_seldom_waits_for_stores(source: ChangingReader, clock: Clock) -> None:
    """Looks that lie an hour apart are no patience: both may fall into a moment."""
    stream = reader(source, fetchtimeoutms="300")
    first = everything(stream)
    kept = list(source.logs[A])
    source.cut(A, 3)
    assert stream.latestOffset(first, ALL) == first
    clock.now_s += 3600.0
    source.change_later(lambda: source.logs.update({A: kept}))
    assert stream.latestOffset(first, ALL) == first
    assert source.logs[A] == kept


def test_trimmed_records_are_skipped_only_if_allowed(
    source: MemoryReader, caplog: pytest.LogCaptureFixture
) -> None:
    first = reader(source).initialOffset()
    source.trim(B, 15)
    strict, lenient = reader(source), reader(source, failondataloss="false")
    assert ("B", 0, 20) in planned(strict, first, strict.latestOffset(first, ALL))
    end = lenient.latestOffset(first, ALL)
    assert planned(lenient, first, end) == {("A", 0, 10), ("B", 15, 20)}
    assert "offset 0 was asked for, offset 15 on is available" in caplog.text
