"""The log's tables inside one LMDB transaction: partitions, blocks, notes and epochs."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import xxhash

from dafka_core.errors import StoreError
from dafka_core.model.epochs import (
    EPOCH_BYTES,
    LIFE_BYTES,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    before,
    with_epoch,
)
from dafka_core.model.log_entries import Met, attempt_text
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import (
    PartitionInfo,
    PartitionLives,
    StagedPartition,
    TopicPartition,
    TransactionState,
)
from dafka_core.storage import rows
from dafka_core.storage.append_area import AppendArea
from dafka_core.storage.block import HEADER, peek_count
from dafka_core.storage.links import Links
from dafka_core.storage.merge_planner import MergeCandidate
from dafka_core.storage.open_environment import ColdMarks, Opened
from dafka_core.storage.rows import BLOCK_KEY, CHECKSUM_BYTES, PartitionRow, checksum, partition_key
from dafka_core.storage.storage_errors import damaged
from dafka_core.storage.transaction import CountedTransaction

if TYPE_CHECKING:
    import lmdb


# Notes: small values that a store's own programs keep with its log, by name.
#
# They are written in the same step as records (``log_entries.NotedBatch``), so they never say
# more or less than there is. They lie in the table ``meta``:
#
#     "note ", name  ->  octets, checksum


_PREFIX = b"note "


class Notes:
    """The notes in one transaction of LMDB."""

    def __init__(self, directory: Path, txn: CountedTransaction, meta: lmdb._Database) -> None:
        self._directory = directory
        self._txn = txn
        self._meta = meta

    def put(self, notes: Mapping[str, bytes | None]) -> None:
        """Writes some, each in the place of the one of its name, or deletes it (None)."""
        for name, octets in notes.items():
            key = _PREFIX + octets_of(name)
            if octets is None:
                self._txn.delete(key, db=self._meta)
            else:
                self._txn.put(key, octets + checksum(key, octets), db=self._meta)

    def named(self, prefix: str) -> dict[str, bytes]:
        """Those whose names begin with ``prefix``, in the order of their names.

        Raises:
            StoreError: one is damaged.
        """
        found = {}
        for key, value in self._txn.scan(self._meta, _PREFIX + octets_of(prefix)):
            octets, name = bytes(value[:-CHECKSUM_BYTES]), text_of(key[len(_PREFIX) :])
            if value != octets + checksum(key, octets):
                raise damaged(self._directory, f"note {name!r} does not match its checksum")
            found[name] = octets
        return found


# Epochs on disk: the history of each partition's records, and what its store has promised.
#
# A partition's row has its newest epoch (``rows.py``). Those before it, and what was promised,
# which may be to a producer of a partition that has no record yet, lie in the table ``meta``:
#
#     "lives of ", digest of the partition's key  ->  promised life, older epochs, checksum
#     "met ", address of another store  ->  when it was heard last, and where it was


_EPOCHS_PREFIX = b"lives of "
_MET = b"met "
HEARD_BYTES: Final = 8


class Lives:
    """The epochs in one transaction of LMDB."""

    def __init__(self, directory: Path, txn: CountedTransaction, meta: lmdb._Database) -> None:
        self._directory = directory
        self._txn = txn
        self._meta = meta

    def of(self, tp: TopicPartition, row: PartitionRow | None) -> PartitionLives:
        """What is known of the lives of a partition's producer.

        Raises:
            StoreError: it is damaged.
        """
        end, last = (row.end, row.last_transaction) if row is not None else (0, None)
        promised, history = self._until(tp, row, end)
        return PartitionLives(end, history, promised, last)

    def history(self, tp: TopicPartition, row: PartitionRow) -> History:
        """The history of a partition's records."""
        newest = row.epoch
        if newest is None or not (newest.parent or newest.start):
            return () if newest is None else (newest,)
        return (*self._older(tp)[1], newest)

    def begin(self, tp: TopicPartition, row: PartitionRow, epoch: Epoch) -> PartitionRow:
        """The row when its partition goes on with an epoch."""
        # One without records was given up: what was staged in it is gone.
        promised, history = self._until(tp, row, row.end)
        history = with_epoch(history, epoch)
        self._put(tp, promised, history[:-1])
        return row._replace(epoch=epoch)

    def promise(self, tp: TopicPartition, life: EpochId) -> None:
        """Keeps a promise, unless a newer life has one."""
        promised, older = self._older(tp)
        self._put(tp, max(promised, life), older)

    def meet(self, met: Met) -> None:
        """Keeps that another store is there."""
        value = met.heard_us.to_bytes(HEARD_BYTES, "big") + met.endpoint.encode()
        self._txn.put(_MET + octets_of(met.store), value, db=self._meta)

    def met(self) -> list[Met]:
        """The stores that were ever met."""
        return [
            Met(
                text_of(name[len(_MET) :]),
                bytes(value[HEARD_BYTES:]).decode(),
                int.from_bytes(value[:HEARD_BYTES], "big"),
            )
            for name, value in self._txn.scan(self._meta, _MET)
        ]

    def forget(self, store: str) -> bool:
        """Forgets another store; False when it was never met."""
        return self._txn.delete(_MET + octets_of(store), db=self._meta)

    def cut(self, tp: TopicPartition, row: PartitionRow, end: int) -> PartitionRow:
        """The row without the epochs that begin at ``end`` or later."""
        promised, history = self._until(tp, row, end)
        self._put(tp, promised, history[:-1])
        return row._replace(epoch=history[-1] if history else None)

    def replace(self, tp: TopicPartition, row: PartitionRow, history: History) -> PartitionRow:
        """The row with another history; what was promised stays."""
        promised, _ = self._older(tp)
        self._put(tp, promised, history[:-1])
        return row._replace(epoch=history[-1] if history else None)

    def _until(
        self, tp: TopicPartition, row: PartitionRow | None, end: int
    ) -> tuple[EpochId, History]:
        """What is promised, and the history of the records before an offset."""
        promised, older = self._older(tp)
        newest = () if row is None or row.epoch is None else (row.epoch,)
        return promised, before((*older, *newest), end)

    def _older(self, tp: TopicPartition) -> tuple[EpochId, History]:
        name = _name(tp)
        found = self._txn.get(name, db=self._meta)
        if found is None:
            return NO_LIFE, ()
        content = bytes(found[:-CHECKSUM_BYTES])
        epochs = content[LIFE_BYTES:]
        if found != content + checksum(name, content) or len(epochs) % EPOCH_BYTES:
            why = "what is known of the lives of a partition does not match its checksum"
            raise damaged(self._directory, why)
        starts = range(0, len(epochs), EPOCH_BYTES)
        promised = EpochId.unpack(content[:LIFE_BYTES])
        return promised, tuple(Epoch.unpack(epochs[at : at + EPOCH_BYTES]) for at in starts)

    def _put(self, tp: TopicPartition, promised: EpochId, older: History) -> None:
        name = _name(tp)
        if promised == NO_LIFE and not older:
            self._txn.delete(name, db=self._meta)
            return
        content = promised.packed() + b"".join(map(Epoch.packed, older))
        self._txn.put(name, content + checksum(name, content), db=self._meta)


