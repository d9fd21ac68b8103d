"""Who connects to a node: a peer that cannot hears nothing of it, and nobody else would say so."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from dafka_core.nodes.addresses import is_elsewhere, is_loopback
from dafka_core.protocol.beacons import MAX_PEERS, NodeBeacon, PeerTable, endpoint_of

SAY_AGAIN_S: Final = 10.0
"""When the same peers have not connected for so long, that is said again; then after twice as
long."""

_ADDRESS_LENGTH: Final = 32
"""Of addresses as C nodes and ours have them."""

_log = logging.getLogger("dafka.mesh")


class Inbound:
    """The peers that have connected to a node.

    A peer says who it is by what it subscribes to: each node's own address is part of that.

    Args:
        own: where the node is.
        table: its peers.

    Attributes:
        endpoint: where peers are told to connect.
    """

    def __init__(self, own: NodeBeacon, table: PeerTable) -> None:
        self.endpoint = endpoint_of(own, "")
        self._is_loopback = is_loopback(own.host)
        self._table = table
        self._met: set[str] = set()
        self._expected: dict[str, None] = {}  # endpoints of peers
        self._due = 0.0
        self._pause_s = SAY_AGAIN_S
        self._said: frozenset[str] = frozenset()

    def note(self, topic: str) -> None:
        """A peer has subscribed to what is about this, perhaps its own address."""
        if len(topic) == _ADDRESS_LENGTH:
            if len(self._met) >= 2 * MAX_PEERS:
                self._met = {each for each in self._met if self._table.knows(each)}
            self._met.add(topic)

    def hear(self, endpoint: str) -> None:
        """A new peer is at an endpoint."""
        host = endpoint.removeprefix("tcp://").rpartition(":")[0]
        if self._is_loopback and is_elsewhere(host):
            self._is_loopback = False  # said once
            _log.warning(
                "this node is at %s, where %s on another machine cannot connect to it: name the "
                "tower by its address in the network instead of 127.0.0.1, with host = auto, or "
                "set option host to this machine's address there",
                *(self.endpoint, endpoint),
            )

    def expect(self, endpoint: str) -> None:
        """This node has a connection to a peer for long enough: that one's should be there, too."""
        if len(self._table.node_at(endpoint)) == _ADDRESS_LENGTH:
            self._expected[endpoint] = None

    def forget(self, endpoint: str) -> None:
        """There is no peer at an endpoint."""
        self._expected.pop(endpoint, None)

    def has_met(self, node: str) -> bool:
        """Whether a node has connected."""
        return node in self._met

    def unmet(self, nodes: Iterable[str]) -> list[str]:
        """Those of some nodes that have not connected."""
        return sorted(set(nodes) - self._met)

    def report(self, now: float) -> None:
        """Says which peers have not connected, though their beacons come."""
        nodes = {each: self._table.node_at(each) for each in self._expected}
        self._expected = {each: None for each, node in nodes.items() if node not in self._met}
        unmet = frozenset(self._expected)
        if not unmet or (unmet <= self._said and now < self._due):
            return
        self._pause_s = 2 * self._pause_s if unmet == self._said else SAY_AGAIN_S
        self._due, self._said = now + self._pause_s, unmet
        endpoint = min(unmet)
        _log.warning(
            "%d of %d peers have not connected to this node at %s, as %s at %s, though their "
            "beacons come: nothing that it publishes or asks for reaches them. Is that an address "
            "that they reach (option host), and does a firewall let the port pass (option port)?",
            *(len(unmet), len(self._table), self.endpoint, nodes[endpoint], endpoint),
        )
