"""The producer of applications.

The path of a record: ``publish`` encodes it, gives it the next offset, puts it into the last list
of ``_outbox``, and wakes the loop of the mesh; ``publish_many`` adds a batch.  The loop's next
round, ``_on_round``, passes the batches to the role (``ProducerRole.publish``), which keeps each
until it is acknowledged, and to ``Mesh.send``, which writes them to the socket.

A store acknowledges an offset when its disk has all records before it.
``ProducerRole.acknowledged`` is the offset that ``acks`` stores have reached, and ``flush`` waits
until it reaches ``next_offset``.  If ``acks`` is the number of stores, all of them have the records
then; after another one has joined, any ``acks`` of them suffice.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sized
from datetime import datetime
from math import inf
from typing import Any, Final

import numpy as np

from dafka_core.config.node_options import IGNORE, ProducerOptions
from dafka_core.config.options import check_argument
from dafka_core.errors import (
    BackPressureError,
    ClosedError,
    ConfigError,
    DafkaError,
    MissingStoresError,
    NoStoreError,
    NotAcknowledgedError,
    PartitionFullError,
    ProducerFencedError,
    RecordTooLargeError,
)
from dafka_core.model.envelope import AUTO, MAGIC, Header, closed
from dafka_core.model.epochs import LIFE_ID_BITS, number_at
from dafka_core.model.name_limits import check_node_address, check_topic
from dafka_core.model.names import NOT_PLAIN, escape, is_plain
from dafka_core.model.positions import moment_us
from dafka_core.model.records import TopicPartition, as_runs
from dafka_core.model.timestamps import WallClock
from dafka_core.model.values import Longs, Values
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node, close_at_exit, close_later, closing, ends_well
from dafka_core.nodes.peers import CONNECT_S
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.security.allowed_keys import check_produce

Octets = Iterable[bytes | None]
"""The values or keys of many records, or an Arrow array of binary or string."""

Headers = Iterable[Header] | None
"""The headers of one record; those of many may be an Arrow array of lists of structs."""

CHUNK_COUNT: Final = 10_000
"""``publish_many`` waits for room chunk by chunk, because a call may have more records than
``max_unacked_records``."""

_log: Final = logging.getLogger("dafka.producer")


class Producer(Node):
    """Publishes records to one partition of a topic.

    The producer keeps every record until ``acks`` stores have it on disk.  Several threads may use
    one producer.  The end of the process closes open producers; the exit code is 1 if records are
    still not acknowledged.

    A signal's handler may raise an exception, or call ``close``.  If it interrupts a ``publish``,
    ``close`` may return at once: the producer closes when that call has ended, and the end of the
    process waits for it.  A handler must call nothing else, as the interrupted call may hold a
    lock.

    Args:
        topic: 1 to 255 bytes; control characters need option ``allow_control_characters``.
        address: the partition to resume after its last record; without it, a new one, whose name
            is attribute ``address``.  An earlier producer with this address that still runs is
            fenced (RFC 46: "only one producer SHALL ever publish to the same partition").
        options: see ``ProducerOptions``.

    Raises:
        ConfigError: an option, the topic or the address is invalid.
        NotAllowedError: the key may not produce to the topic.
        TowerNotFoundError: no tower answered.
        NoStoreError: an address was given and no store answered with its last offset.
        MissingStoresError: an address was given, and stores that may have acknowledged records of
            its partition do not answer.
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
        self.limit = (config.max_record_bytes, "this producer")
        """The size in bytes of the largest accepted record, and the node that sets this limit."""
        self.role = ProducerRole(
            TopicPartition(topic, self.address),
            acks=config.acks,
            head_interval_s=config.head_interval_ms / 1000,
            life_id=secrets.randbits(LIFE_ID_BITS),
            resume=address is not None,
            least_number=number_at(time.time()),
            ignore_missing=config.resume_missing == IGNORE,
        )
        # A call waits for room with the turn, not the lock, so that its offsets are consecutive.
        self._turn, self._lock = threading.Lock(), threading.Lock()
        # Published records that the role does not have yet, with their timestamps.
        self._outbox: list[tuple[list[bytes] | Values, int | Longs]] = []
        self._singles: list[bytes] | None = None  # the last of them, if ``publish`` may add to it
        self._clock = WallClock()
        self._next_offset = self._published_bytes = 0
        # The offset and the bytes before which there is room, by the last acknowledgements.
        self._max_offset = self._max_bytes = 0
        self._woken = False  # the loop has a wake-up pending
        # Only sockets identify the C store of an acknowledgement; one ack does not need that.
        self.mesh = Mesh("producer", self.role, config, socket_per_peer=config.acks > 1)
        self.mesh.start(self._on_round)
        try:
            if address is not None:
                _resume(self.mesh, self.role, config)
                self._next_offset = self.role.next_offset
            else:
                # C nodes that connect later fetch the first records, but ask only once.
                time.sleep(CONNECT_S)
        except BaseException:
            self.mesh.close()
            raise
        with self._lock:
            self.is_open = True
            self._make_room()
        close_at_exit(self)

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._next_offset

    @property
    def acknowledged(self) -> int:
        """The offset before which all records are acknowledged."""
        return self.role.acknowledged

    @property
    def unacked_bytes(self) -> int:
        """The size of the unacknowledged records."""
        return self._published_bytes - self.role.acknowledged_bytes

    def publish(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
    ) -> int:
        """Publish one record and return its offset.

        ``headers`` are pairs (name, value).  ``timestamp`` is Kafka's create time, in any
        order; the default is now.

        Raises, before anything is published:
            TypeError, ValueError: a value, a key or a header is invalid.
            ConfigError: the timestamp has no time zone, or ``envelope`` is ``none``.
            BackPressureError: too many records stayed unacknowledged for ``publish_timeout_s``.
            ProducerFencedError: another producer has taken over the partition.
            ClosedError: the producer is closed.
            RecordTooLargeError: the producer, or a known store, has a smaller limit.
            PartitionFullError: no offset is left.
        """
        if type(value) is bytes and key is None and not headers and value[:4] != MAGIC:
            content = value
        else:
            content = content_of(value, key, headers, self._config.envelope)
        size_bytes = len(content)
        if timestamp is None and size_bytes <= self.limit[0] and self.mesh.failure is None:
            with self._lock:
                offset = self._next_offset
                if (
                    offset < self._max_offset
                    and self._published_bytes < self._max_bytes
                    and not self._turn.locked()
                ):
                    singles = self._singles
                    if singles is None:
                        singles = []
                        self._outbox.append((singles, self._clock.now_us()))
                        self._singles = singles  # last: a signal may interrupt before it
                    # A signal may interrupt after each call, so the counts come before it.
                    self._next_offset = offset + 1
                    self._published_bytes += size_bytes
                    singles.append(content)
                    if not self._woken:
                        self._wake()
                    return offset
        return self._publish(Values.of([content]), timestamp)

    def publish_many(
        self,
        values: Octets,
        keys: Octets | None = None,
        headers: Iterable[Headers] | None = None,
        timestamp: datetime | Any = None,
    ) -> int:
        """Publish records in order; return the first one's offset, or ``next_offset`` without any.

        All have one ``timestamp``, or each its own in an Arrow array; null is now.  ``values`` and
        ``keys`` may be Arrow arrays of binary or string, and ``headers`` one of lists of structs
        (name, value); these are handled by column.
        Raises as ``publish``; after BackPressureError the records before ``next_offset`` are
        published.
        """
        return self._publish(contents_of(values, keys, headers, self._config.envelope), timestamp)

    def _publish(self, contents: Values, timestamp: datetime | Any) -> int:
        self._check_open()  # before the turn, whose owner a forked child may lack
        since = time.monotonic(), self.acknowledged
        with self._turn:
            with self._lock:  # ``publish`` adds nothing from here on
                first = self._next_offset
            times_us: int | Longs | None = None
            if hasattr(timestamp, "buffers"):  # an Arrow array
                times_us = times_of(timestamp, len(contents), self._clock.now_us())
            elif timestamp is not None:
                times_us = time_of(timestamp)
            if first + len(contents) > MAX_SEQUENCE + 1:
                raise PartitionFullError(*self.role.tp, first, len(contents), MAX_SEQUENCE + 1)
            limit = self.limit
            if contents.largest_bytes > limit[0]:
                sizes = map(len, contents)
                index, size = next((at, size) for at, size in enumerate(sizes) if size > limit[0])
                raise RecordTooLargeError(*self.role.tp, first + index, size, *limit)
            for start in range(0, len(contents), CHUNK_COUNT):
                chunk = contents[start : start + CHUNK_COUNT]
                count, size_bytes = len(chunk), chunk.size_bytes
                self._wait_for_room(*since)
                # Before the counts: a signal may interrupt it, and nothing is published then.
                times = self._clock.now_us() if times_us is None else times_us
                if isinstance(times, np.ndarray):
                    times = as_runs(times[start : start + count])
                with self._lock:
                    self._check_open()  # again: nothing published after ``close`` would be sent
                    self._singles = None
                    self._next_offset += count
                    self._published_bytes += size_bytes
                    self._outbox.append((chunk, times))
                    self._wake()
            return first

    def flush(self, timeout_s: float) -> None:
        """Wait until all published records are acknowledged.

        Raises:
            NotAcknowledgedError: ``timeout_s`` seconds have passed; it counts the other records.
            ProducerFencedError: another producer with this address has taken over.
            NodeFailedError: the producer's thread ended with an error.
            ForkedError: this process is a fork of the producer's.
        """
        target, role = self._next_offset, self.role
        self.check_process()
        if role.acknowledged >= target:
            return

        def urge(now: float) -> None:
            self._on_round(now)  # hands everything published to the role
            role.urgent = True

        def is_done() -> bool:
            if role.acknowledged < target:
                self._check_progress()
                return False
            return True

        self.mesh.call_soon(urge)
        if not self.mesh.wait_until(is_done, timeout_s):
            raise self._not_acknowledged(target, timeout_s)

    def close(self) -> None:
        """Wait up to ``close_timeout_s`` for acknowledgements, then end; may be called twice.

        Raises:
            NotAcknowledgedError: records are not acknowledged; it counts them.
        """
        with closing(self):
            self.end(started_s=time.monotonic())

    def end(self, *, started_s: float) -> None:
        """Close, with a ``close_timeout_s`` that began at ``started_s``."""
        if self._lock.locked() and self._is_interrupted():
            close_later(self)
            return
        with self._lock:
            was_open, self.is_open = self.is_open, False
            self._make_room()
        if not was_open:
            return
        try:
            left_s = started_s + self._config.close_timeout_s - time.monotonic()
            self.flush(max(0.0, round(left_s, 1)))
        except BaseException as error:
            if not isinstance(error, DafkaError) and self.acknowledged < self._next_offset:
                error.add_note(str(self._not_acknowledged(self._next_offset, 0.0)))
            raise
        finally:
            self.mesh.close()

    def _is_interrupted(self) -> bool:
        """Return True in a signal's handler that has interrupted a method which uses the lock."""
        methods = {each.__code__ for each in (Producer.publish, Producer._publish, Producer.end)}
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(2)))  # noqa: SLF001
        return any(each.f_code in methods and each.f_locals["self"] is self for each in frames)

    def _leave_with(self, error: BaseException | None) -> None:
        if error is None or ends_well(error):
            self.close()
            return
        try:
            self.end(started_s=-inf)  # a wait would delay the application's error
        except DafkaError as lost:
            error.add_note(str(lost))
            _log.error("%s", lost)

    def _not_acknowledged(self, end: int, waited_s: float) -> NotAcknowledgedError:
        count, asked_for = end - self.acknowledged, self.role.asked_for
        return NotAcknowledgedError(*self.role.tp, count, waited_s, asked_for)

    def _check_open(self) -> None:
        if not self.is_open:
            raise ClosedError("producer")
        self.mesh.check()

    def _check_progress(self) -> None:
        """Raise the error of unacknowledged records that stores will not acknowledge."""
        if (life := self.role.fenced_by) is not None:
            ends = self.acknowledged, self._next_offset
            raise ProducerFencedError(*self.role.tp, life.number, *ends)

    def _wait_for_room(self, since: float, acknowledged: int) -> None:
        def has_room() -> bool:
            if self._next_offset < self._max_offset and self._published_bytes < self._max_bytes:
                return True
            self._check_open()
            self._check_progress()
            return False

        left_s = waited_s = self._config.publish_timeout_s  # also for the turn
        if acknowledged == self.acknowledged:
            left_s -= time.monotonic() - since
        if not has_room() and not self.mesh.wait_until(has_room, left_s):
            count = self._next_offset - self.acknowledged
            raise BackPressureError(*self.role.tp, count, waited_s)

    # -- under self._lock ------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self.mesh.wake()

    def _make_room(self) -> None:
        """Set the offset and the bytes before which there is room."""
        role, config = self.role, self._config
        is_shut = not self.is_open or role.fenced_by is not None
        end = min(role.acknowledged + config.max_unacked_records, MAX_SEQUENCE + 1)
        self._max_offset = 0 if is_shut else end
        self._max_bytes = role.acknowledged_bytes + config.max_unacked_bytes

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        with self._lock:
            self._woken, self._singles = False, None
            outbox, self._outbox = self._outbox, []
            self._make_room()
        for values, times in outbox:
            if values:
                self.mesh.send(self.role.publish(now, Values.of(values), times))
        self.limit = self.mesh.limits.with_stores(self._config.max_record_bytes, "this producer")
        return False


