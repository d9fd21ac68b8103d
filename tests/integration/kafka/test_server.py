"""The server and its connections: many clients, slow ones, and limits."""

import asyncio
import contextlib
import gc
import random
import resource
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from dafka_core import Store
from dafka_core.errors import ConfigError
from dafka_core.system.files import open_files_limit, raise_open_files_limit
from dafka_core.system.hosts import HostPort, listen
from dafka_core.testing import wait_until
from dafka_kafka.api import Api, Client, Feature, serves
from dafka_kafka.gateway import Gateway
from dafka_kafka.options import Limits
from dafka_kafka.server import (
    BACKLOG,
    MALFORMED,
    NO_TLS,
    SCRATCH_BYTES,
    TOO_MANY,
    TOO_SLOW,
    Server,
)
from dafka_kafka.users import Users
from tests.integration.kafka.locked import NAME, PASSWORD, Locked, write_users
from tests.integration.kafka.malformed import framed

ASK = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def received(client: socket.socket, count: int) -> bytes:
    octets = b""
    while len(octets) < count and (more := client.recv(count - len(octets))):
        octets += more
    return octets


def response(client: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", received(client, 4))
    return received(client, size)


def is_ended(client: socket.socket) -> bool:
    try:
        return received(client, 1) == b""
    except ConnectionResetError:
        return True


HEARTBEAT = struct.pack(">hhih h1sih1s", 12, 0, 7, -1, 1, b"g", 3, 1, b"m")
FETCH = struct.pack(">hhih iiii", 1, 0, 8, -1, -1, 0, 1, 0)


def produce(records: bytes, number: int = 0) -> bytes:
    head = struct.pack(">hhih hii", 0, 0, number, -1, 1, 100, 1)
    return framed(head + struct.pack(">h1siii", 1, b"t", 1, 0, len(records)) + records)


class Slow(Feature):
    """Answers when a test lets it; without a response, as to acks=0."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun = 0
        self.working = 0
        self.cancelled = 0
        self.closed = False
        self.response = b"done"

    @serves(Api.HEARTBEAT, range(4))
    @serves(Api.FETCH, range(12))
    @serves(Api.PRODUCE, range(9))
    async def answer(self, request: Any, client: Client) -> bytes | None:
        self.begun += 1
        self.working += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.working -= 1
        return self.response or None

    async def close(self) -> None:
        self.closed = True


Connect = Callable[[], socket.socket]


Wrap = Callable[[socket.socket], socket.socket]
with_and_without_tls = pytest.mark.parametrize("encrypts", [False, True])


def security(encrypts: bool) -> tuple[ssl.SSLContext | None, Wrap]:
    """Return a server's TLS context, if any, and what its clients do with their connections."""
    if not encrypts:
        return None, lambda client: client
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return context, partial(trusting.wrap_socket, server_hostname="127.0.0.1")


@contextmanager
def served(
    users: Users | None = None, tls: ssl.SSLContext | None = None, **limits: Any
) -> Iterator[tuple[Server, Connect, Slow]]:
    slow = Slow()
    with ExitStack() as ending:
        listener = listen(HostPort("127.0.0.1", 0), BACKLOG)
        server = Server(listener, [slow], Limits(**limits), users=users, tls=tls)
        ending.callback(server.close)
        server.start()

        def connect() -> socket.socket:
            made = socket.create_connection(listener.getsockname(), timeout=30)
            return ending.enter_context(made)

        yield server, connect, slow


def let_go(server: Server, slow: Slow) -> None:
    server.loop.call_soon_threadsafe(slow.go_on.set)


def test_a_request_waits_for_the_one_before_and_holds_up_no_other_client() -> None:
    with served() as (server, connect, slow):
        waiting, other = connect(), connect()
        waiting.sendall(framed(FETCH) + framed(HEARTBEAT) + ASK)
        wait_until(lambda: slow.working == 1)
        other.sendall(ASK)
        assert response(other)
        assert slow.working == 1
        let_go(server, slow)
        assert [response(waiting)[:4] for _ in range(3)] == [
            struct.pack(">i", number) for number in (8, 7, 7)
        ]


@pytest.mark.parametrize("rounds", range(8))
def test_a_connection_that_is_accepted_at_the_end_is_closed(rounds: int) -> None:
    """The client arrives this number of loop iterations after the server was asked to close."""
    with served() as (server, connect, _):
        connected = threading.Event()

        def wait_after(left: int) -> None:
            if left:
                server.loop.call_soon(wait_after, left - 1)
            else:
                connected.wait(30)

        def close() -> None:
            server._closing.set()
            wait_after(rounds)

        server.loop.call_soon_threadsafe(close)
        with contextlib.suppress(OSError):  # closed after that many iterations
            connect()
        connected.set()
    gc.collect()  # warns about open connections


def test_requests_with_records_are_worked_on_side_by_side_and_answered_in_order() -> None:
    with served(max_pipelined=3) as (server, connect, slow):
        client = connect()
        client.sendall(b"".join(produce(b"r", number) for number in range(10)) + framed(FETCH))
        wait_until(lambda: slow.working == 3)
        client.sendall(ASK)
        let_go(server, slow)
        numbers = [struct.unpack(">i", response(client)[:4])[0] for _ in range(12)]
        assert numbers == [*range(10), 8, 7]


@pytest.mark.parametrize(("size_bytes", "overlapping"), [(SCRATCH_BYTES - 100, 6), (1 << 20, 4)])
def test_requests_overlap_up_to_a_number_of_bytes(size_bytes: int, overlapping: int) -> None:
    with served(max_pipelined=100) as (server, connect, slow):
        client, other = connect(), connect()
        client.sendall(b"".join(produce(bytes(size_bytes), number) for number in range(8)))
        wait_until(lambda: slow.working == overlapping)
        other.sendall(ASK)
        assert response(other)
        assert slow.working == overlapping
        if size_bytes < SCRATCH_BYTES:  # the memory budget does not know of them
            assert server.room.taken_bytes < SCRATCH_BYTES
        let_go(server, slow)
        numbers = [struct.unpack(">i", response(client)[:4])[0] for _ in range(8)]
        assert numbers == [*range(8)]


def test_what_a_client_has_asked_for_is_given_up_when_it_goes() -> None:
    with served() as (server, connect, slow):
        with connect() as client:
            client.sendall(produce(bytes(100_000)) + framed(FETCH))
            wait_until(lambda: slow.working == 1)
            assert server.room.taken_bytes > 100_000
        wait_until(lambda: slow.cancelled == 1 and server.connection_count == 0)
        wait_until(lambda: server.room.taken_bytes == 0)


def has_closed(server: Server) -> bool:
    """Return whether the server's system knows that its only client has closed."""
    (connection,) = server._connections
    looks = select.poll()
    looks.register(connection.descriptor, select.POLLRDHUP)
    return bool(looks.poll(0))


def test_records_of_a_client_that_has_closed_are_read() -> None:
    with served(max_pipelined=1) as (server, connect, slow):
        slow.response = b""
        with connect() as client:
            client.sendall(produce(b"records") * 5)
            wait_until(lambda: slow.working == 1)
        wait_until(lambda: has_closed(server))
        (connection,) = server._connections
        server.loop.call_soon_threadsafe(connection.look, time.monotonic())
        let_go(server, slow)
        wait_until(lambda: slow.begun == 5)
        wait_until(lambda: server.connection_count == 0)


def test_records_of_a_client_that_has_closed_are_read_with_tls() -> None:
    context, encrypted = security(True)
    with served(tls=context) as (server, connect, slow):
        slow.response = b""
        with encrypted(connect()) as client:
            client.sendall(ASK)
            assert response(client)
            client.sendall(produce(bytes(1_000)) * 200)
            wait_until(lambda: slow.working > 50)
        wait_until(lambda: has_closed(server))
        let_go(server, slow)
        wait_until(lambda: slow.begun == 200)
        wait_until(lambda: server.connection_count == 0)


def test_an_end_of_the_server_ends_all() -> None:
    with served() as (server, connect, slow):
        client = connect()
        client.sendall(framed(FETCH))
        wait_until(lambda: slow.working == 1)
        server.close()
        assert (slow.cancelled, slow.closed) == (1, True)
        assert is_ended(client)
        server.close()


@pytest.mark.parametrize("begun", [b"\0", struct.pack(">i", 1_000) + bytes(10)])
def test_a_client_that_sends_an_octet_now_and_then_is_ended(begun: bytes) -> None:
    with served(arrival_s=0.3) as (server, connect, _):
        idle, slow = connect(), connect()
        slow.sendall(begun)
        with contextlib.suppress(ConnectionError):
            wait_until(lambda: server.complaints.counts[TOO_SLOW] or slow.send(b"\0") == 0)
        wait_until(lambda: server.connection_count == 1)
        idle.sendall(ASK)  # an idle connection may stay
        assert response(idle)


@with_and_without_tls
@pytest.mark.parametrize("taken_bytes", [0, 2 << 20])
def test_a_client_that_takes_at_most_a_part_of_a_response_is_ended(
    taken_bytes: int, encrypts: bool
) -> None:
    tls, connected = security(encrypts)
    with served(tls=tls, arrival_s=0.3, slowest_bytes_per_s=1 << 30) as (server, connect, slow):
        slow.response = bytes(16 << 20)
        let_go(server, slow)
        with connected(connect()) as client:
            client.sendall(framed(FETCH) * 2)
            received(client, taken_bytes)
            wait_until(lambda: server.complaints.counts[TOO_SLOW] == 1)
            wait_until(lambda: server.room.taken_bytes == 0)
        slow.response = b"done"
        with connected(connect()) as again:
            again.sendall(framed(FETCH))
            assert response(again)[4:] == b"done"


@with_and_without_tls
@pytest.mark.parametrize("taken_bytes", [0, 2 << 20])
def test_an_unread_response_counts(taken_bytes: int, encrypts: bool) -> None:
    tls, connected = security(encrypts)
    with served(tls=tls) as (server, connect, slow):
        slow.response = random.Random(7).randbytes(16 << 20)
        let_go(server, slow)
        with connected(connect()) as client:
            client.sendall(framed(FETCH))
            assert response(client)[4:] == slow.response
            wait_until(lambda: server.room.taken_bytes == 0)
            client.sendall(framed(FETCH))
            assert received(client, taken_bytes)[8:] == slow.response[: max(taken_bytes - 8, 0)]
            wait_until(lambda: server.room.taken_bytes > 16 << 20)
        wait_until(lambda: server.room.taken_bytes == 0)


def test_no_more_is_read_than_there_is_room_for() -> None:
    size_bytes = 200_000
    with served(max_in_flight_bytes=3 * size_bytes) as (server, connect, slow):
        clients = [connect() for _ in range(8)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            client.sendall(produce(bytes(size_bytes)))
        wait_until(lambda: slow.working == 2)
        small = connect()
        small.sendall(ASK)
        assert response(small)
        assert server.room.taken_bytes <= 3 * size_bytes
        let_go(server, slow)
        assert all(map(response, clients))
        wait_until(lambda: server.room.taken_bytes == 0)


def test_a_request_that_waits_for_room_is_not_too_slow() -> None:
    with served(max_in_flight_bytes=300_000, arrival_s=0.2) as (server, connect, slow):
        first, second = connect(), connect()
        first.sendall(produce(bytes(200_000)))
        wait_until(lambda: slow.working == 1)
        second.sendall(produce(bytes(2_000_000)))
        with pytest.raises(AssertionError, match="the connection to end"):
            wait_until(lambda: server.connection_count < 2, "the connection to end", 2.5)
        let_go(server, slow)
        assert response(first)
        assert response(second)


def test_who_goes_while_it_waits_for_room_holds_up_nobody() -> None:
    with served(max_in_flight_bytes=300_000) as (server, connect, slow):
        first, gone, second = connect(), connect(), connect()
        first.sendall(produce(bytes(200_000)))
        wait_until(lambda: slow.working == 1)
        gone.sendall(produce(bytes(290_000))[:1_000])
        wait_until(lambda: len(server.room._waiting) == 1)
        second.sendall(produce(bytes(90_000)))
        wait_until(lambda: len(server.room._waiting) == 2)
        gone.close()
        wait_until(lambda: slow.working == 2)
        let_go(server, slow)
        assert response(first)
        assert response(second)


def test_what_is_too_large_or_has_no_size_is_refused_before_it_comes() -> None:
    with served(max_produce_bytes=1_000) as (server, connect, _):
        for size_bytes in (1_001, 2**31 - 1, 0, -1):
            client = connect()
            client.sendall(struct.pack(">i", size_bytes))
            assert is_ended(client)
        assert server.complaints.counts == {MALFORMED: 4}


def test_the_one_that_was_idle_longest_makes_room() -> None:
    with served(max_connections=3) as (server, connect, slow):
        busy, idle, other = connect(), connect(), connect()
        wait_until(lambda: server.connection_count == 3)
        for client in (busy, other):
            client.sendall(framed(FETCH))
        wait_until(lambda: slow.working == 2)
        new = connect()
        assert is_ended(idle)
        new.sendall(framed(FETCH))
        wait_until(lambda: slow.working == 3)
        refused = connect()
        assert is_ended(refused)
        assert server.complaints.counts[TOO_MANY] == 1
        let_go(server, slow)
        assert all(map(response, (busy, other, new)))


@pytest.fixture
def users(tmp_path: Path) -> Users:
    write_users(tmp_path / "users", NAME)
    return Users(str(tmp_path / "users"))


def log_in(client: socket.socket) -> bool:
    """Return whether the connection was accepted."""
    handshake = struct.pack(">hhih h5s", Api.SASL_HANDSHAKE, 1, 7, -1, 5, b"PLAIN")
    said = f"\0{NAME}\0{PASSWORD}".encode()
    proof = struct.pack(">hhih i", Api.SASL_AUTHENTICATE, 1, 7, -1, len(said)) + said
    client.sendall(framed(handshake) + framed(proof) + framed(HEARTBEAT))
    try:
        return [response(client)[4:6] for _ in range(3)] == [b"\0\0", b"\0\0", b"do"]
    except (OSError, struct.error):
        return False


def test_no_user_makes_room_for_somebody_who_has_not_said_who_it_is(users: Users) -> None:
    with served(users, max_connections=4) as (server, connect, slow):
        let_go(server, slow)
        alice, silent, other = connect(), connect(), connect()
        assert log_in(alice)
        other.sendall(framed(HEARTBEAT)[:10])  # busy, which does not help it
        strangers = [silent, other, *(connect() for _ in range(12))]
        assert all(map(is_ended, strangers[:-3]))
        assert log_in(connect())  # and an authenticated client finds room
        alice.sendall(framed(HEARTBEAT))
        assert response(alice)[4:] == b"done"
        assert server.connection_count == 4
        assert server.complaints.counts[TOO_MANY] == 12


def test_users_leave_a_place_for_those_who_have_yet_to_say_who_they_are(users: Users) -> None:
    with served(users, max_connections=10) as (server, connect, slow):
        let_go(server, slow)
        clients = [connect() for _ in range(9)]
        assert all(map(log_in, clients))
        assert log_in(connect())
        assert is_ended(clients[0])
        for client in clients[1:]:
            client.sendall(framed(HEARTBEAT))
            assert response(client)[4:] == b"done"


def test_who_does_not_begin_with_tls_takes_a_place_and_makes_room(users: Users) -> None:
    tls, encrypted = security(True)
    with served(users, tls, max_connections=3) as (server, connect, slow):
        let_go(server, slow)
        silent = [connect() for _ in range(5)]
        assert all(map(is_ended, silent[:2]))
        with encrypted(connect()) as client:
            assert is_ended(silent[2])
            assert log_in(client)
            assert len(server._connections) == 3
            assert server.connection_count == 1


def test_a_failed_handshake_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with served(tls=tls) as (server, connect, _):
        client = connect()
        client.sendall(framed(HEARTBEAT))  # without TLS
        assert is_ended(client)
        wait_until(lambda: server.complaints.counts[NO_TLS] == 1)
        with pytest.raises(ssl.SSLError):  # which does not trust the certificate
            ssl.create_default_context().wrap_socket(connect(), server_hostname="127.0.0.1")
        wait_until(lambda: server.complaints.counts[NO_TLS] == 2)
    assert "from 127.0.0.1: WRONG_VERSION_NUMBER" in caplog.text


def test_thousands_of_idle_clients_do_no_harm() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # Both ends of each are in this process.
        raise_open_files_limit()
        count = min(5_000, open_files_limit() // 2 - 250)
        with served() as (server, connect, _):
            clients = [connect() for _ in range(count)]
            wait_until(lambda: server.connection_count == count)
            for client in clients[:: max(1, count // 100)]:
                client.sendall(ASK)
                assert response(client)
        assert server.connection_count == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_certificate_that_cannot_be_used_is_refused(locked: Locked, store: Store) -> None:
    for alone in ("kafka_tls_key", "kafka_tls_certificate"):
        with pytest.raises(ConfigError, match="must be set, too"):
            Gateway(store, **{alone: locked.options[alone]})
    for wrong, why in (
        ({"kafka_tls_key": str(locked.users)}, "must be a PEM certificate and its key"),
        ({"kafka_tls_certificate": "/missing"}, "No such file"),
    ):
        with pytest.raises(ConfigError, match=why):
            Gateway(store, **locked.options | wrong)


def test_a_request_may_come_octet_by_octet(gateway: Gateway) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for octet in ASK * 2:
            client.sendall(bytes([octet]))
        assert response(client) == response(client)


@pytest.mark.parametrize(
    ("octets", "said"),
    [(b"\x16\x03\x01\x02\x00\x01", "TLS, for which"), (b"GET / HTTP/1.1\r\n", "HTTP, and this")],
)
def test_another_protocol_is_named(
    octets: bytes, said: str, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        client.sendall(octets)
        assert is_ended(client)
    assert said in caplog.text
