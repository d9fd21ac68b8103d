"""Looking into the log's tables inside a transaction: rows of partitions, places of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dafka_core.records import Longs, PartitionInfo
from dafka_core.storage import keys
from dafka_core.storage.block import peek_times
from dafka_core.storage.environment import Environment
from dafka_core.storage.failures import damaged_block
from dafka_core.storage.keys import Row

if TYPE_CHECKING:
    from dafka_core.storage.environment import Transaction


class Found(NamedTuple):
    """A block as it lies in the map: ``packed`` is valid as long as its transaction."""

    key: bytes
    first: int
    packed: memoryview


def row_of(env: Environment, transaction: Transaction, topic: str, partition: str) -> Row | None:
    """A partition's row; None when the partition is not known."""
    found = transaction.get(keys.partition_key(topic, partition), db=env.partitions)
    return None if found is None else Row.parse(found)


def name_of(env: Environment, transaction: Transaction, partition_id: int) -> tuple[str, str]:
    """The topic and the partition that have an id, found by looking at all of them."""
    for key, value in transaction.cursor(env.partitions).iternext():
        if Row.parse(value).id == partition_id:
            return keys.names(bytes(key))
    return "unknown", f"with id {partition_id}"


def infos_of(env: Environment, transaction: Transaction, topic: str | None) -> list[PartitionInfo]:
    """What is held of every partition, or of every one of a topic; in order of their names."""
    prefix = b"" if topic is None else keys.topic_prefix(topic)
    found = []
    cursor = transaction.cursor(env.partitions)
    cursor.set_range(prefix)
    for key, value in cursor.iternext():
        name = bytes(key)
        if not name.startswith(prefix):
            break
        row = Row.parse(value)
        found.append(PartitionInfo(*keys.names(name), row.earliest, row.end))
    return found


def block_at(
    env: Environment, transaction: Transaction, topic: str, partition: str, offset: int
) -> Found | None:
    """The block that should hold a record; None when the record is not held.

    Raises:
        StoreError: the record is held, and there is no block that begins before it.
    """
    row = row_of(env, transaction, topic, partition)
    if row is None or not row.earliest <= offset < row.end:
        return None
    cursor = transaction.cursor(env.blocks)
    first = keys.seek_block(cursor, row.id, offset)
    if first is None:
        raise damaged_block(env.directory, topic, partition, offset, "there is no block")
    return Found(bytes(cursor.key()), first, cursor.value())


def size_of(env: Environment, transaction: Transaction, partition_id: int) -> int:
    """How many bytes the blocks of a partition have; without a look at them."""
    total = 0
    cursor = transaction.cursor(env.blocks)
    cursor.set_range(keys.BLOCK.pack(partition_id, 0))
    for key, packed in cursor.iternext():
        if keys.BLOCK.unpack(key)[0] != partition_id:
            break
        total += len(packed)
    return total


def time_at(
    env: Environment, transaction: Transaction, topic: str, partition: str, offset: int
) -> int | None:
    """When a record was written; None when it is not held.  The block is not checked.

    Raises:
        StoreError: the block cannot be one.
    """
    found = _times_at(env, transaction, topic, partition, offset)
    if found is None:
        return None
    first, runs = found
    at = int(runs[:, 0].cumsum().searchsorted(offset - first, side="right"))
    return int(runs[at, 1])


def offset_of_time(
    env: Environment, transaction: Transaction, topic: str, partition: str, timestamp_us: int
) -> int | None:
    """The first record held that was written then or later; None when there is none.

    A search over blocks, which are not checked.

    Raises:
        StoreError: a block that was looked at cannot be one.
    """
    row = row_of(env, transaction, topic, partition)
    if row is None or row.last_timestamp_us < timestamp_us:
        return None
    low, high = row.earliest, row.end
    while low < high:
        found = _times_at(env, transaction, topic, partition, (low + high) // 2)
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


def _times_at(
    env: Environment, transaction: Transaction, topic: str, partition: str, offset: int
) -> tuple[int, Longs] | None:
    """The first offset of the block that holds a record, and its runs of timestamps."""
    found = block_at(env, transaction, topic, partition, offset)
    if found is None:
        return None
    try:
        runs = peek_times(found.packed)
    except ValueError as error:
        directory = env.directory
        raise damaged_block(directory, topic, partition, found.first, str(error)) from error
    if offset >= found.first + int(runs[:, 0].sum()):
        raise damaged_block(env.directory, topic, partition, offset, "there is no block")
    return found.first, runs
