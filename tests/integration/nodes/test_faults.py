"""Nodes killed, gone, late and come back: nothing acknowledged is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from dafka_core import Consumer, DataLossError, EmbeddedCluster, Producer, Reader, Record, Store
from dafka_core.errors import StoreUnreachableError
from dafka_core.model.records import TopicPartition, Transaction, TransactionState
from dafka_core.protocol import timing
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.content import acknowledged_end, has_acknowledged, values
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.nodes.staging import (
    TP,
    array,
    client_in,
    commit,
    ends,
    new_attempt,
    put,
    read,
    stage,
    state_of,
    write,
)

Produce = Callable[..., Producer]


def replayed(tower: str, topic: str, count: int) -> dict[str, list[bytes]]:
    """Everything under a topic, from its beginning, by partition; each in order and once."""
    found: dict[str, list[bytes]] = {}
    with Consumer(tower=tower, start="earliest") as consumer:
        consumer.subscribe(topic)
        for batch in consumer.batches(PATIENCE_S):
            records = found.setdefault(batch.tp.partition, [])
            assert batch.offset == len(records)
            records.extend(batch.values)
            if sum(map(len, found.values())) >= count:
                break
    return found


def test_a_store_killed_during_ingest_has_what_it_acknowledged(cluster: EmbeddedCluster) -> None:
    # With room for so few the ingest cannot end while the store is away.
    with Producer("t", tower=cluster.tower, max_unacked_records=5_000) as producer:

        def ingest() -> None:
            for first in range(0, 100_000, 500):
                producer.publish_many(values(500, first))

        ingesting = threading.Thread(target=ingest)
        ingesting.start()
        for reached in (1, 20_000):
            wait_until(partial(has_acknowledged, producer, reached))
            cluster.kill_store()
            acknowledged = acknowledged_end(producer)
            assert ingesting.is_alive()
            with Log(cluster.store_directory()) as log:
                assert log.end(TopicPartition("t", producer.address)) >= acknowledged
            cluster.start_store()
        ingesting.join()
        producer.flush(PATIENCE_S)
    assert replayed(cluster.tower, "t", 100_000) == {producer.address: values(100_000)}


CRASHING = """
import sys, time
from dafka_core import Producer
tower, address = sys.argv[1:]
producer = Producer("t", tower=tower, address=address)
while True:
    producer.publish_many([b"%d" % number for number in range(100)])
    producer.flush(60)
    print(producer.next_offset, flush=True)
"""


def test_a_producer_resumed_after_a_crash_continues(cluster: EmbeddedCluster) -> None:
    address = "0123456789ABCDEF0123456789ABCDEF"
    acknowledged = 0
    for _ in range(2):
        command = [sys.executable, "-c", CRASHING, cluster.tower, address]
        crashing = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert crashing.stdout is not None
        with crashing.stdout as lines:
            said = [int(lines.readline()) for _ in range(3)]
            crashing.kill()
            crashing.wait(PATIENCE_S)
        # It continued at the stores' end: after all acknowledged records, and without a gap.
        assert said[0] >= acknowledged + 100
        acknowledged = said[-1]
    with Producer("t", tower=cluster.tower, address=address) as producer:
        first = producer.publish(b"resumed")
    assert first >= acknowledged
    [(partition, records)] = replayed(cluster.tower, "t", first + 1).items()
    assert partition == address
    assert len(records) == first + 1
    assert records[-1] == b"resumed"
    assert records[:100] == values(100)


def test_a_reader_survives_the_store_it_reads_from(cluster: EmbeddedCluster) -> None:
    with Producer("t", tower=cluster.tower) as producer:
        producer.publish_many([bytes(1_000)] * 20_000)
    tp = TopicPartition("t", producer.address)
    with Reader(tower=cluster.tower, max_queued_bytes=10_000) as reader:
        batches = reader.read(tp, 0, 20_000, timeout_s=PATIENCE_S)
        got = len(next(batches).values)
        cluster.kill_store()
        cluster.start_store()
        assert got + sum(len(batch.values) for batch in batches) == 20_000


def test_a_store_killed_before_the_commit_continues_the_attempt(cluster: EmbeddedCluster) -> None:
    attempt = new_attempt()
    with client_in(cluster) as client:
        put(client, 0, 10)
        stage(client, attempt, 10, 2000, 3)
        stream = client.put(TP, 2000, attempt=attempt, version=3, timeout_s=PATIENCE_S)
        with stream:
            stream.write(array(2000, 2500))
            stream.wait_durable(2500, timeout_s=PATIENCE_S)
            cluster.kill_store()
            with pytest.raises(StoreUnreachableError):
                stream.finish(PATIENCE_S)
    cluster.start_store()
    with client_in(cluster) as client:
        assert state_of(client) == TransactionState(10, 2500, attempt, None)
        assert ends(client) == [10]
        transaction = stage(client, attempt, 2500, 4000, 3)._replace(start=10)
        commit(client, transaction)
        assert state_of(client) == TransactionState(4000, 4000, attempt, Transaction(3, 10, 4000))
    cluster.kill_store()
    cluster.start_store()
    with client_in(cluster) as client:
        commit(client, transaction)  # its answer was lost with the store
        assert read(client, 4000) == values(4000)


LARGE = 300_000
"""Records of a transaction that takes many messages, and many rounds of a store's loop."""


