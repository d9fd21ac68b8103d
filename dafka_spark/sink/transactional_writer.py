"""Writing a unit: all rows of one task for one partition, once, or none of them.

The rows are staged at a store, where nobody sees them, and become visible in one step when the
task has all of them there.  Whoever writes the unit again finds the marker that this step leaves.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
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
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.store_client import StoreClient
from dafka_core.log_entries import Discard
from dafka_core.records import (
    NO_VERSION,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_spark.cluster.acknowledgements import (
    LOOK_AGAIN_S,
    SILENT_S,
    AckGoal,
    remaining_s,
    wait_for_acks,
)
from dafka_spark.cluster.store_registry import StoreRegistry
from dafka_spark.errors import OldCheckpointError, TransactionChangedError
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.fencing import DISCARD_S, end_attempt
from dafka_spark.sink.hosted_writer import HostCandidate, furthest
from dafka_spark.sink.row_buffer import RowBuffer, Sent
from dafka_spark.sink.stream_limit import StreamLimit

RETAINED_BYTES: Final = 64 << 20
"""Values that are kept to be staged anew elsewhere if the host is lost; this bounds a task's
memory.  A larger unit has to wait for its host."""

ASK_S: Final = 10.0
"""The longest wait for a store's word on a partition, which it has at hand."""

_LOST: Final = (StoreUnreachableError, OffsetConflictError, TransactionExistsError)
"""Errors after which the unit's place is looked for anew."""


class _Found(NamedTuple):
    host: StoreClient
    info: TransactionState


