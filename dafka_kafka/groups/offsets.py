"""Committed offsets of groups, and the records that gateways keep of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, NamedTuple

from msgspec import Meta

from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import INTERNAL
from dafka_kafka.groups.group import Generation

# Records in internal topic ``__dafka.kafka.offsets``; each gateway writes to the partition with
# its store's address. A record is a JSON object::
#
#     {"v": 1, "group": "g", "counter": 7,
#      "offsets": [["flights", 0, 1000, -1, "metadata", 1700000000000]]}
#
# ``offsets`` are commits: topic, partition number, offset, leader epoch, metadata, time (ms since
# 1970 UTC). Clients may commit negative offsets; offset -1 at time 0 deletes a commit.
# ``generation`` is the group's state and members instead; ``deleted`` deletes everything older of
# the group.
#
# ``counter`` is a Lamport clock: a gateway writes one more than the largest that it has seen in
# the topic. Of two equal counters, the higher store address is newer. So records can be read in
# any order.
#
# ``{"v": 1, "repeats": 500}`` says that the partition's records before offset 500 are compacted
# into later ones, and can be trimmed.


OFFSETS_TOPIC: Final = f"{INTERNAL}kafka.offsets"

DELETED: Final = -1  # in place of a committed offset, with time 0


class Committed(NamedTuple):
    """A committed offset, which is that of the next record to read."""

    topic: str
    number: Annotated[int, Meta(ge=0, lt=2**31)]
    offset: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = 0

    @property
    def is_deleted(self) -> bool:
        """True if it deletes an earlier commit."""
        return (self.offset, self.time_ms) == (DELETED, 0)


class GroupRecord(JsonMessage, frozen=True, omit_defaults=True):
    """A record; see the comment above."""

    what: ClassVar[str] = "record of a consumer group"

    group: str = ""
    counter: Natural = 0
    offsets: tuple[Committed, ...] = ()
    generation: Generation | None = None
    deleted: bool = False
    repeats: int = -1


MAX_RECORD_OFFSETS: Final = 500
"""Commits in one record: with metadata of the usual size it stays small."""

Place = tuple[str, int]  # a topic, and the number of a partition


class Rank(NamedTuple):
    """The order of records: counter, then the address of the writer's store."""

    counter: int
    writer: str


_NEVER: Final = Rank(-1, "")


@dataclass(slots=True)
class _Kept:
    """The current state of one group."""

    offsets: dict[Place, tuple[Rank, Committed]] = field(default_factory=dict)
    generation: tuple[Rank, Generation | None] = (_NEVER, None)
    deleted: Rank = _NEVER
    writers: dict[str, int] = field(default_factory=dict)
    """The offset of each writer's last record about it."""


class Offsets:
    """All groups' commits. Records may be added in any order, and repeatedly."""

    def __init__(self) -> None:
        self._groups: dict[str, _Kept] = {}
        self._counter = 0

    def next_counter(self) -> int:
        """Return the next value of the Lamport clock."""
        self._counter += 1
        return self._counter

    def groups(self) -> Iterator[str]:
        """Return the groups that have commits, or had members."""
        return (name for name in self._groups if self.is_there(name))

    def is_there(self, group: str) -> bool:
        """Return whether a group has commits, or had members, and was not deleted."""
        return self.generation(group) is not None or self.has_commits(group)

    def has_commits(self, group: str) -> bool:
        """Return whether a group has commits."""
        kept = self._groups.get(group)
        return kept is not None and any(not each.is_deleted for _, each in kept.offsets.values())

    def committed(self, group: str) -> dict[Place, Committed]:
        """Return a group's commits, sorted."""
        kept = self._groups.get(group)
        found = kept.offsets if kept else {}
        return {place: each for place, (_, each) in sorted(found.items()) if not each.is_deleted}

    def generation(self, group: str) -> Generation | None:
        """Return a group's last stored generation."""
        kept = self._groups.get(group)
        return kept.generation[1] if kept else None

    def used_ms(self, group: str) -> int:
        """Return the time of a group's last commit or generation (ms since 1970 UTC)."""
        kept = self._groups.get(group)
        if kept is None:
            return 0
        generation = kept.generation[1]
        times = [each.time_ms for _, each in kept.offsets.values()]
        return max(*times, generation.time_ms if generation else 0, 0)

    def take(self, writer: str, record: GroupRecord, offset: int = 0) -> bool:
        """Add a record that a gateway has written at an offset; the newest state wins.

        Returns whether its group has a new generation.
        """
        self._counter = max(self._counter, record.counter)
        if record.repeats >= 0:
            return False
        rank = Rank(record.counter, writer)
        kept = self._groups.setdefault(record.group, _Kept())
        kept.writers[writer] = max(offset, kept.writers.get(writer, 0))
        if record.deleted and rank > kept.deleted:
            kept.deleted = rank
            kept.offsets = {at: each for at, each in kept.offsets.items() if each[0] > rank}
            if kept.generation[0] < rank:
                kept.generation = (_NEVER, None)
        if rank < kept.deleted:
            return False
        for each in record.offsets:
            place = each.topic, each.number
            if place not in kept.offsets or kept.offsets[place][0] < rank:
                kept.offsets[place] = rank, each
        if record.generation is None or kept.generation[0] >= rank:
            return False
        kept.generation = rank, record.generation
        return True

    def repeated(self, writer: str) -> list[GroupRecord]:
        """Return records with the current state that a writer has written."""
        found = [
            each for name, kept in self._groups.items() for each in _records(name, kept, writer)
        ]
        return sorted(found, key=lambda each: each.counter)

    def forget(self, begins: Mapping[str, int]) -> None:
        """Forget groups without state, and deletions that no older record needs.

        Args:
            begins: the first offset of each writer's partition.
        """
        for name, kept in [*self._groups.items()]:
            left = {w: last for w, last in kept.writers.items() if last >= begins.get(w, 0)}
            kept.writers = left
            if not left:
                kept.deleted = _NEVER
                found = kept.offsets.items()
                kept.offsets = {at: each for at, each in found if not each[1].is_deleted}
            # A writer's deletion comes after its own older records.
            if left.keys() <= {kept.deleted.writer} and not self.is_there(name):
                del self._groups[name]


def _records(group: str, kept: _Kept, writer: str) -> Iterator[GroupRecord]:
    if kept.deleted.writer == writer:
        yield GroupRecord(group, kept.deleted.counter, deleted=True)
    rank, generation = kept.generation
    if rank.writer == writer:
        yield GroupRecord(group, rank.counter, generation=generation)
    by_counter: dict[int, list[Committed]] = {}
    for rank, each in kept.offsets.values():
        if rank.writer == writer:
            by_counter.setdefault(rank.counter, []).append(each)
    for counter, offsets in by_counter.items():
        yield from records_of(group, counter, offsets)


def records_of(group: str, counter: int, offsets: list[Committed]) -> Iterator[GroupRecord]:
    """Split commits into records of limited size."""
    for start in range(0, len(offsets), MAX_RECORD_OFFSETS):
        yield GroupRecord(group, counter, tuple(offsets[start : start + MAX_RECORD_OFFSETS]))
