"""Fetch: records of many partitions, as soon as there are enough of them."""

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
from dafka_core.storage.head_changes import HeadChanges
from dafka_kafka.api_versions import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Client, Feature, GatewayNode, Handler
from dafka_kafka.records import message_set
from dafka_kafka.records.record_batch import encode_record_batches
from dafka_kafka.schemas import FetchResponse


class Wait:
    """One who waits; ``changed`` are the partitions that have changed since it looked last."""

    def __init__(self) -> None:
        self.changed: set[TopicPartition] = set()
        self.woken = asyncio.Event()

    def take(self) -> set[TopicPartition]:
        """What has changed; from now on it is about what changes then."""
        taken, self.changed = self.changed, set()
        self.woken.clear()
        return taken


class LogWatch:
    """Wakes those who wait for some partitions, as soon as one of them was written or trimmed.

    All of it happens in the event loop in which it was made, but for ``set``, which the log's
    writer calls.
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
        """Who waits for changes of partitions, from now on: look at them after this, not before."""
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
        """Something has changed (in the thread of who writes, which must not be kept waiting)."""
        if not self._is_due:
            self._is_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended before the log
                self._loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        """Hears of no change any more."""
        self._watching.close()

    def _look(self) -> None:
        self._is_due = False  # first: what changes while it looks is looked at again
        since, self._number = self._number, self._changes.number
        changed = self._changes.since(since, None)
        for tp in self._waits if changed is None else changed:
            for wait in self._waits.get(tp, ()):
                wait.changed.add(tp)
                wait.woken.set()


# How many records an answer to Fetch has: its limits, and those of each partition, in octets.
#
# As Kafka does it: partitions take their share in the order in which the client names them, and
# the first that has records gives at least one of them, however large it is, since the client
# would ask for it for ever. What records take is estimated from above, so that an answer stays
# below what the client has said (librdkafka closes a connection on which more comes).


MAX_FETCH_BYTES: Final = 55 << 20
"""Of records in one answer, whatever a client asks for: what Kafka's brokers send at most."""

RECORD_BYTES: Final = 36
"""What is around a content, at most: lengths, time and offset, in any of the formats."""

BATCH_BYTES: Final = 64
"""What is around a batch's records."""

LEAST_RECORD_BYTES: Final = 7
"""What a record without key, value and headers takes."""


class FetchLimits:
    """What one answer has room for; ``taken`` is how many octets its records take so far."""

    def __init__(self, max_bytes: int) -> None:
        self.taken = 0
        self._max_bytes = max_bytes

    def room(self, partition_max_bytes: int) -> int:
        """How many octets a partition's records may take: at least 1 if it is to give one anyway.

        0 if it gives none.
        """
        room = min(partition_max_bytes, self._max_bytes - self.taken)
        return max(room, 0 if self.taken else 1)

    def fitting(self, values: Values, room: int) -> int:
        """How many of the records fit; at least one if none is in the answer yet."""
        ends, _ = values.columns()
        sizes = ends + np.arange(len(ends)) * RECORD_BYTES
        count = int(sizes.searchsorted(room - BATCH_BYTES, side="right")) - 1
        return max(count, 0 if self.taken else 1)

    def take(self, octets: int) -> None:
        """So many octets are in the answer."""
        self.taken += octets


def most_records(room: int) -> int:
    """So many records are worth a look where there is so much room: they may be empty."""
    return room // LEAST_RECORD_BYTES + 1


# Offsets beyond what a store has: it is behind other stores, or there is no such offset.
#
# A client that has read at another gateway may know offsets that this one's store does not have
# yet. It must not be told that they are out of range: it would begin anew at its
# ``auto.offset.reset``, and read records twice or never. So for a while there is merely nothing
# to read.


LAG_S: Final = 30.0
"""How long an offset may be beyond the end before it is taken for one that is nowhere: stores copy
from each other within seconds once they have met."""

MAX_KEPT: Final = 10_000
"""Offsets that are remembered; of more, the one asked for first is asked for as if anew."""


class BeyondEnd:
    """Remembers since when offsets beyond the end have been asked for.  Thread-safe."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._since = OrderedDict[tuple[TopicPartition, int], float]()

    def may_come(self, tp: TopicPartition, offset: int) -> bool:
        """Whether another store may have the record before this offset, which is beyond the end."""
        if not self._log.met():
            return False
        now = self._clock()
        with self._lock:
            since = self._since.setdefault((tp, offset), now)
            if now - since > 2 * LAG_S:  # somebody else's, long ago
                self._since[tp, offset] = since = now
            if len(self._since) > MAX_KEPT:
                self._since.popitem(last=False)
        return now - since < LAG_S


NO_EPOCH: Final = -1
"""A leader epoch that is not known.  It is all that a gateway ever says of one."""

_log: Final = logging.getLogger("dafka.kafka")


def readable(
    node: GatewayNode, topic: str, number: int, leader_epoch: int
) -> TopicPartition | KafkaError:
    """The partition of the log with a topic's number, or why it is not to be read here.

    ``leader_epoch`` is the one that the client has heard of, or ``NO_EPOCH``.
    """
    partition = node.numbers.get(topic, number)
    if partition is None:
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    own = node.gateways.own.address
    # Most are this gateway's own; a client may ask for hundreds of them at once.
    if partition.gateway != own and node.gateways.leader(partition).address != own:
        return KafkaError.NOT_LEADER_OR_FOLLOWER
    if leader_epoch > NO_EPOCH:
        # No gateway of this cluster has told of one: the client knows another cluster.
        return KafkaError.UNKNOWN_LEADER_EPOCH
    return partition.tp


def say_damaged(damage: StoreError) -> KafkaError:
    """What a client is told where the log cannot be read; the log of this process has the rest."""
    _log.error("a Kafka client was told of a storage error: %s", damage)
    return KafkaError.KAFKA_STORAGE_ERROR


MAX_BATCH_RECORDS: Final = 8_192
MAX_BATCH_BYTES: Final = 1 << 20
"""Of contents in one record batch, unless it is one record.  Clients hold a batch whole, to see
that its checksum is right; and what is made of so many stays in the processor's cache."""

