"""Facts about connecting peers, from their subscriptions."""

from typing import Any, cast

import pytest

from dafka_core.model.records import Neighbour, RecordBatch, TopicPartition
from dafka_core.nodes import peers as module
from dafka_core.nodes.connection_quotas import ConnectionQuotas, ends_of
from dafka_core.nodes.peers import Inbound
from dafka_core.nodes.sockets import MeshTraffic, Subscribers
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import NodeBeacon, PeerTable, TowerBeacon
from dafka_core.protocol.codec import encode, parse_subscription, subscription
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.record_limits import announcement, parse_announcement
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.security.permissions import EVERYBODY, NOBODY
from dafka_core.security.throttles import REPEAT_AFTER_S

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
    return subscription(m.RecordMessage) + topic.encode()


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
    node.subscribe(subscription(m.DirectRecord) + C.encode(), 7)
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
    for kind in (m.RecordMessage, m.RecordBatchMessage):  # a node of ours takes both
        subscribers.apply(b"\1" + subscription(kind, "t"))
    assert subscribers.forms("t", "") == [True]
    subscribers.apply(b"\1" + subscription(m.RecordMessage, ""))  # a C node, to all topics
    assert subscribers.forms("t", "") == [True, False]
    assert subscribers.forms("u", "") == [False]


TP = TopicPartition("t", "p")
BATCH = RecordBatch.of(TP, 5, [b"abc", b"de"])


def test_records_are_counted_by_how_they_are_sent() -> None:
    traffic = MeshTraffic("store S")
    traffic.add_received(BATCH)
    assert (traffic.records_received, traffic.bytes_received) == (2, 5)
    traffic.add_sent(OutgoingBatch(BATCH))
    assert (traffic.live_records, traffic.live_bytes) == (2, 5)
    traffic.add_sent(OutgoingBatch(BATCH, "R"))
    assert (traffic.direct_records, traffic.direct_bytes) == (2, 5)


def test_an_answer_with_many_partitions_is_one_message_and_all_their_records() -> None:
    traffic = MeshTraffic("store S")
    other = RecordBatch.of(TopicPartition("t", "q"), 0, [b"x"])
    traffic.add_sent_message(m.DirectRecordBatches.of("R", [BATCH, other]))
    traffic.add_sent_message(m.Head("t", "p", 6))
    assert traffic.sent == {"DirectRecordBatches": 1, "Head": 1}
    assert traffic.direct_records == 3
    assert traffic.direct_bytes >= 6


def test_refused_frames_are_counted_by_reason() -> None:
    traffic = MeshTraffic("store S")
    assert traffic.admitted(EVERYBODY, [b"no message"]) is None
    assert traffic.admitted(NOBODY, encode(m.Head("t", "p", 6))) is None
    assert not traffic.admits_records(NOBODY, BATCH)
    assert traffic.records_received == 0
    assert traffic.admitted(EVERYBODY, encode(m.Head("t", "p", 6))) == m.Head("t", "p", 6)
    assert traffic.refused == {"message": 1, "forbidden": 2}


def test_each_reason_is_logged_at_once_and_then_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, now = MeshTraffic("store S"), 1_000.0
    monkeypatch.setattr("dafka_core.security.throttles.time.monotonic", lambda: now)

    def logged() -> list[str]:
        lines = [each.getMessage() for each in caplog.records]
        caplog.clear()
        return lines

    for _ in range(3):
        assert traffic.admitted(EVERYBODY, [b"no message"]) is None
    traffic.refuse("beacon", "no host")
    first = logged()
    assert len(first) == 2
    assert "1 frames refused so far, reason message (the last one: " in first[0]
    assert "S: 1 frames refused so far, reason beacon (the last one: no host);" in first[1]
    now += REPEAT_AFTER_S
    traffic.refuse("message", "no message")
    (again,) = logged()
    assert "4 frames refused so far, reason message" in again
