"""Looking into the log's tables inside a transaction: rows of partitions, places of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage import rows
from dafka_core.storage.block import peek_count, peek_times
from dafka_core.storage.environment import Environment
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.storage_errors import damaged, damaged_block
from dafka_core.values import Longs

if TYPE_CHECKING:
    from dafka_core.storage.environment import Txn

_TAIL_KEY = b"tail of "

T = TypeVar("T")


class FoundBlock(NamedTuple):
    """A block as it lies in the map: ``packed`` is valid as long as its transaction."""

    key: bytes
    first: int
    packed: memoryview


def row_of(env: Environment, txn: Txn, tp: TopicPartition) -> PartitionRow | None:
    """A partition's row; None when the partition is not known.

    Raises:
        StoreError: the row is damaged.
    """
    name = rows.partition_key(tp)
    found = txn.get(name, db=env.partitions)
    return None if found is None else _parsed(env, name, found)


def held_row(env: Environment, txn: Txn, tp: TopicPartition) -> PartitionRow | None:
    """A partition's row, for readers; None when it is not known, or has only staged records."""
    row = row_of(env, txn, tp)
    return row if row is not None and row.end else None


def name_of(env: Environment, txn: Txn, partition_id: int) -> TopicPartition:
    """The topic and the partition that have an id, found by looking at all of them."""
    for key, value in txn.cursor(env.partitions).iternext():
        if _parsed(env, bytes(key), value).id == partition_id:
            return rows.names(bytes(key))
    return TopicPartition("unknown", f"with id {partition_id}")


def tail_key(partition_id: int) -> bytes:
    """Where the table ``meta`` names a partition with a tail, so that none is searched for."""
    return _TAIL_KEY + partition_id.to_bytes(8, "big")


def tails(env: Environment, txn: Txn) -> list[TopicPartition]:
    """The partitions with a tail."""
    found = []
    cursor = txn.cursor(env.meta)
    cursor.set_range(_TAIL_KEY)
    for key, name in cursor.iternext():
        if not bytes(key).startswith(_TAIL_KEY):
            break
        found.append(rows.names(bytes(name)))
    return found


def staged_from(env: Environment, txn: Txn, partition_id: int) -> int:
    """Where a partition's staged blocks begin, if it has some; behind all blocks if not."""
    name = txn.get(tail_key(partition_id), db=env.meta)
    row = None
    if name is not None:
        row = row_of(env, txn, rows.names(bytes(name)))
    return rows.LAST_OFFSET if row is None else row.end


def infos_of(env: Environment, txn: Txn, topic: str | None) -> list[PartitionInfo]:
    """What is held of every partition, or of every one of a topic; in order of their names.

    Raises:
        StoreError: a row is damaged; or, when all are looked at, some are missing.
    """
    prefix = b"" if topic is None else rows.topic_prefix(topic)
    found = []
    count = 0
    cursor = txn.cursor(env.partitions)
    cursor.set_range(prefix)
    for key, value in cursor.iternext():
        name = bytes(key)
        if not name.startswith(prefix):
            break
        count += 1
        row = _parsed(env, name, value)
        if row.end:
            found.append(PartitionInfo(*rows.names(name), row.earliest, row.end))
    if topic is None:
        _check_count(env, txn, count)
    return found


def _check_count(env: Environment, txn: Txn, count: int) -> None:
    """Refuses a table whose tree leads to fewer rows, or more, than it says it has."""
    expected = txn.stat(env.partitions)["entries"]
    if count != expected:
        why = f"the table of partitions has {count} rows and says that they are {expected}"
        raise damaged(env.directory, why)


def block_at(env: Environment, txn: Txn, tp: TopicPartition, offset: int) -> FoundBlock | None:
    """The block that should hold a record; None when the record is not held.

    Raises:
        StoreError: the record is held, and there is no block for it that can be in its place.
    """
    row = row_of(env, txn, tp)
    if row is None or not row.earliest <= offset < row.end:
        return None
    return block_of(env, txn, tp, row, offset)


