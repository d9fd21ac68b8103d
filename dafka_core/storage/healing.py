"""Replaces damaged records by the same records of another store.

A damaged block stays in its place, and every read of it fails, until the records of another store
take that place, in one transaction: a kill leaves either.  A check of the partition then finds
whatever is damaged still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from dafka_core.errors import StoreError
from dafka_core.model.epochs import EpochId, History, last_life, prefix
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import rows
from dafka_core.storage.block import build_blocks, header_of
from dafka_core.storage.block_merger import BlockMerger
from dafka_core.storage.environment import Environment
from dafka_core.storage.log_check import check_records, next_start
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.tables import Tables


class DamagedRange(NamedTuple):
    """Unreadable records ``start`` to ``end`` (exclusive), and the history before ``end``."""

    tp: TopicPartition
    start: int
    end: int
    history: History

    @property
    def life(self) -> EpochId | None:
        """Return the last life of its history, if any."""
        return last_life(self.history) if self.history else None


class Healer:
    """Finds damaged records of one log, and replaces them.  For one thread."""

    def __init__(self, env: Environment, merger: BlockMerger) -> None:
        self._env = env
        self._merger = merger
        self.damaged = env.damaged  # until all of a partition's damage is replaced

    def damaged_ranges(self, tp: TopicPartition) -> Iterator[DamagedRange | None]:
        """Check records in steps; yield damaged ranges, up to a readable block, or None."""
        for checked in check_records(self._env.reading, tp):
            for damage in checked.found:
                with self._env.reading() as tables:
                    row = tables.visible_row(tp)
                    if row is None:
                        return
                    end = next_start(tables, row, damage.offset)
                    history = prefix(tables.lives.history(row), end)
                yield DamagedRange(tp, damage.offset, end, history)
            yield None

    def rewrite_groups(self, tp: TopicPartition) -> None:
        """Remove damaged groups of the append area with a partition's records, which it has healed.

        A group stays if other partitions lack records, which are noted as damaged.
        """
        with self._env.reading() as tables:
            row = tables.visible_row(tp)
            groups = tables.area.damaged(row.id) if row else []
            ids = {each.tp: each.id for each in tables.all_rows()} if groups else {}
        whole: list[bytes] = []
        for key, bucket in groups:
            held = [each for each, number in ids.items() if number in bucket]
            if not [each for each in held if not self._is_complete(each)]:
                whole.append(key)
        if whole:
            self._env.write(lambda tables: tables.area.rewrite(whole))

    def _is_complete(self, tp: TopicPartition) -> bool:
        with suppress(StoreError), self._env.reading() as tables:
            if row := tables.visible_row(tp):
                deque(tables.blocks_between(row, 0, row.end), maxlen=0)
            return True
        return False

    def replace(self, damaged: DamagedRange, batch: RecordBatch) -> bool:
        """Replace the first records of a range by a batch, and merge it later as other blocks.

        Returns False, without effect, if the range has been trimmed or set aside meanwhile.  Raises
        StoreError if the block before it is damaged, or pages of the damaged block are.
        """
        return self._merger.write(lambda tables: self._replace(tables, damaged, batch))

    def _replace(self, tables: Tables, damaged: DamagedRange, batch: RecordBatch) -> bool:
        tp, start = damaged.tp, batch.offset
        row = tables.visible_row(tp)
        if (
            row is None
            or not row.earliest <= start < batch.end <= next_start(tables, row, start)
            or prefix(tables.lives.history(row), damaged.end) != damaged.history
        ):
            return False
        newest_us = _newest_us(tables, row, start)
        old = tables.last_block(row.id, start)
        if old is not None and (start in (old.first, row.earliest)):
            if not self._env.positions.is_whole(old.packed):
                why = "its page in the file is damaged, too, and LMDB cannot replace it"
                raise tables.damaged_block(tp, old.first, why)
            tables.delete_blocks(row.id, [old.first])
        tables.area.cut(row.id, start, batch.end)
        assert batch.times is not None
        for number, packed in build_blocks(batch.values.to_list(), batch.times, newest_us):
            tables.put_block(row.id, start + number, packed)
        tables.changed.add(tp)
        return True


def _newest_us(tables: Tables, row: PartitionRow, start: int) -> int:
    """Return the greatest timestamp up to the block that ends at an offset."""
    if start == row.earliest:
        return rows.NEVER_US
    with tables.naming(row.tp, start - 1):
        found = tables.last_block(row.id, start - 1)
        if found is None or found.end != start:
            grouped = tables.area.readable(row.id)
            packed = next((each.packed for each in grouped if each.end == start), b"")
        else:
            packed = found.packed
        return header_of(packed).newest_us
