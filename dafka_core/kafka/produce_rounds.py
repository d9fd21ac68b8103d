"""Rounds in which what Kafka's producers send is decoded and given to the store.

A small batch takes as long as one that is some times as large, be it to decode it, to have a thread
do that, or to write it.  So all that waits goes in one round, of whatever partitions it is, and
while one round is on its way to the disk the next one comes together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Final

from dafka_core.kafka.gateway_node import GatewayNode
from dafka_core.kafka.partition_writer import PartitionWriter, Put
from dafka_core.kafka.produced_records import ProducedRecords, produced_together
from dafka_core.kafka.producer_states import ProducerStates
from dafka_core.log_entries import Notes
from dafka_core.records import RecordBatch, TopicPartition

ROUND_BYTES: Final = 2 << 20
"""Octets of requests in a round: small ones share a sync, and larger ones would have others wait
for a thread."""

WRITE_BYTES: Final = 8 << 20
"""Octets of values in a round at most, unless one batch has more: compressed ones may become many
times as large."""

ROUND_PUTS: Final = 1_000
"""Of which each has a note or more with it."""

PATIENCE: Final = 0.5
"""Producers have some requests under way, and send the next ones when those are answered.  So what
comes first waits until as much has come as went in the round before, for this part of the time that
that took; then twice as much shares a sync, and who waits for it waits no longer than without."""

MAX_PATIENCE_S: Final = 0.005
"""So long after the round before nothing waits any more: a slow disk is no reason to."""

MAX_WAIT_S: Final = 0.05
"""A round waits no longer for the one before it: that may have much, or have a slow disk."""

MAX_THREADS: Final = 2
"""Rounds that are decoded at a time, of different partitions.  There is a second one for much that
waits; of little they would only take the processor from each other."""

MANY_WRITERS: Final = 100
"""When there are so many, and later twice as many as were left, those of deleted topics go."""

SETTLE_S: Final = 0.005
"""How often it is seen whether what is on its way to the disk has come there."""

_Round = list[tuple[PartitionWriter, list[Put]]]
_Errors = dict[Put, Exception]


class ProduceRounds:
    """Has puts written, each partition's in order.  It runs in the gateway's loop.

    Args:
        states: the idempotent producers, of all partitions.
    """

    def __init__(self, node: GatewayNode, states: ProducerStates) -> None:
        self._node = node
        self._states = states
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        self._most_writers = MANY_WRITERS
        self._waiting: dict[PartitionWriter, None] = {}  # in the order of their turns
        self._under_way: set[PartitionWriter] = set()
        self._threads = 0
        self._is_called = False
        self._count = 0  # of the puts in the last round
        self._expected = 0  # as many as wait when those come again that were in the last one
        self._began = self._ended = 0.0
        self._until: float | None = 0.0  # when the next one begins; None: nothing waits for it yet
        self._timer: asyncio.TimerHandle | None = None

    def put(self, put: Put) -> None:
        """Has a batch written after those before it of its partition."""
        writer = self._writers.get(put.tp)
        if writer is None:
            if len(self._writers) >= self._most_writers:
                self._forget_deleted()
            writer = PartitionWriter(self._node, put.tp, self._states, self._on_changed)
            self._writers[put.tp] = writer
        writer.put(put)

    def _forget_deleted(self) -> None:
        number = self._node.numbers.number
        self._writers = {
            tp: each
            for tp, each in self._writers.items()
            if not each.is_idle or number(tp) is not None
        }
        self._most_writers = max(MANY_WRITERS, 2 * len(self._writers))

    async def settle(self, topic: str) -> None:
        """Waits until nothing is on its way to the disk of a topic that was deleted.

        Of what waits still nothing is written: its numbers are gone.
        """
        while any(each.is_under_way for tp, each in self._writers.items() if tp.topic == topic):
            await asyncio.sleep(SETTLE_S)

    def _on_changed(self, writer: PartitionWriter) -> None:
        """Looks later whether a round begins: others may change in this round of the loop, too."""
        loop = asyncio.get_running_loop()
        if writer.is_under_way:
            self._under_way.add(writer)
        elif writer in self._under_way:
            self._under_way.remove(writer)
            self._ended, self._until = loop.time(), None
            self._expected = self._count + self._waiting_count
        if writer.is_ready:
            self._waiting[writer] = None
        if self._waiting and not self._is_called:
            self._is_called = True
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_called = False
        loop = asyncio.get_running_loop()
        if self._threads >= MAX_THREADS or not self._waiting:
            return
        if self._until is None:
            latest = self._ended + MAX_PATIENCE_S
            self._until = min(loop.time() + (self._ended - self._began) * PATIENCE, latest)
        is_under_way = bool(self._threads or self._under_way)
        is_enough = not is_under_way and self._waiting_count >= self._expected
        if is_enough or loop.time() >= self._until:
            self._start(self._take([*self._waiting]))
        elif is_under_way:
            self._start(self._take([each for each in self._waiting if each.has_much]))
        if self._waiting and (self._timer is None or self._timer.when() > self._until):
            self._end_timer()
            self._timer = loop.call_at(self._until, self._on_timer)

    @property
    def _waiting_count(self) -> int:
        return sum(writer.waiting_count for writer in self._waiting)

    def _on_timer(self) -> None:
        self._timer = None
        self._begin()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, writers: Sequence[PartitionWriter]) -> _Round:
        taken: _Round = []
        puts, size_bytes = ROUND_PUTS, ROUND_BYTES
        for writer in writers:
            if puts <= 0 or size_bytes <= 0:
                break
            del self._waiting[writer]
            group = writer.take(puts, size_bytes) if writer.is_ready else []
            if group:
                taken.append((writer, group))
                puts -= len(group)
                size_bytes -= sum(len(put.octets) for put in group)
        return taken

    def _start(self, taken: _Round) -> None:
        if not taken:
            return
        self._threads += 1
        loop = asyncio.get_running_loop()
        self._count, self._began = sum(len(group) for _, group in taken), loop.time()
        self._until = self._began + MAX_WAIT_S
        given = loop.run_in_executor(self._node.threads, self._write, taken, loop)
        given.add_done_callback(partial(self._on_given, taken))

    def _on_given(self, taken: _Round, given: asyncio.Future[int]) -> None:
        """So many puts are on their way to the disk; the others wait again."""
        self._threads -= 1
        count = 0 if given.cancelled() else given.result()
        for writer, group in taken:
            writer.give_back(group[count:], is_under_way=count > 0)
            count = max(0, count - len(group))

    # -- in a thread -----------------------------------------------------------------------------

    def _write(self, taken: _Round, loop: asyncio.AbstractEventLoop) -> int:
        puts = [put for _, group in taken for put in group]
        errors: _Errors = {}
        decoded = left = self._decode(puts, errors)
        begun: _Round = []
        for writer, group in taken:
            if left > 0:
                begun.append((writer, group[:left]))
            left -= len(group)
        placed = [writer.placed(group, errors) for writer, group in begun]
        given = iter(self._given([each for each in placed if each], begun, errors))
        done = [
            writer.is_written(next(given, None) if each else None)
            for (writer, _), each in zip(begun, placed, strict=True)
        ]
        self._when_done(done, begun, errors, loop)
        return decoded

    def _given(
        self, batches: Sequence[tuple[RecordBatch, Notes]], begun: _Round, errors: _Errors
    ) -> list[Future[int]]:
        try:
            return self._node.store.append_queue.put_all(batches)
        except Exception as error:  # noqa: BLE001 -- those who wait hear of it
            errors.update((put, error) for _, group in begun for put in group if put not in errors)
            return []

    def _when_done(
        self,
        done: Sequence[Future[int]],
        begun: _Round,
        errors: _Errors,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Tells the writers, once for all of them: to wake the loop is dear."""
        ended = count(1)

        def tell() -> None:
            for (writer, group), each in zip(begun, done, strict=True):
                writer.on_written(group, errors, each.exception())

        def on_each(each: Future[int]) -> None:
            if next(ended) == len(done):
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(tell)

        for each in done:
            each.add_done_callback(on_each)

    def _decode(self, puts: Sequence[Put], errors: _Errors) -> int:
        limit_bytes = self._node.store.append_queue.limit_bytes
        requests = [(put.octets, put.version) for put in puts]
        found = produced_together(requests, limit_bytes, WRITE_BYTES)
        for put, records in zip(puts, found, strict=False):
            if isinstance(records, ProducedRecords):
                put.records = records
            else:
                errors[put] = records
        return len(found)
