"""The server for Kafka's clients: listener, TLS, connections, and their requests' dispatch.

It runs in an event loop, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import ssl
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final, cast

import numpy as np

from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.model.names import printable
from dafka_core.model.values import Bytes
from dafka_core.nodes.node import NodeThread
from dafka_core.system.files import open_files_limit
from dafka_core.system.hosts import is_loopback, plain
from dafka_kafka import schemas
from dafka_kafka.api import (
    API_VERSIONS,
    Api,
    Client,
    Feature,
    Served,
    api_versions,
)
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Complaints, Room
from dafka_kafka.options import KafkaOptions, Limits
from dafka_kafka.sasl import MAX_REQUEST_BYTES, PATIENCE_S, REFUSED, Sasl
from dafka_kafka.users import Resource, Users

_log: Final = logging.getLogger("dafka.kafka")

# -- requests --------------------------------------------------------------------------------------

_HEAD: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">i")

FAILED: Final = "requests that failed here"
DENIED: Final = "requests for what their user may not do"

DENIED_AGAIN_S: Final = 60.0  # interval between log lines for a user and an API: clients retry
MAX_NAME: Final = 200  # length of a name in the log: clients can invent names


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The header of a request; the body begins at index ``start``."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    start: int


def parse_head(octets: memoryview, apis: Mapping[int, Served]) -> RequestHead:
    """Parse the header of a request, possibly of an API that is not served.

    Raises:
        ProtocolError: the bytes do not begin with a header.
    """
    if len(octets) < _HEAD.size:
        raise ProtocolError(f"a request of {len(octets)} bytes, which has no header")
    api_key, version, correlation_id, length = _HEAD.unpack_from(octets)
    start = _HEAD.size + max(length, 0)
    if length < -1 or start > len(octets):
        raise ProtocolError(f"a request with a client id of length {length}")
    client_id = str(octets[_HEAD.size : start], "utf-8", "replace")
    is_known = any(is_served(each, api_key, version) for each in (apis, Sasl.declared))
    if is_known and schemas.is_flexible(api_key, version):
        try:
            start = schemas.after_tags(octets, start)
        except (IndexError, ValueError) as error:
            raise ProtocolError(f"a request with invalid tagged fields: {error}") from None
    return RequestHead(api_key, version, correlation_id, client_id, start)


def is_served(apis: Mapping[int, Served], api_key: int, version: int) -> bool:
    """Return whether an API is served in this version."""
    if api_key == Api.API_VERSIONS:
        return version in API_VERSIONS
    return api_key in apis and version in apis[api_key].versions


class Requests:
    """Dispatches requests to their handlers.

    Args:
        apis: all but ApiVersions, which is answered here.
    """

    def __init__(self, apis: Mapping[int, Served], limits: Limits, complaints: Complaints) -> None:
        self.apis = apis
        self._limits = limits
        self._complaints = complaints
        self.counts = Counter[int]()
        """The number of requests in served APIs and versions, by API key."""

    async def answer(
        self,
        head: RequestHead,
        octets: memoryview,
        host: str,
        is_gone: Callable[[], bool],
        sasl: Sasl | None = None,
    ) -> Bytes:
        """Return the encoded response; empty if the client expects none.

        Raises:
            ProtocolError: the request has no possible response: close the connection.
        """
        apis = self.apis if sasl is None else sasl.available(head.api_key, self.apis)
        if head.api_key == Api.API_VERSIONS and head.version not in API_VERSIONS:
            # KIP-511: an unknown version is answered in version 0, which every client can read.
            response = api_versions(apis, KafkaError.UNSUPPORTED_VERSION)
            return schemas.encode_response(head.correlation_id, response, 0)
        if not is_served(apis, head.api_key, head.version):
            return self._refusal(head, KafkaError.UNSUPPORTED_VERSION)
        self._check_size(head, octets)
        self.counts[head.api_key] += 1
        request = schemas.decode_request(head.api_key, head.version, octets, head.start)
        rights = None if sasl is None else sasl.rights
        client = Client(head.client_id, host, head.version, is_gone, rights)
        try:
            if head.api_key == Api.API_VERSIONS:
                response = api_versions(apis)
            else:
                response = await apis[head.api_key].handler(request, client)
            return self._encoded(head, response)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 -- a defect must not end the gateway
            return self._failed(head, host, error)
        finally:
            if client.refused:
                self._note_refusal(head.api_key, client)

    def _note_refusal(self, api_key: int, client: Client) -> None:
        assert client.rights is not None
        (need, name), user = client.refused[0], client.rights.permissions.name
        named = need.resource.name.lower()
        if name and need.resource is Resource.TOPIC:
            named += f" {printable(name[:MAX_NAME])!r}"
        why = f"{user} may not {Api(api_key).name}: it needs {need.operation.name} on {named}"
        of = user, api_key
        self._complaints.note(DENIED, client.host, why, of=of, again_s=DENIED_AGAIN_S)

    def _check_size(self, head: RequestHead, octets: memoryview) -> None:
        """Raise ProtocolError for a request that would take too much memory to decode."""
        limit_bytes = self._limits.max_request_bytes
        if len(octets) > limit_bytes and head.api_key != Api.PRODUCE:
            size = f"{len(octets)} bytes of kind {head.api_key}"
            raise ProtocolError(f"a request of {size}, which may have {limit_bytes}")

    def _encoded(self, head: RequestHead, response: Any) -> Bytes:
        if response is None:
            return b""
        if not isinstance(response, bytes | bytearray):
            return schemas.encode_response(head.correlation_id, response, head.version)
        front = schemas.response_head(head.correlation_id, head.api_key, head.version)
        return b"".join((_SIZE.pack(len(front) + len(response)), front, response))

    def _refusal(self, head: RequestHead, error: KafkaError) -> Bytes:
        response = schemas.error_response(head.api_key, head.version, error)
        if response is None:
            # Kafka, too, closes the connection: without a version no response can be encoded.
            kind = f"kind {head.api_key} in version {head.version}"
            raise ProtocolError(f"a request of {kind}, to which there is no answer ({error.name})")
        return schemas.encode_response(head.correlation_id, response, head.version)

    def _failed(self, head: RequestHead, host: str, error: Exception) -> Bytes:
        if not self._complaints.counts[FAILED]:
            _log.error("Kafka: a request of kind %d failed", head.api_key, exc_info=error)
        self._complaints.note(FAILED, host, f"kind {head.api_key}: {printable(repr(error))}")
        return self._refusal(head, KafkaError.UNKNOWN_SERVER_ERROR)


# -- connections -----------------------------------------------------------------------------------

SCRATCH_BYTES: Final = 16 << 10
"""Read size for small requests. A connection buffers at most this many bytes of requests that wait
for the previous one, and as many of a partial one; no more is accounted for."""

TLS_SCRATCH_BYTES: Final = 512 << 10
"""The same with TLS: all that asyncio holds. It drops what a read leaves when the client closes."""

WRITE_BYTES: Final = 1 << 20
"""asyncio gets as much of a response at a time: it would copy or encrypt all at once, and with TLS
not pause the writing of what the client does not read. With less, a usual Fetch takes longer."""

OVERLAP_BYTES: Final = 4 << 20
"""Requests of a connection that overlap: more would wait in memory for the disk."""

SMALL_BYTES: Final = 5 * SCRATCH_BYTES
"""Small requests of a connection that overlap: the memory budget does not account for them."""

_GONE: Final = getattr(select, "POLLRDHUP", 0)
"""Poll flag of a connection closed by its peer; a reset is always reported. Linux only."""

_OTHERS: Final = {
    b"\x16\x03": "TLS, for which the gateway has no certificate (option kafka_tls_certificate)",
    b"GET ": "HTTP, and this is Kafka's protocol",
    b"POST": "HTTP, and this is Kafka's protocol",
}
"""Other protocols, by their first bytes; as a size prefix each of them is too large."""

HANDSHAKE_S: Final = 10.0  # a connection with TLS must complete its handshake within this time

NO_TLS: Final = "connections whose TLS handshake failed"
MALFORMED: Final = "connections closed for requests that cannot be answered"
TOO_SLOW: Final = "connections closed as their client was too slow"


class Connection(asyncio.BufferedProtocol):
    """Splits the byte stream into requests, runs them in order, and sends the responses.

    Only consecutive Produce requests overlap, so that their producer waits for the disk once.
    """

    def __init__(self, shared: Server) -> None:
        self._shared = shared
        self._transport: asyncio.Transport
        self.host = ""
        self.descriptor = -1
        self.idle_since = self._made_at = time.monotonic()
        self._agreeing: asyncio.Task[None] | None = None  # on TLS
        self._sasl: Sasl | None = None  # where authentication is required
        self._is_proved = False
        self._requests = self._read_requests()
        self._rest = memoryview(b"")  # received bytes that wait
        self._buffer: memoryview | None = None  # the next request, or its size; None if it waits
        self._filled = 0
        self._is_direct = False  # whether the next bytes are read directly into the buffer
        self._is_busy = False  # with a request that is read, or waits
        self._waiting_api = -1  # of the last request that waited for others
        self._has_ended = False  # the client sends nothing more
        self._wanted_bytes = 0  # for which it waits for room in the budget
        self._held_bytes = 0  # of its room
        self._works: deque[tuple[asyncio.Task[Bytes], int, bool]] = deque()
        self._outbox: deque[memoryview] = deque()  # parts of responses that asyncio gets later
        self._unsent_bytes = 0
        self._is_writing_paused = False
        self._is_reading_paused = False
        self.is_gone = False  # true if it is closed or closing
        self._read_until = inf  # the deadline for the rest of a partial request
        self._send_until = inf  # that for the client to read its response

    # -- asyncio.BufferedProtocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, and start the TLS handshake if required."""
        self._transport = cast("asyncio.Transport", transport)
        connected: socket.socket = transport.get_extra_info("socket")
        # Otherwise dead peers keep connections for ever.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.descriptor = connected.fileno()
        self.host = plain((transport.get_extra_info("peername") or ("?",))[0])
        tls = self._shared.tls
        if self._shared.users is not None:
            is_private = tls is not None or is_loopback(self.host)
            self._sasl = Sasl(self._shared.users, is_private=is_private)
        self._shared.joined(self)
        if tls is not None and not self.is_gone:
            self._agreeing = asyncio.get_running_loop().create_task(self._agree(tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel its requests; nobody reads the responses."""
        self.is_gone = True
        for task, size_bytes, _ in self._works:
            task.cancel()
            # A handler that shields its work keeps its request until it ends.
            task.add_done_callback(partial(self._on_ended, _counted(size_bytes)))
        self._works.clear()
        self._outbox.clear()
        self._requests.close()
        self._buffer = None
        self._shared.room.give_back(self._unsent_bytes + self._held_bytes)
        self._shared.room.wait_no_more(self._has_room)
        self._shared.left(self)

    def _on_ended(self, size_bytes: int, ended: asyncio.Task[Bytes]) -> None:
        self._shared.room.give_back(size_bytes)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        missing = 0 if self._buffer is None else len(self._buffer) - self._filled
        self._is_direct = missing >= len(self._shared.scratch)
        if self._is_direct and self._buffer is not None:
            return self._buffer[self._filled :]
        return self._shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that were received."""
        if self._agreeing is not None:  # sent right behind the handshake
            self._rest = memoryview(bytes(self._rest) + self._shared.scratch[:nbytes])
            return
        if self._is_direct:
            self._filled += nbytes
        else:
            self._rest = self._shared.scratch[:nbytes]
        self._go_on()

    def eof_received(self) -> None:
        """Begin the records that wait: with acks=0 a client closes when it has sent them."""
        self._has_ended = True
        self._go_on()

    def pause_writing(self) -> None:
        """Stop reading: the client does not read its responses."""
        self._is_writing_paused = True
        self._send_until = min(self._send_until, self._patience(self._unsent_bytes))

    def resume_writing(self) -> None:
        """Continue writing, and when all is written, reading."""
        self._is_writing_paused = False
        self._write()
        if self._is_writing_paused:
            return
        self._shared.room.give_back(self._unsent_bytes)
        self._unsent_bytes = 0
        self._send_until = inf
        if self._buffer is not None and self._read_until < inf:
            self._read_until = self._patience(len(self._buffer))
        self._go_on()

    # -- for the server --------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if it has no unanswered request."""
        return not (self._works or self._is_busy)

    def look(self, now: float) -> None:
        """Close if the client is too slow, or has gone while nothing is read from it."""
        if self._sasl is not None and self._sasl.user is None and now > self._made_at + PATIENCE_S:
            self.end(REFUSED, "the client has sent nothing in time")
        elif self._sasl is not None and self._sasl.is_shut_out:
            self.end(REFUSED, f"user {self._sasl.user!r} was removed, or its password has changed")
        elif now > (self._send_until if self._is_writing_paused else self._read_until):
            what = "to take responses" if self._is_writing_paused else "with a request"
            self.end(TOO_SLOW, f"too slow {what}")
        elif self._is_reading_paused and self._has_gone():
            self.end()

    def _has_gone(self) -> bool:
        """Return whether the client has closed, and nothing is read from it any more."""
        looks = select.poll()
        looks.register(self.descriptor, _GONE)
        found = looks.poll(0)
        # Records with acks=0 may wait, as in ``eof_received``.
        is_producer = self._waiting_api == Api.PRODUCE and self._works and self._is_producing
        return bool(found) and (found[0][1] != _GONE or not is_producer)

    @property
    def _is_producing(self) -> bool:
        return all(is_produce for _, _, is_produce in self._works)

    def end(self, kind: str = "", why: str = "") -> None:
        """Close the connection; unsent responses are dropped."""
        if kind and not self.is_gone:
            self._shared.complaints.note(kind, self.host, why)
        self.is_gone = True
        self._transport.abort()

    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """Return the tasks of its unanswered requests and its handshake."""
        works = [task for task, _, _ in self._works]
        return works if self._agreeing is None else [*works, self._agreeing]

    async def _agree(self, tls: ssl.SSLContext) -> None:
        start = asyncio.get_running_loop().start_tls
        made = None
        try:
            made = await start(
                self._transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except ssl.SSLError as error:
            self._shared.complaints.note(NO_TLS, self.host, error.reason or str(error))
            return
        except OSError:
            return  # the client has gone, or took too long
        finally:
            if made is None:
                self.is_gone = True
                self._shared.left(self)
        self._agreeing = None
        if made is not None and not self.is_gone:
            self._transport = made
            self._shared.agreeing.discard(self)
            self._go_on()

    # -- requests in -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Continue with the requests as far as possible."""
        if self.is_gone:
            return
        try:
            next(self._requests)
        except ProtocolError as error:
            self.end(MALFORMED, str(error))
            return
        if self._rest.obj is self._shared.scratch.obj:  # which others use
            self._rest = memoryview(bytes(self._rest))
        pause = self._buffer is None
        if pause is not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def _read_requests(self) -> Generator[None]:
        """Read requests, and begin to answer them; yield where it has to wait."""
        while True:
            first = memoryview(bytearray(_SIZE.size))
            yield from self._fill(first)
            size_bytes = self._checked_size(bytes(first))
            self._is_busy = True
            counted = _counted(size_bytes)
            if counted and self._shared.room.take(counted, self._has_room):
                self._held_bytes = counted
            else:
                self._wanted_bytes = counted
            while self._wanted_bytes:
                yield
            # Not a bytearray: zeroing would touch all pages before their bytes arrive.
            request = np.empty(size_bytes, np.uint8).data
            yield from self._fill(request)
            head = parse_head(request, self._shared.requests.apis)
            while not self._may_start(head):
                self._waiting_api = head.api_key
                yield
            self._start(head, request)
            self._held_bytes, self._is_busy = 0, False
            del request  # it may be large, and the next one may come much later

    def _fill(self, buffer: memoryview) -> Generator[None]:
        self._buffer, self._filled = buffer, 0
        while True:
            count = min(len(buffer) - self._filled, len(self._rest))
            buffer[self._filled : self._filled + count] = self._rest[:count]
            self._filled, self._rest = self._filled + count, self._rest[count:]
            if self._filled == len(buffer):
                break
            if self._read_until == inf and (self._is_busy or self._filled):
                self._read_until = self._patience(len(buffer))
            yield
        self._buffer, self._read_until = None, inf

    def _checked_size(self, first: bytes) -> int:
        (size_bytes,) = _SIZE.unpack(first)
        is_known = self._sasl is None or self._sasl.user is not None
        most = self._shared.limits.max_produce_bytes if is_known else MAX_REQUEST_BYTES
        if not 0 < size_bytes <= most:
            other = next((_OTHERS[each] for each in _OTHERS if first.startswith(each)), "")
            raise ProtocolError(other or f"a request of {size_bytes} octets")
        return int(size_bytes)

    def _has_room(self) -> None:
        self._held_bytes, self._wanted_bytes = self._wanted_bytes, 0
        asyncio.get_running_loop().call_soon(self._go_on)

    def _patience(self, size_bytes: int) -> float:
        return time.monotonic() + self._shared.limits.patience_s(size_bytes)

    def _may_start(self, head: RequestHead) -> bool:
        if self._has_ended:
            return head.api_key == Api.PRODUCE and self._is_producing
        if self._is_writing_paused:
            return False
        return not self._works or (
            head.api_key == Api.PRODUCE
            and self._is_producing
            and len(self._works) < self._shared.limits.max_pipelined
            and sum(size for _, size, _ in self._works) < OVERLAP_BYTES
            and sum(size for _, size, _ in self._works if not _counted(size)) < SMALL_BYTES
        )

    def _start(self, head: RequestHead, octets: memoryview) -> None:
        answer = self._shared.requests.answer(
            head, octets, self.host, lambda: self.is_gone, self._sasl
        )
        task = asyncio.get_running_loop().create_task(answer)
        self._works.append((task, len(octets), head.api_key == Api.PRODUCE))
        task.add_done_callback(self._on_answered)

    # -- responses out ---------------------------------------------------------------------------

    def _on_answered(self, answered: asyncio.Task[Bytes]) -> None:
        if self.is_gone:
            if not answered.cancelled():
                answered.exception()  # marks the exception as retrieved for asyncio
            return
        while self._works and self._works[0][0].done() and not self.is_gone:
            task, size_bytes, _ = self._works.popleft()
            self._shared.room.give_back(_counted(size_bytes))
            if task.cancelled():
                self.end()
            elif (error := task.exception()) is not None:
                self.end(MALFORMED, str(error))
            else:
                self._send(task.result())
                if self._sasl is not None and self._sasl.user is not None and not self._is_proved:
                    self._is_proved = True
                    self._shared.proved(self)
                if self._sasl is not None and self._sasl.failure:
                    self._shared.complaints.note(REFUSED, self.host, self._sasl.failure)
                    self.is_gone = True
                    self._transport.close()  # after the refusal is sent
        self.idle_since = time.monotonic()
        self._go_on()

    def _send(self, octets: Bytes) -> None:
        parts = range(0, len(octets), WRITE_BYTES)
        self._outbox += (memoryview(octets)[at : at + WRITE_BYTES] for at in parts)
        self._unsent_bytes += len(octets)
        self._shared.room.add(len(octets))
        self._write()
        if not self._is_writing_paused:  # little is buffered in asyncio and the kernel
            self._shared.room.give_back(self._unsent_bytes)
            self._unsent_bytes = 0

    def _write(self) -> None:
        while self._outbox and not (self._is_writing_paused or self._transport.is_closing()):
            self._transport.write(self._outbox.popleft())


def _counted(size_bytes: int) -> int:
    """Return the bytes of a request that the budget accounts for; none of a small one."""
    return size_bytes if size_bytes > SCRATCH_BYTES else 0


# -- the server ------------------------------------------------------------------------------------

BACKLOG: Final = 1_024  # the kernel's accept queue: after a restart all clients connect at once
LOOK_INTERVAL_S: Final = 1.0  # interval of the check for slow clients

STRANGERS: Final = 10
"""One of this many connections is reserved for clients that have not authenticated yet."""

TOO_MANY: Final = "connections refused because of the limit"


class Server:
    """Serves until ``close``. Its thread references the features, not the gateway.

    Args:
        listener: a listening socket, closed with the server.
        users: the users that may connect; None lets everyone in.
        tls: with it all connections are encrypted.
    """

    def __init__(
        self,
        listener: socket.socket,
        features: Sequence[Feature],
        limits: Limits | None = None,
        room: Room | None = None,
        users: Users | None = None,
        tls: ssl.SSLContext | None = None,
        complaints: Complaints | None = None,
    ) -> None:
        # The store needs the other half: without free descriptors it stops working.
        limits = limits or Limits()
        most = min(limits.max_connections, open_files_limit() // 2)
        self.limits = replace(limits, max_connections=most)
        self.complaints = complaints or Complaints()
        apis = {api: each for feature in features for api, each in feature.apis.items()}
        self.requests = Requests(apis, self.limits, self.complaints)
        self.room = room or Room(self.limits.max_in_flight_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES if tls is None else TLS_SCRATCH_BYTES))
        self.users = users
        self.tls = tls
        self._connections: dict[Connection, int] = {}
        # Connections without a user or before TLS, oldest first.
        self._strangers: dict[Connection, None] = {}
        self.agreeing: set[Connection] = set()  # in their TLS handshake
        self._listener = listener
        self._features = features
        self.loop = asyncio.new_event_loop()  # the event loop of the features
        self._started: Future[None] = Future()
        self._closing = asyncio.Event()
        self._thread = NodeThread("dafka-kafka", self._run)

    def start(self) -> None:
        """Start to serve; raise what a feature raises that can't start."""
        self._thread.start()
        self._started.result()

    def close(self) -> None:
        """Close all connections; may be repeated."""
        if self._thread.started:
            with contextlib.suppress(RuntimeError):  # already closed
                self.loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        else:
            self.loop.close()
        self._listener.close()

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return len(self._connections) - len(self.agreeing)

    def on_forked(self) -> None:
        """Close a forked child's copies of the sockets, so that clients see the parent's end."""
        self._listener.close()
        for descriptor in self._connections.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    # -- in the loop -----------------------------------------------------------------------------

    def joined(self, connection: Connection) -> None:
        """Admit a connection; close another, unauthenticated one if the server is full."""
        self._connections[connection] = connection.descriptor
        if self.tls is not None:
            self.agreeing.add(connection)
        if len(self._connections) > self.limits.max_connections:
            if self.users is None:
                self._end_one(self._connections, connection)
            else:
                oldest = next(iter(self._strangers), connection)
                oldest.end(TOO_MANY, "the server is full, and it has not authenticated")
                self.left(oldest)
        if not connection.is_gone:
            self._strangers[connection] = None

    def proved(self, connection: Connection) -> None:
        """Move an authenticated client to the admitted ones, and keep a place for new clients."""
        self._strangers.pop(connection, None)
        most = self.limits.max_connections - self.limits.max_connections // STRANGERS
        if len(self._connections) - len(self._strangers) > most:
            self._end_one(self._connections.keys() - self._strangers.keys(), connection)

    def left(self, connection: Connection) -> None:
        """Forget a connection that has closed or is closing."""
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        self.agreeing.discard(connection)

    def _end_one(self, found: Iterable[Connection], new: Connection) -> None:
        """Close the longest idle connection; the new one if no other is idle."""
        idle = [each for each in found if each.is_idle and each is not new]
        oldest = min(idle, key=lambda each: each.idle_since, default=new)
        oldest.end(TOO_MANY if oldest is new else "", "none is idle")
        self.left(oldest)

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self.loop.close()

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as undo:
            for feature in self._features:
                undo.push_async_callback(feature.close)
                await feature.start()
            server = await self.loop.create_server(
                lambda: Connection(self),
                sock=self._listener,
                backlog=BACKLOG,
            )
            undo.push_async_callback(self._end_all, server)
            self._started.set_result(None)
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), LOOK_INTERVAL_S)
                now = time.monotonic()
                if self.users is not None:
                    self.users.look()
                for connection in tuple(self._connections):
                    connection.look(now)

    async def _end_all(self, server: asyncio.Server) -> None:
        # asyncio leaks a connection accepted just before its server closes.
        self.loop.remove_reader(self._listener)
        for _ in range(3):  # loop iterations until an accepted connection exists
            await asyncio.sleep(0)
        server.close()
        ending = tuple(self._connections)
        tasks = [task for each in ending for task in each.tasks()]
        for connection in ending:
            connection.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._connections:
            await asyncio.sleep(0)


def tls_of(config: KafkaOptions) -> ssl.SSLContext | None:
    """Return the TLS context; None without a certificate.

    Raises:
        ConfigError: the certificate or its key is invalid.
    """
    certificate, key = config.kafka_tls_certificate, config.kafka_tls_key
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # includes ssl.SSLError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        why = f"{certificate} and {key} must be a PEM certificate and its key ({reason})"
        raise ConfigError("kafka_tls_certificate", certificate, why) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password: remove it with 'openssl pkey'")
