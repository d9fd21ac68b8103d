"""What writers put straight into a store, stage and commit there, until it is on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import zip_longest
from typing import Any, Final, TypeVar

from dafka_core.errors import (
    ClosedError,
    DafkaError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.nodes.mesh import Mesh
from dafka_core.protocol.store_role import StoreRole
from dafka_core.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.storage import Commit, Discard, Log, LogEntry, SetTransaction, Stage, attempt_octets

MAX_PUT_BYTES: Final = 64 << 20
"""Values of all writers together on their way to the disk; further ones wait.  Enough for the disk
to have the next group when it has written one."""

WAIT_STEP_S: Final = 1.0
"""How often a wait looks whether the store has stopped."""

T = TypeVar("T")


class AppendQueue:
    """Hands what writers want to the store's loop, and tells them when it is on disk.

    Thread-safe; ``stored`` and ``fail`` are the store's.  Every future also fails with
    StoreError, NodeFailedError or ClosedError when the store has ended.
    """

    def __init__(self, mesh: Mesh, role: StoreRole, log: Log) -> None:
        self._mesh = mesh
        self._role = role
        self._log = log
        self._changed = threading.Condition()
        # What the role has taken, by identity: it comes back as the same object.
        self._waiting: dict[int, tuple[LogEntry, Future[Any], Any]] = {}
        self._under_way: dict[Future[Any], int] = {}
        self._size_bytes = 0
        self._failure: BaseException | None = None

    def put(self, batch: RecordBatch) -> Future[int]:
        """Appends a run that begins exactly where its partition ends.

        Waits for room.  The future gives the partition's end when the run is on disk, synced; it
        fails with OffsetConflictError where the run does not begin at the end.
        """

        def take(now: float) -> DafkaError | None:
            return None if self._role.host(now, batch) else self._conflict(batch)

        return self._hand(batch, batch.end, batch.values.size_bytes, take)

    def stage(self, batch: RecordBatch, attempt: str, version: int = NO_VERSION) -> Future[int]:
        """Stages a run where the attempt's tail ends, or where the partition does.

        Waits for room.  The future gives the tail's end when the run is on disk, synced; it fails
        with FencedError where another attempt has taken over, with OffsetConflictError where the
        run begins elsewhere, and with TransactionExistsError where unit ``version`` is there already.

        Raises:
            ValueError: the attempt is none.
        """
        attempt_octets(attempt)
        staged = Stage(batch, attempt, version)

        def take(now: float) -> DafkaError | None:
            return None if self._role.stage(staged) else self._conflict(batch)

        return self._hand(staged, batch.end, batch.values.size_bytes, take)

    def commit(self, transactions: Sequence[StagedTransaction]) -> Future[None]:
        """Makes staged units visible, all of them or none; they are on disk then, synced.

        The future fails with FencedError or OffsetConflictError for a unit that is not what its
        attempt has staged.  What is committed already remains so.

        Raises:
            ValueError: an attempt is none.
        """
        for transaction in transactions:
            attempt_octets(transaction.attempt)
        commit = Commit(tuple(transactions))

        def take(now: float) -> DafkaError | None:
            if self._role.commit(now, commit):
                return None
            why = "it keeps track of as many partitions as it may"
            return StoreUnreachableError(self._role.address, why)

        return self._hand(commit, None, 0, take)

    def discard(self, discards: Sequence[Discard]) -> Future[None]:
        """Gives up what attempts have staged.

        Raises:
            ValueError: an attempt is none.
        """
        for discard in discards:
            attempt_octets(discard.attempt)
        promise: Future[None] = Future()
        if not discards:
            promise.set_result(None)
            return promise

        def take(now: float) -> None:
            for discard in discards:
                self._role.write(discard)

        # They are done in order.
        return self._hand(discards[-1], None, 0, take)

    def transaction_states(self, partitions: Sequence[TopicPartition]) -> list[TransactionState]:
        """How far partitions (topic, partition) and their units are on disk."""
        return [
            self._log.transaction_state(TopicPartition(topic, partition))
            for topic, partition in partitions
        ]

    def end(self, tp: TopicPartition) -> int:
        """The partition's end on disk."""
        return self._log.end(tp)

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        timeout_s: float,
        transaction: Transaction | None = None,
    ) -> int:
        """Waits until the partition reaches ``end`` on disk, whoever sends the records.

        Returns where it ends, which is less when ``timeout_s`` seconds have passed.  When it has
        the records of a ``transaction``, which ends there or before, it has its marker, too, or that of
        a newer one: records come without it from stores that know nothing of units.

        Raises:
            TransactionExistsError: the unit of this number lies elsewhere.
            DafkaError: the store has ended.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                found = self._log.end(tp)
                remaining_s = deadline - time.monotonic()
                if found >= end or remaining_s <= 0:
                    break
                self._changed.wait(min(remaining_s, WAIT_STEP_S))
        if transaction is not None and found >= transaction.end:
            self._mark(tp, transaction)
        return found

    def stored(
        self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None] = ()
    ) -> None:
        """The log has done this, or not where an outcome says why (loop's thread)."""
        with self._changed:
            found = [self._waiting.pop(id(entry), None) for entry in entries]
            self._changed.notify_all()  # for those who wait for what nobody put
        for waiting, error in zip_longest(found, outcomes):
            if waiting is not None and self._ended(waiting[1]):
                _, promise, result = waiting
                promise.set_result(result) if error is None else promise.set_exception(error)

    def fail(self, error: BaseException | None = None) -> None:
        """The store has ended; nothing more comes to the disk."""
        with self._changed:
            failure = self._failure = self._failure or error or ClosedError("store")
            promises = list(self._under_way)
            self._waiting.clear()
        for promise in promises:
            if self._ended(promise):
                promise.set_exception(failure)

    def _mark(self, tp: TopicPartition, transaction: Transaction) -> None:
        marker = self._log.transaction_state(tp).transaction
        if marker == transaction or (marker is not None and marker.version > transaction.version):
            return
        mark = SetTransaction(tp, transaction)
        self._hand(mark, None, 0, lambda now: self._role.write(mark)).result()

    def _hand(
        self,
        entry: LogEntry,
        result: T,
        size_bytes: int,
        take: Callable[[float], DafkaError | None],
    ) -> Future[T]:
        """Has the loop ``take`` an entry, which says why it cannot; waits for room first."""
        promise: Future[T] = Future()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or self._size_bytes == 0
                    or self._size_bytes + size_bytes <= MAX_PUT_BYTES
                )
            )
            if self._failure is not None:
                promise.set_exception(self._failure)
                return promise
            self._under_way[promise] = size_bytes
            self._size_bytes += size_bytes

        def hand(now: float) -> None:
            error = take(now)
            if error is None:
                with self._changed:
                    self._waiting[id(entry)] = entry, promise, result
            elif self._ended(promise):
                promise.set_exception(error)

        try:
            self._mesh.call(hand)
        except DafkaError as error:
            if self._ended(promise):
                promise.set_exception(error)
        return promise

    def _conflict(self, batch: RecordBatch) -> OffsetConflictError:
        end = self._role.next_offset(batch.tp)
        return OffsetConflictError(batch.topic, batch.partition, batch.offset, end)

    def _ended(self, promise: Future[Any]) -> bool:
        """Gives the room of a put back; False if somebody has done so before."""
        with self._changed:
            size_bytes = self._under_way.pop(promise, None)
            self._size_bytes -= size_bytes or 0
            self._changed.notify_all()
        return size_bytes is not None
