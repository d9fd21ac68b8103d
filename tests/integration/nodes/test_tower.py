"""A tower and bare sockets that are connected to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
import zmq

from dafka_core import ConfigError, Tower
from dafka_core.protocol.beacons import (
    BEACON,
    BEACON_WITH_KIND,
    WELCOME,
    NodeBeacon,
    TowerBeacon,
    encode_node_beacon,
    encode_tower_beacon,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import ANY_PORTS, RawPeer, new_address

RECEIVE_MS = 30_000


@pytest.fixture
def running() -> Iterator[Tower]:
    with Tower(**ANY_PORTS) as made:
        yield made


class Sockets:
    """Bare sockets that exist until the end of the test."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._kept: list[zmq.Socket[bytes]] = []

    def make(self, kind: int) -> zmq.Socket[bytes]:
        made = self.context.socket(kind)
        made.set(zmq.RCVTIMEO, RECEIVE_MS)
        self._kept.append(made)
        return made


@pytest.fixture
def bare() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.context.destroy(linger=0)


def subscriber(bare: Sockets, tower: Tower) -> zmq.Socket[bytes]:
    """Return a socket that receives every beacon from now on."""
    made = bare.make(zmq.SUB)
    made.subscribe(BEACON)
    made.subscribe(WELCOME)
    made.connect(f"tcp://127.0.0.1:{tower.pub_port}")
    assert made.recv_multipart() == [WELCOME]
    return made


def publisher(bare: Sockets, tower: Tower) -> zmq.Socket[bytes]:
    """Return an XPUB socket that has received the tower's subscriptions, so it drops nothing."""
    made = bare.make(zmq.XPUB)
    made.connect(f"tcp://127.0.0.1:{tower.sub_port}")
    for first in (BEACON_WITH_KIND, BEACON):  # the first one shows the kind of the tower
        assert made.recv() == b"\x01" + first
    return made


def test_every_new_subscriber_is_greeted(running: Tower, bare: Sockets) -> None:
    for _ in range(3):
        subscriber(bare, running)


@pytest.mark.parametrize("host", ["", "127.0.0.1", "192.0.2.7", "node-7.example"])
def test_beacons_reach_every_subscriber_with_their_endpoint(
    running: Tower, bare: Sockets, host: str
) -> None:
    subscribers = [subscriber(bare, running) for _ in range(2)]
    node = new_address()
    publisher(bare, running).send_multipart(encode_node_beacon(NodeBeacon(node, host, 7000)))
    expected = encode_tower_beacon(TowerBeacon(node, f"tcp://{host or '127.0.0.1'}:7000"))
    assert [each.recv_multipart() for each in subscribers] == [expected, expected]


INVALID = [
    [b""],
    [b"B"],
    [b"B", b"", b"", b""],
    [b"B", b"A" * 32, b"127.0.0.1"],
    [b"B", b"A" * 32, b"127.0.0.1", b"0"],
    [b"B", b"A" * 32, b"127.0.0.1", b"65536"],
    [b"B", b"A" * 32, b"127.0.0.1", b"-1"],
    [b"B", b"A" * 32, b"127.0.0.1", b"\xb2"],
    [b"B", b"A" * 32, b"not a host", b"7000"],
    [b"B", b"A" * 32, b"-host", b"7000"],
    [b"B", b"A" * 32, b"\xff\xfe", b"7000"],
    [b"B", b"\xff" * 32, b"", b"7000"],
    [b"B", b"A" * 300, b"", b"7000"],
    [b"B", b"A" * 32, b"a" * 300, b"7000"],
    [b"BB", b"A" * 32, b"", b"7000"],
]


def test_invalid_beacons_are_counted_and_dropped(running: Tower, bare: Sockets) -> None:
    sub, pub = subscriber(bare, running), publisher(bare, running)
    good = NodeBeacon(new_address(), "127.0.0.1", 7000)
    for frames in INVALID:
        pub.send_multipart(frames)
        pub.send_multipart(encode_node_beacon(good))
        # The valid beacon arrives next, so the tower has dropped the invalid one.
        assert sub.recv_multipart()[1] == good.node.encode()
    # The others do not match the tower's subscriptions, so the XPUB socket did not send them.
    assert running.relay.invalid_count == len(
        [frames for frames in INVALID if frames[0][:1] == b"B"]
    )


def test_subscribers_may_send_anything(running: Tower, bare: Sockets) -> None:
    hostile = bare.make(zmq.XSUB)
    hostile.connect(f"tcp://127.0.0.1:{running.pub_port}")
    for frames in ([b"hello"], [b"\x02"], [b""], [b"\x01B", b"more"], [b"\x00never subscribed"]):
        hostile.send_multipart(frames)
    hostile.send(b"\x01" + b"x" * 5_000)  # larger than any beacon: ends the connection
    sub = subscriber(bare, running)
    wait_until(lambda: running.relay.invalid_count >= 3)
    good = NodeBeacon(new_address(), "", 7000)
    publisher(bare, running).send_multipart(encode_node_beacon(good))
    assert sub.recv_multipart()[1] == good.node.encode()


def test_an_oversized_beacon_ends_only_its_own_connection(running: Tower, bare: Sockets) -> None:
    sub, hostile, honest = (
        subscriber(bare, running),
        publisher(bare, running),
        publisher(bare, running),
    )
    hostile.send_multipart([b"B", b"x" * 100_000, b"", b"7000"])
    good = NodeBeacon(new_address(), "", 7000)
    honest.send_multipart(encode_node_beacon(good))
    assert sub.recv_multipart()[1] == good.node.encode()


def test_wait_returns_when_it_has_stopped() -> None:
    tower = Tower(**ANY_PORTS)
    assert tower.tower == f"127.0.0.1:{tower.sub_port}:{tower.pub_port}"
    assert not tower.wait(0)
    tower.close()
    tower.close()
    assert tower.wait(0)


def test_a_closed_tower_frees_its_ports() -> None:
    with Tower(**ANY_PORTS) as first:
        ports = first.sub_port, first.pub_port
    with Tower(
        sub_address=f"tcp://127.0.0.1:{ports[0]}", pub_address=f"tcp://127.0.0.1:{ports[1]}"
    ) as second:
        assert (second.sub_port, second.pub_port) == ports


@pytest.mark.parametrize("option", ["sub_address", "pub_address"])
def test_an_address_in_use_is_refused(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot be bound to") as refused:
            Tower(**ANY_PORTS | {option: address})
    assert (refused.value.option, refused.value.value) == (option, address)


@pytest.mark.parametrize("address", ["127.0.0.1:5556", "tcp://127.0.0.1", "udp://127.0.0.1:1", "x"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be tcp://HOST:PORT"):
        Tower(**ANY_PORTS | {"sub_address": address})


def test_peers_without_a_host_meet(raw: Callable[..., RawPeer]) -> None:
    first, second = raw(host=""), raw(host="")
    first.wait_until_met(second.address)
    second.wait_until_met(first.address)


def test_a_tower_of_both_families_announces_ipv4_addresses_as_such() -> None:
    anywhere = {"sub_address": "tcp://*:0", "pub_address": "tcp://*:0"}
    with Tower(**anywhere, insecure=True) as tower, RawPeer(tower.tower, host="") as peer:
        wait_until(lambda: any(each[:1] == [b"B"] for each in peer.beacons))
        endpoint = f"tcp://{tower.host}:{peer._port}"
        assert [b"B", peer.address.encode(), endpoint.encode()] in peer.beacons
