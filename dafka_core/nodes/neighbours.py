"""Who connects to a node, of what kind it is, and which topics it follows: what a map is made of.

Peers say all of it by what they subscribe to: a node of ours announces its kind first, every node
subscribes to its own address, and who follows a topic subscribes to its records.
"""

from __future__ import annotations

from typing import Final

from dafka_core.nodes.inbound import Inbound
from dafka_core.protocol.beacons import MAX_PEERS, PeerTable
from dafka_core.protocol.messages import DirectRecord, Message, RecordMessage
from dafka_core.protocol.record_limits import Announcement
from dafka_core.records import Neighbour

KINDS: Final = {"C": "consumer", "P": "producer", "R": "reader", "S": "store"}
"""By the letter that a node announces itself with."""

MAX_TOPICS: Final = 100
"""Of one peer's topics: what a map shows of them, and peers choose them."""

_ADDRESS_LENGTH: Final = 32


class Neighbours:
    """Notes what subscriptions say of the peers that connect to a node.

    Used by the loop's thread only.

    Args:
        table: the peers that towers tell of.
        inbound: who has connected.
    """

    def __init__(self, table: PeerTable, inbound: Inbound) -> None:
        self._table = table
        self._inbound = inbound
        self._kinds: dict[str, str] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._nodes: dict[int, str] = {}  # by the descriptor that subscriptions come by

    def apply(
        self,
        frame: bytes,
        descriptor: int,
        introduced: Announcement | None,
        kind: type[Message] | None,
        topic: str,
    ) -> None:
        """Takes a subscription.

        Args:
            frame: as an XPUB socket tells of it.
            introduced: what a node announces by it, if it does.
            kind: the messages that are subscribed to.
            topic: what they are about.
        """
        subscribed = frame[:1] == b"\1"
        if introduced is not None and subscribed:
            self._see(introduced.node, descriptor)
            self._kinds[introduced.node] = KINDS.get(frame[2:3].decode("latin-1"), "")
            self._topics[introduced.node] = {}  # a node that connects again says all anew
        elif kind is DirectRecord and subscribed and len(topic) == _ADDRESS_LENGTH:
            self._see(topic, descriptor)
        elif kind is RecordMessage and (node := self._nodes.get(descriptor)) is not None:
            topics = self._topics.setdefault(node, {})
            if not subscribed:
                topics.pop(topic, None)
            elif len(topics) < MAX_TOPICS:
                topics[topic] = None

    def found(self) -> list[Neighbour]:
        """The peers that towers tell of, in the order of their addresses."""
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
