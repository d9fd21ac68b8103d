"""Distant stores beside near ones: an answer is complete."""

from math import inf

import pytest

from dafka_core.protocol.consumer_role import ReaderRole
from dafka_core.protocol.messages import HeadsQuery
from tests.simulation.cluster import Cluster, Roles
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.scripts.script import calm_shape
from tests.simulation.shape import OURS

MOST_S = 40.0


def far_store(round_trip_s: float) -> Cluster:
    """Return two stores that do not reach each other; the far one alone has all records."""
    cluster = Cluster(calm_shape(stores=2, producers=1, records=40, faults_s=4.0), Roles(), None)
    world, network = cluster.world, cluster.network
    near, far = cluster.stores
    (producer,) = cluster.producers
    for other in (far.name, producer.name):
        for pair in ((near.name, other), (other, near.name)):
            network.blocks[pair] = (inf, "lost")
    network.far_s[far.name] = round_trip_s / 2
    while not (producer.done and sum(far.disk.ends().values()) == 40):
        world.run_until(world.now + 1)
    world.run_until(world.now + 15)
    return cluster


@pytest.mark.parametrize(
    ("round_trip_ms", "most_s"), [(0, 0.5), (20, 0.5), (60, 0.7), (200, 1.6), (500, 3.5)]
)
def test_what_only_a_far_store_has_is_found(round_trip_ms: int, most_s: float) -> None:
    """By the first question of a reader that has just started."""
    cluster = far_store(round_trip_ms / 1000)
    world, begun_s = cluster.world, cluster.world.now
    role = ReaderRole(world.address())
    mesh = SimulatedMesh(
        cluster.network, cluster.checkers, "reader", role, OURS, on_round=lambda now: False
    )
    while not mesh.peers.table.announced:
        world.run_until(world.now + 0.01)
    question, messages = role.directory.ask(world.now, HeadsQuery, ())
    mesh.send(messages)
    while not question.answered:
        assert world.now < begun_s + MOST_S
        world.run_until(world.now + 0.01)
    assert sum(info.end for info in question.heads.values()) == 40
    assert world.now - begun_s < most_s
    assert not role.directory.given_up
