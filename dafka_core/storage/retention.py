"""The blocks of a partition that retention deletes, and the archiver that may copy them first.

*Age*: a block goes when all its records are older.  *Size* is that of the topic in this store, all
partitions together: the oldest blocks go, as long as what remains has so many bytes at least.  So a
small size never empties a topic, and what a topic takes is above its size by one block at most.

The rules are in ``config/topic_rules.py``.  This module is pure: no database, no clock.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple, Protocol

from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import peek_times
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.tables import FoundBlock, Tables


class Archiver(Protocol):
    """Keeps records elsewhere that a store is about to give up."""

    def archive(self, tp: TopicPartition, before: int) -> int:
        """Archives the partition's records below ``before`` that are not archived yet.

        Returns the offset below which all that the store held is archived, synced: at most
        ``before``.  The store gives up what lies below that offset, and no more.

        Raises:
            DafkaError: it failed; the store gives up nothing now, and asks again later.
        """
        ...


class Unread(NamedTuple):
    """The first record of a partition that a reader has not read; who that is."""

    offset: int
    reader: str


class Readers(Protocol):
    """For whom a store keeps records that its rules would give up."""

    def look(self) -> None:
        """Finds out anew how far they are.

        Raises:
            DafkaError: the log is closed, or damaged.
        """
        ...

    def unread(self, tp: TopicPartition) -> Unread | None:
        """What the one that is furthest behind has not read; None where nobody is waited for."""
        ...


class HeldBlock(NamedTuple):
    """A block of a partition; ``last_us`` is the time of its last record, which is its newest."""

    first: int
    end: int
    size_bytes: int
    last_us: int


def old_blocks(blocks: Sequence[HeldBlock], before_us: int) -> int:
    """How many of a partition's blocks, which are in order, have no record of ``before_us`` on.

    Few are looked at: as many as the logarithm of the result says, twice.
    """
    stop = 1
    while stop <= len(blocks) and blocks[stop - 1].last_us < before_us:
        stop *= 2
    low, high = stop // 2, min(stop - 1, len(blocks))
    return bisect_left(blocks, before_us, low, high, key=attrgetter("last_us"))


def before_by_size(
    partitions: Mapping[TopicPartition, Sequence[HeldBlock]], size_bytes: int
) -> dict[TopicPartition, int]:
    """Below which offsets the oldest blocks go, for ``size_bytes`` at least to remain in all.

    Partitions of which nothing goes are left out.
    """
    left = sum(block.size_bytes for blocks in partitions.values() for block in blocks)
    waiting = [(blocks[0].last_us, tp, 0) for tp, blocks in partitions.items() if blocks]
    heapq.heapify(waiting)
    before: dict[TopicPartition, int] = {}
    while waiting:
        _, tp, at = heapq.heappop(waiting)
        blocks = partitions[tp]
        left -= blocks[at].size_bytes
        if left < size_bytes:
            break
        before[tp] = blocks[at].end
        if at + 1 < len(blocks):
            heapq.heappush(waiting, (blocks[at + 1].last_us, tp, at + 1))
    return before


class PartitionBlocks(Sequence[HeldBlock]):
    """The blocks that hold a partition's records, in one transaction.

    To know where they begin costs little.  To look at one touches its pages, as LMDB's Python
    binding does, which for old records means to read them from the disk.

    Raises:
        StoreError: when it comes upon damage; nothing but the heads of blocks is looked at.
    """

    def __init__(self, tables: Tables, tp: TopicPartition, row: PartitionRow) -> None:
        self._tables, self._tp, self._row = tables, tp, row
        self.info = row.info(tp)
        """What is held of the partition."""
        table = list(takewhile(lambda first: first < row.end, tables.firsts(row.id, 0)))
        self._grouped: dict[int, memoryview] = {}
        if row.earliest < row.end:
            with tables.naming(tp, row.earliest):
                held = (
                    each for each in tables.area.of_partition(row.id) if each.end > row.earliest
                )
                self._grouped = {each.first: memoryview(each.packed) for each in held}
        self.bounds = [*sorted({*table, *self._grouped}), row.end]
        """Where each begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> HeldBlock:  # type: ignore[override]  # no slices
        if not 0 <= number < len(self):
            raise IndexError(number)
        first, end = self.bounds[number : number + 2]
        packed = self._grouped.get(first)
        if packed is None:
            packed = self._tables.packed_block(self._row.id, first)
        if packed is None:
            raise self._tables.damaged_block(self._tp, first, "there is no block")
        times = self._tables.read_block(self._tp, FoundBlock(b"", first, packed), peek_times)
        return HeldBlock(first, end, len(packed), int(times[-1, 1]))
