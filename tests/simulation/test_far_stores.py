"""Distant stores beside near ones: an answer is complete, or names the missing stores."""

from __future__ import annotations

from math import inf

import pytest

from dafka_core.protocol.messages import HeadsQuery
from dafka_core.protocol.reader_role import ReaderRole
from dafka_core.protocol.store_directory import GivenUp, Question
from tests.simulation.cluster import Cluster, Roles
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.scripts.script import calm_shape
from tests.simulation.shape import OURS
from tests.simulation.world import SimulationError

MOST_S = 40.0


class Far:
    """Two stores that do not reach each other; the far one alone has all records."""

    def __init__(self, round_trip_s: float) -> None:
        shape = calm_shape(stores=2, producers=1, records=40, faults_s=4.0)
        self.cluster = Cluster(shape, Roles(), None)
        self.world, self.network = self.cluster.world, self.cluster.network
        self.near, self.far = self.cluster.stores
        (producer,) = self.cluster.producers
        for other in (self.far.name, producer.name):
            self.separate(self.near.name, other)
        self.network.far_s[self.far.name] = round_trip_s / 2
        while not (producer.done and sum(self.far.disk.ends().values()) == 40):
            self.world.run_until(self.world.now + 1)
        self.world.run_until(self.world.now + 15)

    def separate(self, one: str, other: str) -> None:
        """Nothing passes between two machines."""
        for pair in ((one, other), (other, one)):
            self.network.blocks[pair] = (inf, "lost")

    def look(self, role: ReaderRole) -> tuple[Question, float]:
        """The first question of a reader that has just started, and how long it took."""
        mesh = SimulatedMesh(
            self.network, self.cluster.checkers, "reader", role, OURS, on_round=lambda now: False
        )
        begun_s = self.world.now
        questions: list[Question] = []
        while not (questions and questions[0].answered):
            if self.world.now > begun_s + MOST_S:
                raise SimulationError("the question was not answered")
            self.world.run_until(self.world.now + 0.01)
            if not questions and mesh.peers.table.announced:
                question, messages = role.directory.ask(self.world.now, HeadsQuery, ())
                questions.append(question)
                mesh.send(messages)
        return questions[0], self.world.now - begun_s

    def start_reader(self) -> ReaderRole:
        """A reader that is about to start."""
        return ReaderRole(self.world.address())


@pytest.mark.parametrize(
    ("round_trip_ms", "most_s"), [(0, 0.5), (20, 0.5), (60, 0.7), (200, 1.6), (500, 3.5)]
)
def test_what_only_a_far_store_has_is_found(round_trip_ms: int, most_s: float) -> None:
    far = Far(round_trip_ms / 1000)
    role = far.start_reader()
    question, took_s = far.look(role)
    assert sum(info.end for info in question.heads.values()) == 40
    assert took_s < most_s
    assert not role.directory.given_up


def test_a_store_that_cannot_connect_costs_three_seconds_once_and_is_named() -> None:
    far = Far(0.0)
    far.separate("reader", far.far.name)
    role = far.start_reader()
    question, took_s = far.look(role)
    assert question.heads == {}
    assert 3 <= took_s < 3.5
    (outcome,) = role.directory.given_up
    assert outcome == GivenUp(far.far.address, outcome.endpoint, outcome.waited_s, True)
    assert outcome.endpoint.startswith(f"tcp://{far.far.name}:")
    far.world.run_until(far.world.now + 5)
    again, _ = role.directory.ask(far.world.now, HeadsQuery, ())
    far.world.run_until(far.world.now + 0.1)
    role.on_tick(far.world.now)
    assert role.directory.awaited_stores == ()
    assert again.heads == {}


def test_a_store_that_is_away_is_not_waited_for() -> None:
    far = Far(0.0)
    far.far.crash()
    far.world.run_until(far.world.now + 20)
    role = far.start_reader()
    question, took_s = far.look(role)
    assert question.heads == {}
    assert took_s < 0.5
