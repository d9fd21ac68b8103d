"""The self-tests of the C project, scenario by scenario, against our nodes.

Source: ``dafka_consumer_test`` and ``dafka_store_test`` in the zeromq/dafka README.  Where those
sleep, these wait for the condition.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Store
from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.model.records import TopicPartition
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    Fetch,
    GetHeads,
    Head,
    RecordMessage,
    StoreHello,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.content import Place, has_published, polled
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

Raw = Callable[..., RawPeer]
Consume = Callable[..., Consumer]

both_layouts = pytest.mark.parametrize("layout", [C_LAYOUT, RFC46])


@pytest.fixture
def peer(raw: Raw) -> RawPeer:
    """The C project's test peer: hears what a consumer asks, says what the test wants."""
    return raw(subscription(GetHeads), subscription(Fetch))


def take(consumer: Consumer, count: int) -> list[Place | None]:
    return [polled(consumer) for _ in range(count)]


def wait_until_heard(consumer: Consumer, peer: RawPeer) -> None:
    """What the consumer says from now on reaches the peer."""

    def asks() -> bool:
        consumer.subscribe("another topic")
        consumer.unsubscribe("another topic")
        return bool(peer.messages(GetHeads))

    wait_until(asks)


def assert_get_heads(peer: RawPeer, consumer: Consumer, topic: str) -> None:
    wait_until(lambda: GetHeads(topic, consumer.address) in peer.messages(GetHeads))


def assert_fetch(peer: RawPeer, consumer: Consumer, topic: str, sequence: int) -> None:
    first = peer.wait_for(Fetch)[0]
    assert (first.topic, first.partition) == (topic, peer.address)
    assert (first.requestor, first.sequence) == (consumer.address, sequence)
    assert first.count >= 1


@both_layouts
@pytest.mark.parametrize("trigger", ["HEAD", "RECORD"])
def test_earliest(peer: RawPeer, consume: Consume, layout: str, trigger: str) -> None:
    # GIVEN a dafka consumer
    consumer = consume(start="earliest")
    peer.wait_until_subscribed(subscription(StoreHello, consumer.address))
    wait_until_heard(consumer, peer)
    # WHEN the consumer subscribes to topic 'hello'
    consumer.subscribe("hello")
    # THEN it sends a GET-HEADS for the topic 'hello'
    assert_get_heads(peer, consumer, "hello")
    peer.wait_until_subscribed(subscription(RecordMessage, "hello"))
    # WHEN a HEAD, or a RECORD, with a sequence larger than 0 is sent on topic 'hello'
    if trigger == "HEAD":
        peer.send(Head("hello", peer.address, 1), layout)
    else:
        peer.send(RecordMessage("hello", peer.address, 1, b"CONTENT"), layout)
    # THEN the consumer sends a FETCH for the topic 'hello' from 0 on
    assert_fetch(peer, consumer, "hello", 0)
    # WHEN a RECORD with sequence 0 and content 'CONTENT' is sent on topic 'hello'
    peer.send(RecordMessage("hello", peer.address, 0, b"CONTENT"), layout)
    # THEN the user gets it
    assert polled(consumer) == ("hello", peer.address, 0, b"CONTENT")
    if trigger == "RECORD":  # which ours has kept, where the C consumer has thrown it away
        assert polled(consumer) == ("hello", peer.address, 1, b"CONTENT")


