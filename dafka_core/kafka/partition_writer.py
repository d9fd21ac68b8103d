"""Writes what Kafka's producers send to one partition: in order, each batch once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dafka_core.errors import DafkaError, InvalidRequestError, OffsetConflictError
from dafka_core.kafka.gateway_node import GatewayNode
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.number_table import NumberedPartition
from dafka_core.kafka.produced_records import ProducedRecords, joined
from dafka_core.kafka.producer_states import ProducerKey, ProducerStates, WrittenBatch, notes_of
from dafka_core.kafka.refusal import RefusedError
from dafka_core.limit_options import StoreLimitError
from dafka_core.log_entries import Notes
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.timestamps import MAX_AHEAD_US

MUCH_BYTES: Final = 1 << 20
"""Octets of requests that wait: so many need not wait for others to share a sync with."""

MAX_UNDER_WAY: Final = 8
"""Groups on their way to the disk where much waits: it has the next one when it has written one,
and memory stays bounded."""

MAX_TRIES: Final = 40
"""How often a batch is written again because somebody else has written to the partition."""

TRY_AGAIN_S: Final = 0.05


MAX_AHEAD_MS: Final = MAX_AHEAD_US // 1000
"""Kafka's ``message.timestamp.after.max.ms``: the store would keep its own time for a later one."""

