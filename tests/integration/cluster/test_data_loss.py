"""Partitions that look shorter than they were, or with records that a newer producer replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dafka_core.errors import StoreUnreachableError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.testing import wait_until
from dafka_spark.errors import (
    FetchError,
    HeadBehindError,
    HistoryReplacedError,
    PartitionVanishedError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served, restart_at_pause
from tests.unit.dafka_spark.streams import ALL, everything, json_round, planned, reader

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")


def loss_of(stream: DafkaMicroBatchStream, offset: Any) -> SourceLossError:
    """Return the error of a stream that cannot continue from an offset, after a while."""
    with pytest.raises(SourceLossError) as caught:
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    return caught.value


@pytest.fixture
def one(serve: Serve) -> Served:
    return serve("one").add(A, 100)


@pytest.fixture
def source(one: Served, serve: Serve) -> HeardOf:
    """A store, and a second store that is behind."""
    other = serve("other")
    other.add(A, 60)
    other.add(B, 1)
    return HeardOf([one, other])


def test_an_unreachable_store_has_lost_nothing(one: Served, source: HeardOf) -> None:
    stream = reader(source, fetchTimeoutMs="2000")
    offset = everything(stream)
    port = one.port
    one.stop()
    loss = loss_of(stream, offset)
    assert isinstance(loss, HeadBehindError)
    assert (loss.wanted, loss.end, loss.store) == (100, 60, "one")
    assert "Start store one again" in str(loss)
    # It makes no difference that the mesh does not announce it any more.
    source.served.remove(one)
    assert isinstance(loss_of(stream, offset), HeadBehindError)
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 100, "B": 1}}  # it never goes backwards
    one.start(port)
    source.served.append(one)
    one.add(A, 5)
    assert stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 105, "B": 1}}


def test_a_store_that_answers_has_lost_its_records(
    one: Served, serve: Serve, tmp_path: Path
) -> None:
    other = serve("other")
    other.add(B, 1)
    source = HeardOf([one, other])
    stream = reader(source, fetchTimeoutMs="2000")
    offset = everything(stream)
    source.served.remove(one)
    vanished = loss_of(stream, offset)
    assert isinstance(vanished, PartitionVanishedError)
    assert "Start store one again" in str(vanished)
    with Served(tmp_path / "restored", "one") as restored:
        restored.add(A, 30)
        source.served.append(restored)
        loss = loss_of(stream, offset)
        assert isinstance(loss, StoreLostDataError)
        assert (loss.wanted, loss.end) == (100, 30)
    with Served(tmp_path / "emptied", "one") as emptied:
        source.served[1] = emptied
        vanished = loss_of(stream, offset)
        assert isinstance(vanished, PartitionVanishedError)
        assert (vanished.partition, vanished.store) == ("A", "")


@pytest.mark.parametrize("silent", [False, True])
def test_trimmed_records_are_left_out_unless_a_silent_store_may_have_them(
    one: Served, serve: Serve, caplog: pytest.LogCaptureFixture, *, silent: bool
) -> None:
    trimmed = serve("trimmed")
    trimmed.add(A, 100)
    source = HeardOf([one, trimmed])
    stream = reader(source, failOnDataLoss="false")
    offset = everything(stream)
    for store in source.served:
        store.add(A, 100)
    trimmed.log.trim(A, 150)
    port = one.port
    one.stop()
    assert stream.latestOffset(offset, ALL) == offset
    if silent:
        one.start(port)
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    else:
        source.served.remove(one)
    after = stream.latestOffset(offset, ALL)
    assert planned(stream, offset, after) == {("A", 100 if silent else 150, 200)}
    assert ("offsets 100 to 150 (exclusive) are left out" in caplog.text) != silent


def test_flight_alone_waits_for_a_store_that_starts(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, impatient = (
        reader(HeardOf([one]), fetch="flight", fetchTimeoutMs=each) for each in ("20000", "300")
    )
    offset = everything(stream)
    restart_at_pause(monkeypatch, one)
    assert stream.latestOffset(offset, ALL) == offset
    one.stop()
    with pytest.raises(StoreUnreachableError):
        impatient.latestOffset(offset, ALL)


OLD = Epoch.first(EpochId(5, 1, 1))
NEW = Epoch(9, 2, 1, 60, OLD.digest)
WAYS = pytest.mark.parametrize("fetch", ["local", "flight", "auto"])


def write(store: Served, epoch: Epoch, count: int) -> None:
    start = store.log.end(A)
    values = [b"%d %d" % (epoch.number, start + index) for index in range(count)]
    store.log.append([RecordBatch(A, start, Values.of(values), epoch=epoch)])


def take_over(store: Served, count: int) -> None:
    """Continue from offset 60 as the newer producer, without the older one's records."""
    assert store.log.write([SetAside(A, NEW.start)]) == [None]
    write(store, NEW, count)


