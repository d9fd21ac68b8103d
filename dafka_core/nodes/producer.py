"""The producer as an application uses it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from math import inf
from typing import Any, Final

from dafka_core.envelope import MAGIC
from dafka_core.epochs import LIFE_ID_BITS
from dafka_core.errors import (
    BackPressureError,
    ClosedError,
    ConfigError,
    DafkaError,
    NotAcknowledgedError,
    PartitionFullError,
    ProducerFencedError,
    RecordTooLargeError,
)
from dafka_core.keys.allowed_keys import check_produce
from dafka_core.name_limits import check_node_address, check_topic
from dafka_core.names import NOT_PLAIN, escape, is_plain
from dafka_core.node_options import IGNORE, ProducerOptions
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node
from dafka_core.nodes.peers import SETTLE_S
from dafka_core.nodes.process_exit import end_at_exit, report_lost
from dafka_core.nodes.producer_resumed import resume
from dafka_core.nodes.published import Headers, Octets, content_of, contents_of, time_of
from dafka_core.nodes.unacked import Unacked
from dafka_core.options import check_argument
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.records import TopicPartition
from dafka_core.timestamps import WallClock
from dafka_core.values import Values

CHUNK_COUNT: Final = 10_000
"""``publish_many`` waits for room chunk by chunk: more records than ``max_unacked_records`` would
never find room at once."""

_log: Final = logging.getLogger("dafka.producer")


class Producer(Node):
    """Publishes records to one partition of a topic.

    The producer keeps every record until ``acks`` stores have it on disk.  Several threads may use
    one producer.  The process's end closes producers that are open, and ends with exit code 1 when
    not all that they published is acknowledged by then.

    Args:
        topic: 1 to 255 bytes; what is not plain text needs option ``allow_control_characters``.
        address: resume this partition where its earlier producer has ended; without it, a new one.
            A producer with this address that still runs is fenced (RFC 46: "only one producer
            SHALL ever publish to the same partition").
        options: see ``ProducerOptions``.

    Raises:
        ConfigError: an option, the topic or the address cannot be used.
        NotAllowedError: the key may not produce to the topic.
        TowerNotFoundError: no tower answered.
        NoStoreError: an address was given and no store could say how far its partition goes.
        MissingStoresError: an address was given, and stores that may have acknowledged records of
            its partition do not answer.
        TopicDeletedError: an address was given whose topic was deleted since it published last.
    """

    def __init__(self, topic: str, *, address: str | None = None, **options: Any) -> None:
        config = ProducerOptions.build(options)
        check_argument("topic", topic, check_topic)
        if not (config.allow_control_characters or is_plain(topic)):
            raise ConfigError("topic", escape(topic), NOT_PLAIN.format("allow_control_characters"))
        if address is not None:
            check_argument("address", address, check_node_address)
        check_produce(config, topic)
        self.topic = topic
        self.address = address or new_address(config)
        self._config = config
        # The largest record that this producer and each store that it knows take, and whose limit.
        self._limit = (config.max_record_bytes, "this producer")
        # Offset and size of a record that was published, and that too few stores take.
        self._refused: tuple[int, int] | None = None
        self._role = ProducerRole(
            TopicPartition(topic, self.address),
            acks=config.acks,
            head_interval_s=config.head_interval_ms / 1000,
            life_id=secrets.randbits(LIFE_ID_BITS),
            resume=address is not None,
            least_number=int(time.time()),
            ignore_missing=config.resume_missing == IGNORE,
        )
        # A thread that waits for room holds the turn, not the lock: a call's offsets are
        # consecutive.
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._outbox: list[tuple[Values, int]] = []  # not yet given to the role, with timestamps
        self._singles: list[bytes] = []  # the same, after the outbox: published one by one
        self._last_us = 0  # the timestamp that was given last
        self._clock = WallClock()
        self._next_offset = 0
        self._durable = 0
        self._unacked = Unacked()
        self._woken = False  # whether the loop knows that there is something to send
        self._closed = False
        # Only sockets tell C stores' acknowledgements apart, and it matters for several acks only.
        self._mesh = Mesh("producer", self._role, config, tell_peers_apart=config.acks > 1)
        self._mesh.start(self._on_round)
        try:
            if address is not None:
                # It takes the partition over from an earlier producer, and goes on where that ends.
                resume(self._mesh, self._role, config)
                self._next_offset = self._durable = self._role.next_offset
            else:
                # What is published earlier has to be fetched, and C nodes ask only once: without
                # an answer they wait for the next record.
                time.sleep(SETTLE_S)
        except BaseException:
            self._mesh.close()
            raise
        self._is_open = True
        end_at_exit(self)

    @property
    def parts(self) -> tuple[Mesh, ProducerRole, Unacked]:
        """What it is made of, for who watches it."""
        return self._mesh, self._role, self._unacked

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._next_offset

    @property
    def acknowledged(self) -> int:
        """The offset before which all records are acknowledged."""
        return max(self._durable, self._role.durable)

    @property
    def limit(self) -> tuple[int, str]:
        """The largest record that may be published, in bytes, and which node's limit that is."""
        return self._limit

    def publish(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
    ) -> int:
        """Publishes one record and returns its offset.

        ``headers`` are pairs (name, value).  ``timestamp`` is Kafka's create time, which never goes
        back within a partition; without it it is now.

        Raises, before anything is published:
            TypeError, ValueError: a value, a key or a header cannot be one.
            ConfigError: stores would not keep the timestamp, or ``envelope`` is ``none``.
            BackPressureError: for ``publish_timeout_s`` too many records were unacknowledged.
            ProducerFencedError: another producer has taken over the partition.
            ClosedError: the producer is closed.
            RecordTooLargeError: the producer, or a store that it knows, takes none so large.
            PartitionFullError: there is no offset left.
        """
        if type(value) is bytes and key is None and not headers and value[:4] != MAGIC:
            content = value
        else:
            content = content_of(value, key, headers, self._config.envelope)
        if timestamp is not None or len(content) > self._limit[0]:
            return self._publish(Values.of([content]), timestamp)
        with self._turn:
            self._check_offsets(1)
            self._wait_for_room()
            with self._lock:
                if not self._singles:
                    self._last_us = max(self._last_us, self._clock.now_us())
                self._singles.append(content)
                offset = self._next_offset
                self._count(1, len(content))
                return offset

    def publish_many(
        self,
        values: Octets,
        keys: Octets | None = None,
        headers: Iterable[Headers] | None = None,
        timestamp: datetime | None = None,
    ) -> int:
        """Publishes records, in order, and returns the offset of the first (or the next one's).

        All have one ``timestamp``.  ``values`` may be an Arrow array of binary or string, with
        ``keys`` another one, and ``headers`` one of lists of structs (name, value): then nothing is
        done record by record.  Raises as ``publish``, and before anything is published, but for
        BackPressureError: the records before ``next_offset`` are published then.
        """
        return self._publish(contents_of(values, keys, headers, self._config.envelope), timestamp)

    def _publish(self, checked: Values, timestamp: datetime | None) -> int:
        with self._turn:
            self._check_open()
            first = self._next_offset
            now_us = self._clock.now_us
            time_us = None if timestamp is None else time_of(timestamp, self._last_us, now_us())
            self._check_offsets(len(checked))
            self._check_sizes(checked)
            for start in range(0, len(checked), CHUNK_COUNT):
                chunk = checked[start : start + CHUNK_COUNT]
                self._wait_for_room()
                with self._lock:
                    self._put_singles()
                    self._last_us = max(self._last_us, now_us() if time_us is None else time_us)
                    self._outbox.append((chunk, self._last_us))
                    self._count(len(chunk), chunk.size_bytes)
            return first

    def flush(self, timeout_s: float) -> None:
        """Waits until everything published is acknowledged.

        Raises:
            NotAcknowledgedError: it was not within ``timeout_s`` seconds; says how many.
            RecordTooLargeError: a store has come that does not take one of these records, and too
                few stores do.
        """
        target = self._next_offset
        if self._durable >= target:
            return

        def hurry(now: float) -> None:
            self._on_round(now)  # so that the role knows of everything that was published
            self._role.hurry = True

        self._mesh.call_soon(hurry)
        if not self._mesh.wait_until(
            lambda: self._durable >= target or self._role.fenced_by or self._refused, timeout_s
        ):
            count = target - self._durable
            raise NotAcknowledgedError(
                self.topic, self.address, count, timeout_s, self._role.asked_for
            )
        self._check_fenced()
        if self._durable < target:
            self._check_refused()

    def close(self) -> None:
        """Waits up to ``close_timeout_s`` for acknowledgements, then ends; may be called twice.

        Raises:
            NotAcknowledgedError: records are not acknowledged; says how many.
            RecordTooLargeError: as ``flush``.
        """
        self.end(started_s=time.monotonic())

    def end(self, *, started_s: float) -> None:
        """As ``close``, where ``close_timeout_s`` began at ``started_s``."""
        if self._closed:
            return
        self._closed = True
        try:
            left_s = started_s + self._config.close_timeout_s - time.monotonic()
            self.flush(max(round(left_s, 3), 0.0))
        except DafkaError:
            raise
        except BaseException as error:
            self._add_unacked(error)
            raise
        finally:
            self._is_open = False
            self._mesh.close()

    def _leave_with(self, error: BaseException | None) -> None:
        ends_well = error is None or (isinstance(error, SystemExit) and not error.code)
        if ends_well or self._closed:
            self.close()
            return
        assert error is not None
        # The application is failing already: its error is not hidden behind a wait.
        self._closed = True
        self._is_open = False
        self._mesh.close()
        if lost := self._add_unacked(error):
            _log.error("%s", lost)

    def revive(self) -> None:
        """Has the loop send what was published."""
        self._mesh.attend(self._on_round)

    def close_dropped(self) -> None:
        """Waits for acknowledgements as ``close`` does."""
        try:
            self.close()
        except DafkaError as error:
            report_lost(error)

    def _add_unacked(self, failure: BaseException) -> NotAcknowledgedError | None:
        """Says at an error that ends the producer what is not acknowledged, if anything."""
        count = self._next_offset - self.acknowledged
        if not count:
            return None
        lost = NotAcknowledgedError(self.topic, self.address, count, 0.0, self._role.asked_for)
        failure.add_note(str(lost))
        return lost

    # -- under self._turn ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("producer")
        self._mesh.check()
        self._check_fenced()

    def _check_fenced(self) -> None:
        life = self._role.fenced_by
        if life is not None and self._durable < self._next_offset:
            raise ProducerFencedError(
                self.topic, self.address, life.number, self._durable, self._next_offset
            )

    def _check_refused(self) -> None:
        if self._refused is not None:
            raise RecordTooLargeError(self.topic, self.address, *self._refused, *self._limit)

    def _check_offsets(self, count: int) -> None:
        if self._next_offset + count > MAX_SEQUENCE + 1:
            first = self._next_offset
            raise PartitionFullError(self.topic, self.address, first, count, MAX_SEQUENCE + 1)

    def _check_sizes(self, values: Values) -> None:
        limit = self._limit
        if values.largest_bytes > limit[0]:
            index = next(i for i, value in enumerate(values) if len(value) > limit[0])
            facts = (self._next_offset + index, len(values[index]), *limit)
            raise RecordTooLargeError(self.topic, self.address, *facts)

    def _wait_for_room(self) -> None:
        self._check_open()
        if self._has_room():
            return
        waited_s = self._config.publish_timeout_s
        if not self._mesh.wait_until(lambda: self._has_room() or self._refused, waited_s):
            count = self._next_offset - self._durable
            raise BackPressureError(self.topic, self.address, count, waited_s)
        self._check_open()
        if not self._has_room():
            self._check_refused()

    def _has_room(self) -> bool:
        return self._role.fenced_by is not None or (
            self._next_offset - self._durable < self._config.max_unacked_records
            and self._unacked.size_bytes < self._config.max_unacked_bytes
        )

    # -- under self._lock ------------------------------------------------------------------------

    def _count(self, records: int, size_bytes: int) -> None:
        self._next_offset += records
        self._unacked.add(self._next_offset, size_bytes)
        if not self._woken:
            self._woken = True
            self._mesh.wake()

    def _put_singles(self) -> None:
        if self._singles:
            self._outbox.append((Values.of(self._singles), self._last_us))
            self._singles = []

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        with self._lock:
            self._woken = False
            self._put_singles()
            outbox, self._outbox = self._outbox, []
            self._durable = max(self._durable, self._role.durable)
            store = self._mesh.limits.smallest_store
            before, self._limit = self._limit, (self._config.max_record_bytes, "this producer")
            if store is not None and store.limit_bytes < self._limit[0]:
                self._limit = (store.limit_bytes, f"store {store.node}")
            self._unacked.drop_until(self._durable)
        for values, time_us in outbox:
            self._mesh.send(self._role.publish(now, values, time_us))
        limit_bytes = self._limit[0]
        too_large = limit_bytes < self._config.max_record_bytes and any(
            values.largest_bytes > limit_bytes for values, _ in outbox
        )
        if too_large or self._refused or limit_bytes < before[0]:
            found = self._role.first_above(limit_bytes)
            taking = self._mesh.limits.stores_taking(found[1]) if found else inf
            self._refused = found if taking < self._config.acks else None
        return False
