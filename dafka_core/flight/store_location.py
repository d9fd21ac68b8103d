"""Locations of a store's bulk service: the network, a socket of its machine, or its files."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Self
from urllib.parse import quote, unquote, urlsplit

from msgspec.structs import replace

from dafka_core.errors import StoreError
from dafka_core.model.json_message import JsonMessage
from dafka_core.system.files import OTHERS_READ, mode_within, replace_file
from dafka_core.system.hosts import HostPort

SESSION_FILE: Final = "session"
SOCKET_FILE: Final = "flight.sock"

TLS_SCHEME: Final = "grpc+tls"
TCP_SCHEMES: Final = ("grpc", "grpc+tcp")
UNIX_SCHEME: Final = "grpc+unix"

MAX_SOCKET_PATH_BYTES: Final = 100
"""The systems' limit is 104 (macOS) or 108 (Linux) with a final zero byte."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class StoreLocation(JsonMessage, frozen=True):
    """The location of one store's bulk service."""

    what: ClassVar[str] = "location"

    store: str  # the store's address (UUID); empty if unknown
    locations: tuple[str, ...]  # Flight URIs, the fastest first
    directory: str = ""  # its log's directory on ``machine``; empty if unknown
    machine: str = ""  # ``this_machine()`` there
    session: str = ""  # random at each start of the store, and in the directory's file ``session``

    @classmethod
    def begin(cls, store: str, locations: Sequence[str], directory: Path) -> Self:
        """Return the location of a store that starts in ``directory`` on this machine now.

        On a full disk the file has another session: processes of this machine read over Flight.
        """
        directory = directory.resolve()
        session = secrets.token_hex(16)
        try:
            mode = mode_within(directory) & OTHERS_READ
            replace_file(directory / SESSION_FILE, f"{session}\n".encode(), mode)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(directory, f"file {SESSION_FILE}: {error}") from error
        return cls(store, tuple(locations), str(directory), this_machine(), session)

    def found_at(self, locations: Sequence[str]) -> Self:
        """Return the store with the locations where it was found first: only they may reach it."""
        return replace(self, locations=tuple(dict.fromkeys((*locations, *self.locations))))

    @property
    def here(self) -> bool:
        """Return True if the store claims to be on this machine."""
        return bool(self.machine) and self.machine == this_machine()


@cache
def this_machine() -> str:
    """Return the machine's boot id; else its name."""
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return socket.gethostname()


def socket_path(directory: Path) -> str | None:
    """Return the socket of the store in ``directory`` for its machine; None if impossible."""
    path = str(directory.resolve() / SOCKET_FILE)
    # gRPC parses a path as an address, twice: characters that need escaping do not arrive.
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES or quote(path) != path:
        return None
    return path


def tcp_location(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return the URI of a service at ``host`` and ``port``."""
    return f"{TLS_SCHEME if is_tls else TCP_SCHEMES[0]}://{HostPort(host, port)}"


def parse_locations(value: Any) -> tuple[str, ...]:
    """Parse URIs of services, separated by commas; raise ValueError without a host and port."""
    found = tuple(dict.fromkeys(word.strip() for word in str(value).split(",")))
    for each in found:
        if host_of(each) is None:
            raise ValueError(f"must be like grpc://HOST:PORT, with commas between; got {each!r}")
    return found


def unix_location(path: str) -> str:
    """Return the URI of a service at a socket of its machine."""
    return f"{UNIX_SCHEME}://{quote(path)}"


def path_of(location: str) -> str | None:
    """Return the socket's path of a location; None for other locations."""
    parts = urlsplit(location)
    return unquote(parts.path) if parts.scheme == UNIX_SCHEME else None


def host_of(location: str) -> tuple[str, int] | None:
    """Return a location's host and port; None without, or if Arrow cannot use a link-local one."""
    with suppress(ValueError):
        parts = urlsplit(location)
        host, is_tcp = parts.hostname or "", parts.scheme in (*TCP_SCHEMES, TLS_SCHEME)
        if is_tcp and host and "%" not in host and parts.port is not None:
            return host, parts.port
    return None
