"""Partitions that look shorter than they were: which store had more, and whether it answers."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.model.records import TopicPartition
from dafka_spark.errors import HeadBehindError, PartitionVanishedError, StoreLostDataError
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, reader

A = TopicPartition("t", "A")
B = TopicPartition("t", "B")


def lost_by(stream: DafkaMicroBatchStream, offset: Any) -> DafkaError:
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
    stream = reader(source, fetchtimeoutms="2000")
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
    stream = reader(source, fetchtimeoutms="2000")
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
    stream = reader(source, fetchtimeoutms="2000")
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
    assert parts == [DafkaInputPartition((OffsetRange("t", "A", first, 200),))]


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
