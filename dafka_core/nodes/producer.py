"""The producer of applications.

The path of a record: ``publish`` encodes it, gives it the next offset, puts it into ``_singles``
and wakes the loop of the mesh; ``publish_many`` puts many at once into ``_outbox``.  The loop's
next round, ``_on_round``, passes them as batches to the role (``ProducerRole.publish``), which
keeps each batch until it is acknowledged, and to ``Mesh.send``, which writes them to the socket.

A store acknowledges an offset when its disk has all records before it.  ``ProducerRole.durable`` is
the offset that ``acks`` stores have reached, and ``flush`` waits until it reaches ``next_offset``:
with ``acks`` set to the number of stores, all stores have the records then.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final
from weakref import WeakSet

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
from dafka_core.model.epochs import LIFE_ID_BITS
from dafka_core.model.log_entries import Deletion, TopicDeletedError, parsed
from dafka_core.model.name_limits import check_node_address, check_topic
from dafka_core.model.names import DELETIONS_TOPIC, NOT_PLAIN, escape, is_plain
from dafka_core.model.records import TopicPartition
from dafka_core.model.timestamps import WallClock, shown_time
from dafka_core.model.values import Values
from dafka_core.nodes.addresses import new_address, options_beside
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.node import Node, wait_for_dropped
from dafka_core.nodes.peers import CONNECT_S
from dafka_core.nodes.reader import Reader
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

    Args:
        topic: 1 to 255 bytes; control characters need option ``allow_control_characters``.
        address: the partition to resume after its last record; without it, a new one.  An earlier
            producer with this address that still runs is fenced (RFC 46: "only one producer SHALL
            ever publish to the same partition").
        options: see ``ProducerOptions``.

    Raises:
        ConfigError: an option, the topic or the address is invalid.
        NotAllowedError: the key may not produce to the topic.
        TowerNotFoundError: no tower answered.
        NoStoreError: an address was given and no store answered with its last offset.
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
        # A call waits for room with the turn, not the lock, so that its offsets are consecutive.
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._outbox: list[tuple[Values, int]] = []  # for the role, with timestamps
        self._singles: list[bytes] = []  # published one by one after the outbox
        self._singles_us = 0  # their timestamp
        self._clock = WallClock()
        self._next_offset = 0
        self._open_until = 0  # the offset before which ``publish`` needs no further checks
        self._unacked_bytes, self._max_unacked_bytes = 0, config.max_unacked_bytes
        self._unacked: deque[tuple[int, Values]] = deque()  # the role's batches, with their ends
        self._woken = False  # the loop has a wake-up pending
        self._closed = False
        # Only sockets identify the C store of an acknowledgement; one ack does not need that.
        self._mesh = Mesh("producer", self._role, config, tell_peers_apart=config.acks > 1)
        self._mesh.start(self._on_round)
        try:
            if address is not None:
                _resume(self._mesh, self._role, config)
                self._next_offset = self._role.next_offset
            else:
                # C nodes that connect later fetch the first records, but ask only once.
                time.sleep(CONNECT_S)
        except BaseException:
            self._mesh.close()
            raise
        self._is_open = True
        _end_at_exit(self)

    @property
    def parts(self) -> tuple[Mesh, ProducerRole, int]:
        """The internals that metrics read, and the bytes of unacknowledged records."""
        return self._mesh, self._role, self._unacked_bytes

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._next_offset

    @property
    def acknowledged(self) -> int:
        """The offset before which all records are acknowledged."""
        return self._role.durable

    @property
    def limit(self) -> tuple[int, str]:
        """The size in bytes of the largest accepted record, and the node that sets this limit."""
        return self._limit

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
        if timestamp is None and size_bytes <= self._limit[0] and self._mesh.failure is None:
            with self._lock:
                offset = self._next_offset
                if (
                    offset < self._open_until
                    and self._unacked_bytes < self._max_unacked_bytes
                    and not self._turn.locked()
                ):
                    if not self._singles:
                        self._singles_us = self._clock.now_us()
                    # A signal may interrupt after each call, so the counts come before it.
                    self._next_offset = offset + 1
                    self._unacked_bytes += size_bytes
                    self._singles.append(content)
                    if not self._woken:
                        self._wake()
                    return offset
        return self._publish(Values.of([content]), timestamp)

    def publish_many(
        self,
        values: Octets,
        keys: Octets | None = None,
        headers: Iterable[Headers] | None = None,
        timestamp: datetime | None = None,
    ) -> int:
        """Publish records in order; return the first one's offset, or ``next_offset`` without any.

        All have one ``timestamp``.  ``values`` and ``keys`` may be Arrow arrays of binary or
        string, and ``headers`` one of lists of structs (name, value); these are handled by column.
        Raises as ``publish``; after BackPressureError the records before ``next_offset`` are
        published.
        """
        return self._publish(contents_of(values, keys, headers, self._config.envelope), timestamp)

    def _publish(self, contents: Values, timestamp: datetime | None) -> int:
        with self._turn:
            self._check_open()
            with self._lock:  # ``publish`` adds nothing from here on
                first = self._next_offset
            now_us = self._clock.now_us
            time_us = None if timestamp is None else time_of(timestamp)
            if first + len(contents) > MAX_SEQUENCE + 1:
                facts = (first, len(contents), MAX_SEQUENCE + 1)
                raise PartitionFullError(self.topic, self.address, *facts)
            limit = self._limit
            if contents.largest_bytes > limit[0]:
                sizes = map(len, contents)
                index, size = next((at, size) for at, size in enumerate(sizes) if size > limit[0])
                raise RecordTooLargeError(self.topic, self.address, first + index, size, *limit)
            for start in range(0, len(contents), CHUNK_COUNT):
                chunk = contents[start : start + CHUNK_COUNT]
                self._wait_for_room()
                with self._lock:
                    self._put_singles()
                    self._next_offset += len(chunk)
                    self._unacked_bytes += chunk.size_bytes
                    self._outbox.append((chunk, now_us() if time_us is None else time_us))
                    self._wake()
            return first

    def flush(self, timeout_s: float) -> None:
        """Wait until all published records are acknowledged.

        Raises:
            NotAcknowledgedError: ``timeout_s`` seconds have passed; it counts the other records.
            RecordTooLargeError: a store has joined that refuses one of these records, and the
                remaining stores are fewer than ``acks``.
        """
        target, role = self._next_offset, self._role
        if role.durable >= target:
            return

        def hurry(now: float) -> None:
            self._on_round(now)  # hands everything published to the role
            role.hurry = True

        self._mesh.call_soon(hurry)
        deadline = time.monotonic() + timeout_s
        while role.durable < target:  # again if a refusal has ended the wait and was withdrawn
            left_s = deadline - time.monotonic()
            if not self._mesh.wait_until(
                lambda: role.durable >= target or role.fenced_by or self._refused, left_s
            ):
                raise self._not_acknowledged(target - role.durable, timeout_s)
            self._check_fenced()
            if role.durable < target:
                self._check_refused()

    def close(self) -> None:
        """Wait up to ``close_timeout_s`` for acknowledgements, then end; may be called twice.

        Raises:
            NotAcknowledgedError: records are not acknowledged; it counts them.
            RecordTooLargeError: as ``flush``.
        """
        self.end(started_s=time.monotonic())

    def end(self, *, started_s: float) -> None:
        """Close, with a ``close_timeout_s`` that began at ``started_s``."""
        if self._closed:
            return
        self._refuse_more()
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
        if error is None or _ends_well(error) or self._closed:
            self.close()
            return
        # The application fails already: a wait would delay its error.
        self._refuse_more()
        self._is_open = False
        self._mesh.close()
        if lost := self._add_unacked(error):
            _log.error("%s", lost)

    def revive(self) -> None:
        """Let the loop send the records of a producer that the application has dropped."""
        self._mesh.set_on_round(self._on_round)

    def close_dropped(self) -> None:
        """Close a dropped producer."""
        try:
            self.close()
        except DafkaError as error:
            _report_lost(error)

    def _refuse_more(self) -> None:
        self._closed = True
        with self._lock:
            self._open()

    def _not_acknowledged(self, count: int, waited_s: float) -> NotAcknowledgedError:
        return NotAcknowledgedError(self.topic, self.address, count, waited_s, self._role.asked_for)

    def _add_unacked(self, failure: BaseException) -> NotAcknowledgedError | None:
        """Add a note about unacknowledged records to the error that ends the producer."""
        count = self._next_offset - self.acknowledged
        lost = self._not_acknowledged(count, 0.0) if count else None
        if lost is not None:
            failure.add_note(str(lost))
        return lost

    # -- under self._turn ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("producer")
        self._mesh.check()
        self._check_fenced()

    def _check_fenced(self) -> None:
        life, durable = self._role.fenced_by, self._role.durable
        if life is not None and durable < self._next_offset:
            facts = (life.number, durable, self._next_offset)
            raise ProducerFencedError(self.topic, self.address, *facts)

    def _check_refused(self) -> None:
        if self._refused is not None:
            raise RecordTooLargeError(self.topic, self.address, *self._refused, *self._limit)

    def _wait_for_room(self) -> None:
        self._check_open()
        if self._has_room():
            return
        waited_s = self._config.publish_timeout_s
        if not self._mesh.wait_until(lambda: self._has_room() or self._refused, waited_s):
            count = self._next_offset - self._role.durable
            raise BackPressureError(self.topic, self.address, count, waited_s)
        self._check_open()
        if not self._has_room():
            self._check_refused()

    def _has_room(self) -> bool:
        return self._role.fenced_by is not None or (
            self._next_offset - self._role.durable < self._config.max_unacked_records
            and self._unacked_bytes < self._max_unacked_bytes
        )

    # -- under self._lock ------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._mesh.wake()

    def _put_singles(self) -> None:
        if self._singles:
            self._outbox.append((Values.of(self._singles), self._singles_us))
            self._singles = []

    def _open(self) -> None:
        """Set the offset before which ``publish`` needs no further checks."""
        is_shut = self._closed or self._role.fenced_by is not None
        room = self._role.durable + self._config.max_unacked_records
        self._open_until = 0 if is_shut else min(room, MAX_SEQUENCE + 1)

    def _make_room(self, durable: int) -> None:
        """Count the acknowledged records, which may be the first ones of a batch, no more."""
        while self._unacked:
            end, values = self._unacked[0]
            count = len(values) - max(end - durable, 0)
            if count <= 0:
                return
            self._unacked_bytes -= values[:count].size_bytes
            if count < len(values):
                self._unacked[0] = end, values[count:]
                return
            self._unacked.popleft()

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        with self._lock:
            self._woken = False
            self._put_singles()
            outbox, self._outbox = self._outbox, []
            store = self._mesh.limits.smallest_store
            before, self._limit = self._limit, (self._config.max_record_bytes, "this producer")
            if store is not None and store.limit_bytes < self._limit[0]:
                self._limit = (store.limit_bytes, f"store {store.node}")
            self._make_room(self._role.durable)
            self._open()
        for values, time_us in outbox:
            self._mesh.send(self._role.publish(now, values, time_us))
            self._unacked.append((self._role.next_offset, values))
        limit_bytes = self._limit[0]
        too_large = limit_bytes < self._config.max_record_bytes and any(
            values.largest_bytes > limit_bytes for values, _ in outbox
        )
        if too_large or self._refused or limit_bytes < before[0]:
            found = self._role.first_above(limit_bytes)
            taking = self._mesh.limits.stores_taking(found[1]) if found else inf
            self._refused = found if taking < self._config.acks else None
        return False


# -- the contents of records --------------------------------------------------------------------

_ARROW_TYPES: Final = ("binary", "string", "large_binary", "large_string")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


def content_of(value: bytes | None, key: bytes | None, headers: Headers, envelope: str) -> bytes:
    """Return the content of one record; raise as ``contents_of`` does."""
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
    """Return the contents of many records.

    Raises:
        TypeError: a value, a key or a header has a wrong type.
        ValueError: the number of keys or headers differs from that of values, or a record has too
            many headers.
        ConfigError: option ``envelope`` forbids them.
    """
    if hasattr(values, "buffers"):  # an Arrow array: recognised without importing Arrow
        return _contents_of_columns(values, keys, headers, envelope)
    listed: list[bytes | None] = list(values)
    if keys is None and headers is None and set(map(type, listed)) <= {bytes}:
        bare: list[bytes] = listed  # type: ignore[assignment]
        made = values if isinstance(values, Values) else Values.of(bare)
        if envelope != AUTO or not len(made.starting_with(MAGIC)):
            return made
    keys_of: list[bytes | None] = [None] * len(listed) if keys is None else list(keys)
    headers_of: list[Headers] = [None] * len(listed) if headers is None else list(headers)
    for each in (keys_of, headers_of):
        _check_counts(len(listed), len(each))
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

    from dafka_core.model.envelope_columns import HEADERS_TYPE, close_columns  # noqa: PLC0415

    if headers is not None:
        if not isinstance(headers, pa.ListArray) or headers.type.value_type.num_fields != 2:
            kind = "lists of structs of two, a string and a binary"
            raise TypeError(f"headers beside an array must be {kind}")
        headers = headers.cast(HEADERS_TYPE)
    for array in (keys, headers):
        if array is not None:
            _check_counts(len(values), len(array))
    return Values.from_arrow(close_columns(values, keys, headers))


def _check_counts(values: int, others: int) -> None:
    if values != others:
        raise ValueError(f"{values} values have {others} keys, or lists of headers")


def _check_bytes(name: str, octets: object) -> None:
    if octets is not None and type(octets) is not bytes:
        raise TypeError(f"a record's {name} must be bytes or None; got {type(octets).__name__}")


def _without_envelopes(envelope: str) -> ConfigError:
    return ConfigError("envelope", envelope, "publishes no keys, headers and null values")


def time_of(timestamp: datetime) -> int:
    """Return a create time in microseconds since 1970 UTC.

    Raises:
        ConfigError: it has no time zone.
    """
    given: Any = timestamp
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError("timestamp", timestamp, "must be a datetime with a time zone", "argument")
    return (timestamp - _EPOCH) // _US


# -- resuming a partition -----------------------------------------------------------------------


def _resume(mesh: Mesh, role: ProducerRole, options: ProducerOptions) -> None:
    """Wait until the role has taken its partition over from an earlier producer.

    Raises:
        NoStoreError, MissingStoresError: stores did not answer within ``resume_timeout_s``.
        TopicDeletedError: the topic was deleted, and nothing was written since.
    """
    takeover, timeout_s = role.takeover, options.resume_timeout_s
    assert takeover is not None
    if not mesh.wait_until(lambda: role.takeover is None, timeout_s):
        if (lack := takeover.missing) is not None:
            raise MissingStoresError(*role.tp, lack.needed, lack.stores)
        raise NoStoreError([str(tower) for tower in options.tower], timeout_s)
    if takeover.has_deletions and options.resume_deleted != IGNORE:
        _check_deleted(role.tp, role.next_offset, options)


def _check_deleted(tp: TopicPartition, end: int, options: ProducerOptions) -> None:
    """Raise TopicDeletedError if a deletion reached the offset at which the producer resumes."""
    timeout_s, found = options.resume_timeout_s, list[Deletion]()
    try:
        with _reader_beside(options) as reader:
            for info in reader.partitions([DELETIONS_TOPIC], timeout_s=timeout_s):
                for batch in reader.read(info.tp, info.earliest, info.end, timeout_s=timeout_s):
                    for content in map(bytes, batch.values):
                        with suppress(ValueError):
                            found += parsed(content)
    except DafkaError as error:
        text = "%s: the producer resumes without checking whether the topic was deleted: %s"
        _log.warning(text, tp, error)
    times_us = [each.at_us for each in found if each.tp == tp and each.before >= end]
    if end and times_us:
        raise TopicDeletedError(*tp, end, shown_time(max(times_us)))


def _reader_beside(producer_options: ProducerOptions) -> Reader:
    options = options_beside(producer_options)
    try:
        return Reader(**options)
    except ConfigError as error:
        if error.option != "port":
            raise
    return Reader(**options | {"port": "0"})


# -- the end of the process ---------------------------------------------------------------------
#
# The interpreter calls ``atexit`` functions while daemon threads still run, so producers can wait
# for acknowledgements.  ``multiprocessing`` ends its forked children without these functions, and
# calls finalizers of its own.  A killing signal, ``os._exit`` and ``os.exec`` call neither.

EXIT_FAILED: Final = 1

_AFTER_POOLS: Final = -100
"""Priority of our finalizer: after queues and pools, whose threads may still publish."""

_open: WeakSet[Producer] = WeakSet()
_lost: Final = threading.Event()
"""Set if records may be lost and no caller got an error."""

_finalizers: list[object] = []


def _end_at_exit(producer: Producer) -> None:
    """Close the producer at the end of the process, if it is still open."""
    _open.add(producer)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None and not _finalizers:
        from multiprocessing.util import Finalize  # noqa: PLC0415 -- it is loaded here

        _finalizers.append(Finalize(None, _end_child, exitpriority=_AFTER_POOLS))


def _report_lost(error: DafkaError) -> None:
    """Log that records may be lost, and set the process's exit code: no caller gets the error."""
    logging.getLogger("dafka").error("%s", error)
    _lost.set()


def _end_all() -> None:
    started_s = time.monotonic()  # one timeout for all: their loops run in parallel
    for producer in tuple(_open):
        try:
            producer.end(started_s=started_s)
        except DafkaError as error:
            _report_lost(error)
    wait_for_dropped()


def _end_process() -> None:
    _end_all()
    if _lost.is_set():
        # An ``atexit`` function cannot change the exit code.  The interpreter destroys attributes
        # of ``sys`` last, after all other functions and destructors.
        vars(sys)["_dafka_exit"] = _FailingExit()


def _end_child() -> None:
    _end_all()
    error = sys.exc_info()[1]  # with which the child ends
    if _lost.is_set() and (error is None or _ends_well(error)):
        raise SystemExit(EXIT_FAILED)


def _ends_well(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not error.code


class _FailingExit:
    """Ends the process with an exit code when it is destroyed."""

    def __del__(self, _exit: Callable[[int], object] = os._exit, _code: int = EXIT_FAILED) -> None:
        _exit(_code)


def _forget_producers() -> None:
    """Forget, in a forked child, the producers of its parent."""
    _lost.clear()
    _open.clear()
    _finalizers.clear()


atexit.register(_end_process)
os.register_at_fork(after_in_child=_forget_producers)
