"""Applications that publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreQuery
from dafka_core.records import TopicPartition
from dafka_core.values import Values
from tests.simulation.hosts import Host
from tests.simulation.mesh import SimulatedMesh

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

RESUME_ROUNDS = 3
RESUME_TIMEOUT_S = 10.0
"""As ``nodes/producer.py`` has them."""


class ProducerHost(Host):
    """An application that says its records, from a source that it can read again.

    So the record at an offset is the same in each of its lives.
    """

    def __init__(self, cluster: Cluster, name: str, style: str, topic: str, *, leaves: bool):
        super().__init__(cluster, name, style)
        self.topic = topic
        self.address = self.world.address()
        self.leaves = leaves
        self.target = self.shape.records
        self._role = cast("ProducerRole", None)
        self._question: StoreQuery | None = None
        self._deadline_s = 0.0
        self._asked_at = 0.0
        self._asked_end = 0
        self._resumed_at = 0

    @property
    def tp(self) -> TopicPartition:
        """Its partition."""
        return TopicPartition(self.topic, self.address)

    @property
    def end(self) -> int:
        """How far it has published in this life; 0 if it is not there."""
        return self._role.next_offset if self.up and self._role.directory is None else 0

    @property
    def done(self) -> bool:
        """Everything is acknowledged, or it is gone."""
        if self.gone:
            return True
        return self.up and self._role.directory is None and self._role.durable >= self.target

    def _start(self) -> SimulatedMesh:
        role = self.cluster.roles.producer(
            self.tp,
            acks=self.shape.acks,
            head_interval_s=1.0,
            resume=self.lives > 1,
        )
        self._role = role
        mesh = self._new_mesh(role, self._on_round, apart=self.shape.acks > 1)
        if self.lives > 1:
            mesh.call_soon(self._ask)
        else:
            self._publish_later(mesh)
        return mesh

    def _crashed(self) -> None:
        if self.leaves:
            self.gone = True

    def _ask(self, now: float) -> list[Outgoing]:
        assert self._role.directory is not None
        self._deadline_s = now + RESUME_TIMEOUT_S
        self._asked_at = now
        self._asked_end = max(store.disk.end(self.tp) for store in self.cluster.stores)
        self._question, messages = self._role.directory.ask_heads(
            now, [self.topic], rounds=RESUME_ROUNDS
        )
        return messages

    def _on_round(self, now: float) -> bool:
        role, mesh = self._role, self.mesh
        if mesh is None:
            return False
        if role.directory is not None:
            self._resume(now, mesh)
            return False
        if role.durable > self._resumed_at:  # what an earlier life has left is not its own
            self.checkers.on_durable(self.name, self.tp, role.durable, self.shape.acks)
        if self.leaves and role.durable >= self.target:
            self.world.note(self.name, "is done, and leaves")
            self.gone = True
            # Producers linger: what they have sent is under way already.
            self.world.after(0, self.crash)
        return False

    def _resume(self, now: float, mesh: SimulatedMesh) -> None:
        question = self._question
        if question is not None and question.answered:
            _, end = question.heads.get(self.tp, (0, 0))
            asked_end = self._asked_end if self.cluster.reaches_all(self._asked_at) else None
            self.checkers.on_resumed(self.name, end, asked_end)
            self.world.note(self.name, f"resumes at {end}")
            self._resumed_at = end
            self._role.resume_at(end)
            self._publish_later(mesh)
        elif question is not None and now > self._deadline_s:
            # NoStoreError: the application tries again.
            self.world.note(self.name, "finds no store")
            self.world.after(0, self.give_up)

    def _publish_later(self, mesh: SimulatedMesh) -> None:
        pause_s = self.cluster.pause_s(self.target)

        def publish() -> None:
            if mesh.alive:
                mesh.call_soon(self._publish)
                self._publish_later(mesh)

        if self._role.next_offset < self.target:
            self.world.after(pause_s, publish)

    def _publish(self, now: float) -> list[Outgoing]:
        role = self._role
        room = self.shape.max_unacked - role.unacknowledged
        count = min(self.world.random.randint(1, self.shape.burst), room)
        count = min(count, self.target - role.next_offset)
        role.hurry = role.hurry or self.world.chance(self.shape.hurry)
        if count <= 0:
            return []
        values = self.cluster.values(self.address, role.next_offset, count)
        self.checkers.publish(self.tp, role.next_offset, values)
        return role.publish(now, Values.of(values))
