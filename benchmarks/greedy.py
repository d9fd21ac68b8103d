"""Greedy peers, each in a process of its own: ``python -m benchmarks.greedy KIND TOWER STORE``.

``STORE`` is a store's address. A kind is a function that runs until it is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import socket as sockets
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Final

import zmq

from benchmarks.processes import started
from dafka_core.config.node_options import C_LAYOUT, parse_towers
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.sockets import send_packed
from dafka_core.protocol.beacons import NodeBeacon, encode_node_beacon
from dafka_core.protocol.codec import encode, subscription
from dafka_core.protocol.messages import DirectRecord, Fetch, GetHeads, HeadsQuery, TimesQuery
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.system.files import raise_open_files_limit

CONNECTIONS: Final = 2_000
BEACON_INTERVAL_S: Final = 0.2
TOPIC: Final = "flood"


@contextlib.contextmanager
def beside(kind: str, tower: str, store: str) -> Iterator[None]:
    """Run a greedy peer."""
    with started([sys.executable, "-m", "benchmarks.greedy", kind, tower, store]):
        yield


class Peer:
    """Joins the mesh as a bare node that sends anything."""

    def __init__(self, tower: str) -> None:
        self.address = uuid.uuid4().hex.upper()
        self._context = zmq.Context()
        self.pub = self._context.socket(zmq.XPUB)
        port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.beacon = encode_node_beacon(NodeBeacon(self.address, "127.0.0.1", port))
        self.tower = self._context.socket(zmq.PUB)
        for each in parse_towers(tower):
            self.tower.connect(each.sub_endpoint)
        self._due = 0.0

    def is_there(self) -> bool:
        """Send the beacon if due; always true, for a loop."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + BEACON_INTERVAL_S
            self.tower.send_multipart(self.beacon)
        return True

    def wait_for_a_peer(self) -> None:
        """Wait for the first subscriber."""
        while self.is_there() and not self.pub.poll(50):
            pass

    def sub(self) -> zmq.Socket[bytes]:
        """Return a SUB socket."""
        return self._context.socket(zmq.SUB)


def records(tower: str, store: str) -> None:
    """Publish to its own partition without waiting for acknowledgements."""
    peer = Peer(tower)
    peer.wait_for_a_peer()
    begun()
    values = [b"%0100d" % number for number in range(300)]
    for offset in itertools.count(0, len(values)):
        tp = TopicPartition(TOPIC, peer.address)
        send_packed(peer.pub, OutgoingBatch(RecordBatch.of(tp, offset, values)))
        peer.is_there()


def requests(tower: str, store: str) -> None:
    """Request everything, each time under another name."""
    peer = Peer(tower)
    peer.wait_for_a_peer()
    begun()
    for number in itertools.count():
        name = f"{number % 10_000:032X}"
        for message in (
            Fetch(name, TOPIC, peer.address, 0, 1_000),
            GetHeads("", name),
            HeadsQuery(name, number & 0xFFFF, ()),
            TimesQuery(name, number & 0xFFFF, TOPIC, peer.address, 0, 1_000),
        ):
            peer.pub.send_multipart(encode(message, C_LAYOUT))
        peer.is_there()


def beacons(tower: str, store: str) -> None:
    """Announce itself to the towers without pause, with invalid beacons in between."""
    peer = Peer(tower)
    peer.wait_for_a_peer()
    begun()
    while True:
        peer.tower.send_multipart(peer.beacon)
        peer.tower.send_multipart([b"no", b"beacon", b"at all"])


def subscriptions(tower: str, store: str) -> None:
    """Subscribe to one name after the other, and unsubscribe."""
    socket = Peer(tower).sub()
    socket.connect(store)
    begun()
    for number in itertools.count():
        prefix = subscription(DirectRecord, f"{number:032X}")
        socket.subscribe(prefix)
        if number >= 1_000:
            socket.unsubscribe(subscription(DirectRecord, f"{number - 1_000:032X}"))


def connections(tower: str, store: str) -> None:
    """Open connections that send a byte a second; reopen closed ones."""
    raise_open_files_limit()
    host, _, port = store.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    opened: list[tuple[sockets.socket, Iterator[int]]] = []
    begun()
    while True:
        due = time.monotonic() + 1
        while len(opened) < CONNECTIONS:
            made = sockets.socket()
            made.setblocking(False)
            made.connect_ex((host, int(port)))
            opened.append((made, iter(greeting)))
        for each in [*opened]:
            made, rest = each
            try:
                made.send(bytes([next(rest, 0)]))
            except BlockingIOError:
                continue
            except OSError:
                made.close()
                opened.remove(each)
        time.sleep(max(0.0, due - time.monotonic()))


def begun() -> None:
    """Report to the parent."""
    print("begun", flush=True)


KINDS: Final = {
    each.__name__: each for each in (records, requests, beacons, subscriptions, connections)
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
