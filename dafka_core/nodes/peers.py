"""The peers of a node: their connections in both directions, kinds and subscriptions.

RFC 46, Interconnection Model: a node has a PUB and a SUB socket for its towers, and "a second
ZeroMQ SUB socket", which it connects to the XPUB socket of every node that it discovers.  Our
towers announce kinds, so that a node discovers only peers that it needs (``NEEDED_KINDS``).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from dafka_core.config.node_options import NodeOptions, TowerAddress
from dafka_core.errors import ProtocolError
from dafka_core.model.records import Neighbour
from dafka_core.nodes.addresses import is_elsewhere
from dafka_core.nodes.connection_quotas import OBSERVED_BYTES, ConnectionQuotas
from dafka_core.nodes.process_limits import PER_PEER, PER_PEER_APART, PeerRoom
from dafka_core.nodes.security import RefusedNodeError, Security, why_refused
from dafka_core.nodes.sockets import (
    HANDSHAKE_FAILED,
    WAITING_MESSAGES,
    AddressFamily,
    PeerRates,
    close_watched,
    connect,
    new_socket,
    received,
    watched,
)
from dafka_core.protocol import beacons
from dafka_core.protocol.beacons import KINDS, MAX_PEERS, NodeBeacon, PeerTable, endpoint_of
from dafka_core.protocol.limits import MAX_HEADER_BYTES, max_frame_bytes
from dafka_core.protocol.messages import DirectRecord, Message, RecordMessage
from dafka_core.protocol.record_limits import Announcement
from dafka_core.protocol.role import PeerNews
from dafka_core.security.permissions import Permissions
from dafka_core.system.hosts import is_loopback, parse_endpoint

# A node's connections to its towers.
#
# Each tower has its own sockets, so that the node knows which tower is silent.  Towers also
# announce further towers, which the node joins, too.


AWAY_S: Final = 15.0
"""Time of silence after which a node reconnects to a tower, repeatedly: it resolves the name again
then, since another machine may have it now."""

REFUSED_S: Final = 0.5
"""Minimum time between two connection attempts to a tower that refuses this node."""

MAX_LEARNED: Final = 16
"""Limit on towers learned from other towers, since any node may announce some.  A new tower
replaces the tower that has been silent for longest."""


_log = logging.getLogger("dafka.mesh")


@dataclass(slots=True)
class _Link:
    """The connection to one tower."""

    sub: zmq.Socket[bytes]
    pub: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    key: bytes
    made_at: float
    heard_at: float
    attempt: int
    is_refused: bool = False
    family: AddressFamily = field(default_factory=AddressFamily)
    announces_kinds: bool | None = None
    """None until the first subscription of the tower shows it."""


class Towers:
    """The towers of a node, which receive its beacon and send those of other nodes.

    Our towers subscribe to beacons with kinds first.  Others forward the subscriptions of nodes:
    nodes of such towers send and receive beacons in the form of C nodes.

    Args:
        beacon: the beacon to announce; without a kind, it has the form of C nodes for all towers.
        poller: polls the sockets.

    Attributes:
        refusals: the reasons of towers that do not let this node in, by tower.
        is_announced: whether this node sends beacons and connects to peers: both make it known.
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
        self._own = beacon
        self._away_s = max(AWAY_S, 3 * config.beacon_interval_ms / 1000)
        self._limits = (MAX_HEADER_BYTES, config.high_water_mark)
        self._context = context
        self._poller = poller
        self._named = frozenset(config.tower)
        self._links = {tower: self._connected(tower, 0.0) for tower in config.tower}

    @property
    def known(self) -> list[TowerAddress]:
        """Return the towers, beginning with the configured ones."""
        return [*self._links]

    @property
    def heard_at(self) -> dict[str, float]:
        """Return the time when each was last heard or connected to (monotonic); thread-safe."""
        links = [*self._links.items()]
        return {str(tower): max(link.heard_at, link.made_at) for tower, link in links}

    def receive(
        self, now: float, polled: Container[zmq.Socket[bytes]]
    ) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the received messages about nodes, each with its tower."""
        for tower, link in [*self._links.items()]:
            for frames in received(link.monitor) if link.monitor in polled else ():
                self._hear_of_connection(now, tower, link, frames)
            for frames in received(link.sub) if link.sub in polled else ():
                link.heard_at = now
                if frames[0] == beacons.TOWER:
                    self._learn(now, frames)
                else:
                    yield str(tower), frames

    def send(self, now: float) -> None:
        """Send the beacon to active towers; reconnect to silent, refusing and untrusted ones."""
        for tower, link in self._links.items():
            link.made_at = link.made_at or now
            is_silent = now >= max(link.made_at, link.heard_at) + self._away_s
            is_refused = link.is_refused and now >= link.made_at + REFUSED_S
            is_trusted = self._security.trusts_tower(link.key)
            if is_silent or is_refused or not is_trusted:
                # Without a free file descriptor the old link stays, and the next beacon retries.
                with contextlib.suppress(zmq.ZMQError):
                    attempt = link.attempt + is_refused
                    self._links[tower] = self._connected(tower, now, link.heard_at, attempt)
                if self._links[tower] is not link or not is_trusted:
                    self._close(link)
            current = self._links[tower]
            if current.pub.closed:
                continue
            self._receive_subscriptions(current)
            # A node fails to start if no tower answers, and must not be known then.
            if self.is_announced and link.heard_at and current.announces_kinds is not None:
                own = self._own if current.announces_kinds else self._own._replace(kind="")
                current.pub.send_multipart(beacons.encode_node_beacon(own))

    def answer(self, node: str) -> None:
        """Send the beacon to a new node alone, through the towers that support it."""
        told = beacons.encode_node_beacon(self._own._replace(to=node))
        for link in self._links.values():
            if self.is_announced and link.announces_kinds and not link.pub.closed:
                link.pub.send_multipart(told)

    def _receive_subscriptions(self, link: _Link) -> None:
        for octets, *_ in received(link.pub):
            is_new, prefix = octets[:1] == b"\1", octets[1:]
            if prefix == beacons.BEACON_WITH_KIND and self._own.kind:
                link.announces_kinds = True if is_new else None
                link.sub.unsubscribe(beacons.BEACON)
            elif is_new and link.announces_kinds is None:
                link.announces_kinds = False
                link.sub.subscribe(beacons.BEACON)

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
        except zmq.ZMQError:  # an invalid host
            self.invalid_count += 1

    def _hear_of_connection(
        self, now: float, tower: TowerAddress, link: _Link, frames: list[bytes]
    ) -> None:
        event = parse_monitor_message(frames)
        if event["event"] == zmq.EVENT_CONNECT_RETRIED:
            if link.family.switches(now, tower.sub_endpoint):
                for socket, at in (link.sub, tower.pub_endpoint), (link.pub, tower.sub_endpoint):
                    socket.disconnect(at)
                    connect(socket, at, is_ipv6=link.family.is_ipv6)
            return
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
            pub = made.enter_context(new_socket(self._context, zmq.XPUB, *self._limits))
            sub = made.enter_context(new_socket(self._context, zmq.SUB, *self._limits))
            for prefix in beacons.tower_subscriptions(self._own):
                sub.subscribe(prefix)
            for socket in (pub, sub):
                self._security.aim(socket, key)
            monitor = watched(self._context, sub)
            made.callback(close_watched, sub, monitor)
            connect(sub, tower.pub_endpoint)
            connect(pub, tower.sub_endpoint)
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


SAY_AGAIN_S: Final = 10.0
"""Time after which the same missing peers are logged again; it doubles each time."""

_ADDRESS_LENGTH: Final = 32
"""Length of the addresses of C nodes and ours."""


class Inbound:
    """The peers that have connected to a node.

    The subscriptions of a peer identify it: they include its own address.

    Args:
        own: the node's address.
        table: its peers.

    Attributes:
        endpoint: the endpoint that peers connect to.
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
        """Note the topic of a peer's subscription, which may be the peer's own address."""
        if len(topic) == _ADDRESS_LENGTH:
            if len(self._met) >= 2 * MAX_PEERS:
                self._met = {each for each in self._met if self._table.knows(each)}
            self._met.add(topic)

    def hear(self, endpoint: str) -> None:
        """Warn if a new peer is at an endpoint from which it cannot connect to this node."""
        if self._is_loopback and is_elsewhere(parse_endpoint(endpoint).host):
            self._is_loopback = False  # logged once
            _log.warning(
                "this node is at %s, where %s on another machine cannot connect to it: name the "
                "tower by its address in the network instead of 127.0.0.1, with host = auto, or "
                "set option host to this machine's address there",
                *(self.endpoint, endpoint),
            )

    def expect(self, endpoint: str) -> None:
        """Expect a connection from a peer, since the one to it has lasted for long enough."""
        if len(self._table.node_at(endpoint)) == _ADDRESS_LENGTH:
            self._expected[endpoint] = None

    def forget(self, endpoint: str) -> None:
        """Forget the peer at an endpoint."""
        self._expected.pop(endpoint, None)

    def has_met(self, node: str) -> bool:
        """Return True if a node has connected."""
        return node in self._met

    def unmet(self, nodes: Iterable[str]) -> list[str]:
        """Return those of the nodes that have not connected."""
        return sorted(set(nodes) - self._met)

    def report(self, now: float) -> None:
        """Log the peers that have not connected, although their beacons arrive."""
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


