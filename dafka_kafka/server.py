"""The listener for Kafka's clients, with TLS, in a thread with an event loop; its connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, Protocol, cast

import numpy as np

from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.nodes.process_limits import soft_limit
from dafka_core.nodes.threads import NodeThread
from dafka_core.system.hosts import is_loopback, plain
from dafka_kafka.api_versions import Api
from dafka_kafka.gateway_node import Complaints, Feature, Room
from dafka_kafka.options import KafkaOptions, Limits
from dafka_kafka.requests import Pieces, RequestHead, Requests, parse_head
from dafka_kafka.sasl import MAX_REQUEST_BYTES, PATIENCE_S, REFUSED, Sasl
from dafka_kafka.users import Users

SCRATCH_BYTES: Final = 16 << 10
"""What is read at once of small requests.  A connection has so much at most of requests that wait
for the one before, and as much again of one that has arrived in part; no more is counted."""

_SIZE: Final = struct.Struct(">i")

_GONE: Final = getattr(select, "POLLRDHUP", 0)
"""What the kernel says of a connection whose other end is closed; that it is reset it says always.
Not all systems have it."""

_OTHERS: Final = {
    b"\x16\x03": "TLS, for which the gateway has no certificate (option kafka_tls_certificate)",
    b"GET ": "HTTP, and this is Kafka's protocol",
    b"POST": "HTTP, and this is Kafka's protocol",
}
"""What else comes by mistake, by its first octets; all of them are too large for a size."""

HANDSHAKE_S: Final = 10.0
"""Until then a connection with TLS must be one."""

MALFORMED: Final = "connections closed for requests that cannot be answered"
TOO_SLOW: Final = "connections closed as their client was too slow"


class Shared(Protocol):
    """What connections have in common."""

    limits: Limits
    requests: Requests
    complaints: Complaints
    room: Room
    scratch: memoryview
    users: Users | None
    tls: ssl.SSLContext | None

    def joined(self, connection: Connection) -> None:
        """A client has connected."""

    def agreed(self, connection: Connection) -> None:
        """It talks TLS, where it must."""

    def proved(self, connection: Connection) -> None:
        """Its client has proved who it is, where it must."""

    def left(self, connection: Connection) -> None:
        """Its connection has ended."""


class Connection(asyncio.BufferedProtocol):
    """Takes requests apart, has them answered one after the other, and sends the responses.

    Only requests with records are worked on before the one before is answered, if that has records,
    too: their producer waits for the disk once, then, and not for each.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._transport: asyncio.Transport
        self.host = ""
        self.descriptor = -1
        self.idle_since = self._made_at = time.monotonic()
        self._agreeing: asyncio.Task[None] | None = None  # on TLS
        self._sasl: Sasl | None = None  # where clients must say who they are
        self._is_proved = False
        self._rest = b""  # octets that wait until requests are answered
        self._size = bytearray()  # the first octets of the next request, which say its size
        self._request: memoryview | None = None  # the one that is arriving
        self._filled = 0
        self._wanted_bytes = 0  # of a request for which there is no room yet
        self._is_direct = False  # whether the next octets go straight into the request
        self._waiting: tuple[RequestHead, memoryview] | None = None
        self._works: deque[tuple[asyncio.Task[Pieces], int, bool]] = deque()
        self._unsent_bytes = 0
        self._is_writing_paused = False
        self._is_reading_paused = False
        self.is_gone = False
        """Whether it has ended, or is about to."""
        self.deadline = inf
        """When it is too late for the request that is arriving, or for the client to take what it
        was sent."""

    # -- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # or the dead stay for ever
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
        """The connection has ended: nothing is answered any more."""
        self.is_gone = True
        held = self._unsent_bytes
        for task, size_bytes, _ in self._works:
            task.cancel()
            # It may have to end what it does, and keeps its request until then.
            task.add_done_callback(partial(self._on_ended, size_bytes))
        if self._request is not None:
            held += _counted(len(self._request))
        if self._waiting is not None:
            held += _counted(len(self._waiting[1]))
        self._works.clear()
        self._request = self._waiting = None
        self._shared.room.give_back(held)
        self._shared.room.wait_no_more(self._has_room)
        self._shared.left(self)

    def _on_ended(self, size_bytes: int, ended: asyncio.Task[Pieces]) -> None:
        self._shared.room.give_back(size_bytes)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next octets go."""
        missing = len(self._request) - self._filled if self._request is not None else 0
        self._is_direct = missing >= SCRATCH_BYTES
        if self._is_direct and self._request is not None:
            return self._request[self._filled :]
        return self._shared.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """So many octets have come there."""
        if self._agreeing is not None:  # what came right behind the handshake
            self._rest += self._shared.scratch[:nbytes]
        elif self._is_direct:
            self._filled += nbytes
            self._feed(memoryview(b""))
        else:
            self._feed(self._shared.scratch[:nbytes])

    def pause_writing(self) -> None:
        """The client does not take what it was sent."""
        self._is_writing_paused = True
        self.deadline = self._patience(self._unsent_bytes)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._is_writing_paused = False
        self._shared.room.give_back(self._unsent_bytes)
        self._unsent_bytes = 0
        self._set_deadline()
        self._go_on()

    # -- for the server --------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come that is not answered."""
        is_reading = self._request is not None or bool(self._wanted_bytes or self._rest)
        return not (self._works or self._waiting or is_reading)

    def look(self, now: float) -> None:
        """Ends if its client is too slow, or has gone while nothing is read of it."""
        if self._sasl is not None and self._sasl.user is None and now > self._made_at + PATIENCE_S:
            self.end(REFUSED, "nothing was said in time")
        elif self._sasl is not None and self._sasl.is_shut_out:
            self.end(REFUSED, f"user {self._sasl.user!r} is none any more, or has another password")
        elif now > self.deadline:
            what = "to take responses" if self._is_writing_paused else "with a request"
            self.end(TOO_SLOW, f"too slow {what}")
        elif self._is_reading_paused:
            looks = select.poll()
            looks.register(self.descriptor, _GONE)
            if looks.poll(0):
                self.end()

    def end(self, kind: str = "", why: str = "") -> None:
        """Closes the connection; what it has not sent is dropped."""
        if kind and not self.is_gone:
            self._shared.complaints.note(kind, self.host, why)
        self.is_gone = True
        self._transport.abort()

    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """Who works for it."""
        works = [task for task, _, _ in self._works]
        return works if self._agreeing is None else [*works, self._agreeing]

    async def _agree(self, tls: ssl.SSLContext) -> None:
        start = asyncio.get_running_loop().start_tls
        made = None
        try:
            made = await start(
                self._transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:
            return  # it could not, or has gone
        finally:
            if made is None:
                self.is_gone = True
                self._shared.left(self)
        self._agreeing = None
        if made is not None and not self.is_gone:
            self._transport = made
            self._shared.agreed(self)
            self._go_on()

    # -- requests in -----------------------------------------------------------------------------

    def _feed(self, octets: memoryview) -> None:
        try:
            while not self.is_gone:
                if self._request is not None:
                    octets = self._fill(self._request, octets)
                if self._waiting is not None or self._wanted_bytes or not len(octets):
                    break
                if self._request is None:
                    octets = self._begin(octets)
        except ProtocolError as error:
            self.end(MALFORMED, str(error))
            return
        self._rest = bytes(octets)
        self._pace()

    def _begin(self, octets: memoryview) -> memoryview:
        missing = _SIZE.size - len(self._size)
        self._size += octets[:missing]
        if len(self._size) < _SIZE.size:
            if missing == _SIZE.size:
                self._set_deadline()
            return octets[missing:]
        first = bytes(self._size)
        (size_bytes,) = _SIZE.unpack(first)
        self._size.clear()
        is_known = self._sasl is None or self._sasl.user is not None
        most = self._shared.limits.max_produce_bytes if is_known else MAX_REQUEST_BYTES
        if not 0 < size_bytes <= most:
            other = next((_OTHERS[each] for each in _OTHERS if first.startswith(each)), "")
            raise ProtocolError(other or f"a request of {size_bytes} octets")
        counted = _counted(size_bytes)
        if counted and not self._shared.room.take(counted, self._has_room):
            self._wanted_bytes = size_bytes
        else:
            self._request = _new_request(size_bytes)
            self._filled = 0
        if len(octets) - missing < size_bytes:
            self._set_deadline()
        return octets[missing:]

    def _fill(self, request: memoryview, octets: memoryview) -> memoryview:
        count = min(len(request) - self._filled, len(octets))
        request[self._filled : self._filled + count] = octets[:count]
        self._filled += count
        if self._filled == len(request):
            self._request = None
            self._set_deadline()
            try:
                self._waiting = parse_head(request), request
            except ProtocolError:
                self._shared.room.give_back(_counted(len(request)))
                raise
            self._start_next()
        return octets[count:]

    def _has_room(self) -> None:
        self._request, self._wanted_bytes = _new_request(self._wanted_bytes), 0
        self._filled = 0
        self._set_deadline()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _set_deadline(self) -> None:
        if self._is_writing_paused:
            return
        if self._request is not None:
            self.deadline = self._patience(len(self._request))
        else:
            self.deadline = self._patience(0) if self._size else inf

    def _patience(self, size_bytes: int) -> float:
        return time.monotonic() + self._shared.limits.patience_s(size_bytes)

    # -- responses out ---------------------------------------------------------------------------

    def _start_next(self) -> None:
        if self._waiting is None or self._is_writing_paused:
            return
        head, octets = self._waiting
        is_produce = head.api_key == Api.PRODUCE
        if self._works and not (
            is_produce
            and all(each for _, _, each in self._works)
            and len(self._works) < self._shared.limits.max_pipelined
        ):
            return
        self._waiting = None
        answer = self._shared.requests.answer(
            head, octets, self.host, lambda: self.is_gone, self._sasl
        )
        task = asyncio.get_running_loop().create_task(answer)
        self._works.append((task, _counted(len(octets)), is_produce))
        task.add_done_callback(self._on_answered)

    def _on_answered(self, answered: asyncio.Task[Pieces]) -> None:
        if self.is_gone:
            if not answered.cancelled():
                answered.exception()  # or asyncio would complain that nobody has seen it
            return
        while self._works and self._works[0][0].done() and not self.is_gone:
            task, size_bytes, _ = self._works.popleft()
            self._shared.room.give_back(size_bytes)
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
                    self._transport.close()  # when the refusal has been sent
        self.idle_since = time.monotonic()
        self._go_on()

    def _send(self, pieces: Pieces) -> None:
        if not pieces:
            return
        size_bytes = sum(map(len, pieces))
        self._unsent_bytes += size_bytes
        self._shared.room.add(size_bytes)
        self._transport.writelines(pieces)
        if not self._is_writing_paused:  # asyncio, or the kernel, has little of it left
            self._shared.room.give_back(self._unsent_bytes)
            self._unsent_bytes = 0

    def _go_on(self) -> None:
        if self.is_gone:
            return
        self._start_next()
        rest, self._rest = self._rest, b""
        self._feed(memoryview(rest))

    def _pace(self) -> None:
        pause = self._waiting is not None or bool(self._wanted_bytes or self._rest)
        if pause is not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()


def _new_request(size_bytes: int) -> memoryview:
    # Not a bytearray: that would be written to, with zeros, before its octets have come.
    return np.empty(size_bytes, np.uint8).data


def _counted(size_bytes: int) -> int:
    """The octets of a request that take room: small ones are not counted."""
    return size_bytes if size_bytes > SCRATCH_BYTES else 0


BACKLOG: Final = 1_024
"""Connections that the kernel keeps until they are accepted: all clients come at once after a
restart."""

LOOK_INTERVAL_S: Final = 1.0
"""How often it is looked for clients that are too slow."""

STRANGERS: Final = 10
"""One of so many connections is for those who have not said yet who they are, where they must."""

TOO_MANY: Final = "connections refused as there are too many"


class Server:
    """Serves until ``close``.  Its thread keeps the features alive, and not who made it.

    Args:
        listener: a socket that listens; closed with the server.
        users: who may use it; anybody if there is none.
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
    ) -> None:
        # The store needs the other half: a process without descriptors stands still.
        limits = limits or Limits()
        most = min(limits.max_connections, soft_limit() // 2)
        self.limits = replace(limits, max_connections=most)
        self.complaints = Complaints()
        handlers = {key: each for feature in features for key, each in feature.handlers.items()}
        self.requests = Requests(handlers, self.limits, self.complaints)
        self.room = room or Room(self.limits.max_in_flight_bytes)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.users = users
        self.tls = tls
        self._connections: dict[Connection, int] = {}
        # Those without a user, and those that do not even talk TLS yet; the oldest is the first.
        self._strangers: dict[Connection, None] = {}
        self._agreeing: set[Connection] = set()
        self._listener = listener
        self._features = features
        self.loop = asyncio.new_event_loop()
        """Where features run."""
        self._started: Future[None] = Future()
        self._closing = asyncio.Event()
        self._thread = NodeThread("dafka-kafka", self._run)

    def start(self) -> None:
        """Serves from now on; raises what a feature raises that cannot start."""
        self._thread.start()
        self._started.result()

    def close(self) -> None:
        """Ends all connections.  May be repeated."""
        if self._thread.started:
            with contextlib.suppress(RuntimeError):  # it is closed already
                self.loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        else:
            self.loop.close()
        self._listener.close()

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections) - len(self._agreeing)

    def on_forked(self) -> None:
        """Closes a forked child's copies of the sockets: clients would never see them end."""
        self._listener.close()
        for descriptor in self._connections.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)

    # -- in the loop -----------------------------------------------------------------------------

    def joined(self, connection: Connection) -> None:
        """Somebody has connected: there is a place, or it is made; but no user has to go for it."""
        self._connections[connection] = connection.descriptor
        if self.tls is not None:
            self._agreeing.add(connection)
        if len(self._connections) > self.limits.max_connections:
            if self.users is None:
                self._end_one(self._connections, connection)
            else:
                oldest = next(iter(self._strangers), connection)
                oldest.end(TOO_MANY, "others connect, and it has not said who it is")
                self.left(oldest)
        if not connection.is_gone:
            self._strangers[connection] = None

    def agreed(self, connection: Connection) -> None:
        """It talks TLS."""
        self._agreeing.discard(connection)

    def proved(self, connection: Connection) -> None:
        """A client has proved who it is: a place is left for others that are to do so."""
        self._strangers.pop(connection, None)
        most = self.limits.max_connections - self.limits.max_connections // STRANGERS
        if len(self._connections) - len(self._strangers) > most:
            self._end_one(self._connections.keys() - self._strangers.keys(), connection)

    def left(self, connection: Connection) -> None:
        """A connection has ended, or is about to."""
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        self._agreeing.discard(connection)

    def _end_one(self, found: Iterable[Connection], new: Connection) -> None:
        """Ends the connection that was idle longest; the new one if no other is idle."""
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
        # asyncio leaks a connection that it has accepted just before its server closes.
        self.loop.remove_reader(self._listener)
        for _ in range(3):  # rounds of the loop in which it makes an accepted connection
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
    """What a gateway encrypts with; None if it is to use none.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    certificate, key = config.kafka_tls_certificate, config.kafka_tls_key
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # of which errors of TLS are some
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        why = f"{certificate} and {key} must be a PEM certificate and its key ({reason})"
        raise ConfigError("kafka_tls_certificate", certificate, why) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password: it is asked for where nobody can answer")
