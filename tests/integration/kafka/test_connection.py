"""Requests and responses of one connection."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest

from dafka_kafka.gateway import Gateway

ASK = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def received(client: socket.socket, count: int) -> bytes:
    octets = b""
    while len(octets) < count and (more := client.recv(count - len(octets))):
        octets += more
    return octets


def response(client: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", received(client, 4))
    return received(client, size)


def test_requests_are_answered_in_their_order(gateway: Gateway) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        client.sendall(b"".join(struct.pack(">ihhih", 10, 18, 0, n, -1) for n in range(5_000)))
        for number in range(5_000):
            assert response(client)[:4] == struct.pack(">i", number)


def test_a_request_may_come_octet_by_octet(gateway: Gateway) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for octet in ASK * 2:
            client.sendall(bytes([octet]))
        assert response(client) == response(client)


def test_a_request_of_no_size_ends_its_connection_and_no_other(gateway: Gateway) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as good:
        for size in (0, -1, 2**31 - 1):
            with socket.create_connection(gateway.listens, timeout=30) as client:
                client.sendall(struct.pack(">i", size))
                assert received(client, 1) == b""
        good.sendall(ASK)
        assert response(good)
    assert gateway.invalid_count == 3


@pytest.mark.parametrize(
    ("octets", "said"),
    [(b"\x16\x03\x01\x02\x00\x01", "TLS, for which"), (b"GET / HTTP/1.1\r\n", "HTTP, and this")],
)
def test_another_protocol_is_named(
    octets: bytes, said: str, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(gateway.listens, timeout=30) as client:
        client.sendall(octets)
        with suppress(ConnectionResetError):
            assert received(client, 1) == b""
    assert said in caplog.text
