"""The peers of a simulated node: what ``nodes/peers.py`` does with sockets."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dafka_core.errors import ProtocolError
from dafka_core.nodes.peers import FIRST_BEACONS_INTERVAL_S
from dafka_core.protocol.beacons import (
    ANSWER,
    UNKNOWN_KIND,
    WELCOME,
    NodeBeacon,
    PeerTable,
    encode_node_beacon,
)
from dafka_core.protocol.role import PeerNews

if TYPE_CHECKING:
    from tests.simulation.mesh import SimulatedMesh


class SimulatedPeers:
    """Takes beacons and sends them, connects and disconnects."""

    def __init__(self, mesh: SimulatedMesh, own: NodeBeacon) -> None:
        self._mesh = mesh
        self._own = own
        expiry_s = 4 * mesh.network.shape.beacon_s
        self.table = PeerTable(own.node, own.port, host=own.host, expiry_s=expiry_s)
        self.due = mesh.world.now  # when to send a beacon next
        self._came: deque[list[bytes]] = deque()
        self._connected = False

    def add(self, frames: list[bytes]) -> None:
        self._came.append(frames)

    def take(self, now: float) -> None:
        mesh = self._mesh
        while self._came:
            frames = self._came.popleft()
            if frames == [WELCOME]:
                self._connected = True
                self.table.announced = False
                self.due = now
                continue
            try:
                beacon, is_other_key = mesh.security.announced(now, frames)
            except ProtocolError:
                mesh.world.refused["beacon"] += 1
                continue
            if is_other_key and beacon.endpoint in self.table:
                mesh.network.renew(mesh, beacon.endpoint)
            if self.table.hear(now, beacon):
                mesh.learn(PeerNews(beacon.node, beacon.endpoint))
                mesh.network.connect(mesh, beacon.endpoint)
                if beacon.kind in ("", UNKNOWN_KIND) or not self._own.kind:
                    self.due = now
                elif beacon.kind != ANSWER:
                    mesh.network.beacon(
                        mesh, encode_node_beacon(self._own._replace(to=beacon.node))
                    )
            elif beacon.endpoint not in self.table:
                mesh.security.claims.forget(beacon.endpoint)

    def keep(self, now: float) -> None:
        """Send a beacon when it is due, and drop silent peers."""
        mesh = self._mesh
        if now < self.due:
            return
        interval_s = mesh.network.shape.beacon_s
        if not self.table.announced and self._connected:
            interval_s = min(interval_s, FIRST_BEACONS_INTERVAL_S)
        self.due = now + interval_s
        mesh.network.beacon(mesh, encode_node_beacon(self._own))
        silent = self.table.expire(now)
        for _, endpoint in silent:
            mesh.network.disconnect(mesh, endpoint)
            mesh.security.claims.forget(endpoint)
        lost, self.table.replaced[:] = [*(node for node, _ in silent), *self.table.replaced], []
        for node in lost:
            if node not in self.table.nodes():
                mesh.role.on_peer(now, PeerNews(node, is_lost=True))
