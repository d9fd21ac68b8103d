"""A task's writer: its rows are staged once at the picked store, whatever happens to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import (
    FencedError,
    NotAcknowledgedError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import Discard
from dafka_core.model.records import TopicPartition, Transaction, TransactionState
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecordBatch, RecordBatchMessage
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.sink import staging
from dafka_spark.sink.staging import WrittenRange, fence
from dafka_spark.sink.store_session import StoreSession
from tests.integration.cluster.transactions import (
    PARTITION,
    commit,
    factory,
    held,
    numbers,
    options,
    publish,
    restarts,
    soon,
    stage,
    texts_of,
    transaction,
)
from tests.integration.nodes.peers import RawPeer
from tests.unit.protocol.strategies import packed


def test_transactions_follow_each_other(shared: EmbeddedCluster, topic: str) -> None:
    tp = TopicPartition(topic, PARTITION)
    with transaction(shared, topic) as writer:
        assert stage(writer, 0, 0) == WrittenRange(tp, 0, 0, writer.attempt)
    assert held(shared, topic).info == TransactionState(0, 0, "", None)
    for start in (0, 10, 20):
        with transaction(shared, topic) as writer:
            writer.write(numbers(start, start + 4))
            written = stage(writer, start + 4, start + 10)
        assert written == WrittenRange(tp, start, start + 10, writer.attempt)
        found = held(shared, topic).info
        assert (found.end, found.staged_end, found.attempt) == (start, start + 10, writer.attempt)
        commit(options(shared), shared.stores[0], written)
        assert held(shared, topic).values == texts_of(numbers(0, start + 10))


# -- attempts of one task --------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_an_attempt_that_fails_leaves_nothing(shared: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(KeyboardInterrupt), transaction(shared, topic) as writer:  # noqa: PT012
        writer.write(numbers(0, 95))
        writer.pause(soon())
        assert held(shared, topic).info.staged_end == 90
        raise KeyboardInterrupt
    found = held(shared, topic).info
    assert found.end == found.staged_end == 0


@pytest.mark.usefixtures("small_blocks")
def test_a_later_attempt_replaces_an_earlier_one(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic) as zombie:
        zombie.write(numbers(0, 50))
        zombie.pause(soon())
        with transaction(shared, topic) as writer:
            writer.write(numbers(0, 95)[::-1])  # in another order
            writer.pause(soon())
            with pytest.raises(FencedError):
                stage(zombie, 50, 95)
            commit(options(shared), shared.stores[0], stage(writer, 0, 0))
    assert held(shared, topic).values == texts_of(numbers(0, 95)[::-1])


@pytest.mark.usefixtures("small_blocks")
def test_a_replaced_attempt_does_not_take_over_after_a_restart(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "HOLD_S", PATIENCE_S)
    own.kill_store(1)
    with transaction(own, topic) as zombie:
        zombie.write(numbers(0, 50))
        with transaction(own, topic) as writer:
            written = stage(writer, 0, 95)
        own.kill_store(0)  # and the zombie's stream
        own.start_store(0)
        with pytest.raises(FencedError):
            stage(zombie, 50, 95)
    commit(options(own), own.stores[0], written)
    assert held(own, topic).values == texts_of(numbers(0, 95))


def test_a_writer_continues_behind_a_commit_that_came_meanwhile(
    shared: EmbeddedCluster, topic: str
) -> None:
    with transaction(shared, topic) as writer:
        publish(shared, topic, numbers(0, 30))
        written = stage(writer, 30, 40)
    assert (written.start, written.end) == (30, 40)
    commit(options(shared), shared.stores[0], written)
    assert held(shared, topic).values == texts_of(numbers(0, 40))


def test_parts_of_two_attempts_are_never_joined(own: EmbeddedCluster, topic: str) -> None:
    """Both stores have a part of a transaction, and its store is lost; one of them is picked."""
    lost = packed([b"lost"] * 10)
    with RawPeer(own.tower) as peer:
        for store in own.stores:
            peer.wait_until_subscribed(subscription(DirectRecordBatch, store))
        peer.send(RecordBatchMessage(topic, PARTITION, 0, 10, lost, Transaction(0, 0, 20)))
        wait_until(lambda: [held(own, topic, i).info.staged_end for i in (0, 1)] == [10, 10])
    # As the same version, which the stores would join with their part.
    chosen = options(own, topic=topic, txnAppId="a", txnVersion=0)
    with factory(chosen) as opened, opened.open(TopicPartition(topic, PARTITION)) as writer:
        written = stage(writer, 0, 20)
        other = next(each for each in (0, 1) if own.stores[each] != opened.picked)
        assert held(own, topic, other).info.staged_end == 0
        commit(options(own, topic=topic), opened.picked, written)
    for index in (0, 1):
        assert held(own, topic, index).values == texts_of(numbers(0, 20))


def test_only_the_open_transaction_of_other_attempts_is_discarded() -> None:
    discarded: list[Discard] = []
    taken_over: list[int] = []

    class Store(StoreClient):
        def put(self, tp: TopicPartition, start: int, **given: Any) -> PutStream:
            taken_over.append(start)
            raise StoreUnreachableError(self.location.store, "it has gone meanwhile")

        def discard(self, discards: Sequence[Discard], *, timeout_s: float) -> None:
            discarded.extend(discards)

    tp = TopicPartition("t", PARTITION)
    picked, other = (Store(StoreLocation(name, ("grpc://127.0.0.1:1",))) for name in "AB")
    older = TransactionState(10, 15, "", Transaction(3, 0, 10))
    this = TransactionState(20, 25, "", Transaction(4, 10, 20))
    zombie = TransactionState(10, 15, "F" * 32, Transaction(3, 0, 10))
    for state in (older, this, zombie):
        fence(tp, [(picked, zombie), (other, state)], picked, 20)
    assert taken_over == [this.end]
    assert discarded == [Discard(tp, zombie.attempt)]


# -- the store is lost -----------------------------------------------------------------------------


@pytest.fixture(params=[300, 1 << 20])
def retained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A bound of the rows in memory: for some of a test's rows, or for all."""
    bound: int = request.param
    monkeypatch.setattr(staging, "RETAINED_BYTES", bound)
    return bound


