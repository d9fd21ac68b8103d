"""Records of losing histories: kept on disk, out of their partition, until they are discarded.

When two histories of a partition meet (``epochs.py``), one wins, and the loser's records from the
divergence on are set aside.  Those get an id of their own among the blocks, or, if they are all
of the partition's, keep its id, and the partition gets another one: it may be larger than the free
space of the disk.  They are listed in the table ``meta``:

    "aside ", id  ->  first offset, end, key of the partition, checksum
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from dafka_core.model.records import RecordBatch
from dafka_core.storage.block import Block, header_of, pack, unreadable
from dafka_core.storage.rows import NEVER_US, CheckedTable, PartitionRow, partition_key, tp_of_key
from dafka_core.storage.tables import Tables

_ID = struct.Struct(">Q")
_OFFSETS = struct.Struct(">QQ")


class AsideRecords(NamedTuple):
    """Records ``start`` to ``end`` (exclusive) of a partition, replaced by another history.

    ``id`` identifies them in their store; ``size_bytes`` is that of their blocks.
    """

    id: int
    topic: str
    partition: str
    start: int
    end: int
    size_bytes: int


class AsideArea:
    """The records set aside, in one transaction of LMDB."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._list = CheckedTable(
            tables.meta,
            b"aside ",
            lambda name: f"entry {int.from_bytes(name)} of the list of set-aside records",
        )

    def take(self, row: PartitionRow, start: int) -> PartitionRow:
        """Move the records from ``start`` on out of a partition; return its row, unwritten."""
        tables, aside_id = self._tables, row.id
        offset = max(start, row.earliest)
        content = _OFFSETS.pack(offset, row.end) + partition_key(row.tp)
        if offset == row.earliest < row.end:
            tables.links.cut(row.id, 0)
            tables.put_row(row)  # its staged records are gone
            row = row._replace(id=tables.new_id())
        else:
            aside_id = tables.new_id()
            self._move(row, offset, aside_id)
            # From `start` on, also below what is trimmed: the next records may have these offsets.
            tables.links.cut(row.id, start)
            tables.area.cut(row.id, start)
            tables.area.trim(row.id, min(row.earliest, start))
            tables.scan_again(row.id, start)
        if offset < row.end:
            self._list.put(_ID.pack(aside_id), content)
        last, committed = row.last_transaction, row.committed
        return self._tables.lives.cut(row, start)._replace(
            earliest=min(row.earliest, start),
            end=start,
            last_transaction=last if last and last.end <= start else None,
            committed=committed if committed and committed.end <= start else None,
        )

    def listed(self) -> list[AsideRecords]:
        """Return the records set aside, by their ids; LMDB touches each of their pages."""
        found = []
        for row in self.rows():
            size_bytes = self._tables.size_bytes(row.id, 0, row.end)
            size_bytes += sum(len(each.packed) for each in self._tables.area.readable(row.id))
            found.append(AsideRecords(row.id, *row.tp, row.earliest, row.end, size_bytes))
        return found

    def rows(self) -> Iterator[PartitionRow]:
        """Yield the records set aside as rows of their partitions, by their ids."""
        for name, content in self._list.scan(b""):
            yield _parsed(name, content)

    def read(self, aside_id: int, offset: int) -> RecordBatch | None:
        """Return the first records from an offset on that were set aside under an id, if any."""
        name = _ID.pack(aside_id)
        content = self._list.get(name)
        if content is None:
            return None
        row = _parsed(name, content)
        offset = max(offset, row.earliest)
        if offset >= row.end:
            return None
        found = self._tables.batch_of(row.tp, self._tables.blocks_of(row, offset)[0])
        return found.between(offset, found.end)

    def discard(self, aside_id: int) -> bool:
        """Delete the records set aside under an id; return False if it is unknown."""
        if not self._list.delete(_ID.pack(aside_id)):
            return False  # it may be a partition's
        self._tables.delete_blocks(aside_id, list(self._tables.firsts(aside_id, 0)))
        self._tables.area.cut(aside_id, 0)
        return True

    def _move(self, row: PartitionRow, start: int, aside_id: int) -> None:
        """Move blocks as they are, damaged or not, and cut the one with records on both sides.

        LMDB: results are valid until the transaction's next write, so each is copied first.
        """
        tables = self._tables
        for first in list(tables.firsts(row.id, start)):
            packed = bytes(tables.packed_block(row.id, first) or b"")
            tables.delete_blocks(row.id, [first])
            tables.put_block(aside_id, first, packed)
        left = [(each.first, bytes(each.packed)) for each in tables.area.readable(row.id)]
        if (last := tables.last_block(row.id, start)) is not None:
            left.append((last.first, bytes(last.packed)))
        for first, packed in left:
            with suppress(ValueError):  # of a damaged header: it stays, and readers report it
                if first >= start:
                    tables.put_block(aside_id, first, packed)
                elif first + header_of(packed).records > start:
                    self._cut(row, start, aside_id, first, packed)

    def _cut(self, row: PartitionRow, start: int, aside_id: int, first: int, packed: bytes) -> None:
        try:
            block = Block.parse(packed)
        except ValueError:
            self._tables.put_block(aside_id, first, packed)
            # In the place of the others: neighbours stay readable, and other stores may have them.
            self._tables.put_block(row.id, first, unreadable(start - first, row.newest_us))
            return
        batch = RecordBatch(row.tp, first, block.values, times=block.times)
        self._put(row.id, batch.between(first, start), row.newest_us)
        self._put(aside_id, batch.between(start, batch.end), row.newest_us)

    def _put(self, partition_id: int, batch: RecordBatch, newest_us: int) -> None:
        assert batch.times is not None  # a block has its records' times
        packed = pack(batch.values, batch.times, newest_us)
        self._tables.put_block(partition_id, batch.offset, packed)


def _parsed(name: bytes, content: bytes) -> PartitionRow:
    start, end = _OFFSETS.unpack_from(content)
    tp = tp_of_key(content[_OFFSETS.size :])
    return PartitionRow(tp, int.from_bytes(name), start, end, NEVER_US, 0)
