"""The reader: what stores hold, and any part of it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from dafka_core import (
    ClosedError,
    ConfigError,
    DataLossError,
    NoStoreError,
    PartitionInfo,
    Producer,
    RecordBatch,
    Store,
)
from dafka_core.errors import HistoryChangedError
from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import TopicPartition
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Read
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S, new_address

COUNT = 30_000


@pytest.fixture
def tp(tower: str, store: Store) -> TopicPartition:
    """The partition of a producer that is gone: ``COUNT`` numbers under topic t."""
    with Producer("t", tower=tower) as producer:
        producer.publish_many(values(COUNT))
    return TopicPartition("t", producer.address)


def joined(batches: Iterator[RecordBatch], start: int) -> list[bytes]:
    """The records of batches that follow each other."""
    found: list[bytes] = []
    for batch in batches:
        assert batch.offset == start + len(found)
        found.extend(batch.values)
    return found


def test_partitions_of_stores(read: Read, tower: str, tp: TopicPartition, store: Store) -> None:
    with Producer("other", tower=tower) as other:
        other.publish_many(values(7))
    reader = read()
    counts = {tp: COUNT, TopicPartition("other", other.address): 7}
    held = [PartitionInfo(*each, 0, counts[each], store.log.lives(each).newest) for each in counts]
    assert all(info.life > NO_LIFE for info in held)
    assert reader.partitions(timeout_s=PATIENCE_S) == sorted(held)
    assert reader.partitions(["t"], timeout_s=PATIENCE_S) == held[:1]
    assert reader.partitions({"other", "none"}, timeout_s=PATIENCE_S) == held[1:]
    assert reader.partitions(["none"], timeout_s=PATIENCE_S) == []
    assert reader.partitions(iter(["t"]), timeout_s=PATIENCE_S) == held[:1]  # type: ignore[arg-type]
    assert reader.partitions([], timeout_s=PATIENCE_S) == []
    assert reader.stores() == [store.address]
    store.log.trim(tp, 100)
    assert reader.partitions(["t"], timeout_s=PATIENCE_S)[0].earliest == 100


def test_when_records_were_written(
    read: Read, tower: str, store: Store, tp: TopicPartition
) -> None:
    before_us = time.time_ns() // 1000
    with Producer("t", tower=tower) as producer:
        producer.publish_many(values(5))
        producer.flush(PATIENCE_S)
        producer.publish_many(values(5))
    after_us = time.time_ns() // 1000
    reader = read()
    written = TopicPartition("t", producer.address)
    times = reader.times(written, 0, 10, timeout_s=PATIENCE_S)
    assert times == store.log.times(written, 0, 10)
    assert times[0][0] == 0
    assert before_us <= times[0][1] <= times[-1][1] <= after_us
    assert reader.times(written, 7, 9, timeout_s=PATIENCE_S)[0][0] == 7
    assert reader.times(TopicPartition("t", new_address()), 0, 10, timeout_s=PATIENCE_S) == []


def test_threads_may_share_one(read: Read, tp: TopicPartition) -> None:
    reader = read()

    def work(number: int) -> None:
        for start in range(number, 6_000, 1_500):
            batches = reader.read(tp, start, start + 3_000, timeout_s=PATIENCE_S)
            assert joined(batches, start) == values(3_000, start)
            assert reader.partitions(["t"], timeout_s=PATIENCE_S)[0].end == COUNT

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_slow_application_bounds_what_waits(
    read: Read, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = read(max_queued_bytes=1_000)
    batches = reader.read(tp, 0, COUNT, timeout_s=PATIENCE_S)
    first = next(batches)
    [reading] = reader.role.reads
    wait_until(lambda: not reading.room)
    # Requested records still arrive; no further ones are requested.
    assert reading.next_offset < COUNT
    assert first.offset == 0
    assert [*first.values, *joined(batches, first.end)] == values(COUNT)


def test_a_changed_history_ends_a_read(read: Read, tp: TopicPartition) -> None:
    reader = read(max_queued_bytes=1_000)
    batches = reader.read(tp, 0, COUNT, timeout_s=PATIENCE_S)
    yielded = [next(batches)]
    role = reader.role
    epoch = role.reads[0].epochs[-1]
    newer = Epoch(epoch.number + 1, epoch.id, 1, 1, epoch.digest)
    records = replace(RecordBatch.of(tp, 1, [b"other"]), epoch=newer)
    reader.mesh.call(lambda now: role.on_batch(now, role.address, records))
    with pytest.raises(HistoryChangedError) as changed:
        yielded.extend(batches)
    assert (changed.value.wanted, changed.value.position) == (1, yielded[-1].end)
    assert joined(iter(yielded), 0) == values(yielded[-1].end)


def test_a_closed_reader_raises(read: Read, tp: TopicPartition) -> None:
    reader = read()
    batches = reader.read(tp, 0, COUNT + 1, timeout_s=PATIENCE_S)
    next(batches)
    reader.close()
    reader.close()
    with pytest.raises(ClosedError, match="the reader is closed"):
        list(batches)
    with pytest.raises(ClosedError):
        reader.partitions(timeout_s=1)


def test_records_that_no_store_has_are_a_loss(read: Read, tp: TopicPartition, store: Store) -> None:
    reader = read()
    store.log.trim(tp, 1_000)
    for partition, start, end, wanted, available, why in (
        (new_address(), 0, 10, 0, None, "no store has the partition"),
        (tp.partition, 999, 2_000, 999, 1_000, "have been trimmed"),
        (tp.partition, COUNT - 2, COUNT + 5, COUNT, 1_000, f"ends at {COUNT} in every store"),
    ):
        with pytest.raises(DataLossError, match=why) as lost:
            joined(reader.read(TopicPartition("t", partition), start, end, timeout_s=0.5), start)
        facts = lost.value.partition, lost.value.wanted, lost.value.available
        assert facts == (partition, wanted, available)
    assert joined(reader.read(tp, 1_000, 1_010, timeout_s=PATIENCE_S), 1_000) == values(10, 1_000)


def test_no_store_is_an_error(read: Read, tower: str) -> None:
    reader, tp = read(), TopicPartition("t", "P")
    assert (reader.stores(), reader.towers()) == ([], [tower])
    for ask in (
        lambda: reader.partitions(timeout_s=0.1),
        lambda: reader.times(tp, 0, 1, timeout_s=0.1),
        lambda: list(reader.read(tp, 0, 1, timeout_s=0.1)),
    ):
        with pytest.raises(NoStoreError, match="start one with 'dafka store") as unknown:
            ask()
        assert unknown.value.towers == (tower,)


INVALID: list[tuple[str, Any]] = [
    *(("topic", ""), ("topic", "x" * 256), ("partition", "")),
    *(("start", -1), ("start", 2**63), ("end", 2**63)),
]


def test_invalid_arguments_are_refused_and_the_reader_still_works(
    read: Read, tp: TopicPartition
) -> None:
    reader = read()
    for (option, value), ask in product(INVALID, (reader.read, reader.times)):
        asked: dict[str, Any] = {**tp._asdict(), "start": 0, "end": 1} | {option: value}
        wrong = TopicPartition(asked.pop("topic"), asked.pop("partition"))
        with pytest.raises(ConfigError) as refused:
            list(ask(wrong, **asked, timeout_s=1))
        assert refused.value.option == option
    with pytest.raises(ConfigError):
        reader.partitions(["ok", ""], timeout_s=1)
    assert len(joined(reader.read(tp, 0, 5, timeout_s=PATIENCE_S), 0)) == 5


def test_no_wake_is_lost(read: Read, tp: TopicPartition) -> None:
    # A wake that is lost waits for the next beacon: 300 calls took five minutes then.
    reader = read()
    begun = time.monotonic()
    for start in range(300):
        joined(reader.read(tp, start, start + 10, timeout_s=PATIENCE_S), start)
    assert time.monotonic() - begun < 30
