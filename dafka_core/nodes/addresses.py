"""A node's address, the host that it announces, and the checks of both."""

from __future__ import annotations

import errno
import logging
import os
import socket as sockets
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final

import zmq
from zmq import SyncSocket as Socket

from dafka_core.config.node_options import (
    AUTO_HOST,
    INSECURE_ENVIRONMENT,
    NodeOptions,
    SecurityOptions,
    TowerAddress,
)
from dafka_core.errors import ConfigError
from dafka_core.security.key_files import own_prefix
from dafka_core.system.hosts import (
    HostPort,
    bracketed,
    is_any,
    is_ipv6,
    is_loopback,
    numeric_host,
    parse_endpoint,
    resolve,
)

RETRY_S: Final = 0.5  # interval of a node's attempts to bind while the network is down

# Addresses for documentation (RFC 5737, RFC 3849): the default routes lead to them.
_SOMEWHERE: Final = ("192.0.2.1", "2001:db8::1")

_log = logging.getLogger("dafka.nodes")


def new_address(config: SecurityOptions | None = None) -> str:
    """Return a new node's address, as C nodes write it: 32 upper-case hexadecimal digits.

    With a key it begins with digits of the key, which proves its owner.
    """
    prefix = "" if config is None else own_prefix(config)
    return prefix + uuid.uuid4().hex.upper()[len(prefix) :]


def options_beside(options: NodeOptions) -> dict[str, Any]:
    """Return options for a second node with the same towers and keys, at another port.

    From a range of ports it takes the next free one, as the first node does.
    """
    values = {each.name: getattr(options, each.name) for each in fields(NodeOptions)}
    port = options.port if len(options.ports) > 1 else "0"
    return {name: value for name, value in values.items() if value != ""} | {"port": port}


# -- the host to announce --------------------------------------------------------------------------


def own_host(config: NodeOptions) -> str:
    """Return the host to bind and to announce, after resolving ``auto``.

    Raises ConfigError if peers could not reach this machine there, and OSError while no tower has a
    route, or no tower's name resolves.
    """
    if config.host != AUTO_HOST:
        _check_named(config)
        return config.host
    routes = _routes(config.tower)
    own = next((local for _, _, local in routes if not is_loopback(local)), "")
    for tower, address, local in routes:
        # Debian gives a machine's own name the address 127.0.1.1.
        is_debians = is_loopback(address) and address not in ("127.0.0.1", "::1")
        if not own and is_debians and not is_loopback(tower.host):
            why = (
                f"tower {tower.host} is {address} on this machine, by its /etc/hosts: nodes on "
                "other machines could not reach this one there. Set host to this machine's address "
                "in the network, or correct that line of /etc/hosts; where all nodes are on this "
                "machine, name the tower 127.0.0.1"
            )
            raise ConfigError("host", AUTO_HOST, why)
        if own and not is_loopback(local) and local != own:
            text = "tower %s is reached from %s, and peers connect to %s: see option host"
            _log.warning(text, tower, local, own)
    return bracketed(own or routes[0][2])


def _check_named(config: NodeOptions) -> None:
    """Raise ConfigError for an option ``host`` that other machines cannot reach."""
    host, hint = config.host, ""
    if is_any(host):
        why = f"is not an address that peers can connect to: set one, or '{AUTO_HOST}'"
        raise ConfigError("host", host, why)
    with suppress(OSError):  # binding fails with the reason
        address = numeric_host(resolve(host)[0][4])
        if not is_loopback(address):
            return
        if not is_loopback(host):
            hint = f" ({host} is {address} on this machine, by its /etc/hosts)"
        for tower, address, own in _routes(config.tower):
            if own != address and not is_loopback(address):
                why = (
                    f"nodes on the machine of tower {tower} cannot connect to this one there"
                    f"{hint}: set it to {own}, this machine's address on the way there, or to "
                    f"'{AUTO_HOST}'"
                )
                raise ConfigError("host", host, why)


def network_host() -> str:
    """Return this machine's address in the network: its name's, or that of its default route."""
    found: list[str] = []
    for host in (sockets.gethostname(), *_SOMEWHERE, "127.0.0.1", "::1"):
        with suppress(OSError):
            found.append(_own_towards(host, 1)[1])
    return bracketed(next((each for each in found if not is_loopback(each)), found[0]))