# The peers that connect to a node, their kinds and the topics that they follow: the data of a map.
#
# Subscriptions show all three: a node of ours announces its kind first, every node subscribes to
# its own address, and a follower of a topic subscribes to the topic's records.


MAX_TOPICS: Final = 100
"""Limit on the topics of one peer that a map shows, since peers choose them."""


class Neighbours:
    """The kinds and topics of the peers that connect to a node, taken from their subscriptions.

    Used by the loop's thread only.

    Args:
        table: the peers that towers announce.
        inbound: the peers that have connected.
    """

    def __init__(self, table: PeerTable, inbound: Inbound) -> None:
        self._table = table
        self._inbound = inbound
        self._kinds: dict[str, str] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._nodes: dict[int, str] = {}  # by the descriptor of the connection

    def apply(
        self,
        descriptor: int,
        introduced: Announcement | None,
        kind: type[Message] | None,
        topic: str,
        *,
        subscribed: bool,
    ) -> None:
        """Apply a subscription.

        Args:
            introduced: the announcement of a node in it, if any.
            kind: the type of the messages subscribed to.
            topic: their topic or address.
            subscribed: False if the subscription has ended.
        """
        if introduced is not None and subscribed:
            self._see(introduced.node, descriptor)
            self._kinds[introduced.node] = KINDS.get(introduced.letter, "")
            self._topics[introduced.node] = {}  # a node that reconnects subscribes again
        elif kind is DirectRecord and subscribed and len(topic) == _ADDRESS_LENGTH:
            self._see(topic, descriptor)
        elif kind is RecordMessage and (node := self._nodes.get(descriptor)) is not None:
            topics = self._topics.setdefault(node, {})
            if not subscribed:
                topics.pop(topic, None)
            elif len(topics) < MAX_TOPICS:
                topics[topic] = None

    def found(self) -> list[Neighbour]:
        """Return the peers that towers announce, in the order of their addresses."""
        return [
            Neighbour(
                node,
                self._kinds.get(node, ""),
                endpoint,
                self._inbound.has_met(node),
                (*self._topics.get(node, ()),),
            )
            for node, endpoint in sorted(self._table.addresses())
        ]

    def _see(self, node: str, descriptor: int) -> None:
        if max(len(self._kinds), len(self._topics)) >= 2 * MAX_PEERS:
            known = {node for node, _ in self._table.addresses()}
            self._kinds = {each: kind for each, kind in self._kinds.items() if each in known}
            self._topics = {each: said for each, said in self._topics.items() if each in known}
        if descriptor >= 0:
            self._nodes[descriptor] = node


