"""A partition's blocks in order, which of them is old being asked of few."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from dafka_core.records import TopicPartition
from dafka_core.storage.block import peek_times
from dafka_core.storage.retention import HeldBlock
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.tables import FoundBlock, Tables


class PartitionBlocks(Sequence[HeldBlock]):
    """The blocks that hold a partition's records, in one transaction.

    To know where they begin costs little.  To look at one touches its pages, as LMDB's Python
    binding does, which for old records means to read them from the disk.

    Raises:
        StoreError: when it comes upon damage; nothing but the heads of blocks is looked at.
    """

    def __init__(self, tables: Tables, tp: TopicPartition, row: PartitionRow) -> None:
        self._tables, self._tp, self._row = tables, tp, row
        self.info = row.info(tp)
        """What is held of the partition."""
        table = list(takewhile(lambda first: first < row.end, tables.firsts(row.id, 0)))
        self._grouped: dict[int, memoryview] = {}
        if row.earliest < row.end:
            with tables.naming(tp, row.earliest):
                held = (
                    each for each in tables.area.of_partition(row.id) if each.end > row.earliest
                )
                self._grouped = {each.first: memoryview(each.packed) for each in held}
        self.bounds = [*sorted({*table, *self._grouped}), row.end]
        """Where each begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> HeldBlock:  # type: ignore[override]  # no slices
        if not 0 <= number < len(self):
            raise IndexError(number)
        first, end = self.bounds[number : number + 2]
        packed = self._grouped.get(first)
        if packed is None:
            packed = self._tables.packed_block(self._row.id, first)
        if packed is None:
            raise self._tables.damaged_block(self._tp, first, "there is no block")
        times = self._tables.read_block(self._tp, FoundBlock(b"", first, packed), peek_times)
        return HeldBlock(first, end, len(packed), int(times[-1, 1]))