class TransactionalWriter:
    """Writes one unit to the store that has most of its partition.

    Args:
        number: the unit's, ascending in the partition: that of the micro-batch.  ``NO_VERSION``
            only stages the rows: somebody else commits them.
        hosts: finds stores anew when they fail.
        known: the stores that are there.
        streams: those of its task.
        store: the only one to write to; any if it is empty.
        acks: how many of them must have the unit on disk in the end.
        timeout_s: the longest wait for a host.

    Raises:
        StoreUnreachableError: none of them answers.
        OldCheckpointError: the partition has a newer unit.
    """

    def __init__(
        self,
        tp: TopicPartition,
        version: int,
        hosts: StoreRegistry,
        known: Sequence[StoreClient],
        streams: StreamLimit,
        *,
        store: str = "",
        acks: int,
        timeout_s: float,
    ) -> None:
        self._tp = tp
        self.address = tp.partition
        self._version = version
        self._hosts = hosts
        self._store = store
        self._known = known
        self._streams = streams
        self._acks = acks
        self._timeout_s = timeout_s
        self._rows = 0
        self._blocks = RowBuffer()
        self._retained: deque[Sent] = deque()
        self._retained_bytes = 0
        # Whether all that was sent is retained, and whether it may have been committed.
        self._is_whole = True
        self._was_tried = False
        self._host: StoreClient | None = None
        self._put: PutStream | None = None
        self._attempt = ""
        # Its own, and those of before: whatever else it meets has taken over.
        self._attempts: set[str] = set()
        self._start = self._sent_end = 0
        self._transaction: Transaction | None = None
        self._have: set[str] = set()
        self._open(time.monotonic() + timeout_s)

    def publish_many(self, values: pa.Array) -> None:
        """Takes binary or string values without nulls."""
        self._rows += len(values)
        if self._transaction is None:
            for block in self._blocks.add(values):
                self._send(block)

    def pause(self) -> None:
        """Closes its stream, when all that was sent is on the host's disk.

        Raises:
            NotAcknowledgedError: it does not come there.
        """
        deadline = time.monotonic() + self._timeout_s
        while self._put is not None and not self._guarded(self._stage_all, deadline):
            if time.monotonic() >= deadline:
                raise self._not_acknowledged(self._timeout_s)
        self._leave()

    def finish(self, timeout_s: float) -> WrittenRange:
        """Commits the unit and waits until it is on the disks of ``acks`` stores.

        Without a number everything is staged then, on disk.

        Raises:
            NotAcknowledgedError: it is not within ``timeout_s`` seconds.
            FencedError: another attempt has taken over.
            TransactionChangedError: it was written before, with another number of rows.
        """
        deadline = time.monotonic() + timeout_s
        for block in self._blocks.rest():
            self._send(block)
        work = self._stage_all if self._version == NO_VERSION else self._commit
        while self._transaction is None and self._rows and not self._guarded(work, deadline):
            if time.monotonic() >= deadline:
                raise self._not_acknowledged(timeout_s)
        self._leave()
        transaction = self._transaction
        if transaction is None:
            return WrittenRange(self._tp, self._start, self._sent_end, self._attempt)
        if transaction.end - transaction.start != self._rows:
            raise TransactionChangedError(*self._tp, transaction, self._rows)
        wait_for_acks(
            AckGoal(self._tp, transaction.start, transaction.end, transaction),
            self._hosts,
            self._known,
            acks=self._acks,
            have=self._have,
            deadline=deadline,
        )
        return WrittenRange(self._tp, transaction.start, transaction.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()
        if kind is not None and self._transaction is None and self._host is not None:
            stage = Discard(self._tp, self._attempt)
            with suppress(DafkaError):
                self._host.discard([stage], timeout_s=DISCARD_S)

    # -- the unit's way to a host's disk ---------------------------------------------------------

    def _send(self, values: pa.Array) -> None:
        if self._transaction is not None:
            return
        sent = Sent(self._sent_end, values)
        self._retained.append(sent)
        self._retained_bytes += values.nbytes
        self._sent_end += len(values)
        deadline = time.monotonic() + self._timeout_s
        self._guarded(lambda _: self._write(sent), deadline)
        while self._retained_bytes > RETAINED_BYTES and len(self._retained) > 1:
            if time.monotonic() >= deadline:
                raise self._not_acknowledged(self._timeout_s)
            self._is_whole = False
            self._guarded(self._release, deadline)

    def _release(self, deadline: float) -> None:
        """Keeps no longer what is on the host's disk."""
        durable = self._sent_end
        if self._put is not None:
            end = self._retained[0].end
            durable = self._put.wait_durable(end, timeout_s=remaining_s(deadline))
        while self._retained and self._retained[0].end <= durable:
            self._retained_bytes -= self._retained.popleft().values.nbytes

    def _stage_all(self, deadline: float) -> None:
        if self._put is not None:
            self._put.wait_durable(self._sent_end, timeout_s=remaining_s(deadline))

    def _commit(self, deadline: float) -> None:
        self._stage_all(deadline)
        assert self._host is not None
        transaction = Transaction(self._version, self._start, self._sent_end)
        commit = StagedTransaction(
            *self._tp,
            self._attempt,
            transaction.start,
            transaction.end,
            transaction.version,
        )
        self._was_tried = True
        self._host.commit([commit], timeout_s=remaining_s(deadline))
        self._set_transaction(transaction, {self._host.location.store})

    def _write(self, sent: Sent) -> None:
        if self._put is None:
            assert self._host is not None
            self._streams.enter(self)
            self._put = self._host.put(
                self._tp,
                sent.offset,
                attempt=self._attempt,
                version=self._version,
                timeout_s=self._timeout_s,
            )
        self._put.write(sent.values)

    def _guarded(self, work: Callable[[float], object], deadline: float) -> bool:
        """Does some work at the host; False when that was lost, and the unit goes on elsewhere."""
        try:
            work(deadline)
        except _LOST:
            self._open(deadline)
            return False
        return True

    # -- where the unit is, or is to be ----------------------------------------------------------

    def _open(self, deadline: float) -> None:
        """Finds the unit, or a host for it, which is then given all that was sent so far.

        A store that does not answer is waited for until the mesh has given it up: it may come
        back at once, and be the only one that has the end of the partition, or the unit.
        """
        self._leave()
        given_up_at = time.monotonic() + SILENT_S
        is_sure, looked = self._host is None and not self._hosts.silent, False
        while True:
            lost: DafkaError | None = None
            try:
                if is_sure:
                    found = self._look()
                    if len(found) == len(self._known) and self._go_on(found):
                        return
            except _LOST as error:
                lost = error
            now = time.monotonic()
            if now >= deadline:
                raise lost or self._not_acknowledged(self._timeout_s)
            if looked:
                time.sleep(LOOK_AGAIN_S)
            looked = True
            self._known = [
                host for host in self._hosts.anew() if self._store in ("", host.location.store)
            ]
            is_sure = not self._hosts.silent or now >= given_up_at

    def _look(self) -> list[_Found]:
        """What the stores that answer have of the partition."""
        found, failure = [], None
        for host in self._known:
            try:
                (info,) = host.transaction_states([self._tp], timeout_s=ASK_S)
            except StoreUnreachableError as error:
                failure = error
            else:
                found.append(_Found(host, info))
        if not found:
            raise failure or StoreUnreachableError(
                self._store, "no store is known that can host the partition"
            )
        return found

    def _go_on(self, found: Sequence[_Found]) -> bool:
        """Goes on where the unit is, or can be; False when it can be nowhere yet."""
        if self._is_there(found):
            return True
        if not self._is_whole:
            return self._resume(found)
        possible = found
        if self._was_tried:
            # It may be at the lost host: the same rows at the same offsets are the same unit.
            possible = [each for each in found if each.info.end == self._start]
        ends = [HostCandidate(each.host, each.info.end) for each in possible]
        best = furthest(ends, self.address) if ends else None
        if best is None or best.end < self._start:
            return False
        if self._host is None:
            self._fence(found, best)
            self._attempts.update(each.info.attempt for each in found)
        elif any(
            # What came from the lost host has no attempt: it may be this unit, in part.
            each.info.attempt and self._is_others(each.info)
            for each in possible
            if each.host is best.host
        ):
            raise FencedError(*self._tp, self._attempt)
        self._begin(best)
        return True

    def _is_there(self, found: Sequence[_Found]) -> bool:
        """Whether a store has the unit already."""
        if self._version == NO_VERSION:
            return False
        transactions = [(each.host.location.store, each.info.transaction) for each in found]
        newest = max(
            (transaction for _, transaction in transactions if transaction is not None),
            default=None,
        )
        if newest is None or newest.version < self._version:
            return False
        if newest.version > self._version:
            raise OldCheckpointError(*self._tp, self._version, newest)
        self._set_transaction(
            newest, {store for store, transaction in transactions if transaction == newest}
        )
        return True

    def _set_transaction(self, transaction: Transaction, have: set[str]) -> None:
        self._transaction, self._have = transaction, have
        self._retained.clear()
        self._retained_bytes = 0

    def _begin(self, best: HostCandidate) -> None:
        """Stages all rows at the end of the partition, as an attempt of its own.

        Not as the one before: what is left of that on its way must not be taken for this one's.
        """
        moved = best.end - self._start
        self._retained = deque(Sent(sent.offset + moved, sent.values) for sent in self._retained)
        self._start, self._sent_end = best.end, self._sent_end + moved
        self._attempt = uuid.uuid4().hex.upper()
        self._attempts.add(self._attempt)
        self._stage(best.host)

    def _resume(self, found: Sequence[_Found]) -> bool:
        """Goes on at the same host: only that has the rows that are no longer retained."""
        assert self._host is not None
        store = self._host.location.store
        same = next((each for each in found if each.host.location.store == store), None)
        if same is None:
            return False
        staged_end = same.info.staged_end
        first = self._retained[0].offset if self._retained else self._sent_end
        if same.info.attempt != self._attempt or not first <= staged_end <= self._sent_end:
            raise FencedError(*self._tp, self._attempt)
        rest = deque[Sent]()
        for sent in self._retained:
            missing = sent.values.slice(max(staged_end - sent.offset, 0))
            if len(missing):
                rest.append(Sent(sent.end - len(missing), missing))
        self._retained = rest
        self._retained_bytes = sum(sent.values.nbytes for sent in rest)
        self._stage(same.host)
        return True

    def _stage(self, host: StoreClient) -> None:
        self._leave()
        self._host = host
        for sent in self._retained:
            self._write(sent)

    def _fence(self, found: Sequence[_Found], best: HostCandidate) -> None:
        """Ends attempts of before at the other stores; at the unit's own its first rows do.

        Not what a store has got in part of another unit, which begins elsewhere: it cannot be
        joined with this one, and the store that has it may be sending the rest.
        """
        for host, info in found:
            is_older = not info.attempt and info.end != best.end
            if host is not best.host and self._is_others(info) and not is_older:
                end_attempt(host, self._tp, info, self._version)

    def _is_others(self, info: TransactionState) -> bool:
        return info.staged_end > info.end and info.attempt not in self._attempts

    def _leave(self) -> None:
        if self._put is not None:
            self._put.close()
            self._put = None
        self._streams.leave(self)

    def _not_acknowledged(self, waited_s: float) -> NotAcknowledgedError:
        return NotAcknowledgedError(*self._tp, self._rows, waited_s)
