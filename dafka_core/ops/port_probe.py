"""Probes of ports, and findings about towers: ZeroMQ does not report what listens at a port.

The first octets that ZeroMQ's protocol (ZMTP 3, https://rfc.zeromq.org/spec/23/) sends at once tell
it from others, and the command after them tells the kind of the socket: a tower has XSUB and XPUB.
"""

from __future__ import annotations

import socket as sockets
import threading
import time
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from dafka_core.config.node_options import TowerAddress
from dafka_core.ops.findings import Finding, ok, problem, warning
from dafka_core.system.hosts import HostPort

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
        return str(HostPort(self.host, self.port))


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


ABOUT: Final = "tower"

SUB_KIND: Final = "XSUB"
PUB_KIND: Final = "XPUB"
"""The sockets of a tower: that to which nodes send, and that from which they hear."""

_NAME_ONE: Final = "name a running tower (option 'tower', environment DAFKA_TOWER)"
_AS_PRINTED: Final = "name the tower's ports as 'dafka tower' prints them: HOST:SUB_PORT:PUB_PORT"


class TowerFacts(NamedTuple):
    """A tower that was named, and who listens at its ports."""

    tower: TowerAddress
    sub: PortFacts
    pub: PortFacts


def towers_probed(towers: Sequence[TowerAddress], timeout_s: float) -> list[TowerFacts]:
    """Looks at all ports at the same time, for at most so long."""
    places = [(tower.host, port) for tower in towers for port in (tower.sub_port, tower.pub_port)]
    found = probed(places, timeout_s)
    return [TowerFacts(*each) for each in zip(towers, found[::2], found[1::2], strict=True)]


def check_towers(facts: Iterable[TowerFacts], *, found: bool | None = None) -> list[Finding]:
    """A finding for each tower.

    One that is away is a problem where there is no other.

    Args:
        facts: of all towers that were named.
        found: whether a tower has answered to a node as towers do; None where none has asked.
    """
    checked = [
        _check_locked(each.tower, found=found)
        if _kind(each.sub) == _kind(each.pub) == LOCKED
        else _check(each, found=found)
        for each in facts
    ]
    if any(not each.remedy for each in checked):
        return [warning(ABOUT, *each[2:4]) if each.remedy else each for each in checked]
    return checked


def _check(facts: TowerFacts, *, found: bool | None) -> Finding:
    tower, sub, pub = facts
    kinds = _kind(sub), _kind(pub)
    if kinds == (SUB_KIND, PUB_KIND):
        if found is False:
            remedy = f"start it again, or {_NAME_ONE}"
            return problem(ABOUT, f"a tower listens at {tower}, and passes no beacon on", remedy)
        return ok(ABOUT, f"a tower answers at {tower}")
    if kinds == (PUB_KIND, SUB_KIND):
        other = TowerAddress(tower.host, tower.pub_port, tower.sub_port)
        sentence = f"tower {tower} has its ports the other way round"
        return problem(ABOUT, sentence, f"name it as {other}", lasts=True)
    wrong = [_wrong(sub, SUB_KIND), _wrong(pub, PUB_KIND)]
    if sub.answer is Answer.REFUSED and pub.answer is Answer.REFUSED:
        remedy = f"start one there with 'dafka tower', or {_NAME_ONE}"
        return problem(ABOUT, f"nothing listens at {tower}", remedy)
    if sub.answer is Answer.UNKNOWN_HOST:
        sentence = f"there is no host {tower.host}"
        return problem(ABOUT, sentence, f"correct the name, or {_NAME_ONE}", lasts=True)
    sentence = " and ".join(dict.fromkeys(each for each in wrong if each))
    if Answer.UNREACHABLE in (sub.answer, pub.answer):
        remedy = "see whether that is its address, and whether a firewall lets these ports pass"
        return problem(ABOUT, sentence, remedy, lasts=_is_another(sub, pub))
    return problem(ABOUT, sentence, _AS_PRINTED, lasts=_is_another(sub, pub))


def _check_locked(tower: TowerAddress, *, found: bool | None) -> Finding:
    if found is not False:
        return ok(ABOUT, f"a tower answers at {tower}, to owners of allowed keys")
    remedy = "set secret_key_file and allowed_keys to keys that it knows (docs/security.md)"
    return problem(ABOUT, f"who listens at {tower} lets in owners of keys only", remedy)


def _kind(port: PortFacts) -> str:
    return port.said if port.answer is Answer.ZEROMQ else ""


def _is_another(sub: PortFacts, pub: PortFacts) -> bool:
    """Whether a port is somebody else's: no waiting makes it a tower's."""
    others = ((sub, SUB_KIND), (pub, PUB_KIND))
    return any(
        (port.answer is Answer.STRANGER and port.said) or _kind(port) not in ("", kind)
        for port, kind in others
    )


def _wrong(port: PortFacts, kind: str) -> str:
    """What is wrong with a port that should be a tower's socket of this kind; empty if nothing."""
    match port.answer:
        case Answer.ZEROMQ if port.said == kind:
            return ""
        case Answer.ZEROMQ:
            what = f"a socket {port.said}" if port.said else "a socket that says nothing of itself"
            return f"another ZeroMQ program listens at {port.place}, with {what}, no tower's {kind}"
        case Answer.STRANGER if port.said:
            return f"something else listens at {port.place}, no tower (it speaks {port.said!r})"
        case Answer.STRANGER:
            what = "no tower, or a proxy whose tower is not there"
            return f"who listens at {port.place} ends the connection: {what}"
        case Answer.MUTE:
            return f"who listens at {port.place} says nothing: no tower, or one that stands still"
        case Answer.REFUSED:
            return f"nothing listens at {port.place}"
        case _:
            return f"{port.place} cannot be reached from here"
