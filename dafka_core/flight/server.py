"""The Arrow Flight server in front of a store's log, and its FlightInfos (docs/flight.md)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import ConfigError, DafkaError, InvalidRequestError
from dafka_core.flight import grpc_workarounds, server_actions, server_get, server_put
from dafka_core.flight.columns import schema_of
from dafka_core.flight.flight_errors import refusing
from dafka_core.flight.requests import Criteria, GetRequest, InfoRequest
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import MIDDLEWARE, Caller, TokenReader
from dafka_core.flight.store_location import StoreLocation, host_of, tcp_location, unix_location
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.model.json_message import pack, short
from dafka_core.model.names import text_of
from dafka_core.model.records import TopicPartition
from dafka_core.storage import PartitionStatistics
from dafka_core.system.closing import ProcessBound

# What the service says of topics and partitions: FlightInfos, with tickets to get the records.
#
# Each function raises InvalidRequestError for a request that is none, or is about what is not
# there.


def list_partitions(
    context: ServerContext, criteria: bytes, caller: Caller
) -> Iterator[flight.FlightInfo]:
    """A FlightInfo for each partition."""
    found = context.log.partitions(context.parse(Criteria, criteria, caller).topic)
    for held in caller.known(found):
        request = InfoRequest(held.topic, held.partition)
        try:
            descriptor = flight.FlightDescriptor.for_path(*held.tp)
        except UnicodeEncodeError:  # a path has texts only; JSON escapes octets that are none
            descriptor = flight.FlightDescriptor.for_command(request.packed())
        yield _info(context, request, descriptor, [held.tp], caller.peer)


def info(
    context: ServerContext, descriptor: flight.FlightDescriptor, caller: Caller
) -> flight.FlightInfo:
    """The FlightInfo of a topic, with an endpoint for each partition, or of a partition."""
    request = _parse(context, descriptor, caller)
    return _info(context, request, descriptor, _partitions(context, request), caller.peer)


def schema(
    context: ServerContext, descriptor: flight.FlightDescriptor, caller: Caller
) -> flight.SchemaResult:
    """The schema of the batches that ``info``'s tickets get."""
    request = _parse(context, descriptor, caller)
    _partitions(context, request)
    return flight.SchemaResult(schema_of(request.columns))


def _parse(
    context: ServerContext, descriptor: flight.FlightDescriptor, caller: Caller
) -> InfoRequest:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        context.check_open()
        names = [text_of(each) for each in descriptor.path]
        if len(names) not in (1, 2):
            why = "must be [topic] or [topic, partition]"
            raise InvalidRequestError("path", short(names[:3]), why)
        request = InfoRequest(names[0], names[1] if len(names) == 2 else None).checked()
        caller.allow(request)
        return request
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return context.parse(InfoRequest, descriptor.command, caller)
    why = "must be a path or a command (docs/flight.md)"
    raise InvalidRequestError("descriptor", None, why)


def _partitions(context: ServerContext, request: InfoRequest) -> list[TopicPartition]:
    """The partitions that are meant; at least one."""
    if request.partition is None:
        member, name = "topic", request.topic
        found = [held.tp for held in context.log.partitions(name)]
    else:
        member, name = "partition", request.partition
        tp = TopicPartition(request.topic, name)
        found = [tp] if context.log.info(tp) else []
    if not found:
        why = f"the store has no such {member}; list_flights has them"
        raise InvalidRequestError(member, name, why)
    return found


def _info(
    context: ServerContext,
    request: InfoRequest,
    descriptor: flight.FlightDescriptor,
    partitions: Sequence[TopicPartition],
    peer: str,
) -> flight.FlightInfo:
    found = [facts for tp in partitions if (facts := context.log.statistics(tp)) is not None]
    locations = context.locations_for(peer)
    endpoints = [
        flight.FlightEndpoint(_ticket(request, each), locations, app_metadata=_facts(each))
        for each in found
    ]
    whole = _whole(request.topic, found)
    return flight.FlightInfo(
        schema_of(request.columns),
        descriptor,
        endpoints,
        whole["records"],
        whole["bytes"],
        ordered=len(found) == 1,
        app_metadata=pack(whole) if request.partition is None else _facts(found[0]),
    )


def _facts(held: PartitionStatistics) -> bytes:
    facts = held._asdict().items()
    return pack({("bytes" if name == "size_bytes" else name): fact for name, fact in facts})


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


def _ticket(request: InfoRequest, held: PartitionStatistics) -> bytes:
    topic, partition, start, end, *_ = held
    sizes = request.max_records, request.max_bytes
    return GetRequest(topic, partition, start, end, request.columns, False, *sizes).packed()


CLOSE_GRACE_S: Final = 0.2
"""How long streams may go on when the service closes; then their connections are broken."""

CLOSE_TIMEOUT_S: Final = 10.0
"""How long closing takes at most, whatever the store or the disk below it waits for."""

