"""A member of a consumer group, and what its protocols and parts say."""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from dafka_core.kafka.kafka_errors import KafkaError

CONSUMER: Final = "consumer"
"""The protocol type of consumers, whose metadata and parts are of a known form."""


@dataclass(frozen=True, slots=True)
class Joining:
    """A JoinGroup request: who joins, for how long it may be silent, and how it can share topics.

    ``protocols`` are names with octets that only clients understand, in the order of its liking.
    """

    member_id: str
    protocols: Sequence[tuple[str, bytes]]
    session_s: float
    rebalance_s: float
    protocol_type: str = CONSUMER
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    knows_ids: bool = False
    """It asks first for the id that it is to join with (from version 4 on)."""

    @property
    def size_bytes(self) -> int:
        """What the gateway is to keep of it."""
        return sum(len(name) + len(octets) for name, octets in self.protocols)

    def new_id(self) -> str:
        """An id that no member has."""
        return f"{self.instance_id or self.client_id}-{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a JoinGroup; the leader is told the members: id, instance and metadata."""

    error: KafkaError
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a SyncGroup: the member's part."""

    error: KafkaError
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class Member:
    """A member, as its coordinator keeps it."""

    member_id: str
    joined: Joining
    expires: float
    """When its session ends, unless it waits for the group."""
    is_new: bool = True
    assignment: bytes = b""
    join_ticket: Any = field(default=None, repr=False)
    """Whom to answer when the rebalance is complete; None if it has not joined."""
    sync_ticket: Any = field(default=None, repr=False)
    has_synced: bool = True
    """Whether it knows its part, as far as that was made."""

    @property
    def instance_id(self) -> str | None:
        """What a static member is known by, over its restarts."""
        return self.joined.instance_id

    @property
    def ends(self) -> float:
        """When it is given up; never while it waits for the group, unless it is new."""
        if self.join_ticket is not None and self.is_new:
            return self.expires
        waits = self.join_ticket is not None or self.sync_ticket is not None
        return inf if waits else self.expires

    @property
    def has_asked(self) -> bool:
        """Whether it knows its part, or waits for it."""
        return self.has_synced or self.sync_ticket is not None

    @property
    def size_bytes(self) -> int:
        """What is kept of it."""
        return self.joined.size_bytes + len(self.assignment)

    def metadata(self, protocol: str) -> bytes:
        """What it says of itself in a protocol."""
        return dict(self.joined.protocols).get(protocol, b"")


def common_protocols(members: Iterable[Member]) -> set[str]:
    """The protocols that all of them know."""
    names = [{name for name, _ in each.joined.protocols} for each in members]
    return set.intersection(*names) if names else set()


def chosen_protocol(members: Collection[Member]) -> str:
    """The one that most members like best, of those that all know."""
    common = common_protocols(members)
    votes = Counter(
        next(name for name, _ in each.joined.protocols if name in common) for each in members
    )
    return votes.most_common(1)[0][0]


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics that a consumer's metadata names; None where they are of another form."""
    try:
        return {name for name, _ in _topics(metadata, with_partitions=False)}
    except (ValueError, struct.error):
        return None


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """The topics and numbers in a consumer's part; none where it is of another form."""
    try:
        found = _topics(assignment, with_partitions=True)
    except (ValueError, struct.error):
        return []
    return [(topic, number) for topic, numbers in found for number in numbers]


def _topics(octets: bytes, *, with_partitions: bool) -> list[tuple[str, Sequence[int]]]:
    """The array of topics with which both begin, behind a version (Kafka's ConsumerProtocol).

    Raises:
        ValueError, struct.error: they are not of this form.
    """
    (count,), at, found = struct.unpack_from(">i", octets, 2), 6, []
    for _ in range(min(count, len(octets))):
        (length,) = struct.unpack_from(">h", octets, at)
        topic = octets[at + 2 : at + 2 + max(length, 0)].decode()
        at += 2 + max(length, 0)
        numbers: Sequence[int] = ()
        if with_partitions:
            (many,) = struct.unpack_from(">i", octets, at)
            if not 0 <= many <= len(octets):
                raise ValueError("more partitions than octets")
            numbers = struct.unpack_from(f">{many}i", octets, at + 4)
            at += 4 + 4 * many
        if at > len(octets):
            raise ValueError("cut short")
        found.append((topic, numbers))
    return found
