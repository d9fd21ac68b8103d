"""A producer that goes on with a partition: where its stores say that it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dafka_core import NoStoreError, Producer, Store
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import ConsumerHello, DirectHead, Fetch, GetHeads, StoreHello
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer, new_address


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
