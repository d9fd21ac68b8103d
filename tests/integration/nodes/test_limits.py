"""Disks that are full or broken, and applications that do not read: errors, and bounds."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dafka_core import (
    Consumer,
    NotAcknowledgedError,
    Producer,
    Store,
    StoreError,
)
from dafka_core.errors import DiskFullError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.cli.processes import run
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.storage.limits import limited


def test_a_full_disk_refuses_records_until_it_has_room_and_serves_those_that_it_has(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    producer = produce("t")
    tp = TopicPartition("t", producer.address)
    watch, log = store.disk_watch, store.log
    # Random bytes: no compression makes them smaller.
    published = [b"%08d" % number + os.urandom(2_000) for number in range(6_000)]
    other = RecordBatch.of(TopicPartition("u", "P"), 0, [b"x"])
    producer.publish_many(published[:500])
    producer.flush(PATIENCE_S)
    with limited(resource.RLIMIT_FSIZE, 4 << 20):
        for first in range(500, len(published) - 100, 100):
            producer.publish_many(published[first : first + 100])
        wait_until(lambda: watch.full is not None)
        fetcher = store.role.partitions[tp]
        accepted = store.mesh.call(lambda _: fetcher.next_offset)
        producer.publish_many(published[-100:])
        wait_until(lambda: fetcher.head == len(published))  # it knows of these, and takes none
        assert fetcher.next_offset == accepted
        with pytest.raises(NotAcknowledgedError, match="does its disk have room"):
            producer.flush(0.05)
        with pytest.raises(DiskFullError, match=f"{log.directory}: the disk is full"):
            store.append_queue.put(other).result(PATIENCE_S)
        with Consumer(tower=tower) as consumer:
            consumer.subscribe("t")
            held, found = log.end(tp), list[bytes]()
            assert 500 <= held < len(published)
            for batch in consumer.batches(PATIENCE_S):
                found += batch.values
                if len(found) >= held:
                    break
        assert found[:held] == published[:held]
        status = run("status", "--json", "--tower", tower)
        assert status.returncode == 1
        (state,) = [
            each for each in map(json.loads, status.stdout.splitlines()) if each["what"] == "store"
        ]
        assert (state["name"], state["state"]) == (store.address, "full")
        assert "the disk is full" in state["why"]
        assert b"no store accepts records" in status.stderr
        assert watch.full is not None
        assert log.end(tp) == held
        assert not store.wait(0.0)
    producer.flush(PATIENCE_S)
    batches = log.read(tp, 0, len(published))
    assert [value for batch in batches for value in batch.values] == published
    assert store.append_queue.put(other).result(PATIENCE_S) == 1
    assert watch.full is None


def test_a_write_without_room_waits_and_the_following_ones_are_refused(store: Store) -> None:
    """A write that was reported as failed must not be on disk later."""
    queue = store.append_queue
    first, second = (
        RecordBatch.of(TopicPartition("t", name), 0, [os.urandom(1 << 20)] * 8) for name in "PQ"
    )
    with limited(resource.RLIMIT_FSIZE, 4 << 20):
        waiting = queue.put(first)
        wait_until(lambda: store.disk_watch.full is not None)
        with pytest.raises(DiskFullError):
            queue.put(second).result(PATIENCE_S)
        assert not waiting.done()
    assert waiting.result(PATIENCE_S) == 8
    assert store.log.end(second.tp) == 0
    assert queue.put(second).result(PATIENCE_S) == 8


def test_a_store_ends_while_its_disk_is_full(
    store: Store, produce: Callable[..., Producer]
) -> None:
    with limited(resource.RLIMIT_FSIZE, 4 << 20):
        producer = produce("t")
        producer.publish_many([os.urandom(2_000)] * 4_000)
        wait_until(lambda: store.disk_watch.full is not None)
        store.close()
    with Log(store.log.directory) as log:
        assert log.end(TopicPartition("t", producer.address)) < 4_000
    with pytest.raises(NotAcknowledgedError):
        producer.flush(0.05)


def test_a_disk_that_fails_ends_a_store_in_the_application(
    store: Store, produce: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batches: object) -> None:
        raise StoreError(store.log.directory, "the disk fails")

    monkeypatch.setattr(store.log, "write", refuse)
    producer = produce("t")
    producer.publish(b"0")
    with pytest.raises(StoreError, match="the disk fails"):
        store.wait(PATIENCE_S)
    with pytest.raises(NotAcknowledgedError):
        producer.flush(0.05)


@pytest.mark.parametrize("damage", ["garbage", "header", "foreign"])
def test_a_foreign_file_is_refused(tower: str, tmp_path: Path, damage: str) -> None:
    data = tmp_path / "data.mdb"
    if damage == "foreign":
        data.write_bytes(b"SQLite format 3\0" * 1_000)
    else:
        Store(tmp_path, tower=tower).close()
        whole = data.read_bytes()
        data.write_bytes(b"\xff" * len(whole) if damage == "garbage" else bytes(8_192) + whole)
    with pytest.raises(StoreError, match=str(tmp_path)) as refused:
        Store(tmp_path, tower=tower)
    assert refused.value.directory == str(tmp_path)


def test_an_application_that_does_not_read_costs_bounded_memory(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    consumer = Consumer(tower=tower, max_queued_records=10_000, max_queued_bytes=1 << 20)
    consumer.subscribe("t")
    producer = produce("t")
    tp = TopicPartition("t", producer.address)

    def knows_end(end: int) -> bool:
        return consumer.positions().get(tp, (0, 0))[1] == end

    most_records = 0
    for first in range(0, 200_000, 20_000):
        for start in range(first, first + 20_000, 1_000):
            producer.publish_many(values(1_000, start))
        producer.flush(PATIENCE_S)
        wait_until(partial(knows_end, first + 20_000))
        most_records = max(most_records, consumer.queue.size[0])
    # One turn of the loop may exceed the limit by what arrived since the one before: at most what
    # was published since the consumer was last seen to have heard of everything.
    assert most_records <= 10_000 + 20_000
    assert consumer.role.scheduler.budget.records == 0
    before = time.monotonic()
    consumer.close()
    assert time.monotonic() - before < 5


def test_a_slow_application_gets_everything_in_the_end(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    with Consumer(tower=tower, max_queued_records=5_000) as consumer:
        consumer.subscribe("t")
        producer = produce("t")
        producer.publish_many(values(100_000))
        producer.flush(PATIENCE_S)
        found: list[bytes] = []
        begun = time.monotonic()
        for batch in consumer.batches(PATIENCE_S):
            assert batch.offset == len(found)
            found.extend(batch.values)
            if len(found) == 100_000:
                break
        assert found == values(100_000)
        # Records are fetched as soon as there is room, not a second later.
        assert time.monotonic() - begun < 15
