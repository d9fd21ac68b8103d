"""What gateways keep of consumer groups: records of internal topic ``__dafka.kafka.offsets``.

Each gateway writes to one partition, which has its store's address.  A record is a JSON object::

    {"v": 1, "group": "g", "counter": 7,
     "offsets": [["flights", 0, 1000, -1, "metadata", 1700000000000]]}

``offsets`` are what was committed: topic, number of the partition, offset, leader epoch, metadata,
and when (ms since 1970 UTC).  Clients may commit negative offsets; offset -1 at time 0 deletes what
was committed.  ``generation`` is what the group has become instead, when, and with which members;
``deleted`` gives up all of the group that is older.

What is newer the counter tells (Lamport's): who writes gives one higher than the largest that it
has seen in any partition of the topic.  Of two with the same counter that of the higher store's
address counts.  So it does not matter in which order the records of several gateways are read.

A record ``{"v": 1, "repeats": 500}`` says that all that counts of those before offset 500 of its
partition has been written again from there on: stores need not keep them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, NamedTuple

import msgspec
from msgspec import Meta

from dafka_core.json_message import JsonMessage, Natural
from dafka_core.names import INTERNAL

OFFSETS_TOPIC: Final = f"{INTERNAL}kafka.offsets"

DELETED: Final = -1
"""In place of a committed offset, with time 0."""


class Committed(NamedTuple):
    """What was committed of a partition; ``offset`` is that of the next record to read."""

    topic: str
    number: Annotated[int, Meta(ge=0, lt=2**31)]
    offset: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = 0

    @property
    def is_deleted(self) -> bool:
        """Whether this deletes an earlier commit."""
        return (self.offset, self.time_ms) == (DELETED, 0)


class KeptMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of a group, as it has joined; octets are in base 64."""

    member_id: str
    session_ms: Natural
    rebalance_ms: Natural
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a group is since it became stable, or empty."""

    number: Natural
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[KeptMember, ...] = ()
    time_ms: Natural = 0
    """When it became so (ms since 1970 UTC)."""


class GroupRecord(JsonMessage, frozen=True, omit_defaults=True):
    """A record; see the module's documentation."""

    what: ClassVar[str] = "record of a consumer group"

    group: str = ""
    counter: Natural = 0
    offsets: tuple[Committed, ...] = ()
    generation: Generation | None = None
    deleted: bool = False
    repeats: int = -1
