"""Authentication of Kafka clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest

from dafka_core.security.throttles import MOST_WRONG
from dafka_core.testing import wait_until
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.sasl import REFUSED, Sasl
from dafka_kafka.users import HASHING_THREADS, SCRAM, Users
from tests.integration.kafka import aio
from tests.integration.kafka.locked import NAME, PASSWORD, Locked, write_users


def by_confluent(locked: Locked, mechanism: str, password: str) -> None:
    told: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": locked.servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(locked.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": NAME,
            "sasl.password": password,
            "message.timeout.ms": 30_000,
            "error_cb": told.append,
            "log_level": 0,
        }
    )
    producer.produce("t", b"x", on_delivery=lambda error, _: told.append(error))
    wait_until(lambda: producer.poll(0.1) is None or told)
    producer.purge()
    if told[0] is not None:
        raise PermissionError(str(told[0]))


def by_kafka_python(locked: Locked, mechanism: str, password: str) -> None:
    try:
        producer = kafka.KafkaProducer(
            bootstrap_servers=locked.servers,
            security_protocol="SASL_SSL",
            ssl_cafile=str(locked.authority),
            sasl_mechanism=mechanism,
            sasl_plain_username=NAME,
            sasl_plain_password=password,
        )
        producer.send("t", b"x").get(30)
        producer.close()
    except kafka.errors.KafkaError as error:
        raise PermissionError(str(error)) from None


def by_aiokafka(locked: Locked, mechanism: str, password: str) -> None:
    async def produce() -> str:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=locked.servers,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=str(locked.authority)),
            sasl_mechanism=mechanism,
            sasl_plain_username=NAME,
            sasl_plain_password=password,
        )
        try:
            await producer.start()
            await producer.send_and_wait("t", b"x")
        except aiokafka.errors.KafkaError as error:
            return str(error)
        finally:
            await producer.stop()
        return ""

    refusal = aio.run(produce())
    if refusal:
        raise PermissionError(refusal)


@pytest.mark.parametrize("produce", [by_confluent, by_kafka_python, by_aiokafka])
def test_clients_say_who_they_are(
    locked: Locked, produce: Callable[[Locked, str, str], None]
) -> None:
    for mechanism in (*SCRAM, "PLAIN"):
        produce(locked, mechanism, PASSWORD)
    if (
        produce is not by_kafka_python
    ):  # it retries for half a minute, and leaks the attempts' sockets
        for mechanism in (SCRAM[0], "PLAIN"):
            with pytest.raises(PermissionError):
                produce(locked, mechanism, "wrong")
        wait_until(lambda: locked.refused[REFUSED] >= 2)


class Raw:
    """A connection with hand-made requests."""

    def __init__(self, locked: Locked) -> None:
        context = ssl.create_default_context(cafile=str(locked.authority))
        host, port = locked.gateway.listens
        plain = socket.create_connection((host, port), timeout=30)
        self._socket = context.wrap_socket(plain, server_hostname=host)

    def ask(self, api: Api, version: int, body: bytes) -> bytes:
        """Return the response after its correlation id; empty if the connection was closed."""
        request = struct.pack(">hhih", api, version, 7, -1) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        return self.answer()[4:]

    def send(self, octets: bytes) -> None:
        self._socket.sendall(octets)

    def answer(self) -> bytes:
        """Return the next frame; empty at the end."""
        try:
            (size,) = struct.unpack(">i", self._exactly(4))
            return self._exactly(size)
        except (EOFError, OSError):
            return b""

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self._socket.recv(count - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw(locked: Locked) -> Iterator[Raw]:
    client = Raw(locked)
    yield client
    client.close()


def text(of: bytes) -> bytes:
    return struct.pack(">h", len(of)) + of


def octets(of: bytes) -> bytes:
    return struct.pack(">i", len(of)) + of


def logged_in(raw: Raw) -> None:
    assert raw.ask(Api.SASL_HANDSHAKE, 1, text(b"PLAIN"))[:2] == b"\0\0"
    said = f"\0{NAME}\0{PASSWORD}".encode()
    assert raw.ask(Api.SASL_AUTHENTICATE, 1, octets(said))[:2] == b"\0\0"


METADATA = Api.METADATA, 1, struct.pack(">i", 0)


def test_nothing_is_asked_before(locked: Locked, raw: Raw) -> None:
    assert raw.ask(Api.API_VERSIONS, 0, b"")
    assert raw.ask(*METADATA) == b""
    assert locked.gateway.invalid_count == 1
    large = Raw(locked)
    large.send(struct.pack(">i", 100_000))
    assert large.answer() == b""
    large.close()
    assert locked.gateway.invalid_count == 2


def test_who_proves_it_before_saying_how_is_told_and_cut_off(raw: Raw) -> None:
    found = raw.ask(Api.SASL_AUTHENTICATE, 1, octets(b"x"))
    assert struct.unpack_from(">h", found) == (KafkaError.ILLEGAL_SASL_STATE,)
    assert raw.answer() == b""


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (b"PLAIN", b"\xff"),
        (b"PLAIN", b"alice"),
        (b"PLAIN", b"carol\0alice\0wonder land"),
        (b"SCRAM-SHA-512", b"\xff"),
        (b"SCRAM-SHA-512", b"n,,n=alice"),
        (b"SCRAM-SHA-512", b"p=x,,n=alice,r=1"),
    ],
)
def test_what_proves_nothing_is_refused(raw: Raw, mechanism: bytes, said: bytes) -> None:
    assert raw.ask(Api.SASL_HANDSHAKE, 1, text(mechanism))[:2] == b"\0\0"
    found = raw.ask(Api.SASL_AUTHENTICATE, 1, octets(said))
    assert struct.unpack_from(">h", found) == (KafkaError.SASL_AUTHENTICATION_FAILED,)
    assert raw.answer() == b""


@pytest.mark.parametrize("mechanism", [b"PLAIN", b"SCRAM-SHA-512"])
def test_nobody_guesses_passwords(
    locked: Locked, mechanism: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows, hashed_in = Users.knows, []

    def counted(self: Users, name: str, password: str) -> bool:
        hashed_in.append(threading.current_thread().name)
        return knows(self, name, password)

    monkeypatch.setattr(Users, "knows", counted)
    wrong = b"\0alice\0guess" if mechanism == b"PLAIN" else b"n,,n=alice"
    body = octets(wrong)
    request = struct.pack(">hhih", Api.SASL_AUTHENTICATE, 1, 7, -1) + body
    clients = [Raw(locked) for _ in range(20)]
    for each in clients:
        assert each.ask(Api.SASL_HANDSHAKE, 1, text(mechanism))[:2] == b"\0\0"
    for each in clients:  # all at once: failures count when they are checked
        each.send(octets(request))
    failed = struct.pack(">h", KafkaError.SASL_AUTHENTICATION_FAILED)
    told = [each.answer()[4:6] for each in clients]
    assert set(told) <= {failed, b""}
    assert told.count(failed) >= MOST_WRONG
    clients.append(late := Raw(locked))
    assert late.ask(Api.SASL_HANDSHAKE, 1, text(b"PLAIN"))[:2] == b"\0\0"
    right = f"\0{NAME}\0{PASSWORD}".encode()
    # Closed without an answer, so that the client retries.
    assert late.ask(Api.SASL_AUTHENTICATE, 1, octets(right)) == b""
    if mechanism == b"PLAIN":
        assert MOST_WRONG <= len(hashed_in) < MOST_WRONG + HASHING_THREADS
        assert all(each.startswith("dafka-kafka-password") for each in hashed_in)
    for each in clients:
        each.close()


def test_who_has_another_password_is_cut_off(locked: Locked, raw: Raw) -> None:
    logged_in(raw)
    locked.permit("bob", NAME)  # the same password as before
    assert raw.ask(*METADATA)
    write_users(locked.users, NAME, password="another one")
    assert raw.answer() == b""
    wait_until(lambda: locked.refused[REFUSED] == 1)


def test_who_is_no_user_any_more_is_cut_off(locked: Locked, raw: Raw) -> None:
    logged_in(raw)
    assert raw.ask(*METADATA)
    locked.allow("bob")
    assert raw.answer() == b""
    again = Raw(locked)
    assert again.ask(Api.SASL_HANDSHAKE, 1, text(b"PLAIN"))
    said = f"\0{NAME}\0{PASSWORD}".encode()
    assert again.ask(Api.SASL_AUTHENTICATE, 1, octets(said))[:2] != b"\0\0"
    again.close()


def test_a_password_is_not_taken_where_others_can_read_it(tmp_path: Path) -> None:
    write_users(tmp_path / "users", NAME)
    sasl = Sasl(Users(str(tmp_path / "users")), is_private=False)
    asked: Any = SimpleNamespace(mechanism="PLAIN", version=1)
    handshake = sasl.apis[Api.SASL_HANDSHAKE].handler
    answer: Any = asyncio.run(handshake(asked, asked))  # type: ignore[arg-type]
    assert answer.error_code == KafkaError.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == [*SCRAM]
    assert "use TLS, or SCRAM" in sasl.failure
