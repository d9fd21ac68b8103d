"""Doing what a log is told (``staging.py``), inside one write transaction.

The rule of records that come from another store, which sends units that are committed: a run
that ends with its unit is appended, and one that does not is staged, as a tail whose attempt is
``REPLICA``, until the run comes that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dafka_core.errors import DafkaError, FencedError, OffsetConflictError, TransactionExistsError
from dafka_core.log_entries import (
    REPLICA,
    Commit,
    Discard,
    LogEntry,
    SetTransaction,
    Stage,
    attempt_octets,
    attempt_text,
)
from dafka_core.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import rows
from dafka_core.storage.block_writer import (
    FinishedBlock,
    finished,
    new_row,
    put_row,
    write_batch,
)
from dafka_core.storage.environment import Environment
from dafka_core.storage.merge_planner import MergeCandidate
from dafka_core.storage.rows import CommittedAttempt, PartitionRow, StagedRecords
from dafka_core.storage.tables import row_of, tail_key, tails

if TYPE_CHECKING:
    from dafka_core.storage.environment import Txn

MAX_VERSION = 2**63 - 1
"""Of units; the row has eight octets for it, and Spark's batches count in such numbers."""


def transaction_state(row: PartitionRow | None) -> TransactionState:
    """What a row says of units."""
    if row is None:
        return TransactionState(0, 0, "", None)
    owned = row.tail or row.committed
    attempt = attempt_text(owned.attempt) if owned else ""
    return TransactionState(row.end, row.tail.end if row.tail else row.end, attempt, row.marker)


def discard_stale(env: Environment, txn: Txn, before_us: int, *, replicas: bool) -> int:
    """Gives up all tails that nobody went on with since a time; how many."""
    writes = EntryWriter(env, txn, 0, bytearray())
    count = 0
    for tp in tails(env, txn):
        row = row_of(env, txn, tp)
        assert row is not None
        assert row.tail is not None
        if row.tail.attempt == REPLICA and not replicas:
            continue
        if row.tail.last_timestamp_us < before_us:
            writes.apply(Discard(tp, attempt_text(row.tail.attempt)))
            count += 1
    return count


