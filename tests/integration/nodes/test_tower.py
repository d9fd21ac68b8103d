"""A tower and bare sockets that are connected to it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from dafka_core import ConfigError, Consumer, Producer, Reader, Store, Tower
from dafka_core.config.node_options import NodeOptions, TowerAddress
from dafka_core.nodes import peers
from dafka_core.nodes.connection_quotas import monitor_events
from dafka_core.nodes.peers import AWAY_S, REFUSED_S, Towers
from dafka_core.nodes.security import Security
from dafka_core.protocol import timing
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
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S, RawPeer, new_address
from tests.open_files import no_open_file_left

RECEIVE_MS = 30_000

SILENT = "127.0.0.1:1:2"  # where no tower is


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


def test_beacons_reach_every_subscriber_with_their_endpoint(running: Tower, bare: Sockets) -> None:
    subscribers = [subscriber(bare, running) for _ in range(2)]
    sender, node = publisher(bare, running), new_address()
    for host in ("", "127.0.0.1", "192.0.2.7", "node-7.example"):
        sender.send_multipart(encode_node_beacon(NodeBeacon(node, host, 7000)))
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


@pytest.mark.parametrize("option", ["sub_address", "pub_address"])
def test_an_address_in_use_is_refused(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"cannot be bound to.*in use; port 0") as refused:
            Tower(**ANY_PORTS | {option: address})
    assert (refused.value.option, refused.value.value) == (option, address)


@pytest.mark.parametrize("address", ["127.0.0.1:5556", "tcp://127.0.0.1", "udp://127.0.0.1:1", "x"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="must be tcp://HOST:PORT"):
        Tower(**ANY_PORTS | {"sub_address": address})


def test_a_tower_of_both_families_announces_ipv4_addresses_as_such() -> None:
    anywhere = {"sub_address": "tcp://*:0", "pub_address": "tcp://*:0"}
    with Tower(**anywhere, insecure=True) as tower, RawPeer(tower.tower, host="") as peer:
        wait_until(lambda: any(each[:1] == [b"B"] for each in peer.beacons))
        endpoint = f"tcp://{tower.host}:{peer._port}"
        assert [b"B", peer.address.encode(), endpoint.encode()] in peer.beacons


def address(tower: Tower) -> TowerAddress:
    return TowerAddress(tower.host, tower.sub_port, tower.pub_port)


def restarted(tower: Tower) -> Tower:
    """Return a new tower at the ports of a closed one."""
    return Tower(
        sub_address=f"tcp://127.0.0.1:{tower.sub_port}",
        pub_address=f"tcp://127.0.0.1:{tower.pub_port}",
    )


def test_a_silent_tower_is_connected_to_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "AWAY_S", 0.3)
    first = Tower(**ANY_PORTS)
    with Reader(tower=first.tower, beacon_interval_ms=50) as reader:
        links = reader.mesh.peers.towers._links
        before = links[address(first)]
        first.close()
        wait_until(lambda: links[address(first)] is not before)
        with restarted(first):
            wait_until(lambda: links[address(first)].received_at > before.received_at)
            assert reader.mesh.failure is None


def test_a_tower_with_a_name_may_end_before_its_beacons_are_read(bare: Sockets) -> None:
    """A disconnected socket would lack the other frames of a message, and ZeroMQ abort."""
    hears, says = bare.make(zmq.SUB), bare.make(zmq.XPUB)
    sub, pub = (each.bind_to_random_port("tcp://127.0.0.1") for each in (hears, says))
    with zmq.Context() as context:
        config = NodeOptions.build({"tower": f"localhost:{sub}:{pub}"})
        own, peer = (
            NodeBeacon("A" * 32, "127.0.0.1", 7, "R"),
            TowerBeacon("B" * 32, "tcp://h:1", "S"),
        )
        made = Towers(own, config, context, zmq.Poller(), Security(config, context))
        [link] = made._links.values()
        monitor, retries = link.monitors[link.sub], 0

        def is_sent() -> bool:
            says.send_multipart(encode_tower_beacon(peer))
            return bool(link.sub.poll(10))

        wait_until(is_sent)
        says.close()
        while not retries:
            assert monitor.poll(RECEIVE_MS)
            retries = [each for each, *_ in monitor_events(monitor)].count(
                zmq.EVENT_CONNECT_RETRIED
            )
        assert monitor.poll(RECEIVE_MS)  # the next one
        found = [frames for _, frames in made.receive(0.0, {link.sub, monitor})]
        assert found[0] == encode_tower_beacon(peer)
        assert link.family.is_ipv6
        made._close(link)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_without_an_open_file_left_a_link_is_kept_unless_its_tower_is_not_trusted_any_more(
    monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    with zmq.Context() as context, Tower(**ANY_PORTS) as tower:
        config = NodeOptions.build({"tower": tower.tower})
        security = Security(config, context)
        own = NodeBeacon("A" * 32, "127.0.0.1", 7)
        made = Towers(own, config, context, zmq.Poller(), security)
        before = made._links[config.tower[0]]
        made.send(1.0)
        monkeypatch.setattr(security, "is_tower", lambda key: is_trusted)
        with no_open_file_left():
            made.send(2.0 + AWAY_S)
        assert [*made._links] == [*config.tower]
        assert made._links[config.tower[0]] is before
        assert before.pub.closed is not is_trusted
        made.send(3.0 + AWAY_S)
        after = made._links[config.tower[0]]
        assert after is not before
        assert before.pub.closed
        made._close(after)


def test_a_refusal_is_logged_once_while_the_node_retries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(tmp_path / "keys")
    with zmq.Context() as context, Tower(**ANY_PORTS, **keys.of("tower")) as tower:
        config, poller = NodeOptions.build({"tower": tower.tower}), zmq.Poller()
        own = NodeBeacon("A" * 32, "127.0.0.1", 7)
        made = Towers(own, config, context, poller, Security(config, context))
        refused: list[object] = []  # connections

        def is_refused_again() -> bool:
            now = REFUSED_S * (1 + len(refused))
            made.send(now)
            assert not list(made.receive(now, dict(poller.poll(100))))
            link = made._links[config.tower[0]]
            if link.refused and (not refused or refused[-1] is not link):
                refused.append(link)
            return len(refused) == 3

        wait_until(is_refused_again)
        assert "set secret_key_file and allowed_keys" in made.refusals[tower.tower]
        assert caplog.text.count("does not let this node in") == 1
        made._close(made._links[config.tower[0]])


def test_nodes_whose_towers_do_not_know_each_other_meet_at_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer and a consumer have different towers, and the store has both; one is silent."""
    monkeypatch.setattr(timing, "HEADS_INTERVAL_S", 0.2)  # how often it asks the store
    with (
        Tower(**ANY_PORTS) as one,
        Tower(**ANY_PORTS) as other,
        Store(tmp_path, tower=f"{one.tower},{other.tower}") as store,
        Consumer(tower=[SILENT, other.tower], start="earliest") as consumer,
        Producer("t", tower=one.tower, head_interval_ms=100) as producer,
    ):
        consumer.subscribe("t")
        producer.publish_many(values(500))
        producer.flush(PATIENCE_S)
        assert stored(store, "t", producer.address) == values(500)
        records = [consumer.poll(PATIENCE_S) for _ in range(500)]
        assert [record and record.value for record in records] == values(500)
        producer.publish(b"later")
        last = consumer.poll(PATIENCE_S)
        assert last is not None
        assert last.value == b"later"
