"""The consumer of applications, and its queue of records.

The loop's thread receives records and runs the role, which puts each partition's records in order.
The role notices a missed record by its offset, or by a HEAD with a later one, and fetches it
(``protocol/fetch_scheduler.py``).  If no node has it, the role reports a ``Loss``, to which
``_on_loss`` applies option ``on_data_loss``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import length_hint
from typing import Any, Final

from dafka_core.config.node_options import FAIL, SKIP, ConsumerOptions
from dafka_core.config.options import check_argument
from dafka_core.errors import (
    ClosedError,
    ConfigError,
    DataLossError,
    HistoryChangedError,
    RecordTooLargeError,
)
from dafka_core.model.envelope import AUTO
from dafka_core.model.name_limits import check_address, check_topic
from dafka_core.model.opened_records import opened_lists
from dafka_core.model.records import Record, RecordBatch, TopicPartition, records
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node, weakly
from dafka_core.protocol.consumer_role import ConsumerRole, Loss, Start
from dafka_core.protocol.fields import check_sequence, check_topics
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import HeadsQuery

_Item = RecordBatch | RecordTooLargeError | DataLossError

TURN_RECORDS: Final = 1_000  # records after which an event loop runs other tasks: some milliseconds

_LOCK_S: Final = 0.1  # interval at which the loop, waiting for the queue's lock, checks its end

_log = logging.getLogger("dafka.consumer")


def check_partition(tp: TopicPartition) -> None:
    """Raise ConfigError unless ``tp`` is a partition with valid names."""
    if not isinstance(tp, TopicPartition):
        raise ConfigError("tp", tp, "must be a TopicPartition")
    check_argument("topic", tp.topic, check_topic)
    check_argument("partition", tp.partition, check_address)


class RecordQueue:
    """Delivered records that the application has not taken.

    The loop's thread adds batches.  The application takes records or batches, in one thread or in
    several, in any mixture and in order.  ``on_taken`` is called whenever a batch has left.  An
    error, which takes the place of a record or of missing ones, is raised once, to one reader.
    """

    def __init__(self, on_taken: Callable[[], None], *, opens: bool = True) -> None:
        self._on_taken = on_taken
        self._opens = opens  # envelopes
        self._lock = threading.Lock()
        self._is_closing = False
        self._items: deque[_Item] = deque()
        self._losses: set[TopicPartition] = set()  # partitions whose loss is queued
        self.added = (0, 0)  # number of records ever queued, and the bytes of their values
        self._left = (0, 0)
        self._open: RecordBatch | None = None
        self._is_open_queued = False  # until the open batch is removed from the queue
        # The remaining values of the open batch.  The records are made over this very iterator: a
        # value taken from one is gone for the other, and its length hint is exact.
        self._open_rest: Iterator[bytes | None] = iter(())
        self._open_records: Iterator[Record] = iter(())

    @property
    def size(self) -> tuple[int, int]:
        """Return the number and bytes of queued records, without the batch that is being taken."""
        return self.added[0] - self._left[0], self.added[1] - self._left[1]

    def add(self, items: Iterable[_Item]) -> None:
        """Queue batches and errors, without a lock: its holder may wait for the loop's end."""
        for item in items:
            self.added = _plus(self.added, item)
            self._items.append(item)

    def add_loss(self, loss: DataLossError) -> None:
        """Queue an error to raise after a partition's records; one for each partition."""
        if _tp(loss) not in self._losses:
            self._losses.add(_tp(loss))
            self._items.append(loss)

    def next_record(self) -> Record | None:
        """Return the next record, if any."""
        # Without the lock: one C call takes it from the batch.
        record = next(self._open_records, None)
        while record is None and self._items:
            record = next(self.next_records() or iter(()), None)
        return record

    def next_records(self) -> Iterator[Record] | None:
        """Return the queue's iterator of the open or next batch: it keeps what is not taken."""
        with self._lock:
            if not length_hint(self._open_rest):
                batch = self._first()
                if batch is None:
                    return None
                # A signal may interrupt each call: the batch stays queued until all is assigned.
                values, keys, headers = opened_lists(batch.values, opens=self._opens)
                rest = iter(values)
                found = records(batch, rest, keys, headers)
                self._open, self._open_rest, self._open_records = batch, rest, found
                self._is_open_queued = True
                self._remove_open()
            return self._open_records

    def next_batch(self) -> RecordBatch | None:
        """Return the rest of the open batch, or else the next one, as a batch."""
        with self._lock:
            # One C call: no other thread takes one of these.
            left = len(list(self._open_rest))
            if left and self._open is not None:
                return self._open.between(self._open.end - left, self._open.end)
            batch = self._first()
            if batch is not None:
                self._remove(batch)
            return batch

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next record's offset of each partition with records here."""
        with self._lock:
            self._remove_open()
            queued = [each for each in self._items.copy() if not isinstance(each, DataLossError)]
            found = {_tp(each): each.offset for each in reversed(queued)}
            left = length_hint(self._open_rest)
            if left and self._open is not None:
                found[self._open.tp] = self._open.end - left
        return found

    def drop(self, unwanted: Callable[[TopicPartition], bool]) -> None:
        """Drop the records of partitions, unless ``close`` waits for this thread."""
        while not self._lock.acquire(timeout=_LOCK_S):
            if self._is_closing:
                return
        try:
            self._remove_open()
            if self._open is not None and unwanted(self._open.tp):
                deque(self._open_rest, maxlen=0)
            for _ in range(len(self._items)):
                item = self._items.popleft()
                if unwanted(_tp(item)):
                    self._left = _plus(self._left, item)
                    self._losses.discard(_tp(item))
                else:
                    self._items.append(item)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let the loop end: a signal's handler may wait for it in a thread that holds the lock."""
        self._is_closing = True

    def clear(self) -> None:
        """Drop all.  Takes no lock: a signal's handler may call it in a thread that holds it."""
        self._items.clear()
        self._losses.clear()
        deque(self._open_rest, maxlen=0)  # takes the rest

    def _first(self) -> RecordBatch | None:
        """Return the first batch, which stays queued; raise an error in its place."""
        self._remove_open()
        try:
            item = self._items[0]
        except IndexError:
            return None
        if isinstance(item, RecordBatch):
            return item
        if isinstance(item, DataLossError):
            self._losses.discard(_tp(item))
        self._remove(item)
        raise item

    def _remove(self, first: _Item) -> None:
        # Before the removal: if a signal interrupts in between, there is more room, not less.
        self._left = _plus(self._left, first)
        with contextlib.suppress(IndexError):  # cleared meanwhile
            self._items.popleft()
        self._on_taken()

    def _remove_open(self) -> None:
        """Remove the open batch from the queue, unless that is done."""
        if self._is_open_queued and self._items and self._items[0] is self._open:
            self._remove(self._open)
        self._is_open_queued = False


