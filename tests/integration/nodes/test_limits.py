"""Disks that are full or broken, and applications that do not read: errors, and bounds."""

import json
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from dafka_core import (
    Consumer,
    NotAcknowledgedError,
    RecordTooLargeError,
    Store,
    StoreLimitError,
)
from dafka_core.config.node_options import LAYOUTS
from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import DiskFullError, InvalidRequestError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes import maintenance
from dafka_core.nodes.maintenance import UsageScan, usage_at_start
from dafka_core.nodes.sockets import BURST_BYTES
from dafka_core.protocol.record_limits import LEAST_BYTES
from dafka_core.protocol.store_limits import StoreLimits, Usage
from dafka_core.protocol.store_role import StoreRole
from dafka_core.storage import Log
from dafka_core.storage.tables import Tables
from dafka_core.testing import wait_until
from tests.integration.cli.processes import run
from tests.integration.nodes.conftest import Consume, Produce, Start
from tests.integration.nodes.content import flushed, values
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.nodes.staging import client_of
from tests.integration.storage.limits import limited


def test_a_full_disk_refuses_records_until_it_has_room_and_serves_those_that_it_has(
    tower: str, store: Store, produce: Produce
) -> None:
    producer = produce("t")
    tp = TopicPartition("t", producer.address)
    watch, log = store.disk_watch, store.log
    # Random bytes: no compression makes them smaller.
    published = [b"%08d" % number + os.urandom(2_000) for number in range(6_000)]
    other = RecordBatch.of(TopicPartition("u", "P"), 0, [b"x"])
    flushed(producer, published[:500])
    with limited(resource.RLIMIT_FSIZE, 4 << 20):
        for first in range(500, len(published) - 100, 100):
            producer.publish_many(published[first : first + 100])
        wait_until(lambda: watch.full is not None)
        fetcher = store.role.partitions[tp]
        accepted = store.mesh.call(lambda _: fetcher.next_offset)
        producer.publish_many(published[-100:])
        wait_until(lambda: fetcher.head == len(published))  # it knows of these, and takes none
        assert fetcher.next_offset == accepted
        with pytest.raises(NotAcknowledgedError, match="with room on its disk"):
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


def test_a_store_ends_while_its_disk_is_full(store: Store, produce: Produce) -> None:
    with limited(resource.RLIMIT_FSIZE, 4 << 20):
        producer = produce("t")
        producer.publish_many([os.urandom(2_000)] * 4_000)
        wait_until(lambda: store.disk_watch.full is not None)
        store.close()
    with Log(store.log.directory) as log:
        assert log.end(TopicPartition("t", producer.address)) < 4_000
    with pytest.raises(NotAcknowledgedError):
        producer.flush(0.05)


A, B = "A" * 32, "B" * 32


