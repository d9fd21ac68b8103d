"""One request over a connection of its own, in any version."""

from __future__ import annotations

import socket
from typing import Any

from dafka_core.system.hosts import HostPort
from dafka_kafka import schemas
from dafka_kafka.gateway import Gateway


def tell(gateway: Gateway, request: Any, version: int) -> Any:
    """Return the gateway's response, decoded in the client's version."""
    return told(gateway.listens, request, version)


def told(where: HostPort, request: Any, version: int) -> Any:
    """Return the server's response; raise EOFError if it closes the connection instead."""
    kind = getattr(schemas, type(request).__name__.replace("Request", "Response"))
    request.with_header(correlation_id=7, client_id="test")
    with socket.create_connection(where, timeout=30) as client:
        client.sendall(request.encode(version=version, header=True, framed=True))
        with client.makefile("rb") as stream:
            if not (size := stream.read(4)):
                raise EOFError
            octets = stream.read(int.from_bytes(size, "big"))
    return kind.decode(octets, version=version, header=True)