def _name(tp: TopicPartition) -> bytes:
    return _EPOCHS_PREFIX + xxhash.xxh3_128_digest(partition_key(tp))


_ID = struct.Struct("<Q")
_NEXT_ID_KEY = b"next partition"

_STAGED_KEY = b"tail of "
"""With a partition's id, the key in the table ``meta`` under which the names of a partition with
staged records lie, so that such partitions need not be searched for."""

T = TypeVar("T")


class FoundBlock(NamedTuple):
    """A block as it lies in the map: ``packed`` is valid as long as its transaction."""

    key: bytes
    first: int
    packed: memoryview


class Tables:
    """What reads and writes a directory's tables in one transaction of LMDB.

    Every method raises StoreError when it comes upon damage: a row that does not match its
    checksum, or a block that is not where one must be.
    """

    def __init__(self, opened: Opened, txn: lmdb.Transaction[memoryview]) -> None:
        self.directory, _, self.meta, self._partitions, self._blocks = opened
        self.txn = CountedTransaction(txn)
        self.area = AppendArea(self.txn, opened.meta, opened.blocks)
        self.lives = Lives(self.directory, self.txn, self.meta)
        self.notes = Notes(self.directory, self.txn, self.meta)
        self.cold = ColdMarks(self.txn, self.meta)
        self.links = Links(self.txn, self.meta)
        self.changed: set[TopicPartition] = set()
        """The partitions that readers see otherwise than before, or at least may."""

    @property
    def written_bytes(self) -> int:
        """About how much of the file was written."""
        return self.txn.written_bytes

    def entries(self, table: int) -> Iterator[tuple[bytes, memoryview]]:
        """All that lies in a table: in that of number 0 meta, 1 partitions, 2 blocks."""
        return self.txn.scan((self.meta, self._partitions, self._blocks)[table], b"")

    def ids_with_blocks(self) -> Iterator[int]:
        """The ids under which blocks lie; no page of them is touched."""
        cursor, partition_id = self.txn.cursor(self._blocks), 0
        while cursor.set_range(BLOCK_KEY.pack(partition_id, 0)):
            yield (found := BLOCK_KEY.unpack(cursor.key())[0])
            partition_id = found + 1

    # -- partitions ------------------------------------------------------------------------------

    def all_rows(self) -> Iterator[tuple[TopicPartition, PartitionRow]]:
        """Every partition's row."""
        return self._rows(b"")

    def row(self, tp: TopicPartition) -> PartitionRow | None:
        """A partition's row; None when the partition is not known."""
        key = rows.partition_key(tp)
        found = self.txn.get(key, db=self._partitions)
        return None if found is None else self._parsed(key, found)

    def visible_row(self, tp: TopicPartition) -> PartitionRow | None:
        """A partition's row, for readers; None when it is not known, or only has staged records."""
        row = self.row(tp)
        return row if row is not None and row.end else None

    def put_row(self, tp: TopicPartition, row: PartitionRow) -> None:
        """Writes a partition's row, and lists the partition if it has staged records.

        A partition whose only records were staged, and are not any more, is forgotten.
        """
        key, staged_key = rows.partition_key(tp), _staged_key(row.id)
        if row.end or self.visible_row(tp):
            self.changed.add(tp)
        if row.end or row.staged:
            self.txn.put(key, row.packed(key), db=self._partitions)
        else:
            self.txn.delete(key, db=self._partitions)
        if row.staged is None:
            self.txn.delete(staged_key, db=self.meta)
        elif self.txn.get(staged_key, db=self.meta) is None:
            self.txn.put(staged_key, key, db=self.meta)

    def new_id(self) -> int:
        """The id of a partition that is new; ids are not used again."""
        found = self.txn.get(_NEXT_ID_KEY, db=self.meta)
        partition_id: int = _ID.unpack(found)[0] if found is not None else 0
        known = self.txn.stat(self._partitions)["entries"]  # each has an id of its own
        blocks = self.txn.cursor(self._blocks)
        if partition_id < known or blocks.set_range(BLOCK_KEY.pack(partition_id, 0)):
            # Records of another partition would be written over.
            why = f"the id of the next partition, {partition_id}, is in use"
            raise damaged(self.directory, why)
        self.txn.put(_NEXT_ID_KEY, _ID.pack(partition_id + 1), db=self.meta)
        return partition_id

    def tp_of_id(self, partition_id: int) -> TopicPartition:
        """The partition that has an id, found by looking at all of them."""
        unknown = TopicPartition("unknown", f"with id {partition_id}")
        return next((tp for tp, row in self._rows(b"") if row.id == partition_id), unknown)

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """What is held of a partition; None when it is not known."""
        row = self.visible_row(tp)
        return row.info(tp) if row else None

    def infos(self, topic: str | None) -> list[PartitionInfo]:
        """What is held of every partition, or of every one of a topic; in order of their names."""
        found = list(self._rows(b"" if topic is None else rows.topic_prefix(topic)))
        if topic is None:
            self.check_count(len(found))
        return [row.info(tp) for tp, row in found if row.end]

    def check_count(self, found: int) -> None:
        """Raises StoreError if the partitions have more or fewer rows than ``found``."""
        expected = self.txn.stat(self._partitions)["entries"]
        if found != expected:
            why = f"the table of partitions has {found} rows and says that they are {expected}"
            raise damaged(self.directory, why)

    def infos_after(
        self, topic: str | None, after: TopicPartition | None, most: int
    ) -> list[PartitionInfo]:
        """The same, at most so many behind a partition; the end of some may be 0."""
        prefix = b"" if topic is None else rows.topic_prefix(topic)
        start = prefix if after is None else rows.partition_key(after)
        found = self._rows(prefix, start)
        behind = (each for each in found if each[0] != after)
        return [row.info(tp) for tp, row in islice(behind, most)]

    def transaction_state(self, tp: TopicPartition) -> TransactionState:
        """How far a partition's transactions are; all zero when it is not known."""
        row = self.row(tp)
        if row is None:
            return TransactionState(0, 0, "", None)
        owner = row.staged or row.committed
        attempt = attempt_text(owner.attempt) if owner else ""
        staged_end = row.staged.end if row.staged else row.end
        return TransactionState(row.end, staged_end, attempt, row.last_transaction)

    def staged_partitions(self) -> list[TopicPartition]:
        """The partitions with staged records."""
        return [rows.tp_of_key(bytes(key)) for _, key in self.txn.scan(self.meta, _STAGED_KEY)]

    def staged(self) -> list[StagedPartition]:
        """What is staged in each of them."""
        found = []
        for tp in self.staged_partitions():
            row = self.row(tp)
            assert row is not None
            assert row.staged is not None
            end, last_time_us, attempt, _ = row.staged
            size_bytes = sum(each.size_bytes for each in self.candidates(row.id, row.end, end))
            owner = attempt_text(attempt)
            found.append(StagedPartition(*tp, owner, row.end, end, size_bytes, last_time_us))
        return found

    def staged_start(self, partition_id: int) -> int:
        """Where a partition's staged blocks begin, if it has some; behind all blocks if not."""
        key = self.txn.get(_staged_key(partition_id), db=self.meta)
        row = None if key is None else self.row(rows.tp_of_key(bytes(key)))
        return rows.LAST_OFFSET if row is None else row.end

    # -- blocks ----------------------------------------------------------------------------------

    def blocks_of(self, tp: TopicPartition, row: PartitionRow, offset: int) -> list[FoundBlock]:
        """The block that holds a record, which the partition's row says is held.

        One of the append area comes with those that follow it there: all are found at once.
        """
        found = self.last_block(row.id, offset)
        end = found.first + self.read_block(tp, found, peek_count) if found else 0
        if found is None or offset >= end:
            if grouped := self.grouped(tp, row, offset):
                return grouped  # the directories of their groups say that they belong there
            raise self.damaged_block(tp, offset, "there is no block")
        # Its checksum tells what it holds, not where it belongs.  Looked for by its exact key: in
        # a damaged tree LMDB ends the process when it is asked for whatever comes next.  With a
        # cursor: ``get`` would have every page of the block that follows read.
        following, key = self.txn.cursor(self._blocks), BLOCK_KEY.pack(row.id, end)
        in_place = end == row.end or following.set_key(key) or self.grouped(tp, row, end)
        if end > row.end or not in_place:
            why = f"it ends at offset {end}, where no other one begins"
            raise self.damaged_block(tp, found.first, why)
        return [found]

    def grouped(self, tp: TopicPartition, row: PartitionRow, offset: int) -> list[FoundBlock]:
        """The block of the append area that holds a record, and those that follow it there."""
        with self.naming(tp, offset):
            found = self.area.find(row.id, offset)
        return [
            FoundBlock(BLOCK_KEY.pack(row.id, first), first, memoryview(packed))
            for _, first, _, packed in found
        ]

    def blocks_between(
        self,
        tp: TopicPartition,
        row: PartitionRow,
        start: int,
        end: int,
        most: float = math.inf,
        most_bytes: float = math.inf,
    ) -> Iterator[FoundBlock]:
        """The blocks that hold the records from ``start`` up to ``end`` that are held, in order.

        No more than ``most``, and none after those that have ``most_bytes``.
        """
        at, end = max(start, row.earliest), min(end, row.end)
        found: list[FoundBlock] = []
        while at < end and most > 0 and most_bytes > 0:
            found = found or self.blocks_of(tp, row, at)
            block = found.pop(0)
            yield block
            offset, at = at, block.first + self.read_block(tp, block, peek_count)
            if at <= offset:  # a group's directory does not know how many records a block says
                raise self.damaged_block(tp, block.first, f"it does not hold offset {offset}")
            most, most_bytes = most - 1, most_bytes - len(block.packed)

    def last_block(self, partition_id: int, offset: int) -> FoundBlock | None:
        """A partition's last block that begins at ``offset`` or before; None if there is none."""
        cursor = self.txn.cursor(self._blocks)
        key = BLOCK_KEY.pack(partition_id, offset)
        # The first one at ``key`` or after it, or else the one before that.
        at_or_after = cursor.set_range(key)
        exact = at_or_after and cursor.key() == key
        if not (exact or (cursor.prev() if at_or_after else cursor.last())):
            return None
        found, first = BLOCK_KEY.unpack(cursor.key())
        if found != partition_id:
            return None
        return FoundBlock(bytes(cursor.key()), first, cursor.value())

    def read_block(
        self, tp: TopicPartition, found: FoundBlock, read: Callable[[memoryview], T]
    ) -> T:
        """What ``read`` makes of a block, which is damaged if ``read`` raises ValueError."""
        with self.naming(tp, found.first):
            return read(found.packed)

    def packed_block(self, partition_id: int, first: int) -> memoryview | None:
        """The block that begins at an offset, if there is one."""
        return self.txn.get(BLOCK_KEY.pack(partition_id, first), db=self._blocks)

    def block_sizes(
        self, partition_id: int, first: int, size_of: Callable[[memoryview], int] = len
    ) -> Iterator[tuple[int, int, int]]:
        """Partition id, first offset and bytes of every block from one on, of all partitions.

        LMDB's Python binding touches each page of a value whose size it says.
        """
        cursor = self.txn.cursor(self._blocks)
        if cursor.set_range(BLOCK_KEY.pack(partition_id, first)):
            for key, packed in cursor.iternext():
                yield (*BLOCK_KEY.unpack(key), size_of(packed))

    def candidates(self, partition_id: int, start: int, end: int) -> list[MergeCandidate]:
        """A partition's blocks from ``start`` up to ``end``, as if the append area were empty."""
        sizes = self.block_sizes(partition_id, start)
        blocks = list(takewhile(lambda block: block[:2] < (partition_id, end), sizes))
        ends = [*(first for _, first, _ in blocks[1:]), end]
        return [
            MergeCandidate(first, stop - first, size_bytes)
            for (_, first, size_bytes), stop in zip(blocks, ends, strict=False)
        ]

    def put_block(self, partition_id: int, first: int, packed: memoryview) -> None:
        """Writes a block, in the place of one that begins there."""
        self.txn.put(BLOCK_KEY.pack(partition_id, first), packed, db=self._blocks)

    def swap_blocks(self, partition_id: int, heads: dict[int, bytes], merged: memoryview) -> bool:
        """Puts ``merged`` in the place of blocks; False, and nothing done, if they have changed.

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
        """Deletes the blocks of what is staged."""
        self.delete_blocks(row.id, list(self.firsts(row.id, row.end)))

    def trim(self, tp: TopicPartition, before: int) -> int:
        """Gives up the records below ``before``; the partition's earliest offset from now on.

        Raises:
            ValueError: ``before`` is above the partition's end.
        """
        row = self.row(tp)
        earliest, end = (row.earliest, row.end) if row else (0, 0)
        if before > end:
            raise ValueError(
                f"{tp}: cannot trim before offset {before}, the partition ends at {end}"
            )
        if row is None or before <= earliest:
            return earliest
        # At the end, staged blocks may begin.
        last = min(before, end - 1)
        doomed = list(takewhile(lambda first: first <= last, self.firsts(row.id, 0)))
        # A block ends where the next one begins, in the append area, or where the partition does.
        held = before < end
        with contextlib.suppress(ValueError):  # of a damaged group
            held = held and not self.area.find(row.id, before)
        self.delete_blocks(row.id, doomed[:-1] if held else doomed)
        self.area.trim(row.id, before)
        self.links.trim(row.id, before)
        self.put_row(tp, row._replace(earliest=before))
        return before

    def trim_held(self, held: PartitionInfo, before: int) -> int:
        """The same of what was held before; nothing goes if it is another producer's meanwhile."""
        row = self.row(held.tp)
        info = row.info(held.tp) if row else held._replace(earliest=0, end=0)
        is_same = info.life == held.life and before <= info.end
        return self.trim(held.tp, before) if is_same else info.earliest

    def damaged_block(self, tp: TopicPartition, offset: int, why: str) -> StoreError:
        """The error for a block that is not what was written."""
        return damaged(
            self.directory,
            f"{tp}: the block at offset {offset} cannot be read: {why}",
        )

    @contextlib.contextmanager
    def naming(self, tp: TopicPartition, offset: int) -> Iterator[None]:
        """Has a ValueError be the error for the block there."""
        try:
            yield
        except ValueError as error:
            raise self.damaged_block(tp, offset, str(error)) from error

    def firsts(self, partition_id: int, start: int) -> Iterator[int]:
        """Where a partition's blocks begin, from an offset on; no page of them is touched."""
        cursor = self.txn.cursor(self._blocks)
        if cursor.set_range(BLOCK_KEY.pack(partition_id, start)):
            for key in cursor.iternext(keys=True, values=False):
                found, first = BLOCK_KEY.unpack(key)
                if found != partition_id:
                    return
                yield first

    def delete_blocks(self, partition_id: int, firsts: Iterable[int]) -> None:
        """Deletes the blocks of a partition that begin at these offsets."""
        for first in firsts:
            self.txn.delete(BLOCK_KEY.pack(partition_id, first), db=self._blocks)

    def _rows(
        self, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[TopicPartition, PartitionRow]]:
        for key, value in self.txn.scan(self._partitions, prefix, start):
            yield rows.tp_of_key(key), self._parsed(key, value)

    def _parsed(self, key: bytes, value: memoryview) -> PartitionRow:
        try:
            return PartitionRow.parse(key, value)
        except ValueError as error:
            raise damaged(self.directory, f"{rows.tp_of_key(key)}: {error}") from error


def _staged_key(partition_id: int) -> bytes:
    return _STAGED_KEY + partition_id.to_bytes(8, "big")
