"""Recognizing a listener by its first bytes: real sockets, and hostile answers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.config.node_options import TowerAddress
from dafka_core.ops.findings import Severity
from dafka_core.ops.port_probe import (
    GREETING,
    HTTP2,
    LOCKED,
    Answer,
    PortFacts,
    TowerFacts,
    check_towers,
    is_zeromq,
    may_be_zeromq,
    probed,
    shown,
    socket_type,
)

PATIENCE_S = 10.0  # longer than any answer on a loaded machine takes

READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x04XPUB"

Listen = Callable[[Callable[[socket.socket], object]], int]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Serves each connection by a function; gives the port."""
    with ExitStack() as stack:

        def start(serve: Callable[[socket.socket], object]) -> int:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                try:
                    while True:
                        connection, _ = server.accept()
                        stack.callback(connection.close)
                        serve(connection)
                except OSError:
                    pass

            threading.Thread(target=run, daemon=True).start()
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return int(server.getsockname()[1])

        yield start


def test_one_with_a_key_says_that_it_has_one() -> None:
    with zmq.Context() as context, context.socket(zmq.XSUB) as served:
        served.curve_server, served.curve_secretkey = True, zmq.curve_keypair()[1]
        port = served.bind_to_random_port("tcp://127.0.0.1")
        (found,) = probed([("127.0.0.1", port)], PATIENCE_S)
        assert (found.answer, found.reply) == (Answer.ZEROMQ, LOCKED)
        served.linger = 0


@pytest.mark.parametrize("kind", ["XSUB", "XPUB", "PUB", "ROUTER"])
def test_zeromq_says_its_kind(kind: str) -> None:
    with zmq.Context() as context, context.socket(getattr(zmq, kind)) as served:
        port = served.bind_to_random_port("tcp://127.0.0.1")
        (found,) = probed([("127.0.0.1", port)], PATIENCE_S)
        assert (found.answer, found.reply, found.place) == (
            Answer.ZEROMQ,
            kind,
            f"127.0.0.1:{port}",
        )
        served.linger = 0


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0-OpenSSH_9.6"),
        (b"\0\0\x18\x04\0\0\0\0\0\0\0\x04", HTTP2),
        (b"\xff\0\0\0 not ZeroMQ", "ff 00 00 00 20 6e 6f 74"),
    ],
)
def test_who_speaks_otherwise_is_a_stranger(listen: Listen, greeting: bytes, said: str) -> None:
    port = listen(lambda each: each.sendall(greeting))
    (found,) = probed([("127.0.0.1", port)], PATIENCE_S)
    assert found.answer is Answer.STRANGER
    assert found.reply == said


def test_one_that_answers_lines_is_sent_one(listen: Listen) -> None:
    def serve(connection: socket.socket) -> None:
        came = b""
        while not came.endswith(b"\r\n\r\n"):
            came += connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    (found,) = probed([("127.0.0.1", listen(serve))], PATIENCE_S)
    assert (found.answer, found.reply) == (Answer.STRANGER, "HTTP/1.1 400 Bad Request")


def test_one_that_ends_the_connection_is_a_stranger(listen: Listen) -> None:
    (found,) = probed([("127.0.0.1", listen(socket.socket.close))], PATIENCE_S)
    assert (found.answer, found.reply) == (Answer.STRANGER, "")


def test_one_that_says_nothing(listen: Listen) -> None:
    """Nor does a tower that is stopped."""
    (found,) = probed([("127.0.0.1", listen(lambda _: None))], 0.6)
    assert found.answer is Answer.MUTE


def test_nobody_and_nowhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = probed([("127.0.0.1", port), ("no-such-host.invalid", 1), ("a" * 70, 1)], PATIENCE_S)
    answers = [each.answer for each in found]
    assert answers[0] is Answer.REFUSED
    # Without a network no name server can deny a host.
    assert answers[1] in (Answer.UNKNOWN_HOST, Answer.UNREACHABLE)
    assert answers[2] in (Answer.UNKNOWN_HOST, Answer.UNREACHABLE)


def test_the_same_place_is_looked_at_once(listen: Listen) -> None:
    served: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        served.append(connection)
        connection.sendall(b"x")

    place = ("127.0.0.1", listen(serve))
    assert len(probed([place, place], PATIENCE_S)) == 2
    assert len(served) == 1


