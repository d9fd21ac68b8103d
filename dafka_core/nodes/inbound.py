"""The peers that connect to a node, known by their subscriptions at its XPUB socket.

A node of ours announces its kind first, every node subscribes to its own address, and a follower of
a topic subscribes to the topic's records.  ``Inbound`` keeps these facts of each peer, and
``Subscribers`` the form in which each subscription is served.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import zmq

from dafka_core.model.records import Neighbour
from dafka_core.nodes.addresses import is_elsewhere
from dafka_core.nodes.connection_quotas import Connection
from dafka_core.nodes.zmq_types import Socket
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import KINDS, MAX_PEERS, NodeBeacon, PeerTable, endpoint_of
from dafka_core.protocol.codec import parse_subscription, subscription
from dafka_core.protocol.record_limits import Announcement
from dafka_core.system.hosts import is_loopback, parse_endpoint

REPEAT_S: Final = 10.0  # before the same missing peers are logged again; it doubles each time
MAX_TOPICS: Final = 100  # of one peer that a map shows, since peers choose them
_ADDRESS_LENGTH: Final = 32  # of the addresses of C nodes and ours

# Of the requestors that accept packed answers, and of subscribed topics: peers choose the names.
# Further names are not counted, and such requestors are answered one by one.
MAX_NAMES: Final = 100_000

# Subscribers to the packed form of a record receive no single ones.
_PACKED_FORMS: Final[dict[object, type[m.Message]]] = {
    m.RecordBatchMessage: m.RecordMessage,
    m.DirectRecordBatch: m.DirectRecord,
}

_log = logging.getLogger("dafka.mesh")


@dataclass(slots=True)
class _Peer:
    kind: str = ""
    topics: dict[str, None] = field(default_factory=dict)
    connection: Connection | None = None  # the last one


class Inbound:
    """The peers that have connected to a node's ``endpoint``, and those that should have.

    Used by the loop's thread only, except ``unmet``.  ``table`` has the announced peers.
    """

    def __init__(self, own: NodeBeacon, table: PeerTable) -> None:
        self.endpoint = endpoint_of(own, "")
        self._warns_of_loopback = is_loopback(own.host)
        self._table = table
        self._peers: dict[str, _Peer] = {}
        self._due = 0.0
        self._pause_s = REPEAT_S
        self._logged: frozenset[str] = frozenset()

    def apply(
        self,
        connection: Connection | None,
        introduced: Announcement | None,
        kind: type[m.Message] | None,
        topic: str,
        *,
        subscribed: bool,
    ) -> None:
        """Apply a subscription to a kind of messages with a topic or address, or its end.

        ``introduced`` is the announcement of a node in it, if any.
        """
        if introduced is not None and subscribed:
            # A node that reconnects subscribes again.
            peer = self._meet(introduced.node, connection)
            peer.kind = KINDS.get(introduced.letter, "")
            peer.topics.clear()
        elif len(topic) == _ADDRESS_LENGTH and kind is not m.RecordMessage:
            self._meet(topic, connection if kind is m.DirectRecord and subscribed else None)
        elif kind is m.RecordMessage and connection is not None and connection.node:
            topics = self._meet(connection.node, None).topics
            if not subscribed:
                topics.pop(topic, None)
            elif len(topics) < MAX_TOPICS:
                topics[topic] = None

    def _meet(self, node: str, connection: Connection | None) -> _Peer:
        if node not in self._peers and len(self._peers) >= 2 * MAX_PEERS:
            known = {each for each, _ in self._table.addresses()}
            self._peers = {each: peer for each, peer in self._peers.items() if each in known}
        peer = self._peers.setdefault(node, _Peer())
        if connection is not None:
            connection.node, peer.connection = node, connection
        return peer

    def neighbours(self) -> list[Neighbour]:
        """Return the peers that towers announce, in the order of their addresses."""
        found = []
        for node, endpoint in sorted(self._table.addresses()):
            peer = self._peers.get(node, _Peer())
            is_met = node in self._peers
            found.append(Neighbour(node, peer.kind, endpoint, is_met, (*peer.topics,)))
        return found

    def unmet(self, nodes: Iterable[str]) -> list[str]:
        """Return those of the nodes that have not connected."""
        return sorted(set(nodes).difference(self._peers))

    def end(self, nodes: Iterable[str]) -> None:
        """End the connections of some nodes."""
        for node in nodes:
            peer = self._peers.get(node)
            if peer is not None and peer.connection is not None:
                peer.connection.shut_down()
                peer.connection = None

    def warn_if_unreachable(self, endpoint: str) -> None:
        """Warn if a new peer is at an endpoint from which it cannot connect to this node."""
        if self._warns_of_loopback and is_elsewhere(parse_endpoint(endpoint).host):
            self._warns_of_loopback = False
            _log.warning(
                "this node is at %s, where %s on another machine cannot connect to it: name the "
                "tower by its address in the network instead of 127.0.0.1, with host = auto, or "
                "set option host to this machine's address there",
                *(self.endpoint, endpoint),
            )

    def report(self, now: float, endpoints: Iterable[str]) -> None:
        """Log the peers that have not connected, of those at ``endpoints`` that should have."""
        nodes = {each: self._table.node_at(each) for each in endpoints}
        unmet = frozenset(
            each
            for each, node in nodes.items()
            if node not in self._peers and len(node) == _ADDRESS_LENGTH
        )
        if not unmet or (unmet <= self._logged and now < self._due):
            return
        self._pause_s = 2 * self._pause_s if unmet == self._logged else REPEAT_S
        self._due, self._logged = now + self._pause_s, unmet
        endpoint = min(unmet)
        _log.warning(
            "%d of %d peers have not connected to this node at %s, as %s at %s, though their "
            "beacons come: nothing that it publishes or asks for reaches them. Is that an address "
            "that they reach (option host), and does a firewall let the port pass (option port)?",
            *(len(unmet), len(self._table), self.endpoint, nodes[endpoint], endpoint),
        )


class Subscribers:
    """The subscriptions that an XPUB socket in manual mode reports, and how each is served.

    Our nodes subscribe to both forms of a record, RECORD and its packed extension, because a
    producer may be ours or a C node.  Our producers must not send both: the XPUB socket's manual
    mode (ZeroMQ's XPUB_MANUAL) lets a node decide what each peer's subscription means, and a peer
    that subscribes to the packed form receives no single records.
    """

    def __init__(self, pub: Socket, *, pack: bool = True) -> None:
        self._pub = pub
        kinds = (m.RecordMessage, m.EpochAck, *(_PACKED_FORMS if pack else ()))
        # Subscriptions of the counted kinds, by topic or address.
        self._counts: dict[object, Counter[str]] = {kind: Counter() for kind in kinds}
        self._forms: dict[str, list[bool]] = {}  # of one topic, until a subscription changes them

    def apply(self, frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
        """Apply a subscription right after it was received: ZeroMQ applies it to its sender.

        Returns the parsed subscription.
        """
        subscribed, kind, topic = parsed = parse_subscription(frame)
        prefix = frame[1:]
        if not subscribed:
            if frame[:1] == b"\x00":
                self._pub.set(zmq.UNSUBSCRIBE, prefix)
                names = self._counts.get(kind)
                if names and kind in (m.DirectRecordBatch, m.EpochAck):
                    names[topic] -= 1
                    if names[topic] <= 0:
                        del names[topic]
            return parsed
        self._pub.set(zmq.SUBSCRIBE, prefix)
        is_counted = self._count(kind, topic)
        # A SUB socket sends its subscriptions in the order of their bytes, and the packed forms
        # come after the single ones.
        if is_counted and kind in _PACKED_FORMS:
            self._pub.set(zmq.UNSUBSCRIBE, subscription(_PACKED_FORMS[kind]) + prefix[1:])
        elif kind is m.Ack and topic in self._counts[m.EpochAck]:
            # The peer's earlier subscription, to EpochAck, contains more.
            self._pub.set(zmq.UNSUBSCRIBE, prefix)
        return parsed

    def forms(self, topic: str, requestor: str) -> list[bool]:
        """Return the forms to send records in: packed (True), one by one (False), both or none."""
        if requestor:
            return [requestor in self._counts.get(m.DirectRecordBatch, ())]
        forms = self._forms.get(topic)
        if forms is None:
            packed = self._matching(m.RecordBatchMessage, topic)
            # ZeroMQ does not report the end of every subscription, so the counts may be too high:
            # records are then sent in an unneeded form as well, which costs only time.
            single = self._matching(m.RecordMessage, topic) - packed
            forms = [form for form, count in ((True, packed), (False, single)) if count > 0]
            self._forms = {topic: forms}
        return forms

    def _count(self, kind: type[m.Message] | None, name: str) -> bool:
        """Count a subscription; return False if its kind is not counted, or without room."""
        names = self._counts.get(kind)
        if names is None or (name not in names and len(names) >= MAX_NAMES):
            return False
        names[name] += 1
        self._forms = {}
        return True

    def _matching(self, kind: type[m.Message], topic: str) -> int:
        counts = self._counts.get(kind, Counter()).items()
        return sum(count for prefix, count in counts if topic.startswith(prefix))
