"""Where a store can be read in bulk: over the network, a socket of its machine, or its files."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, unquote, urlsplit

from dafka_core.errors import ConfigError, StoreError

SESSION_FILE: Final = "session"
SOCKET_FILE: Final = "flight.sock"

TCP_SCHEMES: Final = ("grpc", "grpc+tcp")
UNIX_SCHEME: Final = "grpc+unix"

MAX_SOCKET_PATH_BYTES: Final = 100
"""The systems' limit is 104 (macOS) or 108 (Linux) with the zero octet at its end."""

_VERSION: Final = 1
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where one store can be read in bulk.

    Attributes:
        store: the store's address (UUID); empty when it is not known.
        locations: Flight URIs, the quickest first.
        directory: its log's directory on ``machine``; empty when it is not known.
        machine: ``this_machine()`` there.
        session: random at each start of the store, and in file ``session`` of the directory.
    """

    store: str
    locations: tuple[str, ...]
    directory: str = ""
    machine: str = ""
    session: str = ""

    @classmethod
    def begin(cls, store: str, locations: Sequence[str], directory: Path) -> Self:
        """The place of a store that starts in ``directory`` on this machine now.

        Raises:
            StoreError: the directory cannot be written.
        """
        directory = directory.resolve()
        session = secrets.token_hex(16)
        path = directory / SESSION_FILE
        try:
            written = path.with_suffix(".new")
            written.write_text(f"{session}\n", "ascii")
            written.replace(path)
        except OSError as error:
            raise StoreError(directory, f"file {SESSION_FILE}: {error}") from error
        return cls(store, tuple(locations), str(directory), this_machine(), session)

    @property
    def here(self) -> bool:
        """Whether the store is on this machine, so far as one can tell."""
        return bool(self.machine) and self.machine == this_machine()

    def as_json(self) -> str:
        """The place as a JSON object on one line."""
        fields = {name: getattr(self, name) for name in _TEXTS}
        return json.dumps({"v": _VERSION, "locations": self.locations, **fields}, sort_keys=True)

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """The place that ``as_json`` made; members not known here are passed over.

        Raises:
            ConfigError: it is not one.
        """
        try:
            found: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError("place", short(text), "must be a JSON object") from error
        if not isinstance(found, dict):
            raise ConfigError("place", short(found), "must be a JSON object")
        if found.get("v") != _VERSION:
            raise ConfigError("v", short(found.get("v")), f"must be {_VERSION}")
        texts = {name: found.get(name, "") for name in _TEXTS}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise ConfigError(name, short(value), "must be a text")
        locations = found.get("locations")
        if not isinstance(locations, list) or not all(isinstance(each, str) for each in locations):
            raise ConfigError("locations", short(locations), "must be a list of texts")
        return cls(locations=tuple(locations), **texts)


_TEXTS: Final = ("store", "directory", "machine", "session")


@cache
def this_machine() -> str:
    """What tells this machine, since it was switched on, from others; else its name."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


def socket_path(directory: Path) -> str | None:
    """Where the store in ``directory`` listens for its machine; None where no socket can be."""
    path = str(directory.resolve() / SOCKET_FILE)
    # gRPC takes a path apart as an address, twice: what needs escaping in one does not arrive.
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES or quote(path) != path:
        return None
    return path


def tcp_location(host: str, port: int) -> str:
    """The URI of a service at ``host`` and ``port``."""
    return f"grpc://[{host}]:{port}" if ":" in host else f"grpc://{host}:{port}"


def unix_location(path: str) -> str:
    """The URI of a service that listens at a socket of its machine."""
    return f"{UNIX_SCHEME}://{quote(path)}"


def path_of(location: str) -> str | None:
    """The socket's path of a location; None when it is not one of those."""
    parts = urlsplit(location)
    return unquote(parts.path) if parts.scheme == UNIX_SCHEME else None


def host_of(location: str) -> tuple[str, int] | None:
    """Host and port of a location; None when it has none."""
    try:
        parts = urlsplit(location)
        if parts.scheme in TCP_SCHEMES and parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    except ValueError:
        pass
    return None


def short(value: object) -> object:
    """A value that came from elsewhere, cut where it is too long for an error's sentence."""
    text = repr(value)
    return value if len(text) <= 100 else f"{text[:100]}..."
