"""The peers of a node: its connections to them, and theirs to it.

RFC 46, Interconnection Model: a node connects "a second ZeroMQ SUB socket" to the XPUB socket of
every node that it discovers.  Our towers announce kinds, so that a node discovers only peers that
it needs (``NEEDED_KINDS``).  A peer is known by its endpoint:

| event | action |
|---|---|
| a tower announces it for the first time | connect to it, and send it this node's beacon |
| its connection's handshake succeeds | it has proved its key (``Claims``) |
| its connection ends | ZeroMQ reconnects; if ZeroMQ has given it up, connect anew |
| a tower announces it with another key | connect anew, with that key |
| its towers are heard, and its beacons are missing | disconnect from it: it is lost |

RFC 46 gives a node one PUB and one SUB socket for its towers.  Each tower has its own pair here, so
that the node knows which tower is silent.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

import zmq
from zmq import SyncContext as Context
from zmq import SyncSocket as Socket

from dafka_core.config.node_options import NodeOptions, TowerAddress
from dafka_core.errors import ProtocolError
from dafka_core.model.records import Neighbour
from dafka_core.nodes import sockets
from dafka_core.nodes.connection_quotas import (
    OBSERVED_BYTES,
    Connection,
    ConnectionQuotas,
    ends_of,
    monitor_events,
)
from dafka_core.nodes.security import RefusedNodeError, Security
from dafka_core.protocol import beacons
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import MAX_HEADER_BYTES, max_frame_bytes
from dafka_core.protocol.role import PeerNews
from dafka_core.security.permissions import Permissions
from dafka_core.security.throttles import LogThrottle
from dafka_core.system.files import open_files_limit
from dafka_core.system.hosts import HostPort, numeric_host

AWAY_S: Final = 15.0
"""Time of silence after which a node reconnects to a tower, repeatedly: it resolves the name again
then, since another machine may have it now."""

REFUSED_S: Final = 0.5  # minimum time between two attempts to connect to a node that refuses this

# Interval of beacons until a tower has returned one: a PUB socket drops messages that it sends
# before the tower has accepted the connection.
FIRST_BEACONS_INTERVAL_S: Final = 0.02
CONNECT_S: Final = 0.1  # in which the existing nodes connect to a new one; it takes some 30 ms

# Time after the end of a connection in which ZeroMQ begins to reconnect, if at all: it gives up a
# peer that has sent a frame above the limit, or data that is not ZeroMQ's.
DOUBT_S: Final = 0.2

# Time after which a peer is logged that sends beacons but has no connection.  A busy or distant
# peer accepts a connection within a second.
UNREACHED_S: Final = 10.0

_ALL: Final = ""  # the key of the one socket for all peers
MAX_TOPICS: Final = 100  # of one peer that a map shows, since peers choose them
MAX_KNOWN: Final = 2 * beacons.MAX_PEERS  # nodes that have connected: peers choose their addresses
_ADDRESS_LENGTH: Final = 32  # of the addresses of C nodes and ours


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
    family: sockets.AddressFamily = field(default_factory=sockets.AddressFamily)
    announces_kinds: bool | None = None  # None until the first subscription of the tower shows it


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
        self.away_s = max(AWAY_S, 3 * config.beacon_interval_ms / 1000)
        self._begun_at = 0.0
        self._high_water_mark = config.high_water_mark
        self._context = context
        self._poller = poller
        self._links = {tower: self._connected(tower, 0.0) for tower in config.tower}

    @property
    def heard_at(self) -> dict[str, float]:
        """Return the time of each tower's last message (monotonic); thread-safe.

        It is the time of the first beacon if the tower has sent nothing yet.
        """
        links = [*self._links.items()]
        return {str(tower): link.received_at or self._begun_at for tower, link in links}

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
            # Before events, which may disconnect: see ``Peers.update``.
            for frames in sockets.received(link.sub) if link.sub in polled else ():
                link.received_at = now
                yield str(tower), frames
            for socket, monitor in link.monitors.items():
                for event, value, _ in monitor_events(monitor) if monitor in polled else ():
                    self._receive_event(now, tower, link, socket, event, value)

    def send(self, now: float) -> None:
        """Send the beacon to active towers; reconnect to silent, refusing and untrusted ones."""
        self._begun_at = self._begun_at or now
        for tower, link in self._links.items():
            link.made_at = link.made_at or now
            is_silent = now >= max(link.made_at, link.received_at) + self.away_s
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
        for frame, *_ in sockets.received(link.pub):
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
        elif event & sockets.HANDSHAKE_FAILED:
            why = self._security.report_refusal(event, value, f"tower {tower}")
            link.refusal = why or link.refusal
            if why or self._security.own is not None:
                link.refused.add(socket)

    def _connected(
        self, tower: TowerAddress, now: float, received_at: float = 0.0, attempt: int = 0
    ) -> _Link:
        key, most = self._security.tower_key(attempt), self._high_water_mark
        with contextlib.ExitStack() as made:
            pub, sub = (
                made.enter_context(sockets.new_socket(self._context, kind, MAX_HEADER_BYTES, most))
                for kind in (zmq.XPUB, zmq.SUB)
            )
            for prefix in beacons.tower_subscriptions(self._own):
                sub.subscribe(prefix)
            monitors = {}
            for socket in (sub, pub):
                self._security.expect_key(socket, key)
                monitors[socket] = monitor = sockets.watched(self._context, socket)
                made.callback(sockets.close_watched, socket, monitor)
            sockets.connect(sub, tower.pub_endpoint)
            sockets.connect(pub, tower.sub_endpoint)
            made.pop_all()
        for socket in (sub, *monitors.values()):
            self._poller.register(socket, zmq.POLLIN)
        return _Link(sub, pub, monitors, key, now, received_at, attempt=attempt)

    def _close(self, link: _Link) -> None:
        if not link.pub.closed:
            for socket in (link.sub, *link.monitors.values()):
                self._poller.register(socket, 0)
            for socket, monitor in link.monitors.items():
                sockets.close_watched(socket, monitor)


@dataclass(slots=True)
class _Connection:
    """The connection to a peer."""

    since: float = inf  # begun, or ended for the first time since it was settled
    made_at: float = inf
    ends: int = 0  # since it was settled
    refusal: str = ""  # why the peer does not let this node in
    family: sockets.AddressFamily = field(default_factory=sockets.AddressFamily)

    def begin(self, now: float) -> None:
        self.since, self.ends = now, 0
        self.made_at, self.family = inf, sockets.AddressFamily()

    def is_settled(self, now: float) -> bool:
        return now >= self.made_at + UNREACHED_S


class Peers:
    """The peers that a node needs, connected; with ``socket_per_peer`` senders are known."""

    def __init__(
        self,
        beacon: beacons.NodeBeacon,
        config: NodeOptions,
        context: Context,
        poller: zmq.Poller,
        socket_per_peer: bool,
        security: Security,
        quotas: ConnectionQuotas,
        traffic: sockets.MeshTraffic,
    ) -> None:
        apart = socket_per_peer or security.own is not None
        expiry_s = config.peer_expiry_ms / 1000
        self.table = beacons.PeerTable(
            beacon.node, beacon.port, host=beacon.host, expiry_s=expiry_s
        )
        self.inbound = Inbound(beacon, self.table)
        self.towers = Towers(beacon, config, context, poller, security)
        self._security = security
        self.tower_found = False  # until a tower answers
        self.beacon_due = 0.0
        self._unannounced_since = 0.0
        self.renewal_count = 0  # connections made anew after ZeroMQ had given a peer up
        self._own = beacon.node
        self._max_frame_bytes = max_frame_bytes(config.max_record_bytes)
        self._connections: dict[str, _Connection] = {}  # by endpoint, of each peer in the table
        self._new: dict[str, None] = {}  # endpoints to connect to
        self._doubtful: dict[str, float] = {}  # ended connections, and when to make them anew
        self._named: dict[str, str] = {}  # announced endpoints by numeric ones
        self._news: list[PeerNews] = []
        self._context = context
        self._config = config
        self._poller = poller
        self._quotas = quotas
        self._traffic = traffic
        self._prefixes: dict[bytes, None] = {}  # the subscriptions at every peer
        self._polled_for: int = zmq.POLLIN
        self._monitors: dict[str, Socket] = {}
        self._throttle = LogThrottle()
        self._sockets = {} if apart else {_ALL: self._new_socket(_ALL)}

    @property
    def due(self) -> float:
        """Return the time of the next action."""
        return min([self.beacon_due, *self._doubtful.values()])

    def announce(self, now: float) -> None:
        """Make this node known from now on."""
        self.towers.is_announced = True
        self.beacon_due = self._unannounced_since = now

    def update(self, now: float, polled: Container[Socket]) -> list[PeerNews]:
        """Receive beacons, make and end connections, and send the beacon if it is due.

        Returns the news of peers.  Not called between ``poll`` and ``recv``:
        poll takes a message's first frame from the queue, a disconnect drops the others, and recv
        then aborts the process (a defect of libzmq).
        """
        for tower, frames in self.towers.receive(now, polled):
            self._receive_beacon(now, tower, frames)
        for monitor in self._monitors.values():
            for event in monitor_events(monitor) if monitor in polled else ():
                self._receive_event(now, *event)
        if not self._quotas.unfinished:
            self._connect_all(now)
            if now >= self.beacon_due:
                self._send_beacon(now)
        news, self._news = self._news, []
        return news

    # -- receiving from peers --------------------------------------------------------------------

    def ready(self, polled: Container[Socket]) -> Iterator[tuple[Socket, str, Permissions]]:
        """Yield socket, node (if known) and permissions for sockets with messages."""
        for endpoint, socket in self._sockets.items():
            if socket in polled:
                node = self.table.node_at(endpoint) if endpoint != _ALL else ""
                yield socket, node, self._security.sender(endpoint)

    def subscribe(self, prefixes: Iterable[bytes]) -> None:
        """Subscribe at every current and later peer."""
        # Once each: a socket counts subscriptions, and one unsubscription would leave the others.
        for prefix in dict.fromkeys(prefixes):
            if prefix not in self._prefixes:
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
        """Set whether to receive from peers; otherwise ZeroMQ's queues fill, and then drop."""
        polled_for = zmq.POLLIN if receiving else 0
        if polled_for != self._polled_for:
            self._polled_for, self._quotas.is_paused = polled_for, not receiving
            for socket in self._sockets.values():
                self._poller.register(socket, polled_for)

    # -- beacons ---------------------------------------------------------------------------------

    def _receive_beacon(self, now: float, tower: str, frames: list[bytes]) -> None:
        if frames == [beacons.WELCOME]:
            self.tower_found = True
            self.table.announced = False  # a restarted tower knows no nodes
            self.beacon_due = self._unannounced_since = now
            return
        try:
            beacon, is_other_key = self._security.announced(now, frames)
        except ProtocolError as error:
            is_forbidden = isinstance(error, RefusedNodeError)
            reason = sockets.FORBIDDEN if is_forbidden else sockets.INVALID_BEACON
            self._traffic.refuse(reason, str(error))
            return
        endpoint, is_new = beacon.endpoint, self.table.is_new(beacon)
        if is_other_key and (connection := self._connections.get(endpoint)) is not None:
            connection.refusal = "it has another key than before"
            if endpoint not in self._new:
                self._doubtful[endpoint] = now
        if is_new:
            self._news.append(PeerNews(beacon.node, endpoint))
        if self.table.hear(now, beacon, tower):
            self._add(now, beacon)
        elif self.table.replaced:
            self.beacon_due = now
        elif endpoint == self.inbound.endpoint and beacon.node != self._own:
            text = "no connection to node %s, at this node's own endpoint %s (options host, port)"
            if self._throttle.is_new(beacon.node):
                _log.warning(text, beacon.node, endpoint)
        if endpoint not in self.table:
            self._security.claims.forget(endpoint)

    def _add(self, now: float, beacon: beacons.TowerBeacon) -> None:
        self._log("peer_came", "has come, at %(endpoint)s", beacon.node, beacon.endpoint)
        self._connections[beacon.endpoint] = _Connection()
        self._new[beacon.endpoint] = None
        # The new peer should receive this node's beacon at once.
        if beacon.kind in ("", beacons.UNKNOWN_KIND):
            self.beacon_due = now
        elif beacon.kind != beacons.ANSWER:
            self.towers.answer(beacon.node)

    def _send_beacon(self, now: float) -> None:
        """Send the beacon; note the nodes that are lost, and known at no other endpoint."""
        interval_s = self._config.beacon_interval_ms / 1000
        is_new = self.tower_found and not self.table.announced
        if is_new and now < self._unannounced_since + UNREACHED_S:
            interval_s = min(interval_s, FIRST_BEACONS_INTERVAL_S)
        elif is_new and self.towers.is_announced and self._throttle.is_new("unannounced"):
            places = ", ".join(f"{each.host}:{each.sub_port}" for each in self._config.tower)
            text = "no tower returns the beacons of this node (%s): let firewalls pass this port"
            _log.warning(text, places)
        self.beacon_due = now + interval_s
        self.towers.send(now)
        silent = self.table.expire(now)
        for node, endpoint in silent:
            text = "at %(endpoint)s has gone, or its beacons do not come"
            self._log("peer_went", text, node, endpoint)
            self._forget(endpoint)
        if silent:
            known = self._connections
            self._named = {at: each for at, each in self._named.items() if each in known}
        self._check_connections(now)
        lost = [*(node for node, _ in silent), *self.table.replaced]
        self.table.replaced.clear()
        present = self.table.nodes() if lost else set[str]()
        self._news += [PeerNews(node, is_lost=True) for node in lost if node not in present]

    def _log(self, event: str, text: str, peer: str, endpoint: str) -> None:
        facts = {"node": self._own, "peer": peer, "endpoint": endpoint}
        _log.info(f"%(node)s: peer %(peer)s {text}", facts, extra={"event": event})

    # -- connections to peers --------------------------------------------------------------------

    def _connect_all(self, now: float) -> None:
        """Connect to new peers, and reconnect to those that ZeroMQ has given up."""
        for endpoint in [each for each, at in self._doubtful.items() if now >= at]:
            self._disconnect(endpoint)
            self._new[endpoint] = None
            if not self._connections[endpoint].refusal:  # which is logged already
                self._count_renewal(endpoint)
        # Not while the socket of all peers may have freed a connection that it remembers by its
        # memory address: a new one may have the same address, and ZeroMQ would end that.
        waits = bool(self._doubtful) and _ALL in self._sockets
        while self._new and not waits and self.towers.is_announced:
            endpoint = next(iter(self._new))
            try:
                self._connect(now, endpoint)
                del self._new[endpoint]
            except zmq.ZMQError:  # no free file descriptor: its next beacon announces it anew
                if self._throttle.is_new("files"):
                    text = "no connection to a peer at %s: all %d files are open (ulimit -n)"
                    _log.error(text, endpoint, open_files_limit())
                del self.table[endpoint]
                self._forget(endpoint)

    def _count_renewal(self, endpoint: str) -> None:
        self.renewal_count += 1
        if self._throttle.is_new(f"renewed {endpoint}"):
            _log.warning(
                "the connection to %s at %s had ended and is made anew: the peer has sent a frame "
                "above %d bytes, or none of ZeroMQ's. If the records are meant to be so large, "
                "raise option max_record_bytes = %d",
                *(self.table.node_at(endpoint), endpoint),
                *(self._max_frame_bytes, self._config.max_record_bytes),
            )

    def _new_socket(self, endpoint: str) -> Socket:
        most = self._config.high_water_mark
        socket = sockets.new_socket(self._context, zmq.SUB, self._max_frame_bytes, most)
        self._monitors[endpoint] = monitor = sockets.watched(self._context, socket)
        self._poller.register(monitor, zmq.POLLIN)
        for prefix in self._prefixes:
            socket.subscribe(prefix)
        self._poller.register(socket, self._polled_for)
        return socket

    def _connect(self, now: float, endpoint: str) -> None:
        socket = self._sockets.get(_ALL)
        if socket is None:
            socket = self._sockets[endpoint] = self._new_socket(endpoint)
        self._security.expect_key(socket, self._security.claims.key_at(endpoint))
        try:
            sockets.connect(socket, endpoint)
        except zmq.ZMQError:
            self._close_socket(endpoint)
            raise
        self._connections[endpoint].begin(now)

    def _disconnect(self, endpoint: str) -> None:
        self._security.claims.prove(endpoint, is_proved=False)
        self._doubtful.pop(endpoint, None)
        if endpoint in self._new:
            del self._new[endpoint]
        elif _ALL in self._sockets:
            self._sockets[_ALL].disconnect(endpoint)
        else:
            self._close_socket(endpoint)

    def _close_socket(self, endpoint: str) -> None:
        """Close the socket of a peer that has its own."""
        if endpoint in self._sockets:
            socket, monitor = self._sockets.pop(endpoint), self._monitors.pop(endpoint)
            self._quotas.unfinished.discard(socket)
            self._poller.register(socket, 0)
            self._poller.register(monitor, 0)
            sockets.close_watched(socket, monitor)

    def _forget(self, endpoint: str) -> None:
        """Forget a peer that is not in the table any more."""
        self._disconnect(endpoint)
        self._security.claims.forget(endpoint)
        del self._connections[endpoint]

    def _receive_event(self, now: float, event: int, value: int, endpoint: str) -> None:
        if endpoint not in self._connections:
            # ZeroMQ reconnects to a host name, but its events contain the address from then on.
            endpoint = self._named.get(endpoint, endpoint)
        if event == zmq.EVENT_CONNECTED:
            sender = self._security.sender(endpoint)
            limit_bytes = OBSERVED_BYTES + self._max_frame_bytes * sender.may_send_records
            self._quotas.follow(value, endpoint, limit_bytes, sender)
        connection = self._connections.get(endpoint)
        if connection is None or endpoint in self._new:  # of an earlier connection
            return
        node = self.table.node_at(endpoint)
        match event:
            case zmq.EVENT_CONNECTED:
                if address := ends_of(value)[1]:
                    self._named[f"tcp://{HostPort(numeric_host(address), address[1])}"] = endpoint
                self._news.append(PeerNews(node, accepts=True))
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._news.append(PeerNews(node, accepts=True))
                connection.made_at, connection.refusal = now, ""
                self._security.claims.prove(endpoint, is_proved=True)
            case zmq.EVENT_CONNECT_RETRIED:
                self._doubtful.pop(endpoint, None)
                if not self._quotas.unfinished:
                    socket = self._sockets.get(_ALL) or self._sockets[endpoint]
                    connection.family.retry(now, (socket, endpoint))
            case zmq.EVENT_DISCONNECTED:
                self._security.claims.prove(endpoint, is_proved=False)
                self._doubtful[endpoint] = now + DOUBT_S + (REFUSED_S if connection.refusal else 0)
                if connection.is_settled(now) or not connection.ends:
                    # A node that has ended is still announced for a while.
                    connection.begin(now)
                connection.ends += 1
                connection.made_at = inf
            case _ if event & sockets.HANDSHAKE_FAILED:
                why = self._security.report_refusal(event, value, f"{node} at {endpoint}")
                connection.refusal = why or connection.refusal

    def _check_connections(self, now: float) -> None:
        """Log the peers without a connection to or from them, though their beacons arrive."""
        unreached, settled = [], {}
        for endpoint, each in self._connections.items():
            is_late = now >= each.since + UNREACHED_S and (now < each.made_at or each.ends > 1)
            if each.is_settled(now):
                settled[self.table.node_at(endpoint)] = endpoint
            elif is_late and self.table.is_heard(now, endpoint):
                unreached.append(endpoint)
        self._warn_of_missing(
            unreached,
            "keep no connection of this node: nothing of them arrives here. They may have reached "
            "their limit of open files, then their log names the limit that they need; or "
            "something between drops packets",
        )
        missing = self.inbound.unconnected(settled)
        self._warn_of_missing(
            [settled[each] for each in missing if len(each) == _ADDRESS_LENGTH],
            f"have not connected to this node at {self.inbound.endpoint}: nothing that it sends "
            "reaches them. Set option host to an address that they reach, or to auto, and name the "
            "tower by its address in the network instead of 127.0.0.1; let a firewall pass the "
            "port (option port)",
        )

    def _warn_of_missing(self, endpoints: list[str], text: str) -> None:
        first = min(endpoints, default="")
        if first and self._throttle.is_new(f"{first} {text}"):
            count, total, node = len(endpoints), len(self.table), self.table.node_at(first)
            _log.warning("%d of %d peers, as %s at %s, %s", count, total, node, first, text)


