"""One request over a connection of its own, in any version."""

from __future__ import annotations

import socket
from typing import Any

from dafka_core.system.hosts import HostPort
from dafka_kafka.api import Api
from dafka_kafka.gateway import Gateway
from tests.unit.kafka.messages import NEWEST, named, request, versions


def tell(gateway: Gateway, api: Api, version: int = NEWEST, /, **fields: Any) -> Any:
    """Return the gateway's response, decoded in the client's version."""
    return told(gateway.listens, api, versions(api)[version], **fields)


def told(where: HostPort, api: Api | str, version: int, /, **fields: Any) -> Any:
    """Return the server's response; raise EOFError if it closes the connection instead."""
    asked = request(api, **fields)
    asked.with_header(correlation_id=7, client_id="test")
    with socket.create_connection(where, timeout=30) as client:
        client.sendall(asked.encode(version=version, header=True, framed=True))
        with client.makefile("rb") as stream:
            if not (size := stream.read(4)):
                raise EOFError
            octets = stream.read(int.from_bytes(size, "big"))
    return named(api, "Response").decode(octets, version=version, header=True)