def unresolved_hosts(hosts: Iterable[str]) -> list[str]:
    """Return the names that do not resolve now, in order."""
    failed = set()
    for host in hosts:
        try:
            resolve(host)
        except OSError:
            failed.add(host)
    return sorted(failed)


def _routes(towers: Iterable[TowerAddress]) -> list[tuple[TowerAddress, str, str]]:
    """Return the towers that can be reached now, as ``_own_towards``; raise OSError if none can."""
    routes, failures = [], []
    for tower in towers:
        try:
            routes.append((tower, *_own_towards(tower.host, tower.sub_port)))
        except OSError as error:
            failures.append(f"{tower.host}: {error.strerror}")
    if not routes:
        raise OSError(0, "; ".join(failures))
    if failures:
        _log.warning("a tower cannot be reached now (%s)", "; ".join(failures))
    return routes


def _own_towards(host: str, port: int) -> tuple[str, str]:
    """Return a host's address, and this machine's on the way there; raise OSError without one."""
    failure = OSError(0, "no address")
    for family, *_, address in resolve(host, port):
        # Connecting a datagram socket sends nothing: the system only chooses a route.
        with sockets.socket(family, sockets.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)
                return numeric_host(address), numeric_host(probe.getsockname())
            except OSError as error:
                failure = error
    raise failure


# -- binding ---------------------------------------------------------------------------------------


def bound(socket: Socket, config: NodeOptions) -> tuple[str, int]:
    """Bind a node's socket to ``own_host`` and one of its ports; return both.

    With ``wait_for_tower`` it retries while the network is down or names do not resolve.  Raises
    ConfigError if the host or all of the ports cannot be bound.
    """
    is_logged = False
    while True:
        try:
            host = own_host(config)
            port = _bound_port(socket, host, config)
            check_closed(socket, "host", config.host, config)
            return host, port
        except OSError as error:
            why = f"none can be reached ({error.strerror})"
            failure = ConfigError("tower", ", ".join(map(str, config.tower)), why)
        except zmq.ZMQError as error:
            why = f"must be an address of this machine: {why_unbound(error)}"
            failure = ConfigError("host", config.host, why)
        if not config.wait_for_tower:
            raise failure
        if not is_logged:
            is_logged = True
            _log.warning("%s; this node waits until that has changed", failure)
        time.sleep(RETRY_S)


def _bound_port(socket: Socket, host: str, config: NodeOptions) -> int:
    for port in config.ports:
        try:
            return bind(socket, host, port)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
    raise ConfigError("port", config.port, f"is in use at {host}, or all of these ports are")


def bind(socket: Socket, host: str, port: int) -> int:
    """Bind a socket, and return its port; raise ZMQError if that or the host is not available."""
    socket.set(zmq.IPV6, is_ipv6(host))
    socket.bind(f"tcp://{host}:{port or '*'}")
    return _bound_at(socket).port


def _bound_at(socket: Socket) -> HostPort:
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return parse_endpoint(endpoint.rstrip(b"\0").decode())


def why_unbound(error: OSError | zmq.ZMQError) -> str:
    """Return the reason why an address cannot be bound, in the system's words."""
    if error.errno in (errno.ENODEV, errno.EINVAL):
        return "no address or interface of this machine has that name"
    return os.strerror(error.errno or 0)


def check_closed(socket: Socket, option: str, value: str, config: SecurityOptions) -> None:
    """Check that a bound socket without keys is on loopback, or open by intention."""
    if not config.secret_key_file:
        cure = "set secret_key_file and allowed_keys"
        check_trusted(_bound_at(socket).host, option, value, config, cure)


def check_trusted(
    host: str, option: str, value: object, config: SecurityOptions, cure: str
) -> None:
    """Check that a port without keys is on loopback, or open by intention, and log an open one.

    Raises ConfigError with the remedy ``cure`` if it is open to other machines otherwise.
    """
    if is_loopback(host):
        return
    if not config.may_be_open:
        why = (
            f"opens {host} to other machines, which can then read and write everything: {cure} "
            f"(docs/security.md), or, in a trusted network, set insecure (or "
            f"{INSECURE_ENVIRONMENT}=true in the environment)"
        )
        raise ConfigError(option, value, why)
    # A tower and a store warn about their ports; a warning of each node would repeat that.
    level = logging.INFO if option == "host" else logging.WARNING
    text = "%s = '%s' requires no keys: any client of %s can read and write everything"
    _log.log(level, text, option, value, host, extra={"event": "open_port"})
