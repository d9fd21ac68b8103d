"""Behaviour that all nodes share: finding towers and each other, and checking options."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from dafka_core import ConfigError, Consumer, Producer, Reader, Store, Tower, TowerNotFoundError
from dafka_core.config.node_options import ALL_NODES, C_LAYOUT
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes import sockets as module
from dafka_core.nodes.sockets import Subscribers, send_one_by_one, send_packed
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import (
    WELCOME,
    TowerBeacon,
    decode_node_beacon,
    encode_tower_beacon,
    endpoint_of,
)
from dafka_core.protocol.codec import decode, encode, subscription
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S

NODES: dict[str, Callable[..., Any]] = {
    "producer": lambda directory, **options: Producer("t", **options),
    "consumer": lambda directory, **options: Consumer(**options),
    "reader": lambda directory, **options: Reader(**options),
    "store": Store,
}

each_node = pytest.mark.parametrize("kind", NODES)


@pytest.fixture
def silence() -> Iterator[str]:
    """Ports without a tower, which are bound so that the system assigns them to no process."""
    with socket.socket() as sub, socket.socket() as pub:
        for each in (sub, pub):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does
            each.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sub.getsockname()[1]}:{pub.getsockname()[1]}"


@each_node
def test_no_tower_is_an_error_in_time(kind: str, silence: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(TowerNotFoundError, match=f"no tower answered at {silence}") as refused:
        NODES[kind](tmp_path, tower=silence, tower_timeout_s=0.2)
    assert refused.value.towers == (silence,)
    assert refused.value.waited_s == 0.2
    assert 0.2 <= time.monotonic() - begun < PATIENCE_S
    # Whatever it had opened is closed: the store's directory may be used again.
    with pytest.raises(TowerNotFoundError):
        NODES[kind](tmp_path, tower=silence, tower_timeout_s=0.01)


@each_node
def test_a_node_with_wait_for_tower_waits(kind: str, silence: str, tmp_path: Path) -> None:
    made: list[Any] = []

    def make() -> None:
        made.append(NODES[kind](tmp_path, tower=silence, tower_timeout_s=0.01, wait_for_tower=True))

    maker = threading.Thread(target=make)
    maker.start()
    maker.join(0.1)
    assert maker.is_alive()
    _, sub_port, pub_port = silence.split(":")
    with Tower(
        sub_address=f"tcp://127.0.0.1:{sub_port}", pub_address=f"tcp://127.0.0.1:{pub_port}"
    ):
        maker.join(PATIENCE_S)
        made[0].__exit__(None, None, None)


def test_options_that_cannot_be_are_refused(tower: str, tmp_path: Path) -> None:
    for make in NODES.values():
        for option, value, says in (
            ("towr", "127.0.0.1", "did you mean 'tower'"),
            ("host", "192.0.2.1", "must be an address of this machine"),
        ):
            with pytest.raises(ConfigError, match=says) as refused:
                make(tmp_path, **{"tower": tower} | {option: value})
            assert refused.value.option == option


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The resolver's errors by name; other names resolve."""
    failures: dict[str, int] = {}
    resolved = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host in failures:
            raise socket.gaierror(failures[host], "not now")
        return resolved(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return failures


@pytest.mark.parametrize(
    ("tower", "names"),
    [
        ("nowhere:1:2,nor-there:1:2", ("nor-there", "nowhere")),
        ("nowhere:1:2,127.0.0.1:1:2", ("nowhere",)),
        ("later:1:2", ("later",)),  # it may resolve soon
    ],
)
def test_towers_that_are_no_hosts_are_named(
    resolver: dict[str, int], tower: str, names: tuple[str, ...]
) -> None:
    resolver |= dict.fromkeys(("nowhere", "nor-there"), socket.EAI_NONAME)
    resolver["later"] = socket.EAI_AGAIN
    says = rf"within 0\.4 s, and there is no host {', '.join(names)}; correct the name"
    with pytest.raises(TowerNotFoundError, match=says) as refused:
        Reader(tower=tower, tower_timeout_s=0.4)
    assert refused.value.unknown_hosts == names


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
        self.subscribers = Subscribers(self._pub)
        self.connections: list[zmq.Socket[bytes]] = []

    def connect(self, requestor: str = REQUESTOR) -> zmq.Socket[bytes]:
        """A connection of a node that takes both forms of answers."""
        return self.connect_to(m.DirectRecord, m.DirectRecordBatch, topic=requestor)

    def connect_to(self, *kinds: type[m.Message], topic: str = REQUESTOR) -> zmq.Socket[bytes]:
        """A connection of a node that takes these kinds of messages."""
        socket = self._context.socket(zmq.SUB)
        socket.set(zmq.RCVTIMEO, 10_000)
        for kind in kinds:
            socket.subscribe(subscription(kind, topic))
        socket.connect(f"tcp://127.0.0.1:{self._port}")
        self.connections.append(socket)
        self.take(len(kinds))
        return socket

    def acknowledge(self, sequence: int) -> None:
        """Send as a node does: one for peers that know epochs, and one for other peers."""
        message = m.EpochAck("t", REQUESTOR, sequence, "S", LIFE)
        for each in (message, message.plain):
            self._pub.send_multipart(encode(each))

    def publish(self, offset: int, requestor: str = "") -> None:
        """Send a record as a node does if peers of both kinds subscribe."""
        batch = RecordBatch.of(TopicPartition("t", "P"), offset, [b"x"])
        send_one_by_one(self._pub, OutgoingBatch(batch, requestor), C_LAYOUT)
        send_packed(self._pub, OutgoingBatch(batch, requestor))

    def take(self, count: int) -> None:
        """Wait for ``count`` subscriptions, or ends of them."""
        for _ in range(count):
            self.subscribers.apply(self._pub.recv())


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield Publisher(context)
    context.destroy(linger=0)


def test_a_late_end_of_a_connection_does_not_affect_its_successor(publisher: Publisher) -> None:
    # A peer comes back before its broken connection is noticed. It takes packed answers still,
    # and has been taken off the single ones: sent one by one, it would never get any.
    before = publisher.connect()
    after = publisher.connect()
    before.close()
    publisher.take(2)
    assert publisher.subscribers.forms("t", REQUESTOR) == [True]
    after.close()
    publisher.take(2)
    assert publisher.subscribers.forms("t", REQUESTOR) == [False]


def test_a_node_that_takes_packed_records_receives_no_single_ones(publisher: Publisher) -> None:
    ours = publisher.connect_to(m.RecordMessage, m.RecordBatchMessage, topic="t")
    answered, theirs = publisher.connect(), publisher.connect_to(m.RecordMessage, topic="t")
    assert publisher.subscribers.forms("t", "") == [True, False]
    for each in (0, 1):
        publisher.publish(each)
        publisher.publish(each, REQUESTOR)
    for taking, kind in (
        (ours, m.RecordBatchMessage),
        (answered, m.DirectRecordBatch),
        (theirs, m.RecordMessage),
    ):
        assert [type(decode(taking.recv_multipart())) for _ in range(2)] == [kind] * 2


def received(socket: zmq.Socket[bytes], sequence: int) -> list[type]:
    """The kinds of acknowledgements that have come, up to one."""
    kinds: list[type] = []
    while True:
        assert socket.poll(10_000)
        message = decode(socket.recv_multipart())
        assert isinstance(message, m.Ack | m.EpochAck)
        kinds.append(type(message))
        if message.sequence == sequence:
            return kinds


def test_a_producer_that_knows_epochs_receives_each_acknowledgement_once(
    publisher: Publisher,
) -> None:
    ours = publisher.connect_to(m.Ack, m.EpochAck)  # sent in the order of their bytes
    for sequence in range(3):
        publisher.acknowledge(sequence)
    assert received(ours, 2) == [m.EpochAck] * 3
    # After it has ended, one that does not know them receives them, too.
    ours.close()
    publisher.take(2)
    theirs = publisher.connect_to(m.Ack)
    publisher.acknowledge(3)
    assert received(theirs, 3) == [m.Ack]


def test_the_requestors_remembered_are_bounded(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 2)
    for i in range(3):
        publisher.connect(f"A{i}")
    layouts = [publisher.subscribers.forms("t", f"A{i}") for i in range(3)]
    assert layouts == [[True], [True], [False]]
    publisher.connections[0].close()
    publisher.take(2)
    publisher.connect("A4")
    assert publisher.subscribers.forms("t", "A4") == [True]


FAST: dict[str, Any] = {"beacon_interval_ms": 50}


def peers_of(node: Producer | Consumer | Store | Reader) -> set[str]:
    return {peer for peer, _ in node.mesh.peers.table.addresses()}


class CTower:
    """It passes on all subscriptions, and beacons without a kind, as the C tower does."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._xsub, self._xpub = (self._context.socket(each) for each in (zmq.XSUB, zmq.XPUB))
        self._xpub.set(zmq.XPUB_WELCOME_MSG, WELCOME)
        both = (self._xsub, self._xpub)
        sub, pub = (each.bind_to_random_port("tcp://127.0.0.1") for each in both)
        self.tower = f"127.0.0.1:{sub}:{pub}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._ended.wait(0.001):
            with suppress(zmq.Again):
                while True:
                    subscription = self._xpub.recv(zmq.NOBLOCK)
                    if subscription[1:2] != WELCOME:
                        self._xsub.send(subscription)
            with suppress(zmq.Again, ProtocolError):
                while True:
                    beacon = decode_node_beacon(self._xsub.recv_multipart(zmq.NOBLOCK))
                    told = TowerBeacon(beacon.node, endpoint_of(beacon, "127.0.0.1"))
                    self._xpub.send_multipart(encode_tower_beacon(told))


def test_by_the_letter_of_rfc_46_all_nodes_connect_to_each_other(
    tower: str, open_nodes: ExitStack, tmp_path: Path
) -> None:
    def begin(kind: str, at: int, **options: Any) -> Any:
        made = NODES[kind](tmp_path / str(at), tower=tower, **FAST, **options)
        return open_nodes.enter_context(made)

    def are_connected() -> bool:
        return all(
            peers_of(node) == {each.address for each in nodes} - {node.address} for node in nodes
        )

    # Stores are late: all others have to find them.
    nodes = [begin(kind, at, connect_to=ALL_NODES) for kind in NODES for at in range(2)]
    wait_until(are_connected)
    # One that does not follow it is a peer of those that do.
    nodes.append(begin("producer", 0))
    wait_until(are_connected)


def test_a_tower_of_another_kind_at_the_same_ports_is_noticed(open_nodes: ExitStack) -> None:
    before = CTower()
    producers = [
        open_nodes.enter_context(Producer("t", tower=before.tower, peer_expiry_ms=500, **FAST))
        for _ in range(2)
    ]
    wait_until(lambda: all(map(peers_of, producers)))
    before.close()
    _, sub, pub = before.tower.split(":")
    at = {"sub_address": f"tcp://127.0.0.1:{sub}", "pub_address": f"tcp://127.0.0.1:{pub}"}
    with Tower(**at):
        wait_until(lambda: not any(map(peers_of, producers)), "kinds to be announced")
