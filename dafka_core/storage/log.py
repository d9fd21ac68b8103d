"""The store's durable log: partitions of records, appended in whole runs, synced before it says so.

Tables (LMDB, one environment per directory):

    meta         the format's version; the id of the next new partition
    partitions   topic, a zero octet, partition  ->  id, earliest, end, last timestamp
    blocks       partition id, first offset (both 8 octets, big endian)  ->  block (``block.py``)

What a partition's row says is written in the transaction of the blocks it tells of, so it cannot
disagree with them.  Everything handed out is a copy: it stays valid after later writes, trims and
``close``, and no read transaction is open between calls, so readers never hold back freed pages.

One thread writes; any number of threads read at the same time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from dafka_core.errors import StoreError
from dafka_core.records import PartitionInfo, Run
from dafka_core.storage import keys
from dafka_core.storage.block import Block, Chunk, pack_pieces
from dafka_core.storage.cache import BlockCache
from dafka_core.storage.environment import DEFAULT_MAP_BYTES, Environment
from dafka_core.storage.keys import Row

if TYPE_CHECKING:
    from dafka_core.storage.environment import Transaction

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this is rewritten together with the next records, so that records trickling
in do not make a block each; what a rewrite costs stays below what its fsync costs."""

DEFAULT_MAX_RECORDS = 1 << 20
DEFAULT_MAX_BYTES = 64 << 20
"""What one ``read`` returns at most unless told: a few blocks, so memory stays bounded."""

_ID = struct.Struct("<Q")
_NEXT_ID_KEY = b"next partition"


class WrongOffsetError(ValueError):
    """An append that does not begin where its partition ends: a gap or an overlap."""

    def __init__(self, topic: str, partition: str, offset: int, end: int) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: records from offset {offset} on were to be "
            f"appended, but the partition ends at {end}"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end


def _now_us() -> int:
    return time.time_ns() // 1000


