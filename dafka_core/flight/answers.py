"""What the store answers (docs/flight.md).  Clients pass over members that they do not know."""

from __future__ import annotations

from msgspec import field

from dafka_core.flight.json_message import JsonMessage
from dafka_core.records import PartitionInfo, TransactionState


class Heads(JsonMessage, frozen=True):
    """What the store holds of some partitions."""

    heads: tuple[PartitionInfo, ...]


class Offsets(JsonMessage, frozen=True):
    """The offset for each time that was asked for; None where nothing was stored then or later."""

    offsets: tuple[int | None, ...]


class PartitionEnd(JsonMessage, frozen=True):
    """How far the partition that was waited for is on disk."""

    end: int


class TransactionStates(JsonMessage, frozen=True):
    """How far the partitions that were asked for are."""

    transactions: tuple[TransactionState, ...]


class Done(JsonMessage, frozen=True):
    """A commit or a discard is on disk."""


class PutAck(JsonMessage, frozen=True, omit_defaults=True):
    """How far a put is on disk; with ``failed`` the store takes nothing more of it."""

    end: int
    failed: bool = False


class PartitionFacts(JsonMessage, frozen=True):
    """The metadata of a partition's FlightInfo and of its endpoint.

    The times are None where there are no records.
    """

    topic: str
    partition: str
    earliest: int
    end: int
    records: int
    size_bytes: int = field(name="bytes")
    first_time_us: int | None
    last_time_us: int | None


class TopicFacts(JsonMessage, frozen=True):
    """The metadata of a topic's FlightInfo: its partitions together."""

    topic: str
    partitions: int
    records: int
    size_bytes: int = field(name="bytes")
    first_time_us: int | None
    last_time_us: int | None
