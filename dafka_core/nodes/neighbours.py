"""Who connects to a node, of what kind it is, and which topics it follows: what a map is made of.

Peers say all of it by what they subscribe to: a node of ours announces its kind first, every node
subscribes to its own address, and who follows a topic subscribes to its records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.messages import DirectRecord, Message, RecordMessage

KINDS: Final = {"C": "consumer", "P": "producer", "R": "reader", "S": "store"}
"""By the letter that a node announces itself with."""

MAX_TOPICS: Final = 100
"""Of one peer's topics: what a map shows of them, and peers choose them."""

_ADDRESS_LENGTH: Final = 32


class Neighbour(NamedTuple):
    """A peer of a node.

    Attributes:
        node: its address.
        kind: ``store``, ``producer``, ``consumer`` or ``reader``; empty if it has not said so, as
            nodes that know RFC 46 alone.
        endpoint: where towers say it is; empty if none tells of it.
        connected: whether it has connected to this node.
        topics: those that it follows, at most ``MAX_TOPICS``.
    """

    node: str
    kind: str = ""
    endpoint: str = ""
    connected: bool = False
    topics: tuple[str, ...] = ()


class Neighbours:
    """Notes what subscriptions say of the peers that connect to a node.

    Args:
        known: the nodes that towers tell of now.
    """

    def __init__(self, known: Callable[[], Collection[str]]) -> None:
        self._known = known
        self._kinds: dict[str, str] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._nodes: dict[int, str] = {}  # by the descriptor that subscriptions come by

    def apply(
        self, frame: bytes, descriptor: int, introduced: str, kind: type[Message] | None, topic: str
    ) -> None:
        """Takes a subscription.

        Args:
            frame: as an XPUB socket tells of it.
            introduced: the node that announces itself by it, if it does.
            kind: the messages that are subscribed to.
            topic: what they are about.
        """
        subscribed = frame[:1] == b"\1"
        if introduced and subscribed:
            self._see(introduced, descriptor)
            self._kinds[introduced] = KINDS.get(frame[2:3].decode("latin-1"), "")
            self._topics[introduced] = {}  # a node that connects again says all anew
        elif kind is DirectRecord and subscribed and len(topic) == _ADDRESS_LENGTH:
            self._see(topic, descriptor)
        elif kind is RecordMessage and (node := self._nodes.get(descriptor)) is not None:
            topics = self._topics.setdefault(node, {})
            if not subscribed:
                topics.pop(topic, None)
            elif len(topics) < MAX_TOPICS:
                topics[topic] = None

    def found(
        self, announced: Iterable[tuple[str, str]], met: Callable[[str], bool]
    ) -> list[Neighbour]:
        """The peers that towers tell of, in the order of their addresses.

        Args:
            announced: node and endpoint of each.
            met: whether a node has connected.
        """
        return [
            Neighbour(
                node, self._kinds.get(node, ""), endpoint, met(node), (*self._topics.get(node, ()),)
            )
            for node, endpoint in sorted(announced)
        ]

    def _see(self, node: str, descriptor: int) -> None:
        if max(len(self._kinds), len(self._topics)) >= 2 * MAX_PEERS:
            known = set(self._known())
            self._kinds = {each: kind for each, kind in self._kinds.items() if each in known}
            self._topics = {each: said for each, said in self._topics.items() if each in known}
        if descriptor >= 0:
            self._nodes[descriptor] = node
