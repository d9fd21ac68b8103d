"""The rows of one task on their way to a store's disk, where no reader sees them yet."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dafka_core.errors import DafkaError, FencedError
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import RecordBatch, TopicPartition, TransactionState
from dafka_core.model.values import Values
from dafka_spark.cluster.timing import Deadline

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
