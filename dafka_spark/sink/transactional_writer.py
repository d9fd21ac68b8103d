"""Writing a transaction: all rows of one task for one partition, once, or none of them.

The rows are staged at a store, where no reader sees them, and become visible in one step when the
driver, or the writer itself, commits them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa

from dafka_core.errors import (
    DafkaError,
    FencedError,
    NotAcknowledgedError,
    OffsetConflictError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.log_entries import Discard, TransactionExistsError
from dafka_core.model.records import (
    NO_VERSION,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_spark.cluster import timing
from dafka_spark.cluster.store_session import StoreSession, choose_host
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.staged_rows import Found, RowBuffer, StagedRows, Streams
from dafka_spark.sink.task_writer import PartitionWriter

_log = logging.getLogger("dafka_spark")

_LOST: Final = (StoreUnreachableError, OffsetConflictError, TransactionExistsError)
"""Errors after which the writer looks anew for the transaction and for a store."""


class TaskSetup(NamedTuple):
    """What the writers of one task share.

    Attributes:
        session: finds stores anew when they fail.
        picked: the only store to write to, where the driver commits what is staged.  If it is
            empty, a writer takes any store, and commits itself.
    """

    options: SinkOptions
    session: StoreSession
    streams: Streams
    picked: str


class TransactionalWriter(PartitionWriter):
    """Writes one transaction to the store that has most of its partition.

    Args:
        known: the stores that are there.
        deadline: for finding the first store that hosts the partition.

    Attributes:
        rows: what is staged, and where.

    Raises:
        StoreUnreachableError: no store answers, or one that may come back does not.
    """

    def __init__(
        self, tp: TopicPartition, task: TaskSetup, known: Sequence[StoreClient], deadline: Deadline
    ) -> None:
        self._tp = tp
        self._task = task
        self._known = known
        self._timeout_s = task.options.delivery_timeout_s
        self._row_count = 0
        self._buffer = RowBuffer()
        self.rows = StagedRows(tp, task.streams, self.pause, timeout_s=self._timeout_s)
        self._may_be_committed = False
        self._transaction: Transaction | None = None
        self._have: set[str] = set()
        self._find(known, deadline)

    def write(self, contents: pa.Array) -> None:
        """Takes binary or string without nulls."""
        self._row_count += len(contents)
        for block in self._buffer.add(contents):
            self._send(block, Deadline(self._timeout_s))

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Commits the transaction and waits until it is on the disks of ``acks`` stores.

        A writer that does not commit waits until all rows are staged, on disk.

        Raises:
            NotAcknowledgedError: it is not until the deadline.
            FencedError: another attempt has taken over.
        """
        for block in self._buffer.rest():
            self._send(block, deadline)
        rows = self.rows
        if self._row_count:
            self._at_host(rows.wait_staged if self._task.picked else self._commit, deadline)
        rows.close()
        written = self._transaction
        if written is None:
            return WrittenRange(self._tp, rows.start, rows.end, rows.attempt)
        acks, have = self._task.options.acks_needed, self._have
        self._task.session.wait_for_acks(self._tp, written, self._known, acks, have, deadline)
        return WrittenRange(self._tp, written.start, written.end)

    def pause(self) -> None:
        """Closes the stream when all that was sent is on the store's disk; the next row opens one.

        Raises:
            NotAcknowledgedError: it does not come there.
        """
        self._at_host(self.rows.wait_staged, Deadline(self._timeout_s))
        self.rows.close()

    def __exit__(self, *error: object) -> None:
        rows = self.rows
        rows.close()
        if error[0] is not None and self._transaction is None and rows.host is not None:
            with suppress(DafkaError):
                discard = Discard(self._tp, rows.attempt)
                rows.host.discard([discard], timeout_s=timing.DISCARD_S)

    # -- the rows' way to a store's disk ---------------------------------------------------------

    def _send(self, values: pa.Array, deadline: Deadline) -> None:
        if self._transaction is None:
            try:
                self.rows.add(values)
            except _LOST as error:
                self._wait_turn(error, deadline)
                self._find((), deadline)
            while self.rows.has_too_much:
                self._at_host(self.rows.release, deadline)

    def _commit(self, deadline: Deadline) -> None:
        rows = self.rows
        rows.wait_staged(deadline)
        assert rows.host is not None
        self._may_be_committed = True
        staged = StagedTransaction(*self._tp, rows.attempt, rows.start, rows.end, NO_VERSION)
        rows.host.commit([staged], timeout_s=deadline.left_s)
        self._set_transaction(staged.transaction, {rows.host.location.store})

    def _at_host(self, work: Callable[[Deadline], None], deadline: Deadline) -> None:
        """Does some work at the store that hosts the partition; when that is lost, at the next.

        Raises:
            NotAcknowledgedError: it is not done at the deadline.
        """
        while self._transaction is None:
            try:
                work(deadline)
            except _LOST as error:
                self._wait_turn(error, deadline)
                self._find((), deadline)
                if deadline.is_over:
                    count, waited_s = self._row_count, deadline.timeout_s
                    raise NotAcknowledgedError(*self._tp, count, waited_s) from error
            else:
                return

    def _wait_turn(self, error: DafkaError, deadline: Deadline) -> None:
        """Waits a little if a store was busy, and for longer as long as it serves others."""
        if isinstance(error, StoreBusyError):
            self.rows.waited_s = error.waited_s
            if error.moves:
                deadline.restart()
            deadline.pause()

    # -- where the transaction is, or is to be ---------------------------------------------------

    def _find(self, known: Sequence[StoreClient], deadline: Deadline) -> None:
        self.rows.close()
        cause: DafkaError | None = None
        session, only = self._task.session, self._task.picked
        given_up = Deadline(timing.SILENT_S)
        for found, lost in session.looks(known, self._state, deadline, only=only):
            self._known, cause = [client for client, _ in found], lost
            try:
                if lost is None and self._go_on(found):
                    return
            except _LOST as error:
                cause = error
                self._wait_turn(error, deadline)
            if given_up.is_over and (gone := self._lost_with_rows(lost)):
                what = "rows of the job" if self._task.picked else "all rows of the task"
                cause = StoreUnreachableError(gone, f"it alone had {what}, and is gone")
                deadline = given_up  # the task's next attempt need not wait
                break
        if cause is not None and not self._row_count:
            raise cause
        raise NotAcknowledgedError(*self._tp, self._row_count, deadline.timeout_s) from cause

    def _lost_with_rows(self, lost: StoreUnreachableError | None) -> str:
        """The store that alone has some of the rows, if it is gone for all that can be known.

        It is not while it was ``lost`` just now, or the mesh may be about to give it up.  The one
        that was picked is waited for as long as there is no other.
        """
        rows, session = self.rows, self._task.session
        if store := self._task.picked:
            there = {each.store for each in session.locations} or {store}
        elif rows.is_whole or rows.host is None:
            return ""
        else:
            store = rows.host.location.store
            there = {client.location.store for client in self._known}
            there |= {lost.store} if lost else set()
        return "" if store in there.union(session.silent) else store

    def _state(self, client: StoreClient) -> TransactionState:
        return client.transaction_states([self._tp], timeout_s=timing.ANSWER_S)[0]

    def _go_on(self, found: Found) -> bool:
        """Goes on where the transaction is, or can be; False when it can be nowhere yet."""
        rows = self.rows
        if self._is_there(found):
            return True
        if not rows.is_whole:
            return rows.resume(found)
        if self._may_be_committed:
            # It may be at the lost host: the same rows at the same offsets are the same records.
            # If no other store ends there, one may have all of them, and gets them once more.
            found = [each for each in found if each[1].end == rows.start] or found
        if not found:
            return False
        ends = [(client, state.end) for client, state in found]
        host, end = choose_host(ends, self._tp.partition)
        if end < rows.start:
            return False
        if rows.host is None:
            fence(self._tp, found, host, end)
            rows.attempts.update(state.attempt for _, state in found)
        else:
            state = dict(found)[host]
            # What came from the lost host has no attempt: it may be this transaction, in part.
            if state.attempt and rows.is_fenced_by(state):
                raise FencedError(*self._tp, rows.attempt)
        rows.begin(host, end)
        return True

    def _is_there(self, found: Found) -> bool:
        """Return whether a store has committed this very attempt, and its answer was lost."""
        rows = self.rows
        for client, state in found if self._may_be_committed else ():
            if state.attempt == rows.attempt and state.staged_end == state.end:
                transaction = Transaction(NO_VERSION, rows.start, rows.end)
                self._set_transaction(transaction, {client.location.store})
        return self._transaction is not None

    def _set_transaction(self, transaction: Transaction, have: set[str]) -> None:
        self._transaction, self._have = transaction, have
        self.rows.clear()


def fence(tp: TopicPartition, found: Found, host: StoreClient, end: int) -> None:
    """Discards what earlier attempts have staged at the stores, as far as they answer.

    Not at ``host``, where the transaction's first rows do that.  And not what a store has got in
    part of another transaction, which does not begin at ``end``: it cannot be joined with this
    one, and the store that has all of it may be sending the rest.
    """
    for client, state in found:
        is_older = not state.attempt and state.end != end
        if client is not host and state.staged_end > state.end and not is_older:
            with suppress(DafkaError):
                attempt = state.attempt or _take_over(client, tp, state.end)
                client.discard([Discard(tp, attempt)], timeout_s=timing.DISCARD_S)


def _take_over(client: StoreClient, tp: TopicPartition, end: int) -> str:
    """An attempt that takes the place of a transaction which came to a store only in part.

    The store it came from is lost.  What is left of it must not be joined with the transaction's
    rows that come now: they have the same offsets, and perhaps another order.
    """
    attempt = uuid.uuid4().hex.upper()
    with client.put(tp, end, attempt=attempt, timeout_s=timing.DISCARD_S) as put:
        put.write(pa.array([b""], pa.binary()))
        put.wait_durable(end + 1, timeout_s=timing.DISCARD_S)
    return attempt