@pytest.fixture
def start(start: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts stores that look at their logs often."""
    monkeypatch.setattr(maintenance, "RETENTION_INTERVAL_S", 0.1)
    monkeypatch.setattr(maintenance, "SCAN_SHARE", 0.5)
    return start


def put(store: Store, topic: str, partition: str, count: int = 1, size: int = 1) -> None:
    tp = TopicPartition(topic, partition)
    batch = RecordBatch.of(tp, store.log.end(tp), [b"x" * size] * count)
    store.append_queue.put(batch).result(PATIENCE_S)


def refused(store: Store, limit: str) -> int:
    return store.role.limits.refused[limit]


def test_a_store_that_is_started_again_knows_what_it_has(start: Start) -> None:
    first = start()
    put(first, "t", A)
    first.close()
    again = start(max_topics=1)
    put(again, "t", B)
    with pytest.raises(StoreLimitError, match="option max_topics = 1") as error:
        put(again, "u", B)
    assert (error.value.option, error.value.owner) == ("max_topics", B)
    put(again, "__dafka.own", B)  # its own notes are no topic of anybody's


def test_an_owner_at_its_limit_waits_until_retention_makes_room(
    start: Start, produce: Produce
) -> None:
    store = start(max_key_bytes=20_000_000)
    full, other = produce("t", address=A), produce("t", address=B)
    sent = [b"%08d" % number * 1_000 for number in range(5_000)]
    for first in range(0, 5_000, 10):
        full.publish_many(sent[first : first + 10])
    wait_until(lambda: refused(store, "max_key_bytes") > 0)
    flushed(other, values(100))
    with pytest.raises(NotAcknowledgedError):
        full.flush(0.5)
    held_bytes = store.log.statistics(TopicPartition("t", A))
    # One burst is accepted completely, but no second one.
    assert held_bytes is not None
    assert 20_000_000 <= held_bytes.size_bytes < 20_000_000 + BURST_BYTES < 40_000_000
    with pytest.raises(StoreLimitError, match="option max_key_bytes = 20000000"):
        put(store, "v", A)
    store.retention_control.replace(parse_rules("t=1MB"))
    full.flush(PATIENCE_S)
    assert store.log.end(TopicPartition("t", A)) == 5_000


def test_over_flight_the_limit_is_named(start: Start) -> None:
    store = start(max_partitions_per_topic=1)
    put(store, "t", A)
    tp = TopicPartition("t", B)
    batch = RecordBatch.of(tp, 0, [b"x"])
    with client_of(store) as client:

        def put_over_flight() -> None:
            with client.put(tp, 0, timeout_s=PATIENCE_S) as stream:
                stream.write(batch.values.to_arrow())
                stream.finish(PATIENCE_S)

        with pytest.raises(StoreLimitError, match="max_partitions_per_topic = 1") as error:
            put_over_flight()
        assert (error.value.topic, error.value.limit) == ("t", 1)


def at_once(function: Callable[[float], object]) -> None:
    function(0.0)


def scan_of(log: Log, limits: StoreLimits, found: list[Usage]) -> UsageScan:
    role = cast("StoreRole", SimpleNamespace(limits=limits, on_scan=found.append))
    return UsageScan(log, role, log.compressor((), 0), at_once)


def test_a_scan_counts_the_contents_of_the_log(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        tps = [TopicPartition(topic, p) for topic in "tu" for p in (A, B)]
        log.append([RecordBatch.of(tp, 0, [b"x" * 1_000]) for tp in tps])
        limits = StoreLimits({"max_key_bytes": 1_500})
        limits.add(tps[0])
        found: list[Usage] = []
        look = scan_of(log, limits, found)
        pauses = [Mock(), Mock()]
        for pause in pauses:
            look.run(pause)
        assert [pause.call_count for pause in pauses] == [5, 0]
        (held,) = found
        assert (held.topics, held.owners) == ({"t": 2, "u": 2}, {A: 2, B: 2})
        assert held.seen == {tps[0]}
        assert all(2_000 < size < 2_500 for size in held.size_bytes.values())
        log.trim(tps[0], 1)
        assert usage_at_start(log, limits).topics == {"t": 1, "u": 2}


def test_a_damaged_block_lifts_no_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad, other = (TopicPartition(*each) for each in (("t", A), ("t", B), ("u", A)))

    def damage(tables: Tables) -> None:
        row = tables.row(bad)
        assert row is not None
        *_, first = tables.firsts(row.id, 0)
        tables.put_block(row.id, first, memoryview(b"no block"))

    with Log(tmp_path) as log:
        log.append([RecordBatch.of(tp, 0, [b"x" * 1_000_000]) for tp in (good, bad)])
        found: list[Usage] = []
        limits = StoreLimits({"max_key_bytes": 1_500_000})
        look = scan_of(log, limits, found)
        look.run(lambda: None)
        log.append([RecordBatch.of(tp, 1, [b"x" * 1_000_000]) for tp in (bad, good)])
        log._env.write(damage)
        for offset in range(2):
            look._due = 0.0
            look.run(lambda: None)
            log.append([RecordBatch.of(other, offset, [b"x"])])
    owners = [[held.size_bytes[each] // 1_000_000 for each in (A, B)] for held in found]
    assert owners == [[1, 1], [2, 1], [2, 1]]
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"one of them: {bad}: the block at offset 1 " in said


SMALL_BYTES = 4_096
LARGE = bytes(LEAST_BYTES + 1)
"""Above what every node takes whatever its options."""


def taken(consumer: Consumer, count: int) -> list[bytes | int | None]:
    """The next values, and in place of a record the size that an error names."""
    found: list[bytes | int | None] = []
    for _ in range(count):
        try:
            record = consumer.poll(PATIENCE_S)
            assert record is not None
            found.append(record.value)
        except RecordTooLargeError as error:
            found.append(error.size_bytes if error.limit_bytes == LEAST_BYTES else 0)
    return found


@pytest.mark.parametrize("wire", LAYOUTS)
def test_a_large_live_record_reaches_nodes_that_accept_it_and_errors_reach_the_others(
    produce: Produce, consume: Consume, store: Store, wire: str
) -> None:
    small = consume("t", max_record_bytes=SMALL_BYTES)
    large = consume("t")
    producer = produce("t", wire=wire)
    wait_until(lambda: producer.mesh.limits._smallest_bytes == LEAST_BYTES)
    producer.publish_many([b"0", LARGE, b"2"])
    flushed(producer, [b"3"])
    assert taken(large, 4) == [b"0", LARGE, b"2", b"3"]
    assert taken(small, 4) == [b"0", len(LARGE), b"2", b"3"]
    tp = TopicPartition("t", producer.address)
    assert small.positions() == {tp: (4, 4)}
    for node in (small, large, producer, store):
        assert not node.mesh.peers.renewal_count


def test_a_producer_refuses_a_record_that_a_store_would_not_take(
    start: Start, produce: Produce, store: Store
) -> None:
    small = start("small", max_record_bytes=SMALL_BYTES)
    producer = produce("t")
    says = f"store {small.address} takes at most {LEAST_BYTES}: .*max_record_bytes"
    wait_until(lambda: producer.limit[0] == LEAST_BYTES)
    with pytest.raises(RecordTooLargeError, match=says):
        producer.publish(LARGE)
    with pytest.raises(RecordTooLargeError, match=f"offset 1 has {len(LARGE)} bytes"):
        producer.publish_many([b"0", LARGE])
    assert producer.next_offset == 0
    # So does the other store for its own clients.
    wait_until(lambda: store.mesh.limits.smallest_store)
    put = store.append_queue.put(RecordBatch.of(TopicPartition("p", "P"), 0, [LARGE]))
    with pytest.raises(InvalidRequestError, match=f"{LEAST_BYTES} bytes at store {small.address}"):
        put.result(PATIENCE_S)
    small.close()
    wait_until(lambda: producer.limit[0] > LEAST_BYTES)
    assert producer.publish(LARGE) == 0
    producer.flush(PATIENCE_S)
