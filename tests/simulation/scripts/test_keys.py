"""The owner of a key exceeds its permissions.

``mallory`` may produce to topics ``own.*`` and consume these.
"""

from __future__ import annotations

import pytest

from dafka_core.model.epochs import EpochId
from dafka_core.model.records import PartitionInfo
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.record_limits import LEAST_BYTES, announcement
from dafka_core.security.permissions import CONSUME, PRODUCE
from tests.simulation.scripts.script import (
    Peer,
    Script,
    ScriptedConsumer,
    ScriptedProducer,
    ScriptedStore,
    values,
)

LATER = EpochId(2**31, 1, 1)
"""A life newer than any."""

OWN = {"produce": ("own.*",), "consume": ("own.*",)}


@pytest.fixture
def store(locked: Script) -> ScriptedStore:
    return locked.store()


@pytest.fixture
def mallory(locked: Script, store: ScriptedStore) -> Peer:
    permissions = locked.network.keys.add("mallory", PRODUCE, CONSUME, **OWN)
    peer = locked.peer(name="mallory", permissions=permissions)
    # Its subscriptions may be refused; its messages reach every subscriber.
    locked.until(lambda: peer.is_subscribed(subscription(m.ConsumerHello, store.address)))
    return peer


@pytest.fixture
def producer(locked: Script, store: ScriptedStore, mallory: Peer) -> ScriptedProducer:
    producer = locked.producer("t")
    producer.publish(3)
    producer.flush()
    return producer


@pytest.fixture
def consumer(locked: Script, mallory: Peer) -> ScriptedConsumer:
    consumer = locked.consumer("t", "own.x")
    mallory.wait_until_subscribed(subscription(m.RecordMessage, "t"))
    return consumer


def assert_refused(locked: Script, mallory: Peer, message: m.Message, nodes: int) -> None:
    """Send a message, and check that ``nodes`` refuse it."""
    before = sum(locked.world.refused.values())
    mallory.send(message)
    locked.run(0.1)
    assert sum(locked.world.refused.values()) == before + nodes, str(message)


def test_messages_beyond_the_permissions_of_a_key_are_refused(
    locked: Script,
    store: ScriptedStore,
    mallory: Peer,
    producer: ScriptedProducer,
    consumer: ScriptedConsumer,
) -> None:
    victim, liar, to = producer.address, mallory.address, consumer.address
    at_store_and_consumer = (
        m.RecordMessage("t", victim, 3, b"forged"),
        m.Head("t", victim, 1_000_000),
        m.RecordMessage("own.x", victim, 0, b"forged"),  # nor in a partition of another topic
        m.RecordMessage("t", liar, 0, b"forged"),  # nor in one of its own
    )
    at_store_and_producer = (m.Fetch(liar, "t", victim, 0, 1), m.Fetch(to, "t", victim, 0, 1))
    at_one = (
        m.DirectRecord(store.address, "t", victim, 3, b"forged"),
        # It speaks for no store.
        m.Ack("t", victim, 2),
        m.EpochAck("t", victim, 2, liar, LATER),
        m.HistoryReply(victim, 0, liar, "t", victim, 1, LATER, ()),
        m.StoreHello(to, liar),
        m.HeadsReply(to, 0, liar, 0, 1, ()),
        m.StoreEndpoints(to, liar, ("grpc://127.0.0.1:1",)),
        m.StoresKnown(to, liar, ()),
        # It takes no partition over, and has nothing sent to a different address.
        m.HistoryQuery(liar, 1, "t", victim, LATER),
        m.HistoryQuery(victim, 1, "t", liar, LATER),
        m.FetchBatch(store.address, to, (PartitionInfo("own.x", "P", 0, 1),)),
    )
    for nodes, messages in ((2, at_store_and_consumer), (2, at_store_and_producer), (1, at_one)):
        for message in messages:
            assert_refused(locked, mallory, message, nodes)
    producer.publish(2)
    producer.flush()
    consumer.wait_for(*values(5))
    assert [info.tp for info in store.log.partitions()] == [producer.tp]
    assert producer.role.fenced_by is None
    assert liar not in consumer.role.directory.stores


def test_nothing_is_overheard(
    locked: Script, mallory: Peer, producer: ScriptedProducer, consumer: ScriptedConsumer
) -> None:
    """It subscribes to everything, by letters, and by the addresses of others."""
    mallory.subscribe(*(b"", b"M", b"r", b"Mt", b"rt", b"rt\0", b"Mow", b"H", b"D", b"Q"))
    kinds = (m.DirectRecord, m.DirectRecordBatch, m.HeadsReply)
    mallory.subscribe(*(subscription(kind, consumer.address) for kind in kinds))
    mallory.subscribe(subscription(m.RecordBatchMessage, "own.x"))
    locked.run(1)
    producer.publish(contents=[b"secret"])
    own = locked.producer("own.x", "own")
    locked.until(lambda: own.mesh.has_subscriber("own.x"))
    own.publish(contents=[b"its own"])
    locked.until(lambda: mallory.messages(m.RecordBatchMessage), "a record that it may receive")
    received = b"".join(frame for frames in mallory.received for frame in frames)
    assert b"its own" in received
    assert b"secret" not in received
    assert producer.address.encode() not in received


def test_a_refused_subscription_takes_nothing_from_another_node_when_it_ends(
    locked: Script, store: ScriptedStore, mallory: Peer, consumer: ScriptedConsumer
) -> None:
    to = consumer.address
    locked.until(lambda: store.mesh.subscribers.forms("t", to) == [True])
    before = store.mesh.limits.letters()
    own = announcement("consumer", to, LEAST_BYTES)
    mallory.subscribe(own, subscription(m.DirectRecordBatch, to))
    locked.run(1)
    assert locked.refused("subscription") >= 2
    mallory.stop()
    locked.until(lambda: not store.mesh.peers.table.knows(mallory.address))
    assert store.mesh.subscribers.forms("t", to) == [True]
    assert store.mesh.limits.letters() == before


def test_no_node_is_replaced_by_an_announcement(
    locked: Script, store: ScriptedStore, mallory: Peer, producer: ScriptedProducer
) -> None:
    """Neither as another node, nor at its place, nor as a store."""
    place = producer.mesh.number
    for _ in range(20):
        mallory.announce_as(producer.address, mallory.name, mallory.port)
        mallory.announce_as("F" * 32, mallory.name, mallory.port)
        mallory.announce_as(mallory.address, producer.name, place)
        mallory.announce_as(mallory.address, store.name, store.mesh.number)
        locked.run(0.1)
    assert locked.refused("beacon") >= 40
    table = store.mesh.peers.table
    assert not table.knows("F" * 32)
    assert [endpoint for node, endpoint in table.addresses() if node == producer.address] == [
        f"tcp://{producer.name}:{place}"
    ]
    mallory.subscribe(announcement("store", mallory.address, 9_000_000))
    producer.publish(5)
    producer.flush()
    assert producer.mesh.limits.letters()["S"] == 1
