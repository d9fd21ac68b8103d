"""The consumer of applications, and its queue of records."""

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
from dafka_core.model.name_limits import check_topic
from dafka_core.model.opened_records import opened_lists
from dafka_core.model.records import Record, RecordBatch, TopicPartition, records
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node
from dafka_core.nodes.threads import weakly
from dafka_core.protocol.consumer_role import ConsumerRole, Start
from dafka_core.protocol.fields import check_sequence, check_topics
from dafka_core.protocol.limits import MAX_SEQUENCE, max_taken_bytes
from dafka_core.protocol.loss_detector import Loss

_Record = RecordBatch | RecordTooLargeError
_Item = _Record | DataLossError


class RecordQueue:
    """What a consumer has and the application does not.

    The loop's thread adds batches.  The application takes records or batches, in one thread or in
    several: each takes what comes next, however the one before it was taken.  Whenever a batch
    has left, the queue calls ``on_taken``.  Who comes upon an error, which stands in the place of a
    record or of those that are missing, raises it, once.
    """

    def __init__(self, on_taken: Callable[[], None], *, opens: bool = True) -> None:
        self._on_taken = on_taken
        self._opens = opens  # envelopes
        self._lock = threading.Lock()
        self._batches: deque[_Item] = deque()
        self._losses: set[TopicPartition] = set()
        # Records and bytes of values: those that the loop has added, and those that have left.
        self._added = (0, 0)
        self._left = (0, 0)
        self._open: RecordBatch | None = None
        # The values of the open batch that are left.  The records are made over this very iterator:
        # what one takes is gone for the other, and its length hint is exact.
        self._open_rest: Iterator[bytes | None] = iter(())
        self._open_records: Iterator[Record] = iter(())

    @property
    def size(self) -> tuple[int, int]:
        """How many records are queued, and the bytes of their values.

        Without the batch whose records are being taken one by one.
        """
        return self._added[0] - self._left[0], self._added[1] - self._left[1]

    @property
    def added(self) -> tuple[int, int]:
        """How many records were ever queued, and the bytes of their values."""
        return self._added

    def add(self, batches: Iterable[_Item]) -> None:
        """Queues batches and errors.

        Takes no lock: a thread that holds it may be in a signal's handler that waits for the
        loop's end.
        """
        for batch in batches:
            if not isinstance(batch, DataLossError):
                self._added = _sum(self._added, batch)
            self._batches.append(batch)

    def add_loss(self, tp: TopicPartition, loss: DataLossError) -> None:
        """Queues what is to be raised after a partition's records; one of each partition."""
        if tp not in self._losses:
            self._losses.add(tp)
            self._batches.append(loss)

    def next_record(self) -> Record | None:
        """The next record, if there is one."""
        # Without the lock: a call of C takes it from the batch.
        record = next(self._open_records, None)
        if record is None and self._batches:
            with self._lock:
                record = next(self._opened(), None)
        return record

    def next_records(self) -> Iterator[Record] | None:
        """The rest of the batch that is being taken, or else the next one, record by record.

        It is the queue's own iterator, not a copy: a record taken from it is taken, one that is
        not is the next one for whoever asks.
        """
        with self._lock:
            found = self._opened()
            return found if length_hint(self._open_rest) else None

    def next_batch(self) -> RecordBatch | None:
        """The same as a batch."""
        with self._lock:
            # One call of C: no other thread takes one of these.
            left = len(list(self._open_rest))
            if left and self._open is not None:
                return self._open.between(self._open.end - left, self._open.end)
            return self._pop()

    def positions(self) -> dict[TopicPartition, int]:
        """Which record the application gets next, of the partitions that have any here."""
        with self._lock:
            queued = (each for each in self._batches if not isinstance(each, DataLossError))
            found = {_tp(each): each.offset for each in reversed(tuple(queued))}
            left = length_hint(self._open_rest)
            if left and self._open is not None:
                found[self._open.tp] = self._open.end - left
        return found

    def drop(self, unwanted: Callable[[TopicPartition], bool]) -> None:
        """Drops the records of partitions."""
        with self._lock:
            if self._open is not None and unwanted(self._open.tp):
                _exhaust(self._open_rest)
            for _ in range(len(self._batches)):
                batch = self._batches.popleft()
                if not unwanted(_tp(batch)):
                    self._batches.append(batch)
                elif not isinstance(batch, DataLossError):
                    self._left = _sum(self._left, batch)
                else:
                    self._losses.discard(_tp(batch))

    def clear(self) -> None:
        """Drops all.  Takes no lock: a signal's handler may call it in a thread that holds it."""
        self._batches.clear()
        _exhaust(self._open_rest)

    def _opened(self) -> Iterator[Record]:
        if not length_hint(self._open_rest) and (batch := self._pop()) is not None:
            values, keys, headers = opened_lists(batch.values, opens=self._opens)
            self._open, self._open_rest = batch, iter(values)
            self._open_records = records(batch, self._open_rest, keys, headers)
        return self._open_records

    def _pop(self) -> RecordBatch | None:
        try:
            batch = self._batches.popleft()
        except IndexError:
            return None
        if isinstance(batch, DataLossError):
            self._losses.discard(_tp(batch))
            raise batch
        self._left = _sum(self._left, batch)
        self._on_taken()
        if isinstance(batch, RecordTooLargeError):
            raise batch
        return batch


