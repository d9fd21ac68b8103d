"""Writes a batch's records as blocks after the others of their partition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dafka_core.model.records import RecordBatch
from dafka_core.storage.append_area import GroupedBlock
from dafka_core.storage.block import (
    OFFSET,
    Block,
    build_blocks,
    header_of,
    plain_size,
)
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
        for start, packed in build_blocks(batch.values, batch.times, newest_us):
            first = batch.offset + start
            tables.area.append(GroupedBlock(row.id, first, header_of(packed).records, packed))
    return True


def write_batch(
    tables: Tables,
    batch: RecordBatch,
    row: PartitionRow,
    floor: int,
    newest_us: int,
    buffer: bytearray,
) -> None:
    """Write a batch, with its times, as blocks, assembled in ``buffer`` as far as they fit.

    ``newest_us`` is the greatest timestamp before it.  The partition's last block is extended if it
    is small and does not begin below ``floor``.

    Raises:
        ValueError: an empty batch, or a record that is too large.
        StoreError: the partition's last block is damaged.
    """
    assert batch.times is not None
    extended = _extended(tables, batch, row, floor)
    with _named(batch):
        for start, packed in build_blocks(batch.values, batch.times, newest_us, extended, buffer):
            tables.put_block(row.id, batch.offset + start, packed)


def _extended(tables: Tables, batch: RecordBatch, row: PartitionRow, floor: int) -> Block | None:
    last = tables.last_block(row.id, LAST_OFFSET)
    if last is None or last.first < floor:
        return None
    end = tables.end_of(batch.tp, last)
    if end < batch.offset and tables.grouped(batch.tp, row, batch.offset - 1):
        return None  # the batch's predecessor is in the append area
    if plain_size(last.packed) >= SMALL_BLOCK_BYTES:
        return None
    if end != batch.offset:
        why = f"it ends at offset {end}, not at {batch.offset}"
        raise tables.damaged_block(batch.tp, last.first, why)
    return tables.read_block(batch.tp, last, Block.copied)


@contextlib.contextmanager
def _named(batch: RecordBatch) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{batch.tp}, append at offset {batch.offset}: {error}") from error