# -- the contents of records --------------------------------------------------------------------

_ARROW_TYPES: Final = ("binary", "string", "large_binary", "large_string")


def content_of(value: bytes | None, key: bytes | None, headers: Headers, envelope: str) -> bytes:
    """Return the content of one record; raise as ``publish``."""
    pairs: list[Any] = list(headers or ())
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(f"a header must be a pair (name, value), its name a text; got {pair!r}")
        _check_bytes(f"value of header {pair[0]!r}", pair[1])
    _check_bytes("value", value)
    _check_bytes("key", key)
    if envelope == AUTO:
        return closed(value, key, pairs)
    if value is None or key is not None or pairs:
        raise _without_envelopes(envelope)
    return value


def contents_of(
    values: Octets, keys: Octets | None, headers: Iterable[Headers] | None, envelope: str
) -> Values:
    """Return the contents of many records; raise as ``publish``."""
    if hasattr(values, "buffers"):  # an Arrow array: recognised without importing Arrow
        return _contents_of_columns(values, keys, headers, envelope)
    listed: list[Any] = list(values)
    if keys is None and headers is None and set(map(type, listed)) <= {bytes}:
        made = values if isinstance(values, Values) else Values.of(listed)
        if envelope != AUTO or not len(made.starting_with(MAGIC)):
            return made
    keys_of = [None] * len(listed) if keys is None else list(keys)
    headers_of = [None] * len(listed) if headers is None else list(headers)
    _check_counts(listed, keys_of, headers_of)
    contents: list[bytes] = []
    for value, key, pairs in zip(listed, keys_of, headers_of, strict=True):
        try:
            contents.append(content_of(value, key, pairs, envelope))
        except TypeError as error:
            raise TypeError(f"values[{len(contents)}]: {error}") from None
    return Values.of(contents)


