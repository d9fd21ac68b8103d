"""Which peers take packed records, through connections that come and go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from dafka_core.epochs import EpochId
from dafka_core.nodes import subscribers as module
from dafka_core.nodes.subscribers import Subscribers
from dafka_core.protocol.codec import decode, encode, subscription
from dafka_core.protocol.messages import Ack, DirectRecord, DirectRecordBatch, EpochAck, Message

REQUESTOR = "21962C91115348329557DE71C90C3718"
LIFE = EpochId(1, 7, 1)


class Publisher:
    """An XPUB socket as nodes have it, and subscribers to it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._pub = context.socket(zmq.XPUB)
        self._pub.set(zmq.XPUB_VERBOSE, 1)
        self._pub.set(zmq.XPUB_MANUAL, 1)
        self._pub.set(zmq.RCVTIMEO, 10_000)
        self._port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self.subscribers = Subscribers(self._pub, pack=True)
        self.connections: list[zmq.Socket[bytes]] = []

    def connect(self, requestor: str = REQUESTOR) -> zmq.Socket[bytes]:
        """A connection of a node that takes both forms of answers."""
        socket = self._context.socket(zmq.SUB)
        for kind in (DirectRecord, DirectRecordBatch):
            socket.subscribe(subscription(kind, requestor))
        socket.connect(f"tcp://127.0.0.1:{self._port}")
        self.connections.append(socket)
        self.take(2)
        return socket

    def connect_producer(self, *kinds: type[Message]) -> zmq.Socket[bytes]:
        """A connection of a producer, to which such acknowledgements are sent."""
        socket = self._context.socket(zmq.SUB)
        for kind in kinds:
            socket.subscribe(subscription(kind, REQUESTOR))
        socket.connect(f"tcp://127.0.0.1:{self._port}")
        self.connections.append(socket)
        self.take(len(kinds))
        return socket

    def acknowledge(self, sequence: int) -> None:
        """What a node sends: one for those that know epochs, and one for the others."""
        message = EpochAck(REQUESTOR, "t", sequence, "S", LIFE)
        for each in (message, message.plain):
            self._pub.send_multipart(encode(each))

    def take(self, count: int) -> None:
        """Waits for so many subscriptions, or ends of them."""
        for _ in range(count):
            self.subscribers.apply(self._pub.recv())


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield Publisher(context)
    context.destroy(linger=0)


def test_a_connection_that_ends_late_does_not_concern_the_one_that_came_after_it(
    publisher: Publisher,
) -> None:
    # A peer comes back before its broken connection is noticed. It takes packed answers still,
    # and has been taken off the single ones: sent one by one, it would never get any.
    before = publisher.connect()
    after = publisher.connect()
    before.close()
    publisher.take(2)
    assert publisher.subscribers.layouts("t", REQUESTOR) == [True]
    after.close()
    publisher.take(2)
    assert publisher.subscribers.layouts("t", REQUESTOR) == [False]


def received(socket: zmq.Socket[bytes], sequence: int) -> list[type]:
    """The kinds of acknowledgements that have come, up to one."""
    kinds: list[type] = []
    while True:
        assert socket.poll(10_000)
        message = decode(socket.recv_multipart())
        assert isinstance(message, Ack | EpochAck)
        kinds.append(type(message))
        if message.sequence == sequence:
            return kinds


def test_a_producer_that_knows_epochs_hears_each_acknowledgement_once(
    publisher: Publisher,
) -> None:
    ours = publisher.connect_producer(Ack, EpochAck)  # it sends them in the order of their octets
    for sequence in range(3):
        publisher.acknowledge(sequence)
    assert received(ours, 2) == [EpochAck] * 3
    # When it is gone, another that does not know them is told, too.
    ours.close()
    publisher.take(2)
    theirs = publisher.connect_producer(Ack)
    publisher.acknowledge(3)
    assert received(theirs, 3) == [Ack]


def test_the_requestors_remembered_are_bounded(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 2)
    for i in range(3):
        publisher.connect(f"A{i}")
    layouts = [publisher.subscribers.layouts("t", f"A{i}") for i in range(3)]
    assert layouts == [[True], [True], [False]]
    publisher.connections[0].close()
    publisher.take(2)
    publisher.connect("A4")
    assert publisher.subscribers.layouts("t", "A4") == [True]
