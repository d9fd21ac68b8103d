"""The log's tables inside one LMDB transaction: partitions, blocks, notes and epochs."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

import lmdb
import xxhash

from dafka_core.errors import StoreError
from dafka_core.model.epochs import (
    EPOCH_BYTES,
    LIFE_BYTES,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    prefix,
    with_epoch,
)
from dafka_core.model.log_entries import StoreSeen, attempt_text
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import (
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedPartition,
    TopicPartition,
    TransactionState,
)
from dafka_core.model.values import Bytes
from dafka_core.storage import rows
from dafka_core.storage.append_area import AppendArea, Mergeable
from dafka_core.storage.block import HEADER, Block, Header, header_of
from dafka_core.storage.links import Links
from dafka_core.storage.open_environment import Opened
from dafka_core.storage.rows import (
    BLOCK_KEY,
    TREE_BYTES,
    CheckedTable,
    OffsetTable,
    PartitionRow,
    Table,
    partition_key,
)
from dafka_core.storage.storage_errors import damaged

# Notes: small values that a store's own programs keep in its log, by name.
#
# They are written in the same step as records (``log_entries.NotedBatch``), so they always match
# them. They are in the table ``meta``:
#
#     "note ", name  ->  bytes, checksum


class Notes:
    """The notes in one transaction of LMDB."""

    def __init__(self, meta: Table) -> None:
        self._table = CheckedTable(meta, b"note ", lambda name: f"note {text_of(name)!r}")

    def put(self, notes: Mapping[str, bytes | None]) -> None:
        """Write some, each replacing the one with its name, or delete it (None)."""
        for name, content in notes.items():
            self._table.put(octets_of(name), content)

    def named(self, prefix: str) -> dict[str, bytes]:
        """Return those whose names begin with ``prefix``, in the order of their names."""
        found = self._table.scan(octets_of(prefix))
        return {text_of(name): content for name, content in found}


# Epochs on disk: the history of each partition's records, and its store's promises.
#
# A partition's row has its newest epoch (``rows.py``). Earlier ones, and promises, which may be to
# a producer of a partition without records, are in the table ``meta``:
#
#     "lives of ", digest of the partition's key  ->  promised life, older epochs, checksum
#     "met ", address of another store  ->  when it was last seen, and its endpoint

_MET = b"met "
_SEEN_BYTES: Final = 8


class Lives:
    """The epochs in one transaction of LMDB."""

    def __init__(self, meta: Table) -> None:
        self._meta = meta
        self._table = CheckedTable(
            meta, b"lives of ", lambda _: "what is known of the lives of a partition"
        )

    def of(self, tp: TopicPartition, row: PartitionRow | None) -> PartitionLives:
        """Return the lives of a partition's producer."""
        end, last = (row.end, row.last_transaction) if row is not None else (0, None)
        promised, history = self._until(tp, row, end)
        return PartitionLives(end, history, promised, last)

    def history(self, row: PartitionRow) -> History:
        """Return the history of a partition's records."""
        newest = row.epoch
        if newest is None or not (newest.parent or newest.start):
            return () if newest is None else (newest,)
        return (*self._older(row.tp)[1], newest)

    def begin(self, row: PartitionRow, epoch: Epoch) -> PartitionRow:
        """Return the row after its partition continues with an epoch."""
        # Another epoch that began there was abandoned: its staged records are gone.
        return self.replace(row, with_epoch(self._until(row.tp, row, epoch.start)[1], epoch))

    def promise(self, tp: TopicPartition, life: EpochId) -> None:
        """Write a promise, unless a newer life has one."""
        promised, older = self._older(tp)
        self._put(tp, max(promised, life), older)

    def meet(self, met: StoreSeen) -> None:
        """Write another store's last sign of life."""
        value = met.seen_us.to_bytes(_SEEN_BYTES, "big") + octets_of(met.endpoint)
        self._meta.put(_MET + octets_of(met.store), value)

    def met(self) -> list[StoreSeen]:
        """Return the stores that were ever discovered."""
        return [
            StoreSeen(
                text_of(name[len(_MET) :]),
                text_of(bytes(value[_SEEN_BYTES:])),
                int.from_bytes(value[:_SEEN_BYTES], "big"),
            )
            for name, value in self._meta.scan(_MET)
        ]

    def forget(self, store: str) -> bool:
        """Forget another store; return False if it is unknown."""
        return self._meta.delete(_MET + octets_of(store))

    def cut(self, row: PartitionRow, end: int) -> PartitionRow:
        """Return the row without the epochs that begin at ``end`` or later."""
        return self.replace(row, self._until(row.tp, row, end)[1])

    def replace(self, row: PartitionRow, history: History) -> PartitionRow:
        """Return the row with another history; promises stay."""
        promised, _ = self._older(row.tp)
        self._put(row.tp, promised, history[:-1])
        return row._replace(epoch=history[-1] if history else None)

    def _until(
        self, tp: TopicPartition, row: PartitionRow | None, end: int
    ) -> tuple[EpochId, History]:
        """Return the promise, and the history of the records before an offset."""
        promised, older = self._older(tp)
        newest = () if row is None or row.epoch is None else (row.epoch,)
        return promised, prefix((*older, *newest), end)

    def _older(self, tp: TopicPartition) -> tuple[EpochId, History]:
        found = self._table.get(xxhash.xxh3_128_digest(partition_key(tp)))
        if found is None:
            return NO_LIFE, ()
        starts = range(LIFE_BYTES, len(found), EPOCH_BYTES)
        epochs = (Epoch.unpack(found[at : at + EPOCH_BYTES]) for at in starts)
        return EpochId.unpack(found[:LIFE_BYTES]), tuple(epochs)

    def _put(self, tp: TopicPartition, promised: EpochId, older: History) -> None:
        known = promised != NO_LIFE or older
        content = promised.packed() + b"".join(map(Epoch.packed, older)) if known else None
        self._table.put(xxhash.xxh3_128_digest(partition_key(tp)), content)


