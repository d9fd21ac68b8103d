"""Workarounds for gRPC, and for Flight in Python.

- A child forked from a process that has used gRPC can only hang in it: ``use`` detects that.
- A server shuts down only after its last stream has ended, and a put cannot be cancelled at all.
  Shutting a socket down, though, ends everything that uses it at once.
- A stream has no limit on waits for its peer: a ``CallDeadline`` has one.
- A call to a vanished host waits until its timeout: ``find_lost_host`` ends it before.
  gRPC's own pings are unsuitable: a server ends the connection of a client that pings so often.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.flight.flight_errors import translated
from dafka_core.flight.store_location import host_of, path_of
from dafka_core.system.closing import CheckThread, Closing
from dafka_core.system.hosts import plain, resolve

_DESCRIPTORS: Final = tuple(Path(each) for each in ("/proc/self/fd", "/dev/fd"))

STALLED_S: Final = 1.0  # after this wait the system checks whether the peer's host exists

LOST_MS: Final = 8_000
"""A host that sends nothing for this time, though TCP probes it, is gone.  Longer than the mesh
needs to notice it, so that a search for stores afterwards does not find those of this host any
more."""

_ASK_S: Final = 2  # interval of TCP's probes

_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": _ASK_S,
    "TCP_KEEPINTVL": _ASK_S,
    "TCP_KEEPCNT": LOST_MS // 1000 // _ASK_S,
    "TCP_USER_TIMEOUT": LOST_MS,
}

Address = str | tuple[str, int]  # a socket's path, or a numeric host and a port

_users: list[int] = []


def use() -> str | None:
    """Note that this process uses gRPC from now on; return the reason if it cannot."""
    if not _users:
        _users.append(os.getpid())
        # It writes a line to stderr for each failed handshake, on both sides; the caller gets an
        # error anyway.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if _users[0] == os.getpid():
        return None
    return (
        f"process {_users[0]} used Flight before it forked this process, which gRPC does not "
        "support; start new processes instead (multiprocessing's method 'spawn')"
    )


def addresses_of(location: str) -> set[Address]:
    """Return the socket addresses that a Flight URI may mean."""
    path, host = path_of(location), host_of(location)
    if path is not None:
        return {path}
    if host is not None:
        with contextlib.suppress(OSError):
            return {normal(each[4]) for each in resolve(*host)}
    return set()


def accepts(location: str) -> bool:
    """Return True if a process listens at a location's socket."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path_of(location)))
        return True
    return False


def break_connections(
    addresses: set[Address], address_of: Callable[[socket.socket], object]
) -> None:
    """Break this process's connections with one of these addresses, by ``address_of``.

    ``getsockname`` finds accepted connections, ``getpeername`` outgoing ones.
    """
    _each_connection(addresses, address_of, lambda each: each.shutdown(socket.SHUT_RDWR))


def find_lost_host(location: str) -> None:
    """Let the system break this process's connections to a location if the host is gone.

    A busy or stopped store keeps them: its host's system answers the probes.
    """
    _each_connection(addresses_of(location), socket.socket.getpeername, _keep_alive)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # optional in a system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _each_connection(
    addresses: set[Address],
    address_of: Callable[[socket.socket], object],
    work: Callable[[socket.socket], None],
) -> None:
    directory = next((each for each in _DESCRIPTORS if each.is_dir()), None)
    for path in list(directory.iterdir()) if directory else []:
        with contextlib.suppress(OSError, ValueError):
            descriptor = int(path.name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                # A copy of the descriptor: gRPC may close its own at any time.
                with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as each:
                    if normal(address_of(each)) in addresses:
                        work(each)


def normal(address: object) -> Address:
    """Return a socket's address in a form in which equal ones are equal."""
    if isinstance(address, Sequence) and not isinstance(address, str | bytes):
        return plain(str(address[0]).partition("%")[0]), int(address[1])
    return os.fsdecode(address) if isinstance(address, bytes) else str(address)


class CallDeadline(Closing):
    """One call, in which its thread sometimes waits for the peer.

    Attributes:
        timeout_s: the longest wait.
        expired: true if a wait has lasted longer: then the watchdog's thread has called
            ``give_up``, which must end the wait.

    Args:
        on_stalled: called, once, in a wait that lasts longer than ``STALLED_S``.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        timeout_s: float,
        give_up: Callable[[], None],
        on_stalled: Callable[[], None] = lambda: None,
    ) -> None:
        self.give_up = give_up
        self.timeout_s = timeout_s
        self.expired = False
        self._on_stalled: Callable[[], None] | None = on_stalled
        self._waits_since: float | None = None
        self._watchdog = watchdog

    def start(self) -> Self:
        """Watch the call until ``close``."""
        self._watchdog.add(self)
        return self

    def wait(self) -> None:
        """Note the start of a wait for the peer."""
        # Without a lock, as a call does this for each batch; the watchdog sees it at its next
        # check.
        self._waits_since = time.monotonic()

    def go_on(self) -> None:
        """Note the peer's answer."""
        self._waits_since = None

    def check(self, now: float) -> None:
        """Give the call up if it waits for too long (watchdog's thread)."""
        since = self._waits_since
        if since is None:
            return
        if self._on_stalled is not None and since + STALLED_S <= now:
            on_stalled, self._on_stalled = self._on_stalled, None
            on_stalled()
        if since + self.timeout_s <= now:
            self.expired = True
            self.wait()  # gRPC may connect again and continue to wait
            self.give_up()

    def close(self) -> None:
        """End the call."""
        self.go_on()
        self._watchdog.remove(self)

    def translated(self, error: BaseException, store: str) -> DafkaError:
        """Convert the error that has ended the call for the caller of ``store``."""
        if self.expired:
            return StoreUnreachableError(store, f"no progress for {self.timeout_s:g} s")
        return translated(error, store)


class Watchdog(CheckThread[CallDeadline]):
    """Gives up calls after their deadline."""

    def __init__(self) -> None:
        super().__init__("dafka-flight-watch")

    def close(self) -> None:
        """Give up all calls."""
        for call in self.items:
            call.give_up()