FIRST_BEACONS_INTERVAL_S: Final = 0.02
"""Interval of beacons until a tower has returned one: a PUB socket drops messages that it sends
before the tower has accepted the connection."""

SETTLE_S: Final = 0.1
"""Time in which the existing nodes have connected to a new one.  It takes some 30 ms:
beacons at ``FIRST_BEACONS_INTERVAL_S`` until one has arrived, and their connecting."""

DOUBT_S: Final = 0.2
"""Time after the end of a connection in which ZeroMQ begins to reconnect, if at all: it gives up a
peer that has sent a frame above the limit, or data that is not ZeroMQ's.  Otherwise it begins at
once."""

UNREACHED_S: Final = 10.0
"""Time after which a peer is logged that sends beacons but has no connection; the time doubles for
each further report.  A busy or distant peer accepts a connection within a second."""

_ROUND_TRIPS: Final[dict[object, int]] = {zmq.EVENT_CONNECTED: 1, zmq.EVENT_HANDSHAKE_SUCCEEDED: 3}
"""Minimum number of round trips since a connection was begun.  Both events are used: behind a
relay, the first one shows only the distance to the relay."""

_ALL: Final = ""
"""The key of the one socket for all peers."""


@dataclass(slots=True)
class _Unreached:
    """A peer to which no connection has lasted for ``UNREACHED_S``."""

    since: float
    due: float  # time of the next report
    reached_at: float = inf  # start of the current connection, if any
    tried_at: float = 0.0  # start of the last connection attempt
    has_ended: bool = False  # a connection has ended since then, or has failed
    family: AddressFamily = field(default_factory=AddressFamily)


