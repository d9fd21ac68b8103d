"""The service's side of a put: batches go to the host, ends come back as they are durable."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import ConfigError, FencedError, OffsetConflictError, TransactionExistsError
from dafka_core.flight.columns import TYPES
from dafka_core.flight.flight_errors import FLIGHT_ERRORS
from dafka_core.flight.limits import (
    MAX_PUT_BATCH_BYTES,
    MAX_PUT_BATCH_RECORDS,
    MAX_PUT_RECORD_BYTES,
    MAX_UNDER_WAY_BYTES,
)
from dafka_core.flight.request_members import MAX_OFFSET, VALUE
from dafka_core.flight.requests import PutRequest
from dafka_core.flight.store_backend import StoreBackend
from dafka_core.flight.store_location import short
from dafka_core.records import NO_VERSION, RecordBatch, TopicPartition
from dafka_core.values import Values

PATIENCE_S: Final = 1.0
"""How long a failed put waits for its acknowledgements to leave.  A client may read none before it
has sent everything: then what it sends is passed over, so that it comes to read the error."""


def receive(
    host: StoreBackend,
    request: PutRequest,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.FlightMetadataWriter,
    check_open: Callable[[], None],
) -> None:
    """Puts what comes, until all of it is on disk or something is wrong.

    Raises:
        ConfigError: the batches are not what is to be put.
        OffsetConflictError: the put does not begin, or go on, at the partition's end.
        FencedError: another attempt stages there.
        TransactionExistsError: the unit to be staged is there already.
        DafkaError: the host cannot take it.
    """
    _check_start(host, request)
    column = _value_column(reader.schema)
    under_way = _UnderWay(request.start, check_open)
    acknowledging = threading.Thread(
        target=under_way.acknowledge, args=(writer,), name="dafka-flight-acks", daemon=True
    )
    acknowledging.start()
    try:
        at = request.start
        for values in _batches(reader, column):
            batch = RecordBatch(request.tp, at, values)
            if batch.end > MAX_OFFSET:
                raise ConfigError("start", request.start, "leaves no offsets for so many records")
            under_way.enter(values.size_bytes)
            if request.attempt:
                promise = host.stage(batch, request.attempt, request.version)
            else:
                promise = host.put(batch)
            under_way.follow(promise, values.size_bytes)
            at = batch.end
        durable = under_way.finish()
    finally:
        under_way.stop()
        acknowledging.join(PATIENCE_S)
        while acknowledging.is_alive() and _skipped(reader):
            continue
        acknowledging.join()
    with contextlib.suppress(*FLIGHT_ERRORS):  # a client that is gone has no use for it
        writer.write(_packed(durable, failed=False))


def _check_start(host: StoreBackend, request: PutRequest) -> None:
    """Raises what ``receive`` does unless the request may begin, as far as can be said now."""
    topic, partition, start = request.topic, request.partition, request.start
    if not request.attempt:
        end = host.end(TopicPartition(topic, partition))
        if start != end:
            raise OffsetConflictError(topic, partition, start, end)
        return
    (info,) = host.transaction_states([request.tp])
    if (
        info.transaction is not None
        and request.version != NO_VERSION
        and info.transaction.version >= request.version
    ):
        raise TransactionExistsError(topic, partition, info.transaction)
    own = info.attempt == request.attempt
    if start > info.end and not own:
        raise FencedError(topic, partition, request.attempt)
    if start not in (info.end, info.staged_end):
        raise OffsetConflictError(topic, partition, start, info.staged_end if own else info.end)


class _UnderWay:
    """Runs handed to the host: how much is not on disk yet, and how far it is."""

    def __init__(self, end: int, check_open: Callable[[], None]) -> None:
        self._changed = threading.Condition()
        self._check_open = check_open
        self._size_bytes = 0
        self._count = 0
        self._durable = self._acknowledged = end
        self._failure: BaseException | None = None
        self._stopped = False

    def enter(self, size_bytes: int) -> None:
        """Waits for room."""
        self._wait_for(
            lambda: not self._count or self._size_bytes + size_bytes <= MAX_UNDER_WAY_BYTES
        )

    def follow(self, promise: Future[int], size_bytes: int) -> None:
        """Counts a run until its promise is kept."""
        with self._changed:
            self._count += 1
            self._size_bytes += size_bytes
        promise.add_done_callback(lambda done: self._done(done, size_bytes))

    def finish(self) -> int:
        """Waits until all is on disk; where the partition ends then."""
        self._wait_for(lambda: not self._count)
        return self._durable

    def stop(self) -> None:
        """Ends ``acknowledge``."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def acknowledge(self, writer: flight.FlightMetadataWriter) -> None:
        """Tells the client how far it is, each time it has come further, until ``stop``.

        In a thread of its own: neither a client that does not read nor one that does not send
        holds up anything else.  A client that sends nothing more would not hear of a failure,
        which ends the stream at its next batch: it is told, and then ends it itself.
        """
        failed = False
        while not failed:
            with self._changed:
                self._changed.wait_for(self._has_news)
                if self._stopped:
                    return
                end = self._acknowledged = self._durable
                failed = self._failure is not None
            try:
                writer.write(_packed(end, failed=failed))
            except FLIGHT_ERRORS:
                return  # the client is gone, as reading from it will tell

    def _has_news(self) -> bool:
        behind = self._durable != self._acknowledged
        return self._stopped or behind or self._failure is not None

    def _done(self, promise: Future[int], size_bytes: int) -> None:
        failure = promise.exception()
        with self._changed:
            self._count -= 1
            self._size_bytes -= size_bytes
            if failure is not None:
                # The first one: those after it only tell that something is missing before them.
                self._failure = self._failure or failure
            else:
                self._durable = max(self._durable, promise.result())
            self._changed.notify_all()

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            while self._failure is None and not reached():
                self._check_open()
                self._changed.wait(0.5)
            if self._failure is not None:
                raise self._failure


