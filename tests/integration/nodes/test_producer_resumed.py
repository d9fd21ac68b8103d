"""A producer that goes on with a partition: where its stores say that it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dafka_core import NoStoreError, Producer, Store
from dafka_core.errors import MissingStoresError
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import ConsumerHello, DirectHead, Fetch, GetHeads, StoreHello
from dafka_core.records import TopicPartition
from tests.forked import ForkedCluster
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address
from tests.integration.nodes.staging import client_in


def test_a_resumed_producer_goes_on_at_its_head(store: Store, tower: str) -> None:
    with Producer("t", tower=tower) as producer:
        producer.publish_many(values(10))
    with Producer("t", tower=tower, address=producer.address) as resumed:
        assert (resumed.address, resumed.next_offset) == (producer.address, 10)
        assert resumed.publish(b"10") == 10
    assert stored(store, "t", producer.address) == values(11)


def test_an_address_that_no_store_knows_begins_at_0(store: Store, tower: str) -> None:
    address = new_address()
    with Producer("t", tower=tower) as other:
        other.publish(b"another partition of the topic")
    with Producer("t", tower=tower, address=address) as producer:
        assert producer.publish(b"0") == 0
    assert stored(store, "t", address) == [b"0"]


def test_resuming_without_a_store_is_an_error(tower: str) -> None:
    with pytest.raises(NoStoreError, match="no store was heard of") as unknown:
        Producer("t", tower=tower, address=new_address(), resume_timeout_s=0.3)
    assert (unknown.value.towers, unknown.value.waited_s) == ((tower,), 0.3)


def test_resuming_with_a_c_store(tower: str, raw: Callable[..., RawPeer]) -> None:
    # It knows no queries: GET-HEADS is what it answers.
    address = new_address()
    peer = raw(subscription(GetHeads), subscription(Fetch))
    peer.subscribe(subscription(ConsumerHello, peer.address))
    answering = threading.Event()

    def answer() -> None:
        answered = 0
        while not answering.wait(0.01):
            peer.send(StoreHello(address, peer.address))
            for _ in peer.messages(GetHeads)[answered:]:
                peer.send(DirectHead(address, "t", address, 41))
                answered += 1

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with Producer("t", tower=tower, address=address, resume_timeout_s=PATIENCE_S) as producer:
            assert producer.next_offset == 42
    finally:
        answering.set()
        thread.join()


def test_resuming_names_the_store_that_it_waited_for() -> None:
    with ForkedCluster(stores=2) as cluster:
        away, _ = cluster.stores
        cluster.kill_store(1)
        with Producer("t", tower=cluster.tower) as producer:
            producer.publish(b"0")
        cluster.start_store(1)
        with client_in(cluster, 1) as client:  # it has met the store that it has the record from
            client.wait(TopicPartition("t", producer.address), 1, timeout_s=PATIENCE_S)
        cluster.kill_store(0)
        cluster.kill_store(1)
        cluster.start_store(1)
        with pytest.raises(MissingStoresError, match="resume_timeout_s") as lacking:
            Producer("t", tower=cluster.tower, address=producer.address, resume_timeout_s=1)
    assert (lacking.value.needed, lacking.value.stores) == (2, (away,))
