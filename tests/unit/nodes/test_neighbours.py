"""What a node notes of those that connect to it, from what they subscribe to."""

from __future__ import annotations

import pytest

from dafka_core.nodes import neighbours
from dafka_core.nodes.neighbours import Neighbour, Neighbours
from dafka_core.protocol.codec import parse_subscription, subscription
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import DirectRecord, RecordMessage
from dafka_core.protocol.record_limits import announcement, parse_announcement

A, B, C = "A" * 32, "B" * 32, "C" * 32
WHERE = [(C, "tcp://c:1"), (A, "tcp://a:1"), (B, "tcp://b:1")]


def note(notes: Neighbours, prefix: bytes, descriptor: int, *, ended: bool = False) -> None:
    frame = (b"\0" if ended else b"\1") + prefix
    introduced = parse_announcement(prefix)
    _, kind, topic = parse_subscription(frame)
    notes.apply(frame, descriptor, introduced.node if introduced else "", kind, topic)


def found(notes: Neighbours, *met: str) -> list[Neighbour]:
    return notes.found(WHERE, met.__contains__)


def announced(kind: str, node: str) -> bytes:
    return announcement(kind, node, max_taken_bytes(0))


def follows(topic: str) -> bytes:
    return subscription(RecordMessage) + topic.encode()


def test_kind_topics_and_who_has_connected() -> None:
    notes = Neighbours(lambda: {A, B, C})
    note(notes, announced("consumer", A), 7)
    note(notes, follows("t"), 7)
    note(notes, follows("u"), 7)
    note(notes, announced("store", B), 8)
    assert found(notes, A, B) == [
        Neighbour(A, "consumer", "tcp://a:1", True, ("t", "u")),
        Neighbour(B, "store", "tcp://b:1", True),
        Neighbour(C, "", "tcp://c:1"),
    ]
    note(notes, follows("t"), 7, ended=True)
    assert found(notes)[0].topics == ("u",)
    note(notes, announced("consumer", A), 9)  # it has connected again, and follows nothing yet
    assert found(notes)[0].topics == ()


def test_a_node_that_knows_rfc_46_alone_says_who_it_is_by_its_own_address() -> None:
    notes = Neighbours(lambda: {C})
    note(notes, subscription(DirectRecord) + C.encode(), 7)
    note(notes, follows("t"), 7)
    note(notes, follows("u"), -1)  # ZeroMQ does not say whose
    assert found(notes, C)[2] == Neighbour(C, "", "tcp://c:1", True, ("t",))


def test_what_peers_choose_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_PEERS", 5)
    notes = Neighbours(lambda: {A})
    note(notes, announced("producer", A), 1)
    for number in range(100):
        note(notes, announced("consumer", f"{number:032d}"), 2)
        note(notes, follows(f"t{number}"), 1)
    assert len(notes._kinds) <= 11
    assert len(notes._topics) <= 11
    assert found(notes)[0].kind == "producer"
    for number in range(2 * neighbours.MAX_TOPICS):
        note(notes, follows(f"t{number}"), 2)
    assert max(map(len, notes._topics.values())) == neighbours.MAX_TOPICS
