"""Writing a transaction: all rows of one task for one partition, once, or none of them.

The rows are staged at a store, where no reader sees them, and become visible in one step when the
driver, or the writer itself, commits them.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from dafka_core import Producer
from dafka_core.config.missing_stores import ALL
from dafka_core.config.node_options import ProducerOptions
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    FencedError,
    NotAcknowledgedError,
    OffsetConflictError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.envelope import NONE
from dafka_core.model.log_entries import Discard, TransactionExistsError
from dafka_core.model.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.model.values import Values
from dafka_core.system.closing import Closing
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import ALL_STORES
from dafka_spark.options import SinkOptions, settings_of
from dafka_spark.sink.commit_messages import NOT_PICKED, PickedStore, WrittenRange
from dafka_spark.sink.rows import PartitionWriter
from dafka_spark.sink.store_session import StoreSession, choose_host

BLOCK_ROWS: Final = MAX_BATCH_RECORDS
BLOCK_BYTES: Final = MAX_BATCH_BYTES // 2
"""From when on rows are sent: half of what a store has in a block at most, so that it makes one
block of them, which it need not merge, even where a batch of Spark's goes far beyond."""

RETAINED_BYTES: Final = 64 << 20
"""Rows that a task keeps to stage them anew elsewhere if it loses the store that hosts them; this
bounds its memory.  A transaction with more has to wait for that store."""

MAX_STREAMS: Final = 4
"""Streams that a task has open: a store takes 32, and other tasks write to it, too."""

HOLD_S: Final = 1.0
"""How long a stream stays open to which nothing is added.  A store serves few at one time, and a
task may compute its next rows for minutes; to open one again costs milliseconds."""

Found = Sequence[tuple[StoreClient, TransactionState]]
"""What stores have of a partition."""

Streams = dict["StagedRows", Callable[[], None]]
"""Which rows of a task have a stream open, and what closes it when they are on disk."""


class RowBuffer:
    """Collects values until they are worth sending."""

    def __init__(self) -> None:
        self._row_count = 0
        self._pieces: list[pa.Array] = []
        self._size_bytes = 0

    def add(self, values: pa.Array) -> Iterator[pa.Array]:
        """Takes binary or string values without nulls; gives each block that is full."""
        at = 0
        while at < len(values):
            part = values.slice(at, BLOCK_ROWS - self._row_count)
            self._pieces.append(part)
            self._row_count += len(part)
            self._size_bytes += part.nbytes
            at += len(part)
            if self._row_count >= BLOCK_ROWS or self._size_bytes >= BLOCK_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.Array]:
        """What waits, as a block, if there is something."""
        if self._pieces:
            binary = [piece.cast(pa.binary()) for piece in self._pieces]
            self._pieces, self._row_count, self._size_bytes = [], 0, 0
            yield binary[0] if len(binary) == 1 else pa.concat_arrays(binary)


