"""Requests in any version, over a connection or as a user's."""

import asyncio
import socket
import ssl
from types import SimpleNamespace
from typing import Any

from dafka_core.security.permissions import Permissions
from dafka_core.system.closing import Closing
from dafka_core.system.hosts import HostPort
from dafka_kafka.api import Api
from dafka_kafka.gateway import Gateway
from dafka_kafka.server import parse_head
from dafka_kafka.users import Rights
from tests.unit.kafka.messages import NEWEST, named, request, versions


class Connection(Closing):
    """A connection, with responses in the order of its requests; with a context by TLS."""

    def __init__(self, where: HostPort, tls: ssl.SSLContext | None = None) -> None:
        client = socket.create_connection(where, timeout=60)
        self.socket = tls.wrap_socket(client, server_hostname=where.host) if tls else client
        self._reader = self.socket.makefile("rb")

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def send_request(self, api: Api | str, version: int, /, **fields: Any) -> None:
        """Send a request without waiting."""
        self.socket.sendall(_encoded(api, version, framed=True, **fields))

    def receive_response(self, api: Api | str, version: int) -> Any:
        """Return the next response; raise EOFError if the server closes the connection instead."""
        size = self._read(4)
        if not size:
            raise EOFError
        octets = self._read(int.from_bytes(size, "big"))
        return named(api, "Response").decode(octets, version=version, header=True)

    def is_ended(self) -> bool:
        """Return whether the server closes the connection without a response."""
        return self._read(1) == b""

    def _read(self, count: int) -> bytes:
        try:
            return self._reader.read(count)
        except ConnectionError:
            return b""


def tell(gateway: Gateway, api: Api, version: int = NEWEST, /, **fields: Any) -> Any:
    """Return the gateway's response, decoded in the client's version."""
    return told(gateway.listens, api, versions(api)[version], **fields)


def told(where: HostPort, api: Api | str, version: int, /, **fields: Any) -> Any:
    """Return the server's response; raise EOFError if it closes the connection instead."""
    with Connection(where) as connection:
        connection.send_request(api, version, **fields)
        return connection.receive_response(api, version)


def ask_as(gateway: Gateway, user: Permissions, api: Api, version: int, /, **fields: Any) -> Any:
    """Return the response to an authenticated user; None if there is none."""
    octets = answer_to(gateway, user, _encoded(api, version, **fields))
    if not octets:
        return None
    return named(api, "Response").decode(octets[4:], version=version, header=True)


def _encoded(api: Api | str, version: int, /, *, framed: bool = False, **fields: Any) -> bytes:
    asked = request(api, **fields)
    asked.with_header(correlation_id=7, client_id="test")
    return bytes(asked.encode(version=version, header=True, framed=framed))


def answer_to(gateway: Gateway, user: Permissions, octets: bytes) -> bytes:
    """Return the encoded answer to a user's encoded request."""
    requests, asked = gateway.server.requests, memoryview(octets)
    head = parse_head(asked, requests.apis)
    sasl: Any = SimpleNamespace(available=lambda _, apis: apis, rights=Rights(user))
    work = requests.answer(head, asked, "10.0.0.1", lambda: False, sasl)
    return bytes(asyncio.run_coroutine_threadsafe(work, gateway.server.loop).result(60))
