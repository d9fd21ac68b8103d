"""One transaction, by attempts that die, race and are tried again: there once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import (
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecordBatch, RecordBatchMessage
from dafka_core.testing import wait_until
from dafka_spark.sink.commit_messages import WrittenRange
from tests.forked import ForkedCluster
from tests.integration.cluster.transactions import (
    PARTITION,
    held,
    host_of,
    numbers,
    soon,
    texts_of,
    transaction,
    write,
)
from tests.integration.nodes.peers import RawPeer
from tests.unit.protocol.strategies import packed


class TaskDiedError(Exception):
    """What a task may fail with."""


def test_transactions_follow_each_other(shared: EmbeddedCluster, topic: str) -> None:
    for start in (0, 10, 20):
        with transaction(shared, topic) as writer:
            writer.write(numbers(start, start + 4))
            written = write(writer, start + 4, start + 10)
        assert written == WrittenRange(TopicPartition(topic, PARTITION), start, start + 10)
        found = held(shared, topic)
        assert found.info.transaction is None
        assert found.info.end == found.info.staged_end == start + 10
    assert held(shared, topic).values == texts_of(numbers(0, 30))


@pytest.mark.usefixtures("small_blocks")
def test_nothing_is_seen_before_the_transaction_is_whole(
    shared: EmbeddedCluster, topic: str
) -> None:
    with transaction(shared, topic) as writer:
        writer.write(numbers(0, 95))
        writer.pause()
        found = held(shared, topic)
        assert found.info.staged_end == 90
        assert (found.info.end, found.info.transaction, found.values) == (0, None, [])
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95))


@pytest.mark.usefixtures("small_blocks")
def test_an_attempt_that_fails_leaves_nothing(shared: EmbeddedCluster, topic: str) -> None:
    writer = transaction(shared, topic)
    writer.write(numbers(0, 95))
    writer.pause()
    writer.__exit__(TaskDiedError, TaskDiedError(), None)
    found = held(shared, topic)
    assert found.info.end == found.info.staged_end == 0
    with transaction(shared, topic) as writer:
        writer.write(numbers(0, 95)[::-1])  # in another order
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95)[::-1])


@pytest.mark.usefixtures("small_blocks")
def test_an_attempt_that_is_killed_is_replaced(shared: EmbeddedCluster, topic: str) -> None:
    killed = transaction(shared, topic)
    killed.write(numbers(0, 95))
    killed.pause()  # and never heard of again
    with transaction(shared, topic) as writer:
        writer.write(numbers(0, 95)[::-1])
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95)[::-1])


@pytest.mark.usefixtures("small_blocks")
def test_a_zombie_is_fenced(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic) as zombie:
        zombie.write(numbers(0, 50))
        zombie.pause()
        with transaction(shared, topic) as writer:
            writer.write(numbers(0, 95))
            writer.pause()
            with pytest.raises(FencedError):
                write(zombie, 50, 95)
            writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95))


def test_no_rows_leave_no_transaction(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic) as writer:
        writer.write(numbers(0, 0))
        written = writer.finish(soon())
    assert written.start == written.end == 0
    assert held(shared, topic).info.transaction is None


@pytest.mark.usefixtures("small_blocks")
def test_staged_only(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic, shared.stores[0]) as writer:
        writer.write(numbers(0, 95))
        written = writer.finish(soon())
    assert (written.start, written.end, len(written.attempt)) == (0, 95, 32)
    found = held(shared, topic)
    assert (found.info.end, found.info.staged_end) == (0, 95)
    assert found.info.attempt == written.attempt


@pytest.mark.usefixtures("small_blocks")
def test_the_host_is_killed_and_started_again(own: EmbeddedCluster, topic: str) -> None:
    own.kill_store(1)
    with transaction(own, topic) as writer:
        writer.write(numbers(0, 55))
        own.kill_store(0)
        own.start_store(0)
        write(writer, 55, 100)
    found = held(own, topic)
    assert found.values == texts_of(numbers(0, 100))


@pytest.mark.parametrize("heard", [True, False])
def test_the_answer_to_a_commit_is_lost(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    commit = StoreClient.commit

    def unanswered(
        client: StoreClient, some: Sequence[StagedTransaction], *, timeout_s: float
    ) -> None:
        monkeypatch.undo()
        if heard:
            commit(client, some, timeout_s=timeout_s)
        raise StoreUnreachableError(client.location.store, "the connection was lost")

    monkeypatch.setattr(StoreClient, "commit", unanswered)
    with transaction(shared, topic) as writer:
        assert write(writer, 0, 10) == WrittenRange(TopicPartition(topic, PARTITION), 0, 10)
    assert held(shared, topic).values == texts_of(numbers(0, 10))


@pytest.mark.usefixtures("small_blocks")
def test_another_store_takes_over_with_all_acknowledgements(
    own: EmbeddedCluster, topic: str
) -> None:
    with transaction(own, topic, acks="all") as writer:
        write(writer, 0, 100)
    assert held(own, topic, 0).values == held(own, topic, 1).values
    with transaction(own, topic, acks="all") as writer:
        writer.write(numbers(100, 155))
        own.kill_store(host_of(own, writer))
        write(writer, 155, 200)
    found = held(own, topic)
    assert found.values == texts_of(numbers(0, 200))


def test_by_default_all_stores_have_what_is_written_exactly_once(
    own: EmbeddedCluster, topic: str
) -> None:
    much = pa.array([b"x" * 1000] * 30_000)  # a store takes a moment with it
    with transaction(own, topic) as writer:
        writer.write(much)
        writer.finish(soon())
    own.kill_store(host_of(own, writer))
    with transaction(own, topic) as writer:
        writer.write(numbers(0, 10))
        assert writer.finish(soon()).start == len(much)


def test_parts_of_two_attempts_are_never_joined(own: EmbeddedCluster, topic: str) -> None:
    """Both stores have a part of one whose host is gone for good; one of them is the next."""
    lost = packed([b"lost"] * 10)
    with RawPeer(own.tower) as peer:
        for store in own.stores:
            peer.wait_until_subscribed(subscription(DirectRecordBatch, store))
        peer.send(RecordBatchMessage(topic, PARTITION, 0, 10, lost, Transaction(0, 0, 20)))
        wait_until(lambda: [held(own, topic, i).info.staged_end for i in (0, 1)] == [10, 10])
    with transaction(own, topic, acks="all") as writer:
        write(writer, 0, 20)
    for index in (0, 1):
        found = held(own, topic, index)
        assert found.values == texts_of(numbers(0, 20))
        assert found.info == TransactionState(20, 20, found.info.attempt, None)


def test_too_few_stores_are_refused_before_anything_is_written(
    shared: EmbeddedCluster, topic: str
) -> None:
    with pytest.raises(ConfigError, match=r"there are only 1 stores .* lower acks"):
        transaction(shared, topic, acks=2, deliveryTimeoutMs=300)
    assert held(shared, topic).info.end == 0


def test_stores_without_flight_are_refused() -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        with pytest.raises(ConfigError, match="set delivery = at-least-once") as caught:
            transaction(cluster, "t")
        assert caught.value.option == "delivery"
        assert cluster.stores[0] in str(caught.value)


def test_no_store_at_all_is_refused() -> None:
    with (
        ForkedCluster(stores=0) as cluster,
        pytest.raises(ConfigError, match=r"none was heard of within 0\.3 s"),
    ):
        transaction(cluster, "t", deliveryTimeoutMs=300)
