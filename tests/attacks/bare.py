"""Peers without ZeroMQ and keys, which send what ZeroMQ would not: ZMTP 3.0 on bare sockets."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator

import zmq

from dafka_core.protocol.beacons import NodeBeacon, decode_tower_beacon, encode_node_beacon
from tests.integration.nodes.peers import PATIENCE_S, new_address

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)

MORE, LAST = 1, 0


def frame(content: bytes, flags: int) -> bytes:
    """One frame as it is on the wire."""
    if len(content) < 256:
        return bytes([flags, len(content)]) + content
    return bytes([flags | 2]) + len(content).to_bytes(8, "big") + content


def subscriptions(size_bytes: int) -> Iterator[bytes]:
    """Subscriptions to topics of this length, all different, without end."""
    while True:
        digits = os.urandom(1 << 16).hex().encode()
        starts = range(0, len(digits) - size_bytes, size_bytes)
        yield b"".join(frame(b"\1M" + digits[at : at + size_bytes], LAST) for at in starts)


def connected(host: str, port: int, kind: bytes) -> socket.socket:
    """A connection to a node or a tower, as a socket of this kind."""
    return _greeted(socket.create_connection((host, port), PATIENCE_S), kind)


def _greeted(peer: socket.socket, kind: bytes) -> socket.socket:
    peer.settimeout(PATIENCE_S)
    ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    peer.sendall(_GREETING + bytes([4, len(ready)]) + ready)
    found = b""
    while len(found) < 66 or len(found) < 66 + found[65]:
        part = peer.recv(4_096)
        assert part, "the connection was closed during the handshake"
        found += part
    return peer


def send_until_ended(peer: socket.socket, parts: Iterable[bytes]) -> int:
    """Send until the other end closes the connection; return the number of bytes sent.

    Raises:
        AssertionError: it was not closed.
    """
    sent, end = 0, time.monotonic() + PATIENCE_S
    peer.setblocking(False)
    with peer, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        for part in parts:
            rest = memoryview(part)
            while rest:
                assert time.monotonic() < end, f"{sent} bytes were taken"
                readable, writable, _ = select.select([peer], [peer], [], 1)
                # The kernel may keep what is sent after the end, and does not say so.
                if readable and not peer.recv(4_096):
                    return sent
                if writable:
                    count = peer.send(rest)
                    rest, sent = rest[count:], sent + count
    return sent


def endpoint_of_node(tower: str) -> tuple[str, int]:
    """Return the endpoint of a tower's only node."""
    host, _, port = tower.split(":")
    with zmq.Context() as context, context.socket(zmq.SUB) as beacons:
        beacons.set(zmq.RCVTIMEO, int(1_000 * PATIENCE_S))
        beacons.subscribe(b"B")
        beacons.connect(f"tcp://{host}:{port}")
        found = decode_tower_beacon(beacons.recv_multipart()).endpoint
    host, _, port = found.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def announced(tower: str) -> Iterator[socket.socket]:
    """A connection that a node makes to a peer that is announced by this tower."""
    host, port, _ = tower.split(":")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        zmq.Context() as context,
        context.socket(zmq.PUB) as beacons,
    ):
        server.settimeout(0.1)
        beacons.set(zmq.LINGER, 0)
        beacons.connect(f"tcp://{host}:{port}")
        beacon = encode_node_beacon(NodeBeacon(new_address(), *server.getsockname()))
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            beacons.send_multipart(beacon)
            with contextlib.suppress(TimeoutError):
                peer, _ = server.accept()
                yield _greeted(peer, b"XPUB")
                return
    raise AssertionError("no node has connected")
