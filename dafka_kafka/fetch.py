"""Fetch: records of many partitions, as soon as enough of them exist."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dafka_core.errors import StoreError
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, coalesce
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.storage.environment import HeadChanges
from dafka_kafka.api import Answer, Api, Client, Feature, on_topics, serves
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.records.formats import MAGIC_V0, MAGIC_V1, encode_message_set, encode_record_batch
from dafka_kafka.users import Operation


class Wait:
    """A waiting Fetch; ``changed`` are the partitions changed since it last read them."""

    def __init__(self) -> None:
        self.changed: set[TopicPartition] = set()
        self.woken = asyncio.Event()

    def take(self) -> set[TopicPartition]:
        """Return the changed partitions, and start a new set."""
        taken, self.changed = self.changed, set()
        self.woken.clear()
        return taken


class LogWatch:
    """Wakes waiting Fetches when one of their partitions was written or trimmed.

    Runs in the event loop in which it was made, except ``set``, which the log's writer calls.
    """

    def __init__(self, changes: HeadChanges) -> None:
        self._loop = asyncio.get_running_loop()
        self._changes = changes
        self._number = changes.number
        self._is_due = False
        self._waits: dict[TopicPartition, set[Wait]] = {}
        self._watching = contextlib.ExitStack()
        self._watching.enter_context(changes.waking(self, self._number, None))

    @contextlib.contextmanager
    def waiting(self, partitions: Collection[TopicPartition]) -> Iterator[Wait]:
        """Register for changes of partitions; read the partitions after this, not before."""
        wait = Wait()
        for tp in partitions:
            self._waits.setdefault(tp, set()).add(wait)
        try:
            yield wait
        finally:
            for tp in partitions:
                # A partition may be named twice.
                waits = self._waits.get(tp, set())
                waits.discard(wait)
                if not waits:
                    self._waits.pop(tp, None)

    def set(self) -> None:
        """Note a change; called in the log writer's thread, which must not wait."""
        if not self._is_due:
            self._is_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended before the log
                self._loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        """Unsubscribe from the log."""
        self._watching.close()

    def note(self, changed: Collection[TopicPartition]) -> None:
        """Note that other stores have more of these partitions; any thread may call it."""
        if not self._waits.keys().isdisjoint(changed):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake, tuple(changed))

    def _look(self) -> None:
        self._is_due = False  # first, so that changes during the read are read again
        since, self._number = self._number, self._changes.number
        changed = self._changes.since(since, None)
        self._wake(self._waits if changed is None else changed)

    def _wake(self, changed: Iterable[TopicPartition]) -> None:
        for tp in changed:
            for wait in self._waits.get(tp, ()):
                wait.changed.add(tp)
                wait.woken.set()


# The size of a Fetch response, limited in total and by partition.
#
# As in Kafka, partitions take their share in the client's order, and the first one with records
# returns at least one of them, whatever its size: otherwise the client would ask for it for ever.
# Sizes are estimated from above, so that a response stays below the client's limit (librdkafka
# closes a connection that exceeds it).


MAX_FETCH_BYTES: Final = 55 << 20
"""Limit of one response, whatever the client asks for: the default of Kafka's brokers."""

RECORD_BYTES: Final = 36  # largest overhead of a record: lengths, time and offset, in any format
BATCH_BYTES: Final = 64  # overhead of a record batch

LEAST_BATCH_BYTES: Final = 16 << 10
"""Size up to which the first partition returns records, whatever the client's limits: a broker
returns a whole batch, and this is the default size of a batch of Java's producers."""

LEAST_RECORD_BYTES: Final = 7  # size of a record without key, value and headers


class FetchLimits:
    """The room in one response; ``taken`` is the size of its records so far."""

    def __init__(self, max_bytes: int) -> None:
        self.taken = 0
        self._max_bytes = max_bytes

    def room(self, partition_max_bytes: int) -> int:
        """Return the bytes that a partition may use; 0 if it returns no record."""
        room = min(partition_max_bytes, self._max_bytes - self.taken)
        return max(room, 0 if self.taken else LEAST_BATCH_BYTES)

    def fitting(self, values: Values, room: int) -> int:
        """Return how many of the records fit: at least one in an empty response."""
        ends, _ = values.columns()
        sizes = ends + np.arange(len(ends)) * RECORD_BYTES
        count = int(sizes.searchsorted(room - BATCH_BYTES, side="right")) - 1
        return max(count, 0 if self.taken else 1)

    def take(self, octets: int) -> None:
        """Add bytes to the response."""
        self.taken += octets


