"""The rows of one task on their way to a store's disk, where nobody sees them yet."""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dafka_core.errors import FencedError
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import RecordBatch, TopicPartition, TransactionState
from dafka_core.values import Values
from dafka_spark.cluster.deadline import Deadline
from dafka_spark.sink.stream_limit import Pausing, StreamLimit

RETAINED_BYTES: Final = 64 << 20
"""Values that are kept to be staged anew elsewhere if the host is lost; this bounds a task's
memory.  A transaction with more has to wait for its host."""


class StagedRows:
    """What a task stages at a host, attempt by attempt.

    Every call that talks to the host raises what ``PutStream`` does.

    Attributes:
        host: the store where the rows are staged; None before ``begin``.
        attempt: the one that stages them, new for each ``begin``.
        start, end: the offsets that the rows have, or will have.
        is_whole: whether all rows are retained, so that they can be staged elsewhere.
    """

    def __init__(
        self,
        tp: TopicPartition,
        version: int,
        streams: StreamLimit,
        owner: Pausing,
        *,
        timeout_s: float,
    ) -> None:
        self.host: StoreClient | None = None
        self.attempt = ""
        self.start = self.end = 0
        self.is_whole = True
        self._tp = tp
        self._version = version
        self._streams = streams
        self._owner = owner
        self._timeout_s = timeout_s
        self._retained: deque[RecordBatch] = deque()
        self._put: PutStream | None = None

    def append(self, values: pa.Array) -> RecordBatch:
        """Retains values, to be written next."""
        batch = RecordBatch(self._tp, self.end, Values.from_arrow(values))
        self._retained.append(batch)
        self.end = batch.end
        return batch

    def write(self, batch: RecordBatch) -> None:
        """Sends what was appended; opens the stream if it is closed."""
        if self._put is None:
            assert self.host is not None
            self._streams.enter(self._owner)
            self._put = self.host.put(
                self._tp,
                batch.offset,
                attempt=self.attempt,
                version=self._version,
                timeout_s=self._timeout_s,
            )
        self._put.write(batch.values.to_arrow())

    def wait_staged(self, deadline: Deadline) -> None:
        """Waits until all that was written is on the host's disk."""
        if self._put is not None:
            self._put.wait_durable(self.end, timeout_s=deadline.left_s)

    def has_too_much(self) -> bool:
        """Whether more is retained than may be."""
        retained = sum(batch.values.size_bytes for batch in self._retained)
        return retained > RETAINED_BYTES and len(self._retained) > 1

    def release(self, deadline: Deadline) -> None:
        """Retains no longer what is on the host's disk; waits until that is something."""
        self.is_whole = False
        staged_end = self.end
        if self._put is not None:
            end = self._retained[0].end
            staged_end = self._put.wait_durable(end, timeout_s=deadline.left_s)
        while self._retained and self._retained[0].end <= staged_end:
            self._retained.popleft()

    def begin(self, host: StoreClient, end: int) -> None:
        """Stages all rows at the partition's ``end``, as a new attempt.

        Not as the one before: what is still under way of that must not be taken for this one's.
        """
        moved = end - self.start
        self._retained = deque(
            replace(batch, offset=batch.offset + moved) for batch in self._retained
        )
        self.start, self.end = end, self.end + moved
        self.attempt = uuid.uuid4().hex.upper()
        self._stage_at(host)

    def resume(self, host: StoreClient, state: TransactionState) -> None:
        """Goes on at the same host: only that has the rows that are no longer retained.

        Raises:
            FencedError: the host has not what this attempt has staged there.
        """
        first = self._retained[0].offset if self._retained else self.end
        if state.attempt != self.attempt or not first <= state.staged_end <= self.end:
            raise FencedError(*self._tp, self.attempt)
        self._retained = deque(
            batch.between(max(state.staged_end, batch.offset), batch.end)
            for batch in self._retained
            if batch.end > state.staged_end
        )
        self._stage_at(host)

    def close(self) -> None:
        """Closes the stream, whatever has come of it; the retained rows stay."""
        if self._put is not None:
            self._put.close()
            self._put = None
        self._streams.leave(self._owner)

    def clear(self) -> None:
        """Lets go of the rows: they are committed."""
        self._retained.clear()

    def _stage_at(self, host: StoreClient) -> None:
        self.close()
        self.host = host
        for batch in self._retained:
            self.write(batch)
