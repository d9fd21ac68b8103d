"""Open files, of which each peer takes some: who has no room for a peer refuses all of it.

At the limit ZeroMQ neither connects nor accepts, and tries again without a word: a peer would hear
this node and not be heard, or the other way round.  So while one more peer might not fit, the node
does not connect to new peers, and has the kernel drop what asks its own socket for a connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import resource
import socket as sockets
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PER_PEER: Final = 2
"""Descriptors of a peer: its connection to this node, and this node's to it.  A node that tells its
peers apart has a socket for each, which takes another one."""

RESERVE: Final = 16
"""Kept for what else the process opens for a moment, and for peers that connect before they are
heard of."""

LOW_LIMIT: Final = 1_024
"""Below the system's usual limit a node says at its start how many peers it has room for."""

SAY_AGAIN_S: Final = 60.0
SAY_CHANGE_S: Final = 10.0
"""How often a node says that it refuses peers: as before, and another number of them."""

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27  # neither is in Python's own module
_DROP: Final = struct.pack("@HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction (the kernel's ``struct sock_filter``): keep 0 octets."""

_log = logging.getLogger("dafka.nodes")


def raise_limit() -> int:
    """Raises the process's soft limit of open files to the hard one; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower one of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _open_descriptors() -> list[int]:
    directory = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    return [int(each.name) for each in directory.iterdir()]


class PeerRoom:
    """Says whether one more peer fits, and closes the node's door while none does.

    Args:
        port: where the node listens for its peers.
        per_peer: descriptors that each peer takes.

    Attributes:
        refused: the peers without room, by endpoint: their node, and when it was heard of last.
    """

    def __init__(self, port: int, per_peer: int) -> None:
        self.refused: dict[str, tuple[str, float]] = {}
        self._inbound: dict[int, str] = {}  # whose connection to this node a descriptor is
        self._port = port
        self._per_peer = per_peer
        self._limit = raise_limit()
        self._least: int | None = None
        self._others = 0  # descriptors of other things than peers; ``_least`` is the first count
        self._is_closed = False
        self._said = (0, 0.0)

    def look(self, peer_count: int) -> bool:
        """Counts what is open, then opens or closes the door; whether one more peer fits."""
        try:
            used = len(_open_descriptors())
        except OSError:  # there is none left to look with
            used = self._limit
        # Those of peers may be open already or not yet; what is beyond them is others'.
        others = used - self._per_peer * peer_count
        first, self._least = self._least is None, self._least or others
        self._others = max(others, self._least)
        has_room = self._needed(peer_count + 1) <= self._limit
        if first and self._limit < LOW_LIMIT:
            count = max(0, (self._limit - self._needed(0)) // self._per_peer)
            text = "open files limit %d: there is room for about %d peers; see 'ulimit -Hn'"
            _log.warning(text, self._limit, count)
        # Peers that are taken may still be on their way.
        is_closed = not has_room and self._inbound_count() >= peer_count
        if is_closed is not self._is_closed:
            # Without a descriptor to find the door with it is tried again at the next look.
            with contextlib.suppress(OSError):
                self._shut_door() if is_closed else self._open_door()
                self._is_closed = is_closed
        return has_room

    def refuse(self, now: float, node: str, endpoint: str) -> None:
        """Notes a peer that there is no room for, and ends its connection if it has one."""
        self.refused[endpoint] = node, now
        for descriptor in [fd for fd, found in self._inbound.items() if found == node]:
            self._end(descriptor)

    def note_inbound(self, descriptor: int, node: str) -> None:
        """Notes whose connection has come; that of a refused peer is ended."""
        if descriptor >= 0:
            self._inbound[descriptor] = node
            if any(node == refused for refused, _ in self.refused.values()):
                self._end(descriptor)

    def report(self, now: float, peer_count: int, expiry_s: float) -> None:
        """Says how many peers are refused, if that has changed, or some time after."""
        self.refused = {
            endpoint: (node, heard)
            for endpoint, (node, heard) in self.refused.items()
            if now - heard <= expiry_s
        }
        count, (said, said_at) = len(self.refused), self._said
        quiet_s = SAY_AGAIN_S if count == said else SAY_CHANGE_S
        if not (count or said) or (said and now - said_at < quiet_s):
            return
        self._said = count, now
        if not count:
            _log.warning("no peers are refused any more")
            return
        needed, others = self._needed(peer_count + count), self._needed(0)
        _log.error(
            "%d peers refused: open files limit %d; needed about %d per peer + %d: ulimit -n %d",
            *(count, self._limit, self._per_peer, others, needed),
        )

    def _needed(self, peer_count: int) -> int:
        """How many descriptors there must be for so many peers."""
        return self._others + RESERVE + self._per_peer * peer_count

    def _inbound_count(self) -> int:
        """How many connections have come that last; descriptors of others are forgotten."""
        for descriptor in list(self._inbound):
            if not self._is_own(descriptor, is_door=False):
                del self._inbound[descriptor]
        return len(self._inbound)

    def _end(self, descriptor: int) -> None:
        del self._inbound[descriptor]
        if self._is_own(descriptor, is_door=False):
            with _borrowed(descriptor) as connection, contextlib.suppress(OSError):
                connection.shutdown(sockets.SHUT_RDWR)

    def _shut_door(self) -> None:
        code = ctypes.create_string_buffer(_DROP)
        self._set_filter(_SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(code)))

    def _open_door(self) -> None:
        self._set_filter(_SO_DETACH_FILTER, bytes(4))

    def _set_filter(self, option: int, argument: bytes) -> None:
        if sys.platform != "linux":
            return
        for descriptor in _open_descriptors():
            if self._is_own(descriptor, is_door=True):
                with _borrowed(descriptor) as door:
                    door.setsockopt(sockets.SOL_SOCKET, option, argument)

    def _is_own(self, descriptor: int, *, is_door: bool) -> bool:
        """Whether this is the node's door, or a connection that has come through it."""
        with contextlib.suppress(OSError, ValueError), _borrowed(descriptor) as found:
            listens = found.getsockopt(sockets.SOL_SOCKET, sockets.SO_ACCEPTCONN)
            is_ip = found.family in (sockets.AF_INET, sockets.AF_INET6)
            return is_ip and bool(listens) is is_door and found.getsockname()[1] == self._port
        return False


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """A socket that ZeroMQ owns."""
    found = sockets.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()
