"""The consumer as an application uses it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from dafka_core.closing import Closing
from dafka_core.errors import ClosedError, ConfigError
from dafka_core.node_options import ConsumerOptions
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.mesh import Mesh
from dafka_core.options import check_argument
from dafka_core.protocol.consumer_role import ConsumerRole, Start
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.validation import check_topics
from dafka_core.records import Record, RecordBatch, TopicPartition, records


class Consumer(Closing):
    """Delivers the records of topics: per partition in order, each once, none missing.

    Iterating it never ends: it waits for the next record until another thread or a signal's
    handler calls ``close``.  At most ``max_queued_records`` wait for the application; the rest is
    left to the stores and fetched later, so a slow application costs no memory.

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
        self.address = new_address()
        """The consumer's UUID."""
        self._role = ConsumerRole(self.address, _checked_start(start))
        self._lock = threading.Lock()
        self._queue: deque[tuple[RecordBatch, int]] = deque()  # with the sizes of their values
        self._queued_records = 0
        self._queued_bytes = 0
        self._current: Iterator[Record] = iter(())
        self._current_batch: RecordBatch | None = None
        self._current_values: list[bytes] = []
        self._mesh = Mesh("consumer", self._role, self._config)
        self._mesh.start(self._on_round)

    @property
    def subscription(self) -> list[str]:
        """The topics subscribed to, in the order of their subscription."""
        return self._role.topics

    def subscribe(self, topic: str) -> None:
        """Follows a topic from now on.

        Raises:
            ConfigError: the topic cannot be one, or there are too many.
        """
        # A CONSUMER-HELLO names all of them in one message.
        check_argument("topic", topic, lambda new: check_topics((*self._role.topics, new)))

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
                self._drop(lambda batch: batch.topic == topic)

        self._mesh.call(unsubscribe)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Goes on with the record at ``offset``; drops the partition's queued records.

        Raises:
            ConfigError: the offset is negative or too large.
        """
        if not 0 <= offset <= MAX_SEQUENCE:
            raise ConfigError("offset", offset, f"must lie in 0 to {MAX_SEQUENCE}")

        def seek(now: float) -> None:
            self._role.seek(tp, offset)
            self._drop(lambda batch: batch.tp == tp)

        self._mesh.call(seek)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """By partition: the next offset to take from peers, and the known end."""
        return self._mesh.call(lambda now: self._role.positions())

    def poll(self, timeout_s: float) -> Record | None:
        """The next record, or None if none comes in time.

        Raises:
            ClosedError: the consumer is closed.
        """
        record = next(self._current, None)
        if record is None:
            batch = self._mesh.wait_until(self._take, timeout_s)
            if batch is not None:
                self._current = self._records(batch)
                record = next(self._current, None)
        return record

    def batches(self, timeout_s: float | None = None) -> Iterator[RecordBatch]:
        """The records as batches, until none comes for ``timeout_s`` or the consumer is closed."""
        try:
            while (batch := self._mesh.wait_until(self._take, timeout_s)) is not None:
                yield batch
        except ClosedError:
            return

    def __iter__(self) -> Iterator[Record]:
        rest, self._current = self._current, iter(())
        return chain(rest, chain.from_iterable(map(self._records, self.batches())))

    def close(self) -> None:
        """Ends; may be called twice.  Drops queued records: the stores have them."""
        self._mesh.close()
        with self._lock:
            self._queue.clear()
            self._current_values.clear()

    def _records(self, batch: RecordBatch) -> Iterator[Record]:
        values = list(batch.values)
        with self._lock:
            self._current_batch, self._current_values = batch, values
        return records(batch, values)

    def _take(self) -> RecordBatch | None:
        """The first batch of the queue, if there is one."""
        with self._lock:
            if not self._queue:
                return None
            batch, size_bytes = self._queue.popleft()
            self._queued_records -= batch.count
            self._queued_bytes -= size_bytes
        if not self._role.room and self._queued_records <= self._config.max_queued_records // 2:
            self._mesh.wake()
        return batch

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        delivered, self._role.delivered = self._role.delivered, []
        with self._lock:
            for batch in delivered:
                size_bytes = batch.values.size_bytes
                self._queue.append((batch, size_bytes))
                self._queued_records += batch.count
                self._queued_bytes += size_bytes
            # A queue that was full takes records again when half of it is gone, not one by one.
            had_room = self._role.room
            share = 1.0 if had_room else 0.5
            self._role.room = (
                self._queued_records < self._config.max_queued_records * share
                and self._queued_bytes < self._config.max_queued_bytes * share
            ) or not self._queue
            # With room again, the next round asks for what was left to the stores.
            return self._role.room and not had_room

    def _drop(self, unwanted: Callable[[RecordBatch], bool]) -> None:
        """Drops queued records, and those that the application is iterating over."""
        self._on_round(0.0)
        with self._lock:
            if self._current_batch is not None and unwanted(self._current_batch):
                self._current_values.clear()
            kept = [(batch, size) for batch, size in self._queue if not unwanted(batch)]
            self._queue = deque(kept)
            self._queued_records = sum(batch.count for batch, _ in kept)
            self._queued_bytes = sum(size_bytes for _, size_bytes in kept)


def _checked_start(start: Any) -> Start:
    if start in ("earliest", "latest"):
        return start  # type: ignore[no-any-return]
    if not isinstance(start, Mapping):
        why = "must be 'earliest', 'latest' or {topic: {partition: offset}}"
        raise ConfigError("start", start, why)
    for topic, partitions in start.items():
        if not isinstance(partitions, Mapping) or not all(
            isinstance(offset, int) and 0 <= offset <= MAX_SEQUENCE
            for offset in partitions.values()
        ):
            raise ConfigError("start", start, f"topic {topic!r}: must be {{partition: offset}}")
    return start