class StagedRows:
    """What a task stages, attempt by attempt; raises what ``PutStream`` does.

    Args:
        streams: those of the task.
        pause: waits until all rows are staged, and closes the stream.

    Attributes:
        host: the store that hosts the partition; None before ``begin``.
        attempt: the one that stages the rows, new for each ``begin``.
        attempts: all of these, and those that they replace: any other attempt has taken over.
        start, end: the offsets that the rows have, or will have.
        is_whole: whether all rows are retained, so that they can be staged elsewhere.
        waited_s: how long the task has waited in vain for its turn at the store.
    """

    def __init__(
        self,
        tp: TopicPartition,
        streams: Streams,
        pause: Callable[[], None],
        *,
        timeout_s: float,
    ) -> None:
        self.host: StoreClient | None = None
        self.attempt = ""
        self.attempts: set[str] = set()
        self.start = self.end = 0
        self.is_whole = True
        self.waited_s = 0.0
        self._tp = tp
        self._streams = streams
        self._pause = pause
        self._timeout_s = timeout_s
        self._retained: deque[RecordBatch] = deque()
        self._put: PutStream | None = None
        # Held by the task's thread, or by the timer's while it closes the stream.
        self._lock = threading.RLock()
        self._timer = threading.Timer(0, self._let_go)

    @property
    def retained_bytes(self) -> int:
        """How much the retained rows take in memory: values, and where each begins."""
        return sum(batch.values.size_bytes + 4 * batch.count for batch in self._retained)

    @property
    def has_too_much(self) -> bool:
        """Whether more is retained than may be."""
        return len(self._retained) > 1 and self.retained_bytes > RETAINED_BYTES

    def add(self, values: pa.Array) -> None:
        """Retains values, then sends them."""
        with self._lock:
            batch = RecordBatch(self._tp, self.end, Values.from_arrow(values))
            self._retained.append(batch)
            self.end = batch.end
            self._send(batch)

    def wait_staged(self, deadline: Deadline) -> None:
        """Waits until all rows are on the store's disk."""
        with self._lock:
            self._wait_durable(self.end, deadline.left_s)

    def release(self, deadline: Deadline) -> None:
        """Retains no longer what is on the store's disk; waits until that is something."""
        self.is_whole = False
        if self._retained:
            with self._lock:
                staged_end = self._wait_durable(self._retained[0].end, deadline.left_s)
            while self._retained and self._retained[0].end <= staged_end:
                self._retained.popleft()

    def begin(self, host: StoreClient, end: int) -> None:
        """Stages all rows at the partition's ``end``, as a new attempt.

        What is still under way of the one before must not be taken for this one's.
        """
        moved = end - self.start
        self._retained = deque(
            replace(batch, offset=batch.offset + moved) for batch in self._retained
        )
        self.start, self.end = end, self.end + moved
        self.attempt = uuid.uuid4().hex.upper()
        self.attempts.add(self.attempt)
        self._send_all(host)

    def resume(self, found: Found) -> bool:
        """Goes on at the same store, which alone has the rows that are no longer retained.

        Raises:
            FencedError: the store does not have what this attempt has staged there.
        """
        assert self.host is not None
        store = self.host.location.store
        for client, (_, at, attempt, _) in found:
            if client.location.store == store:
                first = self._retained[0].offset if self._retained else self.end
                if attempt != self.attempt or not first <= at <= self.end:
                    raise FencedError(*self._tp, self.attempt)
                missing = [batch for batch in self._retained if batch.end > at]
                self._retained = deque(
                    batch.between(max(at, batch.offset), batch.end) for batch in missing
                )
                self._send_all(client)
                return True
        return False

    def is_fenced_by(self, state: TransactionState) -> bool:
        """Whether a store has staged rows of another attempt, which has taken over."""
        return state.staged_end > state.end and state.attempt not in self.attempts

    def close(self) -> None:
        """Closes the stream, whatever has come of it; the retained rows stay."""
        self._timer.cancel()
        with self._lock:
            if self._put is not None:
                self._put.close()
                self._put = None
            self._streams.pop(self, None)

    def clear(self) -> None:
        """Lets go of the rows: they are committed."""
        self._retained.clear()

    def _wait_durable(self, end: int, timeout_s: float) -> int:
        """Waits until the rows are on disk up to ``end``; up to where they are."""
        if self._put is None:  # all were, when it was closed
            return self.end
        durable = self._put.wait_durable(end, timeout_s=timeout_s)
        self.waited_s = 0.0
        return durable

    def _let_go(self) -> None:
        """Closes the stream, to which nothing was added for a while (timer's thread)."""
        # What fails here, the task's thread comes upon when it goes on.
        with self._lock, suppress(DafkaError):
            self._wait_durable(self.end, self._timeout_s)
            self.close()

    def _send_all(self, host: StoreClient) -> None:
        self.close()
        self.host = host
        with self._lock:
            for batch in self._retained:
                self._send(batch)

    def _send(self, batch: RecordBatch) -> None:
        if self._put is None:
            assert self.host is not None
            while len(self._streams) >= MAX_STREAMS:
                for pause in list(self._streams.values())[:1]:  # timers take others away
                    pause()
            self._streams[self] = self._pause
            self._put = self.host.put(
                self._tp,
                batch.offset,
                attempt=self.attempt,
                waited_s=self.waited_s,
                timeout_s=self._timeout_s,
            )
        self._put.write(batch.values.to_arrow())
        self._timer.cancel()
        self._timer = threading.Timer(HOLD_S, self._let_go)
        self._timer.daemon = True
        self._timer.start()


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


T = TypeVar("T", bound=tuple[int, Sequence[bytes]])