def _contents_of_columns(values: Any, keys: Any, headers: Any, envelope: str) -> Values:
    for name, array in (("values", values), ("keys", keys)):
        kind = getattr(array, "type", type(array).__name__)
        if array is not None and str(kind) not in _ARROW_TYPES:
            raise TypeError(f"{name} of records must be an array of binary or string, not {kind}")
    if envelope != AUTO:
        if values.null_count or keys is not None or headers is not None:
            raise _without_envelopes(envelope)
        return Values.from_arrow(values)
    # A caller with arrays has loaded Arrow already.
    import pyarrow as pa  # noqa: PLC0415

    from dafka_core.model.envelope_columns import close_columns  # noqa: PLC0415

    if headers is not None:
        is_list = isinstance(headers, pa.ListArray) and pa.types.is_list(headers.type)
        if not is_list or headers.type.value_type.num_fields != 2:
            kind = "lists of structs of two, a string and a binary"
            raise TypeError(f"headers beside an array must be {kind}")
        # Arrow casts fields by their names, and these may have any.
        name, value = map(headers.type.value_type.field, range(2))
        pair = pa.struct([(name.name, pa.utf8()), (value.name, pa.binary())])
        headers = headers.cast(pa.list_(pair))
    _check_counts(values, keys, headers)
    return Values.from_arrow(close_columns(values, keys, headers))


