"""A node's address, and the host at which its peers reach it."""

from __future__ import annotations

import socket as sockets
import uuid

from dafka_core.node_options import AUTO_HOST, NodeOptions


def new_address() -> str:
    """A new node's address, as C nodes write theirs: 32 upper-case hexadecimal digits."""
    return uuid.uuid4().hex.upper()


def own_host(config: NodeOptions) -> str:
    """The host to bind to and to announce: option ``host``, or what ``auto`` stands for.

    Raises:
        OSError: the machine has no route to the first tower.
    """
    if config.host != AUTO_HOST:
        return config.host
    tower = config.tower[0]
    family, kind, protocol, _, address = sockets.getaddrinfo(
        tower.host.strip("[]"), tower.sub_port, type=sockets.SOCK_DGRAM
    )[0]
    # Connecting a datagram socket sends nothing: it only has the system choose a route.
    with sockets.socket(family, kind, protocol) as probe:
        probe.connect(address)
        host = str(probe.getsockname()[0])
    return f"[{host}]" if ":" in host else host