def _tp(item: _Item) -> TopicPartition:
    if isinstance(item, RecordBatch):
        return item.tp
    return TopicPartition(item.topic, item.partition)


def _plus(size: tuple[int, int], item: _Item) -> tuple[int, int]:
    if isinstance(item, RecordBatch):
        return size[0] + item.count, size[1] + item.values.size_bytes
    return size[0] + isinstance(item, RecordTooLargeError), size[1]


class Consumer(Node):
    """Delivers the records of topics: per partition in order, each once, none missing.

    ``poll``, ``batches``, ``for`` and ``async for`` share one cursor.  Iterating waits for the next
    record until another thread or a signal's handler calls ``close``.  At most
    ``max_queued_records`` wait for the application; the rest stays in the stores and is fetched
    later.

    If no node has a partition's next records any more, option ``on_data_loss`` decides.  With
    ``fail`` a call raises DataLossError after all records before the gap, and again each time that
    the loss is confirmed (15 s or more), until ``seek`` continues after it.  Other partitions
    continue.

    Args:
        start: where to begin partitions: ``"earliest"``, ``"latest"`` (the end of each partition
            when it is discovered), or ``{topic: {partition: offset}}`` with the earliest for
            the partitions not named.
        options: see ``ConsumerOptions``.

    Raises:
        ConfigError: an option is invalid.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, *, start: Start = "earliest", **options: Any) -> None:
        self._config = ConsumerOptions.build(options)
        self.address = new_address(self._config)  # the consumer's UUID
        self.role = ConsumerRole(
            self.address,
            _checked_start(start),
            self._config.on_data_loss,
            limit_bytes=max_taken_bytes(self._config.max_record_bytes),
        )
        opens = self._config.envelope == AUTO
        self.queue = RecordQueue(weakly(self._on_taken, None), opens=opens)
        self.mesh = Mesh("consumer", self.role, self._config)
        self.mesh.start(self._on_round)
        self.is_open = True

    @property
    def subscription(self) -> list[str]:
        """Return the subscribed topics, in the order of their subscription."""
        return list(self.role.topics)

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """Return the number of skipped lost records of each partition (``skip``)."""
        return self.role.skipped.copy()

    def held_topics(self, *topics: str, timeout_s: float) -> set[str]:
        """Return the topics with records in stores, among ``topics`` or all.

        Raises:
            ConfigError: a topic is invalid, or the topics are too many.
            NoStoreError: no store was discovered within ``timeout_s`` seconds.
        """
        check_argument("topics", topics, check_topics)
        query = self.mesh.query(self.role.directory, timeout_s, HeadsQuery, topics)
        held = {tp.topic for tp in query.heads}
        return held.intersection(topics) if topics else held

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic.

        Raises:
            ConfigError: the topic is invalid, or the topics are too many.
            NotAllowedError: the key may not consume it.
        """
        # A CONSUMER-HELLO names all topics in one message.
        check_argument("topic", topic, lambda new: check_topics((*self.role.topics, new)))
        self.mesh.security.check_consume(topic)

        def subscribe(now: float) -> None:
            self.mesh.peers.subscribe(self.role.topic_subscriptions(topic))
            self.mesh.send(self.role.subscribe(topic))

        self.mesh.call(subscribe)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe; drops the topic's queued records, and forgets its positions."""
        check_argument("topic", topic, check_topic)

        def unsubscribe(now: float) -> None:
            if topic in self.role.topics:
                self.mesh.peers.unsubscribe(self.role.topic_subscriptions(topic))
                self.role.unsubscribe(topic)
                self._drop(lambda tp: tp.topic == topic)

        self.mesh.call(unsubscribe)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue with the record at ``offset``; drops the partition's queued records.

        Raises:
            ConfigError: the offset is negative or too large, or ``tp`` is no partition.
        """
        check_partition(tp)
        check_argument("offset", offset, check_sequence)

        def seek(now: float) -> None:
            self.role.seek(tp, offset)
            self._drop(lambda other: other == tp)

        self.mesh.call(seek)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return each partition's next offset for the application, and its known end.

        A position moves when the application receives the record.
        """

        def positions(now: float) -> dict[TopicPartition, tuple[int, int]]:
            self._queue_delivered()
            return self.role.positions()

        found = self.mesh.call(positions)
        queued = self.queue.positions()
        return {tp: (queued.get(tp, taken), end) for tp, (taken, end) in found.items()}

    def poll(self, timeout_s: float) -> Record | None:
        """Return the next record, or None if none arrives in time.

        Raises:
            ClosedError: the consumer is closed.
            RecordTooLargeError: the next record is above ``max_record_bytes``.
            HistoryChangedError: another history has replaced delivered records; the next ones are
                its records, from the first difference on.
            DataLossError: no node has a partition's next records (``on_data_loss``).
        """
        # Most records are queued already, and waiting has a cost.
        record = self.queue.next_record()
        return record or self.mesh.wait_until(self.queue.next_record, timeout_s)

    def batches(self, timeout_s: float | None = None) -> Iterator[RecordBatch]:
        """Yield the records as batches, until none arrives for ``timeout_s`` or ``close``.

        Their contents are unopened: ``opened_records`` opens envelopes.
        """
        with contextlib.suppress(ClosedError):
            while (batch := self.mesh.wait_until(self.queue.next_batch, timeout_s)) is not None:
                yield batch

    def __iter__(self) -> Iterator[Record]:
        def iterators() -> Iterator[Iterator[Record]]:
            with contextlib.suppress(ClosedError):
                while (found := self.mesh.wait_until(self.queue.next_records, None)) is not None:
                    yield found

        return chain.from_iterable(iterators())

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate without a thread, and without blocking the event loop."""
        with contextlib.suppress(ClosedError):
            while (found := await self.mesh.wait_until_async(self.queue.next_records)) is not None:
                for record in islice(found, TURN_RECORDS):
                    yield record

    def close(self) -> None:
        """Close the consumer, dropping queued records: the stores have them.  Idempotent."""
        self.is_open = False
        self.queue.close()
        self.mesh.close()
        self.queue.clear()

    def on_forked(self) -> None:
        """Empty the iterators in a forked child."""
        if "queue" in vars(self):
            self.queue.clear()

    def _on_taken(self) -> None:
        if not self.role.room and self._has_room(0.5):
            self.mesh.wake()

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        self._queue_delivered()
        # A full queue accepts records again when it is half empty, not one by one.
        had_room = self.role.room
        self.role.room = self._has_room(1.0 if had_room else 0.5)
        # With room again, the next round fetches the records left to the stores.
        return self.role.room and not had_room

    def _queue_delivered(self) -> None:
        delivered, self.role.delivered = self.role.delivered, []
        losses, self.role.losses = self.role.losses, []
        for each in delivered:
            if isinstance(each, HistoryChangedError) and self._config.on_data_loss != FAIL:
                _log.warning("%s", each)
            else:
                self.queue.add([each])
        for loss in losses:
            self._on_loss(loss)

    def _on_loss(self, loss: Loss) -> None:
        if loss.is_beginning:
            text = "%(tp)s: begins at offset %(offset)d, the earliest that a store has"
            facts = {"tp": str(loss.tp), "offset": loss.end}
            _log.info(text, facts, extra={"event": "consumer_begins"})
            return
        policy = self._config.on_data_loss
        does = "the consumer waits for them"
        if policy == FAIL:
            does = "continue with Consumer.seek, or set option on_data_loss to skip or wait"
        elif policy == SKIP and loss.available is not None:
            does = "the consumer skips them"
        why = f"offsets {loss.start} to {loss.end} (exclusive) are missing, {loss.why}; {does}"
        error = DataLossError(*loss.tp, loss.start, loss.available, why)
        if policy == FAIL:
            self.queue.add_loss(error)
        else:
            _log.warning("%s", error)

    def _has_room(self, share: float) -> bool:
        records, size_bytes = self.queue.size
        return not records or (
            records < self._config.max_queued_records * share
            and size_bytes < self._config.max_queued_bytes * share
        )

    def _drop(self, unwanted: Callable[[TopicPartition], bool]) -> None:
        self._queue_delivered()
        self.queue.drop(unwanted)


def _checked_start(start: Any) -> Start:
    if start in ("earliest", "latest"):
        return start  # type: ignore[no-any-return]
    if not isinstance(start, Mapping):
        why = "must be 'earliest', 'latest' or {topic: {partition: offset}}"
        raise ConfigError("start", start, why)
    for topic, partitions in start.items():
        check_argument("start", topic, check_topic)
        if not isinstance(partitions, Mapping):
            raise ConfigError("start", start, f"topic {topic!r}: must be {{partition: offset}}")
        for partition, offset in partitions.items():
            check_argument("start", partition, check_address)
            check_argument("start", offset, check_sequence)
    return start
