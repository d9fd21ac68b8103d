"""What gRPC cannot do by itself: notice that it was forked, and end what a peer holds up.

A child forked from a process that has used gRPC can only hang in it.

Flight in Python shuts a server down only after its last stream has ended, and cannot cancel a put
at all.  A socket that is shut down, though, ends everything that goes through it at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dafka_core.flight.store_location import host_of, path_of

_DESCRIPTORS: Final = tuple(Path(each) for each in ("/proc/self/fd", "/dev/fd"))

Address = str | tuple[str, int]
"""As systems have it: a socket's path, or a numeric host and a port."""

_users: list[int] = []


def use() -> str | None:
    """Notes that this process uses gRPC from now on; says why it cannot, if it cannot."""
    if not _users:
        _users.append(os.getpid())
    if _users[0] == os.getpid():
        return None
    return (
        f"process {_users[0]} used Flight before it forked this one, which gRPC cannot do; start "
        "processes anew (multiprocessing's method 'spawn')"
    )


def addresses_of(location: str) -> set[Address]:
    """What a Flight URI may mean to a socket."""
    path, host = path_of(location), host_of(location)
    if path is not None:
        return {path}
    if host is None:
        return set()
    try:
        found = socket.getaddrinfo(*host, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {_normal(each[4]) for each in found}


def accepts(location: str) -> bool:
    """Whether a process listens at a location's socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path_of(location)))
        except OSError:
            return False
    return True


def break_accepted(addresses: set[Address]) -> None:
    """Breaks this process's connections that were accepted at one of these."""
    _break(addresses, socket.socket.getsockname)


def break_opened(addresses: set[Address]) -> None:
    """Breaks this process's connections that were opened to one of these."""
    _break(addresses, socket.socket.getpeername)


def _break(addresses: set[Address], address_of: Callable[[socket.socket], object]) -> None:
    directory = next((each for each in _DESCRIPTORS if each.is_dir()), None)
    for path in list(directory.iterdir()) if directory else []:
        with contextlib.suppress(OSError, ValueError):
            descriptor = int(path.name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                # A copy of the descriptor: gRPC may close its own at any time.
                with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as each:
                    if _normal(address_of(each)) in addresses:
                        each.shutdown(socket.SHUT_RDWR)


def _normal(address: object) -> Address:
    if isinstance(address, Sequence) and not isinstance(address, str | bytes):
        host = str(address[0]).partition("%")[0]
        with contextlib.suppress(ValueError):
            number = ipaddress.ip_address(host)
            # A listener for both families sees IPv4 addresses like this.
            host = str(getattr(number, "ipv4_mapped", None) or number)
        return host, int(address[1])
    return os.fsdecode(address) if isinstance(address, bytes) else str(address)
