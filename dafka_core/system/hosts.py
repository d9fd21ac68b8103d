"""Hosts and ports: one parser and one resolver, for IPv4 and IPv6.

A name may have addresses of both families.  A listener takes its IPv4 address if there is one,
because C nodes know no other; clients try both.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dafka_core.errors import ConfigError

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

HOST: Final = (
    r"\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[0-9A-Za-z._-]{1,15})?\]"
    r"|[0-9A-Za-z][0-9A-Za-z_-]{0,62}(?:\.[0-9A-Za-z_-]{1,63})*\.?"
)
"""A regular expression for a name or an address; IPv6 in brackets, with the scope of a link."""

ANY: Final = "*"  # all addresses of this machine, of both families

LOCALHOST: Final = "localhost"

_HOST_PORT: Final = re.compile(rf"(?a)(\*|{HOST})(?::(\d{{1,5}}))?")

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""As ``socket.getaddrinfo`` returns it."""


class HostPort(NamedTuple):
    """A host and a port; an IPv6 address has no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of an HTTP server that listens here."""
        return f"http://{self if self.host != ANY else HostPort(LOCALHOST, self.port)}"


def host_port(text: str, default_port: int | None = None) -> HostPort:
    """Parse ``HOST[:PORT]``.

    Raises:
        ValueError: the text is invalid, or lacks a port without a default.
    """
    match = _HOST_PORT.fullmatch(text)
    port = None if match is None or not _is_valid(match[1]) else match[2] or default_port
    if match is None or text.isdecimal() or port is None or int(port) > 65_535:
        example = f"127.0.0.1:{default_port or 9_108}"
        raise ValueError(f"must be HOST:PORT, as {example}; port 0 lets the system choose")
    return HostPort(match[1].strip("[]"), int(port))


def parse_endpoint(text: str) -> HostPort:
    """Parse ZeroMQ's ``tcp://HOST:PORT``; raise ValueError for any other text."""
    scheme, _, place = text.partition("://")
    if scheme != "tcp":
        raise ValueError("must be tcp://HOST:PORT")
    return host_port(place)


def is_host(text: str) -> bool:
    """Return whether a text is a host name or an address; IPv6 in brackets."""
    return re.fullmatch(HOST, text) is not None and _is_valid(text)


def _is_valid(text: str) -> bool:
    return text[0] != "[" or address_of(text) is not None


def bracketed(host: str) -> str:
    """Return a host for ``HOST:PORT``: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return an address, or None for a name.  IPv4 in IPv6 (``::ffff:10.0.0.7``) is IPv4."""
    import ipaddress  # noqa: PLC0415 -- slow to import

    with suppress(ValueError):
        address = ipaddress.ip_address(host.strip("[]"))
        return getattr(address, "ipv4_mapped", None) or address
    return None


def plain(host: str) -> str:
    """Return a client's address in its shortest form, without brackets; a name as it is."""
    return str(address_of(host) or host)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host; True for one name, ``localhost``."""
    address = address_of(host)
    return host == LOCALHOST if address is None else address.is_loopback


def is_any(host: str) -> bool:
    """Return whether a host is all addresses of this machine, or all IPv4 ones."""
    address = address_of(host)
    return host == ANY if address is None else address.is_unspecified


def resolve(host: str, port: int = 0) -> list[AddressInfo]:
    """Return the addresses of a host for TCP, IPv4 first.

    Raises:
        OSError: the name does not resolve.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return sorted(found, key=lambda each: each[0] != socket.AF_INET)


def numeric_host(address: Any) -> str:
    """Return the host of a socket address, with the scope that Python leaves out."""
    host, _, *flow_and_scope = address
    index = flow_and_scope[1] if flow_and_scope else 0
    return f"{host}%{socket.if_indextoname(index)}" if index and "%" not in host else str(host)


def is_ipv6(host: str) -> bool:
    """Return whether a listener at a host needs an IPv6 socket; False for an unknown name."""
    if host == ANY:
        return socket.has_dualstack_ipv6()
    if address_of(host) is not None:
        return ":" in host
    try:
        return resolve(host)[0][0] == socket.AF_INET6
    except OSError:
        return False


def listen(where: HostPort, backlog: int = 128) -> socket.socket:
    """Return a socket that listens; at ``*`` and ``::`` it takes clients of both families.

    Raises:
        OSError: the port is in use, or the host is not this machine's.
    """
    is_dual = where.host in (ANY, "::") and socket.has_dualstack_ipv6()
    if is_dual:
        family, address = socket.AF_INET6, ("::", where.port)
    else:
        host = "0.0.0.0" if where.host == ANY else where.host  # noqa: S104 -- the user's choice
        family, *_, address = resolve(host, where.port)[0]
    try:
        return socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=is_dual)
    except OSError as error:  # its text names the address, which the caller's error has, too
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None


def listen_for(option: str, where: HostPort, backlog: int = 128) -> socket.socket:
    """Return a socket that listens, as ``listen``.

    Raises:
        ConfigError: it cannot; the error names the option.
    """
    try:
        return listen(where, backlog)
    except OSError as error:
        why = f"cannot listen there: {error.strerror or error}; port 0 lets the system choose"
        raise ConfigError(option, str(where), why) from error
