"""The store's durable log: partitions of records, appended in whole batches and synced.

Tables (LMDB, one environment per directory):

    meta         the format's version; the id of the next new partition; the names of partitions
                 with staged records; groups of small batches (``append_area.py``); notes
    partitions   topic, a zero byte, partition  ->  row (``rows.py``)
    blocks       partition id, first offset (both 8 bytes, big endian)  ->  block (``block.py``)

A partition's row is written in the same transaction as its blocks, so they cannot contradict each
other.

``append`` packs a batch into as few blocks as possible, and returns when they are on disk
(``entry_writer.py``).  ``write`` also stages and commits transactions (``log_entries.py``): blocks
of staged records begin at or after their partition's end, invisible to readers, and extend each
other only.  ``merge_step`` makes large blocks of small ones, which are slow to read
(``block_rewriter.py``).  The record at an offset never changes.

LMDB cannot reuse a freed page while an open read transaction may see it (its "Caveats").  So
results are copies, and no transaction is open between two calls of ``read``: a reader may be slow.
``snapshot`` keeps one open, for a consistent view.  Other processes read by ``lease``: they receive
the positions of blocks in the file, and copy them while the lease lasts (``leases.py``).

Its clock (``StoreClock``) is in doubt at times: nothing is deleted by age then.

One thread appends, another may merge; any number of threads read at the same time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.config.topic_rules import CompressionRule
from dafka_core.errors import DafkaError, StoreError
from dafka_core.model.epochs import History, prefix
from dafka_core.model.log_entries import Deletion, LogEntry, Notes, StoreSeen
from dafka_core.model.records import (
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedPartition,
    TopicPartition,
    TransactionState,
    concat,
    split_by_epoch,
)
from dafka_core.model.timestamps import (
    EARLIEST_US,
    MAX_AHEAD_US,
    STEP_US,
    AheadLog,
    StoreClock,
    boot_us,
)
from dafka_core.storage.block import HEADER, MAX_BLOCK_BYTES, Block, BlockCache
from dafka_core.storage.block_rewriter import BlockCompressor, BlockMerger, Healer
from dafka_core.storage.entry_writer import EntryWriter
from dafka_core.storage.environment import DEFAULT_MAP_BYTES, Environment, Space
from dafka_core.storage.leases import Lease
from dafka_core.storage.linker import Linker
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.set_aside import AsideArea, AsideRecords
from dafka_core.storage.snapshot import PartitionStatistics, Snapshot, times_of
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import Closing

TRIM_PARTITIONS: Final = 100  # partitions trimmed at a time: appends wait meanwhile


class PlacedRange(NamedTuple):
    """The blocks of a range: the first offset of each, its position in the file, and its size.

    ``held`` are the partition's available offsets, with their history.
    """

    held: PartitionInfo | None
    history: History
    blocks: list[tuple[int, int, int]]


DEFAULT_MAX_RECORDS = 1 << 20
DEFAULT_MAX_BYTES = 64 << 20
"""The default limit of one ``read``: a few blocks, so memory stays bounded."""

_AGREED = "clock"
"""The name of the note with the newest time, to a minute, at which the clock was right."""


class Log(Closing):
    """The log in one directory, which is created if missing.

    ``map_size_bytes`` is address space: beyond it, or twice the file's size at opening if that is
    more, writes raise DiskFullError until the log is opened again.  ``clock_us`` gives microseconds
    since the epoch UTC.  Timestamps of producers may be ahead of it by ``max_ahead_us``.  Only a
    check opens a log ``unchecked``: rows of partitions may be missing, and it must not be written.

    Every method raises ClosedError after ``close``, and StoreError at damage (topic, partition and
    offset are named) or if LMDB has no room for another read transaction; methods that write also
    if the disk cannot accept it, which leaves everything unchanged.

    Raises:
        StoreError: the directory is another process's, is damaged, or is not a store's.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        map_size_bytes: int = DEFAULT_MAP_BYTES,
        clock_us: Callable[[], int] | None = None,
        max_ahead_us: int = MAX_AHEAD_US,
        unchecked: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self._ahead = AheadLog()
        self._buffer = bytearray(MAX_BLOCK_BYTES)
        self._appending, self._appended_s = False, float("-inf")
        self._env = Environment(self.directory, map_size_bytes=map_size_bytes)
        self.changes, self.syncs = self._env.changes, self._env.syncs
        """The partitions changed since opening, and the durations of syncs."""
        self.compressed = self._env.compressed
        self._cache = BlockCache()
        self.linker = Linker(self._env)  # the creator of links, for the merging thread
        self._merger = BlockMerger(self._env)
        self.healer = Healer(self._env, self._merger)  # replaces damaged records
        try:
            if not unchecked:
                self.partitions()  # a partition with a lost row would restart at offset 0
            self._noted_us, agreed_us = 0, None
            with contextlib.suppress(StoreError, KeyError), self._env.reading() as tables:
                noted = tables.notes.named(_AGREED).get(_AGREED)
                if noted is not None:
                    self._noted_us = agreed_us = int(noted)
                else:
                    stamps = (row.newest_us for row in tables.all_rows() if row.end)
                    agreed_us = max(stamps, default=None)
            steady_us, earliest_us = (clock_us, 0) if clock_us else (boot_us, EARLIEST_US)
            self.clock = StoreClock(agreed_us, clock_us, steady_us, earliest_us, max_ahead_us)
            """Its clock, and whether to go by it."""
            self.now_us, self.latest_us = self.clock.now_us, self.clock.latest_us
        except BaseException:
            self.close()
            raise

    def append(self, batches: Sequence[RecordBatch]) -> None:
        """Write all batches, or none; they are on disk when this returns.

        Several batches of one partition must be adjacent.  Their times are kept; batches without
        are stamped now (``timestamps.py``).

        Raises:
            OffsetConflictError: a batch does not begin at its partition's end.  If the batch is
                of a transaction, the others are written.
            ValueError: an empty batch, a record above ``block.MAX_RECORD_BYTES``, or a
                name that cannot be stored.
        """
        for refused in self.write(batches):
            if refused is not None:
                raise refused

    def write(self, entries: Sequence[LogEntry]) -> list[DafkaError | None]:
        """Execute all entries, in order; they are on disk when this returns.

        Returns one outcome for each: None, or the error of an entry without effect
        (``log_entries.py``).

        Raises:
            OffsetConflictError: a batch without a transaction does not begin at its partition's
                end; nothing is written.
            ValueError: as ``append``, an attempt that is not 32 upper-case hex digits, or a
                transaction that is invalid or does not include the batch; nothing is written.
        """
        now_us, latest_us, noted_us = self.now_us(), self.latest_us(), self._noted_us

        def work(tables: Tables) -> tuple[list[DafkaError | None], EntryWriter, int]:
            writer = EntryWriter(tables, now_us, self._buffer, latest_us)
            outcomes = [writer.apply(entry) for entry in entries]
            agreed_us = self.clock.compare(writer.oldest_us)
            if abs(agreed_us - noted_us) < STEP_US:
                return outcomes, writer, noted_us
            tables.notes.put({_AGREED: b"%d" % agreed_us})
            return outcomes, writer, agreed_us

        if not entries:
            return []
        self._appending = True
        try:
            outcomes, writer, self._noted_us = self._merger.write(work)
            self._env.check_in_place()  # afterwards: writes count only in place
            self._ahead.add(writer.ahead_us)
        finally:
            self._appending, self._appended_s = False, time.monotonic()
        return outcomes

    def transaction_state(self, tp: TopicPartition) -> TransactionState:
        """Return the progress of a partition's transactions; all zero if it is unknown."""
        return self._env.read(lambda tables: tables.transaction_state(tp))

    def staged(self) -> list[StagedPartition]:
        """Return the staged records of all partitions; LMDB touches each of their pages."""
        return self._env.read(lambda tables: tables.staged())

    def discard_stale(self, older_than_s: float, *, replicas: bool = True) -> int:
        """Discard staged records without additions for this time; return the partition count.

        With ``replicas`` also those from another store: not while a store runs on this log, which
        continues them when that store returns.
        """
        before_us = self.now_us() - int(older_than_s * 1_000_000)
        return self._env.write(
            lambda tables: EntryWriter(tables, 0, self._buffer).discard_stale(
                before_us, replicas=replicas
            )
        )

    def trim(self, tp: TopicPartition, before: int) -> int:
        """Trim the records below ``before``; whole blocks of them free their space.

        Returns the partition's earliest offset from now on, which is higher than ``before`` if it
        was already.
        """
        return self.trim_all([(tp, before)])[0]

    def trim_all(self, wanted: Iterable[tuple[TopicPartition, int]]) -> list[int]:
        """Trim partitions in one step, as ``trim``; return their earliest offsets afterwards."""
        return self._env.write(lambda tables: [tables.trim(*each) for each in wanted])

    def trim_each(self, wanted: Iterable[tuple[PartitionInfo, int]]) -> list[int]:
        """Trim partitions in one step; return the numbers of records that were trimmed.

        A partition with another producer since then stays unchanged.
        """
        return self._env.write(lambda tables: [tables.trim_held(*each) for each in wanted])

    def trim_deleted(self, deletions: Iterable[Deletion]) -> list[int]:
        """Trim deleted records of partitions; return their earliest offsets afterwards."""

        def trim(tables: Tables, each: Deletion) -> int:
            lives = tables.lives.of(each.tp, tables.row(each.tp))
            return tables.trim(each.tp, each.reaches(lives))

        return self._env.write(lambda tables: [trim(tables, each) for each in deletions])

    def merge_step(self) -> bool:
        """Merge some small blocks into one; return False if idle.

        The first steps search for those from before opening.  Call it repeatedly in a thread of its
        own; appends and reads continue meanwhile, and wait for the disk at most as long as for
        another append. After a StoreError, a damaged block is skipped.
        """
        self._env.check_open()
        return self._merger.step()

    def compressor(self, rules: Sequence[CompressionRule], after_s: float) -> BlockCompressor:
        """Return the compressor of blocks with records of this age, for the merging thread."""
        return BlockCompressor(self._env, rules, after_s, self.now_us)

    @property
    def small_blocks(self) -> int:
        """Return the approximate number of small blocks that ``merge_step`` has not examined."""
        return self._merger.small_blocks

    @property
    def quiet_s(self) -> float:
        """Return the time since the last append ended; 0 during one, infinity before the first."""
        return 0.0 if self._appending else time.monotonic() - self._appended_s

    def check_in_place(self) -> None:
        """Raise StoreError if the directory was removed or replaced, as ``write`` does, too.

        Also if nothing can be read since a write, perhaps of merging, has failed halfway.
        """
        self._env.check_readable()
        self._env.check_in_place()

    def partitions(self, topic: str | None = None) -> list[PartitionInfo]:
        """Return the available offsets of all partitions, or of a topic's, in name order."""
        return self._env.read(lambda tables: tables.infos(topic))

    def partitions_after(
        self, topic: str | None, after: TopicPartition | None, most: int
    ) -> list[PartitionInfo]:
        """Return at most ``most`` partitions after another; some may have only staged records."""
        return self._env.read(
            lambda tables: [row.info for row in islice(tables.all_rows(topic, after), most)]
        )

    def info(self, tp: TopicPartition) -> PartitionInfo | None:
        """Return the available offsets of a partition; None if it is unknown."""
        return self._env.read(lambda tables: tables.info(tp))

    def lives(self, tp: TopicPartition) -> PartitionLives:
        """Return the lives of a partition's producer."""
        return self._env.read(lambda tables: tables.lives.of(tp, tables.row(tp)))

    def met(self) -> list[StoreSeen]:
        """Return the stores that this log's store has ever discovered."""
        return self._env.read(lambda tables: tables.lives.met())

    def forget(self, store: str) -> bool:
        """Forget another store; return False if it is unknown."""
        return self._env.write(lambda tables: tables.lives.forget(store))

    def notes(self, prefix: str) -> dict[str, bytes]:
        """Return the notes whose names have a prefix (``log_entries.NotedBatch``)."""
        return self._env.read(lambda tables: tables.notes.named(prefix))

    def put_notes(self, notes: Notes) -> None:
        """Write notes, or delete those that are None."""
        self._env.write(lambda tables: tables.notes.put(notes))

    def aside(self) -> list[AsideRecords]:
        """Return the records set aside, by their ids."""
        return self._env.read(lambda tables: AsideArea(tables).listed())

    def read_aside(self, aside_id: int) -> Iterator[RecordBatch]:
        """Yield the records set aside under an id, in order, until they are discarded."""
        offset = 0
        while True:
            with self._env.reading() as tables:
                batch = AsideArea(tables).read(aside_id, offset)
            if batch is None:
                return
            yield batch
            offset = batch.end

    def discard_aside(self, aside_id: int) -> bool:
        """Delete the records set aside under an id; return False if it is unknown."""
        return self._env.write(lambda tables: AsideArea(tables).discard(aside_id))

    def end(self, tp: TopicPartition) -> int:
        """Return the offset of the partition's next record; 0 if it is unknown."""
        found = self.info(tp)
        return found.end if found else 0

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        max_records: int = DEFAULT_MAX_RECORDS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> list[RecordBatch]:
        """Return the available records from ``start`` to ``end`` (exclusive), without gaps.

        In order; fewer within ``max_records`` or ``max_bytes`` (of values), but at least one if
        available. The first batch begins above ``start`` only if earlier records have been trimmed.
        """
        batches: list[RecordBatch] = []
        for batch in self.batches(tp, start, end):
            count = min(batch.count, max_records, batch.values.fitting(0, max_bytes))
            if count < 1 and batches:
                break
            part = batch.between(batch.offset, batch.offset + max(count, 1))
            batches.append(part)
            max_records -= part.count
            max_bytes -= part.values.size_bytes
            if part.count < batch.count or max_records <= 0 or max_bytes <= 0:
                break
        return batches

    def batches(self, tp: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        """Yield the available records as ``read``, one block at a time, read on demand.

        Blocks of the append area, which are small, are read together.
        """
        offset, history = start, None
        while offset < end:
            with self._env.reading() as tables:
                row = tables.visible_row(tp)
                if row is None:
                    return
                now = tables.lives.history(row)
                if history is None:
                    offset, end = max(start, row.earliest), min(end, row.end)
                elif prefix(now, offset) != prefix(history, offset):
                    return  # yielded records were set aside meanwhile
                history = now
                # Trimmed or set aside meanwhile; records yielded before remain valid.
                if not row.earliest <= offset < min(end, row.end):
                    return
                found = self._batches_at(tables, row, offset, end)
            for batch in found:
                part = batch.between(offset, min(batch.end, end))
                yield from split_by_epoch(part, history)
                offset = part.end

    def read_each(
        self, ranges: Sequence[PartitionInfo], *, max_records: int, max_bytes: int
    ) -> list[RecordBatch | StoreError | None]:
        """Return the first adjacent records of each range, in one transaction.

        None if the range's first record is not available, and the error if it is damaged.  The list
        ends within ``max_records`` and ``max_bytes``.
        """
        results: list[RecordBatch | StoreError | None] = []
        with self._env.reading() as tables:
            for wanted in ranges:
                if max_records <= 0 or max_bytes <= 0:
                    break
                found: RecordBatch | StoreError | None
                try:
                    found = self._first(tables, wanted, max_records, max_bytes)
                except StoreError as error:
                    found = error
                if isinstance(found, RecordBatch):
                    max_records -= found.count
                    max_bytes -= found.values.size_bytes
                results.append(found)
        return results

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a context with a consistent view.  It pins space; ``close`` waits for its end."""
        return self._env.reading()

    def lease(
        self, ranges: Iterable[tuple[TopicPartition, int, int]], *, max_blocks: int, max_bytes: int
    ) -> tuple[list[PlacedRange], Lease | None]:
        """Lease the blocks of ranges from start to end (exclusive), in order, within the limits.

        It leases at least one.  At the limits the last range may lack some, and later ones are left
        out.  There is no lease if too many are held.
        """

        def placed(tables: Snapshot) -> list[PlacedRange]:
            found: list[PlacedRange] = []
            left, left_bytes = max_blocks, max_bytes
            for tp, start, end in ranges:
                if left <= 0 or left_bytes <= 0:
                    break
                made = PlacedRange(*tables.held(tp), [])
                if row := tables.visible_row(tp):
                    for each in tables.blocks_between(row, start, end, left, left_bytes):
                        at, size_bytes = self._env.positions.of(each.packed), len(each.packed)
                        made.blocks.append((each.first, at, size_bytes))
                        left, left_bytes = left - 1, left_bytes - size_bytes
                found.append(made)
            return found

        return self._env.lease(placed)

    def end_lease(self, lease_id: str) -> None:
        """End a lease early."""
        self._env.end_lease(lease_id)

    def space(self) -> Space:
        """Return the size of the file, and the part that readers pin."""
        return self._env.space()

    def times(self, tp: TopicPartition, start: int, end: int) -> list[tuple[int, int]]:
        """Return timestamps of the records from ``start`` to ``end`` (exclusive).

        Pairs (first offset, microseconds since the epoch UTC), each valid up to the next one's
        offset.
        """
        return times_of(self.batches(tp, start, end))

    def offset_for_time(
        self, tp: TopicPartition, timestamp_us: int, *, after_all: bool = False
    ) -> int | None:
        """Return the first available record with timestamp ``timestamp_us`` or later, if any.

        With ``after_all``, return an offset from which on all records have that time or a later
        one; None if even the last one is earlier.  It examines a logarithmic number of blocks, and
        more only if that record was trimmed.
        """
        with self._env.reading() as tables:
            row = tables.visible_row(tp)
            if row is None:
                return None
            timestamp_us += row.late_us if after_all else 0
            offset = tables.offset_of_time(row, timestamp_us)
            if offset is not None:
                self._batches_at(tables, row, offset, offset + 1)
        return offset

    def statistics(self, tp: TopicPartition) -> PartitionStatistics | None:
        """Return the size and times of a partition; None if it is unknown."""
        return self._env.read(lambda tables: tables.statistics(tp))

    def close(self) -> None:
        """Wait for reads and writes to end, then close.  Idempotent."""
        self._env.close()

    def _first(
        self, tables: Tables, wanted: PartitionInfo, max_records: int, max_bytes: int
    ) -> RecordBatch | None:
        """Return the first adjacent records of a range; None if the first is not held."""
        start, end = wanted.earliest, wanted.end
        row = tables.visible_row(wanted.tp)
        if row is None or not row.earliest <= start < min(end, row.end):
            return None
        found = concat(self._batches_at(tables, row, start, end))
        count = found.count
        if count > max_records or found.values.size_bytes > max_bytes:
            fitting = found.values.fitting(start - found.offset, max_bytes)
            count = max(1, min(fitting, max_records))
        found = found.between(start, min(end, found.end, start + count))
        return split_by_epoch(found, tables.lives.history(row))[0]

    def _batches_at(
        self, tables: Tables, row: PartitionRow, offset: int, end: int
    ) -> list[RecordBatch]:
        """Return the records before ``end`` of the blocks found with ``offset``.

        ``row`` shows that the store has it.
        """
        batches: list[RecordBatch] = []
        for found in tables.blocks_of(row, offset):
            if found.first >= end or (batches and batches[-1].end < found.first):
                break
            key = found.key + found.packed[: HEADER.size]
            block = self._cache.get(key)
            if block is None:
                block = tables.read_block(row.tp, found, Block.copied)
                self._cache.put(key, block)
            batches.append(RecordBatch(row.tp, found.first, block.values, times=block.times))
        return batches
