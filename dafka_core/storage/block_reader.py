"""Reads records block by block; blocks are copied, checked, and kept for a while."""

from __future__ import annotations

from collections.abc import Iterator

from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.storage.block import Block
from dafka_core.storage.block_cache import BlockCache
from dafka_core.storage.environment import Environment
from dafka_core.storage.tables import Tables


class BlockReader:
    """What any number of threads read of one directory.

    Raises:
        StoreError: from methods, a block is damaged (topic, partition and offset are named).
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._cache = BlockCache()

    def batches(self, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        """The records from ``start`` up to ``end``, a block's at a time, read when asked for.

        Blocks of the append area, which are small, are read together.
        """
        with self._env.reading() as tables:
            held = tables.info(tp)
        if held is None:
            return
        offset, end = max(start, held.earliest), min(end, held.end)
        while offset < end:
            with self._env.reading() as tables:
                found = self.batches_at(tables, tp, offset, end)
            if not found:  # trimmed meanwhile; what has been handed out remains true
                return
            for batch in found:
                yield batch.between(offset, min(batch.end, end))
                offset = batch.end

    def batches_at(
        self, tables: Tables, tp: TopicPartition, offset: int, end: int
    ) -> list[RecordBatch]:
        """The records of the blocks that are found with ``offset``, of those before ``end``."""
        batches: list[RecordBatch] = []
        for found in tables.blocks_at(tp, offset):
            # One in the cache may have fewer records than the one that has taken its place.
            if found.first >= end or (batches and batches[-1].end < found.first):
                break
            block = self._cache.get(found.key)
            if block is None or offset >= found.first + block.count:
                block = tables.read_block(tp, found, Block.copied)
                self._cache.put(found.key, block)
            batches.append(RecordBatch(tp, found.first, block.values, times=block.times))
        return batches
