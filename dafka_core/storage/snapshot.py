"""The log at one moment, and the statistics of its partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from dafka_core.errors import FencedError
from dafka_core.model.epochs import History
from dafka_core.model.log_entries import attempt_octets
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Longs
from dafka_core.storage.block import Block, peek_count, peek_newest_us, peek_times, plain_size
from dafka_core.storage.environment import Environment
from dafka_core.storage.retention import PartitionBlocks
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import FoundBlock, Tables
from dafka_core.system.closing import ProcessBound

SIZE_SAMPLES: Final = 4
"""Places of a range where the size of records is sampled: LMDB's Python binding touches each page
of a block to return its size, and there may be a thousand ranges."""


class PartitionStatistics(NamedTuple):
    """The size and times of a partition.

    ``records`` have offsets ``earliest`` to ``end`` (exclusive).  ``size_bytes`` is that of their
    blocks on disk: values, 4 bytes for each and little else, or less if compressed; a block trimmed
    in part counts as a whole.  ``first_time_us`` is the timestamp of the first available record,
    and ``last_time_us`` the greatest timestamp so far, in microseconds since the epoch UTC; None
    without records.
    """

    topic: str
    partition: str
    earliest: int
    end: int
    records: int
    size_bytes: int
    first_time_us: int | None
    last_time_us: int | None


def offset_of_time(
    tables: Tables, tp: TopicPartition, row: PartitionRow, timestamp_us: int
) -> int | None:
    """Return the first available record with this timestamp or a later one, if any.

    A search over blocks, without checking their checksums.
    """
    if row.newest_us < timestamp_us:
        return None
    low, high = row.earliest, row.end
    while low < high:
        found = tables.blocks_of(tp, row, (low + high) // 2)[0]
        if tables.read_block(tp, found, peek_newest_us) < timestamp_us:
            low = tables.end_of(tp, found)
        else:
            high = max(low, found.first)
    # The first block that is new enough has the record, unless that was trimmed.
    while low < row.end:
        first, runs = _times_at(tables, tp, row, low)
        ends = first + runs[:, 0].cumsum()
        for number in np.flatnonzero((runs[:, 1] >= timestamp_us) & (ends > low))[:1]:
            return max(low, int(ends[number] - runs[number, 0]))
        low = int(ends[-1])
    return None


def statistics(tables: Tables, tp: TopicPartition) -> PartitionStatistics | None:
    """See ``Log.statistics``."""
    row = tables.visible_row(tp)
    if row is None:
        return None
    first_us = last_us = None
    with tables.naming(tp, row.earliest):
        grouped = [each for each in tables.area.of_partition(row.id) if each.end > row.earliest]
    size_bytes = tables.size_bytes(row.id, 0, row.end)
    if row.earliest < row.end:
        if not size_bytes and grouped and grouped[0].first <= row.earliest:
            # All records are in the append area, where they have been found already.
            found = FoundBlock(row.id, grouped[0].first, memoryview(grouped[0].packed))
            first, runs = found.first, tables.read_block(tp, found, peek_times)
        else:
            first, runs = _times_at(tables, tp, row, row.earliest)
        ends = runs[:, 0].cumsum()
        first_us = int(runs[ends.searchsorted(row.earliest - first, side="right"), 1])
        last_us = row.newest_us
    count = row.end - row.earliest
    size_bytes += sum(len(block.packed) for block in grouped)
    return PartitionStatistics(*tp, row.earliest, row.end, count, size_bytes, first_us, last_us)


def record_sizes(tables: Tables, tp: TopicPartition, start: int, end: int) -> list[int] | None:
    """Return the approximate size of a record in each quarter of a range's available records.

    It is the mean of the block in which the quarter begins.  None without records.
    """
    row = tables.visible_row(tp)
    if row is None:
        return None
    start, end = max(start, row.earliest), min(end, row.end)
    if start >= end:
        return None
    sizes: list[int] = []
    size = block_end = 0
    for number in range(SIZE_SAMPLES):
        at = start + (end - start) * number // SIZE_SAMPLES
        if at >= block_end:
            found = tables.blocks_of(tp, row, at)[0]
            count = max(tables.read_block(tp, found, peek_count), 1)
            block_end, size = found.first + count, -(-plain_size(found.packed) // count)
        sizes.append(size)
    return sizes


def times_of(batches: Iterable[RecordBatch]) -> list[tuple[int, int]]:
    """Return pairs (first offset, time) of adjacent batches of the log."""
    firsts, runs = [], []
    for batch in batches:
        assert batch.times is not None  # a block has its records' times
        firsts.append(batch.offset)
        runs.append(batch.times.copy())  # they may refer to a block, and retain it
    if not runs:
        return []
    counts, times = np.concatenate(runs).T
    offsets = firsts[0] + counts.cumsum() - counts
    changes = np.append(True, times[1:] != times[:-1])
    return list(zip(offsets[changes].tolist(), times[changes].tolist(), strict=True))


def _times_at(
    tables: Tables, tp: TopicPartition, row: PartitionRow, offset: int
) -> tuple[int, Longs]:
    found = tables.blocks_of(tp, row, offset)[0]
    return found.first, tables.read_block(tp, found, peek_times)


class Snapshot(ProcessBound):
    """A consistent view of a log until it is closed; see ``Log.snapshot``.

    It does not include later appends, and merging and trimming remove nothing from it.  For one
    thread.
    """

    def __init__(self, env: Environment) -> None:
        self._directory = env.directory
        self._reading = contextlib.ExitStack()
        self._tables = self._reading.enter_context(env.reading())

    @property
    def tables(self) -> Tables:
        """Return the log's tables; their results are valid until ``close``: copy them."""
        self.check_process()
        return self._tables

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """Return the available offsets of a partition; None if it is unknown."""
        with translated(self._directory):
            return self.tables.info(tp)

    def infos(self, topic: str) -> list[PartitionInfo]:
        """Return the available offsets of a topic's partitions, in order of their names."""
        with translated(self._directory):
            return self.tables.infos(topic)

    def held(self, tp: TopicPartition, attempt: str = "") -> tuple[PartitionInfo | None, History]:
        """Return the available offsets of a partition, and their history.

        Staged records of ``attempt`` are included.

        Raises:
            FencedError: another attempt has taken its place.
        """
        with translated(self._directory):
            row = self._row(tp, attempt)
            return (row.info(tp), self.tables.lives.history(tp, row)) if row else (None, ())

    def blocks(self, tp: TopicPartition) -> PartitionBlocks | None:
        """Return a partition's blocks, while the snapshot is open; None if it is unknown."""
        with translated(self._directory):
            row = self.tables.visible_row(tp)
            return PartitionBlocks(self.tables, tp, row) if row else None

    def newest_us(self, tp: TopicPartition, before: int) -> int:
        """Return the greatest timestamp up to the block with the last record below an offset."""
        with translated(self._directory):
            row = self.tables.visible_row(tp)
            assert row is not None
            found = self.tables.blocks_of(tp, row, before - 1)[0]
            return self.tables.read_block(tp, found, peek_newest_us)

    def record_sizes(self, tp: TopicPartition, start: int, end: int) -> list[int] | None:
        """Return the approximate size of a record by quarter of a range; None without records."""
        with translated(self._directory):
            return record_sizes(self.tables, tp, start, end)

    def read(
        self, tp: TopicPartition, start: int, end: int, attempt: str = ""
    ) -> Iterator[RecordBatch]:
        """Yield the available records from ``start`` to ``end`` (exclusive), without gaps.

        In order, one batch per block, each read, copied and checked on demand.  The first one
        begins above ``start`` only if earlier records have been trimmed.  Staged records of
        ``attempt`` are included.

        Raises:
            FencedError: another attempt has taken its place.
            StoreError: a block is damaged (topic, partition and offset are named).
        """
        with translated(self._directory):
            row = self._row(tp, attempt)
            if row is None:
                return
            at = max(start, row.earliest)
            for found in self.tables.blocks_between(tp, row, start, end):
                block = self.tables.read_block(tp, found, Block.copied)
                batch = RecordBatch(tp, found.first, block.values, times=block.times)
                yield batch.between(at, min(batch.end, end))
                at = batch.end

    def _row(self, tp: TopicPartition, attempt: str) -> PartitionRow | None:
        if not attempt:
            return self.tables.visible_row(tp)
        row, own = self.tables.row(tp), attempt_octets(attempt)
        if row is not None and row.staged is not None and row.staged.attempt == own:
            return row.with_staged_visible()
        if row is not None and row.committed is not None and row.committed.attempt == own:
            return row
        raise FencedError(*tp, attempt)

    def _leave_with(self, error: BaseException | None) -> None:
        # The reading translates the error, which may be LMDB's: of ``tables``, or of blocks.
        self._reading.__exit__(type(error) if error else None, error, None)

    def close(self) -> None:
        """End reading; results stay valid.  Idempotent."""
        self._reading.close()