def test_a_store_killed_while_it_takes_a_large_transaction(cluster: EmbeddedCluster) -> None:
    cluster.start_store(1)
    with client_in(cluster) as host:
        write(host, 0, 100, 1)
        with client_in(cluster, 1) as replica:
            assert replica.wait(TP, 100, timeout_s=PATIENCE_S) == 100
            write(host, 100, 4 * LARGE, 2)
            wait_until(lambda: replica.transaction_states([TP], timeout_s=9)[0].staged_end > 100)
        cluster.kill_store(1)
        cluster.start_store(1)
        with client_in(cluster, 1) as replica:
            seen = set()

            def is_whole() -> bool:
                (info,) = replica.transaction_states([TP], timeout_s=PATIENCE_S)
                seen.add(info.end)
                return info.end == 4 * LARGE

            wait_until(is_whole)
            assert seen <= {100, 4 * LARGE}
            (info,) = replica.transaction_states([TP], timeout_s=PATIENCE_S)
            assert info == TransactionState(
                4 * LARGE, 4 * LARGE, "", Transaction(2, 100, 4 * LARGE)
            )
            assert read(replica, 4 * LARGE) == values(4 * LARGE)


Consume = Callable[..., Consumer]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts, but not below the answers of local stores."""
    monkeypatch.setattr(timing, "FETCH_RETRY_S", 0.2)
    monkeypatch.setattr(timing, "LOSS_CHECK_S", 0.5)
    monkeypatch.setattr(timing, "ABSENT_STORE_S", 1.0)


def published(produce: Produce, topic: str, count: int) -> TopicPartition:
    with produce(topic) as producer:
        producer.publish_many(values(count))
    return TopicPartition(topic, producer.address)


@pytest.fixture
def trimmed(produce: Produce, store: Store, soon: None) -> TopicPartition:
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
def test_trimmed_records_are_an_error_until_seek(
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


def test_skipped_records_and_a_late_beginning_are_logged(
    consume: Consume, trimmed: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    of_partition = f"topic 't', partition {trimmed.partition}: "
    caplog.set_level(logging.INFO, "dafka.consumer")
    consumer = consume("t", start="earliest")
    assert next_values(consumer, 50) == values(50, 50)
    assert f"{of_partition}begins at offset 50, the earliest that a store has" in caplog.messages
    assert consumer.skipped == {}
    caplog.clear()
    consumer = consume("t", start={}, on_data_loss="skip")
    assert next_values(consumer, 50) == values(50, 50)
    assert consumer.skipped == {trimmed: 50}
    [line] = caplog.messages
    assert line.startswith(f"{of_partition}offset 0 was asked for")
    assert line.endswith("the consumer skips them")
