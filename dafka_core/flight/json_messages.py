"""A store's answers over Arrow Flight.

Clients pass over members of an answer that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from dafka_core.flight.limits import MAX_LEASED_BLOCKS
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.records import (
    PartitionInfo,
    StagedPartition,
    TopicPartition,
    TransactionState,
)
from dafka_core.storage.leases import MAX_LEASES

Slot = Annotated[int, Meta(ge=0, lt=MAX_LEASES)]
BlockBytes = Annotated[int, Meta(ge=1, le=2**31)]
"""A reader makes room for a block; one may be little more than the largest record."""


class Heads(JsonMessage, frozen=True):
    """What the store holds of some partitions."""

    heads: tuple[PartitionInfo, ...]


class HeadsSince(JsonMessage, frozen=True):
    """What of some topics has changed; all that the store holds of them if ``complete``.

    ``cursor`` stands for this moment in the next request.
    """

    cursor: str
    complete: bool
    heads: tuple[PartitionInfo, ...]


class Staged(JsonMessage, frozen=True):
    """What is staged in some partitions."""

    staged: tuple[StagedPartition, ...]


class Offsets(JsonMessage, frozen=True):
    """The offset for each time that was asked for; None where nothing was stored then or later."""

    offsets: tuple[int | None, ...]
    now_us: int
    """The store's clock."""
    clock_doubt: str = ""
    """Why the store does not go by it, if it does not."""


Sizes = tuple[Annotated[int, Meta(ge=0)], ...]
"""About how many bytes a record takes in each part of a range; the parts are of one size."""


class RecordSizes(JsonMessage, frozen=True):
    """Those of each range that was asked for; None of one of which the store holds nothing."""

    sizes: tuple[Sizes | None, ...]


class TransactionStates(JsonMessage, frozen=True):
    """How far the partitions that were asked for are."""

    transactions: tuple[TransactionState, ...]


class Digests(JsonMessage, frozen=True):
    """The row digest of each range that was asked for."""

    digests: tuple[str, ...]


class LeaseGranted(JsonMessage, frozen=True, omit_defaults=True):
    """Blocks to be read from the store's file: first offset, position and size of each.

    ``lease`` is in the slot of that number of file ``leases`` until the store ends it.
    """

    lease: str = ""
    slot: Slot = 0
    blocks: Annotated[
        tuple[tuple[Natural, Natural, BlockBytes], ...], Meta(max_length=MAX_LEASED_BLOCKS)
    ] = ()


class LeasesGranted(JsonMessage, frozen=True):
    """Blocks of the first ``ranges`` of many: number of the range, and as ``LeaseGranted``."""

    lease: str
    slot: Slot
    ranges: Annotated[int, Meta(ge=1)]
    blocks: Annotated[
        tuple[tuple[Natural, Natural, Natural, BlockBytes], ...], Meta(max_length=MAX_LEASED_BLOCKS)
    ]


class SpaceUsed(JsonMessage, frozen=True):
    """What a store's file takes, how much of that is free, and the leases that readers have."""

    file_bytes: int
    free_bytes: int
    leases: int
    oldest_lease_s: float


class Done(JsonMessage, frozen=True):
    """A commit or a discard is on disk."""


class PartitionFacts(JsonMessage, frozen=True):
    """What a partition takes and when it was written: the metadata of its FlightInfo."""

    topic: str
    partition: str
    earliest: Natural
    end: Natural
    records: Natural
    bytes: Natural
    first_time_us: int | None
    last_time_us: int | None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def furthest_facts(
    facts: Iterable[PartitionFacts],
) -> dict[TopicPartition, PartitionFacts]:
    """Of each partition what that store says which has it furthest, and most of it."""
    ranked = sorted(facts, key=lambda each: (each.end, each.records))
    return {each.tp: each for each in ranked}


class DurableEnd(JsonMessage, frozen=True, omit_defaults=True):
    """Up to where a partition is on disk; with ``failed`` the store takes no more of the put."""

    end: int
    failed: bool = False