class EntryWriter:
    """Entries that are written in one transaction, in order.

    ``written`` are the blocks that were finished by them.
    """

    def __init__(self, env: Environment, txn: Txn, now_us: int, buffer: bytearray) -> None:
        self._env = env
        self._transaction = txn
        self._now_us = now_us
        self._buffer = buffer
        self.written: list[FinishedBlock] = []

    def apply(self, entry: LogEntry) -> DafkaError | None:
        """Does what an entry says; or nothing, and says why.

        Raises:
            OffsetConflictError: a run without a unit does not begin at its partition's end.
            ValueError: what can be no entry.
            StoreError: a block that is to be extended is damaged.
        """
        match entry:
            case RecordBatch():
                if entry.transaction is not None:
                    return self._replicate(entry, entry.transaction)
                self._append(entry)
            case Stage():
                return self._stage(entry)
            case Commit():
                return self._commit(entry.transactions)
            case Discard():
                self._discard(entry)
            case SetTransaction():
                return self._mark(entry)
        return None

    # -- runs ------------------------------------------------------------------------------------

    def _append(self, batch: RecordBatch) -> None:
        row = self._row(batch.tp) or new_row(self._env, self._transaction)
        if row.tail is not None:
            row = self._settled(batch, row)
        if batch.offset != row.end:
            raise OffsetConflictError(batch.topic, batch.partition, batch.offset, row.end)
        self._show(batch, row)

    def _settled(self, batch: RecordBatch, row: PartitionRow) -> PartitionRow:
        """A row without its tail, which a run without a unit shows to be whole, or void."""
        tail = row.tail
        assert tail is not None
        if batch.offset == row.end:
            self._delete_tail(row)
            return row._replace(tail=None)
        if batch.offset != tail.end or tail.attempt != REPLICA:
            raise OffsetConflictError(batch.topic, batch.partition, batch.offset, row.end)
        # The other store sends units older than its marker as what they are by now: records.
        return self._visible(
            row, _marker(row, tail.transaction) if batch.end >= tail.transaction.end else None
        )

    def _replicate(self, batch: RecordBatch, transaction: Transaction) -> DafkaError | None:
        _check_transaction(transaction)
        if batch.offset < transaction.start or batch.end > transaction.end:
            raise ValueError(
                f"topic {batch.topic!r}, partition {batch.partition}: records {batch.offset} to "
                f"{batch.end} are not all of unit {transaction.version}, which has {transaction.start} to {transaction.end}"
            )
        row = self._row(batch.tp)
        end, tail = (row.end, row.tail) if row else (0, None)
        goes_on = tail is not None and (tail.end, tail.attempt, tail.transaction) == (
            batch.offset,
            REPLICA,
            transaction,
        )
        if not goes_on and batch.offset != end:
            return OffsetConflictError(batch.topic, batch.partition, batch.offset, end)
        row = row or new_row(self._env, self._transaction)
        if row.tail is not None and not goes_on:
            self._delete_tail(row)
            row = row._replace(tail=None)
        if batch.end < transaction.end:
            self._put_tail(batch, row, REPLICA, transaction)
            return None
        row = self._visible(row, None) if goes_on else row
        self._show(batch, row._replace(marker=_marker(row, transaction)))
        return None

    def _show(self, batch: RecordBatch, row: PartitionRow) -> None:
        """Appends a run to what readers see; there is no tail."""
        stamp_us = max(self._now_us, row.last_timestamp_us)
        blocks = write_batch(self._env, self._transaction, batch, row, 0, stamp_us, self._buffer)
        transactions = None, row.committed, row.marker
        self._put(
            batch.tp,
            PartitionRow(row.id, row.earliest, batch.end, stamp_us, *transactions),
        )
        self.written += finished(row, blocks)

    # -- attempts --------------------------------------------------------------------------------

    def _stage(self, entry: Stage) -> DafkaError | None:
        batch, attempt = entry.batch, attempt_octets(entry.attempt)
        _check_version(entry.version)
        row = self._row(batch.tp)
        end, tail, marker = (row.end, row.tail, row.marker) if row else (0, None, None)
        if marker is not None and NO_VERSION < entry.version <= marker.version:
            return TransactionExistsError(batch.topic, batch.partition, marker)
        own = tail is not None and tail.attempt == attempt
        if tail is not None and not own and NO_VERSION < entry.version < tail.transaction.version:
            return FencedError(batch.topic, batch.partition, entry.attempt)
        goes_on = tail is not None and own and tail.end == batch.offset
        if not goes_on and batch.offset != end:
            if own and tail is not None:
                return OffsetConflictError(batch.topic, batch.partition, batch.offset, tail.end)
            if batch.offset > end:  # where only a tail can have been that is no more
                return FencedError(batch.topic, batch.partition, entry.attempt)
            return OffsetConflictError(batch.topic, batch.partition, batch.offset, end)
        row = row or new_row(self._env, self._transaction)
        if row.tail is not None and not goes_on:
            self._delete_tail(row)
            row = row._replace(tail=None)
        self._put_tail(batch, row, attempt, Transaction(entry.version, row.end, 0))
        return None

    def _commit(self, transactions: Sequence[StagedTransaction]) -> DafkaError | None:
        before: dict[TopicPartition, PartitionRow | None] = {}
        after: dict[TopicPartition, PartitionRow] = {}
        for transaction in transactions:
            tp = transaction.tp
            if tp not in before:
                before[tp] = self._row(tp)
            committed = _committed(transaction, after.get(tp, before[tp]))
            if isinstance(committed, DafkaError):
                return committed
            after[tp] = committed
        for tp, row in after.items():
            found = before[tp]
            if found is not None and found != row:
                self._note_tail(found)
                self._unlist_tail(found)
                self._put(tp, row)
        return None

    def _discard(self, entry: Discard) -> None:
        attempt = attempt_octets(entry.attempt) if entry.attempt else REPLICA
        row = self._row(entry.tp)
        if row is not None and row.tail is not None and row.tail.attempt == attempt:
            self._without_tail(entry.tp, row)

    def _mark(self, entry: SetTransaction) -> DafkaError | None:
        tp, transaction = entry
        _check_transaction(transaction)
        row = self._row(tp)
        end = row.end if row else 0
        if row is None or end < transaction.end:
            return OffsetConflictError(*tp, transaction.end, end)
        marker = row.marker
        if marker is not None and marker.version == transaction.version and marker != transaction:
            return TransactionExistsError(*tp, marker)
        if _marker(row, transaction) != marker:
            self._put(tp, row._replace(marker=transaction))
        return None

    # -- tails -----------------------------------------------------------------------------------

    def _put_tail(
        self, batch: RecordBatch, row: PartitionRow, attempt: bytes, transaction: Transaction
    ) -> None:
        """Stages a run behind the row's tail, or as a new one."""
        tail_us = row.tail.last_timestamp_us if row.tail else rows.NEVER_US
        stamp_us = max(self._now_us, row.last_timestamp_us, tail_us)
        write_batch(self._env, self._transaction, batch, row, row.end, stamp_us, self._buffer)
        if row.tail is None:
            name = rows.partition_key(batch.tp)
            self._transaction.put(tail_key(row.id), name, db=self._env.meta)
        tail = StagedRecords(batch.end, stamp_us, attempt, transaction)
        self._put(batch.tp, row._replace(tail=tail))

    def _visible(self, row: PartitionRow, marker: Transaction | None) -> PartitionRow:
        """The row with its tail as a part of what readers see; it is not written yet."""
        tail = row.tail
        assert tail is not None
        self._note_tail(row)
        self._unlist_tail(row)
        return row._replace(
            end=tail.end,
            last_timestamp_us=tail.last_timestamp_us,
            tail=None,
            marker=marker or row.marker,
        )

    def _without_tail(self, tp: TopicPartition, row: PartitionRow) -> None:
        self._delete_tail(row)
        if row.end:
            self._put(tp, row._replace(tail=None))
        else:
            name = rows.partition_key(tp)
            self._transaction.delete(name, db=self._env.partitions)

    def _delete_tail(self, row: PartitionRow) -> None:
        for key, _ in self._tail_blocks(row):
            self._transaction.delete(key, db=self._env.blocks)
        self._unlist_tail(row)

    def _unlist_tail(self, row: PartitionRow) -> None:
        self._transaction.delete(tail_key(row.id), db=self._env.meta)

    def _note_tail(self, row: PartitionRow) -> None:
        """Says that the blocks of a tail, which readers see from now on, may be merged."""
        assert row.tail is not None
        found = self._tail_blocks(row)
        offsets = [rows.BLOCK.unpack(key)[1] for key, _ in found]
        blocks = [
            MergeCandidate(first, end - first, size_bytes)
            for first, end, (_, size_bytes) in zip(
                offsets, [*offsets[1:], row.tail.end], found, strict=True
            )
        ]
        cursor = self._transaction.cursor(self._env.blocks)
        last = rows.seek_block(cursor, row.id, row.end - 1) if row.end > row.earliest else None
        if last is not None:
            blocks.insert(0, MergeCandidate(last, row.end - last, len(cursor.value())))
        self.written += finished(row, blocks)

    def _tail_blocks(self, row: PartitionRow) -> list[tuple[bytes, int]]:
        """The keys and the sizes of what is staged."""
        found = []
        cursor = self._transaction.cursor(self._env.blocks)
        cursor.set_range(rows.BLOCK.pack(row.id, row.end))
        for key, packed in cursor.iternext():
            if rows.BLOCK.unpack(key)[0] != row.id:
                break
            found.append((bytes(key), len(packed)))
        return found

    # -- rows ------------------------------------------------------------------------------------

    def _row(self, tp: TopicPartition) -> PartitionRow | None:
        return row_of(self._env, self._transaction, tp)

    def _put(self, tp: TopicPartition, row: PartitionRow) -> None:
        put_row(self._env, self._transaction, tp, row)


