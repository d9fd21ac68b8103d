"""The listener for Kafka's clients, with TLS, in a thread with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from dafka_core.config.host_port import HostPort
from dafka_core.errors import ConfigError
from dafka_core.nodes.process_limits import soft_limit
from dafka_core.nodes.threads import NodeThread
from dafka_kafka.connection import SCRATCH_BYTES, Connection
from dafka_kafka.gateway_node import Complaints, Feature, Room
from dafka_kafka.limits import Limits
from dafka_kafka.options import KafkaOptions
from dafka_kafka.requests import Requests
from dafka_kafka.users import Users

BACKLOG: Final = 1_024
"""Connections that the kernel keeps until they are accepted: all clients come at once after a
restart."""

LOOK_INTERVAL_S: Final = 1.0
"""How often it is looked for clients that are too slow."""

STRANGERS: Final = 10
"""One of so many connections is for those who have not said yet who they are, where they must."""

REFUSED: Final = "connections refused as there are too many"


def listen_at(where: HostPort) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigError: it cannot; says why.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            *where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        why = f"cannot listen there: {error.strerror or error}; port 0 lets the system choose"
        raise ConfigError("listen", str(where), why) from error


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
                oldest.end(REFUSED, "others connect, and it has not said who it is")
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
        oldest.end(REFUSED if oldest is new else "", "none is idle")
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
            undo.push_async_callback(self._end_all)
            undo.callback(server.close)
            self._started.set_result(None)
            while not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), LOOK_INTERVAL_S)
                now = time.monotonic()
                if self.users is not None:
                    self.users.look()
                for connection in tuple(self._connections):
                    connection.look(now)

    async def _end_all(self) -> None:
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
