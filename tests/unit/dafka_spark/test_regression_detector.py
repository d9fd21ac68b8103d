"""Partitions that look shorter than what was read of them: waited for, and then decided."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.records import TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
from dafka_spark.errors import HeadBehindError, PartitionVanishedError, StoreLostDataError
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.stream_reader import DafkaStreamReader
from tests.integration.cluster.stores import HeardOf, Served
from tests.memory_reader import MemoryReader
from tests.spark.streams import ALL, everything, json_round, planned, reader

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")

Serve = Callable[[str], Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts stores, by name."""
    with ExitStack() as running:
        yield lambda name: running.enter_context(Served(tmp_path / name, name))


@pytest.fixture
def source() -> MemoryReader:
    memory = MemoryReader()
    memory.add(A, 10)
    memory.add(B, 20)
    return memory


LOSSES = [
    (lambda source: source.cut(A, 3), StoreLostDataError, "it ends at 3 now"),
    (lambda source: source.drop(A), PartitionVanishedError, "no store has the partition"),
]


@pytest.mark.parametrize(("lose", "error", "says"), LOSSES)
def test_what_stays_lower_is_lost(
    source: MemoryReader, lose: Any, error: type[Exception], says: str
) -> None:
    stream = reader(source, fetchtimeoutms="1")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    lose(source)
    assert stream.latestOffset(first, ALL) == first  # a moment may be all that it was

    def look() -> bool:
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
    source: MemoryReader, lose: Any, error: type[Exception], says: str
) -> None:
    """The next moment is not added to it."""
    stream = reader(source, fetchtimeoutms="1000")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    kept = list(source.logs[A])
    for _ in range(6):
        lose(source)
        assert stream.latestOffset(first, ALL) == first
        time.sleep(0.3)
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


def test_available_now_waits_for_a_store_that_is_catching_up(source: MemoryReader) -> None:
    first = everything(reader(source))
    source.cut(A, 3)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    threading.Timer(0.1, source.add, (A, 9)).start()
    source.add(B, 9)  # came later: not of this run
    after = stream.latestOffset(first, ALL)
    assert planned(stream, first, after) == {("A", 10, 12)}
    assert stream.latestOffset(after, ALL) == after


def test_available_now_waits_for_a_partition_that_nobody_knows(source: MemoryReader) -> None:
    first = everything(reader(source))
    kept = source.logs.pop(A)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    threading.Timer(0.1, source.logs.update, ([(A, kept)],)).start()
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


def test_a_query_that_looks_seldom_waits_for_stores(
    source: MemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks that lie an hour apart are no patience: both may fall into a moment."""
    monkeypatch.setattr(timing, "LOOK_AGAIN_S", 0.01)
    stream = reader(source, fetchtimeoutms="300")
    first = everything(stream)
    kept = list(source.logs[A])
    source.cut(A, 3)
    assert stream.latestOffset(first, ALL) == first
    time.sleep(0.4)
    threading.Timer(0.1, source.logs.update, ([(A, kept)],)).start()
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


# -- who had it, and whether that one answers ------------------------------------------------------


def lost_by(stream: DafkaStreamReader, offset: Any) -> DafkaError:
    """What a stream says of an offset that it cannot go on from, after a while."""
    for _ in range(1_000):
        try:
            assert stream.latestOffset(offset, ALL) == offset
        except DafkaError as error:
            return error
        time.sleep(0.02)
    pytest.fail("it goes on")


def test_a_store_that_had_more_and_is_away_has_not_lost_it(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    behind.add(A, 60)
    source = HeardOf([ahead, behind])
    stream = reader(source, fetchtimeoutms="400")
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    port = ahead.port
    ahead.stop()
    loss = lost_by(stream, offset)
    assert isinstance(loss, HeadBehindError)
    assert (loss.wanted, loss.end, loss.store) == (100, 60, "ahead")
    assert "[DAFKA_HEAD_BEHIND]" in str(loss)
    assert "Start store ahead again" in str(loss)
    # The mesh does not even hear of it any more: that makes no difference.
    source.served.remove(ahead)
    assert isinstance(lost_by(stream, offset), HeadBehindError)
    ahead.start(port)
    source.served.append(ahead)
    ahead.add(A, 5)
    after = stream.latestOffset(offset, ALL)
    assert after["topics"] == {"t": {"A": 105}}


def test_a_store_that_had_more_and_answers_has_lost_it(serve: Serve, tmp_path: Path) -> None:
    store, other = serve("one"), serve("other")
    store.add(A, 100)
    other.add(B, 1)
    source = HeardOf([store, other])
    stream = reader(source, fetchtimeoutms="400")
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    with Served(tmp_path / "restored", "one") as restored:
        restored.add(A, 30)
        source.served[0] = restored
        loss = lost_by(stream, offset)
        assert isinstance(loss, StoreLostDataError)
        assert (loss.wanted, loss.end) == (100, 30)
    with Served(tmp_path / "emptied", "one") as emptied:
        source.served[0] = emptied
        vanished = lost_by(stream, offset)
        assert isinstance(vanished, PartitionVanishedError)
        assert vanished.partition == "A"


def test_the_last_store_seen_with_a_partition_that_vanished_is_named(serve: Serve) -> None:
    store, other = serve("one"), serve("other")
    store.add(A, 100)
    other.add(B, 1)
    source = HeardOf([store, other])
    stream = reader(source, fetchtimeoutms="400")
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    source.served.remove(store)
    vanished = lost_by(stream, offset)
    assert isinstance(vanished, PartitionVanishedError)
    assert vanished.store == "one"
    assert "Start store one again" in str(vanished)


@pytest.mark.parametrize("silent", [False, True])
def test_trimmed_records_are_left_out_unless_a_store_may_have_them(
    serve: Serve, caplog: pytest.LogCaptureFixture, silent: bool
) -> None:
    longer, shorter = serve("longer"), serve("shorter")
    for store in (longer, shorter):
        store.add(A, 100)
    source = HeardOf([longer, shorter])
    stream = reader(source, fetchtimeoutms="20000", failondataloss="false")
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    for store in (longer, shorter):
        store.add(A, 100)
    shorter.log.trim(A, 150)
    port = longer.port
    longer.stop()
    if silent:
        assert stream.latestOffset(offset, ALL) == offset
        longer.start(port)
        for _ in range(200):
            after = stream.latestOffset(offset, ALL)
            if after != offset:
                break
            time.sleep(0.02)
        first = 100
    else:
        source.served.remove(longer)
        after = stream.latestOffset(offset, ALL)
        first = 150
        assert "[DAFKA_RETENTION_AHEAD]" in caplog.text
        assert "offsets 100 to 150 (exclusive) are left out" in caplog.text
    parts = stream.partitions(offset, after)
    assert parts == [OffsetRange("t", "A", first, 200)]


def test_flight_alone_waits_for_a_store_that_starts(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 100)
    source = HeardOf([store])
    stream = reader(source, fetch="flight")
    offset = stream.latestOffset(stream.initialOffset(), ALL)
    port = store.port
    store.stop()
    timer = threading.Timer(0.5, store.start, (port,))
    timer.start()
    assert stream.latestOffset(offset, ALL) == offset
    timer.join()
    store.stop()
    impatient = reader(source, fetch="flight", fetchtimeoutms="300")
    with pytest.raises(StoreUnreachableError):
        impatient.latestOffset(offset, ALL)
