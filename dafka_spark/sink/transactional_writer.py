"""Writing a transaction: all rows of one task for one partition, once, or none of them.

The rows are staged at a store, where nobody sees them, and become visible in one step when the
task has all of them there.  With exactly-once this step leaves the transaction's version in the
partition, by which whoever writes it again finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Self

import pyarrow as pa

from dafka_core.errors import (
    DafkaError,
    FencedError,
    NotAcknowledgedError,
    OffsetConflictError,
    StoreUnreachableError,
    TransactionExistsError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.log_entries import Discard
from dafka_core.records import (
    NO_VERSION,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_spark.cluster import timing
from dafka_spark.cluster.acknowledgements import AckGoal, wait_for_acks
from dafka_spark.cluster.deadline import Deadline
from dafka_spark.cluster.store_session import HostCandidate, StoreSession, choose_host
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.fencing import end_attempt
from dafka_spark.sink.row_buffer import RowBuffer
from dafka_spark.sink.staged_rows import StagedRows
from dafka_spark.sink.stream_limit import StreamLimit

_LOST: Final = (StoreUnreachableError, OffsetConflictError, TransactionExistsError)
"""Errors after which the transaction's place is looked for anew."""


class _Found(NamedTuple):
    client: StoreClient
    state: TransactionState


