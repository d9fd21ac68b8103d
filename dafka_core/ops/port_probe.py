"""Probes of ports, and findings about towers, as ZeroMQ does not report what listens at a port.

A ZeroMQ socket sends the greeting of ZMTP 3 (https://rfc.zeromq.org/spec/23/) at once, and then a
command with its type: a tower has an XSUB and an XPUB socket.
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

PROBE_S: Final = 1.0  # time limit of a probe; a response takes one round trip

TICKLE_S: Final = 0.4
"""After this silence an empty line is sent, to which servers of text protocols respond."""

MARGIN_S: Final = 0.2  # additional time for a thread to report a timeout
SHOWN_CHARACTERS: Final = 40  # limit of another protocol's text in a finding
SHOWN_BYTES: Final = 8  # limit of another protocol's bytes that are not text

MOST_BYTES: Final = 1_024
"""Limit of a read; ZMTP's greeting and first command have about a hundred bytes."""

GREETING_BYTES: Final = 64
GREETING: Final = (
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
)  # signature, version, mechanism, not the server, filler
_SIGNATURE: Final = (0, 0xFF), (9, 0x7F)
LOCKED: Final = "CURVE"
"""Replaces the type of a socket that reveals it to owners of allowed keys only."""

_MECHANISM: Final = slice(12, 32)
_SOCKET_TYPE: Final = b"\x0bSocket-Type"
_NO_SUCH_HOST: Final = (sockets.EAI_NONAME, sockets.EAI_NODATA)


HTTP2: Final = "HTTP/2"  # the protocol of Arrow Flight

HTTP2_BYTES: Final = 9
_SETTINGS: Final = b"\x04" + bytes(5)
"""In a server's first frame: its type, no flags, and stream 0."""


class Answer(Enum):
    """The result of connecting to a port."""

    ZEROMQ = auto()
    STRANGER = auto()
    MUTE = auto()  # the connection was accepted, and nothing was received
    REFUSED = auto()
    UNREACHABLE = auto()
    UNKNOWN_HOST = auto()


class PortFacts(NamedTuple):
    """The program at a port; ``reply`` is a ZeroMQ socket's type, or another program's first text.

    A ``STRANGER`` without text has closed the connection, as a proxy without a server does.
    """

    host: str
    port: int
    answer: Answer
    reply: str = ""

    @property
    def place(self) -> str:
        """The host and port as text."""
        return str(HostPort(self.host, self.port))