def most_records(room: int) -> int:
    """Return how many records could fit if all were empty."""
    return room // LEAST_RECORD_BYTES + 1


# Offsets beyond the end: this store is behind other stores, or the offset does not exist.
#
# A client that has read from another gateway may know offsets that this store does not have yet.
# OFFSET_OUT_OF_RANGE would make it restart at its ``auto.offset.reset``, and read records twice
# or never. So for a while the partition is just empty.


LAG_S: Final = 30.0
"""Time after which an offset beyond the end is out of range: connected stores copy records from
each other within seconds."""

MAX_KEPT: Final = 10_000  # offsets remembered; beyond that the oldest one is forgotten


class BeyondEnd:
    """Remembers since when offsets beyond the end have been requested; thread-safe."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._since = OrderedDict[tuple[TopicPartition, int], float]()

    def may_come(self, tp: TopicPartition, offset: int) -> bool:
        """Return whether another store may have the record before this offset."""
        if not self._log.met():
            return False
        now = self._clock()
        with self._lock:
            since = self._since.setdefault((tp, offset), now)
            if now - since > 2 * LAG_S:  # an entry of an earlier client
                self._since[tp, offset] = since = now
            if len(self._since) > MAX_KEPT:
                self._since.popitem(last=False)
        return now - since < LAG_S


NO_EPOCH: Final = -1  # an unknown leader epoch, the only one that gateways return

UNKNOWN_EPOCH: Final = 0
"""Sent by librdkafka in place of ``NO_EPOCH``, to brokers with Metadata 9 and later."""

_READ: Final = on_topics(Operation.READ)
_log: Final = logging.getLogger("dafka.kafka")


def readable(
    node: GatewayNode, topic: str, number: int, leader_epoch: int = NO_EPOCH
) -> TopicPartition | KafkaError:
    """Return the partition with this number in a topic, or why it can't be read here.

    ``leader_epoch`` is the client's, or ``NO_EPOCH``.
    """
    partition = node.registry.table.get(topic, number)
    if partition is None:
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    own = node.gateways.own.address
    # The common case; a client may ask for hundreds of partitions.
    leader = node.gateways.leader_of(partition.gateway) or partition.gateway
    if leader != own and node.gateways.leader(partition).address != own:
        return KafkaError.NOT_LEADER_OR_FOLLOWER
    if leader_epoch > UNKNOWN_EPOCH:
        # The client's epoch comes from another cluster.
        return KafkaError.UNKNOWN_LEADER_EPOCH
    return partition.tp


def say_damaged(damage: StoreError) -> KafkaError:
    """Log damage found in the log; return the error for the client."""
    _log.error("a Kafka client got a storage error: %s", damage)
    return KafkaError.KAFKA_STORAGE_ERROR


MAX_BATCH_RECORDS: Final = 8_192
MAX_BATCH_BYTES: Final = 1 << 20
"""Values in one record batch, unless it is a single record. Clients buffer a whole batch to check
its CRC, and a batch of this size stays in the CPU cache while it is made."""

FEW_CHANGED: Final = 8  # partitions with bounds that are read without a thread

Encode = Callable[[RecordBatch], bytes]


@dataclass(slots=True)
class WantedRecords:
    """The records a client wants of one partition, from ``offset`` on, and the result.

    ``tp`` is None for an error. ``earliest`` is the partition's, and ``end`` its high watermark,
    or -1 while that is unknown. ``counted`` estimates the bytes up to offset ``counted_end``.
    """

    tp: TopicPartition | None
    number: int
    offset: int
    max_bytes: int
    error: KafkaError = KafkaError.NONE
    earliest: int = -1
    end: int = -1
    records: bytes = b""
    counted: int = 0
    counted_end: int = 0

    @property
    def is_waiting(self) -> bool:
        """True if it has records to read."""
        return not self.error and self.offset < self.end

    def fail(self, error: KafkaError) -> None:
        """Set an error in place of records."""
        self.error, self.earliest, self.end = error, -1, -1

    @property
    def answer(self) -> Answer:
        """The partition's response."""
        return {
            "partition_index": self.number,
            "error_code": self.error,
            "high_watermark": self.end,
            "last_stable_offset": self.end,
            "log_start_offset": self.earliest,
            "aborted_transactions": None if self.tp else [],
            "records": self.records,
        }


