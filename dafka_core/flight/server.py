"""The Arrow Flight server in front of a store's log, and its FlightInfos (docs/flight.md)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.config.node_options import FLIGHT_OFF
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    FencedError,
    InvalidRequestError,
    OffsetConflictError,
    StoreError,
)
from dafka_core.flight import grpc_workarounds, limits, server_requests
from dafka_core.flight.columns import TYPES, VALUE, schema_of
from dafka_core.flight.flight_errors import FLIGHT_ERRORS, refusing
from dafka_core.flight.requests import (
    MAX_OFFSET,
    Criteria,
    DurableEnd,
    GetRequest,
    InfoRequest,
    PutRequest,
    RecordRange,
)
from dafka_core.flight.server_context import POLL_S, ServerContext, WatchedStream
from dafka_core.flight.server_keys import MIDDLEWARE, Caller, NamedKey, knows, writes
from dafka_core.flight.store_location import StoreLocation, host_of, tcp_location, unix_location
from dafka_core.model.json_message import pack, short
from dafka_core.model.log_entries import LogEntry, Stage, TransactionExistsError
from dafka_core.model.names import text_of
from dafka_core.model.records import NO_VERSION, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.security.allowed_keys import LOOK_INTERVAL_S
from dafka_core.security.key_files import pem
from dafka_core.storage import Log, PartitionStatistics
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import HostPort, listen

PATIENCE_S: Final = 1.0
"""Time for a failed put's acknowledgements to leave.  A client may read none before it has sent
everything: then its data is discarded, so that it gets to read the error."""


def _check_start(log: Log, request: PutRequest) -> None:
    """Raise the errors of ``put`` that the log can detect before it begins."""
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
    """One put: the batches passed to the backend, and their durable part."""

    def __init__(
        self, context: ServerContext, request: PutRequest, writer: flight.FlightMetadataWriter
    ) -> None:
        self._context = context
        self._request = request
        self._writer = writer
        self._changed = threading.Condition()
        self._submitted = self._durable = self._acknowledged = request.start
        self._size_bytes = self._count = 0  # of the batches that are not on disk yet
        self._failure: BaseException | None = None
        self._stopped = False

    def run(self, reader: flight.MetadataRecordBatchReader, stream: WatchedStream) -> int:
        """Submit all batches and wait until they are on disk; return their end."""
        acknowledging = threading.Thread(
            target=self._acknowledge, name="dafka-flight-acks", daemon=True
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
            why = "leaves too few offsets for these records"
            raise InvalidRequestError("start", request.start, why)
        self._wait_for(
            lambda: not self._count or self._size_bytes + size_bytes <= limits.MAX_UNDER_WAY_BYTES
        )
        if request.attempt:
            entry: LogEntry = Stage(batch, request.attempt, request.version)
        else:
            entry = batch
        future = self._context.backend.put(entry)
        if self._submitted == request.start:
            self._context.backend.name_client(request.tp, request.client)
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
                # The first one: later ones only report that something before them is missing.
                self._failure = self._failure or failure
            else:
                self._durable = max(self._durable, future.result())
            self._changed.notify_all()

    def _wait_for(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            while self._failure is None and not reached():
                self._context.check_open()
                self._changed.wait(POLL_S)
            if self._failure is not None:
                raise self._failure

    def _acknowledge(self) -> None:
        """Send the client the durable end whenever it has grown.

        In a thread of its own: neither a client that does not read nor one that does not send
        delays anything else.  A failure ends the stream at the client's next batch.  A client that
        sends nothing more would not notice it, so it receives a message, and ends the stream
        itself.
        """
        failed = False
        while not failed:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or self._failure or self._durable != self._acknowledged
                )
                if self._stopped:
                    return
                self._acknowledged, failed = self._durable, self._failure is not None
            try:
                self._writer.write(DurableEnd(self._acknowledged, failed).packed())
            except FLIGHT_ERRORS:
                return  # the client is gone, as reading from it will show


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
            # The client may send any offsets; they must not point outside of the buffers.
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
        found = Values.from_arrow(values)
        records, size_bytes = limits.MAX_BATCH_RECORDS, limits.MAX_BATCH_BYTES
        record_bytes = limits.MAX_PUT_RECORD_BYTES
        most_bytes = record_bytes if len(found) == 1 else size_bytes
        if len(found) > records or found.size_bytes > most_bytes:
            why = (
                f"must have at most {records} records and {size_bytes} bytes, or be one record of "
                f"at most {record_bytes} bytes"
            )
            given = f"{len(found)} records, {found.size_bytes} bytes"
            raise InvalidRequestError("batch", given, why)
        yield found


def _skipped(reader: flight.MetadataRecordBatchReader) -> bool:
    try:
        reader.read_chunk()
    except (StopIteration, *FLIGHT_ERRORS):
        return False
    return True


CLOSE_GRACE_S: Final = 0.2
"""Time for streams to end when the service closes; then their connections are broken."""

REBIND_S: Final = 0.001
"""First pause before a server listens again at the port that an ended one has released."""

CLOSE_TIMEOUT_S: Final = 10.0
"""The longest duration of closing, even if the store or its disk hangs."""

_log = logging.getLogger("dafka.store")


class FlightService(ProcessBound):
    """Serves a store from construction until ``close``, over TCP and, for its machine, a socket.

    Port 0 lets the system choose.  ``socket_path`` is None for no socket.

    Raises:
        ConfigError: host, port or path cannot be used.
        StoreError: the log's directory cannot be written.
    """

    def __init__(
        self, context: ServerContext, *, bind_host: str, port: int, socket_path: str | None
    ) -> None:
        self.context = context
        self._close_lock = threading.Lock()
        self._socket_path = socket_path
        self._servers: list[_Server] = []  # with those whose last requests still run
        self._addresses: set[grpc_workarounds.Address] = set()
        why = grpc_workarounds.use()
        if why is not None:
            raise ConfigError("flight_port", port, why)
        try:
            _check_port(bind_host, port)
            is_tls = context.keys is not None
            server = self._listen(tcp_location(bind_host, port, is_tls=is_tls))
            self.port: int = server.port
            locations = [tcp_location(bind_host, self.port, is_tls=is_tls)]
            if socket_path is not None:
                locations.insert(0, unix_location(socket_path))
            for location in locations:
                self._addresses |= grpc_workarounds.addresses_of(location)
            if socket_path is not None:
                context.watch.addresses |= grpc_workarounds.addresses_of(locations[0])
                _remove_socket(socket_path)
                # With keys only the store's user may open the socket, from its first moment on. For
                # milliseconds also other threads' files are their user's alone, but usable.
                before = os.umask(0o077) if is_tls else None
                try:
                    self._listen(locations[0])
                finally:
                    if before is not None:
                        os.umask(before)
            store, directory = context.location.store, context.log.directory
            self.location = context.location = StoreLocation.begin(store, locations, directory)
            context.started.set()
            if context.keys is not None:
                follow = threading.Thread(
                    target=_follow_keys,
                    args=(weakref.ref(self), context, server, locations[-1]),
                    name="dafka-flight-keys",
                    daemon=True,
                )
                follow.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all streams, also those of stalled clients.  Idempotent."""
        self.context.closing.set()
        with self._close_lock:
            servers, self._servers = self._servers, []
            closing = [each.end() for each in servers]
            deadline = time.monotonic() + CLOSE_TIMEOUT_S
            for thread in closing:
                thread.join(CLOSE_GRACE_S)
            while any(thread.is_alive() for thread in closing):
                if time.monotonic() > deadline:
                    _log.error("requests over Flight do not end; they are left to themselves")
                    break
                grpc_workarounds.break_connections(self._addresses, socket.socket.getsockname)
                time.sleep(CLOSE_GRACE_S / 4)
            if self._socket_path is not None and servers:
                _remove_socket(self._socket_path)

    def on_forked(self) -> None:
        """Remove pyarrow's exit handlers from a child, which would end the parent's servers."""
        references = [*map(weakref.getweakrefs, vars(self).get("_servers", ()))]
        for reference in itertools.chain(*references):
            if isinstance(finalizer := reference.__callback__, weakref.finalize):
                finalizer.detach()

    def replace(self, old: _Server, location: str) -> _Server:
        """Let a new server take the port of an old one, which completes its requests.

        gRPC reads the certificates of clients when a server starts, and two cannot share the port.
        """
        with self._close_lock:
            self._servers = [each for each in self._servers if not each.has_ended]
            old.end()
            pause_s = REBIND_S
            while not self.context.closing.is_set():
                try:
                    return self._listen(location)
                except ConfigError as error:
                    if pause_s > 1:
                        text = "%s: no client can connect until another program releases the port"
                        _log.error(text, error)
                    self.context.closing.wait(pause_s)
                    pause_s = min(2 * pause_s, CLOSE_TIMEOUT_S)
        return old

    def _listen(self, location: str) -> _Server:
        try:
            server = _Server(location, self.context)
        except Exception as error:
            last_line = (str(error).splitlines() or [type(error).__name__])[-1]
            why = f"cannot listen at {location}: {last_line}"
            raise ConfigError("flight_port", location, why) from error
        self._servers.append(server)
        return server


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens at one location; the handlers answer in gRPC's threads."""

    def __init__(self, location: str, served: ServerContext) -> None:
        self._served = served
        self._ending = threading.Thread(
            target=self.__exit__, args=(None, None, None), name="dafka-flight-end", daemon=True
        )
        locked: dict[str, Any] = {}
        if (keys := served.keys) is not None:
            if host_of(location) is None:
                locked["middleware"] = {MIDDLEWARE: NamedKey()}
            else:
                self.certificates = keys.certificates
                locked["tls_certificates"] = [keys.tls]
                locked["verify_client"] = True
                locked["root_certificates"] = b"".join(map(pem, self.certificates))
        super().__init__(location, **locked)

    @property
    def has_ended(self) -> bool:
        return self._ending.ident is not None and not self._ending.is_alive()

    def end(self) -> threading.Thread:
        """Stop listening at once, and complete the requests in a thread.  Idempotent."""
        if self._ending.ident is None:
            self._ending.start()
        return self._ending

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._serving(context) as caller:
            served = self._served
            topic = served.parse(Criteria, knows, criteria, caller).topic
            for held in caller.known(served.log.partitions(topic)):
                request = InfoRequest(held.topic, held.partition)
                try:
                    descriptor = flight.FlightDescriptor.for_path(*held.tp)
                except UnicodeEncodeError:  # a path must be text; JSON escapes other bytes
                    descriptor = flight.FlightDescriptor.for_command(request.packed())
                yield self._info(request, descriptor, [held.tp], caller)

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with self._serving(context) as caller:
            request = self._info_request(descriptor, caller)
            return self._info(request, descriptor, self._partitions(request), caller)

    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        try:
            request = self._info_request(descriptor, self._caller(context))
            self._partitions(request)
            return flight.SchemaResult(schema_of(request.columns))
        except DafkaError as error:
            # Of Flight's own errors pyarrow keeps only the sentence here, as an unknown error.
            raise pa.ArrowInvalid(str(error)) from None

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        with self._serving(context) as caller:
            return server_requests.get(self._served, ticket.ticket, caller)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        # Its stream is counted by itself: a stalled put does not keep its connection.
        with refusing():
            self._put(descriptor, reader, writer, self._caller(context))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with refusing():
            why = "is not supported; use DoGet and DoPut"
            raise InvalidRequestError("method", "DoExchange", why)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        with self._serving(context) as caller:
            caller.allow(None, lambda owner, request: "")  # any key
            return server_requests.descriptions()

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        caller, body = self._caller(context), action.body.to_pybytes()
        answers = server_requests.act(self._served, action.type, body, caller)
        with self._serving(context):
            # Some wait for long, and need no watching meanwhile.
            first = list(itertools.islice(answers, 1))
        what = f"action {action.type[:100]}"
        stream = WatchedStream(self._served.watch, None, caller, what)
        with refusing(), stream:
            for answer in itertools.chain(first, answers):
                stream.wait(len(answer))
                yield answer
                stream.go_on()

    def _put(self, descriptor: Any, reader: Any, writer: Any, caller: Caller) -> None:
        """Process the batches of a client until all are on disk or one is refused."""
        if descriptor.descriptor_type != flight.DescriptorType.CMD:
            why = "a put's must be a command (docs/flight.md)"
            raise InvalidRequestError("descriptor", None, why)
        served = self._served
        request = served.parse(PutRequest, writes, descriptor.command, caller)
        what = f"put to {request.tp}"
        with served.stream(served.puts, caller, what, request.waited_s) as stream:
            _check_start(served.log, request)
            _check_schema(reader.schema)
            end = _Put(served, request, writer).run(reader, stream)
            stream.wait()
            with contextlib.suppress(*FLIGHT_ERRORS):  # the client is gone
                writer.write(DurableEnd(end).packed())

    def _info_request(self, descriptor: flight.FlightDescriptor, caller: Caller) -> InfoRequest:
        if descriptor.descriptor_type == flight.DescriptorType.PATH:
            names = [text_of(each) for each in descriptor.path]
            if len(names) not in (1, 2):
                why = "must be [topic] or [topic, partition]"
                raise InvalidRequestError("path", short(names[:3]), why)
            command = InfoRequest(names[0], names[1] if len(names) == 2 else None).packed()
        elif descriptor.descriptor_type == flight.DescriptorType.CMD:
            command = descriptor.command
        else:
            why = "must be a path or a command (docs/flight.md)"
            raise InvalidRequestError("descriptor", None, why)
        return self._served.parse(InfoRequest, knows, command, caller)

    def _partitions(self, request: InfoRequest) -> list[TopicPartition]:
        log = self._served.log
        if request.partition is None:
            member, name = "topic", request.topic
            found = [held.tp for held in log.partitions(name)]
        else:
            member, name = "partition", request.partition
            tp = TopicPartition(request.topic, name)
            found = [tp] if log.info(tp) else []
        if not found:
            why = f"the store has no such {member}; list_flights has them"
            raise InvalidRequestError(member, name, why)
        return found

    def _info(
        self,
        request: InfoRequest,
        descriptor: flight.FlightDescriptor,
        partitions: Sequence[TopicPartition],
        caller: Caller,
    ) -> flight.FlightInfo:
        """Return the size and times of partitions, with tickets for their records."""
        locations = self._served.locations_for(caller.peer)
        found = [facts for tp in partitions if (facts := self._statistics(tp)) is not None]
        endpoints = []
        for each in found:
            wanted = RecordRange(*each.tp, each.earliest, each.end)
            sizes = request.max_records, request.max_bytes
            get = GetRequest((wanted,), request.columns, max_records=sizes[0], max_bytes=sizes[1])
            metadata = each.packed()
            endpoints.append(flight.FlightEndpoint(get.packed(), locations, app_metadata=metadata))
        whole = _whole(request.topic, found)
        return flight.FlightInfo(
            schema_of(request.columns),
            descriptor,
            endpoints,
            whole["records"],
            whole["bytes"],
            ordered=len(found) == 1,
            app_metadata=pack(whole) if request.partition is None else found[0].packed(),
        )

    def _statistics(self, tp: TopicPartition) -> PartitionStatistics | None:
        """Return the size and times of a partition; of a damaged one only its offsets."""
        log = self._served.log
        try:
            return log.statistics(tp)
        except StoreError:  # noted for healing, which logs it
            held = log.info(tp)
            if held is None:
                return None
            count = held.end - held.earliest
            return PartitionStatistics(*tp, held.earliest, held.end, count, 0, None, None)

    @contextlib.contextmanager
    def _serving(self, context: Any) -> Iterator[Caller]:
        caller = self._caller(context)
        with refusing(), self._served.watch.calling(caller.peer):
            yield caller

    def _caller(self, context: Any) -> Caller:
        return Caller(context, self._served.keys)


