"""The log at one moment, for readers, and the statistics of its partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from dafka_core.errors import FencedError
from dafka_core.model.epochs import History
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.log_entries import attempt_octets
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Longs
from dafka_core.storage.block import peek_times, plain_size
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.tables import FoundBlock, Tables

SIZE_SAMPLES: Final = 4
"""Places of a range where the size of records is sampled: LMDB's Python binding touches each page
of a block to return its size, and there may be a thousand ranges."""


class PartitionStatistics(JsonMessage, frozen=True, rename={"size_bytes": "bytes"}):
    """The size and times of a partition, and its client: the metadata of its FlightInfo.

    ``records`` have offsets ``earliest`` to ``end`` (exclusive).  ``size_bytes`` is that of their
    blocks on disk: values, 4 bytes for each and little else, or less if compressed; a block trimmed
    in part counts as a whole.  ``first_time_us`` is the timestamp of the first available record,
    and ``last_time_us`` the greatest timestamp so far, in microseconds since the epoch UTC; None
    without records.  ``client`` is the name of the client that writes the partition, if it has one.
    """

    topic: str
    partition: str
    earliest: Natural
    end: Natural
    records: Natural
    size_bytes: Natural
    first_time_us: int | None
    last_time_us: int | None
    client: str = ""

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


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


class HeldBlock(NamedTuple):
    """A block of a partition; ``newest_us`` is the greatest time of it and of earlier ones."""

    first: int
    end: int
    size_bytes: int
    newest_us: int


class PartitionBlocks(Sequence[HeldBlock]):
    """The blocks with a partition's records, in one transaction.

    Their first offsets are cheap.  Examining one touches its pages, as LMDB's Python binding does,
    which reads old records from the disk.  Only heads are examined, and raise StoreError at damage.
    """

    def __init__(self, tables: Tables, row: PartitionRow) -> None:
        self._tables, self._row = tables, row
        self.info = row.info  # the available offsets of the partition
        table = list(takewhile(lambda first: first < row.end, tables.firsts(row.id, 0)))
        self._grouped: dict[int, memoryview] = {}
        self._may_lack = False  # blocks of a damaged group, perhaps of other partitions
        if row.earliest < row.end:
            try:
                grouped = tables.area.of_partition(row.id)
            except ValueError:
                grouped, self._may_lack = tables.area.readable(row.id), True
            held = (each for each in grouped if each.end > row.earliest)
            self._grouped = {each.first: memoryview(each.packed) for each in held}
        self.bounds = [*sorted({*table, *self._grouped}), row.end]
        """The first offset of each block, and the end of the last one."""
        if self._may_lack and self.bounds[0] > row.earliest:
            tables.damaged_block(row.tp, row.earliest, "a group of small batches is damaged")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> HeldBlock:  # type: ignore[override]  # no slices
        if not 0 <= number < len(self):
            raise IndexError(number)
        first, end = self.bounds[number : number + 2]
        packed = self._grouped.get(first) or self._tables.packed_block(self._row.id, first)
        if packed is None:  # a bit of its key may be flipped
            raise self._tables.damaged_block(self._row.tp, first, "the block is missing")
        found = FoundBlock(self._row.id, first, packed)
        head = self._tables.header_of(self._row.tp, found)
        if self._may_lack and first + head.records != end:
            why = "it is not among the blocks, and a group of small batches is damaged"
            raise self._tables.damaged_block(self._row.tp, first + head.records, why)
        return HeldBlock(first, end, len(packed), head.newest_us)


class Snapshot(Tables):
    """A consistent view of a log; see ``Log.snapshot``.

    It does not include later appends, and merging and trimming remove nothing from it.  For one
    thread.
    """

    def held(self, tp: TopicPartition, attempt: str = "") -> tuple[PartitionInfo | None, History]:
        """Return the available offsets of a partition, and their history.

        Staged records of ``attempt`` are included; FencedError if another has taken its place.
        """
        row = self._row_of(tp, attempt)
        return (row.info, self.lives.history(row)) if row else (None, ())

    def blocks(self, tp: TopicPartition) -> PartitionBlocks | None:
        """Return a partition's blocks, while the snapshot is open; None if it is unknown."""
        row = self.visible_row(tp)
        return PartitionBlocks(self, row) if row else None

    def newest_us(self, tp: TopicPartition, before: int) -> int:
        """Return the greatest timestamp up to the block with the last record below an offset."""
        row = self.visible_row(tp)
        assert row is not None
        return self.header_of(tp, self.blocks_of(row, before - 1)[0]).newest_us

    def read(
        self, tp: TopicPartition, start: int, end: int, attempt: str = ""
    ) -> Iterator[RecordBatch]:
        """Yield the available records as ``Log.batches``, with those that ``attempt`` has staged.

        Raises FencedError if another attempt has taken its place, and StoreError at damage.
        """
        row = self._row_of(tp, attempt)
        return iter(()) if row is None else self.batches(row, start, end)

    def offset_of_time(self, row: PartitionRow, timestamp_us: int) -> int | None:
        """Return the first available record at a time or later, if any; checksums are unchecked."""
        if row.newest_us < timestamp_us:
            return None
        low, high = row.earliest, row.end
        while low < high:
            found = self.blocks_of(row, (low + high) // 2)[0]
            if self.header_of(row.tp, found).newest_us < timestamp_us:
                low = self.end_of(row.tp, found)
            else:
                high = max(low, found.first)
        # The first block that is new enough has the record, unless that was trimmed.
        while low < row.end:
            first, runs = self._times_at(row, low)
            ends = first + runs[:, 0].cumsum()
            for number in np.flatnonzero((runs[:, 1] >= timestamp_us) & (ends > low))[:1]:
                return max(low, int(ends[number] - runs[number, 0]))
            low = int(ends[-1])
        return None

    def statistics(self, tp: TopicPartition) -> PartitionStatistics | None:
        """Return the size and times of a partition; None if it is unknown."""
        row = self.visible_row(tp)
        if row is None:
            return None
        first_us = last_us = None
        try:
            grouped = self.area.of_partition(row.id)
        except ValueError:  # in a damaged group, perhaps of other partitions
            deque(self.blocks_between(row, row.earliest, row.end), maxlen=0)
            grouped = self.area.readable(row.id)
        grouped = [each for each in grouped if each.end > row.earliest]
        size_bytes = self.size_bytes(row.id, 0, row.end)
        if row.earliest < row.end:
            if not size_bytes and grouped and grouped[0].first <= row.earliest:
                # All records are in the append area, where they have been found already.
                found = FoundBlock(row.id, grouped[0].first, memoryview(grouped[0].packed))
                first, runs = found.first, self.read_block(tp, found, peek_times)
            else:
                first, runs = self._times_at(row, row.earliest)
            ends = runs[:, 0].cumsum()
            first_us = int(runs[ends.searchsorted(row.earliest - first, side="right"), 1])
            last_us = row.newest_us
        count = row.end - row.earliest
        size_bytes += sum(len(block.packed) for block in grouped)
        return PartitionStatistics(
            *tp, row.earliest, row.end, count, size_bytes, first_us, last_us, row.client
        )

    def record_sizes(self, tp: TopicPartition, start: int, end: int) -> list[int] | None:
        """Return the approximate size of a record in each quarter of a range's available records.

        It is the mean of the block in which the quarter begins.  None without records.
        """
        row = self.visible_row(tp)
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
                found = self.blocks_of(row, at)[0]
                block_end = max(self.end_of(tp, found), found.first + 1)
                size = -(-plain_size(found.packed) // (block_end - found.first))
            sizes.append(size)
        return sizes

    def _times_at(self, row: PartitionRow, offset: int) -> tuple[int, Longs]:
        found = self.blocks_of(row, offset)[0]
        return found.first, self.read_block(row.tp, found, peek_times)

    def _row_of(self, tp: TopicPartition, attempt: str) -> PartitionRow | None:
        if not attempt:
            return self.visible_row(tp)
        row, own = self.row(tp), attempt_octets(attempt)
        if row is not None and row.staged is not None and row.staged.attempt == own:
            return row.with_staged_visible()
        if row is not None and row.committed is not None and row.committed.attempt == own:
            return row
        raise FencedError(*tp, attempt)
