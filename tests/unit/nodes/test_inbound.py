"""Facts about connecting peers, from their subscriptions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dafka_core.model.records import Neighbour
from dafka_core.nodes import peers as module
from dafka_core.nodes.connection_quotas import ConnectionQuotas, ends_of
from dafka_core.nodes.peers import Inbound
from dafka_core.nodes.sockets import Subscribers
from dafka_core.protocol.beacons import NodeBeacon, PeerTable, TowerBeacon
from dafka_core.protocol.codec import parse_subscription, subscription
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import DirectRecord, RecordBatchMessage, RecordMessage
from dafka_core.protocol.record_limits import announcement, parse_announcement

A, B, C = "A" * 32, "B" * 32, "C" * 32


class Node:
    """A node with some announced peers."""

    def __init__(self, *peers: str) -> None:
        own = NodeBeacon("0" * 32, "127.0.0.1", 1)
        table = PeerTable(own.node, own.port, expiry_s=1)
        for peer in peers:
            table.hear(0.0, TowerBeacon(peer, f"tcp://{peer[0].lower()}:1"))
        self.inbound = Inbound(own, table)
        self._quotas = ConnectionQuotas(1 << 20, encrypted=False)

    def subscribe(self, prefix: bytes, descriptor: int, *, ended: bool = False) -> None:
        frame = (b"\0" if ended else b"\1") + prefix
        _, kind, topic = parse_subscription(frame)
        connection = None
        if descriptor >= 0:
            connection = self._quotas.accepted(descriptor, ends_of(descriptor)[1])
        if introduced := parse_announcement(prefix):
            self.inbound.introduce(connection, introduced.node, introduced.letter)
        self.inbound.apply(connection, not ended, kind, topic)


def announced(kind: str, node: str) -> bytes:
    return announcement(kind, node, max_taken_bytes(0))


def follows(topic: str) -> bytes:
    return subscription(RecordMessage) + topic.encode()


def test_subscriptions_show_the_kind_and_topics_of_a_peer() -> None:
    node = Node(C, A, B)
    node.subscribe(announced("consumer", A), 7)
    node.subscribe(follows("t"), 7)
    node.subscribe(follows("u" * 32), 7)
    node.subscribe(announced("store", B), 8)
    assert node.inbound.neighbours() == [
        Neighbour(A, "consumer", "tcp://a:1", True, ("t", "u" * 32)),
        Neighbour(B, "store", "tcp://b:1", True),
        Neighbour(C, "", "tcp://c:1"),
    ]
    assert node.inbound.unconnected([A, B, C]) == [C]
    node.subscribe(follows("t"), 7, ended=True)
    assert node.inbound.neighbours()[0].topics == ("u" * 32,)
    node.subscribe(announced("consumer", A), 9)  # a reconnected peer subscribes again
    assert node.inbound.neighbours()[0].topics == ()


def test_a_c_node_is_identified_by_the_subscription_to_its_own_address() -> None:
    node = Node(A, B, C)
    node.subscribe(subscription(DirectRecord) + C.encode(), 7)
    node.subscribe(follows("t"), 7)
    node.subscribe(follows("u"), -1)  # ZeroMQ does not identify the sender
    assert node.inbound.neighbours()[2] == Neighbour(C, "", "tcp://c:1", True, ("t",))


def test_names_that_peers_choose_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    node = Node(A)
    node.subscribe(announced("producer", A), 1)
    for number in range(100):
        node.subscribe(announced("consumer", f"{number:032d}"), 2)
        node.subscribe(follows(f"t{number}"), 1)
    assert len(node.inbound.unconnected(f"{number:032d}" for number in range(100))) >= 100 - 2 * 5
    assert node.inbound.neighbours()[0].kind == "producer"
    for number in range(2 * module.MAX_TOPICS):
        node.subscribe(follows(f"t{number}"), 1)
    assert len(node.inbound.neighbours()[0].topics) == module.MAX_TOPICS


class Pub:
    """An XPUB socket in manual mode, without peers."""

    def set(self, option: int, prefix: bytes) -> None:
        pass


def test_records_are_sent_in_the_forms_that_peers_subscribe_to() -> None:
    subscribers = Subscribers(cast("Any", Pub()))
    assert subscribers.forms("t", "") == []
    for kind in (RecordMessage, RecordBatchMessage):  # a node of ours takes both
        subscribers.apply(b"\1" + subscription(kind, "t"))
    assert subscribers.forms("t", "") == [True]
    subscribers.apply(b"\1" + subscription(RecordMessage, ""))  # a C node, to all topics
    assert subscribers.forms("t", "") == [True, False]
    assert subscribers.forms("u", "") == [False]
