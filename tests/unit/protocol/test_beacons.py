"""Beacons, and the peers known by them."""

from collections.abc import Callable
from typing import Any

import pytest

from dafka_core.errors import ProtocolError
from dafka_core.protocol.beacons import (
    ANSWER,
    KINDS,
    MAX_PEERS,
    NEEDED_KINDS,
    NodeBeacon,
    PeerTable,
    TowerBeacon,
    Twin,
    decode_node_beacon,
    decode_tower_beacon,
    encode_node_beacon,
    encode_tower_beacon,
    endpoint_of,
    tower_beacons,
    tower_subscriptions,
)

ME = "640AC1809C7044FD9C4E5673ABD1BC5E"
NODE = "C907107406D149E897A2DEA4F157F211"
EXPIRY_S = 4.0
LONG_HOST = f"{'h.' * 127}h"  # of MAX_HOST_BYTES

HOSTS = ["127.0.0.1", "node-1.example.org", "a_b", "7", "[::1]", "[fe80::1%eth0]", LONG_HOST]
BAD_HOSTS = [
    *(LONG_HOST + "h", "h" * 64, "[1.2.3.4]", "[12345::]", "::1", "*", "a b", "a\n", "a/b", "a:1"),
    *("a;b", "tcp://a", "[]", "[::1", "[::1]x", "[a b]"),
    *("-a", "_a", ".a"),  # ZeroMQ cannot connect to these
]
BAD_PORTS = ["", "0", "00000", "65536", "123456", "-1", "+1", "1.0", "1e3", " 1", "1 ", "x"]
BAD_NODES = [b"", b"N" * 256, b"N\0", b"N\n", b"\x1b[31m", b"\x7f", b"\xff", "É".encode()]


def node_frames(host: str = "h", port: str = "5000", node: bytes = b"N") -> list[bytes]:
    return [b"B", node, host.encode(), port.encode()]


def tower_frames(host: str = "h", port: str = "5000", node: bytes = b"N") -> list[bytes]:
    return [b"B", node, f"tcp://{host}:{port}".encode()]


# -- frames ---------------------------------------------------------------------------------------


def test_frames_as_c_nodes_send_them() -> None:
    node = [b"B", NODE.encode(), b"", b"40123"]
    assert decode_node_beacon(node) == NodeBeacon(NODE, "", 40123)
    assert encode_node_beacon(NodeBeacon(NODE, "", 40123)) == node
    tower = [b"B", NODE.encode(), b"tcp://10.0.0.7:40123"]
    assert decode_tower_beacon(tower) == TowerBeacon(NODE, "tcp://10.0.0.7:40123")
    assert encode_tower_beacon(TowerBeacon(NODE, "tcp://10.0.0.7:40123")) == tower


@pytest.mark.parametrize(
    ("beacon", "frames"),
    [
        (NodeBeacon(NODE, "h", 7, "P"), [b"A", NODE.encode(), b"h", b"7", b"P"]),
        (NodeBeacon(NODE, "h", 7, "S", ME), [b"A", NODE.encode(), b"h", b"7", b"S", ME.encode()]),
    ],
)
def test_a_kind_and_a_receiver_are_further_frames(beacon: NodeBeacon, frames: list[bytes]) -> None:
    assert encode_node_beacon(beacon) == frames
    assert decode_node_beacon(frames) == beacon
    for kind in (b"", b"p", b"PS", b"?", b"@", b"\xff"):
        with pytest.raises(ProtocolError):
            decode_node_beacon([*frames[:4], kind, *frames[5:]])
    for wrong in ([b"B", *frames[1:]], [*frames[:5], b"N", b"N"], frames[:4], [*frames[:5], b""]):
        with pytest.raises(ProtocolError):
            decode_node_beacon(wrong)


