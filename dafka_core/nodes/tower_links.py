"""A node's connections to its towers, which announce nodes to each other.

RFC 46, Interconnection Model: a node has a PUB and a SUB socket for its towers.  Each tower has its
own pair here, so that the node knows which tower is silent.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Final

import zmq
from zmq import SyncContext as Context
from zmq import SyncSocket as Socket

from dafka_core.config.node_options import NodeOptions, TowerAddress
from dafka_core.nodes.connection_quotas import monitor_events
from dafka_core.nodes.security import Security
from dafka_core.nodes.sockets import (
    HANDSHAKE_FAILED,
    AddressFamily,
    close_watched,
    connect,
    new_socket,
    received,
    watched,
)
from dafka_core.protocol import beacons
from dafka_core.protocol.limits import MAX_HEADER_BYTES

AWAY_S: Final = 15.0
"""Time of silence after which a node reconnects to a tower, repeatedly: it resolves the name again
then, since another machine may have it now."""

REFUSED_S: Final = 0.5  # minimum time between two attempts to connect to a node that refuses this

_log = logging.getLogger("dafka.mesh")


@dataclass(slots=True)
class _Link:
    """A tower, and the connection to it."""

    sub: Socket
    pub: Socket
    monitors: dict[Socket, Socket]  # of both
    key: str
    made_at: float
    received_at: float  # of the tower, as its refusal: a new connection keeps both
    refusal: str = ""  # why the tower does not let this node in
    attempt: int = 0  # after refusals; the allowed keys of towers take turns
    refused: set[Socket] = field(default_factory=set)  # ZeroMQ does not connect them again
    family: AddressFamily = field(default_factory=AddressFamily)
    announces_kinds: bool | None = None
    """None until the first subscription of the tower shows it."""


class Towers:
    """The towers of a node, which receive its beacon and send those of other nodes.

    Our towers subscribe to beacons with kinds first.  Others forward the subscriptions of nodes:
    with such towers, and if ``beacon`` has no kind, beacons have the form of C nodes.
    """

    def __init__(
        self,
        beacon: beacons.NodeBeacon,
        config: NodeOptions,
        context: Context,
        poller: zmq.Poller,
        security: Security,
    ) -> None:
        self.is_announced = True  # sends beacons and connects to peers: both make it known
        self._security = security
        self._own = beacon
        self._away_s = max(AWAY_S, 3 * config.beacon_interval_ms / 1000)
        self._high_water_mark = config.high_water_mark
        self._context = context
        self._poller = poller
        self._links = {tower: self._connected(tower, 0.0) for tower in config.tower}

    @property
    def heard_at(self) -> dict[str, float]:
        """Return the time of each tower's last message or connection (monotonic); thread-safe."""
        links = [*self._links.items()]
        return {str(tower): max(link.received_at, link.made_at) for tower, link in links}

    @property
    def refusals(self) -> dict[str, str]:
        """Return why towers do not let this node in, by tower; thread-safe."""
        links = [*self._links.items()]
        return {str(tower): link.refusal for tower, link in links if link.refusal}

    def receive(self, now: float, polled: Container[Socket]) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the received messages, each with its tower."""
        for tower, link in [*self._links.items()]:
            if link.pub.closed:  # its key is not trusted any more
                continue
            for socket, monitor in link.monitors.items():
                for event, value, _ in monitor_events(monitor) if monitor in polled else ():
                    self._receive_event(now, tower, link, socket, event, value)
            for frames in received(link.sub) if link.sub in polled else ():
                link.received_at = now
                yield str(tower), frames

    def send(self, now: float) -> None:
        """Send the beacon to active towers; reconnect to silent, refusing and untrusted ones."""
        for tower, link in self._links.items():
            link.made_at = link.made_at or now
            is_silent = now >= max(link.made_at, link.received_at) + self._away_s
            has_failed = bool(link.refused) and now >= link.made_at + REFUSED_S
            is_trusted = self._security.is_tower(link.key)
            if is_silent or has_failed or not is_trusted:
                # Without a free file descriptor the old link stays, and the next beacon retries.
                with contextlib.suppress(zmq.ZMQError):
                    attempt = link.attempt + has_failed
                    self._links[tower] = made = self._connected(
                        tower, now, link.received_at, attempt
                    )
                    made.refusal = link.refusal
                if self._links[tower] is not link or not is_trusted:
                    self._close(link)
            current = self._links[tower]
            if current.pub.closed:
                continue
            self._receive_subscriptions(current)
            # A node fails to start if no tower answers, and must not be known then.
            if self.is_announced and link.received_at and current.announces_kinds is not None:
                own = self._own if current.announces_kinds else self._own._replace(kind="")
                current.pub.send_multipart(beacons.encode_node_beacon(own))

    def answer(self, node: str) -> None:
        """Send the beacon to a new node alone, through the towers that support it."""
        answer = beacons.encode_node_beacon(self._own._replace(to=node))
        for link in self._links.values():
            if self.is_announced and link.announces_kinds and not link.pub.closed:
                link.pub.send_multipart(answer)

    def _receive_subscriptions(self, link: _Link) -> None:
        for frame, *_ in received(link.pub):
            is_new, prefix = frame[:1] == b"\1", frame[1:]
            if prefix == beacons.BEACON_WITH_KIND and self._own.kind:
                link.announces_kinds = True if is_new else None
                link.sub.unsubscribe(beacons.BEACON)
            elif is_new and link.announces_kinds is None:
                link.announces_kinds = False
                link.sub.subscribe(beacons.BEACON)

    def _receive_event(
        self, now: float, tower: TowerAddress, link: _Link, socket: Socket, event: int, value: int
    ) -> None:
        if event == zmq.EVENT_CONNECT_RETRIED and socket is link.sub:
            link.family.retry(now, (link.sub, tower.pub_endpoint), (link.pub, tower.sub_endpoint))
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.refused.discard(socket)
            link.refusal = link.refusal if link.refused else ""
        elif event & HANDSHAKE_FAILED:
            why = self._security.report_refusal(event, value, f"tower {tower}")
            link.refusal = why or link.refusal
            if why or self._security.own is not None:
                link.refused.add(socket)

    def _connected(
        self, tower: TowerAddress, now: float, received_at: float = 0.0, attempt: int = 0
    ) -> _Link:
        key = self._security.tower_key(attempt)
        with contextlib.ExitStack() as made:
            pub, sub = (
                made.enter_context(
                    new_socket(self._context, kind, MAX_HEADER_BYTES, self._high_water_mark)
                )
                for kind in (zmq.XPUB, zmq.SUB)
            )
            for prefix in beacons.tower_subscriptions(self._own):
                sub.subscribe(prefix)
            monitors = {}
            for socket in (sub, pub):
                self._security.expect_key(socket, key)
                monitors[socket] = monitor = watched(self._context, socket)
                made.callback(close_watched, socket, monitor)
            connect(sub, tower.pub_endpoint)
            connect(pub, tower.sub_endpoint)
            made.pop_all()
        for socket in (sub, *monitors.values()):
            self._poller.register(socket, zmq.POLLIN)
        return _Link(sub, pub, monitors, key, now, received_at, attempt=attempt)

    def _close(self, link: _Link) -> None:
        if not link.pub.closed:
            for socket in (link.sub, *link.monitors.values()):
                self._poller.register(socket, 0)
            for socket, monitor in link.monitors.items():
                close_watched(socket, monitor)
