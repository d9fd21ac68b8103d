"""Queries over partitions that a newer producer has continued without the last records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.errors import FetchError, HistoryReplacedError
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, everything, json_round, reader

A = TopicPartition("t", "A")
OLD = Epoch.first(EpochId(5, 1, 1))
NEW = Epoch(9, 2, 1, 60, OLD.digest)
WAYS = ["local", "flight", "auto"]


def write(store: Served, epoch: Epoch, count: int) -> None:
    start = store.log.end(A)
    values = [b"%d %d" % (epoch.number, start + index) for index in range(count)]
    store.log.append([RecordBatch(A, start, Values.of(values), epoch=epoch)])


def take_over(store: Served, count: int) -> None:
    """Continue from offset 60 as the newer producer, without the older one's records."""
    assert store.log.write([SetAside(A, NEW.start)]) == [None]
    write(store, NEW, count)


def rows(stream: DafkaMicroBatchStream, start: Any, end: Any) -> Iterator[str]:
    for part in stream.partitions(json_round(start), json_round(end)):
        for batch in stream.read(part):
            column = pa.Table.from_batches([batch])["value"]
            yield from (value.decode() for value in column.to_pylist())


def of(epoch: Epoch, start: int, end: int) -> list[str]:
    return [f"{epoch.number} {offset}" for offset in range(start, end)]


@pytest.fixture
def one(serve: Serve) -> Served:
    store = serve("one")
    write(store, OLD, 100)
    return store


@pytest.mark.parametrize("fetch", WAYS)
def test_a_changed_history_fails_a_query_and_a_repeated_batch(one: Served, fetch: str) -> None:
    stream = reader(HeardOf([one]), fetch=fetch, fetchTimeoutMs="10000")
    start = stream.initialOffset()
    read = stream.latestOffset(start, ALL)
    assert list(rows(stream, start, read)) == of(OLD, 0, 100)
    take_over(one, 60)
    after = stream.latestOffset(json_round(read), ALL)
    found: list[str] = []
    with pytest.raises(HistoryReplacedError, match="DAFKA_HISTORY_CHANGED") as caught:
        found.extend(rows(stream, read, after))
    assert found == []
    assert (caught.value.wanted, caught.value.end) == (60, 100)
    again = reader(HeardOf([one]), fetch=fetch, fetchTimeoutMs="10000")
    with pytest.raises(HistoryReplacedError):
        found.extend(rows(again, start, read))
    assert found == of(OLD, 0, 60)[: len(found)]


def test_without_fail_on_data_loss_it_warns_once(
    one: Served, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(HeardOf([one]), failondataloss="false")
    read = everything(stream)
    take_over(one, 60)
    after = stream.latestOffset(json_round(read), ALL)
    assert list(rows(stream, read, after)) == of(NEW, 100, 120)
    assert caplog.text.count("[DAFKA_HISTORY_CHANGED]") == 1
    write(one, NEW, 5)
    last = stream.latestOffset(json_round(after), ALL)
    assert list(rows(stream, after, last)) == of(NEW, 120, 125)
    assert caplog.text.count("[DAFKA_HISTORY_CHANGED]") == 1


@pytest.mark.parametrize("fetch", WAYS)
def test_a_life_that_continues_at_the_end_is_no_change(
    one: Served, serve: Serve, fetch: str
) -> None:
    stream = reader(HeardOf([one]), fetch=fetch)
    read = everything(stream)
    write(one, Epoch(9, 2, 1, 100, OLD.digest), 20)
    after = stream.latestOffset(json_round(read), ALL)
    assert list(rows(stream, read, after)) == of(NEW, 100, 120)


def test_a_store_that_is_behind_is_no_source(one: Served, serve: Serve) -> None:
    """It has older records at offsets that a newer producer has written at the other store."""
    behind = serve("behind")
    write(behind, OLD, 100)
    take_over(one, 30)
    stream = reader(HeardOf([behind, one]), fetch="flight", fetchtimeoutms="2000")
    end = everything(stream)
    assert end["topics"] == {"t": {"A": 90}}
    assert list(rows(stream, stream.initialOffset(), end)) == of(OLD, 0, 60) + of(NEW, 60, 90)
    one.stop()
    with pytest.raises(FetchError, match="no records of life 9"):
        list(rows(stream, stream.initialOffset(), end))


def test_newer_lives_over_the_mesh_are_a_change(one: Served) -> None:
    source = HeardOf()
    source.logs[A] = [b"%d" % offset for offset in range(120)]
    source.epoch = NEW
    stream = reader(source, fetch="mesh")
    read = {
        "topics": {"t": {"A": 100}},
        "start": {},
        "lives": {"t": {"A": [*OLD.life]}},
    }
    after = stream.latestOffset({**read, "version": 4}, ALL)
    with pytest.raises(HistoryReplacedError) as caught:
        list(rows(stream, {**read, "version": 4}, after))
    assert (caught.value.wanted, caught.value.end) == (60, 100)