LAST_OFFSET: Final = 2**63


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

    Puts are written in the order of ``put``.  ``ProduceRounds`` takes groups of them in the
    gateway's loop, and gives them to the store in a thread, one group at a time.

    Args:
        states: the idempotent producers, of all partitions.
        on_changed: called in the loop when there may be a group to take.
    """

    def __init__(
        self,
        node: GatewayNode,
        tp: TopicPartition,
        states: ProducerStates,
        on_changed: Callable[[PartitionWriter], None],
    ) -> None:
        self.tp = tp
        self._node = node
        self._states = states
        self._on_changed = on_changed
        self._waiting: deque[Put] = deque()
        self._waiting_bytes = 0
        self._again: list[Put] = []
        self._is_taken = False
        self._under_way = 0
        self._has_failed = False
        # What follows is only used by the thread, or while none is at work.
        self._next: int | None = None  # the offset of the next record; None: ask the log
        self._used: set[NumberedPartition] = set()  # what idempotent producers have written to
        self._stale: set[NumberedPartition] = set()  # of which the log knows better
        self._last = _done()

    # -- in the loop -----------------------------------------------------------------------------

    def put(self, put: Put) -> None:
        """Has a batch written after those before it."""
        self._waiting.append(put)
        self._waiting_bytes += len(put.octets)
        self._on_changed(self)

    @property
    def is_ready(self) -> bool:
        """Whether there is a group to take."""
        is_free = not (self._is_taken or self._has_failed) and self._under_way < MAX_UNDER_WAY
        return is_free and bool(self._waiting)

    @property
    def waiting_count(self) -> int:
        """How many puts wait."""
        return len(self._waiting)

    @property
    def is_under_way(self) -> bool:
        """Whether a group is on its way to the disk."""
        return self._under_way > 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing of it that is not done."""
        return not (self._waiting or self._again or self._under_way or self._has_failed)

    @property
    def has_much(self) -> bool:
        """Whether much waits."""
        return self._waiting_bytes >= MUCH_BYTES

    def take(self, max_puts: int, max_bytes: int) -> list[Put]:
        """The next puts for which somebody waits still; ``give_back`` has to follow.

        They have more octets than ``max_bytes`` by one put at most.
        """
        group: list[Put] = []
        size_bytes = 0
        while self._waiting and size_bytes < max_bytes and len(group) < max_puts:
            put = self._waiting.popleft()
            self._waiting_bytes -= len(put.octets)
            if not put.outcome.done():
                group.append(put)
                size_bytes += len(put.octets)
        self._is_taken = bool(group)
        self._under_way += self._is_taken
        return group

    def give_back(self, rest: Sequence[Put], *, is_under_way: bool) -> None:
        """The thread is done with what was taken, of which the rest has to wait again.

        Unless some of it ``is_under_way``, nothing more is heard of this group.
        """
        self._is_taken = False
        self._put_back(rest)
        self._under_way -= not is_under_way
        self._settle()

    def on_written(
        self,
        group: Sequence[Put],
        errors: Mapping[Put, Exception],
        failure: BaseException | None,
    ) -> None:
        """A group is done; those that have no error and no ``failure`` are on disk."""
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
        self._under_way -= 1
        self._settle()

    def _settle(self) -> None:
        if self._has_failed and not self._under_way and not self._is_taken:
            is_again = any(put.tries > 1 for put in self._again)
            asyncio.get_running_loop().call_later(TRY_AGAIN_S if is_again else 0, self._begin_anew)
        self._on_changed(self)

    def _begin_anew(self) -> None:
        again, self._again, self._has_failed = self._again, [], False
        self._next, self._last = None, _done()
        self._stale |= self._used
        self._put_back(again)
        self._on_changed(self)

    def _put_back(self, puts: Sequence[Put]) -> None:
        self._waiting.extendleft(reversed(puts))
        self._waiting_bytes += sum(len(put.octets) for put in puts)

    # -- in a thread -----------------------------------------------------------------------------

    def placed(
        self, group: Sequence[Put], errors: dict[Put, Exception]
    ) -> tuple[RecordBatch, Notes] | None:
        """What the store is to write of puts whose records are decoded, or that have errors."""
        try:
            with self._states.lock:
                return self._placed(group, errors)
        except Exception as error:  # noqa: BLE001 -- those who wait hear of it
            errors.update((put, error) for put in group if put not in errors)
            return None

    def is_written(self, given: Future[int] | None) -> Future[int]:
        """What says when a group is done of which this was given to the store.

        Of one with nothing to write that is when what came before it is done.
        """
        self._last = given or self._last
        return self._last

    def _placed(
        self, group: Sequence[Put], errors: dict[Put, Exception]
    ) -> tuple[RecordBatch, Notes] | None:
        """The records of the group that are not written yet, and what is noted with them."""
        log = self._node.store.log
        start = log.end(self.tp) if self._next is None else self._next
        self._next = start
        if self._node.numbers.number(self.tp) is None:
            why = f"topic {self.tp.topic!r} was deleted"
            gone = RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, why)
            errors.update((put, gone) for put in group if put not in errors)
            return None
        now_ms, latest_ms = log.now_us() // 1000, log.latest_us() // 1000
        age_ms = 0 if log.clock.doubt() else now_ms  # producers are forgotten by age
        notes: dict[str, bytes | None] = {}
        parts: list[ProducedRecords] = []
        for put in group:
            records = put.records
            if records is None or put in errors:
                continue
            if records.latest_ms > latest_ms:
                ahead_s = (records.latest_ms - now_ms) // 1000
                why = f"a record is of a time {ahead_s} s ahead of the store's clock"
                errors[put] = RefusedError(KafkaError.INVALID_TIMESTAMP, why)
                continue
            end = self._next + records.record_count
            if records.sequenced is not None:
                self._refresh(put.partition, start)
                name = self._name(put.partition)
                key = ProducerKey(put.partition.topic, name, records.producer_id)
                verdict = self._states.verdict(key, records.sequenced, age_ms)
                if isinstance(verdict, WrittenBatch):
                    put.written = Written(verdict.offset, verdict.end)
                    continue
                if verdict is not None:
                    errors[put] = RefusedError(verdict, _why(verdict, records))
                    continue
                notes |= self._states.append(key, records.sequenced, self._next, now_ms, age_ms)
            put.written = Written(self._next, end)
            parts.append(records)
            self._next = end
        if not parts:
            return None
        contents, times = joined(parts)
        return RecordBatch(self.tp, start, contents, times=times), notes

    def _refresh(self, partition: NumberedPartition, end: int) -> None:
        """Has the states of a partition's producers be what the log has, if they may not be."""
        self._used.add(partition)
        if partition in self._stale:
            self._stale.remove(partition)
            end = end if partition.hosted else LAST_OFFSET
            name = self._name(partition)
            notes = self._node.store.log.notes(notes_of(partition.topic, name))
            self._states.reset(partition.topic, name, end, notes)

    def _name(self, partition: NumberedPartition) -> str:
        if partition.hosted:
            return partition.address
        # A Dafka producer may go on with its partition, which has a number again then.
        return f"{partition.number}.{self._node.numbers.ended(partition.tp)}"


def _done() -> Future[int]:
    done: Future[int] = Future()
    done.set_result(0)
    return done


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
    if isinstance(error, StoreLimitError):
        return RefusedError(KafkaError.POLICY_VIOLATION, str(error))
    if isinstance(error, DafkaError):
        return RefusedError(KafkaError.KAFKA_STORAGE_ERROR, str(error))
    return RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, repr(error))
