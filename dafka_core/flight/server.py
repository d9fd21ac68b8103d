"""Arrow Flight in front of a store's log (docs/flight.md)."""

from __future__ import annotations

import contextlib
import logging
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.closing import Closing
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.flight import grpc_fork, server_actions, server_get, server_info, server_put
from dafka_core.flight.columns import schema_of
from dafka_core.flight.flight_errors import ClosingError, OtherStoreError, refusing
from dafka_core.flight.grpc_sockets import Address, addresses_of, break_accepted
from dafka_core.flight.limits import MAX_COMMITS, MAX_GETS, MAX_PUTS, MAX_WAITS
from dafka_core.flight.requests import (
    COMMIT_ACTION,
    DESCRIBE_ACTION,
    DISCARD_ACTION,
    HEADS_ACTION,
    OFFSETS_ACTION,
    STORES_ACTION,
    TRANSACTIONS_ACTION,
    WAIT_ACTION,
    CommitRequest,
    Criteria,
    DiscardRequest,
    GetRequest,
    HeadsRequest,
    InfoRequest,
    OffsetsRequest,
    PlainRequest,
    PutRequest,
    TransactionsRequest,
    WaitRequest,
)
from dafka_core.flight.server_actions import ActionCall
from dafka_core.flight.store_backend import StoreBackend
from dafka_core.flight.store_location import StoreLocation, short, tcp_location, unix_location
from dafka_core.flight.stream_limiter import StreamLimiter
from dafka_core.log_entries import Discard
from dafka_core.storage import Log

__all__ = ["FlightService", "StoreBackend"]

CLOSE_GRACE_S: Final = 0.2
"""How long streams may go on when the service closes; then their connections are broken."""

CLOSE_TIMEOUT_S: Final = 10.0
"""How long closing takes at the most, whatever the store or the disk below it waits for."""

_log = logging.getLogger("dafka.store")