@pytest.mark.parametrize(
    ("beacon", "first_frames"),
    [
        (NodeBeacon(NODE, "h", 7), [b"B", b"K?%b\0"]),
        (NodeBeacon(NODE, "h", 7, "S"), [b"B", b"KS%b\0"]),
        (NodeBeacon(NODE, "h", 7, "X"), [b"B", b"KX%b\0"]),  # a kind of a later version
        (NodeBeacon(NODE, "h", 7, "S", ME), [b"K@" + ME.encode() + b"\0"]),
    ],
)
def test_a_tower_publishes_beacons_with_and_without_kinds(
    beacon: NodeBeacon, first_frames: list[bytes]
) -> None:
    rest = [NODE.encode(), b"tcp://h:7"]
    firsts = [each % NODE.encode() if b"%b" in each else each for each in first_frames]
    frames = tower_beacons(beacon, "tcp://h:7")
    assert frames == [[first, *rest] for first in firsts]
    for each in frames:
        assert encode_tower_beacon(decode_tower_beacon(each)) == each


@pytest.mark.parametrize(
    "first",
    [b"K", b"KP", b"KP" + NODE.encode(), b"Kp%b\0", b"K!%b\0", b"KP%bx\0", b"LP%b\0", b"K@\0"],
)
def test_bad_first_frames_of_a_tower_are_refused(first: bytes) -> None:
    first = first % NODE.encode() if b"%b" in first else first
    with pytest.raises(ProtocolError):
        decode_tower_beacon([first, NODE.encode(), b"tcp://h:7"])


CONNECTED = {"CP", "CS", "PR", "PS", "RS", "SS"}
"""The kinds that exchange messages, in alphabetical order."""


