"""Changing the log's tables inside a write transaction: appending, trimming, merging."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage import rows
from dafka_core.storage.block import HEADER, Block
from dafka_core.storage.block_builder import build_blocks
from dafka_core.storage.environment import Environment
from dafka_core.storage.merge_planner import MergeCandidate
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.storage_errors import damaged, damaged_block
from dafka_core.storage.tables import row_of

if TYPE_CHECKING:
    from dafka_core.storage.environment import Txn

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this is rewritten together with the next records, so that records trickling
in do not make a block each; what a rewrite costs stays below what its fsync costs."""

_ID = struct.Struct("<Q")
_NEXT_ID_KEY = b"next partition"


class FinishedBlock(NamedTuple):
    """A block that will not change any more, except by merging."""

    partition_id: int
    block: MergeCandidate


def write_batch(
    env: Environment,
    txn: Txn,
    batch: RecordBatch,
    row: PartitionRow,
    floor: int,
    stamp_us: int,
    buffer: bytearray,
) -> list[MergeCandidate]:
    """Writes a run's blocks behind the others of its partition, in ``buffer`` as far as that goes.

    The blocks written, after the one before them.  That one is extended if it is small and does
    not begin below ``floor``.

    Raises:
        ValueError: an empty batch, or a record that is too large.
        StoreError: the partition's last block is damaged.
    """
    last, extended = _last_block(env, txn, batch, row.id, floor)
    blocks = [last] if last else []
    try:
        for piece in build_blocks(batch.values, stamp_us, extended, buffer):
            first, count = batch.offset + piece.start, piece.stop - piece.start
            if piece.extends:
                assert last is not None
                first, count = last.first, last.records + count
                blocks.clear()
            key = rows.BLOCK.pack(row.id, first)
            txn.put(key, piece.packed, db=env.blocks)
            blocks.append(MergeCandidate(first, count, len(piece.packed)))
    except ValueError as error:
        name = f"topic {batch.topic!r}, partition {batch.partition}"
        raise ValueError(f"{name}, append at offset {batch.offset}: {error}") from error
    return blocks


def finished(row: PartitionRow, blocks: list[MergeCandidate]) -> list[FinishedBlock]:
    """Those of a partition's last blocks that the next append will not extend."""
    if blocks and blocks[-1].size_bytes < SMALL_BLOCK_BYTES:
        blocks = blocks[:-1]
    return [FinishedBlock(row.id, block) for block in blocks]


def put_row(env: Environment, txn: Txn, tp: TopicPartition, row: PartitionRow) -> None:
    """Writes a partition's row."""
    key = rows.partition_key(tp)
    txn.put(key, row.packed(key), db=env.partitions)


def trim_partition(env: Environment, txn: Txn, tp: TopicPartition, before: int) -> int:
    """Gives up the records below ``before``; the partition's earliest offset from now on.

    Raises:
        ValueError: ``before`` is above the partition's end.
    """
    row = row_of(env, txn, tp)
    end = row.end if row else 0
    if before > end:
        raise ValueError(
            f"topic {tp.topic!r}, partition {tp.partition}: cannot trim before offset {before}, "
            f"the partition ends at {end}"
        )
    if row is None or before <= row.earliest:
        return row.earliest if row else 0
    for key in _keys_before(env, txn, row, before):
        txn.delete(key, db=env.blocks)
    put_row(env, txn, tp, row._replace(earliest=before))
    return before


def swap_blocks(
    env: Environment,
    txn: Txn,
    block_keys: Sequence[bytes],
    heads: Sequence[bytes],
    merged: memoryview,
) -> bool:
    """Puts ``merged`` in the place of blocks; False, and nothing done, when they have changed.

    ``heads`` are their first bytes, with their checksums.
    """
    for key, head in zip(block_keys, heads, strict=True):
        found = txn.get(key, db=env.blocks)
        if found is None or bytes(found[: HEADER.size]) != head:
            return False
    for key in block_keys:
        txn.delete(key, db=env.blocks)
    txn.put(block_keys[0], merged, db=env.blocks)
    return True


def new_row(env: Environment, txn: Txn) -> PartitionRow:
    """A row for a partition that is new; ids are not used again.

    Raises:
        StoreError: the next id is another partition's, whose records would be written over.
    """
    found = txn.get(_NEXT_ID_KEY, db=env.meta)
    partition_id: int = _ID.unpack(found)[0] if found is not None else 0
    if txn.cursor(env.blocks).set_range(rows.BLOCK.pack(partition_id, 0)):
        raise damaged(env.directory, f"the id of the next partition, {partition_id}, is in use")
    txn.put(_NEXT_ID_KEY, _ID.pack(partition_id + 1), db=env.meta)
    return PartitionRow(partition_id, 0, 0, rows.NEVER_US)


def _last_block(
    env: Environment, txn: Txn, batch: RecordBatch, partition_id: int, floor: int
) -> tuple[MergeCandidate | None, Block | None]:
    """The block before a run's; as a block, too, if it is so small that it is to be extended."""
    cursor = txn.cursor(env.blocks)
    first = rows.seek_block(cursor, partition_id, rows.LAST_OFFSET)
    if first is None or first < floor:
        return None, None
    noted = MergeCandidate(first, batch.offset - first, len(cursor.value()))
    if noted.size_bytes >= SMALL_BLOCK_BYTES:
        return noted, None
    try:
        block = Block.parse(bytes(cursor.value()))
        if first + block.count != batch.offset:
            raise ValueError(f"it ends at offset {first + block.count}, not at {batch.offset}")
    except ValueError as error:
        raise damaged_block(env.directory, batch.tp, first, str(error)) from error
    return noted, block


def _keys_before(env: Environment, txn: Txn, row: PartitionRow, before: int) -> list[bytes]:
    """The keys of the blocks whose records all lie below ``before``."""
    doomed: list[bytes] = []
    cursor = txn.cursor(env.blocks)
    cursor.set_range(rows.BLOCK.pack(row.id, 0))
    for key in cursor.iternext(keys=True, values=False):
        partition_id, first = rows.BLOCK.unpack(key)
        # At the end, staged records may begin.
        if partition_id != row.id or first > before or first >= row.end:
            break
        doomed.append(bytes(key))
    # A block ends where the next one begins, the last one where the partition does.
    if doomed and before < row.end:
        doomed.pop()
    return doomed