def probed(places: Sequence[tuple[str, int]], timeout_s: float) -> list[PortFacts]:
    """Probe ports concurrently."""
    found: dict[tuple[str, int], PortFacts] = {}
    deadline = time.monotonic() + timeout_s

    def probe(place: tuple[str, int]) -> None:
        found[place] = _probe(*place, deadline)

    # Not a pool: the interpreter would wait at exit for a name lookup, which may take long.
    threads = [
        threading.Thread(target=probe, args=(place,), name="dafka-probe", daemon=True)
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
            return PortFacts(host, port, *_receive(socket, deadline))
    except sockets.gaierror as error:
        unknown = error.errno in _NO_SUCH_HOST
        return PortFacts(host, port, Answer.UNKNOWN_HOST if unknown else Answer.UNREACHABLE)
    except ConnectionRefusedError:
        return PortFacts(host, port, Answer.REFUSED)
    except (OSError, ValueError):  # a name that IDNA cannot encode
        return PortFacts(host, port, Answer.UNREACHABLE)


def _receive(socket: sockets.socket, deadline: float) -> tuple[Answer, str]:
    received = b""
    # The mechanism is sent last: a peer with another mechanism closes the connection then.
    rest = [GREETING[: _MECHANISM.start], GREETING[_MECHANISM.start :]]
    tickle_at: float | None = min(time.monotonic() + TICKLE_S, deadline)
    try:
        socket.sendall(rest[0])
        while len(received) < MOST_BYTES and not (is_zeromq(received) and socket_type(received)):
            until = deadline if tickle_at is None or received else tickle_at
            socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                part = socket.recv(MOST_BYTES)
            except TimeoutError:
                if received or tickle_at is None:
                    break
                tickle_at = None
                socket.sendall(b"\r\n\r\n")
                continue
            received += part
            if len(rest) > 1 and is_zeromq(received) and len(received) >= GREETING_BYTES:
                socket.sendall(rest.pop())
            if not part or not may_be_zeromq(received):
                return _closed(received)
    except OSError:  # the peer has closed the connection
        return _closed(received)
    if is_zeromq(received):
        return Answer.ZEROMQ, socket_type(received)
    return (Answer.STRANGER, shown(received)) if received else (Answer.MUTE, "")


def _closed(received: bytes) -> tuple[Answer, str]:
    return (Answer.ZEROMQ if is_zeromq(received) else Answer.STRANGER), shown(received)


def may_be_zeromq(received: bytes) -> bool:
    """Return True if the bytes received so far agree with ZeroMQ's greeting."""
    return all(received[at] == byte for at, byte in _SIGNATURE if at < len(received))


def is_zeromq(received: bytes) -> bool:
    """Return True if the signature of ZeroMQ's greeting was received."""
    return len(received) > _SIGNATURE[-1][0] and may_be_zeromq(received)


def socket_type(received: bytes) -> str:
    """Return the socket's type from the first command after the greeting; empty until it arrives.

    With keys that command is encrypted, and the result is ``LOCKED``.
    """
    if received[_MECHANISM] == LOCKED.encode().ljust(20, b"\0"):
        return LOCKED
    command = received[GREETING_BYTES:]
    at = command.find(_SOCKET_TYPE)
    if at < 0:
        return ""
    size = command[at + len(_SOCKET_TYPE) :][:4]
    value = command[at + len(_SOCKET_TYPE) + 4 :][: int.from_bytes(size, "big")]
    return value.decode("ascii", "replace") if len(value) == int.from_bytes(size, "big") else ""


def shown(received: bytes) -> str:
    """Format the first bytes received, as text if they are printable."""
    if received[3:HTTP2_BYTES] == _SETTINGS:
        return HTTP2
    line = (received.splitlines() or [b""])[0][:SHOWN_CHARACTERS].decode("ascii", "replace")
    return line if line and line.isprintable() else received[:SHOWN_BYTES].hex(" ")


ABOUT: Final = "tower"

SUB_KIND: Final = "XSUB"
PUB_KIND: Final = "XPUB"
"""The sockets of a tower: nodes send to the first and receive from the second."""

_NAME_ONE: Final = "name a running tower (option 'tower', environment DAFKA_TOWER)"
_AS_PRINTED: Final = "name the tower's ports as 'dafka tower' prints them: HOST:SUB_PORT:PUB_PORT"


class TowerFacts(NamedTuple):
    """A configured tower, and the programs at its ports."""

    tower: TowerAddress
    sub: PortFacts
    pub: PortFacts


def towers_probed(towers: Sequence[TowerAddress], timeout_s: float) -> list[TowerFacts]:
    """Probe the ports of towers concurrently."""
    places = [(tower.host, port) for tower in towers for port in (tower.sub_port, tower.pub_port)]
    found = probed(places, timeout_s)
    return [TowerFacts(*each) for each in zip(towers, found[::2], found[1::2], strict=True)]


def check_towers(facts: Iterable[TowerFacts], *, found: bool | None = None) -> list[Finding]:
    """Return a finding for each tower: only warnings if at least one tower is reachable.

    Args:
        facts: of all configured towers.
        found: a tower has introduced a node of this process; None if no node has tried.
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
            remedy = f"restart it, or {_NAME_ONE}"
            return problem(ABOUT, f"a tower listens at {tower}, but forwards no beacons", remedy)
        return ok(ABOUT, f"a tower responds at {tower}")
    if kinds == (PUB_KIND, SUB_KIND):
        other = TowerAddress(tower.host, tower.pub_port, tower.sub_port)
        sentence = f"the ports of tower {tower} are swapped"
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
        remedy = "check the address, and that the firewall opens these ports"
        return problem(ABOUT, sentence, remedy, lasts=_is_another(sub, pub))
    return problem(ABOUT, sentence, _AS_PRINTED, lasts=_is_another(sub, pub))


def _check_locked(tower: TowerAddress, *, found: bool | None) -> Finding:
    if found is not False:
        return ok(ABOUT, f"a tower responds at {tower}, to owners of allowed keys")
    remedy = "set secret_key_file and allowed_keys to keys that it knows (docs/security.md)"
    return problem(ABOUT, f"the program at {tower} lets in owners of keys only", remedy)


def _kind(port: PortFacts) -> str:
    return port.reply if port.answer is Answer.ZEROMQ else ""


def _is_another(sub: PortFacts, pub: PortFacts) -> bool:
    """Return True if a port belongs to another program, so that waiting does not help."""
    others = ((sub, SUB_KIND), (pub, PUB_KIND))
    return any(
        (port.answer is Answer.STRANGER and port.reply) or _kind(port) not in ("", kind)
        for port, kind in others
    )


def _wrong(port: PortFacts, kind: str) -> str:
    """Describe why a port is not a tower's socket of this kind; empty if it is."""
    match port.answer:
        case Answer.ZEROMQ if port.reply == kind:
            return ""
        case Answer.ZEROMQ:
            what = f"a socket {port.reply}" if port.reply else "a socket of unknown type"
            return f"another ZeroMQ program listens at {port.place}, with {what}, not {kind}"
        case Answer.STRANGER if port.reply:
            return f"another program than a tower listens at {port.place} (it sends {port.reply!r})"
        case Answer.STRANGER:
            what = "it is not a tower, or a proxy without its tower"
            return f"the program at {port.place} closes connections: {what}"
        case Answer.MUTE:
            return f"the program at {port.place} sends nothing: it is not a tower, or it hangs"
        case Answer.REFUSED:
            return f"nothing listens at {port.place}"
        case _:
            return f"{port.place} cannot be reached from here"