_ID = struct.Struct("<Q")
_NEXT_ID_KEY = b"next partition"

_STAGED_KEY = b"tail of "
"""With a partition's id, the key in the table ``meta`` of the names of a partition with staged
records, so that such partitions need no search."""

MARKS: Final = (b"cold of ", b"merged of ")
"""The first bytes of the keys of ``Tables.cold`` and ``Tables.merged``."""

T = TypeVar("T")


class FoundBlock(NamedTuple):
    """A block in the map: ``packed`` is valid as long as its transaction."""

    partition_id: int
    first: int
    packed: memoryview

    @property
    def key(self) -> bytes:
        """Return its key in the table of blocks."""
        return BLOCK_KEY.pack(self.partition_id, self.first)

    @property
    def end(self) -> int:
        """Return the offset after its last record; raise ValueError if it is damaged."""
        return self.first + header_of(self.packed).records


class Tables:
    """Reads and writes a directory's tables in one transaction of LMDB.

    Every method raises StoreError at damage: a row that does not match its checksum, or a missing
    block.
    """

    def __init__(self, opened: Opened, txn: lmdb.Transaction[memoryview]) -> None:
        self.directory, _, self._damaged, *dbs = opened
        self._tables = [Table(txn, db, self.directory) for db in dbs]
        self.meta, self._partitions, self._blocks = self._tables
        self.mergeable: Mergeable = []
        self.area = AppendArea(self.meta, self._blocks, self.mergeable)
        self.lives = Lives(self.meta)
        self.notes = Notes(self.meta)
        self.cold = OffsetTable(self.meta, MARKS[0])
        """The offsets up to which partitions' blocks were scanned for compression."""
        self.merged = OffsetTable(self.meta, MARKS[1])
        """The offsets up to which partitions have no blocks to merge."""
        self.links = Links(self.meta)
        self.changed: set[TopicPartition] = set()
        """The partitions with changes that readers may see."""

    @property
    def written_bytes(self) -> int:
        """Return the approximate number of bytes written to the file."""
        return TREE_BYTES + sum(table.written_bytes for table in self._tables)

    def entries(self, table: int) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the entries of a table: 0 meta, 1 partitions, 2 blocks."""
        return self._tables[table].scan(b"")

    def ids_with_blocks(self, partition_id: int = 0) -> Iterator[int]:
        """Yield the ids with blocks, from one on, touching no page of them."""
        cursor = self._blocks.cursor()
        while cursor.set_range(BLOCK_KEY.pack(partition_id, 0)):
            yield (found := BLOCK_KEY.unpack(cursor.key())[0])
            partition_id = found + 1

    # -- partitions ------------------------------------------------------------------------------

    def all_rows(
        self, topic: str | None = None, after: TopicPartition | None = None
    ) -> Iterator[PartitionRow]:
        """Yield every partition's row, or those of a topic, or those after a partition."""
        prefix = b"" if topic is None else rows.topic_prefix(topic)
        start = b"" if after is None else rows.partition_key(after)
        for key, value in self._partitions.scan(prefix, start):
            if key != start:
                yield self._parsed(rows.tp_of_key(key), key, value)

    def row(self, tp: TopicPartition) -> PartitionRow | None:
        """Return a partition's row; None if the partition is unknown."""
        key = rows.partition_key(tp)
        found = self._partitions.get(key)
        return None if found is None else self._parsed(tp, key, found)

    def visible_row(self, tp: TopicPartition) -> PartitionRow | None:
        """Return a partition's row for readers; None if unknown, or with only staged records."""
        row = self.row(tp)
        return row if row is not None and row.end else None

    def put_row(self, row: PartitionRow) -> None:
        """Write a partition's row, and list the partition if it has staged records.

        A partition without records is forgotten when its staged records are deleted.
        """
        key, staged_key = rows.partition_key(row.tp), _staged_key(row.id)
        if row.end or self.visible_row(row.tp):
            self.changed.add(row.tp)
        if row.end or row.staged:
            self._partitions.put(key, row.packed(key))
        else:
            self._partitions.delete(key)
        if row.staged is None:
            self.meta.delete(staged_key)
        elif self.meta.get(staged_key) is None:
            self.meta.put(staged_key, key)

    def new_id(self) -> int:
        """Return the id of a new partition; ids are not used again."""
        found = self.meta.get(_NEXT_ID_KEY)
        partition_id: int = _ID.unpack(found)[0] if found is not None else 0
        known = len(self._partitions)  # each has an id of its own
        blocks = self._blocks.cursor()
        if partition_id < known or blocks.set_range(BLOCK_KEY.pack(partition_id, 0)):
            # Records of another partition would be overwritten.
            why = f"the id of the next partition, {partition_id}, is in use"
            raise damaged(self.directory, why)
        self.meta.put(_NEXT_ID_KEY, _ID.pack(partition_id + 1))
        return partition_id

    def tp_of_id(self, partition_id: int) -> TopicPartition:
        """Return the partition with an id, by a search of all partitions."""
        unknown = TopicPartition("unknown", f"with id {partition_id}")
        return next((row.tp for row in self.all_rows() if row.id == partition_id), unknown)

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """Return the available offsets of a partition; None if it is unknown."""
        return row.info if (row := self.visible_row(tp)) else None

    def infos(self, topic: str | None) -> list[PartitionInfo]:
        """Return the available offsets of all partitions, or of a topic's, in name order."""
        found = list(self.all_rows(topic))
        if topic is None:
            self.check_count(len(found))
        return [row.info for row in found if row.end]

    def check_count(self, found: int) -> None:
        """Raise StoreError if the partitions have more or fewer rows than ``found``."""
        expected = len(self._partitions)
        if found != expected:
            why = f"the table of partitions has {found} rows instead of {expected}"
            raise damaged(self.directory, why)

    def transaction_state(self, tp: TopicPartition) -> TransactionState:
        """Return the progress of a partition's transactions; all zero if it is unknown."""
        row = self.row(tp)
        if row is None:
            return TransactionState(0, 0, "", None)
        owner = row.staged or row.committed
        attempt = attempt_text(owner.attempt) if owner else ""
        staged_end = row.staged.end if row.staged else row.end
        return TransactionState(row.end, staged_end, attempt, row.last_transaction)

    def staged_partitions(self) -> list[TopicPartition]:
        """Return the partitions with staged records."""
        return [rows.tp_of_key(bytes(key)) for _, key in self.meta.scan(_STAGED_KEY)]

    def staged(self) -> list[StagedPartition]:
        """Return the staged records of each of them."""
        found = []
        for tp in self.staged_partitions():
            row = self.row(tp)
            assert row is not None
            assert row.staged is not None
            end, _, _, staged_at_us, attempt, _ = row.staged
            size_bytes = self.size_bytes(row.id, row.end, end)
            owner = attempt_text(attempt)
            found.append(StagedPartition(*tp, owner, row.end, end, size_bytes, staged_at_us))
        return found

    def staged_start(self, partition_id: int) -> int:
        """Return the start of a partition's staged blocks; after all blocks without any."""
        key = self.meta.get(_staged_key(partition_id))
        row = None if key is None else self.row(rows.tp_of_key(bytes(key)))
        return rows.LAST_OFFSET if row is None else row.end

    # -- blocks ----------------------------------------------------------------------------------

    def blocks_of(self, row: PartitionRow, offset: int) -> list[FoundBlock]:
        """Return the block with a record that the partition's row includes.

        One of the append area comes with those that follow it there: all are found at once.
        """
        tp, found = row.tp, self.last_block(row.id, offset)
        end = self.end_of(tp, found) if found else 0
        if found is None or offset >= end:
            if grouped := self.grouped(row, offset):
                return grouped  # the directories of their groups prove that they belong there
            raise self.damaged_block(tp, offset, "the block is missing")
        # Its checksum covers its content, not its place.  Read by its exact key: in a damaged tree
        # LMDB ends the process in ``next``.  With a cursor: ``get`` would read every page of the
        # next block.
        following, in_place = self._blocks.cursor(), True
        if end != row.end and not following.set_key(BLOCK_KEY.pack(row.id, end)):
            with contextlib.suppress(ValueError):  # of a damaged group, which may have the next one
                in_place = bool(self.area.find(row.id, end))
        if end > row.end or not in_place:
            why = f"it ends at offset {end}, where no other block begins"
            raise self.damaged_block(tp, found.first, why)
        return [found]

    def grouped(self, row: PartitionRow, offset: int) -> list[FoundBlock]:
        """Return the block of the append area with a record, and those that follow it there."""
        with self.naming(row.tp, offset):
            found = self.area.find(row.id, offset)
        return [FoundBlock(row.id, first, memoryview(packed)) for _, first, _, packed in found]

    def blocks_between(
        self,
        row: PartitionRow,
        start: int,
        end: int,
        most: float = math.inf,
        most_bytes: float = math.inf,
    ) -> Iterator[FoundBlock]:
        """Yield available records' blocks in order: at most ``most``, none after ``most_bytes``."""
        at, end = max(start, row.earliest), min(end, row.end)
        found: list[FoundBlock] = []
        while at < end and most > 0 and most_bytes > 0:
            found = found or self.blocks_of(row, at)
            block = found.pop(0)
            yield block
            offset, at = at, self.end_of(row.tp, block)
            if at <= offset:  # a group's directory does not check a block's record count
                raise self.damaged_block(row.tp, block.first, f"it does not hold offset {offset}")
            most, most_bytes = most - 1, most_bytes - len(block.packed)

    def batches(
        self,
        row: PartitionRow,
        start: int,
        end: int,
        read: Callable[[memoryview], Block] = Block.copied,
    ) -> Iterator[RecordBatch]:
        """Yield the available records from ``start`` to ``end``, one batch per block."""
        at, end = max(start, row.earliest), min(end, row.end)
        for found in self.blocks_between(row, at, end):
            batch = self.batch_of(row.tp, found, read)
            yield batch.between(at, min(batch.end, end))
            at = batch.end

    def batch_of(
        self,
        tp: TopicPartition,
        found: FoundBlock,
        read: Callable[[memoryview], Block] = Block.copied,
    ) -> RecordBatch:
        """Return the records of a block."""
        block = self.read_block(tp, found, read)
        return RecordBatch(tp, found.first, block.values, times=block.times)

    def last_block(self, partition_id: int, offset: int) -> FoundBlock | None:
        """Return a partition's last block that begins at or before ``offset``, if any."""
        cursor = self._blocks.cursor()
        key = BLOCK_KEY.pack(partition_id, offset)
        # The first one at or after ``key``, or else its predecessor.
        at_or_after = cursor.set_range(key)
        exact = at_or_after and cursor.key() == key
        if not (exact or (cursor.prev() if at_or_after else cursor.last())):
            return None
        found, first = BLOCK_KEY.unpack(cursor.key())
        if found != partition_id:
            return None
        return FoundBlock(partition_id, first, cursor.value())

    def header_of(self, tp: TopicPartition, found: FoundBlock) -> Header:
        """Return a block's header."""
        return self.read_block(tp, found, header_of)

    def end_of(self, tp: TopicPartition, found: FoundBlock) -> int:
        """Return the offset after a block's last record."""
        return found.first + self.header_of(tp, found).records

    def read_block(
        self, tp: TopicPartition, found: FoundBlock, read: Callable[[memoryview], T]
    ) -> T:
        """Return the result of ``read`` for a block; its ValueError means damage."""
        with self.naming(tp, found.first):
            return read(found.packed)

    def packed_block(self, partition_id: int, first: int) -> memoryview | None:
        """Return the block that begins at an offset, if any."""
        return self._blocks.get(BLOCK_KEY.pack(partition_id, first))

    def blocks_from(
        self, partition_id: int, start: int, end: int = rows.LAST_OFFSET
    ) -> Iterator[FoundBlock]:
        """Yield a partition's blocks in the table that begin at offsets from ``start`` to ``end``.

        LMDB's Python binding touches each page of a block.
        """
        cursor = self._blocks.cursor()
        if cursor.set_range(BLOCK_KEY.pack(partition_id, start)):
            for key, packed in cursor.iternext():
                found, first = BLOCK_KEY.unpack(key)
                if (found, first) >= (partition_id, end):
                    return
                yield FoundBlock(found, first, packed)

    def blocks_reaching(
        self, partition_id: int, start: int, end: int = rows.LAST_OFFSET
    ) -> Iterator[FoundBlock]:
        """Yield as ``blocks_from``, after the block that begins earlier and has record ``start``.

        A damaged one may have it.
        """
        last = self.last_block(partition_id, start)
        if last is not None and last.first < start:
            with contextlib.suppress(ValueError):
                last = last if last.end > start else None
            if last is not None:
                yield last
        yield from self.blocks_from(partition_id, start, end)

    def size_bytes(self, partition_id: int, start: int, end: int) -> int:
        """Return the size of a partition's blocks in the table between two offsets."""
        return sum(len(each.packed) for each in self.blocks_from(partition_id, start, end))

    def put_block(self, partition_id: int, first: int, packed: Bytes) -> None:
        """Write a block, replacing one that begins there."""
        self._blocks.put(BLOCK_KEY.pack(partition_id, first), packed)
        self.mergeable.append((partition_id, first, len(packed)))

    def scan_again(self, partition_id: int, start: int) -> None:
        """Have blocks from an offset on, which were replaced, compressed and merged again."""
        self.cold.lower(partition_id, start)
        self.merged.lower(partition_id, start)

    def swap_blocks(self, partition_id: int, heads: dict[int, bytes], merged: memoryview) -> bool:
        """Replace blocks by ``merged``; return False, without effect, if they have changed.

        ``heads`` has their first bytes, with their checksums, by their first offsets.
        """
        for first, head in heads.items():
            packed = self.packed_block(partition_id, first)
            if packed is None or bytes(packed[: HEADER.size]) != head:
                return False
        self.delete_blocks(partition_id, heads)
        self.put_block(partition_id, min(heads), merged)
        return True

    def delete_staged(self, row: PartitionRow) -> None:
        """Delete the blocks of staged records."""
        self.delete_blocks(row.id, list(self.firsts(row.id, row.end)))

    def trim(self, tp: TopicPartition, before: int) -> int:
        """Trim the records below ``before``; return the partition's earliest offset from now on."""
        row = self.row(tp)
        if row is None or min(before, row.end) <= row.earliest:
            return row.earliest if row else 0
        before, end = min(before, row.end), row.end
        # At the end, staged blocks may begin.
        last = min(before, end - 1)
        doomed = list(takewhile(lambda first: first <= last, self.firsts(row.id, 0)))
        # A block ends where the next one begins, in the append area, or at the partition's end.
        held = before < end
        with contextlib.suppress(ValueError):  # of a damaged group
            held = held and not self.area.find(row.id, before)
        self.delete_blocks(row.id, doomed[:-1] if held else doomed)
        self.area.trim(row.id, before)
        self.links.trim(row.id, before)
        self.put_row(row._replace(earliest=before))
        return before

    def trim_held(self, held: PartitionInfo, before: int) -> int:
        """Trim records unless another producer has replaced theirs; return the number of records.

        ``held`` has the partition and the life of its producer.
        """
        row = self.row(held.tp)
        if row is None or row.info.life != held.life or before > row.end:
            return 0
        return self.trim(held.tp, before) - row.earliest

    def damaged_block(self, tp: TopicPartition, offset: int, why: str) -> StoreError:
        """Return the error for a damaged block, and note its partition for ``Healer``."""
        self._damaged.add(tp)
        return StoreError(
            self.directory,
            f"{tp}: the block at offset {offset} cannot be read: {why}. Its records are replaced "
            "when another store with Arrow Flight has them",
        )

    @contextlib.contextmanager
    def naming(self, tp: TopicPartition, offset: int) -> Iterator[None]:
        """Turn a ValueError into the error for the block there."""
        try:
            yield
        except ValueError as error:
            raise self.damaged_block(tp, offset, str(error)) from error

    def firsts(self, partition_id: int, start: int) -> Iterator[int]:
        """Yield the first offsets of a partition's blocks from an offset on, touching no page."""
        cursor = self._blocks.cursor()
        if cursor.set_range(BLOCK_KEY.pack(partition_id, start)):
            for key in cursor.iternext(keys=True, values=False):
                found, first = BLOCK_KEY.unpack(key)
                if found != partition_id:
                    return
                yield first

    def delete_blocks(self, partition_id: int, firsts: Iterable[int]) -> None:
        """Delete the blocks of a partition that begin at these offsets."""
        for first in firsts:
            self._blocks.delete(BLOCK_KEY.pack(partition_id, first))

    def _parsed(self, tp: TopicPartition, key: bytes, value: memoryview) -> PartitionRow:
        try:
            return PartitionRow.parse(tp, key, value)
        except ValueError as error:
            raise damaged(self.directory, f"{tp}: {error}") from error


def _staged_key(partition_id: int) -> bytes:
    return _STAGED_KEY + partition_id.to_bytes(8, "big")