@pytest.mark.usefixtures("small_blocks")
def test_the_store_restarts(own: EmbeddedCluster, topic: str, retained: int) -> None:
    own.kill_store(1)
    with transaction(own, topic) as writer:
        writer.write(numbers(0, 155))
        assert writer.is_whole is (retained > 300)
        own.kill_store(0)
        own.start_store(0)
        written = stage(writer, 155, 300)
    commit(options(own), own.stores[0], written)
    assert held(own, topic).values == texts_of(numbers(0, 300))


@pytest.mark.usefixtures("small_blocks", "retained")
def test_a_store_that_is_given_up_fails_the_task_at_once(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after two minutes: Spark can try again at the other store."""
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", 1.0)
    with transaction(own, topic, own.stores[0]) as writer:
        writer.write(numbers(0, 155))
        own.kill_store(0)
        with pytest.raises(NotAcknowledgedError, match="after 1 s") as caught:
            stage(writer, 155, 300)
    assert "it alone had rows of the job, and is gone" in str(caught.value.__cause__)
    assert held(own, topic).values == []  # of the other store


@pytest.mark.usefixtures("small_blocks")
def test_the_only_store_is_waited_for_until_the_deadline(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", 0.5)
    own.kill_store(1)
    with transaction(own, topic, own.stores[0]) as writer:
        writer.write(numbers(0, 15))
        own.kill_store(0)
        writer.write(numbers(15, 19))
        with pytest.raises(NotAcknowledgedError, match="after 2 s"):
            writer.finish(Deadline(2.0))


@pytest.mark.usefixtures("small_blocks")
def test_the_store_is_lost_again_while_rows_are_staged_again(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, sent = PutStream.write, 0

    def broken(stream: PutStream, values: pa.Array) -> None:
        nonlocal sent
        sent += 1
        is_lost = sent in (6, 8)
        put(stream, values[: len(values) // 2] if is_lost else values)
        if is_lost:
            stream.wait_durable(stream.end, timeout_s=PATIENCE_S)
            raise StoreUnreachableError(shared.stores[0], "the connection was lost")

    monkeypatch.setattr(PutStream, "write", broken)
    with transaction(shared, topic) as writer:
        written = stage(writer, 0, 100)
    commit(options(shared), shared.stores[0], written)
    assert held(shared, topic).values == texts_of(numbers(0, 100))


@pytest.mark.parametrize("catches_up", [True, False])
def test_the_picked_store_catches_up_before_the_first_row(
    own: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, catches_up: bool
) -> None:
    picked, _ = own.stores
    waited: list[tuple[str, int]] = []
    real = StoreClient.transaction_states

    def states(client: StoreClient, *args: Any, **given: Any) -> list[TransactionState]:
        if client.location.store == picked or (waited and catches_up):
            return real(client, *args, **given)
        return [TransactionState(10, 10, "", None)]

    def wait(client: StoreClient, tp: TopicPartition, end: int, **_: Any) -> int:
        waited.append((client.location.store, end))
        return end

    with StoreSession(options(own).mesh_address) as session:
        wait_until(lambda: len(session.refresh()) == 2)
    monkeypatch.setattr(StoreClient, "transaction_states", states)
    monkeypatch.setattr(StoreClient, "wait", wait)
    if catches_up:
        transaction(own, topic, picked)
        assert waited == [(picked, 10)]
        return
    with pytest.raises(StoreUnreachableError, match="up to offset 0, and another store up to 10"):
        transaction(own, topic, picked, deliveryTimeoutMs=1000)


def test_a_store_that_is_away_refuses_the_writer(own: EmbeddedCluster, topic: str) -> None:
    away = own.stores[1]
    own.kill_store(1)
    with pytest.raises(StoreUnreachableError, match=away):
        transaction(own, topic, away, deliveryTimeoutMs=1000)


# -- memory and streams ----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("value", "bound"), [(b"a number", 2000), (b"", 200)])
def test_retained_rows_are_bounded(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, value: bytes, bound: int
) -> None:
    monkeypatch.setattr(staging, "RETAINED_BYTES", bound)
    wait_durable = PutStream.wait_durable

    def wait_exactly(stream: PutStream, end: int, *, timeout_s: float) -> int:
        wait_durable(stream, end, timeout_s=timeout_s)
        return end

    monkeypatch.setattr(PutStream, "wait_durable", wait_exactly)
    with transaction(shared, topic) as writer:
        for _ in range(100):
            writer.write(pa.array([value] * 10))
            assert 0 < writer.retained_bytes <= bound  # later rows may not be on disk
        assert not writer.is_whole
        written = writer.finish(soon())
        assert writer.retained_bytes == 0
    commit(options(shared), shared.stores[0], written)
    assert held(shared, topic).values == [value] * 1000


@pytest.mark.usefixtures("small_blocks")
def test_many_topics_share_few_streams(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "MAX_STREAMS", 2)
    names = [f"{topic}-{index}" for index in range(5)]
    streams: set[PutStream] = set()
    put, close = StoreClient.put, PutStream.close

    def opened(*args: Any, **given: Any) -> PutStream:
        stream = put(*args, **given)
        streams.add(stream)
        return stream

    def closed(stream: PutStream) -> None:
        close(stream)
        streams.discard(stream)

    monkeypatch.setattr(StoreClient, "put", opened)
    monkeypatch.setattr(PutStream, "close", closed)
    with factory(options(shared)) as task, ExitStack() as stack:
        writers = [
            stack.enter_context(task.open(TopicPartition(name, PARTITION))) for name in names
        ]
        for start in range(0, 60, 20):
            for writer in writers:
                writer.write(numbers(start, start + 20))
                assert len(streams) <= 2
        commit(options(shared), task.picked, *(writer.finish(soon()) for writer in writers))
    for name in names:
        assert held(shared, name).values == texts_of(numbers(0, 60))


@pytest.mark.usefixtures("small_blocks")
def test_two_hundred_slow_writers_share_the_places_of_a_store(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has some rows staged while it computes the others; a store serves 32 streams."""
    monkeypatch.setattr(staging, "HOLD_S", 0.05)
    all_staged = threading.Barrier(200)
    store = shared.stores[0]

    def work(number: int) -> int:
        with transaction(shared, topic, store, partition=f"{number:032X}") as writer:
            writer.write(numbers(0, 10))
            writer._wait_durable(10, PATIENCE_S)  # and leave it to the timer to close the stream
            all_staged.wait(PATIENCE_S)
            return stage(writer, 10, 25).end

    with ThreadPoolExecutor(200) as tasks:
        assert list(tasks.map(work, range(200))) == [25] * 200


@pytest.mark.parametrize("moves", [True, False])
def test_a_busy_store_is_waited_for_as_long_as_it_serves_others(
    shared: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    put = StoreClient.put
    waited: list[float] = []

    def busy(client: StoreClient, *args: Any, waited_s: float, **given: Any) -> PutStream:
        waited.append(waited_s)
        if len(waited) <= 6:
            raise StoreBusyError(shared.stores[0], "it has no place", waited_s + 30, moves)
        return put(client, *args, waited_s=waited_s, **given)

    monkeypatch.setattr(StoreClient, "put", busy)
    again = restarts(monkeypatch)
    with transaction(shared, topic, deliveryTimeoutMs=500) as writer:
        writer.write(numbers(0, 10))
        if moves:
            assert writer.finish(soon()).end == 10
            assert len(again) == 6
            assert waited == [0, 30, 60, 90, 120, 150, 180]  # it keeps its place in the queue
        else:
            with pytest.raises(NotAcknowledgedError):
                writer.finish(Deadline(0.5))