class WriterFactory(Closing):
    """Opens the writers of one task; to be closed.

    Args:
        picked: see ``TaskSetup``.
        goes_on: whether other stores may have more of the partitions than the picked one.
        hints: where stores may be, for a process that knows nothing.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        picked: PickedStore = NOT_PICKED,
        goes_on: bool = False,
        hints: Sequence[StoreLocation] = (),
    ) -> None:
        session = StoreSession(options.mesh_address, picked.locations, hints)
        self._task = TaskSetup(options, session, {}, picked.store)
        self._goes_on = goes_on

    @property
    def stores(self) -> tuple[StoreLocation, ...]:
        """Where the stores are that have answered."""
        return tuple(self._task.session.locations)

    def largest(self, ask: Callable[[StoreClient], T], deadline: Deadline) -> T:
        """The largest of the stores' answers, when all that are there have answered.

        Raises:
            StoreUnreachableError: one that may have more does not until the deadline.
        """
        session = self._task.session
        for heard, lost in session.looks(session.current(), ask, deadline):
            if lost is None:
                return max(answer for _, answer in heard)
        assert lost is not None  # there is one look at least
        raise lost

    def close(self) -> None:
        """Gives the stores' clients back."""
        self._task.session.close()

    def open(self, tp: TopicPartition) -> PartitionWriter:
        """The writer of one partition.

        Raises:
            ConfigError: exactly-once cannot be had, or all stores are to acknowledge and there
                is none to count them by.
            StoreUnreachableError: the store that was picked is not there.
        """
        options, session, *_ = self._task
        if not options.is_exact:
            return self._open_at_least_once(tp)
        deadline = Deadline(options.delivery_timeout_s)
        known = session.require(options.acks_needed, deadline)
        if self._task.picked and self._goes_on:
            known = self._catch_up(known, tp, deadline)
        return TransactionalWriter(tp, self._task, known, deadline)

    def _open_at_least_once(self, tp: TopicPartition) -> PartitionWriter:
        """A transaction without a version; where too few stores take one, the mesh."""
        options, session, *_ = self._task
        for find in (session.current, session.refresh):
            known = find()
            if len(known) >= max(options.acks_needed, 1):
                # Until those that do not answer are given up, and those that do are taken.
                deadline = Deadline(timing.SILENT_S + timing.LOOK_AGAIN_S)
                with suppress(StoreUnreachableError):
                    return TransactionalWriter(tp, self._task, known, deadline)
        if options.stores:
            why = "too few of them take rows now, and there is no mesh to write to without them"
            raise ConfigError("stores", ",".join(options.stores), why)
        if options.acks_needed == ALL_STORES:
            why = "counts stores with Arrow Flight, and none answers: name a number"
            raise ConfigError("acks", ALL, why)
        return MeshWriter(tp, options)

    def _catch_up(
        self, known: Sequence[StoreClient], tp: TopicPartition, deadline: Deadline
    ) -> list[StoreClient]:
        """Waits until the picked store has what any other has of the partition; the stores then."""

        def state_at(client: StoreClient) -> TransactionState:
            return client.transaction_states([tp], timeout_s=timing.ANSWER_S)[0]

        store, given_up = self._task.picked, Deadline(timing.SILENT_S)
        for heard, lost in self._task.session.looks(known, state_at, deadline):
            why = "it is not there"
            picked = [each for each in heard if each[0].location.store == store]
            if picked and lost is None:
                (client, state), end = picked[0], max(each.end for _, each in heard)
                with suppress(StoreUnreachableError):
                    has = state.end
                    if has < end:
                        has = client.wait(tp, end, timeout_s=deadline.left_s)
                    if has >= end:
                        return [each for each, _ in heard]
                    why = f"it has the partition up to {has}, another store up to {end}"
            elif lost is None and given_up.is_over:
                break  # other stores are there: the job's next attempt need not wait
        raise lost or StoreUnreachableError(store, why)


class MeshWriter(PartitionWriter):
    """Publishes one partition to the mesh, where stores of any kind take it: at least once."""

    def __init__(self, tp: TopicPartition, options: SinkOptions) -> None:
        self._tp = tp
        self._producer = Producer(
            tp.topic,
            address=tp.partition,
            tower=options.tower,
            host=options.host,
            port=options.port,
            acks=options.acks_needed,
            envelope=NONE,  # they are closed already, where they need to be
            allow_control_characters=options.allow_control_characters,
            **settings_of(ProducerOptions, options.node),
        )
        self._start = self._producer.next_offset

    def write(self, contents: pa.Array) -> None:
        """Takes binary or string without nulls."""
        self._producer.publish_many(contents)

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Waits until all rows are acknowledged.

        Raises:
            NotAcknowledgedError: they are not until the deadline.
        """
        self._producer.flush(deadline.left_s)
        return WrittenRange(self._tp, self._start, self._producer.next_offset)

    def __exit__(self, *error: object) -> None:
        self._producer.__exit__(*error)
