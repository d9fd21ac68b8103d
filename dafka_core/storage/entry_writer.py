"""Executes log entries (``log_entries.py``) inside one write transaction of LMDB.

Other stores send committed transactions, in batches.  A batch that ends with its transaction is
appended.  Others are staged, by the attempt ``REPLICA``, until that batch arrives.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from dafka_core.errors import DafkaError, FencedError, OffsetConflictError, StoreError
from dafka_core.model.epochs import Epoch
from dafka_core.model.log_entries import (
    REPLICA,
    Commit,
    Discard,
    Forget,
    LogEntry,
    NameClient,
    NotedBatch,
    Promise,
    RestartPartition,
    SetAside,
    SetTransaction,
    Stage,
    StoreSeen,
    TransactionExistsError,
    attempt_octets,
)
from dafka_core.model.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    kept_times,
    lateness_us,
)
from dafka_core.model.timestamps import ANY_US
from dafka_core.storage import rows
from dafka_core.storage.append_area import GroupedBlock
from dafka_core.storage.block import OFFSET, Block, build_blocks, header_of, plain_size
from dafka_core.storage.rows import PartitionRow
from dafka_core.storage.set_aside import AsideArea
from dafka_core.storage.tables import Tables

MAX_VERSION = 2**63 - 1
"""Of transactions: a row has eight bytes for it, and Spark numbers micro-batches with a Long."""

SMALL_BLOCK_BYTES = 64 << 10
"""A last block below this size is rewritten together with the next records; the rewrite costs less
than its fsync."""

GROUPED_SHARE = 4
"""A batch below this part of a small block, 16 KiB, does not justify a block and the pages that
change for it: it goes to the append area."""

_Owner = tuple[bytes, Transaction]  # of staged records: their attempt and their transaction


class EntryWriter:
    """Writes entries in one transaction of LMDB, in order; ``buffer`` is memory for blocks.

    Afterwards ``ahead_us`` has by how much records of a partition, stamped after ``latest_us``,
    were ahead of ``now_us``; ``oldest_us`` is the least of the batches' greatest timestamps.
    """

    def __init__(self, tables: Tables, now_us: int, buffer: bytearray, latest_us: int = 0) -> None:
        self._tables = tables
        self._now_us, self._latest_us = now_us, latest_us
        self._buffer = buffer
        self.ahead_us: dict[TopicPartition, int] = {}
        self.oldest_us = ANY_US

    def apply(self, entry: LogEntry) -> DafkaError | None:
        """Execute an entry; or do nothing, and return the error.

        Raises OffsetConflictError for a batch without a transaction that is not at its partition's
        end, and ValueError for an invalid entry.
        """
        match entry:
            case RecordBatch():
                if entry.transaction is not None:
                    return self._replicate(entry, entry.transaction)
                self._append(entry)
            case Stage():
                return self._stage(entry)
            case Commit():
                return self._commit(entry)
            case Discard():
                attempt = attempt_octets(entry.attempt) if entry.attempt else REPLICA
                self._discard(entry.tp, attempt)
            case SetTransaction():
                return self._set_transaction(entry)
            case Promise():
                self._tables.lives.promise(entry.tp, entry.life)
            case NameClient():
                self._name_client(entry)
            case StoreSeen():
                self._tables.lives.meet(entry)
            case Forget():
                self._tables.lives.forget(entry.store)
            case SetAside() | RestartPartition():
                self._set_aside(entry)
        return None

    def _name_client(self, entry: NameClient) -> None:
        row = self._tables.row(entry.tp)
        if row is not None and row.client != entry.client:
            self._tables.put_row(row._replace(client=entry.client))

    def discard_stale(self, before_us: int, *, replicas: bool) -> int:
        """Discard staged records without additions since a time; return the partition count."""
        count = 0
        for tp in self._tables.staged_partitions():
            staged = self._row(tp).staged
            assert staged is not None
            if staged.staged_at_us < before_us and (replicas or staged.attempt != REPLICA):
                self._discard(tp, staged.attempt)
                count += 1
        return count

    # -- batches ---------------------------------------------------------------------------------

    def _append(self, batch: RecordBatch) -> None:
        row = self._row(batch.tp)
        staged = row.staged
        if batch.offset == row.end:
            row = self._without_staged(row)
        elif staged and (batch.offset, REPLICA) == (staged.end, staged.attempt):
            # The other store sends transactions older than its last one as plain records: so the
            # staged one here is complete.
            row = self._finish_staged(row)
            if batch.end >= staged.transaction.end:
                row = row.with_transaction(staged.transaction)
        else:
            raise OffsetConflictError(*batch.tp, batch.offset, row.end)
        self._put(batch, row)
        if isinstance(batch, NotedBatch):
            self._tables.notes.put(batch.notes)

    def _replicate(self, batch: RecordBatch, transaction: Transaction) -> DafkaError | None:
        _check_transaction(transaction)
        version, start, end = transaction
        if batch.offset < start or batch.end > end:
            raise ValueError(
                f"{batch.tp}: records {batch.offset} to {batch.end} are not all of transaction "
                f"{version}, which has {start} to {end}"
            )
        row = self._row(batch.tp)
        staged = row.staged
        same = staged and (staged.attempt, staged.transaction) == (REPLICA, transaction)
        continues = staged is not None and same and batch.offset == staged.end
        if not continues:
            if batch.offset != row.end:
                return OffsetConflictError(*batch.tp, batch.offset, row.end)
            row = self._without_staged(row)
        if batch.end < end:
            self._put(batch, row, (REPLICA, transaction))
        else:
            row = self._finish_staged(row) if continues else row
            self._put(batch, row.with_transaction(transaction))
        return None

    def _stage(self, entry: Stage) -> DafkaError | None:
        batch, attempt, version = entry.batch, attempt_octets(entry.attempt), entry.version
        _check_version(version)
        row = self._row(batch.tp)
        staged, last = row.staged, row.last_transaction
        own = staged if staged and staged.attempt == attempt else None
        if last and NO_VERSION < version <= last.version:
            return TransactionExistsError(*batch.tp, last)
        if staged and not own and NO_VERSION < version < staged.transaction.version:
            return FencedError(*batch.tp, entry.attempt)
        if own is None or batch.offset != own.end:
            if own is None and batch.offset > row.end:
                # Only staged records can have been there, and they are gone.
                return FencedError(*batch.tp, entry.attempt)
            if batch.offset != row.end:
                end = own.end if own else row.end
                return OffsetConflictError(*batch.tp, batch.offset, end)
            row = self._without_staged(row)
        self._put(batch, row, (attempt, Transaction(version, row.end, 0)))
        return None

    # -- transactions ----------------------------------------------------------------------------

    def _commit(self, entry: Commit) -> DafkaError | None:
        before: dict[TopicPartition, PartitionRow] = {}
        after: dict[TopicPartition, PartitionRow] = {}
        epochs: dict[TopicPartition, Epoch | None] = {}
        for transaction, epoch in zip_longest(entry.transactions, entry.epochs):
            tp = transaction.tp
            if tp not in before:
                before[tp] = after[tp] = self._row(tp)
            committed = _committed(transaction, after[tp])
            if isinstance(committed, DafkaError):
                return committed
            after[tp], epochs[tp] = committed, epoch
        for tp, row in after.items():
            if row != before[tp]:
                self._finish_staged(before[tp])
                self._tables.put_row(self._with_epoch(row, epochs[tp]))
        return None

    def _discard(self, tp: TopicPartition, attempt: bytes) -> None:
        row = self._row(tp)
        if row.staged and row.staged.attempt == attempt:
            self._tables.put_row(self._without_staged(row))

    def _set_aside(self, entry: SetAside | RestartPartition) -> None:
        start, before = entry.start, self._row(entry.tp)
        row = self._without_staged(before)
        if isinstance(entry, SetAside) and start < row.end:
            row = AsideArea(self._tables).take(row, start)
        elif isinstance(entry, RestartPartition) and start > row.end:
            row = self._restarted(entry, row)
        if row != before:
            self._tables.put_row(row)

    def _restarted(self, entry: RestartPartition, row: PartitionRow) -> PartitionRow:
        """Return the row of an empty partition that begins at an offset, unwritten."""
        _, start, history, transaction = entry
        if row.id < 0:
            row = row._replace(id=self._tables.new_id())
        else:
            row = AsideArea(self._tables).take(row, row.earliest)
        row = self._tables.lives.replace(row, history)
        return row._replace(earliest=start, end=start, last_transaction=transaction)

    def _set_transaction(self, entry: SetTransaction) -> DafkaError | None:
        tp, transaction = entry
        _check_transaction(transaction)
        row = self._row(tp)
        if row.end < transaction.end:
            return OffsetConflictError(*tp, transaction.end, row.end)
        last = row.last_transaction
        if last and last.version == transaction.version and last != transaction:
            return TransactionExistsError(*tp, last)
        changed = row.with_transaction(transaction)
        if changed != row:
            self._tables.put_row(changed)
        return None

    # -- rows and blocks -------------------------------------------------------------------------

    def _row(self, tp: TopicPartition) -> PartitionRow:
        # An unknown partition gets an id with its first records.
        return self._tables.row(tp) or PartitionRow(tp, -1, 0, 0, rows.NEVER_US, 0)

    def _put(self, batch: RecordBatch, row: PartitionRow, owner: _Owner | None = None) -> None:
        """Stage a batch for an owner; or append it for readers, where nothing is staged."""
        if row.id < 0:
            row = row._replace(id=self._tables.new_id())
        row = self._with_epoch(row, batch.epoch)
        batch = self._stamped(batch)
        assert batch.times is not None
        before = row.staged or row
        late_us = max(before.late_us, lateness_us(batch.times, before.newest_us))
        newest_us = max(before.newest_us, int(batch.times[:, 1].max()))
        self._write_blocks(batch, row, before.newest_us, staged=owner is not None)
        if owner is None:
            row = row._replace(end=batch.end, newest_us=newest_us, late_us=late_us)
        else:
            times = newest_us, late_us, self._now_us
            row = row._replace(staged=rows.StagedRecords(batch.end, *times, *owner))
        self._tables.put_row(row)

    def _write_blocks(
        self, batch: RecordBatch, row: PartitionRow, newest_us: int, *, staged: bool
    ) -> None:
        """Write a batch, with its times, as blocks; ``newest_us`` is the greatest time before it.

        A small batch goes to the append area, unless it is staged.  With another one the
        partition's last block is extended, if that is small, and staged, too.  A damaged last block
        stays as it is.  Raises StoreError if the last block ends elsewhere.
        """
        assert batch.times is not None
        size_bytes = batch.values.size_bytes + OFFSET.itemsize * batch.count + batch.times.nbytes
        grouped = not staged and size_bytes < SMALL_BLOCK_BYTES // GROUPED_SHARE
        extended = None if grouped else self._extended(batch, row, row.end if staged else 0)
        into = None if grouped else self._buffer
        try:
            for start, packed in build_blocks(batch.values, batch.times, newest_us, extended, into):
                first = batch.offset + start
                if grouped:
                    count = header_of(packed).records
                    self._tables.area.append(GroupedBlock(row.id, first, count, packed))
                else:
                    self._tables.put_block(row.id, first, packed)
        except ValueError as error:
            raise ValueError(f"{batch.tp}, append at offset {batch.offset}: {error}") from error

    def _extended(self, batch: RecordBatch, row: PartitionRow, floor: int) -> Block | None:
        tables, tp = self._tables, row.tp
        last = tables.last_block(row.id, rows.LAST_OFFSET)
        if last is None or last.first < floor:
            return None
        try:
            end = tables.end_of(tp, last)
            if end < batch.offset and tables.grouped(row, batch.offset - 1):
                return None  # the batch's predecessor is in the append area
            if plain_size(last.packed) >= SMALL_BLOCK_BYTES:
                return None
            block = tables.read_block(tp, last, Block.copied)
        except StoreError:
            return None  # noted for ``Healer``
        if end != batch.offset:
            why = f"it ends at offset {end}, not at {batch.offset}"
            raise tables.damaged_block(tp, last.first, why)
        return block

    def _stamped(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch with its final times."""
        times = kept_times(batch.times, batch.count, self._now_us, self._latest_us)
        if batch.times is not None and len(times):
            self.oldest_us = min(self.oldest_us, int(times[:, 1].max()))
            newest_us = int(batch.times[:, 1].max())
            if newest_us > self._latest_us:
                self.ahead_us[batch.tp] = newest_us - self._now_us
        return replace(batch, times=times)

    def _with_epoch(self, row: PartitionRow, epoch: Epoch | None) -> PartitionRow:
        """Return the row for records of an epoch; those without one continue the last."""
        if epoch is None or epoch == row.epoch:
            return row
        return self._tables.lives.begin(row, epoch)

    def _without_staged(self, row: PartitionRow) -> PartitionRow:
        """Return the row without staged records, unwritten."""
        if row.staged is None:
            return row
        self._tables.delete_staged(row)
        return row._replace(staged=None)

    def _finish_staged(self, row: PartitionRow) -> PartitionRow:
        """Return the row with its staged records visible; their blocks may be merged then."""
        assert row.staged is not None
        self._tables.mergeable.append((row.id, row.end, 1))
        return row.with_staged_visible()


