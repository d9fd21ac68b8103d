"""A node's connections to its towers.

Each tower has sockets of its own, so that the node knows which of them is silent.  Towers also tell
of further ones, which the node joins, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from dafka_core.config.node_options import NodeOptions, TowerAddress
from dafka_core.errors import ProtocolError
from dafka_core.nodes.security import Security, why_refused
from dafka_core.nodes.sockets import (
    HANDSHAKE_FAILED,
    close_watched,
    new_socket,
    received,
    watched,
)
from dafka_core.protocol import beacons
from dafka_core.protocol.limits import MAX_HEADER_BYTES

AWAY_S: Final = 15.0
"""When a tower is silent for so long, and each time as long again, it is connected to anew: its
name is resolved again then, since another machine may have it now."""

REFUSED_S: Final = 0.5
"""A tower that refuses this node is connected to again so long after it was connected to last."""

MAX_LEARNED: Final = 16
"""Towers that others have told of; anybody may tell of some.  The one that is silent for longest
gives way to a new one."""


_log = logging.getLogger("dafka.mesh")


@dataclass(slots=True)
class _Link:
    """One tower."""

    sub: zmq.Socket[bytes]
    pub: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    key: bytes
    made_at: float
    heard_at: float
    attempt: int
    is_refused: bool = False


class Towers:
    """Sends a node's beacon to its towers, and receives from them.

    Args:
        beacon: what is announced.
        poller: is given the sockets to poll.

    Attributes:
        refusals: why towers do not let this node in, by the tower.
        is_announced: whether this node sends beacons, and connects to peers: both make it known.
    """

    def __init__(
        self,
        beacon: beacons.NodeBeacon,
        config: NodeOptions,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        security: Security,
    ) -> None:
        self.invalid_count = 0
        self.refusals: dict[str, str] = {}
        self.is_announced = True
        self._security = security
        self._beacon = beacons.encode_node_beacon(beacon)
        self._away_s = max(AWAY_S, 3 * config.beacon_interval_ms / 1000)
        self._limits = (MAX_HEADER_BYTES, config.high_water_mark)
        self._context = context
        self._poller = poller
        self._named = frozenset(config.tower)
        self._links = {tower: self._connected(tower, 0.0) for tower in config.tower}

    @property
    def known(self) -> list[TowerAddress]:
        """The towers: first those that the node was told of."""
        return [*self._links]

    @property
    def heard_at(self) -> dict[str, float]:
        """When each was heard last (monotonic), or when it was first to be; any thread may ask."""
        links = [*self._links.items()]
        return {str(tower): max(link.heard_at, link.made_at) for tower, link in links}

    def receive(
        self, now: float, polled: Container[zmq.Socket[bytes]]
    ) -> Iterator[tuple[str, list[bytes]]]:
        """What has come of nodes, and from which tower."""
        for tower, link in [*self._links.items()]:
            for frames in received(link.monitor) if link.monitor in polled else ():
                self._hear_of_connection(tower, link, frames)
            for frames in received(link.sub) if link.sub in polled else ():
                link.heard_at = now
                if frames[0] == beacons.TOWER:
                    self._learn(now, frames)
                else:
                    yield str(tower), frames

    def send(self, now: float) -> None:
        """Sends the beacon to towers that answer, and connects anew to those that are silent."""
        for tower, link in self._links.items():
            link.made_at = link.made_at or now
            is_silent = now >= max(link.made_at, link.heard_at) + self._away_s
            is_refused = link.is_refused and now >= link.made_at + REFUSED_S
            is_trusted = self._security.trusts_tower(link.key)
            if is_silent or is_refused or not is_trusted:
                # Without an open file left the old one is kept, and the next beacon tries again.
                with contextlib.suppress(zmq.ZMQError):
                    attempt = link.attempt + is_refused
                    self._links[tower] = self._connected(tower, now, link.heard_at, attempt)
                if self._links[tower] is not link or not is_trusted:
                    self._close(link)
            # A node that no tower answers fails to start, and must not be known then.
            if self.is_announced and link.heard_at and not self._links[tower].pub.closed:
                self._links[tower].pub.send_multipart(self._beacon)

    def _learn(self, now: float, frames: list[bytes]) -> None:
        try:
            found = TowerAddress(*beacons.decode_tower_address(frames))
        except ProtocolError:
            self.invalid_count += 1
            return
        if found in self._links:
            return
        learned = [each for each in self._links if each not in self._named]
        if len(learned) >= MAX_LEARNED:
            oldest = min(learned, key=lambda each: self._links[each].heard_at)
            if now < self._links[oldest].heard_at + self._away_s:
                return
            self._close(self._links.pop(oldest))
            self.refusals.pop(str(oldest), None)
        try:
            self._links[found] = self._connected(found, now)
        except zmq.ZMQError:  # a host that is none
            self.invalid_count += 1

    def _hear_of_connection(self, tower: TowerAddress, link: _Link, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.is_refused = False
            self.refusals.pop(str(tower), None)
        if not event["event"] & HANDSHAKE_FAILED:
            return
        why = why_refused(event["event"], event["value"], self._security)
        link.is_refused = bool(why) or self._security.own is not None
        if why and self.refusals.get(str(tower)) != why:
            self.refusals[str(tower)] = why
            _log.warning("tower %s does not let this node in: %s", tower, why)

    def _connected(
        self, tower: TowerAddress, now: float, heard_at: float = 0.0, attempt: int = 0
    ) -> _Link:
        key = self._security.tower_key(attempt)
        with contextlib.ExitStack() as made:
            pub = made.enter_context(new_socket(self._context, zmq.PUB, *self._limits))
            sub = made.enter_context(new_socket(self._context, zmq.SUB, *self._limits))
            for message_type in (beacons.BEACON, beacons.WELCOME, beacons.TOWER):
                sub.subscribe(message_type)
            for socket in (pub, sub):
                self._security.aim(socket, key)
            monitor = watched(self._context, sub)
            made.callback(close_watched, sub, monitor)
            sub.connect(tower.pub_endpoint)
            pub.connect(tower.sub_endpoint)
            made.pop_all()
        for socket in (sub, monitor):
            self._poller.register(socket, zmq.POLLIN)
        return _Link(sub, pub, monitor, key, now, heard_at, attempt)

    def _close(self, link: _Link) -> None:
        if link.pub.closed:
            return
        for socket in (link.sub, link.monitor):
            self._poller.register(socket, 0)
        close_watched(link.sub, link.monitor)
        link.pub.close()