Watermark = Callable[[TopicPartition, int], int | None]
"""Returns the high watermark of a partition that has this end here (``GatewayNode.watermark``)."""


class LogReading:
    """Reads the records of one Fetch, in one thread at a time."""

    def __init__(
        self,
        log: Log,
        beyond_end: BeyondEnd,
        watermark: Watermark,
        wanted: Sequence[WantedRecords],
        *,
        min_bytes: int,
        max_bytes: int,
    ) -> None:
        self._log = log
        self._beyond_end = beyond_end
        self._watermark = watermark
        self._max_bytes = min(max_bytes, MAX_FETCH_BYTES)
        self._min_bytes = min(min_bytes, self._max_bytes)
        self._wanted = wanted
        self._by_tp: dict[TopicPartition, list[WantedRecords]] = {}
        for each in wanted:
            if each.tp is not None:
                self._by_tp.setdefault(each.tp, []).append(each)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions it reads."""
        return self._by_tp.keys()

    def is_quick(self, changed: Collection[TopicPartition]) -> bool:
        """Return True if ``look`` takes less time than a thread takes to start."""
        return len(changed) <= FEW_CHANGED and self._min_bytes <= 1

    def look(self, changed: Iterable[TopicPartition] | None = None) -> bool:
        """Return whether to answer now: ``min_bytes`` exist, or there is an error.

        Reads the bounds of ``changed`` partitions, or of all.
        """
        with self._log.snapshot() as snapshot:
            for tp in self._by_tp if changed is None else changed:
                held = snapshot.info(tp) or PartitionInfo(*tp, 0, 0)
                for each in self._by_tp[tp]:
                    self._place(each, held)
        if self._min_bytes <= 0 or any(each.error for each in self._wanted):
            return True
        if self._min_bytes == 1:
            return any(each.is_waiting for each in self._wanted)
        return sum(map(self._waiting_bytes, self._wanted)) >= self._min_bytes

    @property
    def most_bytes(self) -> int:
        """The most bytes that are read, unless it is a single record."""
        return min(self._max_bytes, sum(each.max_bytes for each in self._wanted if each.is_waiting))

    def read(self, encode: Encode, most_bytes: int) -> None:
        """Read and encode the records of all partitions, in order, up to the limits.

        ``most_bytes`` is one of the limits.
        """
        limits = FetchLimits(min(self._max_bytes, most_bytes))
        for each in self._wanted:
            if each.is_waiting and (room := limits.room(each.max_bytes)):
                try:
                    each.records = b"".join(self._read(each, room, encode, limits))
                except StoreError as damage:
                    each.fail(say_damaged(damage))

    def _place(self, wanted: WantedRecords, held: PartitionInfo) -> None:
        if wanted.error:
            return
        end = self._watermark(held.tp, held.end)
        wanted.earliest = held.earliest
        wanted.end = -1 if end is None else max(end, held.earliest)
        if wanted.offset < held.earliest or (
            wanted.offset > held.end and not self._beyond_end.may_come(held.tp, wanted.offset)
        ):
            wanted.fail(KafkaError.OFFSET_OUT_OF_RANGE)

    def _waiting_bytes(self, wanted: WantedRecords) -> int:
        start, room = max(wanted.offset, wanted.counted_end), wanted.max_bytes - wanted.counted
        if wanted.tp is not None and wanted.is_waiting and start < wanted.end and room > 0:
            room = min(room, self._min_bytes)
            try:
                for batch in self._batches(wanted.tp, start, wanted.end, room):
                    wanted.counted += batch.values.size_bytes + batch.count * LEAST_RECORD_BYTES
                    wanted.counted_end = batch.end
            except StoreError as damage:
                wanted.fail(say_damaged(damage))
                return self._min_bytes
        return wanted.counted

    def _read(
        self, wanted: WantedRecords, room: int, encode: Encode, limits: FetchLimits
    ) -> Iterator[bytes]:
        assert wanted.tp is not None
        offset = wanted.offset
        batches = self._batches(wanted.tp, offset, wanted.end, room)
        for batch in coalesce(batches, MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
            for part in batch.split(MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
                if part.offset != offset:  # trimmed meanwhile
                    wanted.fail(KafkaError.OFFSET_OUT_OF_RANGE)
                    return
                count = limits.fitting(part.values, room)
                if not count:
                    return
                octets = encode(part.between(offset, offset + count))
                limits.take(len(octets))
                room -= len(octets)
                yield octets
                if count < part.count:
                    return
                offset = part.end

    def _batches(self, tp: TopicPartition, start: int, end: int, room: int) -> list[RecordBatch]:
        most = most_records(room)
        return self._log.read(tp, start, end, max_records=most, max_bytes=room)


TIMESTAMPS_FROM: Final = 2
RECORD_BATCHES_FROM: Final = 4
"""Versions of Fetch with newer formats of records."""

MAX_WAIT_S: Final = 300.0
"""Longest wait; after it the client gets an empty response, and asks again."""

ROOM_STEP_S: Final = 0.1  # polling interval for room that other clients' unread responses take


class Fetch(Feature):
    """Answers Fetch from the store's own log.

    Sessions are declined, as a broker may: each response says session 0, so clients name all
    partitions in each request.
    """

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._log = node.store.log
        self._beyond_end = BeyondEnd(self._log)
        self._watch: LogWatch

    async def start(self) -> None:
        """Subscribe to the log's changes."""
        self._watch = LogWatch(self._log.changes)
        readable, note = self._node.leaders.readable, self._watch.note
        self._node.replication.on_reported = lambda changed: note(readable(changed))

    async def close(self) -> None:
        """Unsubscribe."""
        self._watch.close()

    @serves(Api.FETCH, range(13))
    async def _fetch(self, request: Any, client: Client) -> Answer:
        if request.session_id and request.session_epoch > 0:
            raise RefusedError(KafkaError.FETCH_SESSION_ID_NOT_FOUND, "")
        topics = [
            (topic.topic, [self._wanted(client, topic.topic, asked) for asked in topic.partitions])
            for topic in request.topics
        ]
        wanted = [each for _, partitions in topics for each in partitions]
        reading = LogReading(
            self._log,
            self._beyond_end,
            self._node.watermark,
            wanted,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms / 1000, MAX_WAIT_S)
        await self._wait(reading, deadline)
        await self._read(reading, deadline, encoder(client.version))
        return {
            "responses": [
                {"topic": name, "partitions": [each.answer for each in partitions]}
                for name, partitions in topics
            ]
        }

    def _wanted(self, client: Client, topic: str, asked: Any) -> WantedRecords:
        place = topic, asked.partition, asked.current_leader_epoch
        found = client.refusal(_READ, topic) or readable(self._node, *place)
        wanted = asked.partition, asked.fetch_offset, asked.partition_max_bytes
        if isinstance(found, KafkaError):
            return WantedRecords(None, *wanted, found)
        return WantedRecords(found, *wanted)

    async def _wait(self, reading: LogReading, deadline: float) -> None:
        with self._watch.waiting(reading.partitions) as wait:
            changed = None
            while not (
                reading.look(changed)
                if changed is not None and reading.is_quick(changed)
                else await self._node.in_thread(reading.look, changed)
            ):
                try:
                    async with asyncio.timeout_at(deadline):
                        await wait.woken.wait()
                except TimeoutError:
                    return
                changed = wait.take()

    async def _read(self, reading: LogReading, deadline: float, encode: Encode) -> None:
        """Read as much as the budget has room for beside unread responses.

        Without room until the deadline the response is empty, and the client asks again.
        """
        loop, room = asyncio.get_running_loop(), self._node.room
        while (left := room.size_bytes - room.taken_bytes) <= 0:
            if loop.time() >= deadline:
                return
            await asyncio.sleep(ROOM_STEP_S)
        taken = min(left, reading.most_bytes)
        room.add(taken)
        try:
            await self._node.in_thread(reading.read, encode, taken)
        finally:
            room.give_back(taken)


def encoder(version: int) -> Encode:
    """Return the encoder for the record format of this version of Fetch."""
    if version >= RECORD_BATCHES_FROM:
        return encode_record_batch
    magic = MAGIC_V1 if version >= TIMESTAMPS_FROM else MAGIC_V0
    return lambda batch: encode_message_set(batch, magic)
