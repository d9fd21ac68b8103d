"""Writes a batch's records as blocks after the others of their partition, and merges them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from functools import partial

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch
from dafka_core.storage.append_area import FAN_IN, WIDTHS, AppendArea, Bucket, GroupedBlock
from dafka_core.storage.block import (
    MAX_BLOCK_BYTES,
    OFFSET,
    Block,
    build_blocks,
    compressed,
    merge,
    peek_count,
    plain_size,
)
from dafka_core.storage.environment import Environment
from dafka_core.storage.merge_planner import MergeCandidate, MergePlan, MergePlanner
from dafka_core.storage.rows import LAST_OFFSET, PartitionRow
from dafka_core.storage.tables import Tables

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this size is rewritten together with the next records; the rewrite costs less
than its fsync."""

GROUPED_SHARE = 4
"""A batch below this part of a small block, 16 KiB, does not justify a block and the pages that
change for it: it goes to the append area."""


def group_batch(tables: Tables, batch: RecordBatch, row: PartitionRow, newest_us: int) -> bool:
    """Add a small batch with its times to the append area; return False for a large one.

    ``newest_us`` is the greatest timestamp before it.

    Raises:
        ValueError: an empty batch.
    """
    assert batch.times is not None
    size_bytes = batch.values.size_bytes + OFFSET.itemsize * batch.count + batch.times.nbytes
    if size_bytes >= SMALL_BLOCK_BYTES // GROUPED_SHARE:
        return False
    with _named(batch):
        for start, stop, _, packed in build_blocks(batch.values, batch.times, newest_us):
            first = batch.offset + start
            tables.area.append(GroupedBlock(row.id, first, stop - start, packed))
    return True


def write_batch(
    tables: Tables,
    batch: RecordBatch,
    row: PartitionRow,
    floor: int,
    newest_us: int,
    buffer: bytearray,
) -> list[MergeCandidate]:
    """Write a batch, with its times, as blocks, assembled in ``buffer`` as far as they fit.

    ``newest_us`` is the greatest timestamp before it.  Returns the written blocks, after their
    predecessor, which is extended if it is small and does not begin below ``floor``.

    Raises:
        ValueError: an empty batch, or a record that is too large.
        StoreError: the partition's last block is damaged.
    """
    assert batch.times is not None
    extended = None
    last = _last(tables, batch, row, floor)
    if last is not None and last.size_bytes < SMALL_BLOCK_BYTES:
        found = tables.last_block(row.id, last.first)
        assert found is not None
        extended = tables.read_block(batch.tp, found, partial(_parsed, last=last))
    blocks = [last] if last else []
    with _named(batch):
        for built in build_blocks(batch.values, batch.times, newest_us, extended, buffer):
            first, count = batch.offset + built.start, built.stop - built.start
            if built.extends:
                assert last is not None
                first, count = last.first, last.records + count
                blocks.clear()
            tables.put_block(row.id, first, built.packed)
            blocks.append(MergeCandidate(first, count, len(built.packed)))
    return blocks


def _last(
    tables: Tables, batch: RecordBatch, row: PartitionRow, floor: int
) -> MergeCandidate | None:
    """Return a batch's predecessor, unless that begins below ``floor`` or is in the area."""
    found = tables.last_block(row.id, LAST_OFFSET)
    if found is None or found.first < floor:
        return None
    end = found.first + tables.read_block(batch.tp, found, peek_count)
    if end < batch.offset and tables.grouped(batch.tp, row, batch.offset - 1):
        return None
    return MergeCandidate(found.first, batch.offset - found.first, plain_size(found.packed))


@contextlib.contextmanager
def _named(batch: RecordBatch) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{batch.tp}, append at offset {batch.offset}: {error}") from error


def _parsed(packed: memoryview, last: MergeCandidate) -> Block:
    block = Block.parse(bytes(packed))
    if block.count != last.records:
        end = last.first + block.count
        raise ValueError(f"it ends at offset {end}, not at {last.end}")
    return block


SCAN_BLOCKS = 4096
"""Blocks scanned in a step of the search after opening: a few milliseconds."""


