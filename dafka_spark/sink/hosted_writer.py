"""Writing a partition straight into a store that hosts it, as blocks over Arrow Flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.errors import (
    NotAcknowledgedError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition
from dafka_spark.cluster.acknowledgements import (
    LOOK_AGAIN_S,
    SILENT_S,
    AckGoal,
    remaining_s,
    wait_for_acks,
)
from dafka_spark.cluster.store_registry import StoreRegistry, ask_all_stores
from dafka_spark.sink.row_buffer import BLOCK_BYTES, BLOCK_ROWS, RowBuffer, Sent

RETAINED_BYTES: Final = 64 << 20
"""Values that are sent and not known to be on disk.  They are kept, to be put elsewhere if the
host is lost, so this bounds a task's memory; it is enough for the disk never to wait."""


class HostCandidate(NamedTuple):
    """A store that can host a partition, and where the partition ends there."""

    host: StoreClient
    end: int


def furthest(candidates: Sequence[HostCandidate], address: str) -> HostCandidate:
    """The one that has most of a partition; the same one each time if they are equal."""
    ranked = sorted(candidates, key=lambda candidate: candidate.host.location.store)
    first = int(address[:8], 16) % len(ranked)
    return max(ranked[first:] + ranked[:first], key=lambda candidate: candidate.end)


