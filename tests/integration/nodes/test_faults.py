"""Nodes killed, gone, late and come back: nothing acknowledged is lost, nothing comes twice."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from dafka_core import Consumer, DataLossError, EmbeddedCluster, Record, Store
from dafka_core.errors import StoreUnreachableError
from dafka_core.model.records import TopicPartition, Transaction, TransactionState
from dafka_core.protocol import timing
from tests.integration.nodes.conftest import Consume, Produce
from tests.integration.nodes.content import flushed, values
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
)


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


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts, but not below the answers of local stores."""
    monkeypatch.setattr(timing, "FETCH_RETRY_S", 0.2)
    monkeypatch.setattr(timing, "LOSS_CHECK_S", 0.5)
    monkeypatch.setattr(timing, "ABSENT_STORE_S", 1.0)


@pytest.fixture
def trimmed(produce: Produce, store: Store, soon: None) -> TopicPartition:
    """Records 50 to 100; those before them were trimmed."""
    tp = TopicPartition("t", flushed(produce("t"), values(100)).address)
    assert store.log.trim(tp, 50) == 50
    return tp


def next_values(consumer: Consumer, count: int) -> list[bytes | None]:
    found = [consumer.poll(PATIENCE_S) for _ in range(count)]
    return [record.value for record in found if record]


async def next_of_async_for(consumer: Consumer) -> Record:
    return await anext(aiter(consumer))


WAYS: list[Callable[[Consumer], object]] = [
    lambda consumer: consumer.poll(PATIENCE_S),
    lambda consumer: next(iter(consumer)),
    lambda consumer: next(consumer.batches(PATIENCE_S)),
    lambda consumer: asyncio.run(next_of_async_for(consumer)),
]


def test_trimmed_records_are_an_error_until_seek(consume: Consume, trimmed: TopicPartition) -> None:
    for read_next in WAYS:
        consumer = consume("t", start={"t": {trimmed.partition: 0}})
        with pytest.raises(DataLossError) as lost:
            read_next(consumer)
        facts = (lost.value.topic, lost.value.partition, lost.value.wanted, lost.value.available)
        assert facts == (*trimmed, 0, 50)
        assert "offsets 0 to 50 (exclusive) are missing, the stores have trimmed" in str(lost.value)
        assert "Consumer.seek" in str(lost.value)
        consumer.seek(trimmed, 50)
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
