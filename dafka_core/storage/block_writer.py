"""Writes a batch's records as blocks after the others of their partition."""

from __future__ import annotations

from dafka_core.errors import StoreError
from dafka_core.model.records import RecordBatch
from dafka_core.storage.append_area import GroupedBlock
from dafka_core.storage.block import OFFSET, Block, build_blocks, header_of, plain_size
from dafka_core.storage.rows import LAST_OFFSET, PartitionRow
from dafka_core.storage.tables import Tables

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this size is rewritten together with the next records; the rewrite costs less
than its fsync."""

GROUPED_SHARE = 4
"""A batch below this part of a small block, 16 KiB, does not justify a block and the pages that
change for it: it goes to the append area."""


def write_batch(
    tables: Tables,
    batch: RecordBatch,
    row: PartitionRow,
    newest_us: int,
    buffer: bytearray,
    *,
    staged: bool,
) -> None:
    """Write a batch, with its times, as blocks, assembled in ``buffer`` as far as they fit.

    ``newest_us`` is the greatest timestamp before it.  A small batch goes to the append area,
    unless it is staged.  With another one the partition's last block is extended, if that is small,
    and staged, too.

    A damaged last block stays as it is.  Raises ValueError for an empty batch or too large a
    record, and StoreError if the partition's last block ends elsewhere.
    """
    assert batch.times is not None
    size_bytes = batch.values.size_bytes + OFFSET.itemsize * batch.count + batch.times.nbytes
    grouped = not staged and size_bytes < SMALL_BLOCK_BYTES // GROUPED_SHARE
    extended = None if grouped else _extended(tables, batch, row, row.end if staged else 0)
    into = None if grouped else buffer
    try:
        for start, packed in build_blocks(batch.values, batch.times, newest_us, extended, into):
            first = batch.offset + start
            if grouped:
                count = header_of(packed).records
                tables.area.append(GroupedBlock(row.id, first, count, packed))
            else:
                tables.put_block(row.id, first, packed)
    except ValueError as error:
        raise ValueError(f"{batch.tp}, append at offset {batch.offset}: {error}") from error


def _extended(tables: Tables, batch: RecordBatch, row: PartitionRow, floor: int) -> Block | None:
    tp, last = row.tp, tables.last_block(row.id, LAST_OFFSET)
    if last is None or last.first < floor:
        return None
    try:
        end = tables.end_of(tp, last)
        if end < batch.offset and tables.grouped(row, batch.offset - 1):
            return None  # the batch's predecessor is in the append area
        if plain_size(last.packed) >= SMALL_BLOCK_BYTES:
            return None
        block = tables.read_block(tp, last, Block.copied)
    except StoreError:
        return None  # noted for ``healing.py``
    if end != batch.offset:
        why = f"it ends at offset {end}, not at {batch.offset}"
        raise tables.damaged_block(tp, last.first, why)
    return block