class HostedWriter:
    """Appends to one partition at the store that has most of it.

    Args:
        known: the stores that are there.
        hosts: finds them anew, when they fail; closed with the publisher.
        acks: how many of them must have everything on disk when ``flush`` returns.
        timeout_s: the longest wait for a host.

    Raises:
        StoreUnreachableError: none of them answers.
    """

    def __init__(
        self,
        tp: TopicPartition,
        known: Sequence[StoreClient],
        hosts: StoreRegistry,
        *,
        acks: int,
        timeout_s: float,
    ) -> None:
        self._tp = tp
        self.address = tp.partition
        self._hosts = hosts
        self._acks = acks
        self._timeout_s = timeout_s
        self._blocks = RowBuffer()
        self._retained: deque[Sent] = deque()
        self._retained_bytes = 0
        heard = ask_all_stores(hosts, known, self._end_at, time.monotonic() + SILENT_S)
        self._known: Sequence[StoreClient] = [host for host, _ in heard]
        best = furthest([HostCandidate(host, end) for host, end in heard], tp.partition)
        self._host = best.host
        self._began = self._sent_end = best.end
        self._put = self._open(best.end)

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._sent_end + self._blocks.rows

    def publish_many(self, values: pa.Array) -> int:
        """Takes binary or string values without nulls and gives the first one's offset."""
        first = self.next_offset
        for block in self._blocks.add(values):
            self._send(block)
        return first

    def flush(self, timeout_s: float) -> None:
        """Waits until everything is on the disks of ``acks`` stores.

        Raises:
            NotAcknowledgedError: it is not within ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        for block in self._blocks.rest():
            self._send(block)
        while self._retained:
            self._guarded(lambda: self._wait(self._sent_end, deadline), deadline)
            if self._retained and time.monotonic() >= deadline:
                raise self._not_acknowledged(timeout_s)
        wait_for_acks(
            AckGoal(self._tp, self._began, self._sent_end),
            self._hosts,
            self._known,
            acks=self._acks,
            have={self._host.location.store},
            deadline=deadline,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._put.close()
        self._hosts.close()

    def _send(self, values: pa.Array) -> None:
        sent = Sent(self._sent_end, values)
        self._retained.append(sent)
        self._retained_bytes += values.nbytes
        self._sent_end += len(values)
        deadline = time.monotonic() + self._timeout_s
        self._guarded(lambda: self._put_one(values), deadline)
        while self._retained_bytes > RETAINED_BYTES and len(self._retained) > 1:
            if time.monotonic() >= deadline:
                raise self._not_acknowledged(self._timeout_s)
            self._guarded(lambda: self._wait(self._retained[0].end, deadline), deadline)

    def _put_one(self, values: pa.Array) -> None:
        self._put.write(values)
        self._release(self._put.durable)

    def _wait(self, end: int, deadline: float) -> None:
        self._release(self._put.wait_durable(end, timeout_s=remaining_s(deadline)))

    def _guarded(self, work: Callable[[], None], deadline: float) -> None:
        """Does some work at the host; goes on elsewhere when it is lost.

        A partition that ends elsewhere than expected has been written to by another attempt of
        this task.  What is not acknowledged follows it: at least once.
        """
        try:
            work()
        except StoreUnreachableError:
            self._move(deadline)
        except OffsetConflictError as conflict:
            self._put.close()
            try:
                self._host.wait(
                    self._tp,
                    conflict.end,
                    timeout_s=remaining_s(deadline),
                )
                self._go_on(self._host, conflict.end)
            except StoreUnreachableError:
                self._move(deadline)

    def _release(self, durable: int) -> None:
        while self._retained and self._retained[0].end <= durable:
            self._retained_bytes -= self._retained.popleft().values.nbytes

    def _move(self, deadline: float) -> None:
        """Goes on at another host, or the same one started again, from what is on its disk.

        Raises:
            StoreUnreachableError: there is none until the deadline.
            NotAcknowledgedError: none has all that was acknowledged before.
        """
        self._put.close()
        while True:
            try:
                self._known = self._hosts.anew()
                best = self._best()
                if self._retained and best.end >= self._retained[0].offset:
                    self._go_on(best.host, best.end)
                    return
            except StoreUnreachableError:
                if time.monotonic() >= deadline:
                    raise
            if time.monotonic() >= deadline:
                raise self._not_acknowledged(self._timeout_s)
            time.sleep(LOOK_AGAIN_S)

    def _not_acknowledged(self, waited_s: float) -> NotAcknowledgedError:
        count = self._sent_end - self._retained[0].offset
        return NotAcknowledgedError(*self._tp, count, waited_s)

    def _go_on(self, host: StoreClient, end: int) -> None:
        """Puts what is not acknowledged at a host where the partition ends at ``end``.

        But not again what the host has of it.
        """
        stored = self._stored(host, end)
        rest, offset = deque[Sent](), end
        for sent in self._retained:
            missing = sent.values.slice(max(stored - sent.offset, 0))
            if len(missing):
                rest.append(Sent(offset, missing))
                offset = rest[-1].end
        self._host, self._retained, self._sent_end = host, rest, offset
        self._retained_bytes = sum(sent.values.nbytes for sent in rest)
        self._put = self._open(end)
        for sent in rest:
            self._put.write(sent.values)

    def _stored(self, host: StoreClient, end: int) -> int:
        """Up to which offset a host has what was sent; others may have written there, too."""
        if not self._retained or end <= self._retained[0].offset:
            return end
        at = self._retained[0].offset
        sent = pa.concat_arrays([sent.values for sent in self._retained])
        start = at
        for found in host.read(
            self._tp,
            start,
            min(end, start + len(sent)),
            times=False,
            max_records=BLOCK_ROWS,
            max_bytes=BLOCK_BYTES,
            timeout_s=self._timeout_s,
        ):
            same = pc.equal(found.values.to_arrow(), sent.slice(at - start, found.count))
            first_other = pc.index(same, False).as_py()
            if first_other >= 0:
                return at + int(first_other)
            at = found.end
        return at

    def _open(self, start: int) -> PutStream:
        return self._host.put(self._tp, start, timeout_s=self._timeout_s)

    def _best(self) -> HostCandidate:
        """The host that has most of the partition; the same one each time if they are equal."""
        candidates, failure = [], None
        for host in self._known:
            try:
                candidates.append(HostCandidate(host, self._end_at(host)))
            except StoreUnreachableError as error:
                failure = error
        if not candidates:
            raise failure or StoreUnreachableError("", "no store is known that can host partitions")
        return furthest(candidates, self.address)

    def _end_at(self, host: StoreClient) -> int:
        infos = host.heads([self._tp.topic], timeout_s=self._timeout_s)
        return next((info.end for info in infos if info.partition == self.address), 0)