class BlockMerger:
    """Merges by the plans of ``planner``, and first scans for blocks that it does not know yet.

    Blocks are read, checked and assembled outside the write transaction, so that appends continue
    meanwhile.  The write transaction then replaces them by the merged block, if they are unchanged:
    a reader sees either, also after a kill.
    """

    def __init__(self, env: Environment, planner: MergePlanner) -> None:
        self._env = env
        self._planner = planner
        self._lock = threading.Lock()
        self._scanned: tuple[int, int] | None = (0, 0)
        self._due: dict[Bucket, None] = {}
        self._due_lock = threading.Lock()
        self._buffer = bytearray()

    def step(self) -> bool:
        """Do a small step; return False if idle.

        Raises:
            ClosedError: the log is closed.
            StoreError: a block is damaged (it is skipped from then on), or the disk cannot accept
                it.
        """
        with self._lock:
            plan = self._planner.plan()
            if plan is not None:
                self._merge(plan)
                return True
            return self._merge_groups() or self._scan()

    def add_due(self, buckets: Iterable[Bucket]) -> None:
        """Queue buckets of the append area that have enough to be merged."""
        with self._due_lock:
            self._due.update(dict.fromkeys(buckets))

    @property
    def grouped(self) -> int:
        """Return the approximate number of small blocks to merge in the append area."""
        with self._due_lock:
            return sum(WIDTHS[level] * FAN_IN for level, _ in self._due)

    def _merge_groups(self) -> bool:
        """Merge groups of one bucket of the append area; return False if none has enough."""
        with self._due_lock:
            bucket = next(iter(self._due), None)
            if bucket is None:
                return False
            del self._due[bucket]

        def work(tables: Tables) -> AppendArea:
            tables.area.merge(bucket)
            return tables.area

        try:
            area = self._env.write(work)
        except StoreError:
            self.add_due([bucket])  # after the others, which may have room
            raise
        for partition_id, block in area.moved:
            self._planner.add(partition_id, block)
        self.add_due(area.due)
        return True

    def _merge(self, plan: MergePlan) -> None:
        self._buffer = self._buffer or bytearray(MAX_BLOCK_BYTES)
        with self._env.reading() as tables:
            blocks = self._read(tables, plan)
            if blocks is None:
                return
            heads = {first: block.head for first, block in blocks.items()}
            merged = merge(list(blocks.values()), self._buffer)
            size_bytes = len(merged)
            # Blocks cold enough for compression stay compressed, with those merged into them.
            codec = max(block.codec for block in blocks.values())
            merged = (compressed(merged, codec) if codec else None) or merged
            blocks.clear()  # they are valid inside the transaction only
        partition_id, planned = plan
        # If they have changed meanwhile, the next step plans again.
        if self._env.write(lambda tables: tables.swap_blocks(partition_id, heads, merged)):
            first, end = planned[0].first, planned[-1].end
            self._planner.drop(partition_id, planned)
            self._planner.add(partition_id, MergeCandidate(first, end - first, size_bytes))

    def _read(self, tables: Tables, plan: MergePlan) -> dict[int, Block] | None:
        """Return the planned blocks, by first offset; None after telling the planner of changes."""
        blocks: dict[int, Block] = {}
        found = []
        for planned in plan.blocks:
            packed = tables.packed_block(plan.partition_id, planned.first)
            if packed is None:
                continue
            try:
                block = blocks[planned.first] = Block.parse(packed)
            except ValueError as error:
                self._planner.drop(plan.partition_id, [planned])
                tp = tables.tp_of_id(plan.partition_id)
                raise tables.damaged_block(tp, planned.first, str(error)) from error
            found.append(MergeCandidate(planned.first, block.count, block.size_bytes))
        if found == plan.blocks:
            return blocks
        self._planner.drop(plan.partition_id, plan.blocks)
        for candidate in found:
            self._planner.add(plan.partition_id, candidate)
        return None

    def _scan(self) -> bool:
        """Search for small blocks of the time before opening; return False at the end.

        The last block of a partition is no candidate: the next append makes it one, or extends it.
        Staged blocks become candidates when they are committed.
        """
        if self._scanned is None:
            return False
        before_id, before_first, before_bytes, staged_start = -1, 0, 0, 0
        continues_at: tuple[int, int] | None = None
        with self._env.reading() as tables:
            found = enumerate(tables.block_sizes(*self._scanned, plain_size))
            for seen, (partition_id, first, size_bytes) in found:
                if partition_id != before_id:
                    staged_start = tables.staged_start(partition_id)
                elif first < staged_start:
                    block = MergeCandidate(before_first, first - before_first, before_bytes)
                    self._planner.add(partition_id, block, replace=False)
                if seen == SCAN_BLOCKS:
                    continues_at = partition_id, first
                    break
                before_id, before_first, before_bytes = partition_id, first, size_bytes
        self._scanned = continues_at
        return True