def _whole(topic: str, partitions: Sequence[PartitionStatistics]) -> dict[str, Any]:
    firsts = [each.first_time_us for each in partitions if each.first_time_us is not None]
    lasts = [each.last_time_us for each in partitions if each.last_time_us is not None]
    return {
        "topic": topic,
        "partitions": len(partitions),
        "records": sum(each.records for each in partitions),
        "bytes": sum(each.size_bytes for each in partitions),
        "first_time_us": min(firsts, default=None),
        "last_time_us": max(lasts, default=None),
    }


def _follow_keys(
    service: weakref.ref[FlightService], context: ServerContext, server: _Server, location: str
) -> None:
    keys = context.keys
    assert keys is not None
    while not context.closing.wait(LOOK_INTERVAL_S):
        try:
            if keys.certificates != server.certificates and (running := service()) is not None:
                server = running.replace(server, location)
        except Exception as error:  # noqa: BLE001 -- such as of a thread that cannot be started
            _log.error("the allowed keys for Arrow Flight stay as they were: %s", error)
        running = None


def _check_port(host: str, port: int) -> None:
    """Raise ConfigError if the port cannot be used; gRPC would write to stderr."""
    if "%" in host:
        why = f"Arrow Flight cannot listen at the link-local address {host}: set host to another "
        raise ConfigError("flight_port", port, why + f"address, or flight_port to {FLIGHT_OFF}")
    try:
        listen(HostPort(host, port)).close()
    except OSError as error:
        why = f"cannot listen at {host}: {error.strerror or error}; 0 lets the system choose"
        raise ConfigError("flight_port", port, why) from error


def _remove_socket(path: str) -> None:
    """Remove the socket of an earlier store, and nothing else."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()
