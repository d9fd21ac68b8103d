"""Merges small blocks, beside appends: few are left, and records are written few times.

The moves of a record on disk, each to a larger place.  One rule decides: ``FAN_IN`` things of a
size become one, so that a record is rewritten a logarithmic number of times.

    batch below 16 KiB -> group, level 0 -> level 1 -> level 2    (``append_area.py``)
            |               |                  |         |
            |               +--- 64 KiB, or followed by a block, or the last level
            v                                  v
    larger batch ------> block of the table -> larger block -> full block -> compressed when cold
                         (``entry_writer.py``)  (this module)     (``block_compressor.py``)

Adjacent small blocks of one partition form a stretch.  Three rules say when part of a stretch
becomes one block:

    it fills at least half a block     the result is not merged again
    it is at least ``FAN_IN`` times    so a record is rewritten about twice
    as large as its largest block
    a large block follows it           nothing can be added to it any more
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from dafka_core.errors import StoreError
from dafka_core.storage import block as block_format
from dafka_core.storage.append_area import FAN_IN, WIDTHS, Bucket, Mergeable
from dafka_core.storage.block import Block, compressed, header_of, merge, plain_size
from dafka_core.storage.environment import Environment
from dafka_core.storage.rows import BLOCK_KEY
from dafka_core.storage.tables import FoundBlock, Tables

T = TypeVar("T")

SCAN_BLOCKS = 4096
"""Blocks examined in one step: a few milliseconds.  Of partitions, after opening, as many."""


class MergeCandidate(NamedTuple):
    """A block: its first offset, its records, its uncompressed size."""

    first: int
    records: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Return the offset after its last record."""
        return self.first + self.records

    @property
    def is_large(self) -> bool:
        """Return True if it needs no merging: it has half a block's records or bytes."""
        return _fill(self.records, self.size_bytes) >= 0.5


def to_merge(blocks: Iterable[MergeCandidate]) -> list[MergeCandidate]:
    """Return the first of a partition's blocks to merge, which are adjacent; empty if none."""
    stretch: list[MergeCandidate] = []
    for block in blocks:
        if block.is_large or (stretch and stretch[-1].end != block.first):
            if len(stretch) > 1:
                return _part(stretch) or stretch
            stretch = []
        if not block.is_large:
            stretch.append(block)
    return _part(stretch)  # of the last stretch, to which blocks may be added


def _part(stretch: Sequence[MergeCandidate]) -> list[MergeCandidate]:
    """Return the part of a stretch to merge; empty to wait for more blocks."""
    for start in range(len(stretch) - 1):
        count = size = stop = 0
        largest = 0.0
        for number, block in enumerate(stretch[start:], start + 1):
            count, size = count + block.records, size + block.size_bytes
            total = _fill(count, size)
            if total > 1:
                break
            largest = max(largest, _fill(block.records, block.size_bytes))
            if number - start > 1 and (total >= 0.5 or total >= FAN_IN * largest):
                stop = number
        if stop:
            return list(stretch[start:stop])
    return []


def _fill(count: int, size_bytes: int) -> float:
    return max(count / block_format.MAX_BLOCK_RECORDS, size_bytes / block_format.MAX_BLOCK_BYTES)


