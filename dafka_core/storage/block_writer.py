"""Writing a batch's records as blocks, behind the others of their partition."""

from __future__ import annotations

from typing import NamedTuple

from dafka_core.records import RecordBatch
from dafka_core.storage.block import Block
from dafka_core.storage.block_builder import build_blocks
from dafka_core.storage.merge_planner import MergeCandidate
from dafka_core.storage.rows import LAST_OFFSET, PartitionRow
from dafka_core.storage.tables import Tables

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this is rewritten together with the next records, so that records trickling
in do not make a block each; what a rewrite costs stays below what its fsync costs."""


class FinishedBlock(NamedTuple):
    """A block that will not change any more, except by merging."""

    partition_id: int
    block: MergeCandidate


def write_batch(
    tables: Tables,
    batch: RecordBatch,
    row: PartitionRow,
    floor: int,
    stamp_us: int,
    buffer: bytearray,
) -> list[MergeCandidate]:
    """Writes a batch's blocks, assembled in ``buffer`` as far as they fit.

    Returns the blocks written, after the one before them.  That one is extended if it is small
    and does not begin below ``floor``.

    Raises:
        ValueError: an empty batch, or a record that is too large.
        StoreError: the partition's last block is damaged.
    """
    last, extended = _last_block(tables, batch, row.id, floor)
    blocks = [last] if last else []
    try:
        for built in build_blocks(batch.values, stamp_us, extended, buffer):
            first, count = batch.offset + built.start, built.stop - built.start
            if built.extends:
                assert last is not None
                first, count = last.first, last.records + count
                blocks.clear()
            tables.put_block(row.id, first, built.packed)
            blocks.append(MergeCandidate(first, count, len(built.packed)))
    except ValueError as error:
        name = f"topic {batch.topic!r}, partition {batch.partition}"
        raise ValueError(f"{name}, append at offset {batch.offset}: {error}") from error
    return blocks


def finished(row: PartitionRow, blocks: list[MergeCandidate]) -> list[FinishedBlock]:
    """Those of a partition's last blocks that the next append will not extend."""
    if blocks and blocks[-1].size_bytes < SMALL_BLOCK_BYTES:
        blocks = blocks[:-1]
    return [FinishedBlock(row.id, block) for block in blocks]


def _last_block(
    tables: Tables, batch: RecordBatch, partition_id: int, floor: int
) -> tuple[MergeCandidate | None, Block | None]:
    """The block before a batch's; as a block, too, if it is so small that it is to be extended."""
    found = tables.last_block(partition_id, LAST_OFFSET)
    if found is None or found.first < floor:
        return None, None
    last = MergeCandidate(found.first, batch.offset - found.first, len(found.packed))
    if last.size_bytes >= SMALL_BLOCK_BYTES:
        return last, None

    def read(packed: memoryview) -> Block:
        block = Block.parse(bytes(packed))
        if block.count != last.records:
            end = last.first + block.count
            raise ValueError(f"it ends at offset {end}, not at {batch.offset}")
        return block

    return last, tables.read_block(batch.tp, found, read)