def _check_counts(values: Sized, *columns: Sized | None) -> None:
    for each in columns:
        if each is not None and len(each) != len(values):
            raise ValueError(f"{len(values)} values have {len(each)} keys, or lists of headers")


def _check_bytes(name: str, octets: object) -> None:
    if octets is not None and type(octets) is not bytes:
        raise TypeError(f"a record's {name} must be bytes or None; got {type(octets).__name__}")


def _without_envelopes(envelope: str) -> ConfigError:
    return ConfigError("envelope", envelope, "publishes no keys, headers and null values")


def time_of(timestamp: datetime) -> int:
    """Return a create time in microseconds since 1970 UTC; raise as ``publish``."""
    given: Any = timestamp
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError("timestamp", timestamp, "must be a datetime with a time zone", "argument")
    return moment_us(timestamp)


def times_of(timestamps: Any, count: int, now_us: int) -> Longs:
    """Return the create times in an Arrow array; raise as ``publish``."""
    if getattr(timestamps.type, "tz", None) is None or len(timestamps) != count:
        why = "must have a time with a time zone for each record"
        raise ConfigError("timestamp", str(timestamps.type), why, "argument")
    try:
        times_us = timestamps.cast("timestamp[us]").cast("int64").fill_null(now_us)
    except ValueError as error:
        raise ConfigError("timestamp", str(timestamps.type), str(error), "argument") from None
    found: Longs = times_us.to_numpy(zero_copy_only=False)
    return found


# -- resuming a partition -----------------------------------------------------------------------


def _resume(mesh: Mesh, role: ProducerRole, options: ProducerOptions) -> None:
    """Wait until the role has taken its partition over from an earlier producer."""
    takeover, timeout_s = role.takeover, options.resume_timeout_s
    assert takeover is not None
    if not mesh.wait_until(lambda: role.takeover is None, timeout_s):
        if (missing := takeover.missing) is not None:
            raise MissingStoresError(*role.tp, *missing)
        raise NoStoreError([str(tower) for tower in options.tower], timeout_s)
