"""The service's side of a put: batches go to the backend, ends come back when they are on disk."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import FencedError, InvalidRequestError, OffsetConflictError
from dafka_core.flight import limits
from dafka_core.flight.columns import TYPES, VALUE
from dafka_core.flight.flight_errors import FLIGHT_ERRORS
from dafka_core.flight.json_messages import DurableEnd
from dafka_core.flight.requests import MAX_OFFSET, PutRequest
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.model.json_message import short
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.records import NO_VERSION, RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log

LOOK_S: Final = 0.5
"""How often a put that waits for the disk looks whether the service ends."""

PATIENCE_S: Final = 1.0
"""How long a failed put waits for its acknowledgements to leave.  A client may read none before it
has sent everything: then what it sends is passed over, so that it comes to read the error."""


def put(
    context: ServerContext,
    descriptor: flight.FlightDescriptor,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.FlightMetadataWriter,
    caller: Caller,
) -> None:
    """Takes the batches of a client until all of them are on disk or one cannot be taken.

    Raises:
        InvalidRequestError: the descriptor, or a batch, is none of a put.
        OffsetConflictError: the put does not begin, or go on, at the partition's end.
        FencedError: another attempt stages there.
        TransactionExistsError: the transaction to be staged, or a newer one, is committed.
        UnavailableError: there are as many puts as there may be, and none ended in time; or the
            client sends nothing any more.
        DafkaError: the store cannot take it.
    """
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        why = "a put's must be a command (docs/flight.md)"
        raise InvalidRequestError("descriptor", None, why)
    request = context.parse(PutRequest, descriptor.command, caller)
    what = f"put to {request.tp}"
    with context.stream(context.puts, caller, what, request.waited_s) as stream:
        _check_start(context.log, request)
        _check_schema(reader.schema)
        end = _Put(context, request).run(reader, writer, stream)
        stream.wait()
        with contextlib.suppress(*FLIGHT_ERRORS):  # a client that is gone has no use for it
            writer.write(DurableEnd(end).packed())


def _check_start(log: Log, request: PutRequest) -> None:
    """Raises what ``put`` does unless the put may begin, as far as the log can say."""
    state = log.transaction_state(request.tp)
    start = request.start
    if not request.attempt:
        if start != state.end:
            raise OffsetConflictError(*request.tp, start, state.end)
        return
    last = state.transaction
    if last is not None and request.version != NO_VERSION and last.version >= request.version:
        raise TransactionExistsError(*request.tp, last)
    own = state.attempt == request.attempt
    if start > state.end and not own:
        raise FencedError(*request.tp, request.attempt)
    if start not in (state.end, state.staged_end):
        end = state.staged_end if own else state.end
        raise OffsetConflictError(*request.tp, start, end)


class _Put:
    """One put: what the backend has been given, and how far that is on disk."""

    def __init__(self, context: ServerContext, request: PutRequest) -> None:
        self._context = context
        self._request = request
        self._changed = threading.Condition()
        self._submitted = self._durable = self._acknowledged = request.start
        self._size_bytes = self._count = 0  # of the batches that are not on disk yet
        self._failure: BaseException | None = None
        self._stopped = False

    def run(
        self,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
        stream: WatchedStream,
    ) -> int:
        """Submits all batches and waits until they are on disk; gives the end of them."""
        acknowledging = threading.Thread(
            target=self._acknowledge, args=(writer,), name="dafka-flight-acks", daemon=True
        )
        acknowledging.start()
        try:
            for values in _batches(reader, stream):
                self._submit(values)
            stream.go_on()
            self._wait_for(lambda: not self._count)
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            stream.wait()
            acknowledging.join(PATIENCE_S)
            while acknowledging.is_alive() and _skipped(reader):
                stream.wait()
            acknowledging.join()
        return self._durable

    def _submit(self, values: Values) -> None:
        request, size_bytes = self._request, values.size_bytes
        batch = RecordBatch(request.tp, self._submitted, values)
        if batch.end > MAX_OFFSET:
            why = "leaves no offsets for so many records"
            raise InvalidRequestError("start", request.start, why)
        self._wait_for(
            lambda: not self._count or self._size_bytes + size_bytes <= limits.MAX_UNDER_WAY_BYTES
        )
        if request.attempt:
            future = self._context.backend.stage(batch, request.attempt, request.version)
        else:
            future = self._context.backend.put(batch)
        self._submitted = batch.end
        with self._changed:
            self._count += 1
            self._size_bytes += size_bytes
        future.add_done_callback(lambda done: self._on_done(done, size_bytes))

    def _on_done(self, future: Future[int], size_bytes: int) -> None:
        failure = future.exception()
        with self._changed:
            self._count -= 1
            self._size_bytes -= size_bytes
            if failure is not None:
                # The first one: those after it only tell that something is missing before them.
                self._failure = self._failure or failure
            else:
                self._durable = max(self._durable, future.result())
            self._changed.notify_all()

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            while self._failure is None and not reached():
                self._context.check_open()
                self._changed.wait(LOOK_S)
            if self._failure is not None:
                raise self._failure

    def _acknowledge(self, writer: flight.FlightMetadataWriter) -> None:
        """Tells the client up to where its records are on disk, each time that is further.

        It has a thread of its own: neither a client that does not read nor one that does not send
        holds up anything else.  A failure ends the stream at the client's next batch.  A client
        that sends nothing more would not hear of it, so it is told, and ends the stream itself.
        """
        failed = False
        while not failed:
            with self._changed:
                self._changed.wait_for(self._has_news)
                if self._stopped:
                    return
                self._acknowledged, failed = self._durable, self._failure is not None
            try:
                writer.write(DurableEnd(self._acknowledged, failed).packed())
            except FLIGHT_ERRORS:
                return  # the client is gone, as reading from it will tell

    def _has_news(self) -> bool:
        news = self._durable != self._acknowledged or self._failure is not None
        return self._stopped or news


def _check_schema(schema: pa.Schema) -> None:
    if schema.names != [VALUE]:
        names = short(schema.names[:10])
        raise InvalidRequestError("schema", names, f"must have one column, {VALUE!r} of binary")
    kind = schema.field(VALUE).type
    if kind != TYPES[VALUE]:
        raise InvalidRequestError(VALUE, short(str(kind)), "the column must be of binary; cast it")


def _batches(reader: flight.MetadataRecordBatchReader, stream: WatchedStream) -> Iterator[Values]:
    while True:
        try:
            stream.wait(limits.MAX_BATCH_BYTES)
            batch = reader.read_chunk().data
            stream.go_on()
            if batch is None or not len(batch):
                continue
            values = batch.column(0)
            # The client may send any offsets; they must not lead outside of the buffers.
            values.validate(full=True)
        except StopIteration:
            return
        except flight.FlightError:
            raise
        except FLIGHT_ERRORS as error:
            raise InvalidRequestError("batch", None, f"cannot be read: {error}") from error
        if values.null_count:
            why = f"{values.null_count} are null; a record has a value"
            raise InvalidRequestError(VALUE, None, why)
        yield _checked(Values.from_arrow(values))


def _checked(values: Values) -> Values:
    records, size_bytes = limits.MAX_BATCH_RECORDS, limits.MAX_BATCH_BYTES
    record_bytes = limits.MAX_PUT_RECORD_BYTES
    most_bytes = record_bytes if len(values) == 1 else size_bytes
    if len(values) > records or values.size_bytes > most_bytes:
        found = f"{len(values)} records, {values.size_bytes} bytes"
        why = (
            f"must have at most {records} records and {size_bytes} bytes, or be one record of at "
            f"most {record_bytes} bytes"
        )
        raise InvalidRequestError("batch", found, why)
    return values


def _skipped(reader: flight.MetadataRecordBatchReader) -> bool:
    try:
        reader.read_chunk()
    except (StopIteration, *FLIGHT_ERRORS):
        return False
    return True
