"""Reads records block by block; blocks are copied, checked, and cached."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from dafka_core.errors import StoreError
from dafka_core.model.epochs import prefix
from dafka_core.model.records import (
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    concat,
    split_by_epoch,
)
from dafka_core.storage.block import MAX_BLOCK_BYTES, Block
from dafka_core.storage.environment import Environment
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.tables import Tables

CACHE_BYTES = 4 * MAX_BLOCK_BYTES
"""Room for a few readers, each inside a block of its own."""

LEAST_BYTES = 16 << 10
"""A smaller block is read and checked faster than it is found, and takes several times its size: a
reader of very many partitions would fill memory with such."""


class BlockCache:
    """Blocks by key, at most ``CACHE_BYTES`` of them; the least recently used one is dropped first.

    A cached block never becomes wrong: its key is reused only by blocks with the same records and
    more, since appending and merging both only add at the end; the key includes how often records
    were set aside.  The table shows if the block still exists.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: bytes) -> Block | None:
        """Return the last block put under the key, if it is still cached."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: bytes, block: Block) -> None:
        """Cache the block, unless it is small, or larger than the whole cache."""
        if not LEAST_BYTES <= block.size_bytes <= CACHE_BYTES:
            return
        with self._lock:
            replaced = self._blocks.pop(key, None)
            if replaced is not None:
                self._size_bytes -= replaced.size_bytes
            self._blocks[key] = block
            self._size_bytes += block.size_bytes
            while self._size_bytes > CACHE_BYTES:
                _, dropped = self._blocks.popitem(last=False)
                self._size_bytes -= dropped.size_bytes


class BlockReader:
    """Reads blocks of one directory, for any number of threads.

    Its methods raise StoreError for a damaged block (topic, partition and offset are named).
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._cache = BlockCache()
        self.asides = 0
        """Number of times when a record at an offset may have been replaced; part of the keys
                of cached blocks."""

    def batches(self, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        """Yield the records from ``start`` to ``end``, one block at a time, read on demand.

        Blocks of the append area, which are small, are read together.
        """
        offset, history = start, None
        while offset < end:
            asides = self.asides
            with self._env.reading() as tables:
                row = tables.visible_row(tp)
                if row is None:
                    return
                now = tables.lives.history(row)
                if history is None:
                    offset, end = max(start, row.earliest), min(end, row.end)
                elif prefix(now, offset) != prefix(history, offset):
                    return  # yielded records were set aside meanwhile
                history = now
                # Trimmed or set aside meanwhile; records yielded before remain valid.
                if not row.earliest <= offset < min(end, row.end):
                    return
                found = self.batches_at(tables, row, offset, end, asides)
            for batch in found:
                part = batch.between(offset, min(batch.end, end))
                yield from split_by_epoch(part, history)
                offset = part.end

    def read_each(
        self, ranges: Sequence[PartitionInfo], *, max_records: int, max_bytes: int
    ) -> list[RecordBatch | StoreError | None]:
        """See ``Log.read_each``."""
        results: list[RecordBatch | StoreError | None] = []
        asides = self.asides
        with self._env.reading() as tables:
            for wanted in ranges:
                if max_records <= 0 or max_bytes <= 0:
                    break
                found: RecordBatch | StoreError | None
                try:
                    found = self._first(tables, wanted, asides, max_records, max_bytes)
                except StoreError as error:
                    found = error
                if isinstance(found, RecordBatch):
                    max_records -= found.count
                    max_bytes -= found.values.size_bytes
                results.append(found)
        return results

    def _first(
        self, tables: Tables, wanted: PartitionInfo, asides: int, max_records: int, max_bytes: int
    ) -> RecordBatch | None:
        """Return the first adjacent records of a range; None if the first is not held."""
        start, end = wanted.earliest, wanted.end
        row = tables.visible_row(wanted.tp)
        if row is None or not row.earliest <= start < min(end, row.end):
            return None
        found = concat(self.batches_at(tables, row, start, end, asides))
        count = found.count
        if count > max_records or found.values.size_bytes > max_bytes:
            fitting = found.values.fitting(start - found.offset, max_bytes)
            count = max(1, min(fitting, max_records))
        found = found.between(start, min(end, found.end, start + count))
        return split_by_epoch(found, tables.lives.history(row))[0]

    def batches_at(
        self, tables: Tables, row: PartitionRow, offset: int, end: int, asides: int
    ) -> list[RecordBatch]:
        """Return the records before ``end`` of the blocks found with ``offset``.

        ``row`` shows that the store has it.  ``asides`` is its value before ``tables`` was opened.
        """
        batches: list[RecordBatch] = []
        for found in tables.blocks_of(row, offset):
            # A cached one may have fewer records than its successor.
            if found.first >= end or (batches and batches[-1].end < found.first):
                break
            key = asides.to_bytes(8) + found.key
            block = self._cache.get(key)
            if block is None or offset >= found.first + block.count:
                block = tables.read_block(row.tp, found, Block.copied)
                self._cache.put(key, block)
            batches.append(RecordBatch(row.tp, found.first, block.values, times=block.times))
        return batches
