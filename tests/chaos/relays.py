"""Two simulated machines: a tower for each, and relays for all connections between them.

Both towers pass on a node's beacon. That of the other machine names a relay instead of the node, so
that connections through it can be cut.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import zmq

from dafka_core.protocol.beacons import (
    WELCOME,
    NodeBeacon,
    TowerBeacon,
    decode_node_beacon,
    encode_tower_beacon,
    endpoint_of,
)
from tests.chaos.networks import MACHINES

HOST = "127.0.0.1"
PIECE_BYTES = 1 << 16


class Relays:
    """The network; see ``networks.Network``."""

    cuts = ("connections reset", "connections stalled")

    def __init__(self, stack: contextlib.ExitStack, log: Path) -> None:
        self._relays: dict[str, _Relay] = {}
        self._link = _Link()
        self._context = zmq.Context()
        self._sides = [_Side(self._context) for _ in range(MACHINES)]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        stack.callback(self._close)
        self._thread.start()

    def prefix(self, machine: int) -> Sequence[str]:
        return ()

    def host(self, machine: int) -> str:
        return HOST

    def tower(self, machine: int) -> str:
        return self._sides[machine].address

    def cut(self, kind: str) -> None:
        self._link.cut(reset=kind == self.cuts[0])

    def join(self) -> None:
        self._link.join()

    def _close(self) -> None:
        self._done.set()
        self._thread.join()
        self._link.join()
        for relay in self._relays.values():
            relay.close()
        self._link.close()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        for side in self._sides:
            poller.register(side.xsub, zmq.POLLIN)
            poller.register(side.xpub, zmq.POLLIN)
        while not self._done.is_set():
            if not poller.poll(50):
                continue
            for side, other in (self._sides, self._sides[::-1]):
                side.pass_subscriptions()
                for beacon in side.beacons():
                    side.announce(beacon.node, endpoint_of(beacon, HOST))
                    relay = self._relays.get(beacon.node)
                    if relay is None or relay.target != (beacon.host, beacon.port):
                        relay = _Relay((beacon.host, beacon.port), self._link)
                        self._relays[beacon.node] = relay
                    if self._link.joined:
                        other.announce(beacon.node, f"tcp://{HOST}:{relay.port}")


class _Side:
    """One machine's tower."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.xsub, self.xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
        self.xpub.set(zmq.XPUB_WELCOME_MSG, WELCOME)
        ports = [each.bind_to_random_port(f"tcp://{HOST}") for each in (self.xsub, self.xpub)]
        self.address = f"{HOST}:{ports[0]}:{ports[1]}"

    def pass_subscriptions(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                frame = self.xpub.recv(zmq.NOBLOCK)
                if frame[1:2] != WELCOME:
                    self.xsub.send(frame)

    def beacons(self) -> list[NodeBeacon]:
        found = []
        with contextlib.suppress(zmq.Again):
            while True:
                found.append(decode_node_beacon(self.xsub.recv_multipart(zmq.NOBLOCK)))
        return found

    def announce(self, node: str, endpoint: str) -> None:
        self.xpub.send_multipart(encode_tower_beacon(TowerBeacon(node, endpoint)))


class _Link:
    """The switch, and all connections through it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._refusing = False
        self._sockets: set[socket.socket] = set()

    @property
    def joined(self) -> bool:
        return self._open.is_set()

    def wait(self) -> None:
        self._open.wait()

    def cut(self, *, reset: bool) -> None:
        self._open.clear()
        self._refusing = reset
        if reset:
            self.close()

    def join(self) -> None:
        self._refusing = False
        self._open.set()

    def add(self, *ends: socket.socket) -> bool:
        """Accept a connection; return False to refuse it."""
        with self._lock:
            self._sockets.update(ends)
        return not self._refusing

    def close(self) -> None:
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._sockets.clear()


class _Relay:
    """A port that leads to a node of the other machine."""

    def __init__(self, target: tuple[str, int], link: _Link) -> None:
        self.target = target
        self._link = link
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _start(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if not self._link.add(near):
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self.target, 5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._link.add(far)
                self._start(self._pump, near, far)
                self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self._link.wait()
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
