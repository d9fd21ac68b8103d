"""How far groups have committed, from the records that gateways keep of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dafka_core.kafka.groups.group_records import Committed, Generation, GroupRecord

MAX_RECORD_OFFSETS: Final = 500
"""Of one record: with metadata of the usual size it stays small, whatever a store's limit is."""

Place = tuple[str, int]
"""A topic, and the number of one of its partitions."""


class Rank(NamedTuple):
    """Which of two records is newer: the counter, then the address of the store that wrote it."""

    counter: int
    writer: str


_NEVER: Final = Rank(-1, "")


@dataclass(slots=True)
class _Kept:
    """What counts of one group."""

    offsets: dict[Place, tuple[Rank, Committed]] = field(default_factory=dict)
    generation: tuple[Rank, Generation | None] = (_NEVER, None)
    deleted: Rank = _NEVER
    writers: dict[str, int] = field(default_factory=dict)
    """Who has written of it, and at which offset last."""


class Offsets:
    """What all groups have committed.  Records may be taken in any order, and more than once."""

    def __init__(self) -> None:
        self._groups: dict[str, _Kept] = {}
        self._counter = 0

    def next_counter(self) -> int:
        """One higher than any that was seen, or given."""
        self._counter += 1
        return self._counter

    def groups(self) -> Iterator[str]:
        """The groups that have committed something, or have members."""
        return (name for name in self._groups if self.is_there(name))

    def is_there(self, group: str) -> bool:
        """Whether a group has committed something, or has members."""
        generation = self.generation(group)
        has_members = generation is not None and bool(generation.members)
        kept = self._groups.get(group)
        found = kept.offsets.values() if kept else ()
        return has_members or any(not each.is_deleted for _, each in found)

    def committed(self, group: str) -> dict[Place, Committed]:
        """What a group has committed, in order."""
        kept = self._groups.get(group)
        found = kept.offsets if kept else {}
        return {place: each for place, (_, each) in sorted(found.items()) if not each.is_deleted}

    def generation(self, group: str) -> Generation | None:
        """What a group was when it last became stable or empty."""
        kept = self._groups.get(group)
        return kept.generation[1] if kept else None

    def used_ms(self, group: str) -> int:
        """When a group last committed something, or became stable or empty (ms since 1970 UTC)."""
        kept = self._groups.get(group)
        if kept is None:
            return 0
        generation = kept.generation[1]
        times = [each.time_ms for _, each in kept.offsets.values()]
        return max(*times, generation.time_ms if generation else 0, 0)

    def take(self, writer: str, record: GroupRecord, offset: int = 0) -> None:
        """Takes a record that a gateway has written at an offset: what is newer counts."""
        self._counter = max(self._counter, record.counter)
        if not record.group:
            return
        rank = Rank(record.counter, writer)
        kept = self._groups.setdefault(record.group, _Kept())
        kept.writers[writer] = max(offset, kept.writers.get(writer, 0))
        if record.deleted and rank > kept.deleted:
            kept.deleted = rank
            kept.offsets = {at: each for at, each in kept.offsets.items() if each[0] > rank}
            if kept.generation[0] < rank:
                kept.generation = (_NEVER, None)
        if rank < kept.deleted:
            return
        for each in record.offsets:
            place = each.topic, each.number
            if place not in kept.offsets or kept.offsets[place][0] < rank:
                kept.offsets[place] = rank, each
        if record.generation is not None and kept.generation[0] < rank:
            kept.generation = rank, record.generation

    def repeated(self, writer: str) -> list[GroupRecord]:
        """The records that say again what counts of a writer's."""
        found = [
            each for name, kept in self._groups.items() for each in _records(name, kept, writer)
        ]
        return sorted(found, key=lambda each: each.counter)

    def forget(self, begins: Mapping[str, int]) -> None:
        """Forgets groups of which nothing is left, and deletions for which no older record is left.

        Args:
            begins: the offsets at which writers' partitions begin.
        """
        for name, kept in [*self._groups.items()]:
            left = {w: last for w, last in kept.writers.items() if last >= begins.get(w, 0)}
            kept.writers = left
            if not left:
                kept.deleted = _NEVER
                found = kept.offsets.items()
                kept.offsets = {at: each for at, each in found if not each[1].is_deleted}
            # What a writer has deleted is behind what it has written of it before.
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
    """Commits as records that are not too large."""
    for start in range(0, len(offsets), MAX_RECORD_OFFSETS):
        yield GroupRecord(group, counter, tuple(offsets[start : start + MAX_RECORD_OFFSETS]))