class Peers:
    """The peers that a node needs, and the connections to them.

    Args:
        beacon: the beacon to announce to the towers.
        prefixes: the subscriptions at every peer.
        poller: polls the sockets.
        tell_apart: whether each peer has its own socket, so that senders are known.
    """

    def __init__(
        self,
        beacon: beacons.NodeBeacon,
        prefixes: Iterable[bytes],
        config: NodeOptions,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        tell_apart: bool,
        security: Security,
        quotas: ConnectionQuotas,
    ) -> None:
        self.table = beacons.PeerTable(
            beacon.node, beacon.port, expiry_s=config.peer_expiry_ms / 1000
        )
        self.rates = PeerRates(config.max_peer_rate_bytes)
        """Their sending rates."""
        apart = tell_apart or security.own is not None or config.max_peer_rate_bytes > 0
        self.room = PeerRoom(beacon.port, PER_PEER_APART if apart else PER_PEER)
        """Room for further peers; peers without it are refused."""
        self.inbound = Inbound(beacon, self.table)
        """The peers that connect to this node."""
        self._own = beacon.node
        self.neighbours = Neighbours(self.table, self.inbound)
        """Their kinds and topics."""
        self.tower_found = False
        """True once a tower has answered."""
        self.beacon_due = 0.0
        self.invalid_count = 0
        """Beacons that were invalid, or named an endpoint to which ZeroMQ cannot connect."""
        self.renewed: Counter[str] = Counter()
        """Number of renewals of a connection that ZeroMQ had given up, by endpoint."""
        self.renewal_count = 0
        """Number of all renewals, including those of peers that are gone."""
        self._max_frame_bytes = max_frame_bytes(config.max_record_bytes)
        self._new: dict[str, None] = {}  # endpoints to connect to
        self._news: list[PeerNews] = []
        self._doubtful: dict[str, float] = {}  # ended connections, and the time of their end
        self._unreached: dict[str, _Unreached] = {}
        self._monitors: dict[str, zmq.Socket[bytes]] = {}
        self._context = context
        self._config = config
        self._poller = poller
        self.security = security
        self._quotas = quotas
        quotas.left_alone = self.rates.paused
        self._refusals: dict[str, str] = {}  # why nodes do not let this node in, by endpoint
        self.towers = Towers(beacon, config, context, poller, security)
        self._prefixes = dict.fromkeys(prefixes)
        self._polled_for: int = zmq.POLLIN
        self._sockets = {} if apart else {_ALL: self._new_socket(_ALL)}

    def ready(
        self, polled: Container[zmq.Socket[bytes]]
    ) -> Iterator[tuple[str, zmq.Socket[bytes], str, Permissions]]:
        """Yield the endpoint, socket, node and permissions for each socket with messages.

        If the node is unknown, it is empty, and everything is permitted.
        """
        for endpoint, socket in self._sockets.items():
            if socket in polled:
                node = self.table.node_at(endpoint) if endpoint != _ALL else ""
                yield endpoint, socket, node, self.security.sender(endpoint)

    @property
    def due(self) -> float:
        """Return the time of the next action."""
        return min(self.beacon_due, self.rates.deadline())

    def announce(self, now: float) -> None:
        """Make this node known from now on."""
        self.towers.is_announced, self.beacon_due = True, now

    def on_received(self, now: float, endpoint: str, node: str, size_bytes: int) -> None:
        """Count received bytes, and pause a peer that has sent too much."""
        if self.rates.add(now, endpoint, node, size_bytes):
            self._poller.register(self._sockets[endpoint], 0)

    def subscribe(self, prefixes: Iterable[bytes]) -> None:
        """Subscribe at every current and later peer."""
        # Once each: a socket counts subscriptions, and one unsubscription would leave the others.
        for prefix in dict.fromkeys(prefixes):
            if prefix in self._prefixes:
                continue
            self._prefixes[prefix] = None
            for socket in self._sockets.values():
                socket.subscribe(prefix)

    def unsubscribe(self, prefixes: Iterable[bytes]) -> None:
        """Cancel subscriptions at every peer."""
        for prefix in prefixes:
            self._prefixes.pop(prefix, None)
            for socket in self._sockets.values():
                socket.unsubscribe(prefix)

    def set_receiving(self, receiving: bool) -> None:
        """Set whether to receive from peers.

        Otherwise messages wait in ZeroMQ's queues, which drop messages when they are full.
        """
        self._quotas.is_paused = not receiving
        polled_for = zmq.POLLIN if receiving else 0
        if polled_for != self._polled_for:
            self._polled_for = polled_for
            for endpoint, socket in self._sockets.items():
                if endpoint not in self.rates.paused:
                    self._poller.register(socket, polled_for)

    def receive_beacons(self, now: float, polled: Container[zmq.Socket[bytes]]) -> None:
        """Receive the messages of towers, and resume paused peers that are due."""
        for endpoint in self.rates.take_due(now):
            self._poller.register(self._sockets[endpoint], self._polled_for)
        for tower, frames in self.towers.receive(now, polled):
            if frames == [beacons.WELCOME]:
                self.tower_found = True
                self.table.announced = False  # a restarted tower knows no nodes
                self.beacon_due = now
                continue
            try:
                beacon = self._opened(now, frames)
                is_new = self.table.is_new(beacon)
                if is_new and not self.room.look(now, len(self.table)):
                    self.room.refuse(now, beacon.node, beacon.endpoint)
                elif self.table.hear(now, beacon, tower):
                    self.room.refused.pop(beacon.endpoint, None)
                    self.inbound.hear(beacon.endpoint)
                    self._meet(now, beacon)
                elif self.table.replaced:
                    self.beacon_due = now
                if is_new:
                    self._news.append(PeerNews(beacon.node, beacon.endpoint))
                if beacon.endpoint not in self.table:
                    self.security.claims.forget(beacon.endpoint)
            except RefusedNodeError:
                continue  # already counted as refused
            except ProtocolError:
                self.invalid_count += 1

    def _meet(self, now: float, beacon: beacons.TowerBeacon) -> None:
        text = "%(node)s: peer %(peer)s has come, at %(endpoint)s"
        self._tell("peer_came", text, beacon.node, beacon.endpoint)
        self._new[beacon.endpoint] = None
        # The new peer should receive this node's beacon at once.
        if beacon.kind in ("", beacons.UNKNOWN_KIND):
            self.beacon_due = now
        elif beacon.kind != beacons.ANSWER:
            self.towers.answer(beacon.node)

    def _opened(self, now: float, frames: list[bytes]) -> beacons.TowerBeacon:
        open_frames, key = self.security.opened(frames)
        beacon = beacons.decode_tower_beacon(open_frames)
        self.security.check_node(beacon.node, key)
        if beacon.node == self._own:
            # If another node has announced itself at this node's own endpoint, this node would
            # connect to itself, and take its own messages for those of the other node.
            return beacon
        if self.security.expect(now, beacon.endpoint, key) and beacon.endpoint in self.table:
            self._refusals[beacon.endpoint] = "it has another key than before"
            if beacon.endpoint not in self._new:
                self._doubtful[beacon.endpoint] = -inf
        return beacon

    def take_news(self) -> list[PeerNews]:
        """Return the news of peers since the last call."""
        news, self._news = self._news, []
        return news

    def connect(self, now: float, polled: Container[zmq.Socket[bytes]]) -> None:
        """Connect to new peers, and reconnect to those that ZeroMQ has given up."""
        for monitor in self._monitors.values():
            if monitor in polled:
                self._hear_of_connections(now, monitor)
        if self._quotas.unfinished:
            return
        for endpoint in [each for each, at in self._doubtful.items() if now >= at + DOUBT_S]:
            self._renew(now, endpoint)
        # Not while ZeroMQ may have freed a connection that it remembers by its memory address: a
        # new connection may have the same address, and ZeroMQ would end it instead of the old one.
        while self._new and not self._doubtful and self.towers.is_announced:
            endpoint, _ = self._new.popitem()
            try:
                self._connect(now, endpoint)
            except zmq.ZMQError:
                self.table.forget(endpoint)
                self.security.claims.forget(endpoint)
                self.invalid_count += 1

    def send_beacon(self, now: float) -> list[str]:
        """Send the beacon if it is due, and disconnect from silent peers.

        Returns the lost nodes, which are known at no other endpoint.
        """
        if now < self.beacon_due or self._quotas.unfinished:
            return []
        interval_s = self._config.beacon_interval_ms / 1000
        if self.tower_found and not self.table.announced:
            interval_s = min(interval_s, FIRST_BEACONS_INTERVAL_S)
        self.beacon_due = now + interval_s
        self.towers.send(now)
        for endpoint in self._doubtful:
            self.beacon_due = min(self.beacon_due, self._doubtful[endpoint] + DOUBT_S)
        silent = self.table.expire(now)
        for node, endpoint in silent:
            text = "%(node)s: peer %(peer)s at %(endpoint)s has gone, or its beacons do not come"
            self._tell("peer_went", text, node, endpoint)
            self._disconnect(endpoint)
            self.security.claims.forget(endpoint)
            self._refusals.pop(endpoint, None)
            del self.renewed[endpoint]
        self._say_who_is_unreached(now)
        self.inbound.report(now)
        self.room.look(now, len(self.table))
        self.room.report(now, len(self.table), self._config.peer_expiry_ms / 1000)
        lost = [*(node for node, _ in silent), *self.table.replaced]
        self.table.replaced.clear()
        return [node for node in lost if not self.table.knows(node)]

    def _tell(self, event: str, text: str, peer: str, endpoint: str) -> None:
        facts = {"node": self._own, "peer": peer, "endpoint": endpoint}
        _log.info(text, facts, extra={"event": event})

    def _new_socket(self, endpoint: str) -> zmq.Socket[bytes]:
        most = self._config.high_water_mark
        most = min(most, WAITING_MESSAGES) if self._config.max_peer_rate_bytes else most
        socket = new_socket(self._context, zmq.SUB, self._max_frame_bytes, most)
        self._monitors[endpoint] = monitor = watched(self._context, socket)
        self._poller.register(monitor, zmq.POLLIN)
        for prefix in self._prefixes:
            socket.subscribe(prefix)
        self._poller.register(socket, self._polled_for)
        return socket

    def _connect(self, now: float, endpoint: str) -> None:
        shared = self._sockets.get(_ALL)
        socket = shared or self._new_socket(endpoint)
        if shared is None:
            self._sockets[endpoint] = socket
        self.security.aim_at(socket, endpoint)
        try:
            connect(socket, endpoint)
        except zmq.ZMQError:
            if shared is None:
                self._disconnect(endpoint)
            raise
        self._unreached[endpoint] = _Unreached(now, now + UNREACHED_S, tried_at=now)

    def _disconnect(self, endpoint: str) -> None:
        self.security.claims.prove(endpoint, is_proved=False)
        self._doubtful.pop(endpoint, None)
        self._unreached.pop(endpoint, None)
        self.rates.forget(endpoint)
        self.inbound.forget(endpoint)
        if endpoint in self._new:
            del self._new[endpoint]
        elif _ALL in self._sockets:
            self._sockets[_ALL].disconnect(endpoint)
        elif endpoint in self._sockets:
            pair = self._sockets.pop(endpoint), self._monitors.pop(endpoint)
            self._quotas.unfinished.discard(pair[0])
            self._poller.register(pair[0], 0)
            self._poller.register(pair[1], 0)
            close_watched(*pair)

    def _hear_of_connections(self, now: float, monitor: zmq.Socket[bytes]) -> None:
        for frames in received(monitor):
            event = parse_monitor_message(frames)
            endpoint = event["endpoint"].decode()
            unreached = self._unreached.get(endpoint)
            round_trips = _ROUND_TRIPS.get(event["event"])
            self._apply_quotas(event["event"], event["value"], endpoint)
            if round_trips is not None:
                if unreached is not None and unreached.tried_at:
                    node, took_s = self.table.node_at(endpoint), now - unreached.tried_at
                    self._news.append(PeerNews(node, round_trip_s=took_s / round_trips))
                if unreached is not None and event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    unreached.reached_at = now
                if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._refusals.pop(endpoint, None)
                    self.security.claims.prove(endpoint, is_proved=True)
            elif event["event"] & HANDSHAKE_FAILED:
                self._hear_of_refusal(endpoint, event["event"], event["value"])
            elif event["event"] == zmq.EVENT_CONNECT_RETRIED:
                self._doubtful.pop(endpoint, None)
                if unreached is not None:
                    unreached.tried_at = now
                    self._try_other_family(now, endpoint, unreached.family)
            elif endpoint in self.table:
                self.security.claims.prove(endpoint, is_proved=False)
                self._doubtful[endpoint] = now + (REFUSED_S if endpoint in self._refusals else 0)
                if unreached is None or not unreached.has_ended:
                    # A node that has ended is still announced for a while.
                    unreached = _Unreached(now, now + UNREACHED_S, has_ended=True)
                    self._unreached[endpoint] = unreached
                unreached.reached_at = inf
                self.beacon_due = min(self.beacon_due, now + DOUBT_S)

    def _try_other_family(self, now: float, endpoint: str, family: AddressFamily) -> None:
        if family.switches(now, endpoint):
            socket = self._sockets.get(_ALL) or self._sockets[endpoint]
            socket.disconnect(endpoint)
            self.security.aim_at(socket, endpoint)
            connect(socket, endpoint, is_ipv6=family.is_ipv6)

    def _apply_quotas(self, event: int, descriptor: int, endpoint: str) -> None:
        if event == zmq.EVENT_CONNECTED:
            sends_records = self.security.sender(endpoint).may_send_records
            limit_bytes = OBSERVED_BYTES + (self._max_frame_bytes if sends_records else 0)
            self._quotas.follow(descriptor, endpoint, limit_bytes)
        elif event == zmq.EVENT_DISCONNECTED:
            self._quotas.forget(descriptor, endpoint)

    def _hear_of_refusal(self, endpoint: str, event: int, value: int) -> None:
        why = why_refused(event, value, self.security)
        if why and endpoint in self.table and self._refusals.get(endpoint) != why:
            self._refusals[endpoint] = why
            node = self.table.node_at(endpoint)
            _log.warning("%s at %s does not let this node in: %s", node, endpoint, why)

    def _say_who_is_unreached(self, now: float) -> None:
        for endpoint, peer in [*self._unreached.items()]:
            if now >= peer.reached_at + UNREACHED_S:
                del self._unreached[endpoint]
                self.inbound.expect(endpoint)
            elif peer.due <= now < peer.reached_at and self.table.is_heard(now, endpoint):
                peer.due = 2 * now - peer.since
                _log.warning(
                    "%s at %s keeps no connection, %.0f s long, though its beacons come: nothing "
                    "of it arrives here. It may have reached its limit of open files, then its log "
                    "says which limit it needs; or something between the two drops packets",
                    *(self.table.node_at(endpoint), endpoint, now - peer.since),
                )

    def _renew(self, now: float, endpoint: str) -> None:
        self._disconnect(endpoint)
        try:
            self._connect(now, endpoint)
        except zmq.ZMQError:  # no free file descriptor: retry soon
            self._doubtful[endpoint] = now
            self.room.refuse(now, self.table.node_at(endpoint), endpoint)
            return
        self.room.refused.pop(endpoint, None)
        if endpoint in self._refusals:  # already logged
            return
        self.renewed[endpoint] += 1
        self.renewal_count += 1
        count = self.renewed[endpoint]
        if count & (count - 1) == 0:  # the first, second, fourth time: a peer may repeat it
            _log.warning(
                "the connection to %s at %s had ended and is made anew (%d times so far): the peer "
                "has sent a frame above %d bytes, or none of ZeroMQ's. If the records are meant to "
                "be so large, raise option max_record_bytes = %d",
                *(self.table.node_at(endpoint), endpoint, count),
                *(self._max_frame_bytes, self._config.max_record_bytes),
            )
