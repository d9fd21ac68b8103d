"""What a partition takes and when it was written: told by rows and the heads of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Longs
from dafka_core.storage.block import peek_count, peek_times, plain_size
from dafka_core.storage.rows import BLOCK_KEY, PartitionRow
from dafka_core.storage.tables import FoundBlock, Tables

SIZE_SAMPLES: Final = 4
"""Places of a range where the size of records is looked at: LMDB's Python binding touches each page
of a block that it says the size of, and there may be a thousand ranges."""


class PartitionStatistics(NamedTuple):
    """What a partition takes and when it was written.

    ``records`` lie at offsets ``earliest`` to ``end`` (exclusive).  ``size_bytes`` is that of their
    blocks on disk: values, 4 bytes for each and little else, or less where they are compressed; a
    block trimmed in part counts as a whole.
    ``first_time_us`` and ``last_time_us`` are the timestamps of the first record that is held and
    the last one, in microseconds since the epoch UTC; None when no record is held.
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
    """The first record held that was written then or later; None when there is none.

    A search over blocks, whose checksums are not looked at.
    """
    if row.last_timestamp_us < timestamp_us:
        return None
    low, high = row.earliest, row.end
    while low < high:
        first, runs = _times_at(tables, tp, row, (low + high) // 2)
        if runs[-1, 1] < timestamp_us:
            low = first + int(runs[:, 0].sum())
        elif runs[0, 1] >= timestamp_us:
            high = max(low, first)
        else:
            earlier = int(runs[runs[:, 1] < timestamp_us, 0].sum())
            return max(low, first + earlier)
    return low if low < row.end else None


def statistics(tables: Tables, tp: TopicPartition) -> PartitionStatistics | None:
    """See ``Log.statistics``."""
    row = tables.visible_row(tp)
    if row is None:
        return None
    first_us = last_us = None
    with tables.naming(tp, row.earliest):
        grouped = [each for each in tables.area.of_partition(row.id) if each.end > row.earliest]
    size_bytes = sum(block.size_bytes for block in tables.candidates(row.id, 0, row.end))
    if row.earliest < row.end:
        if not size_bytes and grouped and grouped[0].first <= row.earliest:
            # All of it is in the append area, where it has been found already.
            key = BLOCK_KEY.pack(row.id, grouped[0].first)
            found = FoundBlock(key, grouped[0].first, memoryview(grouped[0].packed))
            first, runs = found.first, tables.read_block(tp, found, peek_times)
        else:
            first, runs = _times_at(tables, tp, row, row.earliest)
        ends = runs[:, 0].cumsum()
        first_us = int(runs[ends.searchsorted(row.earliest - first, side="right"), 1])
        last_us = row.last_timestamp_us
    count = row.end - row.earliest
    size_bytes += sum(len(block.packed) for block in grouped)
    return PartitionStatistics(*tp, row.earliest, row.end, count, size_bytes, first_us, last_us)


def record_sizes(tables: Tables, tp: TopicPartition, start: int, end: int) -> list[int] | None:
    """About how many bytes a record takes in each quarter of what is held of a range.

    That is the mean of the block in which the quarter begins.  None where nothing is held.
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
    """Pairs (first offset, time) of batches of the log that follow each other."""
    firsts, runs = [], []
    for batch in batches:
        assert batch.times is not None  # a block says when its records were written
        firsts.append(batch.offset)
        runs.append(batch.times.copy())  # they may lie in a block, which they would keep
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