@pytest.mark.parametrize("own", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_node_receives_the_beacons_of_kinds_that_it_needs(own: str, other: str) -> None:
    assert (other in NEEDED_KINDS[own]) is ("".join(sorted(own + other)) in CONNECTED)

    def received(beacon: NodeBeacon) -> list[str]:
        prefixes = tuple(tower_subscriptions(NodeBeacon(ME, "h", 1, own)))
        frames = tower_beacons(beacon, "tcp://h:7")
        return [decode_tower_beacon(each).kind for each in frames if each[0].startswith(prefixes)]

    is_needed = other in NEEDED_KINDS[own]
    assert received(NodeBeacon(NODE, "h", 7, other)) == [other] * is_needed
    assert received(NodeBeacon(NODE, "h", 7)) == ["?"]
    assert received(NodeBeacon(ME, "h", 7, other)) == [other]
    assert received(NodeBeacon(ME + "0", "h", 7, other)) == [other] * is_needed
    assert received(NodeBeacon(NODE, "h", 7, other, ME)) == [ANSWER]
    assert received(NodeBeacon(NODE, "h", 7, other, NODE)) == []


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("port", [1, 5556, 65_535])
def test_beacons_survive(host: str, port: int) -> None:
    beacon = NodeBeacon(NODE, host, port)
    assert decode_node_beacon(encode_node_beacon(beacon)) == beacon
    endpoint = endpoint_of(beacon, "unused")
    assert endpoint == f"tcp://{host}:{port}"
    announced = TowerBeacon(NODE, endpoint)
    assert decode_tower_beacon(encode_tower_beacon(announced)) == announced


@pytest.mark.parametrize(
    ("host", "seen", "endpoint"),
    [
        ("", "10.0.0.7", "tcp://10.0.0.7:5000"),
        ("", "::1", "tcp://[::1]:5000"),
        ("", "fe80::1%eth0", "tcp://[fe80::1%eth0]:5000"),
        ("", "[::1]", "tcp://[::1]:5000"),
        ("[::2]", "::1", "tcp://[::2]:5000"),
        ("node", "10.0.0.7", "tcp://node:5000"),
    ],
)
def test_the_tower_fills_in_the_host_it_sees(host: str, seen: str, endpoint: str) -> None:
    assert endpoint_of(NodeBeacon(NODE, host, 5000), seen) == endpoint
    assert (
        decode_tower_beacon(encode_tower_beacon(TowerBeacon(NODE, endpoint))).endpoint == endpoint
    )


@pytest.mark.parametrize(
    ("part", "bad"),
    [*(("host", host) for host in BAD_HOSTS), *(("port", port) for port in BAD_PORTS)],
    ids=repr,
)
def test_bad_hosts_and_ports_are_refused(part: str, bad: str) -> None:
    wrong: dict[str, Any] = {part: bad}
    with pytest.raises(ProtocolError, match=part):
        decode_node_beacon(node_frames(**wrong))
    with pytest.raises(ProtocolError, match="tcp://HOST:PORT"):
        decode_tower_beacon(tower_frames(**wrong))


@pytest.mark.parametrize("node", BAD_NODES, ids=repr)
def test_bad_nodes_are_refused(node: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_node_beacon(node_frames(node=node))
    with pytest.raises(ProtocolError):
        decode_tower_beacon(tower_frames(node=node))


@pytest.mark.parametrize(
    "endpoint",
    ["", "tcp://", "h:5000", "ipc://h:5000", "TCP://h:5000", "tcp://:5000", "tcp://h", "tcp://h:"],
)
def test_bad_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ProtocolError, match="tcp://HOST:PORT"):
        decode_tower_beacon([b"B", b"N", endpoint.encode()])


@pytest.mark.parametrize(
    ("decode", "good"), [(decode_node_beacon, node_frames()), (decode_tower_beacon, tower_frames())]
)
def test_bad_frames_are_refused(decode: Callable[[list[bytes]], Any], good: list[bytes]) -> None:
    decode(good)
    wrong: list[list[bytes]] = [[], [b"B"], [b""] * len(good), good[:-1], [*good, b""]]
    wrong += [[first, *good[1:]] for first in (b"W", b"", b"BB", b"b")]
    wrong += [[*good[:-1], last] for last in (b"\xff", "tcp://h:٣".encode(), "٣".encode())]
    for frames in wrong:
        with pytest.raises(ProtocolError):
            decode(frames)


# -- peers ----------------------------------------------------------------------------------------


def beacon(node: str, port: int = 5000) -> TowerBeacon:
    return TowerBeacon(node, f"tcp://h:{port}")


def peers_with(*names: str) -> PeerTable:
    peers = PeerTable(ME, 5000, expiry_s=EXPIRY_S)
    for port, name in enumerate(names):
        assert peers.hear(0.0, beacon(name, port))
    return peers


def test_a_new_peer_is_new_once() -> None:
    peers = peers_with()
    assert peers.hear(0.0, beacon("A"))
    assert not peers.hear(1.0, beacon("A"))
    assert peers.hear(1.0, beacon("A", 5001))
    assert len(peers) == 2
    assert peers.node_at("tcp://h:5000") == "A"
    assert "A" in peers.nodes()
    assert "B" not in peers.nodes()


def test_without_a_tower_no_beacons_arrive_and_no_peer_is_lost() -> None:
    peers = peers_with("A", "B")
    assert peers.is_heard(EXPIRY_S, "tcp://h:0")
    assert not peers.is_heard(EXPIRY_S + 0.1, "tcp://h:0")
    assert peers.expire(1_000.0) == []
    assert len(peers) == 2
    peers.hear(1_000.0, beacon("A", 0))
    assert peers.is_heard(1_000.0, "tcp://h:0")


def test_our_own_beacon_shows_that_we_are_announced_and_that_the_tower_lives() -> None:
    peers = peers_with("A")
    before = peers.announced
    for second in range(1, 6):
        assert not peers.hear(float(second), beacon(ME))
    assert (before, peers.announced) == (False, True)
    assert len(peers) == 1
    assert peers.expire(5.0) == [("A", "tcp://h:0")]


@pytest.mark.parametrize(("heard_at", "older"), [(0.1, True), (EXPIRY_S + 0.1, False)])
def test_a_twin_is_another_node_with_our_address(heard_at: float, older: bool) -> None:
    peers = peers_with()
    peers.hear(0.0, beacon(ME))
    heard = [
        (0.0, beacon(ME, 5001)),
        (0.4, beacon(ME, 5001)),  # it may be our own earlier life
        (0.6, TowerBeacon(ME, "tcp://another-name-of-ours:5000")),
        (0.6, beacon(ME, 5001)),
    ]
    twins: list[Twin | None] = []
    for later_s, each in heard:
        assert not peers.hear(heard_at + later_s, each)
        twins.append(peers.twin)
    assert twins == [None, None, None, ("tcp://h:5001", older)]
    assert len(peers) == 0


def test_a_twin_may_have_our_port_on_another_machine() -> None:
    """As a copy of a whole machine whose store has a fixed port."""
    peers = PeerTable(ME, 5000, host="h", expiry_s=EXPIRY_S)
    other = TowerBeacon(ME, "tcp://other:5000")
    for now in (0.0, 1.0):  # a tower may write our host differently
        peers.hear(now, other, "another tower")
    peers.hear(1.0, beacon(ME, 5000), "tower")
    assert peers.announced
    for now in (1.0, 2.0):
        assert peers.twin is None
        peers.hear(now, other, "another tower")
        peers.hear(now, other, "tower")
    assert peers.twin == Twin(other.endpoint, older=True)


def test_a_silent_peer_is_lost_while_others_are_heard() -> None:
    peers = peers_with("A", "B")
    for tenth in range(1, 41):
        peers.hear(tenth / 10, beacon("B", 1))
        assert peers.expire(tenth / 10) == []
    peers.hear(4.1, beacon("B", 1))
    assert peers.expire(4.1) == [("A", "tcp://h:0")]
    assert peers.expire(4.1) == []
    assert len(peers) == 1
    assert "A" not in peers.nodes()
    # It may come back, and is new then.
    assert peers.hear(5.0, beacon("A", 0))


def test_a_tower_that_returns_gives_all_peers_time() -> None:
    peers = peers_with("A", "B")
    returned = 1_000.0
    # It is our own beacon or that of any peer that comes first.
    peers.hear(returned, beacon(ME))
    assert peers.expire(returned) == []
    for tenth in range(1, 40):
        peers.hear(returned + tenth / 10, beacon("B", 1))
        assert peers.expire(returned + tenth / 10) == []
    peers.hear(returned + 4.1, beacon("B", 1))
    assert peers.expire(returned + 4.1) == [("A", "tcp://h:0")]


def test_a_peer_can_be_forgotten() -> None:
    peers = peers_with("A")
    del peers["tcp://h:0"]
    assert len(peers) == 0
    assert peers.expire(99.0) == []
    assert peers.hear(1.0, beacon("A", 0))


def test_another_node_at_an_endpoint_takes_its_place() -> None:
    peers = peers_with("A")
    assert not peers.hear(1.0, beacon("B", 0))
    assert peers.node_at("tcp://h:0") == "B"
    assert len(peers) == 1
    assert peers.replaced == ["A"]


def test_a_peer_is_not_lost_while_all_towers_that_knew_it_are_away() -> None:
    peers = peers_with()
    peers.hear(0.0, beacon("A", 0), "one")
    for tower in ("one", "two"):
        peers.hear(0.0, beacon("B", 1), tower)
    for second in range(1, 10):
        peers.hear(float(second), beacon(ME), "two")
    assert peers.expire(9.0) == [("B", "tcp://h:1")]
    # The other tower is back: peers that are still silent are lost after a while.
    for second in range(10, 14):
        peers.hear(float(second), beacon(ME), "one")
        assert peers.expire(float(second)) == []
    peers.hear(15.0, beacon(ME), "one")
    assert peers.expire(15.0) == [("A", "tcp://h:0")]


def test_a_returning_tower_gives_no_time_to_peers_that_only_others_announce() -> None:
    peers = peers_with()
    peers.hear(0.0, beacon("A", 0), "one")
    for second in range(1, 5):
        peers.hear(float(second), beacon(ME), "one")
    peers.hear(4.5, beacon(ME), "two")
    peers.hear(4.6, beacon(ME), "one")
    assert peers.expire(4.6) == [("A", "tcp://h:0")]


def test_peers_are_bounded() -> None:
    peers = peers_with()
    for port in range(MAX_PEERS):
        assert peers.hear(0.0, beacon(f"N{port}", port))
    assert not peers.hear(1.0, beacon("late", 70_000))
    assert len(peers) == MAX_PEERS
    # Beacons of known peers still count, and an expired peer makes room.
    for second in range(2, 6):
        peers.hear(float(second), beacon("N0", 0))
    assert len(peers.expire(5.0)) == MAX_PEERS - 1
    assert peers.hear(5.0, beacon("late", 70_000))