@given(st.binary(max_size=200))
def test_whatever_comes_is_read(came: bytes) -> None:
    assert is_zeromq(came) <= may_be_zeromq(came)
    assert socket_type(came).isprintable() or socket_type(came)
    assert shown(came).isprintable()


def test_a_greeting_that_comes_in_parts() -> None:
    whole = GREETING + READY
    for size in range(len(whole)):
        assert may_be_zeromq(whole[:size])
        assert socket_type(whole[:size]) == ""
    assert socket_type(whole) == "XPUB"
    assert not is_zeromq(whole[:9])
    assert is_zeromq(whole[:10])


ZEROMQ, STRANGER, MUTE = Answer.ZEROMQ, Answer.STRANGER, Answer.MUTE
REFUSED, UNREACHABLE, UNKNOWN_HOST = Answer.REFUSED, Answer.UNREACHABLE, Answer.UNKNOWN_HOST

Said = tuple[Answer, str]
SUB, PUB, KEYS = (ZEROMQ, "XSUB"), (ZEROMQ, "XPUB"), (ZEROMQ, "CURVE")


def facts(sub: Said, pub: Said, host: str = "h") -> TowerFacts:
    tower = TowerAddress(host, 1, 2)
    return TowerFacts(tower, PortFacts(host, 1, *sub), PortFacts(host, 2, *pub))


@pytest.mark.parametrize(
    ("sub", "pub", "lasts", "says"),
    [
        ((REFUSED, ""), (REFUSED, ""), False, "nothing listens at h:1:2; start one there with"),
        (PUB, SUB, True, "the ports of tower h:1:2 are swapped; name it as h:2:1"),
        (SUB, (REFUSED, ""), False, "nothing listens at h:2; name the tower's ports as 'dafka to"),
        (SUB, SUB, True, "another ZeroMQ program listens at h:2, with a socket XSUB, not XPUB"),
        (SUB, (ZEROMQ, ""), False, "h:2, with a socket of unknown type, not XPUB"),
        ((STRANGER, "SSH"), PUB, True, "than a tower listens at h:1 (it sends 'SSH')"),
        ((STRANGER, ""), (STRANGER, ""), False, "the program at h:1 closes connections: it is"),
        ((MUTE, ""), (MUTE, ""), False, "the program at h:1 sends nothing: it is not a tower"),
        ((UNREACHABLE, ""), (UNREACHABLE, ""), False, "h:1 cannot be reached from here and h:2 ca"),
        ((UNREACHABLE, ""), PUB, False, "check the address, and that the firewall"),
        ((UNKNOWN_HOST, ""), (UNKNOWN_HOST, ""), True, "there is no host h; correct the name"),
    ],
)  # fmt: skip
def test_what_is_wrong(sub: Said, pub: Said, lasts: bool, says: str) -> None:
    (found,) = check_towers([facts(sub, pub)])
    assert found.severity is Severity.PROBLEM
    assert says in str(found)
    assert found.lasts is lasts


def test_a_tower_that_lets_in_owners_of_keys() -> None:
    for found in (None, True):
        (finding,) = check_towers([facts(KEYS, KEYS)], found=found)
        assert finding.severity is Severity.OK
    (finding,) = check_towers([facts(KEYS, KEYS)], found=False)
    assert "lets in owners of keys only; set secret_key_file" in str(finding)


def test_a_tower_that_answers() -> None:
    for found in (None, True):
        (finding,) = check_towers([facts(SUB, PUB)], found=found)
        assert finding.severity is Severity.OK
    (finding,) = check_towers([facts(SUB, PUB)], found=False)
    assert finding.severity is Severity.PROBLEM
    assert "a tower listens at h:1:2, but forwards no beacons" in str(finding)


def test_one_of_two_towers_may_be_away() -> None:
    away = (REFUSED, "")
    found = check_towers([facts(away, away, "a"), facts(SUB, PUB, "b")])
    assert [each.severity for each in found] == [Severity.WARNING, Severity.OK]
    found = check_towers([facts(away, away, "a"), facts(away, away, "b")])
    assert [each.severity for each in found] == [Severity.PROBLEM, Severity.PROBLEM]