def _committed(
    transaction: StagedTransaction, row: PartitionRow | None
) -> PartitionRow | DafkaError:
    """A partition's row when a unit is committed; or why it cannot be."""
    attempt = attempt_octets(transaction.attempt)
    _check_version(transaction.version)
    committed = CommittedAttempt(attempt, transaction.start, transaction.end)
    if row is not None and row.committed == committed:
        return row
    tail = row.tail if row else None
    if row is None or tail is None or tail.attempt != attempt:
        return FencedError(transaction.topic, transaction.partition, transaction.attempt)
    if transaction.start != row.end:
        return OffsetConflictError(
            transaction.topic, transaction.partition, transaction.start, row.end
        )
    if transaction.end != tail.end:
        return OffsetConflictError(
            transaction.topic, transaction.partition, transaction.end, tail.end
        )
    marker = row.marker
    if transaction.version != NO_VERSION:
        if marker is not None and transaction.version <= marker.version:
            return TransactionExistsError(transaction.topic, transaction.partition, marker)
        marker = Transaction(transaction.version, transaction.start, transaction.end)
    return row._replace(
        end=tail.end,
        last_timestamp_us=tail.last_timestamp_us,
        tail=None,
        committed=committed,
        marker=marker,
    )


def _marker(row: PartitionRow, transaction: Transaction) -> Transaction | None:
    """A partition's marker when a unit is there: the newer of two."""
    if transaction.version == NO_VERSION or (
        row.marker and row.marker.version >= transaction.version
    ):
        return row.marker
    return transaction


def _check_transaction(transaction: Transaction) -> None:
    _check_version(transaction.version)
    if not 0 <= transaction.start < transaction.end < rows.LAST_OFFSET:
        raise ValueError(
            f"a unit cannot have the records from {transaction.start} to {transaction.end}"
        )


def _check_version(version: int) -> None:
    if not NO_VERSION <= version <= MAX_VERSION:
        raise ValueError(f"a unit's number is {NO_VERSION} to {MAX_VERSION}, not {version}")
