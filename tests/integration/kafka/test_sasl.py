"""Authentication of Kafka clients."""

import asyncio
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scramp import ScramClient

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
from tests.integration.kafka.one_request import Connection


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


@pytest.mark.parametrize("kind", CLIENTS)
def test_names_and_passwords_are_taken_as_they_are_sent(
    locked: Locked, kind: type[KafkaClient]
) -> None:
    """SASLprep would change or refuse their characters."""
    name, password = "ﬁn", "½ ﬁsh, u\u0308ber 10\u00a0€… 😀\t=\u05e9\u05dc1"
    write_users(locked.users, NAME, name, password=password)
    wait_until(lambda: name in known_users(locked))
    for mechanism in (*SCRAM, "PLAIN"):
        login = locked.login(name, mechanism=mechanism, password=password)
        kind(locked.servers, login).write("t", [Sent(None, b"x")])


def known_users(locked: Locked) -> Users:
    assert locked.gateway.server.users is not None
    return locked.gateway.server.users


RIGHT = f"\0{NAME}\0{PASSWORD}".encode()


class Raw(Connection):
    """A connection of a client that authenticates step by step."""

    def __init__(self, locked: Locked) -> None:
        tls = ssl.create_default_context(cafile=str(locked.authority))
        super().__init__(locked.gateway.listens, tls)

    def ask(self, api: Api, version: int, **fields: Any) -> Any:
        self.send_request(api, version, **fields)
        return self.receive_response(api, version)

    def begin(self, mechanism: str = "PLAIN") -> None:
        assert self.ask(Api.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == 0

    def prove(self, said: bytes = RIGHT) -> int | None:
        """Return the error; None if the connection was closed."""
        with suppress(EOFError):
            return int(self.ask(Api.SASL_AUTHENTICATE, 1, auth_bytes=said).error_code)
        return None

    def is_served(self) -> bool:
        with suppress(EOFError):
            return self.ask(Api.METADATA, 1, topics=[]) is not None
        return False


@pytest.fixture
def raw(locked: Locked) -> Iterator[Raw]:
    with Raw(locked) as client:
        yield client


def test_nothing_is_asked_before(locked: Locked, raw: Raw) -> None:
    assert raw.ask(Api.API_VERSIONS, 0).error_code == 0
    assert not raw.is_served()
    assert locked.gateway.invalid_count == 1
    with Raw(locked) as large:
        large.socket.sendall(struct.pack(">i", 100_000))
        assert large.is_ended()
    assert locked.gateway.invalid_count == 2


def test_who_proves_it_before_saying_how_is_told_and_cut_off(raw: Raw) -> None:
    assert raw.prove(b"x") == KafkaError.ILLEGAL_SASL_STATE
    assert raw.is_ended()


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        ("PLAIN", b"\xff"),
        ("PLAIN", b"alice"),
        ("PLAIN", b"carol\0alice\0wonder land"),
        ("SCRAM-SHA-512", b"\xff"),
        ("SCRAM-SHA-512", b"n,,n=alice"),
        ("SCRAM-SHA-512", b"p=x,,n=alice,r=1"),
    ],
)
def test_what_proves_nothing_is_refused(raw: Raw, mechanism: str, said: bytes) -> None:
    raw.begin(mechanism)
    assert raw.prove(said) == KafkaError.SASL_AUTHENTICATION_FAILED
    assert raw.is_ended()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_nobody_guesses_passwords(
    locked: Locked, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows, hashed_in = Users.knows, []

    def counted(self: Users, name: str, password: str) -> bool:
        hashed_in.append(threading.current_thread().name)
        return knows(self, name, password)

    monkeypatch.setattr(Users, "knows", counted)
    wrong = b"\0alice\0guess" if mechanism == "PLAIN" else b"n,,n=alice"
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(locked)) for _ in range(20)]
        for each in clients:
            each.begin(mechanism)
        for each in clients:  # all at once: failures count when they are checked
            each.send_request(Api.SASL_AUTHENTICATE, 1, auth_bytes=wrong)
        errors = []
        for each in clients:
            with suppress(EOFError):
                errors.append(each.receive_response(Api.SASL_AUTHENTICATE, 1).error_code)
        assert set(errors) == {KafkaError.SASL_AUTHENTICATION_FAILED}
        assert len(errors) >= MOST_WRONG
        late = stack.enter_context(Raw(locked))
        late.begin()
        assert late.prove() is None  # closed without an answer, so that the client retries
    if mechanism == "PLAIN":
        assert MOST_WRONG <= len(hashed_in) < MOST_WRONG + HASHING_THREADS
        assert all(each.startswith("dafka-kafka-password") for each in hashed_in)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_an_authenticated_client_does_not_authenticate_again(raw: Raw, mechanism: str) -> None:
    raw.begin(mechanism)
    if mechanism == "PLAIN":
        assert raw.prove() == 0
    else:
        client = ScramClient([mechanism], NAME, PASSWORD)
        answer = raw.ask(Api.SASL_AUTHENTICATE, 1, auth_bytes=client.get_client_first().encode())
        client.set_server_first(answer.auth_bytes.decode())
        assert raw.prove(client.get_client_final().encode()) == 0
    assert raw.prove() == KafkaError.ILLEGAL_SASL_STATE
    assert raw.is_ended()


def test_who_has_another_password_is_cut_off(locked: Locked, raw: Raw) -> None:
    raw.begin()
    assert raw.prove() == 0
    locked.permit("bob", NAME)  # the same password as before
    assert raw.is_served()
    write_users(locked.users, NAME, password="another one")
    assert raw.is_ended()
    wait_until(lambda: locked.refused[REFUSED] == 1)


def test_who_is_no_user_any_more_is_cut_off(locked: Locked, raw: Raw) -> None:
    raw.begin()
    assert raw.prove() == 0
    assert raw.is_served()
    locked.allow("bob")
    assert raw.is_ended()
    with Raw(locked) as again:
        again.begin()
        assert again.prove() != 0


def test_a_password_is_not_taken_where_others_can_read_it(tmp_path: Path) -> None:
    write_users(tmp_path / "users", NAME)
    sasl = Sasl(Users(str(tmp_path / "users")), is_private=False)
    asked: Any = SimpleNamespace(mechanism="PLAIN", version=1)
    handshake = sasl.apis[Api.SASL_HANDSHAKE].handler
    answer: Any = asyncio.run(handshake(asked, asked))  # type: ignore[arg-type]
    assert answer.error_code == KafkaError.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == [*SCRAM]
    assert "use TLS, or SCRAM" in sasl.failure
