"""The consumer as an application uses it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from dafka_core.closing import Closing
from dafka_core.errors import ClosedError, ConfigError
from dafka_core.node_options import ConsumerOptions
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.argument_checks import check_argument
from dafka_core.nodes.interruptible import InterruptibleCondition, InterruptibleEvent
from dafka_core.nodes.mesh import Mesh
from dafka_core.protocol.consumer_role import ConsumerRole, Start
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.validation import check_topics
from dafka_core.records import Record, RecordBatch, TopicPartition, records


class Consumer(Closing):
    """Delivers the records of topics: per partition in order, each once, none missing.

    Iterating it never ends: it waits for the next record until ``close`` is called (from
    another thread or a signal handler), which ends the iteration.  At most
    ``max_queued_records`` wait for the application; what comes beyond is left to the stores and
    fetched later, so a slow application costs nobody memory.

    Args:
        tower: see ``NodeOptions.tower``.
        start: where to begin partitions: ``"earliest"``, ``"latest"`` (the end of each partition
            when it is first heard of), or ``{topic: {partition: offset}}`` with the earliest for
            the partitions not named.
        options: see ``ConsumerOptions``.

    Raises:
        ConfigError: an option cannot be used.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, *, tower: Any = None, start: Start = "earliest", **options: Any) -> None:
        if tower is not None:
            options["tower"] = tower
        self._config = ConsumerOptions.build(options)
        self._role = ConsumerRole(new_address(), _checked_start(start))
        self._lock = threading.Lock()
        self._arrived = InterruptibleCondition()
        self._queue: deque[tuple[RecordBatch, int]] = deque()
        self._queued_records = 0
        self._queued_bytes = 0
        self._current: Iterator[Record] = iter(())
        self._current_run: RecordBatch | None = None
        self._current_values: list[bytes] = []
        self._closed = False
        self._mesh = Mesh("consumer", self._role, self._config, on_round=self._on_round)
        self._mesh.start()

    @property
    def address(self) -> str:
        """The consumer's UUID."""
        return self._role.address

    @property
    def subscription(self) -> list[str]:
        """The topics subscribed to, in the order of their subscription."""
        return self._role.topics

    def subscribe(self, topic: str) -> None:
        """Follows a topic from now on.

        Raises:
            ConfigError: the topic cannot be one, or there are too many.
        """
        # All of them are told to stores in one message.
        check_argument("topic", topic, lambda new: check_topics((*self._role.topics, new)))

        def subscribe(now: float) -> list[Outgoing]:
            self._mesh.subscribe(self._role.topic_subscriptions(topic))
            return self._role.subscribe(topic)

        self._call(subscribe)

    def unsubscribe(self, topic: str) -> None:
        """Follows a topic no more; records of it that wait are dropped, positions forgotten."""

        def unsubscribe(now: float) -> None:
            if topic in self._role.topics:
                self._mesh.unsubscribe(self._role.topic_subscriptions(topic))
                self._role.unsubscribe(topic)
                self._drop(lambda batch: batch.topic == topic)

        self._call(unsubscribe)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Goes on with the record at ``offset``; records of the partition that wait are dropped.

        Raises:
            ConfigError: the offset is negative or too large.
        """
        if not 0 <= offset <= MAX_SEQUENCE:
            raise ConfigError("offset", offset, f"must lie in 0 to {MAX_SEQUENCE}")

        def seek(now: float) -> None:
            self._role.seek(tp, offset)
            self._drop(lambda batch: batch.tp == tp)

        self._call(seek)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """By partition: the next offset to take from peers, and the known end."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        self._call(lambda now: found.update(self._role.positions()))
        return found

    def poll(self, timeout_s: float) -> Record | None:
        """The next record, or None if none comes in time.

        Raises:
            ClosedError: the consumer is closed.
        """
        record = next(self._current, None)
        if record is None:
            batch = self._take(timeout_s)
            if batch is not None:
                self._current = self._records(batch)
                record = next(self._current, None)
        if record is None and self._closed:
            raise ClosedError("consumer")
        return record

    def batches(self, timeout_s: float | None = None) -> Iterator[RecordBatch]:
        """Records as runs, until none comes for ``timeout_s`` or the consumer is closed."""
        while (batch := self._take(timeout_s)) is not None:
            yield batch

    def __iter__(self) -> Iterator[Record]:
        rest, self._current = self._current, iter(())
        return chain(rest, chain.from_iterable(map(self._records, self.batches())))

    def close(self) -> None:
        """Ends; may be called twice.  Records that wait are dropped: they are in the stores."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._current_values.clear()
        self._arrived.ring()
        self._mesh.close()

    def _records(self, batch: RecordBatch) -> Iterator[Record]:
        values = list(batch.values)
        with self._lock:
            self._current_run, self._current_values = batch, values
        return records(batch, values)

    def _take(self, timeout_s: float | None) -> RecordBatch | None:
        taken: list[RecordBatch] = []

        def take() -> bool:
            with self._lock:
                if self._queue:
                    taken.append(self._pop())
                return bool(taken) or self._closed

        self._arrived.wait_until(take, timeout_s, self._mesh.check)
        return taken[0] if taken else None

    def _pop(self) -> RecordBatch:
        batch, size_bytes = self._queue.popleft()
        was_full = not self._role.room
        self._queued_records -= len(batch.values)
        self._queued_bytes -= size_bytes
        if was_full and self._queued_records <= self._config.max_queued_records // 2:
            self._mesh.wake()
        return batch

    def _call(self, function: Any) -> None:
        """Runs ``function(now)`` in the loop and waits for it."""
        done = InterruptibleEvent()

        def call(now: float) -> list[Outgoing] | None:
            try:
                result: list[Outgoing] | None = function(now)
                return result
            finally:
                done.set()

        self._mesh.call(call)
        while not done.wait(0.5):
            self._mesh.check()

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        delivered, self._role.delivered = self._role.delivered, []
        sized = [(batch, batch.values.size_bytes) for batch in delivered]
        with self._lock:
            if self._closed:
                return False
            self._queue.extend(sized)
            self._queued_records += sum(len(batch.values) for batch in delivered)
            self._queued_bytes += sum(size_bytes for _, size_bytes in sized)
            # A queue that was full takes records again when half of it is gone, not one by one.
            had_room = self._role.room
            share = 1.0 if had_room else 0.5
            self._role.room = (
                self._queued_records < self._config.max_queued_records * share
                and self._queued_bytes < self._config.max_queued_bytes * share
            ) or not self._queue
            if delivered:
                self._arrived.ring()
            # With room again, the next round asks for what was left.
            return self._role.room and not had_room

    def _drop(self, unwanted: Any) -> None:
        self._on_round(0.0)
        with self._lock:
            if self._current_run is not None and unwanted(self._current_run):
                # The application may be iterating over it: this ends that iteration.
                self._current_values.clear()
            kept = [(batch, size) for batch, size in self._queue if not unwanted(batch)]
            self._queue = deque(kept)
            self._queued_records = sum(len(batch.values) for batch, _ in kept)
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
