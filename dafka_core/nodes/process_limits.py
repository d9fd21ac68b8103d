"""Limits of the process: open files, which each peer uses, and memory.

At the limit ZeroMQ neither connects nor accepts, and tries again without a word: a peer would hear
this node and not be heard, or the other way round.  So while one more peer might not fit, the node
does not connect to new peers, and has the kernel drop what asks its own socket for a connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import socket as sockets
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PER_PEER: Final = 2
"""Descriptors of a peer: its connection to this node, and this node's to it."""

PER_PEER_APART: Final = 5
"""The same at a node that tells its peers apart: each has a socket of its own, and two more watch
that one."""

PER_NODE: Final = 60
"""Descriptors of a node before it has peers: some 20, and more with several towers."""

RESERVE: Final = 16
"""Kept for what else the process opens for a moment, and for peers that connect before they are
heard of."""

SCAN_INTERVAL_S: Final = 0.1
"""How often what is open is counted, at most: anybody may announce peers, and thousands of them."""

MAX_REFUSED: Final = 10_000
"""Refused peers that are told apart; anybody may announce some.  More are refused all the same."""

LOW_LIMIT: Final = 1_024
"""Below the system's usual limit a node says at its start how many peers it has room for."""

SAY_AGAIN_S: Final = 60.0
SAY_CHANGE_S: Final = 10.0
"""How often a node says that it refuses peers: as before, and another number of them."""

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27  # neither is in Python's own module
_DROP: Final = struct.pack("@HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction (the kernel's ``struct sock_filter``): keep 0 octets."""

_OPEN: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
_RAISED: Final = (
    "open files limit raised from %d to %d, as %s %d: what uses select() in this process breaks at "
    "descriptors above 1023"
)

_log = logging.getLogger("dafka.nodes")


def soft_limit() -> int:
    """The process's soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Raises the process's soft limit of open files to the hard one; what it is then.

    For processes that are ours, which have no ``select()``: it breaks at descriptors above 1,023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower one of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft_limit()


def make_room_for_node(descriptor: int) -> None:
    """Raise the soft limit if a node does not fit below it.

    Args:
        descriptor: one that was just opened: the system gives the lowest number that is free.
    """
    limit = soft_limit()
    if descriptor + PER_NODE > limit and (raised := raise_limit()) > limit:
        _log.warning(_RAISED, limit, raised, "one more node needs", descriptor + PER_NODE)


def _open_count() -> int:
    """Return the number of open descriptors; a list of thousands takes Linux 20 ms."""
    is_counted = sys.platform == "linux"  # since Linux 6.2
    return (is_counted and _OPEN.stat().st_size) or len([*_OPEN.iterdir()])


class PeerRoom:
    """Says whether one more peer fits, and closes the node's door while none does.

    The process's soft limit is raised when a peer would not fit otherwise, not before: the process
    may be an application's.

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
        self._limit = soft_limit()
        self._scan_due = 0.0
        self._least: int | None = None
        self._others = 0  # descriptors of other things than peers; ``_least`` is the first count
        self._is_closed = False
        self._said = (0, 0.0)

    def look(self, now: float, peer_count: int) -> bool:
        """Whether one more peer fits; opens or closes the door when it has counted what is open."""
        if now >= self._scan_due:
            self._scan_due = now + SCAN_INTERVAL_S
            self._count(peer_count)
            self._turn_away(peer_count)
        return self._fits(peer_count + 1)

    def refuse(self, now: float, node: str, endpoint: str) -> None:
        """Notes a peer that there is no room for; its connection, if it has one, is ended soon."""
        if endpoint in self.refused or len(self.refused) < MAX_REFUSED:
            self.refused[endpoint] = node, now

    def note_inbound(self, descriptor: int, node: str) -> None:
        """Notes whose connection has come."""
        if descriptor >= 0:
            self._inbound[descriptor] = node

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
        return self._others + RESERVE + self._per_peer * peer_count

    def _fits(self, peer_count: int) -> bool:
        needed = self._needed(peer_count)
        if needed > self._limit:
            before, self._limit = self._limit, raise_limit()
            if self._limit > before:
                _log.warning(_RAISED, before, self._limit, f"{peer_count} peers need", needed)
        return needed <= self._limit

    def _count(self, peer_count: int) -> None:
        try:
            count = _open_count()
        except OSError:  # there is none left to look with
            self._others = self._limit
            return
        # Those of peers may be open already or not yet; what is beyond them is others'.
        others = count - self._per_peer * peer_count
        if self._least is None:
            self._least = others
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if hard != resource.RLIM_INFINITY and hard < LOW_LIMIT:
                room = max(0, (hard - others - RESERVE) // self._per_peer)
                text = "open files limit %d: there is room for about %d peers; see 'ulimit -Hn'"
                _log.warning(text, hard, room)
        self._others = max(others, self._least)

    def _turn_away(self, peer_count: int) -> None:
        full = not self._fits(peer_count + 1)
        taken = 0
        if full or self.refused:
            refused = {node for node, _ in self.refused.values()}
            for descriptor, node in [*self._inbound.items()]:
                if node in refused:
                    self._end(descriptor)
                elif self._is_own(descriptor, is_door=False):
                    taken += 1
                else:
                    del self._inbound[descriptor]
        # Peers that are taken may still be on their way.
        is_closed = full and taken >= peer_count
        if is_closed is self._is_closed or sys.platform != "linux":
            return
        if (listening := self._find_door()) is not None:
            self._is_closed = is_closed
            with _borrowed(listening) as door:
                if is_closed:
                    code = ctypes.create_string_buffer(_DROP)
                    program = struct.pack("@HP", 1, ctypes.addressof(code))
                    door.setsockopt(sockets.SOL_SOCKET, _SO_ATTACH_FILTER, program)
                else:
                    door.setsockopt(sockets.SOL_SOCKET, _SO_DETACH_FILTER, bytes(4))

    def _find_door(self) -> int | None:
        with contextlib.suppress(OSError):  # there is none left to look with
            found = [int(each.name) for each in _OPEN.iterdir()]
            return next((each for each in found if self._is_own(each, is_door=True)), None)
        return None

    def _end(self, descriptor: int) -> None:
        with contextlib.suppress(OSError), copied(descriptor) as connection:
            if self._is_own(connection.fileno(), is_door=False):
                connection.shutdown(sockets.SHUT_RDWR)
        del self._inbound[descriptor]

    def _is_own(self, descriptor: int, *, is_door: bool) -> bool:
        """Whether this is the node's door, or a connection that has come through it."""
        with contextlib.suppress(OSError, ValueError), _borrowed(descriptor) as found:
            listens = found.getsockopt(sockets.SOL_SOCKET, sockets.SO_ACCEPTCONN)
            is_ip = found.family in (sockets.AF_INET, sockets.AF_INET6)
            return is_ip and bool(listens) is is_door and found.getsockname()[1] == self._port
        return False


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    found = sockets.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


@contextlib.contextmanager
def copied(descriptor: int) -> Iterator[sockets.socket]:
    """A copy of a connection that somebody else closes, to look at it and to end it.

    ZeroMQ's thread may close its own, and another one get the number, between the look and the end.

    Raises:
        OSError: it is none, or none any more.
    """
    copy = os.dup(descriptor)
    try:
        with _borrowed(copy) as connection:
            yield connection
    finally:
        os.close(copy)


ENOUGH_BYTES: Final = 1 << 30
"""Below this a store says so at its start.  Under load it takes some 330 MiB, and 32 KiB more for
each message that waits in the queue of a producer that is faster than the disk."""

_OWN: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")

_store_log = logging.getLogger("dafka.store")


def memory_limit(own: Path = _OWN, groups: Path = _GROUPS) -> int | None:
    """The least memory limit of this process's control groups, in bytes; None: there is none.

    Args:
        own: says which groups these are.
        groups: where they are; in a container its own one may be the topmost (cgroups(7)).
    """
    limits = []
    for path in _limit_files(own, groups):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits, default=None)


def say_if_low(limit_bytes: int | None) -> None:
    """Says what a store with little memory is to expect."""
    if limit_bytes is not None and limit_bytes < ENOUGH_BYTES:
        _store_log.warning(
            "this store may use %d MiB of memory, by the limit of its container or service; under "
            "load it may need %d MiB, and is killed then without a word (exit code 137). What it "
            "has acknowledged is safe, and it goes on when it is started again. Give it more, or "
            "set high_water_mark = 1000 here and a small max_unacked_bytes at its producers",
            *(limit_bytes >> 20, ENOUGH_BYTES >> 20),
        )


def _limit_files(own: Path, groups: Path) -> Iterator[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            directory, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            directory, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        here = Path(path)
        yield from (directory / str(each).lstrip("/") / name for each in (here, *here.parents))