_log = logging.getLogger("dafka.store")


class FlightService(ProcessBound):
    """Serves a store from construction until ``close``, over TCP and, for its machine, a socket.

    Args:
        context: the store, as the requests' handlers see it.
        bind_host: address to listen at, and to be reached at.
        port: 0 lets the system choose.
        socket_path: where to listen for this machine; None for nowhere.

    Attributes:
        context: as it was given.
        port: the one listened at.
        location: where the store is.

    Raises:
        ConfigError: host, port or path cannot be listened at.
        StoreError: the log's directory cannot be written.
    """

    def __init__(
        self,
        context: ServerContext,
        *,
        bind_host: str,
        port: int,
        socket_path: str | None,
    ) -> None:
        self.context = context
        self._close_lock = threading.Lock()
        self._socket_path = socket_path
        self._servers: list[_Server] = []
        self._addresses: set[grpc_workarounds.Address] = set()
        why = grpc_workarounds.use()
        if why is not None:
            raise ConfigError("flight_port", port, why)
        try:
            _check_port(bind_host, port)
            is_tls = context.keys is not None
            self.port: int = self._listen(tcp_location(bind_host, port, is_tls=is_tls)).port
            locations = [tcp_location(bind_host, self.port, is_tls=is_tls)]
            if socket_path is not None:
                locations.insert(0, unix_location(socket_path))
            for location in locations:
                self._addresses |= grpc_workarounds.addresses_of(location)
            if socket_path is not None:
                context.watch.addresses |= grpc_workarounds.addresses_of(locations[0])
                _remove_socket(socket_path)
                self._listen(locations[0])
            store, directory = context.location.store, context.log.directory
            self.location = context.location = StoreLocation.begin(store, locations, directory)
            context.started.set()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all streams, also those of clients that hold still.  May be repeated."""
        with self._close_lock:
            self.context.closing.set()
            servers, self._servers = self._servers, []
            closing = [threading.Thread(target=each.end, daemon=True) for each in servers]
            for thread in closing:
                thread.start()
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
        """Takes from the child's end the calls by which pyarrow would end the parent's servers."""
        references = [*map(weakref.getweakrefs, vars(self).get("_servers", ()))]
        for reference in itertools.chain(*references):
            if isinstance(finalizer := reference.__callback__, weakref.finalize):
                finalizer.detach()

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
    """Listens at one location, and has the handlers answer in gRPC's threads."""

    def __init__(self, location: str, served: ServerContext) -> None:
        self._served = served
        locked: dict[str, Any] = {}
        if (keys := served.keys) is not None:
            locked["middleware"] = {MIDDLEWARE: TokenReader(keys)}
            if host_of(location) is not None:
                locked["tls_certificates"] = [keys.tls]
        super().__init__(location, **locked)

    def end(self) -> None:
        """Returns when the last stream has ended."""
        self.__exit__(None, None, None)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._serving(context) as caller:
            yield from list_partitions(self._served, criteria, caller)

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with self._serving(context) as caller:
            return info(self._served, descriptor, caller)

    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        try:
            return schema(self._served, descriptor, self._caller(context))
        except DafkaError as error:
            # Of Flight's own errors pyarrow keeps only the sentence here, as an unknown error.
            raise pa.ArrowInvalid(str(error)) from None

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        with self._serving(context) as caller:
            return server_get.get(self._served, ticket.ticket, caller)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        # Its stream is counted by itself: a put that stands still does not keep its connection.
        with refusing():
            server_put.put(self._served, descriptor, reader, writer, self._caller(context))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with refusing():
            why = "is not served; there are DoGet and DoPut"
            raise InvalidRequestError("method", "DoExchange", why)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return server_actions.descriptions()

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        caller, body = self._caller(context), action.body.to_pybytes()
        answers = server_actions.act(self._served, action.type, body, caller)
        with self._serving(context):
            # Some wait for long; nobody needs to watch them meanwhile.
            first = list(itertools.islice(answers, 1))
        what = f"action {action.type[:100]}"
        stream = WatchedStream(self._served.watch, None, caller.peer, what, caller.check)
        with refusing(), stream:
            for answer in itertools.chain(first, answers):
                stream.wait(len(answer))
                yield answer
                stream.go_on()

    @contextlib.contextmanager
    def _serving(self, context: Any) -> Iterator[Caller]:
        caller = self._caller(context)
        with refusing(), self._served.watch.calling(caller.peer):
            yield caller

    def _caller(self, context: Any) -> Caller:
        return Caller(context, self._served.keys)


def _check_port(host: str, port: int) -> None:
    """Raises ConfigError when it cannot be listened at; gRPC would complain on stderr."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        why = f"cannot listen at {host}: {error.strerror or error}; 0 lets the system choose"
        raise ConfigError("flight_port", port, why) from error


def _remove_socket(path: str) -> None:
    """Removes the socket that an earlier store has left; nothing else."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()