def _tp(item: _Item) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _exhaust(values: Iterator[bytes | None]) -> None:
    deque(values, maxlen=0)


def _sum(size: tuple[int, int], batch: _Record) -> tuple[int, int]:
    if isinstance(batch, RecordTooLargeError):
        return size[0] + 1, size[1]
    return size[0] + batch.count, size[1] + batch.values.size_bytes


TURN_RECORDS: Final = 1_000
"""After so many at most an event loop goes on with others: some milliseconds."""

_log = logging.getLogger("dafka.consumer")


class Consumer(Node):
    """Delivers the records of topics: per partition in order, each once, none missing.

    The consumer has one cursor: ``poll``, ``batches``, ``for`` and ``async for`` each go on where
    the last one stopped, however that was left.  Iterating never ends: it waits for the next record
    until another thread or a signal's handler calls ``close``.  At most ``max_queued_records`` wait
    for the application; the rest is left to the stores and fetched later, so a slow application
    costs no memory.

    Each way to read raises RecordTooLargeError in the place of a record that is larger than
    ``max_record_bytes`` lets pass; reading on goes on behind it.

    Where nobody has a partition's next records any more, option ``on_data_loss`` says how it goes
    on.  With ``fail``, the way to read that comes upon the gap raises DataLossError, after all
    records before it, and again if nothing is done about it.  Records of other partitions go on,
    and ``seek`` goes on behind the gap.

    Args:
        start: where to begin partitions: ``"earliest"``, ``"latest"`` (the end of each partition
            when it is first heard of), or ``{topic: {partition: offset}}`` with the earliest for
            the partitions not named.
        options: see ``ConsumerOptions``.

    Raises:
        ConfigError: an option cannot be used.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, *, start: Start = "earliest", **options: Any) -> None:
        self._config = ConsumerOptions.build(options)
        self.address = new_address(self._config)
        """The consumer's UUID."""
        self._role = ConsumerRole(
            self.address,
            _checked_start(start),
            self._config.on_data_loss,
            limit_bytes=max_taken_bytes(self._config.max_record_bytes),
        )
        opens = self._config.envelope == AUTO
        self._queue = RecordQueue(weakly(self._on_taken, None), opens=opens)
        self._mesh = Mesh("consumer", self._role, self._config)
        self._mesh.start(self._on_round)
        self._is_open = True

    @property
    def parts(self) -> tuple[Mesh, RecordQueue]:
        """What it is made of, for who watches it."""
        return self._mesh, self._queue

    @property
    def subscription(self) -> list[str]:
        """The topics subscribed to, in the order of their subscription."""
        return self._role.topics

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """How many records of each partition it has left out: nobody had them (``skip``)."""
        return self._role.skipped.copy()

    def held_topics(self, *topics: str, timeout_s: float) -> set[str]:
        """Which topics stores have records of, among ``topics`` or all that there are.

        Raises:
            NoStoreError: no store was heard of within ``timeout_s`` seconds.
        """
        directory = self._role.directory
        query = self._mesh.query(directory, lambda now: directory.ask_heads(now, topics), timeout_s)
        held = {tp.topic for tp in query.heads}
        return held.intersection(topics) if topics else held

    def subscribe(self, topic: str) -> None:
        """Follows a topic from now on.

        Raises:
            ConfigError: the topic cannot be one, or there are too many.
            NotAllowedError: the key may not consume it.
        """
        # A CONSUMER-HELLO names all of them in one message.
        check_argument("topic", topic, lambda new: check_topics((*self._role.topics, new)))
        self._mesh.security.check_consume(topic)

        def subscribe(now: float) -> None:
            self._mesh.peers.subscribe(self._role.topic_subscriptions(topic))
            self._mesh.send(self._role.subscribe(topic))

        self._mesh.call(subscribe)

    def unsubscribe(self, topic: str) -> None:
        """Follows a topic no more; drops its queued records, and forgets its positions."""

        def unsubscribe(now: float) -> None:
            if topic in self._role.topics:
                self._mesh.peers.unsubscribe(self._role.topic_subscriptions(topic))
                self._role.unsubscribe(topic)
                self._drop(lambda tp: tp.topic == topic)

        self._mesh.call(unsubscribe)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Goes on with the record at ``offset``; drops the partition's queued records.

        Raises:
            ConfigError: the offset is negative or too large, or ``tp`` is no partition.
        """
        if not isinstance(tp, TopicPartition):
            raise ConfigError("tp", tp, "must be a TopicPartition")
        check_argument("offset", offset, check_sequence)

        def seek(now: float) -> None:
            self._role.seek(tp, offset)
            self._drop(lambda other: other == tp)

        self._mesh.call(seek)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """By partition: the offset of the record that the application gets next, and the known end.

        A position moves when the application is given the record.
        """

        def positions(now: float) -> dict[TopicPartition, tuple[int, int]]:
            self._queue_delivered()
            return self._role.positions()

        found = self._mesh.call(positions)
        queued = self._queue.positions()
        return {tp: (queued.get(tp, taken), end) for tp, (taken, end) in found.items()}

    def poll(self, timeout_s: float) -> Record | None:
        """The next record, or None if none comes in time.

        Raises:
            ClosedError: the consumer is closed.
            RecordTooLargeError: the next record is above ``max_record_bytes``.
            HistoryChangedError: a partition's records are not those delivered any more; the next
                ones are those that are, from where they part on.
            DataLossError: nobody has a partition's next records (``on_data_loss``).
        """
        # Most records are there: the wait has a price of its own.
        record = self._queue.next_record()
        return record or self._mesh.wait_until(self._queue.next_record, timeout_s)

    def batches(self, timeout_s: float | None = None) -> Iterator[RecordBatch]:
        """The records as batches, until none comes for ``timeout_s`` or the consumer is closed.

        Their contents are as they are: ``opened_records`` takes them out of envelopes.
        """
        with contextlib.suppress(ClosedError):
            while (batch := self._mesh.wait_until(self._queue.next_batch, timeout_s)) is not None:
                yield batch

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._iterators())

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Waits without a thread of its own, and without stopping the event loop."""
        with contextlib.suppress(ClosedError):
            while (
                found := await self._mesh.wait_until_async(self._queue.next_records)
            ) is not None:
                for record in islice(found, TURN_RECORDS):
                    yield record

    def close(self) -> None:
        """Ends; may be called twice.  Drops queued records: the stores have them."""
        self._is_open = False
        self._mesh.close()
        self._queue.clear()

    def on_forked(self) -> None:
        """Takes from iterators what they would still hand out."""
        if "_queue" in vars(self):
            self._queue.clear()

    def _iterators(self) -> Iterator[Iterator[Record]]:
        with contextlib.suppress(ClosedError):
            while (found := self._mesh.wait_until(self._queue.next_records, None)) is not None:
                yield found

    def _on_taken(self) -> None:
        if not self._role.room and self._has_room(0.5):
            self._mesh.wake()

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        self._queue_delivered()
        # A queue that was full takes records again when half of it is gone, not one by one.
        had_room = self._role.room
        self._role.room = self._has_room(1.0 if had_room else 0.5)
        # With room again, the next round asks for what was left to the stores.
        return self._role.room and not had_room

    def _queue_delivered(self) -> None:
        delivered, self._role.delivered = self._role.delivered, []
        if self._config.on_data_loss != FAIL:
            for each in delivered:
                if isinstance(each, HistoryChangedError):
                    _log.warning("%s", each)
            delivered = [each for each in delivered if not isinstance(each, HistoryChangedError)]
        self._queue.add(delivered)
        losses, self._role.losses = self._role.losses, []
        for loss in losses:
            self._on_loss(loss)

    def _on_loss(self, loss: Loss) -> None:
        policy = self._config.on_data_loss
        if loss.is_beginning:
            facts = {"topic": loss.tp.topic, "partition": loss.tp.partition, "offset": loss.end}
            text = "topic %(topic)r, partition %(partition)s: begins at offset %(offset)d, the "
            text += "earliest there is"
            _log.info(text, facts, extra={"event": "consumer_begins"})
            return
        if policy == FAIL:
            does = "go on with Consumer.seek, or set option on_data_loss to skip or wait"
        elif policy == SKIP and loss.available is not None:
            does = "the consumer skips them"
        else:
            does = "the consumer waits for them"
        missing = f"offsets {loss.start} to {loss.end} (exclusive) are missing"
        why = f"{missing}, {loss.why}; {does}"
        error = DataLossError(*loss.tp, loss.start, loss.available, why)
        if policy == FAIL:
            self._queue.add_loss(loss.tp, error)
        else:
            _log.warning("%s", error)

    def _has_room(self, share: float) -> bool:
        records, size_bytes = self._queue.size
        return not records or (
            records < self._config.max_queued_records * share
            and size_bytes < self._config.max_queued_bytes * share
        )

    def _drop(self, unwanted: Callable[[TopicPartition], bool]) -> None:
        self._queue_delivered()
        self._queue.drop(unwanted)


def _checked_start(start: Any) -> Start:
    if start in ("earliest", "latest"):
        return start  # type: ignore[no-any-return]
    if not isinstance(start, Mapping):
        why = "must be 'earliest', 'latest' or {topic: {partition: offset}}"
        raise ConfigError("start", start, why)
    for topic, partitions in start.items():
        if not isinstance(partitions, Mapping) or not all(
            type(offset) is int and 0 <= offset <= MAX_SEQUENCE for offset in partitions.values()
        ):
            raise ConfigError("start", start, f"topic {topic!r}: must be {{partition: offset}}")
        check_argument("start", topic, check_topic)
    return start
