"""Partitions that look shorter than they were: which store had more, and whether it answers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.model.records import TopicPartition
from dafka_core.testing import wait_until
from dafka_spark.errors import HeadBehindError, PartitionVanishedError, StoreLostDataError
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, everything, planned, reader

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")


def loss_of(stream: DafkaMicroBatchStream, offset: Any) -> DafkaError:
    """Return the error of a stream that cannot continue from an offset, after a while."""
    with pytest.raises(DafkaError) as caught:
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    return caught.value


def test_an_unreachable_store_has_lost_nothing(serve: Serve) -> None:
    ahead, behind = serve("ahead"), serve("behind")
    ahead.add(A, 100)
    behind.add(A, 60)
    source = HeardOf([ahead, behind])
    stream = reader(source, fetchTimeoutMs="2000")
    offset = everything(stream)
    port = ahead.port
    ahead.stop()
    loss = loss_of(stream, offset)
    assert isinstance(loss, HeadBehindError)
    assert (loss.wanted, loss.end, loss.store) == (100, 60, "ahead")
    assert "[DAFKA_HEAD_BEHIND]" in str(loss)
    assert "Start store ahead again" in str(loss)
    # It makes no difference that the mesh does not announce it any more.
    source.served.remove(ahead)
    assert isinstance(loss_of(stream, offset), HeadBehindError)
    ahead.start(port)
    source.served.append(ahead)
    ahead.add(A, 5)
    assert stream.latestOffset(offset, ALL)["topics"] == {"t": {"A": 105}}


def test_a_store_that_answers_has_lost_its_records(serve: Serve, tmp_path: Path) -> None:
    store, other = serve("one"), serve("other")
    store.add(A, 100)
    other.add(B, 1)
    source = HeardOf([store, other])
    stream = reader(source, fetchTimeoutMs="2000")
    offset = everything(stream)
    with Served(tmp_path / "restored", "one") as restored:
        restored.add(A, 30)
        source.served[0] = restored
        loss = loss_of(stream, offset)
        assert isinstance(loss, StoreLostDataError)
        assert (loss.wanted, loss.end) == (100, 30)
    with Served(tmp_path / "emptied", "one") as emptied:
        source.served[0] = emptied
        vanished = loss_of(stream, offset)
        assert isinstance(vanished, PartitionVanishedError)
        assert (vanished.partition, vanished.store) == ("A", "")


def test_the_last_store_with_a_vanished_partition_is_named(serve: Serve) -> None:
    store, other = serve("one"), serve("other")
    store.add(A, 100)
    other.add(B, 1)
    source = HeardOf([store, other])
    stream = reader(source, fetchTimeoutMs="2000")
    offset = everything(stream)
    source.served.remove(store)
    vanished = loss_of(stream, offset)
    assert isinstance(vanished, PartitionVanishedError)
    assert vanished.store == "one"
    assert "Start store one again" in str(vanished)


@pytest.mark.parametrize("silent", [False, True])
def test_trimmed_records_are_left_out_unless_a_silent_store_may_have_them(
    serve: Serve, caplog: pytest.LogCaptureFixture, *, silent: bool
) -> None:
    longer, shorter = serve("longer"), serve("shorter")
    for store in (longer, shorter):
        store.add(A, 100)
    source = HeardOf([longer, shorter])
    stream = reader(source, failOnDataLoss="false")
    offset = everything(stream)
    for store in (longer, shorter):
        store.add(A, 100)
    shorter.log.trim(A, 150)
    port = longer.port
    longer.stop()
    assert stream.latestOffset(offset, ALL) == offset
    if silent:
        longer.start(port)
        wait_until(lambda: stream.latestOffset(offset, ALL) != offset)
    else:
        source.served.remove(longer)
    after = stream.latestOffset(offset, ALL)
    assert planned(stream, offset, after) == {("A", 100 if silent else 150, 200)}
    assert ("offsets 100 to 150 (exclusive) are left out" in caplog.text) != silent


def test_flight_alone_waits_for_a_store_that_starts(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 100)
    source = HeardOf([store])
    stream = reader(source, fetch="flight")
    offset = everything(stream)
    port = store.port
    store.stop()
    timer = threading.Timer(0.5, store.start, (port,))
    timer.start()
    assert stream.latestOffset(offset, ALL) == offset
    timer.join()
    store.stop()
    impatient = reader(source, fetch="flight", fetchTimeoutMs="300")
    with pytest.raises(StoreUnreachableError):
        impatient.latestOffset(offset, ALL)
