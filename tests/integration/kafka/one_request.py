"""One request in any version, over a connection of its own or as a user's."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

from dafka_core.security.permissions import Permissions
from dafka_core.system.hosts import HostPort
from dafka_kafka.api import Api
from dafka_kafka.gateway import Gateway
from dafka_kafka.requests import parse_head
from dafka_kafka.users import Rights
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


def ask_as(gateway: Gateway, user: Permissions, api: Api, version: int, /, **fields: Any) -> Any:
    """Return the response to an authenticated user; None if there is none."""
    asked = request(api, **fields)
    asked.with_header(correlation_id=7, client_id="test")
    octets = answer_to(gateway, user, asked.encode(version=version, header=True))
    if not octets:
        return None
    return named(api, "Response").decode(octets[4:], version=version, header=True)


def answer_to(gateway: Gateway, user: Permissions, octets: bytes) -> bytes:
    """Return the encoded answer to a user's encoded request."""
    requests, asked = gateway.server.requests, memoryview(octets)
    head = parse_head(asked, requests.apis)
    sasl: Any = SimpleNamespace(available=lambda _, apis: apis, rights=Rights(user))
    work = requests.answer(head, asked, "10.0.0.1", lambda: False, sasl)
    return b"".join(asyncio.run_coroutine_threadsafe(work, gateway.server.loop).result(60))
