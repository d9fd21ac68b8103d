"""Authentication of Kafka clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.security.throttles import MOST_WRONG
from dafka_core.testing import wait_until
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.sasl import REFUSED, Sasl
from dafka_kafka.users import HASHING_THREADS, SCRAM, Users
from tests.integration.kafka.clients.clients import (
    CLIENTS,
    FailedError,
    KafkaClient,
    KafkaPython,
    Sent,
)
from tests.integration.kafka.locked import NAME, PASSWORD, Locked, write_users


@pytest.mark.parametrize("kind", CLIENTS)
def test_clients_say_who_they_are(locked: Locked, kind: type[KafkaClient]) -> None:
    for mechanism in (*SCRAM, "PLAIN"):
        kind(locked.servers, locked.login(mechanism=mechanism)).write("t", [Sent(None, b"x")])
    if kind is KafkaPython:  # it retries for half a minute, and leaks the attempts' sockets
        return
    for mechanism in (SCRAM[0], "PLAIN"):
        wrong = locked.login(mechanism=mechanism, password="wrong")
        with pytest.raises(FailedError):
            kind(locked.servers, wrong).write("t", [Sent(None, b"x")])
    wait_until(lambda: locked.refused[REFUSED] >= 2)


RIGHT = f"\0{NAME}\0{PASSWORD}".encode()


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

    def begin(self, mechanism: bytes = b"PLAIN") -> None:
        body = struct.pack(">h", len(mechanism)) + mechanism
        assert self.ask(Api.SASL_HANDSHAKE, 1, body)[:2] == b"\0\0"

    def prove(self, said: bytes = RIGHT) -> int | None:
        """Return the error; None if the connection was closed."""
        found = self.ask(Api.SASL_AUTHENTICATE, 1, struct.pack(">i", len(said)) + said)
        return int.from_bytes(found[:2], "big") if found else None

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
    assert raw.prove(b"x") == KafkaError.ILLEGAL_SASL_STATE
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
    raw.begin(mechanism)
    assert raw.prove(said) == KafkaError.SASL_AUTHENTICATION_FAILED
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
    request = struct.pack(">hhihi", Api.SASL_AUTHENTICATE, 1, 7, -1, len(wrong)) + wrong
    clients = [Raw(locked) for _ in range(20)]
    for each in clients:
        each.begin(mechanism)
    for each in clients:  # all at once: failures count when they are checked
        each.send(struct.pack(">i", len(request)) + request)
    failed = struct.pack(">h", KafkaError.SASL_AUTHENTICATION_FAILED)
    told = [each.answer()[4:6] for each in clients]
    assert set(told) <= {failed, b""}
    assert told.count(failed) >= MOST_WRONG
    clients.append(late := Raw(locked))
    late.begin()
    assert late.prove() is None  # closed without an answer, so that the client retries
    if mechanism == b"PLAIN":
        assert MOST_WRONG <= len(hashed_in) < MOST_WRONG + HASHING_THREADS
        assert all(each.startswith("dafka-kafka-password") for each in hashed_in)
    for each in clients:
        each.close()


def test_who_has_another_password_is_cut_off(locked: Locked, raw: Raw) -> None:
    raw.begin()
    assert raw.prove() == 0
    locked.permit("bob", NAME)  # the same password as before
    assert raw.ask(*METADATA)
    write_users(locked.users, NAME, password="another one")
    assert raw.answer() == b""
    wait_until(lambda: locked.refused[REFUSED] == 1)


def test_who_is_no_user_any_more_is_cut_off(locked: Locked, raw: Raw) -> None:
    raw.begin()
    assert raw.prove() == 0
    assert raw.ask(*METADATA)
    locked.allow("bob")
    assert raw.answer() == b""
    again = Raw(locked)
    again.begin()
    assert again.prove() != 0
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
