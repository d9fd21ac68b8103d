"""Who listens at a port: ZeroMQ, which connects for ever to whoever it may be, does not say.

The first octets that ZeroMQ's protocol (ZMTP 3, https://rfc.zeromq.org/spec/23/) sends at once tell
it from others, and the command after them tells the kind of the socket: a tower has XSUB and XPUB.
"""

from __future__ import annotations

import socket as sockets
import threading
import time
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

PROBE_S: Final = 1.0
"""Who listens at a port says so in one round trip."""

TICKLE_S: Final = 0.4
"""Who says nothing for so long is sent an empty line: servers of text protocols answer it."""

MARGIN_S: Final = 0.2
"""For a thread that has waited to the end to say so."""

SAID_BYTES: Final = 40
"""Of what a stranger says: as much is shown."""

SHOWN_OCTETS: Final = 8
"""The same where it is no text."""

MOST_BYTES: Final = 1_024
"""Of what is read: ZMTP's greeting and first command have about a hundred octets."""

GREETING_BYTES: Final = 64
GREETING: Final = (
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
)  # signature, version, mechanism, not the server, filler
_SIGNATURE: Final = (0, 0xFF), (9, 0x7F)
LOCKED: Final = "CURVE"
"""In place of the type of a socket that tells it to owners of allowed keys only."""

_MECHANISM: Final = slice(12, 32)
_SOCKET_TYPE: Final = b"\x0bSocket-Type"
_NO_SUCH_HOST: Final = (sockets.EAI_NONAME, sockets.EAI_NODATA)


HTTP2: Final = "HTTP/2"
"""What Arrow Flight speaks."""

HTTP2_BYTES: Final = 9
_SETTINGS: Final = b"\x04" + bytes(5)
"""Of the first frame of a server: its type, no flags, and stream 0."""


class Answer(Enum):
    """What came of connecting to a port."""

    ZEROMQ = auto()
    STRANGER = auto()
    MUTE = auto()
    """The connection was accepted, and nothing came."""
    REFUSED = auto()
    UNREACHABLE = auto()
    UNKNOWN_HOST = auto()


class PortFacts(NamedTuple):
    """Who listens at a port; ``said`` is a ZeroMQ socket's type, or how a stranger begins.

    A stranger that says nothing has ended the connection, as a proxy does without a server.
    """

    host: str
    port: int
    answer: Answer
    said: str = ""

    @property
    def place(self) -> str:
        """Where that is, as it is shown."""
        return f"{self.host}:{self.port}"


def probed(places: Sequence[tuple[str, int]], timeout_s: float) -> list[PortFacts]:
    """Who listens at hosts and ports; all are asked at the same time, for at most so long."""
    found: dict[tuple[str, int], PortFacts] = {}
    deadline = time.monotonic() + timeout_s

    def look(place: tuple[str, int]) -> None:
        found[place] = _probe(*place, deadline)

    # Not a pool: looking a name up may take long, and the interpreter's end would wait for it.
    threads = [
        threading.Thread(target=look, args=(place,), name="dafka-probe", daemon=True)
        for place in dict.fromkeys(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0) + MARGIN_S)
    return [found.get(each, PortFacts(*each, Answer.UNREACHABLE)) for each in places]


def _probe(host: str, port: int, deadline: float) -> PortFacts:
    try:
        left_s = max(deadline - time.monotonic(), 0.001)
        with sockets.create_connection((host.strip("[]"), port), timeout=left_s) as socket:
            return PortFacts(host, port, *_listen(socket, deadline))
    except sockets.gaierror as error:
        unknown = error.errno in _NO_SUCH_HOST
        return PortFacts(host, port, Answer.UNKNOWN_HOST if unknown else Answer.UNREACHABLE)
    except ConnectionRefusedError:
        return PortFacts(host, port, Answer.REFUSED)
    except (OSError, ValueError):  # a name that IDNA cannot encode
        return PortFacts(host, port, Answer.UNREACHABLE)


def _listen(socket: sockets.socket, deadline: float) -> tuple[Answer, str]:
    came = b""
    # The mechanism is not said before it is: who has another one would end the connection then.
    rest = [GREETING[: _MECHANISM.start], GREETING[_MECHANISM.start :]]
    tickle_at: float | None = min(time.monotonic() + TICKLE_S, deadline)
    try:
        socket.sendall(rest[0])
        while len(came) < MOST_BYTES and not (is_zeromq(came) and socket_type(came)):
            until = deadline if tickle_at is None or came else tickle_at
            socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                part = socket.recv(MOST_BYTES)
            except TimeoutError:
                if came or tickle_at is None:
                    break
                tickle_at = None
                socket.sendall(b"\r\n\r\n")
                continue
            came += part
            if len(rest) > 1 and is_zeromq(came) and len(came) >= GREETING_BYTES:
                socket.sendall(rest.pop())
            if not part or not may_be_zeromq(came):
                return _stranger(came)
    except OSError:  # it has ended the connection
        return _stranger(came)
    if is_zeromq(came):
        return Answer.ZEROMQ, socket_type(came)
    return (Answer.STRANGER, shown(came)) if came else (Answer.MUTE, "")


def _stranger(came: bytes) -> tuple[Answer, str]:
    return (Answer.ZEROMQ if is_zeromq(came) else Answer.STRANGER), shown(came)


def may_be_zeromq(came: bytes) -> bool:
    """Whether what has come so far begins as ZeroMQ's greeting does."""
    return all(came[at] == octet for at, octet in _SIGNATURE if at < len(came))


def is_zeromq(came: bytes) -> bool:
    """Whether the signature of ZeroMQ's greeting has come."""
    return len(came) > _SIGNATURE[-1][0] and may_be_zeromq(came)


def socket_type(came: bytes) -> str:
    """The type of the socket, as the first command after the greeting says; empty until then.

    With keys that command is encrypted: it is ``LOCKED``.
    """
    if came[_MECHANISM] == LOCKED.encode().ljust(20, b"\0"):
        return LOCKED
    command = came[GREETING_BYTES:]
    at = command.find(_SOCKET_TYPE)
    if at < 0:
        return ""
    size = command[at + len(_SOCKET_TYPE) :][:4]
    value = command[at + len(_SOCKET_TYPE) + 4 :][: int.from_bytes(size, "big")]
    return value.decode("ascii", "replace") if len(value) == int.from_bytes(size, "big") else ""


def shown(came: bytes) -> str:
    """How what has come begins, as text where it is some; empty if nothing has come."""
    if came[3:HTTP2_BYTES] == _SETTINGS:
        return HTTP2
    line = (came.splitlines() or [b""])[0][:SAID_BYTES].decode("ascii", "replace")
    return line if line and line.isprintable() else came[:SHOWN_OCTETS].hex(" ")
