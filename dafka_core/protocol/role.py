"""A role: the part of a node that decides.

A role takes ``(now, message)`` and returns messages to send.  It owns no socket, no clock and no
thread, so the same code runs under real sockets and in a simulated network.  ``now`` is seconds on
any clock that never goes backwards.
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
    """One new fact about a peer; the other fields are unset."""

    node: str
    endpoint: str = ""  # announced by a tower
    accepts: bool = False  # it has accepted our connection
    is_store: bool | None = None  # kind that it has announced when it connected to us
    client: str = ""  # name that it has announced with its kind
    is_lost: bool = False  # its beacons have stopped: it has gone, or is late


class Role(Protocol):
    """The interface between a mesh node and its role, called from one thread."""

    address: str  # the node's UUID: 32 upper-case hexadecimal digits

    def subscriptions(self) -> list[bytes]:
        """Return the initial subscriptions."""

    def on_message(self, now: float, message: Message, peer: str) -> list[Outgoing]:
        """Process a message without records.  ``peer`` is its sender; empty if unknown."""

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process records that were sent to ``requestor``; it is empty for RECORD."""

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """Process a peer's subscription to ``kind`` and ``topic`` (empty: all topics)."""

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Process a new peer, a new connection, a peer's announced kind, or its loss."""

    def on_tick(self, now: float) -> list[Outgoing]:
        """Run after every round of the node's loop, and at ``deadline``."""

    def deadline(self, now: float) -> float:
        """Return when ``on_tick`` must run next if nothing happens before; infinite for never."""
