"""Peers made of bare sockets, for what a node of ours would never do or say."""

import threading
import time
import uuid
from collections.abc import Sequence
from typing import TypeVar

import zmq

from dafka_core.config.node_options import C_LAYOUT, parse_towers
from dafka_core.errors import ProtocolError
from dafka_core.protocol.beacons import NodeBeacon, decode_tower_beacon, encode_node_beacon
from dafka_core.protocol.codec import decode, encode
from dafka_core.protocol.messages import Message
from dafka_core.security.key_files import KeyPair
from dafka_core.security.permissions import address_prefix
from dafka_core.system.closing import Closing
from dafka_core.testing import wait_until

# Generous: only a failing test waits this long, and machines may be busy.
PATIENCE_S = 30.0

ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}

BEACON_INTERVAL_S = 0.1

M = TypeVar("M")


def new_address() -> str:
    return uuid.uuid4().hex.upper()


class RawPeer(Closing):
    """Joins the mesh as any node does; sends and records whatever a test wants.

    ``heard`` has the frames of every message, ``subscribed`` every subscription to this peer.
    """

    def __init__(
        self,
        tower: str,
        *subscriptions: bytes,
        host: str = "127.0.0.1",
        key: KeyPair | None = None,
        tower_key: bytes = b"",
        address: str = "",
    ) -> None:
        own = address_prefix(key.public) if key else ""
        self.address = address or own + new_address()[len(own) :]
        self._key = key
        self.heard: list[list[bytes]] = []
        self.subscribed: list[bytes] = []
        self.beacons: list[list[bytes]] = []
        self._host = host
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.set(zmq.XPUB_VERBOSE, 1)
        self._sub = self._context.socket(zmq.SUB)
        for socket in (self._pub, self._sub):
            socket.set_hwm(0)  # nothing that a test sends is dropped
        if key is not None:
            self._pub.curve_server, self._pub.curve_secretkey = 1, key.secret
        self._port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        for prefix in subscriptions:
            self._sub.subscribe(prefix)
        self._beacon_pub = self._context.socket(zmq.PUB)
        self._beacon_sub = self._context.socket(zmq.SUB)
        self._beacon_sub.subscribe(b"")
        for socket in (self._beacon_pub, self._beacon_sub):
            self._aim(socket, tower_key)
        for at in parse_towers(tower):
            self._beacon_pub.connect(at.sub_endpoint)
            self._beacon_sub.connect(at.pub_endpoint)
        self._peers: set[str] = set()
        self._nodes: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _aim(self, socket: zmq.Socket[bytes], server: bytes) -> None:
        if self._key is not None:
            socket.curve_publickey, socket.curve_secretkey = self._key
            socket.curve_serverkey = server

    def send(self, message: Message, layout: str = C_LAYOUT) -> None:
        self.send_frames(encode(message, layout))

    def send_frames(self, frames: Sequence[bytes]) -> None:
        with self._lock:
            self._pub.send_multipart(list(frames))

    def send_beacon(self, frames: Sequence[bytes]) -> None:
        """Anything, to the towers."""
        with self._lock:
            self._beacon_pub.send_multipart(list(frames))

    def subscribe(self, prefix: bytes) -> None:
        with self._lock:
            self._sub.subscribe(prefix)

    def messages(self, kind: type[M]) -> list[M]:
        return [message for message in map(_decoded, list(self.heard)) if type(message) is kind]

    def wait_for(self, kind: type[M], count: int = 1) -> list[M]:
        wait_until(lambda: len(self.messages(kind)) >= count, f"{count} {kind.__name__}")
        return self.messages(kind)

    def wait_until_subscribed(self, prefix: bytes) -> None:
        """Waits for a peer that subscribes so; it receives what is sent from now on."""
        wait_until(lambda: b"\x01" + prefix in self.subscribed, f"a subscription to {prefix!r}")

    def wait_until_met(self, node: str) -> None:
        """The peer has heard of a node, and begun to connect to it."""
        wait_until(lambda: node in self._nodes, f"a beacon of {node}")

    def forget_heard(self) -> None:
        with self._lock:
            self.heard.clear()

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._context.destroy(linger=0)

    def _run(self) -> None:
        due = 0.0
        while not self._ended.wait(0.002):
            with self._lock:
                if time.monotonic() >= due:
                    due = time.monotonic() + BEACON_INTERVAL_S
                    beacon = NodeBeacon(self.address, self._host, self._port)
                    self._beacon_pub.send_multipart(encode_node_beacon(beacon))
                self._take_beacons()
                self.subscribed.extend(frames[0] for frames in _received(self._pub))
                self.heard.extend(_received(self._sub))

    def _take_beacons(self) -> None:
        for frames in _received(self._beacon_sub):
            self.beacons.append(frames)
            try:
                beacon = decode_tower_beacon(frames[:3])
            except ProtocolError:
                continue
            self._aim(self._sub, frames[-1])
            if beacon.node != self.address and beacon.endpoint not in self._peers:
                self._peers.add(beacon.endpoint)
                self._sub.connect(beacon.endpoint)
                self._nodes.add(beacon.node)


def _received(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    try:
        while True:
            found.append(socket.recv_multipart(zmq.NOBLOCK))
    except zmq.Again:
        return found


def _decoded(frames: list[bytes]) -> Message | None:
    try:
        return decode(frames)
    except ProtocolError:
        return None
