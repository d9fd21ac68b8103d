"""Beacons from nodes to towers and from towers to nodes, and the peers that they announce.

RFC 46: a node "SHALL send this address at a regular interval to all connected towers", and "MAY
disconnect its SUB socket if the peer has failed to respond within some time".  A peer is lost only
while a tower's beacons arrive: a failed tower proves nothing about the peers, and connections
between nodes do not need it.  RFC 46 leaves the frames open; these are the C tower's, and ours,
which contain the kind of the node (docs/wire.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.model.name_limits import check_node_address
from dafka_core.system.hosts import ANY, HostPort, is_host, parse_endpoint

BEACON: Final = b"B"
# Node to tower.  It sorts before ``BEACON``, so that it is a tower's first subscription.
BEACON_WITH_KIND: Final = b"A"
# Tower to nodes: a beacon whose first frame has the kind and address, for subscriptions.
KIND: Final = b"K"
WELCOME: Final = b"W"  # a tower's message to each new subscriber
# Kinds of nodes by their letter on the wire.
KINDS: Final = {"C": "consumer", "P": "producer", "R": "reader", "S": "store"}
# The letter of nodes that do not announce their kind, such as C nodes: all connect to them.
UNKNOWN_KIND: Final = "?"
# In the place of a kind: a beacon for one new node.  If its peers announced themselves to all nodes
# again, the number of messages would grow with the square of the nodes.
ANSWER: Final = "@"

# The kinds of peers that each kind of node connects to.  Records go from producers and stores to
# consumers, readers and stores, requests and acknowledgements back.  Producers have no messages for
# each other, nor have consumers and readers.
NEEDED_KINDS: Final = {"C": "PS", "P": "CRS", "R": "PS", "S": "CPRS"}

# Limit of peers at once: each is a TCP connection, and any node may announce some.
MAX_PEERS: Final = 10_000
MAX_HOST_BYTES: Final = 255  # the longest name DNS allows
# A restarted node may still receive beacons of its earlier life, but only for a shorter time.
TWIN_CONFIRMED_S: Final = 0.5

_FIRST_FRAME: Final = re.compile(rb"K([A-Z?@])([^\0]+)\0")


class NodeBeacon(NamedTuple):
    """Node to tower: the node's UUID, its host and its port."""

    node: str
    host: str  # empty: the tower uses the address of the connection
    port: int
    kind: str = ""  # its letter; empty in the form of C nodes
    to: str = ""
    """The only node to receive it, a new one; empty for all.  Needs a kind."""


class TowerBeacon(NamedTuple):
    """Tower to nodes: a node's UUID, and the endpoint that other nodes connect to."""

    node: str
    endpoint: str
    kind: str = ""  # its letter, ``UNKNOWN_KIND`` or ``ANSWER``; empty in the form of C towers
    to: str = ""  # the only node to receive it, if the kind is ``ANSWER``


def _ascii(frame: bytes) -> str:
    if not frame.isascii():
        raise ProtocolError("a beacon's frames are ASCII")
    return frame.decode()


def _node(frame: bytes) -> str:
    node = _ascii(frame)
    check_node_address(node)
    return node


def encode_node_beacon(beacon: NodeBeacon) -> list[bytes]:
    """Encode a beacon as four frames of text; a kind and a receiver take one more each."""
    first = BEACON_WITH_KIND if beacon.kind else BEACON
    frames = [first, *(str(part).encode() for part in beacon)]
    return [*frames[:4], *filter(None, frames[4:])]


def decode_node_beacon(frames: Sequence[bytes]) -> NodeBeacon:
    """Decode any form of a node's beacon; raise ProtocolError if it is invalid."""
    form = (frames[0], len(frames)) if frames else (b"", 0)
    if form not in ((BEACON, 4), (BEACON_WITH_KIND, 5), (BEACON_WITH_KIND, 6)):
        raise ProtocolError(f"a message to towers has an unknown form: {len(frames)} frames")
    node, host, port, *others = map(_ascii, frames[1:])
    for address in (node, *others[1:]):
        check_node_address(address)
    # RFC 46's nodes may leave the host to the tower, which knows the sender's address.
    if host and (len(host) > MAX_HOST_BYTES or not is_host(host)):
        raise ProtocolError("a beacon contains the name or the address of a host")
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65_536:
        raise ProtocolError("the port of a beacon must be between 1 and 65535")
    if others and not re.fullmatch("[A-Z]", others[0]):
        raise ProtocolError("the kind of a node is one capital letter")
    return NodeBeacon(node, host, int(port), *others)