class FlightService(Closing):
    """Serves ``log`` from construction until ``close``, over TCP and, for its machine, a socket.

    Args:
        log: what is read; writes go through ``host``.
        host: the store node.
        place_of: makes the store's place of the service's locations; called once.
        bind_host: address to listen at, and to be reached at.
        port: 0 lets the system choose.
        socket_path: where to listen for this machine; None for nowhere.

    Attributes:
        port: the one listened at.
        locations: Flight URIs, the quickest first.
        place: what ``location_of`` made.

    Raises:
        ConfigError: host, port or path cannot be listened at.
    """

    def __init__(
        self,
        log: Log,
        host: StoreBackend,
        location_of: Callable[[tuple[str, ...]], StoreLocation],
        *,
        bind_host: str,
        port: int,
        socket_path: str | None,
    ) -> None:
        self._log = log
        self._host = host
        self._gets = StreamLimiter("gets", MAX_GETS)
        self._puts = StreamLimiter("puts", MAX_PUTS)
        self._waits = StreamLimiter("waits", MAX_WAITS)
        self._commits = StreamLimiter("commits", MAX_COMMITS)
        self._started = threading.Event()
        self._closing = threading.Event()
        self._close_lock = threading.Lock()
        self._socket_path = socket_path
        self._actions = {
            HEADS_ACTION: self._heads,
            OFFSETS_ACTION: self._offsets,
            WAIT_ACTION: self._wait,
            TRANSACTIONS_ACTION: self._units,
            COMMIT_ACTION: self._commit,
            DISCARD_ACTION: self._discard,
            STORES_ACTION: self._stores,
            DESCRIBE_ACTION: self._describe,
        }
        self._servers: list[_Server] = []
        self._addresses: set[Address] = set()
        why = grpc_fork.use()
        if why is not None:
            raise ConfigError("flight_port", port, why)
        try:
            _check_port(bind_host, port)
            self.port = self._listen(tcp_location(bind_host, port)).port
            tcp = tcp_location(bind_host, self.port)
            self._addresses |= addresses_of(tcp)
            self.locations: tuple[str, ...] = (tcp,)
            if socket_path is not None:
                _remove_socket(socket_path)
                unix = unix_location(socket_path)
                self._listen(unix)
                self._addresses |= addresses_of(unix)
                self.locations = (unix, tcp)
            self.location = location_of(self.locations)
            self._started.set()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all streams, also those of clients that hold still.  May be repeated."""
        with self._close_lock:
            self._closing.set()
            servers, self._servers = self._servers, []
            closing = [threading.Thread(target=each.end, daemon=True) for each in servers]
            for thread in closing:
                thread.start()
            deadline = time.monotonic() + CLOSE_TIMEOUT_S
            wait_s = CLOSE_GRACE_S
            while any(_alive_after(thread, wait_s) for thread in closing):
                if time.monotonic() > deadline:
                    _log.error("requests over Flight do not end; they are left to themselves")
                    break
                break_accepted(self._addresses)
                wait_s = CLOSE_GRACE_S / 4
            if self._socket_path is not None and servers:
                _remove_socket(self._socket_path)

    # -- what clients ask, in gRPC's threads -----------------------------------------------------

    def list_flights(self, peer: str, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """One FlightInfo for each partition."""
        self.check_open()
        return server_info.infos(self._log, Criteria.parse(criteria), self._locations_for(peer))

    def info(self, peer: str, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """The FlightInfo of a topic or a partition."""
        self.check_open()
        request = _info_request(descriptor)
        return server_info.info(self._log, request, descriptor, self._locations_for(peer))

    def schema(self, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The schema of its batches."""
        self.check_open()
        request = _info_request(descriptor)
        server_info.held(self._log, request)
        return flight.SchemaResult(schema_of(request.columns))

    def get(self, ticket: bytes) -> flight.FlightDataStream:
        """The batches of a range."""
        request = GetRequest.parse(ticket)
        self._check(request.store)
        return server_get.stream(self._log, request, self._gets.take(), self.check_open)

    def put(
        self,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Takes batches until all are on disk."""
        if descriptor.descriptor_type != flight.DescriptorType.CMD:
            raise ConfigError("descriptor", None, "a put's must be a command (docs/flight.md)")
        request = PutRequest.parse(descriptor.command)
        self._check(request.store)
        slot = self._puts.take()
        try:
            server_put.receive(self._host, request, reader, writer, self.check_open)
        finally:
            slot.release()

    def act(self, name: str, body: bytes, is_gone: Callable[[], bool]) -> Iterator[bytes]:
        """The results of an action."""
        self.check_open()
        action = self._actions.get(name)
        if action is None:
            known = ", ".join(self._actions)
            raise ConfigError("action", short(name), f"must be one of {known}")
        return action(body, ActionCall(is_gone, self.check_open))

    def _heads(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        request = HeadsRequest.parse(body)
        self._check(request.store)
        return server_actions.heads(self._log, request)

    def _offsets(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        request = OffsetsRequest.parse(body)
        self._check(request.store)
        yield server_actions.offsets(self._log, request, caller)

    def _wait(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        request = WaitRequest.parse(body)
        self._check(request.store)
        slot = self._waits.take()
        try:
            yield server_actions.wait(self._host, request, caller)
        finally:
            slot.release()

    def _units(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        request = TransactionsRequest.parse(body)
        self._check(request.store)
        yield server_actions.transaction_states(self._host, request)

    def _commit(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        request = CommitRequest.parse(body)
        self._check(request.store)
        return self._finish(lambda: self._host.commit(request.transactions), caller)

    def _discard(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        request = DiscardRequest.parse(body)
        self._check(request.store)
        return self._finish(
            lambda: self._host.discard(
                [Discard(stage.tp, stage.attempt) for stage in request.stages]
            ),
            caller,
        )

    def _finish(self, begin: Callable[[], Future[None]], caller: ActionCall) -> Iterator[bytes]:
        slot = self._commits.take()
        try:
            yield server_actions.finish(begin(), caller)
        finally:
            slot.release()

    def _stores(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        self._check(PlainRequest.parse(body).store)
        return server_actions.stores(self._host)

    def _describe(self, body: bytes, caller: ActionCall) -> Iterator[bytes]:
        self._check(PlainRequest.parse(body).store)
        yield self.location.as_json().encode("ascii")

    def check_open(self) -> None:
        """Raises ClosingError when the service ends."""
        # Listening begins before it is known where, so the first request may come too early.
        if self._closing.is_set() or not self._started.wait(CLOSE_TIMEOUT_S):
            raise ClosingError("the store is about to end; ask another one")

    def _check(self, store: str) -> None:
        self.check_open()
        if store and store != self.location.store:
            raise OtherStoreError(
                f"store {store} was meant, and this is store {self.location.store}"
            )

    def _locations_for(self, peer: str) -> tuple[str, ...]:
        # Who came through the network may be on another machine, where there is no such socket.
        return self.locations if peer.startswith("unix") else self.locations[-1:]

    def _listen(self, location: str) -> _Server:
        try:
            server = _Server(location, self)
        except Exception as error:
            why = f"cannot listen at {location}: {_last_line(error)}"
            raise ConfigError("flight_port", location, why) from error
        self._servers.append(server)
        return server


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """One location of a service; turns pyarrow's calls into the service's."""

    def __init__(self, location: str, service: FlightService) -> None:
        self._service = service
        super().__init__(location)

    def end(self) -> None:
        """Returns when the last stream has ended."""
        self.__exit__(None, None, None)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with refusing():
            yield from self._service.list_flights(context.peer(), criteria)

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with refusing():
            return self._service.info(context.peer(), descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        try:
            return self._service.schema(descriptor)
        except DafkaError as error:
            # Of Flight's own errors pyarrow keeps only the sentence here, as an unknown error.
            raise pa.ArrowInvalid(str(error)) from None

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        with refusing():
            return self._service.get(ticket.ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with refusing():
            self._service.put(descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with refusing():
            raise ConfigError("method", "DoExchange", "is not served; there are DoGet and DoPut")

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return list(server_actions.DESCRIPTIONS.items())

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        with refusing():
            yield from self._service.act(
                action.type, action.body.to_pybytes(), context.is_cancelled
            )


def _info_request(descriptor: flight.FlightDescriptor) -> InfoRequest:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return InfoRequest.of_path(descriptor.path)
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return InfoRequest.parse(descriptor.command)
    raise ConfigError("descriptor", None, "must be a path or a command (docs/flight.md)")


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


def _alive_after(thread: threading.Thread, wait_s: float) -> bool:
    thread.join(wait_s)
    return thread.is_alive()


def _last_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[-1]
