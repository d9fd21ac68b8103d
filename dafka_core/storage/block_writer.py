"""Writing a batch's records as blocks, behind the others of their partition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from dafka_core.model.records import RecordBatch
from dafka_core.storage.append_area import GroupedBlock
from dafka_core.storage.block import OFFSET, Block, peek_count, plain_size
from dafka_core.storage.block_builder import build_blocks
from dafka_core.storage.merge_planner import MergeCandidate
from dafka_core.storage.rows import LAST_OFFSET, PartitionRow
from dafka_core.storage.tables import Tables

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this is rewritten together with the next records; what a rewrite costs stays
below what its fsync costs."""

GROUPED_SHARE = 4
"""A batch below this part of a small block, 16 KiB, is not worth a block and the pages that change
for it: it goes to the append area."""


def group_batch(tables: Tables, batch: RecordBatch, row: PartitionRow) -> bool:
    """Gives a batch with its times, if it is small, to the append area; False when it is not.

    Raises:
        ValueError: an empty batch.
    """
    assert batch.times is not None
    size_bytes = batch.values.size_bytes + OFFSET.itemsize * batch.count + batch.times.nbytes
    if size_bytes >= SMALL_BLOCK_BYTES // GROUPED_SHARE:
        return False
    with _named(batch):
        for start, stop, _, packed in build_blocks(batch.values, batch.times):
            first = batch.offset + start
            tables.area.append(GroupedBlock(row.id, first, stop - start, packed))
    return True


def write_batch(
    tables: Tables,
    batch: RecordBatch,
    row: PartitionRow,
    floor: int,
    buffer: bytearray,
) -> list[MergeCandidate]:
    """Writes a batch, with its times, as blocks, assembled in ``buffer`` as far as they fit.

    Returns the blocks written, after the one before them.  That one is extended if it is small
    and does not begin below ``floor``.

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
        for built in build_blocks(batch.values, batch.times, extended, buffer):
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
    """The block that a batch follows, unless that begins below ``floor`` or is in the area."""
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
