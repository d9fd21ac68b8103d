"""Nodes that there should be one of, and nodes that were asleep while the others went on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Consumer, EmbeddedCluster, Producer, Reader, Store, Tower
from dafka_core.errors import ProducerFencedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.protocol import timing
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S


def test_of_two_producers_with_one_address_the_newer_one_goes_on(
    store: Store, produce: Callable[..., Producer]
) -> None:
    """As when a job is started again while it still runs."""
    older = produce("t")
    older.publish(b"a")
    older.flush(PATIENCE_S)
    newer = produce("t", address=older.address)
    newer.publish(b"c")
    newer.flush(PATIENCE_S)

    def go_on() -> None:
        older.publish(b"b")
        older.flush(PATIENCE_S)

    with pytest.raises(ProducerFencedError) as fenced:
        go_on()
    assert fenced.value.partition == older.address
    newer.publish(b"d")
    newer.flush(PATIENCE_S)
    assert stored(store, "t", newer.address) == [b"a", b"c", b"d"]


def heads_of(cluster: EmbeddedCluster, index: int) -> list[int]:
    location = StoreLocation(cluster.stores[index], cluster.locations(index))
    with StoreClient(location) as client:
        return [info.end for info in client.heads(["t"], timeout_s=PATIENCE_S)]


def test_a_store_that_was_asleep_gets_what_it_has_missed() -> None:
    """As of a laptop that was closed: it is given up meanwhile, and no process ends."""
    with ForkedCluster(stores=2) as cluster, Reader(tower=cluster.tower) as reader:
        wait_until(lambda: len(reader.stores()) == 2)
        with cluster.paused_store(1), Producer("t", tower=cluster.tower) as producer:
            wait_until(lambda: reader.stores() == [cluster.stores[0]])
            producer.publish_many(values(500))
            producer.flush(PATIENCE_S)
        wait_until(lambda: heads_of(cluster, 1) == [500])
        assert heads_of(cluster, 0) == [500]


def test_nodes_whose_towers_do_not_know_each_other_meet_at_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer and a consumer that never hear of each other: the store has both towers."""
    monkeypatch.setattr(timing, "HEADS_INTERVAL_S", 0.2)  # how often it asks the store
    with (
        Tower(**ANY_PORTS) as one,
        Tower(**ANY_PORTS) as other,
        Store(tmp_path, tower=f"{one.tower},{other.tower}") as store,
        Consumer(tower=other.tower, start="earliest") as consumer,
        Producer("t", tower=one.tower, head_interval_ms=100) as producer,
    ):
        consumer.subscribe("t")
        producer.publish_many(values(500))
        producer.flush(PATIENCE_S)
        assert stored(store, "t", producer.address) == values(500)
        records = [consumer.poll(PATIENCE_S) for _ in range(500)]
        assert [record and record.value for record in records] == values(500)
        producer.publish(b"later")
        last = consumer.poll(PATIENCE_S)
        assert last is not None
        assert last.value == b"later"
