"""Which peers there are: beacons from nodes to towers, and from towers to nodes.

RFC 46: a node "SHALL send this address at a regular interval to all connected towers", and "MAY
disconnect its SUB socket if the peer has failed to respond within some time".  A peer is lost only
while a tower is heard: a tower that is down says nothing about the peers, and connections between
nodes do not need it.  RFC 46 leaves the frames open; these are the C tower's (docs/wire.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.protocol.validation import check_address

BEACON: Final = b"B"
WELCOME: Final = b"W"
"""What a tower sends to each new subscriber."""

MAX_PEERS: Final = 10_000
"""Peers connected to at once: each is a TCP connection, and any node may announce some."""

MAX_HOST_BYTES: Final = 255
"""The longest name DNS allows."""

TWIN_CONFIRMED_S: Final = 0.5
"""A node that was started again may still hear beacons of its earlier life, but not for so long."""

_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.%a-z]+\]|[0-9A-Za-z][0-9A-Za-z._-]*")
_ENDPOINT: Final = re.compile(rf"tcp://({_HOST.pattern}):([0-9]{{1,5}})")


class NodeBeacon(NamedTuple):
    """Node to tower: the node's UUID, its host and its port."""

    node: str
    host: str  # empty: the tower fills in the address it sees
    port: int


class TowerBeacon(NamedTuple):
    """Tower to nodes: a node's UUID, and the endpoint that other nodes connect to."""

    node: str
    endpoint: str


def encode_node_beacon(beacon: NodeBeacon) -> list[bytes]:
    """Four frames, each of them text."""
    return [BEACON, *(str(part).encode() for part in beacon)]


def decode_node_beacon(frames: Sequence[bytes]) -> NodeBeacon:
    """What a node announces.

    Raises:
        ProtocolError: the frames are no node beacon.
    """
    if len(frames) != 4 or frames[0] != BEACON:
        raise ProtocolError("a node beacon has four frames, the first one B")
    host, port = _ascii(frames[2]), _ascii(frames[3])
    if len(host) > MAX_HOST_BYTES or (host and not _HOST.fullmatch(host)):
        raise ProtocolError("the host of a beacon is no host name or address")
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65_536:
        raise ProtocolError("the port of a beacon must lie in 1 to 65535")
    return NodeBeacon(_node(frames[1]), host, int(port))


def encode_tower_beacon(beacon: TowerBeacon) -> list[bytes]:
    """Three frames."""
    return [BEACON, *(part.encode() for part in beacon)]


def decode_tower_beacon(frames: Sequence[bytes]) -> TowerBeacon:
    """Where peers reach a node.

    Raises:
        ProtocolError: the frames are no tower beacon.
    """
    if len(frames) != 3 or frames[0] != BEACON:
        raise ProtocolError("a tower beacon has three frames, the first one B")
    endpoint = _ascii(frames[2])
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or len(match[1]) > MAX_HOST_BYTES or not 0 < int(match[2]) < 65_536:
        raise ProtocolError("the endpoint of a beacon must be tcp://HOST:PORT")
    return TowerBeacon(_node(frames[1]), endpoint)


def endpoint_of(beacon: NodeBeacon, seen_host: str) -> str:
    """The endpoint to announce for a node; ``seen_host`` stands in for an empty host."""
    host = beacon.host or seen_host
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"tcp://{host}:{beacon.port}"


class Twin(NamedTuple):
    """Another node that announces itself under our address, and is heard again and again."""

    endpoint: str
    older: bool
    """It was there when this node was announced."""


class PeerTable:
    """The peers a node is connected to."""

    def __init__(self, node: str, port: int, *, expiry_s: float) -> None:
        self._node = node
        self._port = f":{port}"
        self._expiry_s = expiry_s
        self._peers: dict[str, tuple[str, float]] = {}  # by endpoint: its node, and when heard
        self._tower_heard_at = 0.0
        self.announced = False
        """Whether a tower has passed our own beacon on, which it sends to us as to all others."""
        self.twin: Twin | None = None
        self._announced_at: float | None = None  # for the first time
        self._twin_first_heard = ("", 0.0)  # at which endpoint, and when

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, endpoint: str) -> bool:
        """Whether there is a peer at an endpoint."""
        return endpoint in self._peers

    def is_new(self, beacon: TowerBeacon) -> bool:
        """Whether a beacon is of a peer that is not in the table."""
        return beacon.node != self._node and beacon.endpoint not in self._peers

    def node_at(self, endpoint: str) -> str:
        """The UUID of the peer at an endpoint."""
        return self._peers[endpoint][0]

    def knows(self, node: str) -> bool:
        """Whether a node has an endpoint."""
        return any(node == known for known, _ in self._peers.values())

    def forget(self, endpoint: str) -> None:
        """There is no node at an endpoint."""
        del self._peers[endpoint]

    def hear(self, now: float, beacon: TowerBeacon) -> bool:
        """Takes a tower's beacon; True if its node is new and is to be connected to."""
        if now - self._tower_heard_at > self._expiry_s:
            # The tower was away: no peer could be heard, so none has been silent.
            self._peers = {endpoint: (node, now) for endpoint, (node, _) in self._peers.items()}
        self._tower_heard_at = now
        if beacon.node == self._node:
            # Not the whole endpoint: towers may name our host in their own way.
            if beacon.endpoint.endswith(self._port):
                self.announced = True
                self._announced_at = now if self._announced_at is None else self._announced_at
            else:
                self._hear_twin(now, beacon.endpoint)
            return False
        new = beacon.endpoint not in self._peers
        if new and len(self._peers) >= MAX_PEERS:
            return False
        self._peers[beacon.endpoint] = (beacon.node, now)
        return new

    def _hear_twin(self, now: float, endpoint: str) -> None:
        known, first_heard = self._twin_first_heard
        if known != endpoint:
            self._twin_first_heard = (endpoint, now)
        elif now >= first_heard + TWIN_CONFIRMED_S:
            # Nodes that are there are heard within the time after which silent ones are lost.
            announced = now if self._announced_at is None else self._announced_at
            self.twin = Twin(endpoint, first_heard <= announced + self._expiry_s)

    def expire(self, now: float) -> list[tuple[str, str]]:
        """The peers (node, endpoint) that are lost now; they are forgotten."""
        # A tower that is up is heard: at least our own beacon comes back from it.
        limit = min(now, self._tower_heard_at) - self._expiry_s
        lost = [
            (node, endpoint) for endpoint, (node, heard) in self._peers.items() if heard < limit
        ]
        for _, endpoint in lost:
            del self._peers[endpoint]
        return lost


def _ascii(frame: bytes) -> str:
    if not frame.isascii():
        raise ProtocolError("a beacon's frames are ASCII")
    return frame.decode()


def _node(frame: bytes) -> str:
    node = _ascii(frame)
    check_address(node)
    return node
