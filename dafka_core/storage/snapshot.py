"""The log at one moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dafka_core.errors import FencedError
from dafka_core.model.epochs import History
from dafka_core.model.log_entries import attempt_octets
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage.block import Block
from dafka_core.storage.environment import Environment
from dafka_core.storage.partition_statistics import record_sizes
from dafka_core.storage.retention import PartitionBlocks
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import ProcessBound


class Snapshot(ProcessBound):
    """What a log held when the snapshot was taken, until it is closed; see ``Log.snapshot``.

    Later appends are not seen, and merging and trimming take nothing away.  For one thread.
    """

    def __init__(self, env: Environment) -> None:
        self._directory = env.directory
        self._reading = contextlib.ExitStack()
        self._tables = self._reading.enter_context(env.reading())

    @property
    def tables(self) -> Tables:
        """What the log consists of; what it hands out is valid until ``close``: copy it."""
        return self._tables

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """What is held of a partition; None when it is not known."""
        with translated(self._directory):
            return self._tables.info(tp)

    def infos(self, topic: str) -> list[PartitionInfo]:
        """What is held of every partition of a topic; in order of their names."""
        with translated(self._directory):
            return self._tables.infos(topic)

    def held(self, tp: TopicPartition, attempt: str = "") -> tuple[PartitionInfo | None, History]:
        """Return what is held of a partition, and the lives whose records these are.

        What ``attempt`` has staged counts as held.

        Raises:
            FencedError: another attempt has taken its place.
        """
        with translated(self._directory):
            row = self._row(tp, attempt)
            return (row.info(tp), self._tables.lives.history(tp, row)) if row else (None, ())

    def blocks(self, tp: TopicPartition) -> PartitionBlocks | None:
        """A partition's blocks, while the snapshot is open; None when it is not known."""
        with translated(self._directory):
            row = self._tables.visible_row(tp)
            return PartitionBlocks(self._tables, tp, row) if row else None

    def record_sizes(self, tp: TopicPartition, start: int, end: int) -> list[int] | None:
        """About how many bytes a record takes, by quarter of a range; None: nothing is held."""
        with translated(self._directory):
            return record_sizes(self._tables, tp, start, end)

    def read(
        self, tp: TopicPartition, start: int, end: int, attempt: str = ""
    ) -> Iterator[RecordBatch]:
        """The records from ``start`` up to ``end`` (exclusive) that are held, in order, no gap.

        One batch per block, each looked up, copied and checked when it is asked for.  The first
        one begins above ``start`` only when the records before it have been trimmed.  Records
        that ``attempt`` has staged are read, too.

        Raises:
            FencedError: another attempt has taken its place.
            StoreError: a block is damaged (topic, partition and offset are named).
        """
        with translated(self._directory):
            row = self._row(tp, attempt)
            if row is None:
                return
            at = max(start, row.earliest)
            for found in self._tables.blocks_between(tp, row, start, end):
                block = self._tables.read_block(tp, found, Block.copied)
                batch = RecordBatch(tp, found.first, block.values, times=block.times)
                yield batch.between(at, min(batch.end, end))
                at = batch.end

    def _row(self, tp: TopicPartition, attempt: str) -> PartitionRow | None:
        if not attempt:
            return self._tables.visible_row(tp)
        row, own = self._tables.row(tp), attempt_octets(attempt)
        if row is not None and row.staged is not None and row.staged.attempt == own:
            return row.with_staged_visible()
        if row is not None and row.committed is not None and row.committed.attempt == own:
            return row
        raise FencedError(*tp, attempt)

    def _leave_with(self, error: BaseException | None) -> None:
        # The reading translates the error, which may be LMDB's: of ``tables``, or of blocks.
        self._reading.__exit__(type(error) if error else None, error, None)

    def close(self) -> None:
        """Ends reading; what has been handed out stays valid.  A second call does nothing."""
        self._reading.close()
