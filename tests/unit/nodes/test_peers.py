"""Facts about connecting peers, from their subscriptions."""

from __future__ import annotations

import pytest

from dafka_core.model.records import Neighbour
from dafka_core.nodes import peers
from dafka_core.nodes.peers import Inbound, Neighbours
from dafka_core.protocol.beacons import NodeBeacon, PeerTable, TowerBeacon
from dafka_core.protocol.codec import parse_subscription, subscription
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import DirectRecord, RecordMessage
from dafka_core.protocol.record_limits import announcement, parse_announcement

A, B, C = "A" * 32, "B" * 32, "C" * 32


class Node:
    """A node with some announced peers."""

    def __init__(self, *peers: str) -> None:
        own = NodeBeacon("0" * 32, "127.0.0.1", 1)
        self.table = PeerTable(own.node, own.port, expiry_s=1)
        for peer in peers:
            self.table.hear(0.0, TowerBeacon(peer, f"tcp://{peer[0].lower()}:1"))
        self.inbound = Inbound(own, self.table)
        self.notes = Neighbours(self.table, self.inbound)

    def note(self, prefix: bytes, descriptor: int, *, ended: bool = False) -> None:
        frame = (b"\0" if ended else b"\1") + prefix
        _, kind, topic = parse_subscription(frame)
        introduced = parse_announcement(prefix)
        self.notes.apply(descriptor, introduced, kind, topic, subscribed=not ended)


def announced(kind: str, node: str) -> bytes:
    return announcement(kind, node, max_taken_bytes(0))


def follows(topic: str) -> bytes:
    return subscription(RecordMessage) + topic.encode()


def test_kind_topics_and_who_has_connected() -> None:
    node = Node(C, A, B)
    node.note(announced("consumer", A), 7)
    node.note(follows("t"), 7)
    node.note(follows("u"), 7)
    node.note(announced("store", B), 8)
    node.inbound.note(A)
    node.inbound.note(B)
    assert node.notes.found() == [
        Neighbour(A, "consumer", "tcp://a:1", True, ("t", "u")),
        Neighbour(B, "store", "tcp://b:1", True),
        Neighbour(C, "", "tcp://c:1"),
    ]
    node.note(follows("t"), 7, ended=True)
    assert node.notes.found()[0].topics == ("u",)
    node.note(announced("consumer", A), 9)  # it has connected again, and follows nothing yet
    assert node.notes.found()[0].topics == ()


def test_a_node_that_knows_rfc_46_alone_says_who_it_is_by_its_own_address() -> None:
    node = Node(A, B, C)
    node.note(subscription(DirectRecord) + C.encode(), 7)
    node.note(follows("t"), 7)
    node.note(follows("u"), -1)  # ZeroMQ does not identify the sender
    node.inbound.note(C)
    assert node.notes.found()[2] == Neighbour(C, "", "tcp://c:1", True, ("t",))


def test_what_peers_choose_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 5)
    node = Node(A)
    node.note(announced("producer", A), 1)
    for number in range(100):
        node.note(announced("consumer", f"{number:032d}"), 2)
        node.note(follows(f"t{number}"), 1)
    assert len(node.notes._kinds) <= 11
    assert len(node.notes._topics) <= 11
    assert node.notes.found()[0].kind == "producer"
    for number in range(2 * peers.MAX_TOPICS):
        node.note(follows(f"t{number}"), 2)
    assert max(map(len, node.notes._topics.values())) == peers.MAX_TOPICS