def encode_tower_beacon(beacon: TowerBeacon) -> list[bytes]:
    """Encode a beacon as three frames."""
    node, endpoint, kind, to = (part.encode() for part in beacon)
    return [b"%b%b%b\0" % (KIND, kind, to or node) if kind else BEACON, node, endpoint]


def decode_tower_beacon(frames: Sequence[bytes]) -> TowerBeacon:
    """Decode any form of a tower's beacon; raise ProtocolError if it is invalid."""
    if len(frames) != 3:
        raise ProtocolError("a tower beacon has three frames")
    endpoint = _ascii(frames[2])
    check_endpoint(endpoint)
    beacon = TowerBeacon(_node(frames[1]), endpoint)
    if frames[0] == BEACON:
        return beacon
    match = _FIRST_FRAME.fullmatch(frames[0])
    if match is None or (match[1] != ANSWER.encode() and match[2] != frames[1]):
        raise ProtocolError("the first frame of a tower beacon is B, or K with kind and address")
    kind = match[1].decode()
    return beacon._replace(kind=kind, to=_node(match[2]) if kind == ANSWER else "")


def tower_subscriptions(own: NodeBeacon) -> list[bytes]:
    """Return the subscriptions of a node at any tower.

    They include its own beacon, under each kind, which shows that the tower is alive and whether
    another node has the same address, and answers to it.
    """
    prefixes = [WELCOME]
    for kind in (UNKNOWN_KIND, ANSWER, *KINDS) if own.kind else ():
        is_needed = kind in UNKNOWN_KIND + NEEDED_KINDS[own.kind]
        prefixes.append(KIND + kind.encode() + (b"" if is_needed else own.node.encode() + b"\0"))
    return prefixes


def is_tower_subscription(prefix: bytes) -> bool:
    """Return True if messages of a tower may match a prefix, as those of nodes do."""
    is_of_kind = re.fullmatch(rb"K(?:[A-Z?@](?:[^\0]{1,255}\0)?)?", prefix) is not None
    return is_of_kind or prefix in (b"", BEACON, WELCOME)


def tower_beacons(beacon: NodeBeacon, endpoint: str) -> list[list[bytes]]:
    """Return the messages of a tower for a node's beacon: for C nodes, and with the kind."""
    plain = TowerBeacon(beacon.node, endpoint)
    if beacon.to:
        return [encode_tower_beacon(plain._replace(kind=ANSWER, to=beacon.to))]
    with_kind = plain._replace(kind=beacon.kind or UNKNOWN_KIND)
    return [encode_tower_beacon(each) for each in (plain, with_kind)]


@lru_cache(MAX_PEERS)  # each endpoint is repeated with every beacon
def check_endpoint(endpoint: str) -> None:
    """Raise ProtocolError unless a tower can announce the endpoint."""
    try:
        host, port = parse_endpoint(endpoint)
    except ValueError:
        host, port = ANY, 0
    if host == ANY or len(host) > MAX_HOST_BYTES or not port:
        raise ProtocolError("an endpoint must be tcp://HOST:PORT")


def endpoint_of(beacon: NodeBeacon, seen_host: str) -> str:
    """Return the endpoint to announce for a node; ``seen_host`` replaces an empty host."""
    return f"tcp://{HostPort(beacon.host or seen_host, beacon.port)}"


class Twin(NamedTuple):
    """Another node that announces itself under our address again and again."""

    endpoint: str
    older: bool  # it existed when this node was announced


@dataclass(slots=True)
class _Peer:
    node: str
    beacon_at: float
    towers: set[str]
    """The towers that have announced it; while these are away, it does not count as silent."""