def _value_column(schema: pa.Schema) -> int:
    found = schema.get_all_field_indices(VALUE)
    if len(schema) != 1 or len(found) != 1:
        names = short(schema.names[:10])
        raise ConfigError("schema", names, f"must have one column, {VALUE!r} of binary")
    if schema.field(VALUE).type != TYPES[VALUE]:
        kind = str(schema.field(VALUE).type)
        raise ConfigError(VALUE, short(kind), "the column must be of binary; cast it")
    return int(found[0])


def _batches(reader: flight.MetadataRecordBatchReader, column: int) -> Iterator[Values]:
    """The values of each batch that has some, seen to be what they say."""
    while True:
        try:
            batch: Any = reader.read_chunk().data
            if batch is None or not len(batch):
                continue
            values = batch.column(column)
            # What came may say anything of itself; its offsets must not lead outside of it.
            values.validate(full=True)
        except StopIteration:
            return
        except flight.FlightError:
            raise
        except FLIGHT_ERRORS as error:
            raise ConfigError("batch", None, f"cannot be read: {error}") from error
        if values.null_count:
            why = f"{values.null_count} are null; a record has a value"
            raise ConfigError(VALUE, None, why)
        yield _checked(Values.from_arrow(values))


def _skipped(reader: flight.MetadataRecordBatchReader) -> bool:
    """Whether there was another batch."""
    try:
        reader.read_chunk()
    except (StopIteration, *FLIGHT_ERRORS):
        return False
    return True


def _checked(values: Values) -> Values:
    size_bytes = values.size_bytes
    most = MAX_PUT_RECORD_BYTES if len(values) == 1 else MAX_PUT_BATCH_BYTES
    if len(values) > MAX_PUT_BATCH_RECORDS or size_bytes > most:
        raise ConfigError(
            "batch",
            f"{len(values)} records, {size_bytes} bytes",
            f"must have at most {MAX_PUT_BATCH_RECORDS} records and {MAX_PUT_BATCH_BYTES} bytes, "
            f"or be one record of at most {MAX_PUT_RECORD_BYTES} bytes",
        )
    return values


def _packed(end: int, *, failed: bool) -> bytes:
    return json.dumps({"v": 1, "end": end, **({"failed": True} if failed else {})}).encode("ascii")