class BlockMerger:
    """Merges what its writes have left; first it finds what was there before opening.

    Blocks are read, checked and assembled outside the write transaction, so that appends continue
    meanwhile.  The write transaction then replaces them by the merged block, if they are unchanged:
    a reader sees either, also after a kill.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._lock = threading.Lock()
        # By partition id: an offset at or before the first changed block, and their number.
        self._partitions: dict[int, tuple[int, int]] = {}
        self._buckets: dict[Bucket, None] = {}
        self._next_id: int | None = 0  # partitions from here on are not examined since opening
        self._damaged: set[bytes] = set()  # keys of blocks that were reported
        self._buffer = bytearray()

    @property
    def small_blocks(self) -> int:
        """Return the approximate number of small blocks that ``step`` has not examined."""
        with self._lock:
            grouped = sum(WIDTHS[level] * FAN_IN for level, _ in self._buckets)
            return grouped + sum(count for _, count in self._partitions.values())

    def write(self, work: Callable[[Tables], T]) -> T:
        """Write as the environment does, and note what may be merged then."""

        def noting(tables: Tables) -> tuple[T, Mergeable, set[Bucket]]:
            return work(tables), tables.mergeable, tables.area.due  # the area's flush adds to both

        done, mergeable, due = self._env.write(noting)
        self._add(mergeable, due)
        return done

    def step(self) -> bool:
        """Do a small step; return False if idle.

        Raises StoreError for a damaged block, which is skipped from then on, or a failing disk.
        """
        examined = 0
        while examined < SCAN_BLOCKS:
            with self._lock:
                if not self._partitions:
                    break
                partition_id = next(iter(self._partitions))
                start, _ = self._partitions.pop(partition_id)
            try:
                merged, count = self._merge_blocks(partition_id, start)
            except StoreError:
                self._add([(partition_id, start, 0)])
                self._merge_groups()  # a partition that fails each time must not stop the others
                raise
            if merged:
                return True
            examined += count
        return examined >= SCAN_BLOCKS or self._merge_groups() or self._find_partitions()

    def _add(self, mergeable: Iterable[tuple[int, int, int]], due: Iterable[Bucket] = ()) -> None:
        small_bytes = block_format.MAX_BLOCK_BYTES // 2
        with self._lock:
            for partition_id, first, size_bytes in mergeable:
                if size_bytes:
                    self._damaged.discard(BLOCK_KEY.pack(partition_id, first))
                start, count = self._partitions.get(partition_id, (first, 0))
                count += 0 < size_bytes < small_bytes
                self._partitions[partition_id] = min(start, first), count
            self._buckets.update(dict.fromkeys(due))

    def _merge_groups(self) -> bool:
        """Merge groups of one bucket of the append area; return False if none has enough."""
        with self._lock:
            if not self._buckets:
                return False
            bucket = next(iter(self._buckets))
            del self._buckets[bucket]
        try:
            self.write(lambda tables: tables.area.merge(bucket))
        except StoreError:
            self._add((), [bucket])  # after the others, which may have room
            raise
        return True

    def _merge_blocks(self, partition_id: int, start: int) -> tuple[bool, int]:
        """Merge some blocks of a partition; return True if there were any, and how many it read."""
        self._buffer = self._buffer or bytearray(block_format.MAX_BLOCK_BYTES)
        with self._env.reading() as tables:
            seen = list(islice(self._candidates(tables, partition_id, start), SCAN_BLOCKS))
            planned = to_merge(seen)
            blocks = [self._parsed(tables, partition_id, each.first) for each in planned]
            heads = {each.first: block.head for each, block in zip(planned, blocks, strict=True)}
            if blocks:
                merged = merge(blocks, self._buffer)
                # Blocks cold enough for compression stay compressed, with those merged into them.
                codec = max(block.codec for block in blocks)
                merged = (compressed(merged, codec) if codec else None) or merged
                blocks.clear()  # they are valid inside the transaction only
        if planned:
            if not self.write(lambda tables: tables.swap_blocks(partition_id, heads, merged)):
                self._add([(partition_id, start, 0)])  # they have changed meanwhile
        elif len(seen) == SCAN_BLOCKS and seen[-1].first > start:
            self._add([(partition_id, seen[-1].first, 0)])
        return bool(planned), len(seen)

    def _candidates(
        self, tables: Tables, partition_id: int, start: int
    ) -> Iterator[MergeCandidate]:
        """Yield the blocks from an offset on, after its stretch's and the previous stretch's."""
        gaps = 0
        while start and (last := tables.last_block(partition_id, start - 1)):
            before = self._candidate(tables, last)
            gaps += before.end != start
            if before.is_large or gaps > 1:
                break
            start = before.first
        end = tables.staged_start(partition_id)
        for found in tables.blocks_from(partition_id, start, end):
            yield self._candidate(tables, found)

    def _candidate(self, tables: Tables, found: FoundBlock) -> MergeCandidate:
        if found.key in self._damaged:
            return MergeCandidate(found.first, block_format.MAX_BLOCK_RECORDS, 0)  # not to merge
        head = self._read(tables, found, header_of)
        return MergeCandidate(found.first, head.records, plain_size(found.packed))

    def _parsed(self, tables: Tables, partition_id: int, first: int) -> Block:
        packed = tables.packed_block(partition_id, first)
        assert packed is not None
        return self._read(tables, FoundBlock(partition_id, first, packed), Block.parse)

    def _read(self, tables: Tables, found: FoundBlock, read: Callable[[memoryview], T]) -> T:
        try:
            return read(found.packed)
        except ValueError as error:
            self._damaged.add(found.key)
            tp = tables.tp_of_id(found.partition_id)
            raise tables.damaged_block(tp, found.first, str(error)) from error

    def _find_partitions(self) -> bool:
        """Search for partitions with blocks of the time before opening; return False at the end."""
        if self._next_id is None:
            return False
        with self._env.reading() as tables:
            found = list(islice(tables.ids_with_blocks(self._next_id), SCAN_BLOCKS))
        self._next_id = found[-1] + 1 if len(found) == SCAN_BLOCKS else None
        self._add((partition_id, 0, 0) for partition_id in found)
        return True