class TransactionalWriter:
    """Writes one transaction to the store that has most of its partition.

    Args:
        version: the transaction's, ascending in the partition: the micro-batch's number.  With
            ``NO_VERSION`` the transaction leaves no trace when it is written again.
        commits: whether ``finish`` commits; otherwise it stages the rows, and the driver commits.
        session: finds stores anew when they fail.
        known: the stores that are there.
        streams: those of its task.
        acks: how many stores must have the transaction on disk in the end.
        timeout_s: the longest wait for a host, once it has one.
        find_s: the longest wait for the first one.

    Raises:
        StoreUnreachableError: no store answers.
        OldCheckpointError: the partition has a newer transaction.
    """

    def __init__(
        self,
        tp: TopicPartition,
        version: int,
        session: StoreSession,
        known: Sequence[StoreClient],
        streams: StreamLimit,
        *,
        commits: bool,
        acks: int,
        timeout_s: float,
        find_s: float,
    ) -> None:
        self._tp = tp
        self._version = version
        self._commits = commits
        self._session = session
        self._known = known
        self._acks = acks
        self._timeout_s = timeout_s
        self._row_count = 0
        self._buffer = RowBuffer()
        self._rows = StagedRows(tp, version, streams, self, timeout_s=timeout_s)
        self._may_be_committed = False
        # Its own, and those of before: whatever else it meets has taken over.
        self._attempts: set[str] = set()
        self._transaction: Transaction | None = None
        self._have: set[str] = set()
        self._find(Deadline(find_s))

    def write(self, values: pa.Array) -> None:
        """Takes binary or string values without nulls."""
        self._row_count += len(values)
        for block in self._buffer.add(values):
            self._send(block)

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Commits the transaction and waits until it is on the disks of ``acks`` stores.

        A writer that does not commit waits until all rows are staged, on disk.

        Raises:
            NotAcknowledgedError: it is not until the deadline.
            FencedError: another attempt has taken over.
            TransactionChangedError: it was written before, with another number of rows.
        """
        for block in self._buffer.rest():
            self._send(block)
        if self._row_count:
            self._persist(self._commit if self._commits else self._rows.wait_staged, deadline)
        self._rows.close()
        transaction = self._transaction
        if transaction is None:
            rows = self._rows
            return WrittenRange(self._tp, rows.start, rows.end, rows.attempt)
        if transaction.end - transaction.start != self._row_count:
            raise TransactionChangedError(*self._tp, transaction, self._row_count)
        has_version = transaction.version != NO_VERSION
        goal = AckGoal(self._tp, *transaction[1:], transaction if has_version else None)
        wait_for_acks(goal, self._session, self._known, self._acks, self._have, deadline)
        return WrittenRange(self._tp, transaction.start, transaction.end)

    def pause(self) -> None:
        """Closes the stream when all that was sent is on the host's disk.

        Raises:
            NotAcknowledgedError: it does not come there.
        """
        self._persist(self._rows.wait_staged, Deadline(self._timeout_s))
        self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()
        host = self._rows.host
        if error[0] is not None and self._transaction is None and host is not None:
            with suppress(DafkaError):
                stage = Discard(self._tp, self._rows.attempt)
                host.discard([stage], timeout_s=timing.DISCARD_S)

    # -- the rows' way to a host's disk ----------------------------------------------------------

    def _send(self, values: pa.Array) -> None:
        if self._transaction is not None:
            return
        deadline = Deadline(self._timeout_s)
        batch = self._rows.append(values)
        self._at_host(lambda _: self._rows.write(batch), deadline)
        while self._rows.has_too_much():
            if deadline.is_over:
                raise self._not_acknowledged(deadline)
            self._at_host(self._rows.release, deadline)

    def _persist(self, work: Callable[[Deadline], None], deadline: Deadline) -> None:
        while self._transaction is None and not self._at_host(work, deadline):
            if deadline.is_over:
                raise self._not_acknowledged(deadline)

    def _commit(self, deadline: Deadline) -> None:
        rows = self._rows
        rows.wait_staged(deadline)
        assert rows.host is not None
        self._may_be_committed = True
        staged = StagedTransaction(*self._tp, rows.attempt, rows.start, rows.end, self._version)
        rows.host.commit([staged], timeout_s=deadline.left_s)
        self._set_transaction(staged.transaction, {rows.host.location.store})

    def _at_host(self, work: Callable[[Deadline], object], deadline: Deadline) -> bool:
        """Does some work at the host; False when that was lost, and the rows are elsewhere now."""
        try:
            work(deadline)
        except _LOST:
            self._find(deadline)
            return False
        return True

    # -- where the transaction is, or is to be ---------------------------------------------------

    def _find(self, deadline: Deadline) -> None:
        """Finds the transaction, or a host for it, which is then given all rows sent so far.

        A store that does not answer is waited for until the mesh has given it up: it may come
        back at once, and be the only one that has the partition's end, or the transaction.
        """
        rows, session = self._rows, self._session
        rows.close()
        given_up = Deadline(timing.SILENT_S)
        lost: DafkaError | None = None
        for attempt in deadline.attempts():
            if attempt or rows.host is not None or session.silent:
                found_now = session.refresh()
                self._known = [
                    each for each in found_now if session.only in ("", each.location.store)
                ]
            lost = None
            try:
                if not session.silent or given_up.is_over:
                    found = self._states()
                    if len(found) == len(self._known) and self._go_on(found):
                        return
            except _LOST as error:
                lost = error
        raise lost or self._not_acknowledged(deadline)

    def _states(self) -> list[_Found]:
        """What the stores that answer have of the partition."""
        found, failure = [], None
        for client in self._known:
            try:
                (state,) = client.transaction_states([self._tp], timeout_s=timing.ANSWER_S)
            except StoreUnreachableError as error:
                failure = error
            else:
                found.append(_Found(client, state))
        if not found:
            why = "no store is known that can host the partition"
            raise failure or StoreUnreachableError(self._session.only, why)
        return found

    def _go_on(self, found: Sequence[_Found]) -> bool:
        """Goes on where the transaction is, or can be; False when it can be nowhere yet."""
        rows = self._rows
        if self._is_there(found):
            return True
        if not rows.is_whole:
            return self._resume(found)
        possible = found
        if self._may_be_committed:
            # It may be at the lost host: the same rows at the same offsets are the same records.
            possible = [each for each in found if each.state.end == rows.start]
        if not possible:
            return False
        ends = [HostCandidate(each.client, each.state.end) for each in possible]
        best = choose_host(ends, self._tp.partition)
        if best.end < rows.start:
            return False
        if rows.host is None:
            self._fence(found, best)
            self._attempts.update(each.state.attempt for each in found)
        elif any(
            # What came from the lost host has no attempt: it may be this transaction, in part.
            each.state.attempt and self._is_others(each.state)
            for each in possible
            if each.client is best.client
        ):
            raise FencedError(*self._tp, rows.attempt)
        rows.begin(best.client, best.end)
        self._attempts.add(rows.attempt)
        return True

    def _is_there(self, found: Sequence[_Found]) -> bool:
        """Whether a store has the transaction already."""
        if self._version == NO_VERSION:
            return self._may_be_committed and self._is_committed(found)
        last = [(each.client.location.store, each.state.transaction) for each in found]
        newest = max((each for _, each in last if each is not None), default=None)
        if newest is None or newest.version < self._version:
            return False
        if newest.version > self._version:
            raise OldCheckpointError(*self._tp, self._version, newest)
        self._set_transaction(newest, {store for store, each in last if each == newest})
        return True

    def _is_committed(self, found: Sequence[_Found]) -> bool:
        """Whether the host has committed this very attempt, and only its answer was lost."""
        for client, state in found:
            staged_nothing = state.staged_end == state.end
            if state.attempt == self._rows.attempt and staged_nothing:
                transaction = Transaction(NO_VERSION, self._rows.start, self._rows.end)
                self._set_transaction(transaction, {client.location.store})
                return True
        return False

    def _set_transaction(self, transaction: Transaction, have: set[str]) -> None:
        self._transaction, self._have = transaction, have
        self._rows.clear()

    def _resume(self, found: Sequence[_Found]) -> bool:
        assert self._rows.host is not None
        store = self._rows.host.location.store
        same = next((each for each in found if each.client.location.store == store), None)
        if same is not None:
            self._rows.resume(same.client, same.state)
        return same is not None

    def _fence(self, found: Sequence[_Found], best: HostCandidate) -> None:
        """Ends attempts of before at the other stores; at the host the first rows do.

        Not what a store has got in part of another transaction, which begins elsewhere: it
        cannot be joined with this one, and the store that has it may be sending the rest.
        """
        for client, state in found:
            is_older = not state.attempt and state.end != best.end
            if client is not best.client and self._is_others(state) and not is_older:
                end_attempt(client, self._tp, state, self._version)

    def _is_others(self, state: TransactionState) -> bool:
        return state.staged_end > state.end and state.attempt not in self._attempts

    def _not_acknowledged(self, deadline: Deadline) -> NotAcknowledgedError:
        return NotAcknowledgedError(*self._tp, self._row_count, deadline.timeout_s)
