"""A task's writers: they stage rows at the store that the driver has picked.

Staged rows are on the store's disk and invisible until the driver commits them.  A task retains
its rows, up to a bound, until all are staged, and stages them again when the store restarts.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa

from dafka_core.errors import (
    DafkaError,
    FencedError,
    NotAcknowledgedError,
    OffsetConflictError,
    StoreBusyError,
    StoreUnreachableError,
)
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.model.log_entries import Discard, TransactionExistsError
from dafka_core.model.records import RecordBatch, TopicPartition, TransactionState
from dafka_core.model.values import Values
from dafka_core.system.closing import Closing
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink.store_session import PickedStore, StoreSession

# Rows are sent when they reach one of these.  Half of a store's largest block, so that the store
# makes one block of them even where one of Spark's batches exceeds the limit by far.
BLOCK_ROWS: Final = MAX_BATCH_RECORDS
BLOCK_BYTES: Final = MAX_BATCH_BYTES // 2
# Rows in memory of one task.  With more, it depends on those that the store has on disk.
RETAINED_BYTES: Final = 64 << 20
MAX_STREAMS: Final = 4  # of a task: a store serves 32, and other tasks write to it, too
# A stream without new rows is closed after this time: a task may compute its next rows for minutes,
# and opening one again takes milliseconds.
HOLD_S: Final = 1.0

_LOST: Final = (StoreUnreachableError, OffsetConflictError, TransactionExistsError)
"""Errors after which a writer asks the store for its state and continues from there."""


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Offsets ``start`` to ``end`` (exclusive) that a task has written to one partition.

    ``attempt`` has staged them; it is empty if they are committed already.  Only an audited query
    has a ``digest`` of the rows.
    """

    tp: TopicPartition
    start: int
    end: int
    attempt: str = ""
    digest: str = ""


class RowBuffer:
    """Collects rows until they fill a block."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._row_count = 0
        self._pieces: list[pa.Array] = []

    def add(self, values: pa.Array) -> Iterator[pa.Array]:
        """Take binary or string values without nulls; yield each full block."""
        at = 0
        while at < len(values):
            part = values.slice(at, BLOCK_ROWS - self._row_count)
            self._pieces.append(part)
            self._row_count += len(part)
            self.size_bytes += part.nbytes
            at += len(part)
            if self._row_count >= BLOCK_ROWS or self.size_bytes >= BLOCK_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.Array]:
        """Yield the remaining rows as a block, if there are any."""
        if self._pieces:
            binary = [piece.cast(pa.binary()) for piece in self._pieces]
            self._pieces, self._row_count, self.size_bytes = [], 0, 0
            yield binary[0] if len(binary) == 1 else pa.concat_arrays(binary)


class WriterFactory(Closing):
    """Opens a task's writers, one for each partition; ``client_name`` is the task's name."""

    def __init__(self, options: SinkOptions, picked: PickedStore, client_name: str = "") -> None:
        self.client_name = client_name
        self.timeout_s = options.delivery_timeout_s
        self.picked = picked.store
        self.session = StoreSession(options.mesh_address, picked.locations)
        self.streams: dict[StagingWriter, None] = {}  # writers with an open stream, oldest first
        self._held: dict[StagingWriter, int] = {}  # bytes of rows in memory
        self._held_bytes = 0

    def close(self) -> None:
        """Return the stores' clients."""
        self.session.close()

    def open(self, tp: TopicPartition) -> StagingWriter:
        """Open the writer of one partition at the picked store.

        The picked store first catches up with every other store.  What earlier attempts have
        staged at the others is discarded.
        """

        def state_at(client: StoreClient) -> TransactionState:
            return client.transaction_states([tp], timeout_s=timing.REQUEST_TIMEOUT_S)[0]

        deadline, away = Deadline(self.timeout_s), Deadline(timing.STORE_TIMEOUT_S)
        why = "it is unreachable"
        for _ in deadline.attempts():
            states = self.session.ask(state_at, deadline)
            end = max(state.end for _, state in states)
            picked = [each for each in states if each[0].location.store == self.picked]
            for client, state in picked:
                if state.end == end:
                    fence(tp, states, client, end)
                    attempts = {each.attempt for _, each in states}
                    return StagingWriter(tp, self, client, state, attempts)
                why = f"it has {tp} up to offset {state.end}, and another store up to {end}"
                with suppress(StoreUnreachableError):
                    client.wait(tp, end, timeout_s=deadline.left_s)
            if not picked:
                if away.is_over:  # others are reachable: Spark's next attempt need not wait
                    break
                self.session.refresh()
        raise StoreUnreachableError(self.picked, why)

    def limit_memory(self, writer: StagingWriter) -> None:
        """Release rows that are on disk while the task has too many; ``writer`` has changed."""
        self._measure(writer)
        while self._held_bytes > RETAINED_BYTES:
            # All rows of a closed stream are on disk, so these need no wait.
            closed = (each for each in self._held if each.retained and each not in self.streams)
            if (found := next(closed, None)) is not None:
                found.retained.clear()
            else:
                found = max(self._held, key=self._held.__getitem__)
                found.release()
            self._measure(found)

    def _measure(self, writer: StagingWriter) -> None:
        held = writer.buffer.size_bytes + writer.retained_bytes
        self._held_bytes += held - self._held.get(writer, 0)
        self._held[writer] = held


