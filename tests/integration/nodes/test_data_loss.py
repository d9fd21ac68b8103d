"""A consumer comes upon records that nobody has: ``on_data_loss``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, DataLossError, Producer, Record, Store
from dafka_core.model.records import TopicPartition
from dafka_core.protocol import timing
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S

Consume = Callable[..., Consumer]
Produce = Callable[..., Producer]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times long enough for what is there to be heard, and short for a test."""
    monkeypatch.setattr(timing, "LOSS_CHECK_S", 0.5)
    monkeypatch.setattr(timing, "ABSENT_STORE_S", 1.0)


def published(produce: Produce, topic: str, count: int) -> TopicPartition:
    with produce(topic) as producer:
        producer.publish_many(values(count))
    return TopicPartition(topic, producer.address)


@pytest.fixture
def trimmed(produce: Produce, store: Store) -> TopicPartition:
    """Records 50 to 100; those before them were trimmed."""
    tp = published(produce, "t", 100)
    assert store.log.trim(tp, 50) == 50
    return tp


def value_of_next(consumer: Consumer) -> bytes | None:
    record = consumer.poll(PATIENCE_S)
    assert record is not None
    return record.value


def next_values(consumer: Consumer, count: int) -> list[bytes | None]:
    return [value_of_next(consumer) for _ in range(count)]


async def next_of_async_for(consumer: Consumer) -> Record:
    return await anext(aiter(consumer))


WAYS: dict[str, Callable[[Consumer], object]] = {
    "poll": lambda consumer: consumer.poll(PATIENCE_S),
    "for": lambda consumer: next(iter(consumer)),
    "batches": lambda consumer: next(consumer.batches(PATIENCE_S)),
    "async for": lambda consumer: asyncio.run(next_of_async_for(consumer)),
}


@pytest.mark.parametrize("way", WAYS)
def test_trimmed_records_are_an_error_and_seek_goes_on(
    consume: Consume, trimmed: TopicPartition, way: str
) -> None:
    consumer = consume("t", start={"t": {trimmed.partition: 0}})
    with pytest.raises(DataLossError) as lost:
        WAYS[way](consumer)
    facts = (lost.value.topic, lost.value.partition, lost.value.wanted, lost.value.available)
    assert facts == (*trimmed, 0, 50)
    assert "offsets 0 to 50 (exclusive) are missing, the stores have trimmed" in str(lost.value)
    assert "Consumer.seek" in str(lost.value)
    consumer.seek(trimmed, lost.value.available or 0)
    assert next_values(consumer, 50) == values(50, 50)


def test_the_records_before_a_gap_come_before_the_error(
    produce: Produce, consume: Consume, store: Store
) -> None:
    # The consumer has no room, so it leaves the rest to the store, which trims it.
    tp = published(produce, "t", 10_000)
    consumer = consume("t", max_queued_records=100)
    wait_until(lambda: consumer._queue.size[0] > 0)
    store.log.trim(tp, 9_990)
    found: list[bytes] = []
    with pytest.raises(DataLossError) as lost:
        found.extend(iter(partial(value_of_next, consumer), None))
    assert found == values(lost.value.wanted)
    assert 0 < lost.value.wanted < 9_990
    assert lost.value.available == 9_990
    assert consumer.positions() == {tp: (len(found), 10_000)}


def test_earliest_begins_with_the_earliest_record_there_is(
    consume: Consume, trimmed: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dafka.consumer"):
        consumer = consume("t", start="earliest")
        assert next_values(consumer, 50) == values(50, 50)
    assert consumer.skipped == {}
    begins = f"topic 't', partition {trimmed.partition}: begins at offset 50, the earliest there is"
    assert begins in caplog.messages


@pytest.mark.usefixtures("trimmed")
def test_other_partitions_go_on_and_the_error_comes_again(
    produce: Produce, consume: Consume
) -> None:
    published(produce, "other", 10)
    consumer = consume("t", "other", start={})
    errors, found = 0, list[bytes | None]()
    while errors < 2 or len(found) < 10:
        try:
            found += next_values(consumer, 1)
        except DataLossError:
            errors += 1
    assert found == values(10)


def test_skip_goes_on_at_the_earliest_counts_and_logs(
    consume: Consume, trimmed: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = consume("t", start={}, on_data_loss="skip")
    with caplog.at_level(logging.WARNING, "dafka.consumer"):
        assert next_values(consumer, 50) == values(50, 50)
    assert consumer.skipped == {trimmed: 50}
    [line] = caplog.messages
    assert line.startswith(f"topic 't', partition {trimmed.partition}: offset 0 was asked for")
    assert line.endswith("the consumer skips them")


def test_wait_says_so_and_goes_on_when_somebody_has_them(
    consume: Consume,
    produce: Produce,
    tower: str,
    tmp_path: Path,
    store: Store,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = Store(tmp_path / "other", tower=tower)
    tp = published(produce, "t", 100)
    for each in (store, other):
        wait_until(lambda each=each: each.log.end(tp) == 100)  # type: ignore[misc]
    other.close()
    store.log.trim(tp, 50)
    with caplog.at_level(logging.WARNING, "dafka.consumer"):
        consumer = consume("t", start={}, on_data_loss="wait")
        wait_until(lambda: len(caplog.messages) == 1, timeout_s=PATIENCE_S)
        assert consumer.poll(0) is None
        with Store(tmp_path / "other", tower=tower):
            assert next_values(consumer, 100) == values(100)
    assert caplog.messages[0].endswith("the consumer waits for them")
    assert len(caplog.messages) == 1


def test_whoever_had_them_is_gone(produce: Produce, consume: Consume, store: Store) -> None:
    tp = published(produce, "t", 10_000)
    often: dict[str, Any] = {"beacon_interval_ms": 100, "peer_expiry_ms": 500}
    consumer = consume("t", max_queued_records=100, **often)
    wait_until(lambda: consumer._queue.size[0] > 0)
    store.close()
    with pytest.raises(DataLossError) as lost:
        next_values(consumer, 10_000)
    assert (lost.value.partition, lost.value.available) == (tp.partition, None)
    assert "to 10000 (exclusive) are missing, no store is reachable" in str(lost.value)
