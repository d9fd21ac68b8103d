"""Rewrites blocks beside appends: merges small ones, compresses cold ones, replaces damaged ones.

Merging leaves few blocks, and writes records few times.

The moves of a record on disk, each to a larger place.  One rule decides: ``FAN_IN`` things of a
size become one, so that a record is rewritten a logarithmic number of times.

    batch below 16 KiB -> group, level 0 -> level 1 -> level 2    (``append_area.py``)
            |               |                  |         |
            |               +--- 64 KiB, or followed by a block, or the last level
            v                                  v
    larger batch ------> block of the table -> larger block -> full block -> compressed when cold
                         (``entry_writer.py``)  (``BlockMerger``)  (``BlockCompressor``)

Adjacent small blocks of one partition form a stretch.  Three rules say when part of a stretch
becomes one block:

    it fills at least half a block     the result is not merged again
    it is at least ``FAN_IN`` times    so a record is rewritten about twice
    as large as its largest block
    a large block follows it           nothing can be added to it any more

A block is cold when its newest record is old.  So neither new records nor anything on its way to
the disk is compressed.

A damaged block stays in its place, and every read of it fails, until the records of another store
take that place, in one transaction: a kill leaves either.  A check of the partition then finds
whatever is damaged still.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from dafka_core.config.topic_rules import NONE, CompressionRule, codec_of
from dafka_core.errors import StoreError
from dafka_core.model.epochs import EpochId, History, last_life, prefix
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import block as block_format
from dafka_core.storage.append_area import FAN_IN, WIDTHS, Bucket
from dafka_core.storage.block import (
    NUMBERS,
    PLAIN,
    Block,
    build_blocks,
    compressed,
    header_of,
    merge,
    plain_size,
)
from dafka_core.storage.entry_writer import SMALL_BLOCK_BYTES
from dafka_core.storage.environment import UNCOMPRESSED, Compressed, Environment
from dafka_core.storage.log_check import check_records, next_start
from dafka_core.storage.rows import BLOCK_KEY, NEVER_US, PartitionRow
from dafka_core.storage.tables import FoundBlock, Tables

T = TypeVar("T")

# -- merging ---------------------------------------------------------------------------------------

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
        self._merged: dict[int, int] = {}  # as ``Tables.merged``, to be written
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
        done, mergeable, due = self._env.write(  # the area's flush adds to both
            lambda tables: (work(tables), tables.mergeable, tables.area.due)
        )
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
        if examined >= SCAN_BLOCKS or self._merge_groups() or self._find_partitions():
            return True
        self._note_merged()
        return False

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
            noted = tables.merged.get(partition_id)
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
            return True, len(seen)
        if len(seen) == SCAN_BLOCKS and seen[-1].first > start:
            self._add([(partition_id, seen[-1].first, 0)])
        end = max((each.end for each in seen if each.is_large), default=0)
        # Not before the partition was found: earlier blocks were not examined then.
        if end > noted and (self._next_id is None or partition_id < self._next_id):
            self._merged[partition_id] = end
        return False, len(seen)

    def _note_merged(self) -> None:
        noted, self._merged = self._merged, {}

        def write(tables: Tables) -> None:
            for partition_id, end in noted.items():
                tables.merged.put(partition_id, end)

        if noted:
            self._env.write(write)

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
            ids = islice(tables.ids_with_blocks(self._next_id), SCAN_BLOCKS)
            found = [(each, tables.merged.get(each), 0) for each in ids]
        self._next_id = found[-1][0] + 1 if len(found) == SCAN_BLOCKS else None
        self._add(found)
        return True


# -- compression -----------------------------------------------------------------------------------

COLD_SCAN_INTERVAL_S: Final = 30.0  # interval between two scans of all partitions

MAX_COMPRESSIBLE_BYTES: Final = 64 << 20
"""A larger block has one very large record, and stays uncompressed: compression takes memory."""


class _Cold(NamedTuple):
    """A cold block; ``packed`` is None if it stays uncompressed."""

    records: int
    head: bytes
    plain_bytes: int
    packed: memoryview | None


class BlockCompressor:
    """Compresses by ``rules``, ``after_s`` seconds after a block's last record was written.

    For one thread, which calls ``step`` repeatedly.  It has compressed ``blocks`` blocks, of
    ``before_bytes`` to ``after_bytes``.
    """

    def __init__(
        self,
        env: Environment,
        rules: Sequence[CompressionRule],
        after_s: float,
        now_us: Callable[[], int],
    ) -> None:
        self.rules = rules
        self.blocks = self.before_bytes = self.after_bytes = 0
        self._env = env
        self._after_us = int(after_s * 1_000_000)
        self._now_us = now_us
        self._waiting: deque[tuple[TopicPartition, int]] = deque()
        self._scanned_s = float("-inf")

    def step(self) -> bool:
        """Compress one block, or search for one; return False if idle.

        Raises StoreError for a damaged block, which is skipped from then on, or a failing disk.
        """
        if not any(rule.codec != NONE for rule in self.rules):
            return False
        if not self._waiting:
            if time.monotonic() - self._scanned_s < COLD_SCAN_INTERVAL_S:
                return False
            self._scanned_s = time.monotonic()
            self._scan()
            return bool(self._waiting)
        tp, mark = self._waiting.popleft()
        end = self._compress(tp, mark)
        if end is not None:
            self._waiting.appendleft((tp, end))
        return True

    def _scan(self) -> None:
        with self._env.reading() as tables:
            for row in tables.all_rows():
                is_wanted = row.end and codec_of(row.tp.topic, self.rules) != NONE
                if is_wanted and (mark := tables.cold.get(row.id)) < row.end:
                    self._waiting.append((row.tp, mark))

    def _compress(self, tp: TopicPartition, mark: int) -> int | None:
        """Examine the partition's next block; return its end, or None if it has no cold one."""
        number = NUMBERS[codec_of(tp.topic, self.rules)]
        with self._env.reading() as tables:
            row = tables.visible_row(tp)
            if row is None:
                return None
            noted = tables.cold.get(row.id)
            found = next(tables.blocks_reaching(row.id, max(mark, row.earliest), row.end), None)
            cold: _Cold | None = None
            damage: StoreError | None = None
            try:
                cold = found and tables.read_block(tp, found, partial(self._cold, number))
            except StoreError as error:
                assert found is not None
                mark, damage = next(tables.firsts(row.id, found.first + 1), row.end), error
        if cold is None or found is None:
            if mark > noted:  # after uncompressed or damaged ones
                self._env.write(lambda tables: tables.cold.put(row.id, mark))
            if damage is not None:
                if mark < row.end:
                    self._waiting.appendleft((tp, mark))
                raise damage
            return None
        first, end = found.first, found.first + cold.records
        if cold.packed is None:
            return end
        packed = cold.packed

        def write(tables: Tables) -> bool:
            done = tables.swap_blocks(row.id, {first: cold.head}, packed)
            if done:
                tables.cold.put(row.id, end)
            return done

        if not self._env.write(write):
            return mark  # it has changed meanwhile
        returns, before = self._env.compressed.get(tp, UNCOMPRESSED)
        self._env.compressed[tp] = Compressed(returns + (end <= before), end)
        self.blocks += 1
        self.before_bytes += cold.plain_bytes
        self.after_bytes += len(packed)
        return end

    def _cold(self, number: int, packed: memoryview) -> _Cold | None:
        """Return the block, if it is cold, compressed if that is worthwhile."""
        head, size_bytes = header_of(packed), plain_size(packed)
        if head.newest_us > self._now_us() - self._after_us:
            return None
        if head.codec == PLAIN and SMALL_BLOCK_BYTES <= size_bytes <= MAX_COMPRESSIBLE_BYTES:
            unique = Block.parse(packed).head
            return _Cold(head.records, unique, size_bytes, compressed(packed, number))
        return _Cold(head.records, b"", size_bytes, None)