class StagingWriter:
    """Stages the rows of one task for one partition.

    The rows will have the offsets ``start`` to ``end``.  ``attempt`` is a new one each time all
    rows are staged again; it replaces ``attempts``, and any other one at the store has taken over.
    """

    def __init__(
        self,
        tp: TopicPartition,
        factory: WriterFactory,
        client: StoreClient,
        state: TransactionState,
        attempts: set[str],
    ) -> None:
        self.attempt = _new_attempt()
        self.start = self.end = state.end
        self._tp = tp
        self._factory = factory
        self._client = client
        self._attempts = {self.attempt, *attempts}
        self.buffer = RowBuffer()
        self.retained: deque[RecordBatch] = deque()
        self._put: PutStream | None = None
        self._waited_s = 0.0  # for a turn at a busy store
        # Held by the task's thread, or by the timer's while it closes the stream.
        self._lock = threading.RLock()
        self._timer = threading.Timer(0, self._close_idle)

    def write(self, contents: pa.Array) -> None:
        """Stage binary or string values without nulls."""
        for block in self.buffer.add(contents):
            self._add(block, Deadline(self._factory.timeout_s))
            self._factory.limit_memory(self)
        self._factory.limit_memory(self)

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Wait until all rows are on the store's disk."""
        for block in self.buffer.rest():
            self._add(block, deadline)
        self.pause(deadline)
        self.retained.clear()
        self._factory.limit_memory(self)
        return WrittenRange(self._tp, self.start, self.end, self.attempt)

    def pause(self, deadline: Deadline) -> None:
        """Close the stream as soon as all rows in it are on the store's disk."""
        self._retry(lambda: self._wait_durable(self.end, deadline.left_s), deadline)
        self._close()

    @property
    def is_whole(self) -> bool:
        """True while all rows are retained."""
        return self._first_retained == self.start

    @property
    def retained_bytes(self) -> int:
        """The memory that retained rows take: values, and the offset of each."""
        return sum(batch.values.size_bytes + 4 * batch.count for batch in self.retained)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        if error[0] is not None:
            with suppress(DafkaError):
                discard = Discard(self._tp, self.attempt)
                self._client.discard([discard], timeout_s=timing.DISCARD_TIMEOUT_S)

    @property
    def _first_retained(self) -> int:
        return self.retained[0].offset if self.retained else self.end

    def _add(self, values: pa.Array, deadline: Deadline) -> None:
        try:
            with self._lock:  # the timer waits for all rows up to ``end``
                batch = RecordBatch(self._tp, self.end, Values.from_arrow(values))
                self.retained.append(batch)
                self.end = batch.end
                self._send([batch])
        except _LOST as error:
            self._reconnect(error, deadline)

    def _send(self, batches: Sequence[RecordBatch]) -> None:
        with self._lock:
            for batch in batches:
                if self._put is None:
                    self._put = self._open_stream(batch.offset)
                self._put.write(batch.values.to_arrow())
            self._timer.cancel()
            self._timer = threading.Timer(HOLD_S, self._close_idle)
            self._timer.daemon = True
            self._timer.start()

    def _open_stream(self, offset: int) -> PutStream:
        streams = self._factory.streams
        while len(streams) >= MAX_STREAMS:
            for writer in list(streams)[:1]:  # timers remove others meanwhile
                writer.pause(Deadline(self._factory.timeout_s))
        streams[self] = None
        return self._client.put(
            self._tp,
            offset,
            attempt=self.attempt,
            waited_s=self._waited_s,
            client_name=self._factory.client_name,
            timeout_s=self._factory.timeout_s,
        )

    def _wait_durable(self, end: int, timeout_s: float) -> int:
        """Wait until the rows up to ``end`` are on disk; return the end of those that are."""
        with self._lock:
            if self._put is None:  # closed because all rows were
                return self.end
            durable = self._put.wait_durable(end, timeout_s=timeout_s)
            self._waited_s = 0.0
            return durable

    def release(self) -> None:
        """Send rows, or release the oldest sent ones once they are on the store's disk."""
        deadline = Deadline(self._factory.timeout_s)
        if self.buffer.size_bytes > self.retained_bytes:
            for block in self.buffer.rest():
                self._add(block, deadline)
        else:
            self._retry(lambda: self._release(deadline.left_s), deadline)

    def _release(self, timeout_s: float) -> None:
        durable = self._wait_durable(self.retained[0].end, timeout_s)
        while self.retained and self.retained[0].end <= durable:
            self.retained.popleft()

    def _close(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._put is not None:
                self._put.close()
                self._put = None
            self._factory.streams.pop(self, None)

    def _close_idle(self) -> None:
        # An error here meets the task's thread at its next step.
        with self._lock, suppress(DafkaError):
            self._wait_durable(self.end, self._factory.timeout_s)
            self._close()

    def _retry(self, step: Callable[[], object], deadline: Deadline) -> None:
        """Do a step at the store, and again after each loss of the store."""
        while True:
            try:
                step()
            except _LOST as error:
                self._reconnect(error, deadline)
                if deadline.is_over:
                    raise self._not_acknowledged(deadline) from error
            else:
                return

    def _reconnect(self, error: DafkaError, deadline: Deadline) -> None:
        """Continue at the picked store as soon as it is reachable.

        If the mesh gives it up, fail at once: Spark can try again at another store.
        """
        self._close()
        self._wait_turn(error, deadline)
        session, store = self._factory.session, self._factory.picked
        away = Deadline(timing.STORE_TIMEOUT_S)
        session.refresh()
        for client in session.clients_at(store, deadline):
            try:
                if client is not None and self._resume(client):
                    return
            except _LOST as lost:
                error = lost
                self._wait_turn(error, deadline)
            if away.is_over and session.has_given_up(store):
                error = StoreUnreachableError(store, "it alone had rows of the job, and is gone")
                deadline = away
                break
        raise self._not_acknowledged(deadline) from error

    def _resume(self, client: StoreClient) -> bool:
        """Stage the retained rows that the store lacks; return False if it has to catch up."""
        self._close()
        self._client = client
        (state,) = client.transaction_states([self._tp], timeout_s=timing.REQUEST_TIMEOUT_S)
        at = state.staged_end
        if state.attempt == self.attempt and self._first_retained <= at <= self.end:
            missing = [each for each in self.retained if each.end > at]
            self._send([each.between(max(at, each.offset), each.end) for each in missing])
            return True
        # Rows without an attempt come from another store and are replaced.
        is_taken = at > state.end and state.attempt and state.attempt not in self._attempts
        if is_taken or not self.is_whole:
            raise FencedError(*self._tp, self.attempt)
        moved = state.end - self.start
        if moved < 0:
            return False
        # All rows, as a new attempt: rows of the last one may still be on their way.
        self.attempt = _new_attempt()
        self._attempts.add(self.attempt)
        self.start, self.end = state.end, self.end + moved
        self.retained = deque(replace(each, offset=each.offset + moved) for each in self.retained)
        self._send([*self.retained])
        return True

    def _wait_turn(self, error: DafkaError, deadline: Deadline) -> None:
        """After a refusal by a busy store, pause; restart the deadline if it serves others."""
        if isinstance(error, StoreBusyError):
            self._waited_s = error.waited_s
            if error.moves:
                deadline.restart()
            deadline.pause()

    def _not_acknowledged(self, deadline: Deadline) -> NotAcknowledgedError:
        return NotAcknowledgedError(*self._tp, self.end - self.start, deadline.timeout_s)


def fence(
    tp: TopicPartition,
    states: Sequence[tuple[StoreClient, TransactionState]],
    picked: StoreClient,
    end: int,
) -> None:
    """Discard what earlier attempts have staged at other stores than the picked one.

    At the picked store, the first rows of the new attempt replace them.  A part of an older
    transaction, which does not begin at the partition's ``end``, stays: it cannot be joined with
    the new one, and the store that has all of it may be sending the rest.
    """
    timeout_s = timing.DISCARD_TIMEOUT_S
    for client, state in states:
        is_older = not state.attempt and state.end != end
        if client is picked or state.staged_end <= state.end or is_older:
            continue
        attempt = state.attempt or _new_attempt()
        with suppress(DafkaError):
            if not state.attempt:
                # A store that is lost has committed these rows.  They must not be joined with the
                # new ones, which have the same offsets, and perhaps another order.
                with client.put(tp, state.end, attempt=attempt, timeout_s=timeout_s) as put:
                    put.write(pa.array([b""], pa.binary()))
                    put.wait_durable(state.end + 1, timeout_s=timeout_s)
            client.discard([Discard(tp, attempt)], timeout_s=timeout_s)


def _new_attempt() -> str:
    return uuid.uuid4().hex.upper()