@both_layouts
def test_hello(raw: Raw, consume: Consume, layout: str) -> None:
    store = raw()
    store.subscribe(subscription(ConsumerHello, store.address))
    consumer = consume(start="earliest")
    store.wait_until_subscribed(subscription(StoreHello, consumer.address))
    # A consumer without a subscription must not send a hello (RFC 46).
    store.send(StoreHello(consumer.address, store.address), layout)
    invalid = [b"L" + consumer.address.encode(), b"ends when it has been taken"]
    store.send_frames(invalid)
    wait_until(lambda: consumer._mesh.invalid_count == 1)
    store.send_frames(invalid)  # once it is counted, too, what came before has been handled
    wait_until(lambda: consumer._mesh.invalid_count == 2)
    consumer.subscribe("hello")
    store.wait_until_subscribed(subscription(RecordMessage, "hello"))
    assert store.messages(ConsumerHello) == []
    # With one it answers that of a store with its topics, and takes the heads that come back.
    store.subscribe(subscription(Fetch))
    store.send(StoreHello(consumer.address, store.address), layout)
    expected = ConsumerHello(store.address, consumer.address, ("hello",))
    assert store.wait_for(ConsumerHello)[0] == expected
    store.send(DirectHead(consumer.address, "hello", "PARTITION", 0), layout)
    fetch = store.wait_for(Fetch)[0]
    assert (fetch.partition, fetch.sequence) == ("PARTITION", 0)
    record = DirectRecord(consumer.address, "hello", "PARTITION", 0, b"CONTENT")
    store.send(record, layout)
    assert polled(consumer) == ("hello", "PARTITION", 0, b"CONTENT")


def test_earliest_with_producer_and_store(tower: str, tmp_path: Path) -> None:
    with (
        Store(tmp_path, tower=tower) as store,
        Producer("hello", tower=tower) as producer,
        Consumer(tower=tower, start="earliest") as consumer,
    ):
        # Published, and stored, before the consumer subscribes.
        producer.publish(b"HELLO MATE")
        producer.flush(PATIENCE_S)
        assert store.log.end(TopicPartition("hello", producer.address)) == 1
        consumer.subscribe("hello")
        producer.publish(b"HELLO ATEM")
        producer.publish(b"HELLO TEMA")
        assert take(consumer, 3) == [
            ("hello", producer.address, 0, b"HELLO MATE"),
            ("hello", producer.address, 1, b"HELLO ATEM"),
            ("hello", producer.address, 2, b"HELLO TEMA"),
        ]


def test_latest_with_producer_and_store(tower: str, tmp_path: Path) -> None:
    with (
        Producer("hello", tower=tower, head_interval_ms=50) as producer,
        Consumer(tower=tower, start="latest") as consumer,
    ):
        # Missed by the consumer, and passed over later.
        producer.publish(b"HELLO MATE")
        wait_until(lambda: has_published(producer, 1))
        consumer.subscribe("hello")
        wait_until(lambda: consumer.positions() == {("hello", producer.address): (1, 1)})
        producer.publish(b"HELLO ATEM")
        assert take(consumer, 1) == [("hello", producer.address, 1, b"HELLO ATEM")]
        # Without an acknowledgement the producer would not end.
        with Store(tmp_path, tower=tower) as store:
            producer.flush(PATIENCE_S)
            assert store.log.end(TopicPartition("hello", producer.address)) == 2


def test_producing_before_the_store_lives_and_heads_from_the_store(
    tower: str, tmp_path: Path
) -> None:
    producer = Producer("TEST", tower=tower)
    # Before the store is alive: it has to fetch them from the producer.
    producer.publish(b"1")
    producer.publish(b"2")
    wait_until(lambda: has_published(producer, 2))
    with Store(tmp_path, tower=tower) as store:
        wait_until(lambda: store.log.end(TopicPartition("TEST", producer.address)) == 2)
        producer.publish(b"3")
        # The producer ends, so that the heads can come from the store only.
        producer.close()
        with Consumer(tower=tower, start="earliest") as consumer:
            consumer.subscribe("TEST")
            assert [record and record[3] for record in take(consumer, 3)] == [b"1", b"2", b"3"]


@both_layouts
def test_a_store_takes_what_a_producer_sends_in_either_layout(
    raw: Raw, store: Store, layout: str
) -> None:
    peer = raw(subscription(Fetch))
    peer.subscribe(subscription(Ack, peer.address))
    peer.wait_until_subscribed(subscription(ConsumerHello, store.address))
    peer.send(RecordMessage("TEST", peer.address, 1, b"2"), layout)
    wait_until(lambda: [f for f in peer.messages(Fetch) if f.topic == "TEST"])
    peer.send(DirectRecord(store.address, "TEST", peer.address, 0, b"1"), layout)
    wait_until(lambda: Ack(peer.address, "TEST", 1) in peer.messages(Ack))


def test_a_producer_is_made_and_ended(tower: str) -> None:
    with Producer("dummy", tower=tower):
        pass