Encode = Callable[[RecordBatch], bytes]


@dataclass(slots=True)
class WantedRecords:
    """The records that a client wants of one partition, from ``offset`` on, and what it gets.

    ``tp`` is None where it gets an error alone.  ``earliest`` and ``end`` are the partition's.
    ``counted`` is about how many octets there are up to offset ``counted_end``.
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
        """Whether there is something to read."""
        return not self.error and self.offset < self.end

    def fail(self, error: KafkaError) -> None:
        """It gets this in place of records."""
        self.error, self.earliest, self.end = error, -1, -1


class LogReading:
    """Reads what one Fetch wants; for one thread at a time."""

    def __init__(
        self,
        log: Log,
        beyond_end: BeyondEnd,
        wanted: Sequence[WantedRecords],
        *,
        min_bytes: int,
        max_bytes: int,
    ) -> None:
        self._log = log
        self._beyond_end = beyond_end
        self._max_bytes = min(max_bytes, MAX_FETCH_BYTES)
        self._min_bytes = min(min_bytes, self._max_bytes)
        self._wanted = wanted
        self._by_tp: dict[TopicPartition, list[WantedRecords]] = {}
        for each in wanted:
            if each.tp is not None:
                self._by_tp.setdefault(each.tp, []).append(each)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """Those of the log that it is about."""
        return self._by_tp.keys()

    def look(self, changed: Iterable[TopicPartition] | None = None) -> bool:
        """Whether it is time to answer: there are ``min_bytes``, or there is an error.

        Looks at the partitions that have ``changed``, or at all of them.
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
        """What is read at most, unless it is a single record."""
        return min(self._max_bytes, sum(each.max_bytes for each in self._wanted if each.is_waiting))

    def read(self, encode: Encode, most_bytes: int) -> None:
        """Reads and encodes what there is of each, in their order, as far as the limits go.

        ``most_bytes`` is one of them.
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
        wanted.earliest, wanted.end = held.earliest, held.end
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
"""Versions of Fetch from which on clients know newer formats of records."""

MAX_WAIT_S: Final = 300.0
"""A client that wants to wait for longer gets an answer without records, and asks again."""

ROOM_STEP_S: Final = 0.1
"""How often it is looked for room, where other clients do not take what they were sent."""

_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


class Fetch(Feature):
    """Answers Fetch from the store's own log.

    Sessions are refused, as Kafka lets a broker do: each answer says session 0, so clients name all
    of their partitions in each request.
    """

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._log = node.store.log
        self._beyond_end = BeyondEnd(self._log)
        self._watch: LogWatch
        self.handlers: dict[int, Handler] = {Api.FETCH: self._fetch}

    async def start(self) -> None:
        """Hears of the log's changes from now on."""
        self._watch = LogWatch(self._log.changes)

    async def close(self) -> None:
        """Hears of none any more."""
        self._watch.close()

    async def _fetch(self, request: Any, client: Client) -> Any:
        if request.session_id and request.session_epoch > 0:
            return _response(KafkaError.FETCH_SESSION_ID_NOT_FOUND, [])
        topics = [
            (topic.topic, [self._wanted(topic.topic, asked) for asked in topic.partitions])
            for topic in request.topics
        ]
        wanted = [each for _, partitions in topics for each in partitions]
        reading = LogReading(
            self._log,
            self._beyond_end,
            wanted,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms / 1000, MAX_WAIT_S)
        await self._wait(reading, deadline)
        await self._read(reading, deadline, encoder(client.version))
        return _response(KafkaError.NONE, topics)

    def _wanted(self, topic: str, asked: Any) -> WantedRecords:
        found = readable(self._node, topic, asked.partition, asked.current_leader_epoch)
        place = (asked.partition, asked.fetch_offset, asked.partition_max_bytes)
        if isinstance(found, KafkaError):
            return WantedRecords(None, *place, found)
        return WantedRecords(found, *place)

    async def _wait(self, reading: LogReading, deadline: float) -> None:
        with self._watch.waiting(reading.partitions) as wait:
            changed = None
            while not await self._node.in_thread(reading.look, changed):
                try:
                    async with asyncio.timeout_at(deadline):
                        await wait.woken.wait()
                except TimeoutError:
                    return
                changed = wait.take()

    async def _read(self, reading: LogReading, deadline: float, encode: Encode) -> None:
        """Reads as much as there is room for beside what other clients have not taken yet.

        Nothing if there is no room until the deadline: that client asks again.
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
    """Records in the format that clients know who ask in this version of Fetch."""
    if version >= RECORD_BATCHES_FROM:
        return lambda batch: b"".join(encode_record_batches(batch))
    magic = message_set.V1 if version >= TIMESTAMPS_FROM else message_set.V0
    return lambda batch: message_set.encode_message_set(batch, magic)


def _response(error: KafkaError, topics: Sequence[tuple[str, Sequence[WantedRecords]]]) -> Any:
    return FetchResponse(
        throttle_time_ms=0,
        error_code=error,
        session_id=0,
        responses=[
            _Topic(topic=name, partitions=[_partition(each) for each in partitions])
            for name, partitions in topics
        ],
    )


def _partition(read: WantedRecords) -> Any:
    return _Partition(
        partition_index=read.number,
        error_code=read.error,
        high_watermark=read.end,
        last_stable_offset=read.end,
        log_start_offset=read.earliest,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=read.records,
    )
