"""Stores that do not answer for a moment, or were not there when others looked, still count."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest
from dafka_spark.sink.hosted_writer import HostCandidate

from dafka_core import EmbeddedCluster
from dafka_core.errors import FencedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import (
    NO_VERSION,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_spark.cluster import store_registry
from dafka_spark.sink import commit_coordinator, transactional_writer
from dafka_spark.sink.commit_coordinator import PickedStore, TransactionalWriterFactory, pick_store
from tests.core.nodes.peers import wait_until
from tests.spark.transactions import (
    PARTITION,
    PATIENCE_S,
    held,
    numbers,
    options,
    texts_of,
    transaction,
)

FIRST = "0A3F8E1ABBB578999443B8818C5851AF"
SECOND = "0A3F8E1BBBB578999443B8818C5851AF"
"""Partitions.  Of two stores with as much, the first in order hosts one, the second the other."""

MUCH = pa.array([b"x" * 1000] * 30_000)
"""Enough for a store to be stopped while another one has sent it only a part."""


@pytest.fixture
def own() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(stores=2) as running:
        yield running


@contextmanager
def stopped(cluster: EmbeddedCluster, index: int) -> Iterator[None]:
    """The store's process does nothing meanwhile."""
    store = cluster._stores[index]
    assert store is not None
    pid = store._process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def written(
    cluster: EmbeddedCluster, partition: str, number: int, values: pa.Array, **given: object
) -> int:
    """Writes one unit; the index of the store that took it."""
    pick = PickedStore(str(given.pop("store", "")), ())
    opener = TransactionalWriterFactory(options(cluster, **given), number, pick=pick)
    with closing(opener), opener(TopicPartition("t", partition)) as publisher:
        publisher.publish_many(values)
        publisher.finish(PATIENCE_S)
        assert publisher._host is not None
        return cluster.stores.index(publisher._host.location.store)