# -- damage ----------------------------------------------------------------------------------------


class DamagedRange(NamedTuple):
    """Unreadable records ``start`` to ``end`` (exclusive), and the history before ``end``."""

    tp: TopicPartition
    start: int
    end: int
    history: History

    @property
    def life(self) -> EpochId | None:
        """Return the last life of its history, if any."""
        return last_life(self.history) if self.history else None


class Healer:
    """Finds damaged records of one log, and replaces them.  For one thread."""

    def __init__(self, env: Environment, merger: BlockMerger) -> None:
        self._env = env
        self._merger = merger
        self.damaged = env.damaged  # until all of a partition's damage is replaced

    def damaged_ranges(self, tp: TopicPartition) -> Iterator[DamagedRange | None]:
        """Check records in steps; yield damaged ranges, up to a readable block, or None."""
        for checked in check_records(self._env.reading, tp):
            for damage in checked.found:
                with self._env.reading() as tables:
                    row = tables.visible_row(tp)
                    if row is None:
                        return
                    end = next_start(tables, row, damage.offset)
                    history = prefix(tables.lives.history(row), end)
                yield DamagedRange(tp, damage.offset, end, history)
            yield None

    def rewrite_groups(self, tp: TopicPartition) -> None:
        """Remove damaged groups of the append area with a partition's records, which it has healed.

        A group stays if other partitions lack records, which are noted as damaged.
        """
        with self._env.reading() as tables:
            row = tables.visible_row(tp)
            groups = tables.area.damaged(row.id) if row else []
            ids = {each.tp: each.id for each in tables.all_rows()} if groups else {}
        whole: list[bytes] = []
        for key, bucket in groups:  # each partition is checked, to be noted
            complete = [self._is_complete(each) for each, number in ids.items() if number in bucket]
            whole += [key] if all(complete) else []
        if whole:
            self._env.write(lambda tables: tables.area.rewrite(whole))

    def _is_complete(self, tp: TopicPartition) -> bool:
        with suppress(StoreError), self._env.reading() as tables:
            if row := tables.visible_row(tp):
                deque(tables.blocks_between(row, 0, row.end), maxlen=0)
            return True
        return False

    def replace(self, damaged: DamagedRange, batch: RecordBatch) -> bool:
        """Replace the first records of a range by a batch, and merge it later as other blocks.

        Returns False, without effect, if the range has been trimmed or set aside meanwhile.  Raises
        StoreError if pages of the damaged block are damaged, too.
        """
        return self._merger.write(lambda tables: self._replace(tables, damaged, batch))

    def _replace(self, tables: Tables, damaged: DamagedRange, batch: RecordBatch) -> bool:
        tp, start = damaged.tp, batch.offset
        row = tables.visible_row(tp)
        if (
            row is None
            or not row.earliest <= start < batch.end <= next_start(tables, row, start)
            or prefix(tables.lives.history(row), damaged.end) != damaged.history
        ):
            return False
        newest_us = _newest_us(tables, row, start)
        old = tables.last_block(row.id, start)
        if old is not None and (start in (old.first, row.earliest)):
            if not self._env.positions.is_whole(old.packed):
                why = "its page in the file is damaged, too, and LMDB cannot replace it"
                raise tables.damaged_block(tp, old.first, why)
            tables.delete_blocks(row.id, [old.first])
        tables.area.cut(row.id, start, batch.end)
        tables.scan_again(row.id, start)
        assert batch.times is not None
        for number, packed in build_blocks(batch.values, batch.times, newest_us):
            tables.put_block(row.id, start + number, packed)
        tables.changed.add(tp)
        return True


def _newest_us(tables: Tables, row: PartitionRow, start: int) -> int:
    """Return the greatest timestamp up to the block that ends at an offset.

    If that is damaged, return the partition's greatest one: records must not seem to be older.
    """
    if start == row.earliest:
        return NEVER_US
    with suppress(ValueError):
        found = tables.last_block(row.id, start - 1)
        if found is not None and found.end == start:
            return header_of(found.packed).newest_us
    grouped = (each.packed for each in tables.area.readable(row.id) if each.end == start)
    return max((header_of(each).newest_us for each in grouped), default=row.newest_us)