class Log:
    """The log in one directory, which is made when missing.

    ``read_only`` opens an existing one beside the process that writes it.  ``map_size_bytes`` is
    address space to begin with; it grows by itself.  ``clock_us`` gives microseconds since the
    epoch UTC.

    Raises:
        StoreError: the directory is another writer's, is damaged, is not a store's, or there is
            none (``read_only``).
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        read_only: bool = False,
        map_size_bytes: int = DEFAULT_MAP_BYTES,
        clock_us: Callable[[], int] = _now_us,
    ) -> None:
        self.directory = Path(directory)
        self.read_only = read_only
        self._clock_us = clock_us
        self._cache = BlockCache()
        self._env = Environment(self.directory, read_only=read_only, map_size_bytes=map_size_bytes)

    def append(self, appends: Sequence[Run]) -> None:
        """Writes all runs, or none; they are on disk when this returns.

        Several runs of one partition must follow each other.  All are stamped with one time,
        or with their partition's last one when the clock went back.

        Raises:
            WrongOffsetError: a run does not begin at its partition's end.
            ValueError: an empty run, a record above ``block.MAX_RECORD_BYTES``, or a name that
                cannot be stored.
            StoreError: the disk cannot take it; reading goes on working.
        """
        keyed = [(keys.partition_key(append.topic, append.partition), append) for append in appends]
        now_us = self._clock_us()

        def write(transaction: Transaction) -> None:
            for key, append in keyed:
                self._append_one(transaction, key, append, now_us)

        if keyed:
            self._env.write(write)

    def trim(self, topic: str, partition: str, before: int) -> int:
        """Gives up the records below ``before``; whole blocks of them free their space.

        Returns the partition's earliest offset from now on, which is higher than ``before`` when
        it was already.

        Raises:
            ValueError: ``before`` is above the partition's end.
            StoreError: the disk cannot take it.
        """
        key = keys.partition_key(topic, partition)

        def write(transaction: Transaction) -> int:
            row = self._row(transaction, key)
            end = row.end if row else 0
            if before > end:
                raise ValueError(
                    f"topic {topic!r}, partition {partition}: cannot trim before offset {before}, "
                    f"the partition ends at {end}"
                )
            if row is None or before <= row.earliest:
                return row.earliest if row else 0
            for block_key in self._keys_before(transaction, row, before):
                transaction.delete(block_key, db=self._env.blocks)
            trimmed = row._replace(earliest=before)
            transaction.put(key, trimmed.packed(), db=self._env.partitions)
            return before

        return self._env.write(write)

    def partitions(self, topic: str | None = None) -> list[PartitionInfo]:
        """What is held of every partition, or of every one of a topic; in order of their names."""
        prefix = b"" if topic is None else keys.topic_prefix(topic)
        found = []
        with self._env.reading() as transaction:
            cursor = transaction.cursor(self._env.partitions)
            cursor.set_range(prefix)
            for key, value in cursor.iternext():
                name = bytes(key)
                if not name.startswith(prefix):
                    break
                row = Row.parse(value)
                found.append(PartitionInfo(*keys.names(name), row.earliest, row.end))
        return found

    def info(self, topic: str, partition: str) -> PartitionInfo | None:
        """What is held of a partition; None when it is not known."""
        row = self._held(topic, partition)
        return PartitionInfo(topic, partition, row.earliest, row.end) if row else None

    def end(self, topic: str, partition: str) -> int:
        """The offset of the partition's next record; 0 when it is not known."""
        found = self.info(topic, partition)
        return found.end if found else 0

    def read(
        self,
        topic: str,
        partition: str,
        start: int,
        end: int,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> list[Chunk]:
        """The records from ``start`` up to ``end`` (exclusive) that are held, in order, no gap.

        Fewer when ``max_records`` or ``max_bytes`` (of values) is reached, but at least one
        record when one is held.  The first chunk begins above ``start`` only when the records
        before it have been trimmed.

        Raises:
            StoreError: a block is damaged (topic, partition and offset are named).
        """
        chunks: list[Chunk] = []
        for offset, block in self._blocks(topic, partition, start, end):
            count = min(block.count, max_records, block.fitting(max_bytes))
            if count < 1 and chunks:
                break
            count = max(count, 1)
            part = block.slice(0, count)
            chunks.append(Chunk(offset, part))
            max_records -= count
            max_bytes -= len(part.data)
            if count < block.count or max_records <= 0 or max_bytes <= 0:
                break
        return chunks

    def times(self, topic: str, partition: str, start: int, end: int) -> list[tuple[int, int]]:
        """When the records from ``start`` up to ``end`` (exclusive) were written.

        Pairs (first offset, microseconds since the epoch UTC), ascending; each time holds up to
        the next pair's offset.  Empty when none of the records is held.

        Raises:
            StoreError: a block is damaged.
        """
        offsets, stamps = [], []
        for first, block in self._blocks(topic, partition, start, end):
            runs = block.timestamp_runs
            offsets.append(first + runs[:, 0].cumsum() - runs[:, 0])
            stamps.append(runs[:, 1])
        if not offsets:
            return []
        all_offsets, all_stamps = np.concatenate(offsets), np.concatenate(stamps)
        changes = np.append(True, all_stamps[1:] != all_stamps[:-1])
        return list(zip(all_offsets[changes].tolist(), all_stamps[changes].tolist(), strict=True))

    def offset_for_time(self, topic: str, partition: str, timestamp_us: int) -> int | None:
        """The first record held that was written at ``timestamp_us`` or later.

        None when there is none.  Looks at a number of blocks that grows with the logarithm of
        the number of records.

        Raises:
            StoreError: a block is damaged.
        """
        row = self._held(topic, partition)
        if row is None or row.earliest == row.end or row.last_timestamp_us < timestamp_us:
            return None
        low, high = row.earliest, row.end
        while low < high:
            found = self._block_at(topic, partition, (low + high) // 2)
            if found is None:  # trimmed meanwhile: what was below is gone
                low = (low + high) // 2 + 1
                continue
            first, block = found
            stamps = block.timestamps()
            if stamps[-1] < timestamp_us:
                low = first + block.count
            elif stamps[0] >= timestamp_us:
                high = max(low, first)
            else:
                return max(low, first + int(stamps.searchsorted(timestamp_us)))
        return low if low < row.end else None

    def close(self) -> None:
        """Waits for reads and writes to end, then closes; a second call does nothing."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _append_one(self, transaction: Transaction, key: bytes, append: Run, now_us: int) -> None:
        row = self._row(transaction, key) or self._new_row(transaction)
        if append.offset != row.end:
            raise WrongOffsetError(append.topic, append.partition, append.offset, row.end)
        stamp_us = max(now_us, row.last_timestamp_us)
        tail = self._small_tail(transaction, append, row)
        try:
            for piece in pack_pieces(append.values, stamp_us, tail[1] if tail else None):
                first = tail[0] if tail and piece.extends else append.offset + piece.start
                block_key = keys.BLOCK.pack(row.id, first)
                transaction.put(block_key, piece.packed, db=self._env.blocks)
        except ValueError as error:
            name = f"topic {append.topic!r}, partition {append.partition}"
            raise ValueError(f"{name}, append at offset {append.offset}: {error}") from error
        written = row._replace(end=append.end, last_timestamp_us=stamp_us)
        transaction.put(key, written.packed(), db=self._env.partitions)

    def _new_row(self, transaction: Transaction) -> Row:
        found = transaction.get(_NEXT_ID_KEY, db=self._env.meta)
        partition_id: int = _ID.unpack(found)[0] if found is not None else 0
        transaction.put(_NEXT_ID_KEY, _ID.pack(partition_id + 1), db=self._env.meta)
        return Row(partition_id, 0, 0, keys.NEVER_US)

    def _small_tail(
        self, transaction: Transaction, append: Run, row: Row
    ) -> tuple[int, Block] | None:
        """The partition's last block and its first offset, if it is to be extended."""
        cursor = transaction.cursor(self._env.blocks)
        first = keys.seek_block(cursor, row.id, keys.LAST_OFFSET)
        if first is None or len(cursor.value()) >= SMALL_BLOCK_BYTES:
            return None
        block = self._parsed(bytes(cursor.value()), append.topic, append.partition, first)
        if first + block.count != row.end:
            why = f"it ends at offset {first + block.count}, not at {row.end}"
            raise self._damaged(append.topic, append.partition, first, why)
        return first, block

    def _blocks(
        self, topic: str, partition: str, start: int, end: int
    ) -> Iterator[tuple[int, Block]]:
        """The parts of the blocks that hold ``start`` to ``end``, each read when asked for."""
        held = self.info(topic, partition)
        if held is None:
            return
        offset, end = max(start, held.earliest), min(end, held.end)
        while offset < end:
            found = self._block_at(topic, partition, offset)
            if found is None:  # trimmed meanwhile; what has been handed out remains true
                return
            first, block = found
            count = min(first + block.count, end) - offset
            yield offset, block.slice(offset - first, count)
            offset += count

    def _block_at(self, topic: str, partition: str, offset: int) -> tuple[int, Block] | None:
        """The block that holds a record, and its first offset; None when the record is not held."""
        with self._env.reading() as transaction:
            row = self._row(transaction, keys.partition_key(topic, partition))
            if row is None or not row.earliest <= offset < row.end:
                return None
            cursor = transaction.cursor(self._env.blocks)
            first = keys.seek_block(cursor, row.id, offset)
            if first is None:
                raise self._damaged(topic, partition, offset, "there is no block")
            key = bytes(cursor.key())
            block = self._cache.get(key)
            if block is not None and offset < first + block.count:
                return first, block
            copied = bytes(cursor.value())
        block = self._parsed(copied, topic, partition, first)
        if offset >= first + block.count:
            raise self._damaged(topic, partition, offset, "there is no block")
        self._cache.put(key, block)
        return first, block

    def _keys_before(self, transaction: Transaction, row: Row, before: int) -> list[bytes]:
        """The keys of the blocks whose records all lie below ``before``."""
        doomed: list[bytes] = []
        cursor = transaction.cursor(self._env.blocks)
        cursor.set_range(keys.BLOCK.pack(row.id, 0))
        for key in cursor.iternext(keys=True, values=False):
            partition_id, first = keys.BLOCK.unpack(key)
            if partition_id != row.id or first > before:
                break
            doomed.append(bytes(key))
        # A block ends where the next one begins, the last one where the partition does.
        if doomed and before < row.end:
            doomed.pop()
        return doomed

    def _held(self, topic: str, partition: str) -> Row | None:
        with self._env.reading() as transaction:
            return self._row(transaction, keys.partition_key(topic, partition))

    def _row(self, transaction: Transaction, key: bytes) -> Row | None:
        found = transaction.get(key, db=self._env.partitions)
        return None if found is None else Row.parse(found)

    def _parsed(self, buffer: bytes, topic: str, partition: str, first: int) -> Block:
        try:
            return Block.parse(buffer)
        except ValueError as error:
            raise self._damaged(topic, partition, first, str(error)) from error

    def _damaged(self, topic: str, partition: str, offset: int, why: str) -> StoreError:
        return self._env.damaged(
            f"topic {topic!r}, partition {partition}: the block at offset {offset} cannot be "
            f"read: {why}"
        )
