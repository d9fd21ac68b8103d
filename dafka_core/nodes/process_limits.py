"""Limits of the process: open files, which each peer uses, and memory.

At the limit ZeroMQ neither connects nor accepts, and retries without logging: messages between this
node and a peer would arrive in one direction only.  So while one more peer might not fit, the node
connects to no new peers, and the kernel drops connection requests to its listening socket.
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
from typing import Any, Final

PER_PEER: Final = 2
"""Descriptors of a peer: its connection to this node, and this node's to it."""

PER_PEER_APART: Final = 5
"""Descriptors of a peer with a socket of its own, which two more sockets monitor."""

PER_NODE: Final = 60
"""Descriptors of a node without peers: some 20, and more with several towers."""

RESERVE: Final = 16
"""Reserved for short-lived files of the process, and for peers that connect before their beacons
arrive."""

SCAN_INTERVAL_S: Final = 0.1
"""Minimum interval of counts of open descriptors: any node may announce thousands of peers."""

MAX_REFUSED: Final = 10_000
"""Limit of the list of refused peers: any node may announce some.  Others are refused unlisted."""

LOW_LIMIT: Final = 1_024
"""Below the system's usual limit a node logs at its start how many peers fit."""

SAY_AGAIN_S: Final = 60.0
SAY_CHANGE_S: Final = 10.0
"""Intervals of the log of refused peers: if their number is the same, and if it has changed."""

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27  # Python's own module has neither
_DROP: Final = struct.pack("@HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction (the kernel's ``struct sock_filter``): keep 0 bytes."""

_OPEN: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")

_log = logging.getLogger("dafka.nodes")


def soft_limit() -> int:
    """Return the process's soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Raise the process's soft limit of open files to the hard one; return the new soft limit.

    Only for our own processes, which do not use ``select()``: it breaks at descriptors above 1,023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft_limit()


def make_room_for_node(descriptor: int) -> None:
    """Raise the soft limit if a node does not fit below it.

    Args:
        descriptor: one that was just opened: the system assigns the lowest free number.
    """
    _raised(soft_limit(), "one more node needs", descriptor + PER_NODE)


def _raised(limit: int, what: str, needed: int) -> int:
    """Return the limit of open files, after raising it if more are needed."""
    raised = raise_limit() if needed > limit else limit
    if raised > limit:
        _log.warning(
            "open files limit raised from %d to %d, as %s %d: what uses select() in this process "
            "breaks at descriptors above 1023",
            *(limit, raised, what, needed),
        )
    return raised


def _open_count() -> int:
    """Return the number of open descriptors; a list of thousands takes Linux 20 ms."""
    is_counted = sys.platform == "linux"  # since Linux 6.2
    return (is_counted and _OPEN.stat().st_size) or len([*_OPEN.iterdir()])


class PeerRoom:
    """A check for room for peers, which closes the node's listening socket while it has none.

    It raises the process's soft limit only when a peer would not fit otherwise: the process may
    belong to an application.

    Args:
        port: of the node's listening socket for peers.
        per_peer: descriptors that each peer takes.

    Attributes:
        refused: the peers without room, by endpoint: their node, and the time of its last beacon.
    """

    def __init__(self, port: int, per_peer: int) -> None:
        self.refused: dict[str, tuple[str, float]] = {}
        self._inbound: dict[int, str] = {}  # by descriptor: the node that connected
        self._port = port
        self._per_peer = per_peer
        self._limit = soft_limit()
        self._scan_due = 0.0
        self._least: int | None = None
        self._others = 0  # descriptors not used for peers; ``_least`` is the first count
        self._is_closed = False
        self._said = (0, 0.0)

    def look(self, now: float, peer_count: int) -> bool:
        """Return True if one more peer fits; after a count, open or close the listening socket."""
        if now >= self._scan_due:
            self._scan_due = now + SCAN_INTERVAL_S
            self._count(peer_count)
            self._turn_away(peer_count)
        return self._fits(peer_count + 1)

    def refuse(self, now: float, node: str, endpoint: str) -> None:
        """Note a peer that does not fit; its connection to this node, if any, is ended soon."""
        if endpoint in self.refused or len(self.refused) < MAX_REFUSED:
            self.refused[endpoint] = node, now

    def note_inbound(self, descriptor: int, node: str) -> None:
        """Note the node of an incoming connection."""
        if descriptor >= 0:
            self._inbound[descriptor] = node

    def report(self, now: float, peer_count: int, expiry_s: float) -> None:
        """Log the number of refused peers, if it has changed or was logged some time ago."""
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
        self._limit = _raised(self._limit, f"{peer_count} peers need", needed)
        return needed <= self._limit

    def _count(self, peer_count: int) -> None:
        try:
            count = _open_count()
        except OSError:  # no descriptor is left for counting
            self._others = self._limit
            return
        # Known peers' descriptors may not be open yet; those beyond are for other things.
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
        # Accepted peers may still be connecting.
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
        with contextlib.suppress(OSError):  # no descriptor is left for the search
            found = [int(each.name) for each in _OPEN.iterdir()]
            return next((each for each in found if self._is_own(each, is_door=True)), None)
        return None

    def _end(self, descriptor: int) -> None:
        with contextlib.suppress(OSError), copied(descriptor) as connection:
            if self._is_own(connection.fileno(), is_door=False):
                connection.shutdown(sockets.SHUT_RDWR)
        del self._inbound[descriptor]

    def _is_own(self, descriptor: int, *, is_door: bool) -> bool:
        """Return True for the node's listening socket, or a connection accepted by it."""
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
    """Duplicate the descriptor of a connection that ZeroMQ owns, to check and end the connection.

    ZeroMQ's thread may close its own between the two, and the number may be assigned again.

    Raises:
        OSError: the descriptor is no connection, or is closed.
    """
    copy = os.dup(descriptor)
    try:
        with _borrowed(copy) as connection:
            yield connection
    finally:
        os.close(copy)


def ends_of(descriptor: int) -> tuple[Any, Any]:
    """Return a connection's own address and its peer's; both are empty if it has ended.

    Events of ended connections arrive later, when another connection may have the descriptor.
    """
    with contextlib.suppress(OSError), copied(descriptor) as connection:
        return connection.getsockname(), connection.getpeername()
    return (), ()


def shut_down(descriptor: int, peer: object) -> bool:
    """End a connection to a peer's address, which ZeroMQ cannot do; return True if it was ended.

    ZeroMQ treats it as closed by the peer.  The descriptor may belong to something else by now.
    """
    with contextlib.suppress(OSError), copied(descriptor) as connection:
        if connection.getpeername() == peer:
            connection.shutdown(sockets.SHUT_RDWR)
            return True
    return False


ENOUGH_BYTES: Final = 1 << 30
"""A store with less logs a warning at its start.  Under load it takes some 330 MiB, and 32 KiB more
for each message in the queue of a producer that is faster than the disk."""

_OWN: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")

_store_log = logging.getLogger("dafka.store")


def memory_limit(own: Path = _OWN, groups: Path = _GROUPS) -> int | None:
    """Return the lowest memory limit of this process's control groups, in bytes, or None.

    Args:
        own: the file that lists these groups.
        groups: their root directory; in a container the own group may be the topmost (cgroups(7)).
    """
    limits = []
    for path in _limit_files(own, groups):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # missing, or "max"
            continue
    return min(limits, default=None)


def say_if_low(limit_bytes: int | None) -> None:
    """Warn of the consequences if a store has little memory."""
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
