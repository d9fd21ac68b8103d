"""Writing a batch's records as blocks, behind the others of their partition."""

from __future__ import annotations

from functools import partial

from dafka_core.records import RecordBatch
from dafka_core.storage.block import Block
from dafka_core.storage.block_builder import build_blocks
from dafka_core.storage.merge_planner import MergeCandidate
from dafka_core.storage.rows import LAST_OFFSET, PartitionRow
from dafka_core.storage.tables import Tables

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this is rewritten together with the next records, so that records trickling
in do not make a block each; what a rewrite costs stays below what its fsync costs."""


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
    last = extended = None
    found = tables.last_block(row.id, LAST_OFFSET)
    if found is not None and found.first >= floor:
        last = MergeCandidate(found.first, batch.offset - found.first, len(found.packed))
        if last.size_bytes < SMALL_BLOCK_BYTES:
            extended = tables.read_block(batch.tp, found, partial(_parsed, last=last))
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


def finished(row: PartitionRow, blocks: list[MergeCandidate]) -> list[tuple[int, MergeCandidate]]:
    """Those of a partition's last blocks that the next append will not extend, after its id."""
    if blocks and blocks[-1].size_bytes < SMALL_BLOCK_BYTES:
        blocks = blocks[:-1]
    return [(row.id, block) for block in blocks]


def _parsed(packed: memoryview, last: MergeCandidate) -> Block:
    block = Block.parse(bytes(packed))
    if block.count != last.records:
        end = last.first + block.count
        raise ValueError(f"it ends at offset {end}, not at {last.end}")
    return block
