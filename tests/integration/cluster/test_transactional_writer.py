"""One transaction, by attempts that die, race and are tried again: there once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import DirectRecordBatch, RecordBatchMessage
from dafka_core.records import (
    NO_VERSION,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from dafka_spark.sink import staged_rows
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
    for version, start in ((0, 0), (1, 10), (5, 20)):
        with transaction(shared, topic, version) as writer:
            writer.write(numbers(start, start + 4))
            written = write(writer, start + 4, start + 10)
        assert written == WrittenRange(TopicPartition(topic, PARTITION), start, start + 10)
        found = held(shared, topic)
        assert found.info.transaction == Transaction(version, start, start + 10)
        assert found.info.end == found.info.staged_end == start + 10
    assert held(shared, topic).values == texts_of(numbers(0, 30))


@pytest.mark.usefixtures("small_blocks")
def test_nothing_is_seen_before_the_transaction_is_whole(
    shared: EmbeddedCluster, topic: str
) -> None:
    with transaction(shared, topic, 0) as writer:
        writer.write(numbers(0, 95))
        writer.pause()
        found = held(shared, topic)
        assert found.info.staged_end == 90
        assert (found.info.end, found.info.transaction, found.values) == (0, None, [])
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95))


@pytest.mark.usefixtures("small_blocks")
def test_an_attempt_that_fails_leaves_nothing(shared: EmbeddedCluster, topic: str) -> None:
    writer = transaction(shared, topic, 0)
    writer.write(numbers(0, 95))
    writer.pause()
    writer.__exit__(TaskDiedError, TaskDiedError(), None)
    found = held(shared, topic)
    assert found.info.end == found.info.staged_end == 0
    with transaction(shared, topic, 0) as writer:
        writer.write(numbers(0, 95)[::-1])  # in another order
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95)[::-1])


@pytest.mark.usefixtures("small_blocks")
def test_an_attempt_that_is_killed_is_replaced(shared: EmbeddedCluster, topic: str) -> None:
    killed = transaction(shared, topic, 0)
    killed.write(numbers(0, 95))
    killed.pause()  # and never heard of again
    with transaction(shared, topic, 0) as writer:
        writer.write(numbers(0, 95)[::-1])
        writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95)[::-1])


@pytest.mark.usefixtures("small_blocks")
def test_a_zombie_is_fenced(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic, 0) as zombie:
        zombie.write(numbers(0, 50))
        zombie.pause()
        with transaction(shared, topic, 0) as writer:
            writer.write(numbers(0, 95))
            writer.pause()
            with pytest.raises(FencedError):
                write(zombie, 50, 95)
            writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 95))


@pytest.mark.usefixtures("small_blocks")
def test_a_zombie_that_is_too_late_finds_the_transaction(
    shared: EmbeddedCluster, topic: str
) -> None:
    with transaction(shared, topic, 0) as zombie:
        with transaction(shared, topic, 0) as writer:
            write(writer, 0, 95)
        zombie.write(numbers(0, 95)[::-1])
        assert zombie.finish(soon()) == WrittenRange(TopicPartition(topic, PARTITION), 0, 95)
    assert held(shared, topic).values == texts_of(numbers(0, 95))


def test_a_transaction_that_is_there_is_not_written_again(
    shared: EmbeddedCluster, topic: str
) -> None:
    for values in (numbers(0, 10), numbers(0, 10)[::-1]):
        with transaction(shared, topic, 3) as writer:
            writer.write(values)
            assert writer.finish(soon()) == WrittenRange(TopicPartition(topic, PARTITION), 0, 10)
    assert held(shared, topic).values == texts_of(numbers(0, 10))


@pytest.mark.parametrize("rows", [9, 11, 0])
def test_another_number_of_rows_is_refused(shared: EmbeddedCluster, topic: str, rows: int) -> None:
    with transaction(shared, topic, 3) as writer:
        write(writer, 0, 10)
    with (
        pytest.raises(
            TransactionChangedError, match=f"10 rows of it are committed to topic.*has {rows} now"
        ),
        transaction(shared, topic, 3) as writer,
    ):
        write(writer, 0, rows)
    assert held(shared, topic).values == texts_of(numbers(0, 10))


@pytest.mark.parametrize("rows", [numbers(1, 11), pa.array([b"1"] * 10)], ids=["other", "same"])
def test_other_rows_under_the_same_number_are_refused(
    shared: EmbeddedCluster, topic: str, rows: pa.Array
) -> None:
    """As a query has them that runs from a copy of another one's checkpoint."""
    with transaction(shared, topic, 3) as writer:
        write(writer, 0, 10)
    with transaction(shared, topic, 3) as writer:
        writer.write(rows)
        with pytest.raises(TransactionChangedError, match=r"10 others now.*copy of this checkp"):
            writer.finish(soon())
    assert held(shared, topic).values == texts_of(numbers(0, 10))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("retained", "error"), [(1 << 20, TransactionChangedError), (200, FencedError)]
)
def test_an_attempt_with_other_rows_that_is_too_late_is_refused(
    shared: EmbeddedCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    retained: int,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(staged_rows, "RETAINED_BYTES", retained)
    with transaction(shared, topic, 0) as zombie:
        zombie.write(numbers(0, 55))  # which it may not retain
        zombie.pause()
        with transaction(shared, topic, 0) as writer:
            writer.write(numbers(1, 96))
            writer.finish(soon())
        with pytest.raises(error):
            write(zombie, 55, 95)
    assert held(shared, topic).values == texts_of(numbers(1, 96))


def test_rows_that_were_trimmed_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with ForkedCluster() as cluster:
        with transaction(cluster, "t", 0) as writer:
            write(writer, 0, 10)
        cluster.kill_store(0)
        with Log(cluster.store_directory()) as log:
            log.trim(TopicPartition("t", PARTITION), 5)
        cluster.start_store(0)
        with transaction(cluster, "t", 0) as writer:
            write(writer, 0, 10)
    assert "rows of a batch that is run again are only counted" in caplog.text


def test_an_older_checkpoint_is_refused(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic, 3) as writer:
        write(writer, 0, 10)
    with pytest.raises(OldCheckpointError, match="batch 2 is to be written, and batch 3"):
        transaction(shared, topic, 2)


def test_no_rows_leave_no_transaction(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic, 0) as writer:
        writer.write(numbers(0, 0))
        written = writer.finish(soon())
    assert written.start == written.end == 0
    assert held(shared, topic).info.transaction is None


@pytest.mark.usefixtures("small_blocks")
def test_staged_only(shared: EmbeddedCluster, topic: str) -> None:
    with transaction(shared, topic, NO_VERSION, shared.stores[0]) as writer:
        writer.write(numbers(0, 95))
        written = writer.finish(soon())
    assert (written.start, written.end, len(written.attempt)) == (0, 95, 32)
    found = held(shared, topic)
    assert (found.info.end, found.info.staged_end) == (0, 95)
    assert found.info.attempt == written.attempt


@pytest.mark.usefixtures("small_blocks")
def test_the_host_is_killed_and_started_again(own: EmbeddedCluster, topic: str) -> None:
    own.kill_store(1)
    with transaction(own, topic, 0) as writer:
        writer.write(numbers(0, 55))
        own.kill_store(0)
        own.start_store(0)
        write(writer, 55, 100)
    found = held(own, topic)
    assert found.values == texts_of(numbers(0, 100))
    assert found.info.transaction == Transaction(0, 0, 100)


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
    with transaction(shared, topic, 0) as writer:
        assert write(writer, 0, 10) == WrittenRange(TopicPartition(topic, PARTITION), 0, 10)
    assert held(shared, topic).values == texts_of(numbers(0, 10))
    assert held(shared, topic).info.transaction == Transaction(0, 0, 10)


@pytest.mark.usefixtures("small_blocks")
def test_another_store_takes_over_with_all_acknowledgements(
    own: EmbeddedCluster, topic: str
) -> None:
    with transaction(own, topic, 0, acks="all") as writer:
        write(writer, 0, 100)
    assert held(own, topic, 0).values == held(own, topic, 1).values
    assert (
        held(own, topic, 0).info.transaction
        == held(own, topic, 1).info.transaction
        == Transaction(0, 0, 100)
    )
    with transaction(own, topic, 1, acks="all") as writer:
        writer.write(numbers(100, 155))
        own.kill_store(host_of(own, writer))
        write(writer, 155, 200)
    with transaction(own, topic, 1, acks="all") as writer:  # as a replay finds it
        write(writer, 100, 200)
    found = held(own, topic)
    assert found.values == texts_of(numbers(0, 200))
    assert found.info.transaction == Transaction(1, 100, 200)


def test_by_default_all_stores_have_what_is_written_exactly_once(
    own: EmbeddedCluster, topic: str
) -> None:
    much = pa.array([b"x" * 1000] * 30_000)  # a store takes a moment with it
    with transaction(own, topic, 0) as writer:
        writer.write(much)
        writer.finish(soon())
    own.kill_store(host_of(own, writer))
    with transaction(own, topic, 1) as writer:
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
    with transaction(own, topic, 0, acks="all") as writer:
        write(writer, 0, 20)
    for index in (0, 1):
        found = held(own, topic, index)
        assert found.values == texts_of(numbers(0, 20))
        assert found.info == TransactionState(20, 20, found.info.attempt, Transaction(0, 0, 20))


def test_too_few_stores_are_refused_before_anything_is_written(
    shared: EmbeddedCluster, topic: str
) -> None:
    with pytest.raises(ConfigError, match=r"there are only 1 stores .* lower acks"):
        transaction(shared, topic, 0, acks=2, deliveryTimeoutMs=300)
    assert held(shared, topic).info.end == 0


def test_stores_without_flight_are_refused() -> None:
    with ForkedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        with pytest.raises(ConfigError, match="set delivery = at-least-once") as caught:
            transaction(cluster, "t", 0)
        assert caught.value.option == "delivery"
        assert cluster.stores[0] in str(caught.value)


def test_no_store_at_all_is_refused() -> None:
    with (
        ForkedCluster(stores=0) as cluster,
        pytest.raises(ConfigError, match=r"none was heard of within 0\.3 s"),
    ):
        transaction(cluster, "t", 0, deliveryTimeoutMs=300)
