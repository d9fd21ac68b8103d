"""What a role is: the part of a node that decides.

A role takes ``(now, message)`` and returns what to send.  It owns no socket, no clock and no
thread, so the same code runs under real sockets and in a simulated network.  ``now`` is seconds
on any clock that never goes backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dafka_core.model.records import RecordBatch
from dafka_core.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A RECORD for each record of ``batch``; a DIRECT-RECORD if it has a ``requestor``."""

    batch: RecordBatch
    requestor: str = ""


Outgoing = Message | OutgoingBatch


class PeerNews(NamedTuple):
    """One thing that a node has learnt of a peer; the rest is not known by it."""

    node: str
    endpoint: str = ""
    """Where a tower has announced it."""
    round_trip_s: float = 0.0
    """A connection to it was made, which takes one round trip."""
    is_store: bool | None = None
    """It has connected to us, and says what it is."""


class Role(Protocol):
    """What a mesh node calls, always from one thread."""

    address: str
    """The node's UUID: 32 upper-case hexadecimal digits."""

    def subscriptions(self) -> list[bytes]:
        """What to subscribe to from the start."""

    def on_message(self, now: float, message: Message, peer: str) -> list[Outgoing]:
        """Takes a message that is no record.  ``peer`` has sent it; it is empty if not known."""

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes records that were sent to ``requestor``; it is empty for RECORD."""

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """A peer has subscribed to ``kind`` and ``topic`` (empty: to all topics)."""

    def on_peer(self, now: float, news: PeerNews) -> None:
        """A peer is new, was connected to, or says what it is."""

    def on_peer_lost(self, peer: str) -> None:
        """A peer has been silent for too long."""

    def on_tick(self, now: float) -> list[Outgoing]:
        """The node calls it after every round of its loop, and at ``deadline``."""

    def deadline(self, now: float) -> float | None:
        """When ``on_tick`` has something to do next, if nothing happens before."""
