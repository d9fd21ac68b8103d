"""The plan of merging, in memory: the small blocks, and those to merge next.

Adjacent small blocks of one partition form a stretch.  Three rules say when part of a stretch
becomes one block:

    it fills at least half a block     the result is not merged again
    it is at least ``GROWTH`` times    so a record is rewritten only a logarithmic number of times:
    as large as its largest block      about twice
    a large block follows it           nothing can be added to it any more

This module is pure: no database, no clock.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from dafka_core.storage import block as block_format

GROWTH = 8
"""More would leave more small blocks, less would write records more often."""

MAX_CANDIDATES = 100_000
"""Some 20 MB.  Beyond it the planner forgets the partition written longest ago, or half of the only
one: those blocks stay as they are until the log is opened again."""


class MergeCandidate(NamedTuple):
    """A block: its first offset, its records, its size in the table."""

    first: int
    records: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Return the offset after its last record."""
        return self.first + self.records

    @property
    def worth_reading(self) -> bool:
        """Return True if it needs no merging: it has half a block's records or bytes."""
        return _fill(self.records, self.size_bytes) >= 0.5


class MergePlan(NamedTuple):
    """Blocks of a partition to merge, in order."""

    partition_id: int
    blocks: list[MergeCandidate]


class MergePlanner:
    """Small blocks by partition.  Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: OrderedDict[int, list[MergeCandidate]] = OrderedDict()
        self._changed: set[int] = set()
        self._count = 0

    @property
    def waiting(self) -> int:
        """Return the number of blocks in partitions that ``plan`` has not examined since."""
        with self._lock:
            return sum(len(self._partitions.get(each, ())) for each in self._changed)

    def add(self, partition_id: int, block: MergeCandidate, *, replace: bool = True) -> None:
        """Add a block, with ``replace`` instead of one that begins at the same offset."""
        with self._lock:
            blocks = self._partitions.setdefault(partition_id, [])
            self._partitions.move_to_end(partition_id)
            at = bisect_left(blocks, block.first, key=attrgetter("first"))
            if at < len(blocks) and blocks[at].first == block.first:
                if not replace:
                    return
                del blocks[at]
                self._count -= 1
            if blocks or not block.worth_reading:  # a large one ends a stretch of small ones
                blocks.insert(at, block)
                self._count += 1
                self._changed.add(partition_id)
            else:
                self._keep(partition_id, [])
            while self._count > MAX_CANDIDATES:
                oldest = next(iter(self._partitions))
                left = self._partitions[oldest]
                self._keep(oldest, left[len(left) // 2 :] if len(self._partitions) == 1 else [])

    def drop(self, partition_id: int, blocks: Sequence[MergeCandidate]) -> None:
        """Forget deleted blocks."""
        gone = set(blocks)
        with self._lock:
            left = [each for each in self._partitions.get(partition_id, ()) if each not in gone]
            self._keep(partition_id, left)

    def plan(self) -> MergePlan | None:
        """Return the next merge, if any."""
        with self._lock:
            while self._changed:
                partition_id = next(iter(self._changed))
                *closed, last = _stretches(self._partitions.get(partition_id, []))
                for blocks in (*closed, last):
                    found = window(blocks)
                    if found is None and len(blocks) > 1 and blocks is not last:
                        found = slice(0, len(blocks))
                    if found is not None:
                        return MergePlan(partition_id, blocks[found])
                self._changed.discard(partition_id)
                self._keep(partition_id, last)
        return None

    def _keep(self, partition_id: int, blocks: list[MergeCandidate]) -> None:
        self._count += len(blocks) - len(self._partitions.get(partition_id, ()))
        if blocks:
            self._partitions[partition_id] = blocks
        else:
            self._partitions.pop(partition_id, None)
            self._changed.discard(partition_id)


def window(blocks: Sequence[MergeCandidate]) -> slice | None:
    """Return the part of a stretch to merge; None to wait for more blocks."""
    for start in range(len(blocks) - 1):
        count = size = 0
        largest = 0.0
        found = None
        for stop, block in enumerate(blocks[start:], start + 1):
            count, size = count + block.records, size + block.size_bytes
            total = _fill(count, size)
            if total > 1:
                break
            largest = max(largest, _fill(block.records, block.size_bytes))
            if stop - start > 1 and (total >= 0.5 or total >= GROWTH * largest):
                found = slice(start, stop)
        if found is not None:
            return found
    return None


def _stretches(blocks: Sequence[MergeCandidate]) -> list[list[MergeCandidate]]:
    """Split the small blocks into adjacent stretches.

    The last stretch, which may be empty, is that at the end, where blocks may be added.
    """
    stretches: list[list[MergeCandidate]] = [[]]
    end = None
    for block in blocks:
        if block.worth_reading:
            stretches.append([])
        elif stretches[-1] and end != block.first:
            stretches.append([block])
        else:
            stretches[-1].append(block)
        end = block.end
    return stretches


def _fill(count: int, size_bytes: int) -> float:
    return max(count / block_format.MAX_BLOCK_RECORDS, size_bytes / block_format.MAX_BLOCK_BYTES)
