"""The log at one moment."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from dafka_core.closing import ProcessBound
from dafka_core.epochs import History
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage.block import Block
from dafka_core.storage.environment import Environment
from dafka_core.storage.storage_errors import translated


class Snapshot(ProcessBound):
    """What a log held when the snapshot was taken, until it is closed; see ``Log.snapshot``.

    Later appends are not seen, and merging and trimming take nothing away.  For one thread.
    """

    def __init__(self, env: Environment) -> None:
        self._directory = env.directory
        self._reading = contextlib.ExitStack()
        self._tables = self._reading.enter_context(env.reading())

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """What is held of a partition; None when it is not known."""
        with translated(self._directory):
            return self._tables.info(tp)

    def history(self, tp: TopicPartition) -> History:
        """The lives whose records are held of a partition."""
        with translated(self._directory):
            return self._tables.history(tp)

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive) that are held, in order, no gap.

        One batch per block, each looked up, copied and checked when it is asked for.  The first
        one begins above ``start`` only when the records before it have been trimmed.

        Raises:
            StoreError: a block is damaged (topic, partition and offset are named).
        """
        held = self.info(tp) or PartitionInfo(*tp, 0, 0)
        at = max(start, held.earliest)
        with translated(self._directory):
            for found in self._tables.blocks_between(tp, start, end, math.inf, math.inf):
                block = self._tables.read_block(tp, found, Block.copied)
                batch = RecordBatch(tp, found.first, block.values, times=block.times)
                yield batch.between(at, min(batch.end, end))
                at = batch.end

    def close(self) -> None:
        """Ends reading; what has been handed out stays valid.  A second call does nothing."""
        self._reading.close()