def _committed(transaction: StagedTransaction, row: PartitionRow) -> PartitionRow | DafkaError:
    """Return a partition's row after a commit; or the error."""
    topic, partition, _, start, end, version = transaction
    attempt = attempt_octets(transaction.attempt)
    _check_version(version)
    committed = rows.CommittedAttempt(attempt, start, end)
    if row.committed == committed:
        return row
    staged, last = row.staged, row.last_transaction
    if staged is None or staged.attempt != attempt:
        return FencedError(topic, partition, transaction.attempt)
    if start != row.end:
        return OffsetConflictError(topic, partition, start, row.end)
    if end != staged.end:
        return OffsetConflictError(topic, partition, end, staged.end)
    if last and NO_VERSION < version <= last.version:
        return TransactionExistsError(topic, partition, last)
    row = row.with_staged_visible().with_transaction(transaction.transaction)
    return row._replace(committed=committed)


def _check_transaction(transaction: Transaction) -> None:
    version, start, end = transaction
    _check_version(version)
    if not 0 <= start < end < rows.LAST_OFFSET:
        raise ValueError(f"a transaction cannot have the records from {start} to {end}")


def _check_version(version: int) -> None:
    if not NO_VERSION <= version <= MAX_VERSION:
        raise ValueError(f"a transaction's version is {NO_VERSION} to {MAX_VERSION}, not {version}")
