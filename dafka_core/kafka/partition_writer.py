"""Writes what Kafka's producers send to one partition: in order, each batch once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from dafka_core.errors import DafkaError, InvalidRequestError, OffsetConflictError
from dafka_core.kafka.gateway_node import GatewayNode
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.number_table import NumberedPartition
from dafka_core.kafka.produced_records import ProducedRecords, produced_records
from dafka_core.kafka.producer_states import ProducerKey, ProducerStates, WrittenBatch, notes_of
from dafka_core.kafka.refusal import RefusedError
from dafka_core.log_entries import Notes
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.timestamps import stamped_once
from dafka_core.values import Longs, Values

GROUP_BYTES: Final = 2 << 20
"""Octets of requests that are decoded and given to the disk together: small ones share a sync, and
larger ones would have others wait for a thread."""

WRITE_BYTES: Final = 8 << 20
"""Octets of values that are written together at most, unless one batch has more: compressed ones
may become many times as large."""

GROUP_PUTS: Final = 1_000
"""Of which each has a note or more with it."""

MAX_UNDER_WAY: Final = 8
"""Groups on their way to the disk: it has the next one when it has written one, and memory stays
bounded."""

MAX_TRIES: Final = 40
"""How often a batch is written again because somebody else has written to the partition."""

TRY_AGAIN_S: Final = 0.05


LAST_OFFSET: Final = 2**63

_log: Final = logging.getLogger("dafka.kafka")

_Number = tuple[str, int]
"""A topic, and the number of one of its partitions."""


class Written(NamedTuple):
    """A batch that is on disk, synced: its offsets."""

    offset: int
    end: int


@dataclass(slots=True, eq=False)
class Put:
    """A batch that is to be written, and who waits for it.

    ``octets`` are as a request of a ``version`` of Produce had them, for a numbered ``partition``;
    they are written to ``tp``.
    """

    partition: NumberedPartition
    tp: TopicPartition
    octets: memoryview
    version: int
    outcome: asyncio.Future[Written | RefusedError] = field(default_factory=asyncio.Future)
    tries: int = 0
    records: ProducedRecords | None = None
    written: Written | None = None

    def end(self, outcome: Written | RefusedError) -> None:
        """Says what has become of it, unless nobody waits any more."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class PartitionWriter:
    """One partition that this gateway's store hosts, whatever numbers are written there.

    Puts are written in the order of ``put``.  It runs in the gateway's loop; records are decoded,
    and given to the store, in a thread, one group at a time.

    Args:
        states: the idempotent producers, of all partitions.
        spawn: has a coroutine run as a task.
    """

    def __init__(
        self,
        node: GatewayNode,
        tp: TopicPartition,
        states: ProducerStates,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.tp = tp
        self._node = node
        self._states = states
        self._spawn = spawn
        self._waiting: deque[Put] = deque()
        self._again: list[Put] = []
        self._runs = False
        self._under_way = 0
        self._has_failed = False
        self._settled = asyncio.Event()
        # What follows is only used by the thread, or while none is at work.
        self._next: int | None = None  # the offset of the next record; None: ask the log
        self._used: set[_Number] = set()  # what idempotent producers have written to
        self._stale: set[_Number] = set()  # of which the log knows better
        self._last = _done()

    def put(self, put: Put) -> None:
        """Has a batch written after those before it."""
        self._waiting.append(put)
        if not self._runs:
            self._runs = True
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting or self._under_way or self._has_failed:
                if self._has_failed or not self._waiting or self._under_way >= MAX_UNDER_WAY:
                    await self._settle_one()
                    continue
                group = self._take_group()
                if group:
                    self._under_way += 1
                    loop = asyncio.get_running_loop()
                    count = await self._node.in_thread(self._write, group, loop)
                    self._waiting.extendleft(reversed(group[count:]))
        finally:
            self._runs = False

    async def _settle_one(self) -> None:
        """Waits for a group that is under way; after the last one, what has failed begins anew."""
        if self._under_way:
            self._settled.clear()
            await self._settled.wait()
        if self._has_failed and not self._under_way:
            again, self._again, self._has_failed = self._again, [], False
            self._next, self._last = None, _done()
            self._stale |= self._used
            self._waiting.extendleft(reversed(again))
            if any(put.tries > 1 for put in again):
                await asyncio.sleep(TRY_AGAIN_S)

    def _take_group(self) -> list[Put]:
        """The next puts for which somebody waits still."""
        group: list[Put] = []
        size_bytes = 0
        while self._waiting and size_bytes < GROUP_BYTES and len(group) < GROUP_PUTS:
            put = self._waiting.popleft()
            if not put.outcome.done():
                group.append(put)
                size_bytes += len(put.octets)
        return group

    # -- in a thread -----------------------------------------------------------------------------

    def _write(self, waiting: Sequence[Put], loop: asyncio.AbstractEventLoop) -> int:
        """Gives the first puts to the store, and returns how many they are.

        ``_on_written`` is called in the loop when they are done.
        """
        errors: dict[Put, Exception] = {}
        group = self._decoded(waiting, errors)
        try:
            with self._states.lock:
                batch, notes = self._placed(group, errors)
            if batch is not None:
                self._last = self._node.store.append_queue.put(batch, notes)
        except Exception as error:  # noqa: BLE001 -- those who wait hear of it
            errors.update((put, error) for put in group if put not in errors)

        def on_done(done: Future[int]) -> None:
            failure = done.exception()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._on_written, group, errors, failure)

        self._last.add_done_callback(on_done)
        return len(group)

    def _decoded(self, waiting: Sequence[Put], errors: dict[Put, Exception]) -> Sequence[Put]:
        """The first puts, with their records: as many as are written together."""
        limit_bytes = self._node.store.append_queue.limit_bytes
        size_bytes = 0
        for count, put in enumerate(waiting, 1):
            try:
                put.records = produced_records(put.octets, put.version, limit_bytes)
                size_bytes += put.records.contents.size_bytes
            except RefusedError as error:
                errors[put] = error
            except Exception as error:  # noqa: BLE001 -- a defect concerns this put alone
                _log.exception("Kafka: records for %s cannot be decoded", self.tp)
                errors[put] = RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, repr(error))
            if size_bytes >= WRITE_BYTES:
                return waiting[:count]
        return waiting

    def _placed(
        self, group: Sequence[Put], errors: dict[Put, Exception]
    ) -> tuple[RecordBatch | None, Notes]:
        """The records of the group that are not written yet, and what is noted with them."""
        log = self._node.store.log
        start = log.end(self.tp) if self._next is None else self._next
        self._next = start
        now_us, notes, parts = log.now_us(), dict[str, bytes | None](), list[ProducedRecords]()
        for put in group:
            records = put.records
            if records is None or put in errors:
                continue
            end = self._next + len(records.contents)
            if records.sequenced is not None:
                self._refresh(put.partition, start)
                key = ProducerKey(put.partition.topic, put.partition.number, records.producer_id)
                now_ms = now_us // 1000
                verdict = self._states.verdict(key, records.sequenced, now_ms)
                if isinstance(verdict, WrittenBatch):
                    put.written = Written(verdict.offset, verdict.end)
                    continue
                if verdict is not None:
                    errors[put] = RefusedError(verdict, _why(verdict, records))
                    continue
                notes |= self._states.append(key, records.sequenced, self._next, now_ms)
            put.written = Written(self._next, end)
            parts.append(records)
            self._next = end
        if not parts:
            return None, notes
        values = Values.concat([each.contents for each in parts])
        return RecordBatch(self.tp, start, values, times=_times(parts, now_us)), notes

    def _refresh(self, partition: NumberedPartition, end: int) -> None:
        """Has the states of a partition's producers be what the log has, if they may not be."""
        number = (partition.topic, partition.number)
        self._used.add(number)
        if number in self._stale:
            self._stale.remove(number)
            notes = self._node.store.log.notes(notes_of(*number))
            self._states.reset(*number, end if partition.tp == self.tp else LAST_OFFSET, notes)

    # -- in the loop -----------------------------------------------------------------------------

    def _on_written(
        self,
        group: Sequence[Put],
        errors: dict[Put, Exception],
        failure: BaseException | None,
    ) -> None:
        self._under_way -= 1
        self._settled.set()
        for put in group:
            error = errors.get(put, failure)
            if error is None and put.written is not None:
                put.end(put.written)
                continue
            # What was to follow is not written either.
            self._has_failed = self._has_failed or not isinstance(error, RefusedError)
            elsewhere = isinstance(error, OffsetConflictError | InvalidRequestError)
            if elsewhere and put.tries < MAX_TRIES:
                # Somebody else has written there, or a store that takes less has come.
                put.tries, put.written = put.tries + 1, None
                self._again.append(put)
            else:
                put.end(_refusal(error))


def _done() -> Future[int]:
    done: Future[int] = Future()
    done.set_result(0)
    return done


def _times(parts: Sequence[ProducedRecords], now_us: int) -> Longs:
    """The times of all parts; of records without one it is now."""
    times = [
        stamped_once(len(each.contents), now_us) if each.times is None else each.times
        for each in parts
    ]
    return np.concatenate(times)


def _why(error: KafkaError, records: ProducedRecords) -> str:
    assert records.sequenced is not None
    epoch, first, _ = records.sequenced
    return (
        f"{error.name.lower().replace('_', ' ')}: sequence {first} of epoch {epoch}, "
        f"producer {records.producer_id}"
    )


def _refusal(error: BaseException | None) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OffsetConflictError | InvalidRequestError):
        return RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, str(error))
    if isinstance(error, DafkaError):
        return RefusedError(KafkaError.KAFKA_STORAGE_ERROR, str(error))
    return RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, repr(error))