@pytest.mark.parametrize("partition", [FIRST, SECOND])
def test_a_store_that_may_come_back_is_waited_for_at_the_first_look(
    own: EmbeddedCluster, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a store does not start in what they give it.
    for module in (transactional_writer, store_registry):
        monkeypatch.setattr(module, "SILENT_S", PATIENCE_S)
    host = written(own, partition, 0, numbers(0, 10), acks="all")
    store = own.stores[host]
    publisher = transaction(own, "t", 1, partition=partition)
    assert publisher._host is not None
    assert publisher._host.location.store == store
    with stopped(own, 1 - host):
        publisher.publish_many(MUCH)
        publisher.finish(PATIENCE_S)
        own.kill_store(host)
    via = options(own).mesh_address

    def come_back() -> None:
        wait_until(lambda: store in store_registry._known[via].silent)
        own.start_store(host)

    coming = threading.Thread(target=come_back)
    coming.start()
    try:
        written(own, partition, 2, numbers(10, 20), acks="all")
    finally:
        coming.join()
    for index in range(2):
        has = held(own, "t", index, partition)
        assert has.values == texts_of(pa.concat_arrays([numbers(0, 10), MUCH, numbers(10, 20)]))
        assert has.info.transaction == Transaction(2, 10 + len(MUCH), 20 + len(MUCH))


def test_a_store_that_is_never_reached_is_waited_for_once(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is in the mesh, and its Flight is not reached from here.
    lost = own.stores[1]
    describe = StoreClient.describe

    def refused(client: StoreClient, *, timeout_s: float) -> StoreLocation:
        if client.location.store == lost:
            raise StoreUnreachableError(lost, "there is a wall")
        return describe(client, timeout_s=timeout_s)

    monkeypatch.setattr(StoreClient, "describe", refused)
    monkeypatch.setattr(store_registry, "SILENT_S", 0.5)
    via = options(own).mesh_address

    def silent() -> list[str]:
        with closing(store_registry.StoreRegistry(via)) as found:
            assert [client.location.store for client in found.anew()] == [own.stores[0]]
            return found.silent

    assert silent() == [lost]
    wait_until(lambda: silent() == [])
    with closing(store_registry.StoreRegistry(via)) as found:
        found.current()
        assert found.silent == []
    # It has answered meanwhile, so it counts anew.
    monkeypatch.undo()
    with closing(store_registry.StoreRegistry(via)) as found:
        assert len(found.anew()) == 2
    monkeypatch.setattr(StoreClient, "describe", refused)
    assert silent() == [lost]


def test_a_commit_waits_for_stores_that_came_after_the_job_began(own: EmbeddedCluster) -> None:
    own.kill_store(1)
    given = options(own, acks="all", topic="t")
    pick = pick_store(given)
    own.start_store(1)
    opener = TransactionalWriterFactory(given, NO_VERSION, pick=pick)
    with closing(opener), opener(TopicPartition("t", PARTITION)) as publisher:
        publisher.publish_many(MUCH)
        staged = publisher.finish(PATIENCE_S)
    # What another process knows that commits.
    store_registry._known.clear()
    commit_coordinator.commit(given, pick, [staged])
    for index in range(2):
        assert len(held(own, "t", index).values) == len(MUCH)


def test_a_store_that_is_gone_is_not_picked(own: EmbeddedCluster) -> None:
    with closing(store_registry.StoreRegistry(options(own).mesh_address)) as found:
        assert len(found.anew()) == 2
    # The one that is left is asked, and its word is not enough.
    gone = sorted(own.stores)[1]
    own.kill_store(own.stores.index(gone))
    picked = {pick_store(options(own, topic=f"t{number}")).store for number in range(8)}
    assert picked == set(own.stores) - {gone}


def test_a_unit_goes_on_where_a_part_of_it_has_come_from_the_lost_host(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both have hosted the partition, so neither's last attempt says anything of this one.
    first, second = sorted(own.stores)
    for number, store in enumerate((second, first)):
        written(own, FIRST, number, numbers(0, 10), acks="all", store=store)
    host, other = own.stores.index(first), own.stores.index(second)
    publisher = transaction(own, "t", 2, acks="all", partition=FIRST)
    assert publisher._host is not None
    assert publisher._host.location.store == first
    publisher.publish_many(MUCH)
    commit = StoreClient.commit

    def killed_before_it_answers(
        client: StoreClient, some: Sequence[StagedTransaction], *, timeout_s: float
    ) -> None:
        monkeypatch.undo()
        with stopped(own, other):
            commit(client, some, timeout_s=timeout_s)
            # The first records wait at the other one's socket.
            own.kill_store(host)
        raise StoreUnreachableError(first, "it was killed before it answered")

    monkeypatch.setattr(StoreClient, "commit", killed_before_it_answers)
    assert publisher.finish(PATIENCE_S).end == 20 + len(MUCH)
    assert len(held(own, "t", own.stores.index(second), FIRST).values) == 20 + len(MUCH)


def test_what_still_comes_of_an_older_unit_is_left_alone(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = transaction(own, "t", 5)
    publisher._attempts.clear()  # it begins
    ended: list[TransactionState] = []
    monkeypatch.setattr(
        transactional_writer, "end_attempt", lambda *arguments: ended.append(arguments[2])
    )
    best, other = publisher._known
    older = TransactionState(end=10, staged_end=15, attempt="", transaction=Transaction(3, 0, 10))
    this = TransactionState(end=20, staged_end=25, attempt="", transaction=Transaction(4, 10, 20))
    zombie = TransactionState(
        end=10, staged_end=15, attempt="F" * 32, transaction=Transaction(3, 0, 10)
    )
    for info in (older, this, zombie):
        publisher._fence([transactional_writer._Found(other, info)], HostCandidate(best, 20))
    assert ended == [this, zombie]


def test_only_a_named_attempt_at_the_next_host_has_taken_over(own: EmbeddedCluster) -> None:
    publisher = transaction(own, "t", 5)
    publisher.publish_many(numbers(0, 10))
    publisher._attempts.discard("")  # both stores have hosted the partition
    (other,) = (host for host in publisher._known if host is not publisher._host)
    with pytest.raises(FencedError):
        publisher._go_on(
            [transactional_writer._Found(other, TransactionState(0, 5, "F" * 32, None))]
        )
    # What came from the lost host may be this unit, in part.
    assert publisher._go_on([transactional_writer._Found(other, TransactionState(0, 5, "", None))])
    assert publisher._host is other
    assert publisher.finish(PATIENCE_S).end == 10
    assert len(held(own, "t", own.stores.index(other.location.store)).values) == 10