def block_of(
    env: Environment, txn: Txn, tp: TopicPartition, row: PartitionRow, offset: int
) -> FoundBlock:
    """The same where the partition's row is known, and has the record.

    Raises:
        StoreError: there is no block for it that can be in its place.
    """
    cursor = txn.cursor(env.blocks)
    first = rows.seek_block(cursor, row.id, offset)
    if first is None:
        raise damaged_block(env.directory, tp, offset, "there is no block")
    found = FoundBlock(bytes(cursor.key()), first, cursor.value())
    try:
        end = first + peek_count(found.packed)
    except ValueError as error:
        raise damaged_block(env.directory, tp, first, str(error)) from error
    if offset >= end:
        raise damaged_block(env.directory, tp, offset, "there is no block")
    # Its checksum tells what it holds, not where it belongs.  Looked for by its exact key: in a
    # damaged tree LMDB ends the process when it is asked for whatever comes next.  With the cursor:
    # ``get`` would have every page of the block that follows read.
    following = rows.BLOCK.pack(row.id, end)
    if end > row.end or (end < row.end and not cursor.set_key(following)):
        why = f"it ends at offset {end}, where no other one begins"
        raise damaged_block(env.directory, tp, first, why)
    return found


def read_block(
    env: Environment,
    tp: TopicPartition,
    found: FoundBlock,
    read: Callable[[memoryview], T],
) -> T:
    """What ``read`` makes of a block that ``block_at`` has found, in the same transaction.

    Raises:
        StoreError: it is damaged, as ``read`` says by a ValueError.
    """
    try:
        return read(found.packed)
    except ValueError as error:
        raise damaged_block(env.directory, tp, found.first, str(error)) from error


def size_of(env: Environment, txn: Txn, row: PartitionRow) -> int:
    """How many bytes the blocks of a partition have; without a look at them."""
    total = 0
    cursor = txn.cursor(env.blocks)
    cursor.set_range(rows.BLOCK.pack(row.id, 0))
    for key, packed in cursor.iternext():
        partition_id, first = rows.BLOCK.unpack(key)
        if partition_id != row.id or first >= row.end:
            break
        total += len(packed)
    return total


def time_at(env: Environment, txn: Txn, tp: TopicPartition, offset: int) -> int | None:
    """When a record was written; None when it is not held.  The block is not checked.

    Raises:
        StoreError: the block cannot be one.
    """
    found = _times_at(env, txn, tp, offset)
    if found is None:
        return None
    first, runs = found
    at = int(runs[:, 0].cumsum().searchsorted(offset - first, side="right"))
    return int(runs[at, 1])


def offset_of_time(env: Environment, txn: Txn, tp: TopicPartition, timestamp_us: int) -> int | None:
    """The first record held that was written then or later; None when there is none.

    A search over blocks, which are not checked.

    Raises:
        StoreError: a block that was looked at cannot be one.
    """
    row = row_of(env, txn, tp)
    if row is None or row.last_timestamp_us < timestamp_us:
        return None
    low, high = row.earliest, row.end
    while low < high:
        found = _times_at(env, txn, tp, (low + high) // 2)
        assert found is not None  # what is held does not change inside a transaction
        first, runs = found
        if runs[-1, 1] < timestamp_us:
            low = first + int(runs[:, 0].sum())
        elif runs[0, 1] >= timestamp_us:
            high = max(low, first)
        else:
            earlier = int(runs[runs[:, 1] < timestamp_us, 0].sum())
            return max(low, first + earlier)
    return low if low < row.end else None


def _parsed(env: Environment, name: bytes, value: memoryview) -> PartitionRow:
    try:
        return PartitionRow.parse(name, value)
    except ValueError as error:
        topic, partition = rows.names(name)
        raise damaged(env.directory, f"topic {topic!r}, partition {partition}: {error}") from error


def _times_at(
    env: Environment, txn: Txn, tp: TopicPartition, offset: int
) -> tuple[int, Longs] | None:
    """The first offset of the block that holds a record, and its runs of timestamps."""
    found = block_at(env, txn, tp, offset)
    if found is None:
        return None
    return found.first, read_block(env, tp, found, peek_times)
