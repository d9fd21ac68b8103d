"""Breaking connections that gRPC has: it ends neither a call nor a server that a peer holds up.

Flight in Python can shut a server down only after its last stream has ended, and cannot cancel a
put at all.  A socket that is shut down, though, ends everything that goes through it at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from dafka_core.flight.store_location import host_of, path_of

_DESCRIPTORS: Final = tuple(Path(each) for each in ("/proc/self/fd", "/dev/fd"))

Address = str | tuple[str, int]
"""As systems have it: a socket's path, or a numeric host and a port."""


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


def accepts(path: str) -> bool:
    """Whether somebody listens at a socket's path."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def break_accepted(addresses: set[Address]) -> int:
    """Breaks this process's connections that were accepted at one of these; how many."""
    return _break(addresses, socket.socket.getsockname)


def break_opened(addresses: set[Address]) -> None:
    """Breaks this process's connections that were opened to one of these."""
    _break(addresses, socket.socket.getpeername)


def _break(addresses: set[Address], address_of: Callable[[socket.socket], object]) -> int:
    broken = 0
    for each in _sockets():
        with each, contextlib.suppress(OSError):
            if _normal(address_of(each)) in addresses:
                each.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


def _sockets() -> Iterator[socket.socket]:
    """The process's stream sockets, each over a descriptor of its own."""
    directory = next((each for each in _DESCRIPTORS if each.is_dir()), None)
    names = [each.name for each in directory.iterdir()] if directory else []
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield _own(int(name))


def _own(descriptor: int) -> socket.socket:
    # gRPC may close the one it has at any time.
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise


def _normal(address: object) -> Address:
    if isinstance(address, Sequence) and not isinstance(address, str | bytes):
        host = str(address[0]).partition("%")[0]
        with contextlib.suppress(ValueError):
            number = ipaddress.ip_address(host)
            # One listener for both families sees the older one's addresses like this.
            mapped = getattr(number, "ipv4_mapped", None)
            host = str(mapped or number)
        return host, int(address[1])
    return os.fsdecode(address) if isinstance(address, bytes) else str(address)
