"""The producer as an application uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from dafka_core.closing import Closing
from dafka_core.errors import (
    BackPressureError,
    ClosedError,
    ConfigError,
    NoStoreError,
    NotAcknowledgedError,
)
from dafka_core.node_options import ProducerOptions
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.argument_checks import check_argument
from dafka_core.nodes.interruptible import InterruptibleCondition, InterruptibleEvent
from dafka_core.nodes.mesh import Mesh
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreQuery
from dafka_core.protocol.validation import check_address, check_topic
from dafka_core.records import TopicPartition
from dafka_core.values import Values

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_COUNT: Final = 10_000
"""``publish_many`` waits for room piece by piece, so that more than ``max_unacked_records`` at
once is no dead end."""

SETTLE_S: Final = 0.1
"""Nodes that are there connect to a new producer within some 30 ms.  What it publishes before has
to be fetched, and deployed nodes ask once: without an answer they wait for the next record."""

RESUME_ROUNDS: Final = 3
"""How often deployed stores are asked for the partition to resume.  To take a lost answer for "no
such partition" would be to begin it anew, over the records it has."""

ARROW_TYPES: Final = ("binary", "string", "large_binary", "large_string")


class Producer(Closing):
    """Publishes records to one partition of a topic.

    Every record is kept until ``acks`` stores have it on disk.  One producer may be used from
    several threads.

    Args:
        topic: 1 to 255 bytes.
        tower: see ``NodeOptions.tower``.
        address: resume this partition where its earlier producer has ended; a new one otherwise.
            There must never be two producers with one address at a time.
        options: see ``ProducerOptions``.

    Raises:
        ConfigError: an option, the topic or the address cannot be used.
        TowerNotFoundError: no tower answered.
        NoStoreError: an address was given and no store could say how far its partition has come.
    """

    def __init__(
        self, topic: str, *, tower: Any = None, address: str | None = None, **options: Any
    ) -> None:
        if tower is not None:
            options["tower"] = tower
        config = ProducerOptions.build(options)
        check_argument("topic", topic, check_topic)
        if address is not None:
            check_argument("address", address, check_address)
        self.topic = topic
        self.address = address or new_address()
        self._config = config
        self._role = ProducerRole(
            TopicPartition(topic, self.address),
            acks=config.acks,
            head_interval_s=config.head_interval_ms / 1000,
            resume=address is not None,
        )
        # Whoever waits for room holds the turn, not the lock: a call's offsets are consecutive.
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._changed = InterruptibleCondition()
        self._outbox: list[Values] = []  # published, not yet with the role
        self._singles: list[bytes] = []  # the same, after the outbox: published one by one
        self._next_offset = 0
        self._durable = 0
        self._sizes: list[tuple[int, int]] = []  # (end, bytes) of what waits for its ACK
        self._waiting_bytes = 0
        self._woken = False  # the loop knows that there is something to send
        self._closed = False
        # Only sockets tell deployed stores' acknowledgements apart, and only then it matters.
        self._mesh = Mesh(
            "producer",
            self._role,
            config,
            on_round=self._on_round,
            tell_peers_apart=config.acks > 1,
        )
        self._mesh.start()
        if address is not None:
            self._resume()
        else:
            time.sleep(SETTLE_S)

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._next_offset

    def publish(self, value: bytes) -> int:
        """Publishes one record and returns its offset.

        Raises:
            BackPressureError: too much waits for acknowledgements, for ``publish_timeout_s``.
            ClosedError: the producer is closed.
        """
        if type(value) is not bytes or len(value) > self._config.max_record_bytes:
            return self.publish_many((value,))
        with self._turn:
            self._make_room()
            with self._lock:
                self._singles.append(value)
                offset = self._next_offset
                self._count(1, len(value))
                return offset

    def publish_many(self, values: Iterable[bytes] | pa.Array) -> int:
        """Publishes records, in order, and returns the offset of the first (or the next one's).

        ``values`` may be an Arrow array of binary or string without nulls: it is sent without
        being looked at record by record.

        Raises:
            TypeError: a value is no bytes; nothing has been published.
            BackPressureError: as ``publish``; the records before ``next_offset`` are published.
        """
        checked = _checked_values(values)
        if checked.largest_bytes > self._config.max_record_bytes:
            why = f"a record has {checked.largest_bytes} bytes"
            raise ConfigError("max_record_bytes", self._config.max_record_bytes, why)
        with self._turn:
            self._check_open()
            first = self._next_offset
            for start in range(0, len(checked), CHUNK_COUNT):
                chunk = checked[start : start + CHUNK_COUNT]
                self._make_room()
                with self._lock:
                    self._put_singles()
                    self._outbox.append(chunk)
                    self._count(len(chunk), chunk.size_bytes)
            return first

    def flush(self, timeout_s: float) -> None:
        """Waits until everything published is acknowledged.

        Raises:
            NotAcknowledgedError: it was not within ``timeout_s`` seconds; says how many.
        """
        target = self._next_offset
        if self._durable >= target:
            return
        self._mesh.call(self._hurry)
        if not self._wait(lambda: self._durable >= target, timeout_s):
            count = target - self._durable
            raise NotAcknowledgedError(self.topic, self.address, count, timeout_s)

    def close(self) -> None:
        """Waits up to ``close_timeout_s`` for acknowledgements, then ends; may be called twice.

        Raises:
            NotAcknowledgedError: records are not acknowledged; says how many.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(self._config.close_timeout_s)
        finally:
            self._mesh.close()

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:
            # The application is failing already: do not hide its error behind a wait for ours.
            self._closed = True
            self._mesh.close()

    # -- under self._turn ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("producer")
        self._mesh.check()

    def _make_room(self) -> None:
        self._check_open()
        if not self._has_room():
            self._wait(self._has_room, self._config.publish_timeout_s)
            self._check_open()
            if not self._has_room():
                count = self._next_offset - self._durable
                waited_s = self._config.publish_timeout_s
                raise BackPressureError(self.topic, self.address, count, waited_s)

    def _has_room(self) -> bool:
        config = self._config
        return (
            self._next_offset - self._durable < config.max_unacked_records
            and self._waiting_bytes < config.max_unacked_bytes
        )

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        return self._changed.wait_until(condition, timeout_s, self._mesh.check)

    # -- under self._lock ------------------------------------------------------------------------

    def _count(self, records: int, size_bytes: int) -> None:
        self._next_offset += records
        self._sizes.append((self._next_offset, size_bytes))
        self._waiting_bytes += size_bytes
        if not self._woken:
            self._woken = True
            self._mesh.wake()

    def _put_singles(self) -> None:
        if self._singles:
            self._outbox.append(Values.of(self._singles))
            self._singles = []

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        with self._lock:
            self._woken = False
            self._put_singles()
            outbox, self._outbox = self._outbox, []
            if self._role.durable > self._durable:
                self._durable = self._role.durable
                acknowledged = 0
                while acknowledged < len(self._sizes) and (
                    self._sizes[acknowledged][0] <= self._durable
                ):
                    self._waiting_bytes -= self._sizes[acknowledged][1]
                    acknowledged += 1
                del self._sizes[:acknowledged]
                self._changed.ring()
        for values in outbox:
            self._mesh.send(self._role.publish(now, values))
        return False

    def _hurry(self, now: float) -> list[Outgoing]:
        self._role.hurry = True
        return []

    def _resume(self) -> None:
        asked: list[StoreQuery] = []

        def ask(now: float) -> list[Outgoing]:
            assert self._role.directory is not None
            question, messages = self._role.directory.ask_heads(
                now, [self.topic], rounds=RESUME_ROUNDS
            )
            asked.append(question)
            return messages

        self._mesh.call(ask)
        deadline = time.monotonic() + self._config.resume_timeout_s
        while not (asked and asked[0].answered):
            try:
                self._mesh.check()
            except BaseException:
                self._mesh.close()
                raise
            if time.monotonic() >= deadline:
                self._mesh.close()
                towers = [str(tower) for tower in self._config.tower]
                raise NoStoreError(towers, self._config.resume_timeout_s)
            time.sleep(0.005)
        _, end = asked[0].heads.get(self._role.tp, (0, 0))
        resumed = InterruptibleEvent()

        def resume(now: float) -> list[Outgoing]:
            self._role.resume_at(end)
            resumed.set()
            return []

        with self._lock:
            self._next_offset = self._durable = end
            self._mesh.call(resume)
        resumed.wait(self._config.resume_timeout_s)


def _checked_values(values: Iterable[bytes] | pa.Array) -> Values:
    if isinstance(values, Values):
        return values
    if hasattr(values, "buffers"):  # an Arrow array, which need not be imported to be known
        array: pa.Array = values
        if array.null_count or str(array.type) not in ARROW_TYPES:
            raise TypeError(
                f"an array of records must be binary or string without nulls; this is "
                f"{array.type} with {array.null_count} nulls"
            )
        return Values.from_arrow(array)
    listed = list(values)
    if set(map(type, listed)) - {bytes}:
        index = next(i for i, value in enumerate(listed) if type(value) is not bytes)
        kind = type(listed[index]).__name__
        raise TypeError(f"a record's value must be bytes; values[{index}] is {kind}")
    return Values.of(listed)