@dataclass(slots=True)
class _Peer:
    """A node that has connected."""

    kind: str = ""
    topics: dict[str, None] = field(default_factory=dict)


class Inbound:
    """The peers that have connected to a node's ``endpoint``, and those that should have.

    They are known by their subscriptions at the node's XPUB socket: a node of ours announces its
    kind first, every node subscribes to its own address, and a follower of a topic subscribes to
    the topic's records.  Used by the loop's thread only, except ``unconnected``.
    """

    def __init__(self, own: beacons.NodeBeacon, table: beacons.PeerTable) -> None:
        self.endpoint = beacons.endpoint_of(own, "")
        self._table = table
        self._peers: dict[str, _Peer] = {}

    def introduce(self, connection: Connection | None, node: str, letter: str) -> None:
        """Note the node of a connection and the letter of its kind; it subscribes again then."""
        peer = self._meet(node, connection)
        peer.kind = beacons.KINDS.get(letter, "")
        peer.topics.clear()

    def apply(
        self,
        connection: Connection | None,
        subscribed: bool,
        kind: type[m.Message] | None,
        topic: str,
    ) -> None:
        """Apply a subscription to a kind of messages with a topic or address, or its end."""
        if len(topic) == _ADDRESS_LENGTH and kind is not m.RecordMessage:
            self._meet(topic, connection if kind is m.DirectRecord and subscribed else None)
        elif kind is m.RecordMessage and connection is not None and connection.node:
            topics = self._meet(connection.node, None).topics
            if not subscribed:
                topics.pop(topic, None)
            elif len(topics) < MAX_TOPICS:
                topics[topic] = None

    def _meet(self, node: str, connection: Connection | None) -> _Peer:
        if node not in self._peers and len(self._peers) >= MAX_KNOWN:
            known = self._table.nodes()
            self._peers = {each: peer for each, peer in self._peers.items() if each in known}
        peer = self._peers.setdefault(node, _Peer())
        if connection is not None:
            connection.node = node
        return peer

    def neighbours(self) -> list[Neighbour]:
        """Return the peers that towers announce, in the order of their addresses."""
        unknown = _Peer()
        return [
            Neighbour(node, peer.kind, at, peer is not unknown, (*peer.topics,))
            for node, at in sorted(self._table.addresses())
            for peer in [self._peers.get(node, unknown)]
        ]

    def unconnected(self, nodes: Iterable[str]) -> list[str]:
        """Return those of the nodes that have not connected."""
        return sorted(set(nodes).difference(self._peers))
