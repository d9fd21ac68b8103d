"""A node's peers: its towers tell of them, and SUB sockets receive from them.

RFC 46, Interconnection Model: a node has a PUB and a SUB socket for its towers, and "a second
ZeroMQ SUB socket", which it connects to the XPUB socket of every node that it discovers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Final

import zmq

from dafka_core.errors import ProtocolError
from dafka_core.node_options import NodeOptions
from dafka_core.nodes.sockets import new_socket, received
from dafka_core.protocol import beacons
from dafka_core.protocol.limits import MAX_HEADER_BYTES

FIRST_BEACONS_INTERVAL_S: Final = 0.02
"""The interval of beacons until one has come back from a tower: a PUB socket drops what it sends
before the tower has accepted the connection."""

SETTLE_S: Final = 0.1
"""Within this time the nodes that are there have connected to a new one.  It takes some 30 ms: a
beacon every ``FIRST_BEACONS_INTERVAL_S`` until one has come through, and their connecting."""

_ALL: Final = ""
"""The endpoint under which the one socket for all peers is kept."""


class Peers:
    """Knows the peers, and is connected to all of them.

    Args:
        beacon: what is announced to the towers.
        prefixes: what to subscribe to at every peer.
        poller: is given the sockets to poll.
        tell_apart: whether each peer has a socket of its own, so that senders are known.
    """

    def __init__(
        self,
        beacon: beacons.NodeBeacon,
        prefixes: Iterable[bytes],
        config: NodeOptions,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        tell_apart: bool,
    ) -> None:
        self.table = beacons.PeerTable(
            beacon.node, beacon.port, expiry_s=config.peer_expiry_ms / 1000
        )
        self.tower_found = False
        """Whether a tower has answered."""
        self.beacon_due = 0.0
        self.invalid_count = 0
        """Beacons that were invalid, or named an endpoint to which ZeroMQ cannot connect."""
        self._context = context
        self._config = config
        self._poller = poller
        self._beacon = beacons.encode_node_beacon(beacon)
        limits = (MAX_HEADER_BYTES, config.high_water_mark)
        self._beacon_pub = new_socket(context, zmq.PUB, *limits)
        self.beacon_sub = new_socket(context, zmq.SUB, *limits)
        for message_type in (beacons.BEACON, beacons.WELCOME):
            self.beacon_sub.subscribe(message_type)
        for tower in config.tower:
            self.beacon_sub.connect(tower.pub_endpoint)
            self._beacon_pub.connect(tower.sub_endpoint)
        poller.register(self.beacon_sub, zmq.POLLIN)
        self._prefixes = dict.fromkeys(prefixes)
        self._polled_for: int = zmq.POLLIN
        self._sockets = {} if tell_apart else {_ALL: self._new_socket()}

    def ready(
        self, polled: Container[zmq.Socket[bytes]]
    ) -> Iterator[tuple[zmq.Socket[bytes], str]]:
        """The sockets among those polled that have messages, and whose: empty where not known."""
        for endpoint, socket in self._sockets.items():
            if socket in polled:
                yield socket, self.table.node_at(endpoint) if endpoint != _ALL else ""

    def subscribe(self, prefixes: Iterable[bytes]) -> None:
        """Subscribes at every peer, now and later."""
        for prefix in prefixes:
            self._prefixes[prefix] = None
            for socket in self._sockets.values():
                socket.subscribe(prefix)

    def unsubscribe(self, prefixes: Iterable[bytes]) -> None:
        """Takes subscriptions back."""
        for prefix in prefixes:
            self._prefixes.pop(prefix, None)
            for socket in self._sockets.values():
                socket.unsubscribe(prefix)

    def set_receiving(self, receiving: bool) -> None:
        """Says whether to receive from peers.

        Meanwhile messages wait in ZeroMQ's queues, and are dropped there when these are full.
        """
        polled_for = zmq.POLLIN if receiving else 0
        if polled_for != self._polled_for:
            self._polled_for = polled_for
            for socket in self._sockets.values():
                self._poller.register(socket, polled_for)

    def receive_beacons(self, now: float) -> None:
        """Receives what towers have sent, and connects to new peers."""
        for frames in received(self.beacon_sub):
            if frames == [beacons.WELCOME]:
                self.tower_found = True
                self.table.announced = False  # a tower that was restarted knows no node
                self.beacon_due = now
                continue
            try:
                beacon = beacons.decode_tower_beacon(frames)
                if self.table.hear(now, beacon):
                    self._connect(beacon.endpoint)
                    self.beacon_due = now  # so that the new peer hears of this node at once
            except (ProtocolError, zmq.ZMQError):
                self.invalid_count += 1

    def send_beacon(self, now: float) -> list[str]:
        """Sends the beacon if it is due, and disconnects from silent peers.

        Returns the nodes that are lost: they are known at no other endpoint.
        """
        if now < self.beacon_due:
            return []
        interval_s = self._config.beacon_interval_ms / 1000
        if self.tower_found and not self.table.announced:
            interval_s = min(interval_s, FIRST_BEACONS_INTERVAL_S)
        self.beacon_due = now + interval_s
        self._beacon_pub.send_multipart(self._beacon)
        silent = self.table.expire(now)
        for _, endpoint in silent:
            self._disconnect(endpoint)
        return [node for node, _ in silent if not self.table.knows(node)]

    def _new_socket(self) -> zmq.Socket[bytes]:
        limits = (self._config.max_record_bytes, self._config.high_water_mark)
        socket = new_socket(self._context, zmq.SUB, *limits)
        for prefix in self._prefixes:
            socket.subscribe(prefix)
        self._poller.register(socket, self._polled_for)
        return socket

    def _connect(self, endpoint: str) -> None:
        shared = self._sockets.get(_ALL)
        socket = shared or self._new_socket()
        if shared is None:
            self._sockets[endpoint] = socket
        try:
            socket.connect(endpoint)
        except zmq.ZMQError:
            self.table.forget(endpoint)
            if shared is None:
                self._disconnect(endpoint)
            raise

    def _disconnect(self, endpoint: str) -> None:
        socket = self._sockets.pop(endpoint, None)
        if socket is None:
            self._sockets[_ALL].disconnect(endpoint)
        else:
            self._poller.register(socket, 0)
            socket.close()
