"""Nodes in the mesh tell who is there and what has passed; towers and gateways their part."""

from __future__ import annotations

from dafka_core.kafka import gateway_metrics
from dafka_core.metrics import declarations as d
from dafka_core.metrics.mesh_readings import of_consumer, of_producer, of_tower
from dafka_core.nodes.refused_frames import REASONS
from dafka_core.testing import wait_until
from tests.integration.metrics.conftest import Nodes, told


def test_each_node_tells_of_its_peers_by_kind(nodes: Nodes) -> None:
    def peers() -> list[int]:
        found = told(of_consumer(nodes.consumer))
        return [found[d.PEERS, (kind,)] for kind in ("store", "producer", "other")]

    wait_until(lambda: peers() == [1, 1, 0])  # once they have connected
    found = told(of_consumer(nodes.consumer))
    assert found[d.TOWER_SILENT, (nodes.tower.tower,)] >= 0
    assert {labels[0] for metric, labels in found if metric is d.FRAMES_REFUSED} == {*REASONS}


def test_a_producer_tells_how_far_it_is(nodes: Nodes) -> None:
    found = {metric: value for (metric, _), value in told(of_producer(nodes.producer)).items()}
    assert found[d.PUBLISHED] == found[d.ACKNOWLEDGED] == 1_000
    assert found[d.UNACKED_BYTES] == found[d.FENCED] == 0


def test_towers_and_gateways_tell_of_their_clients(nodes: Nodes) -> None:
    wait_until(lambda: told(of_tower(nodes.tower))[d.TOWER_NODES, ()] == 3)
    found = told(of_tower(nodes.tower))
    assert found[d.BEACONS, ()] >= 3
    found = told(nodes.gateway.samples())
    assert found[gateway_metrics.CONNECTIONS, ()] == 0
    assert found[gateway_metrics.ROOM, ()] > 0