def values(stream: DafkaMicroBatchStream, start: Any, end: Any) -> list[str]:
    tasks = stream.partitions(json_round(start), json_round(end))
    batches = [batch for task in tasks for batch in stream.read(task)]
    return [value.decode() for value in pa.Table.from_batches(batches)["value"].to_pylist()]


def of(epoch: Epoch, start: int, end: int) -> list[str]:
    return [f"{epoch.number} {offset}" for offset in range(start, end)]


@pytest.fixture
def old(serve: Serve) -> Served:
    """A store with the records of the older producer."""
    store = serve("old")
    write(store, OLD, 100)
    return store


@WAYS
def test_a_changed_history_fails_a_query_and_a_repeated_batch(old: Served, fetch: str) -> None:
    stream, again = (reader(HeardOf([old]), fetch=fetch, fetchTimeoutMs="10000") for _ in range(2))
    start = stream.initialOffset()
    read = stream.latestOffset(start, ALL)
    assert values(stream, start, read) == of(OLD, 0, 100)
    take_over(old, 60)
    after = stream.latestOffset(json_round(read), ALL)
    (task,) = stream.partitions(read, after)
    with pytest.raises(HistoryReplacedError, match="DAFKA_HISTORY_CHANGED") as caught:
        next(stream.read(task))
    assert (caught.value.wanted, caught.value.end) == (60, 100)
    with pytest.raises(HistoryReplacedError):
        values(again, start, read)


def test_without_fail_on_data_loss_it_warns_once(
    old: Served, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(HeardOf([old]), failondataloss="false")
    read = everything(stream)
    take_over(old, 60)
    after = stream.latestOffset(json_round(read), ALL)
    assert values(stream, read, after) == of(NEW, 100, 120)
    write(old, NEW, 5)
    last = stream.latestOffset(json_round(after), ALL)
    assert values(stream, after, last) == of(NEW, 120, 125)
    assert caplog.text.count("[DAFKA_HISTORY_CHANGED]") == 1


@WAYS
def test_a_life_that_continues_at_the_end_is_no_change(old: Served, fetch: str) -> None:
    stream = reader(HeardOf([old]), fetch=fetch)
    read = everything(stream)
    write(old, Epoch(9, 2, 1, 100, OLD.digest), 20)
    after = stream.latestOffset(json_round(read), ALL)
    assert values(stream, read, after) == of(NEW, 100, 120)


def test_a_store_that_is_behind_is_no_source(old: Served, serve: Serve) -> None:
    """It has older records at offsets that a newer producer has written at the other store."""
    new = serve("new")
    write(new, OLD, 100)
    take_over(new, 30)
    stream = reader(HeardOf([old, new]), fetch="flight", fetchtimeoutms="2000")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end["topics"] == {"t": {"A": 90}}
    assert values(stream, start, end) == of(OLD, 0, 60) + of(NEW, 60, 90)
    new.stop()
    with pytest.raises(FetchError, match="no records of life 9"):
        values(stream, start, end)


def test_newer_lives_over_the_mesh_are_a_change() -> None:
    source = HeardOf()
    source.add(A, 120)
    source.epoch = NEW
    stream = reader(source, fetch="mesh")
    lives = {"t": {"A": [*OLD.life]}}
    read = {"topics": {"t": {"A": 100}}, "start": {}, "lives": lives, "version": 4}
    with pytest.raises(HistoryReplacedError) as caught:
        values(stream, read, stream.latestOffset(read, ALL))
    assert (caught.value.wanted, caught.value.end) == (60, 100)