class PeerTable(dict[str, _Peer]):
    """The peers a node is connected to, by endpoint."""

    def __init__(self, node: str, port: int, *, expiry_s: float, host: str = "") -> None:
        super().__init__()
        self._node = node
        self._port = f":{port}"
        self._endpoint = f"tcp://{HostPort(host, port)}"
        self._exact: set[str] = set()  # towers that announce this node at its endpoint
        self._expiry_s = expiry_s
        self._tower_beacon_at: dict[str, float] = {}
        self.replaced: list[str] = []
        """Nodes replaced at their endpoints, as by a restart with a fixed port; the caller clears
        it."""
        self.announced = False
        """A tower has published our own beacon, which it sends to us as to all others."""
        self.twin: Twin | None = None
        self._announced_at: float | None = None  # for the first time
        self._twin_since = ("", 0.0)  # at which endpoint, and when

    def addresses(self) -> list[tuple[str, str]]:
        """Return node and endpoint of each peer."""
        return [(peer.node, endpoint) for endpoint, peer in self.items()]

    def is_new(self, beacon: TowerBeacon) -> bool:
        """Return True if a beacon's peer is not in the table."""
        # At its own endpoint it would connect to itself, and take its own answers for others'.
        is_own = beacon.node == self._node or beacon.endpoint == self._endpoint
        return not is_own and beacon.endpoint not in self

    def node_at(self, endpoint: str) -> str:
        """Return the UUID of the peer at an endpoint."""
        return self[endpoint].node

    def nodes(self) -> set[str]:
        """Return the UUIDs of the peers."""
        return {peer.node for peer in self.values()}

    def is_heard(self, now: float, endpoint: str) -> bool:
        """Return True if a peer's beacons arrive; without a tower none do."""
        return now <= self[endpoint].beacon_at + self._expiry_s

    def hear(self, now: float, beacon: TowerBeacon, tower: str = "") -> bool:
        """Process a tower's beacon; return True if its node is new and must be connected to."""
        if now - self._tower_beacon_at.get(tower, 0.0) > self._expiry_s:
            # The tower was away: no beacon could arrive, so no peer has been silent.
            for peer in self.values():
                if tower in peer.towers:
                    peer.beacon_at = now
        self._tower_beacon_at[tower] = now
        if beacon.node == self._node:
            if is_exact := beacon.endpoint == self._endpoint:
                self._exact.add(tower)
            # Other towers may write our host differently.
            is_alike = tower not in self._exact and beacon.endpoint.endswith(self._port)
            if is_exact or is_alike:
                self.announced = True
                self._announced_at = now if self._announced_at is None else self._announced_at
            else:
                self._note_twin(now, beacon.endpoint)
            return False
        known = self.get(beacon.endpoint)
        if known is None:
            if is_accepted := len(self) < MAX_PEERS and self.is_new(beacon):
                self[beacon.endpoint] = _Peer(beacon.node, now, {tower})
            return is_accepted
        if known.node != beacon.node:
            self.replaced.append(known.node)
            known.node = beacon.node
        known.beacon_at = now
        known.towers.add(tower)
        return False

    def _note_twin(self, now: float, endpoint: str) -> None:
        known, since = self._twin_since
        if known != endpoint:
            self._twin_since = (endpoint, now)
        elif now >= since + TWIN_CONFIRMED_S:
            # Beacons of present nodes arrive within the time after which silent ones are lost.
            announced = now if self._announced_at is None else self._announced_at
            self.twin = Twin(endpoint, since <= announced + self._expiry_s)

    def expire(self, now: float) -> list[tuple[str, str]]:
        """Return the peers (node, endpoint) that are lost now, and forget them."""
        # A live tower at least sends our own beacon back.
        beacon_at = self._tower_beacon_at
        lost = [
            (peer.node, endpoint)
            for endpoint, peer in self.items()
            if peer.beacon_at + self._expiry_s
            < min(now, max(map(beacon_at.__getitem__, peer.towers)))
        ]
        for _, endpoint in lost:
            del self[endpoint]
        return lost
