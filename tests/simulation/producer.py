"""Applications that publish; their producers live several times, and sometimes two at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dafka_core.model.epochs import LIFE_ID_BITS
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Values
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.role import Outgoing
from dafka_core.security.permissions import PRODUCE
from tests.simulation.hosts import Host
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.shape import SINGLE

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

RESUME_TIMEOUT_S = 10.0


@dataclass(eq=False)
class Life:
    """One producer of a host."""

    role: ProducerRole
    asked_at: float
    asked_end: int  # the end at the store with the most records then
    mesh: SimulatedMesh | None = None
    resumed_at: int | None = None


class ProducerHost(Host):
    """An application that publishes records, in each of its lives different ones.

    With C nodes, which do not transfer the life of a record, they are equal in each life.
    """

    roles = (PRODUCE,)

    def __init__(self, cluster: Cluster, name: str, style: str, topic: str, *, leaves: bool):
        super().__init__(cluster, name, style, produce=(topic,))
        self.topic = topic
        self.address = self.new_address()
        self.leaves = leaves
        self.target = self.shape.records
        self._life: Life | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.address)

    @property
    def end(self) -> int:
        """Return the end of its records in this life; 0 while it does not run."""
        life = self._life
        return life.role.next_offset if self.up and life and not life.role.takeover else 0

    @property
    def done(self) -> bool:
        """Everything is acknowledged, or it is gone."""
        life = self._life
        if self.gone or life is None:
            return self.gone
        return self.up and life.role.takeover is None and life.role.acknowledged >= self.target

    def start_another(self) -> None:
        """Start the producer again, while the running one continues."""
        if self.mesh is not None:
            self.mesh = None
            self.start()

    def _start(self) -> SimulatedMesh:
        role = self.cluster.roles.producer(
            self.tp,
            acks=self.shape.acks,
            head_interval_s=1.0,
            life_id=self.world.random.getrandbits(LIFE_ID_BITS),
            resume=self.lives > 1,
        )
        asked_end = max(store.disk.end(self.tp) for store in self.cluster.stores)
        life = self._life = Life(role, self.world.now, asked_end)
        life.mesh = self._new_mesh(role, partial(self._on_round, life), apart=self.shape.acks > 1)
        if self.lives == 1:
            life.resumed_at = 0
            self._publish_later(life, life.mesh)
        return life.mesh

    def _crashed(self) -> None:
        if self.leaves:
            self.gone = True

    def _end(self, life: Life) -> None:
        """An error ended a producer: its application tries again, if it has no other one."""
        if life is self._life:
            self.world.after(0, self.give_up)
        elif life.mesh is not None:
            self.world.after(0, life.mesh.kill)

    def _on_round(self, life: Life, now: float) -> bool:
        role, mesh = life.role, life.mesh
        if mesh is None or not mesh.alive:
            return False
        if role.takeover is not None:
            if now > life.asked_at + RESUME_TIMEOUT_S:
                # NoStoreError, or MissingStoresError.
                self.world.note(self.name, f"cannot resume: {role.takeover.too_few}")
                self._end(life)
            return False
        if role.fenced_by is not None:
            # ProducerFencedError, perhaps by a life that began and ended.
            self.world.note(self.name, f"is fenced by {role.fenced_by}")
            self._end(life)
            return False
        if life.resumed_at is None:
            self._resume(life, mesh)
        if role.acknowledged > (
            life.resumed_at or 0
        ):  # what an earlier life has left is not its own
            said_by, acks = role.epoch.life, self.shape.acks
            self.checkers.on_durable(self.name, self.tp, role.acknowledged, acks, said_by)
        if self.leaves and role.acknowledged >= self.target and life is self._life:
            self.world.note(self.name, "is done, and leaves")
            self.gone = True
            # Producers linger: what they have sent is under way already.
            self.world.after(0, self.crash)
        return False

    def _resume(self, life: Life, mesh: SimulatedMesh) -> None:
        end = life.resumed_at = life.role.next_offset
        asked_end = life.asked_end if self.cluster.reaches_all(life.asked_at) else None
        self.checkers.on_resumed(self.name, end, asked_end)
        self.world.note(self.name, f"resumes at {end} with {life.role.epoch}")
        self._publish_later(life, mesh)

    def _publish_later(self, life: Life, mesh: SimulatedMesh) -> None:
        pause_s = self.cluster.pause_s(self.target)

        def publish() -> None:
            if mesh.alive:
                mesh.call_soon(partial(self._publish, life))
                self._publish_later(life, mesh)

        if life.role.next_offset < self.target:
            self.world.after(pause_s, publish)

    def _publish(self, life: Life, now: float) -> list[Outgoing]:
        role = life.role
        room = self.shape.max_unacked - role.unacknowledged
        count = min(self.world.random.randint(1, self.shape.burst), room)
        count = min(count, self.target - role.next_offset)
        role.urgent = role.urgent or self.world.chance(self.shape.urgent)
        if count <= 0 or role.fenced_by is not None:
            return []
        differs = role.epoch.number if SINGLE not in self.shape.styles else 0
        values = self.cluster.values(self.address, role.next_offset, count, differs)
        self.checkers.publish(self.tp, role.next_offset, values, role.epoch.life)
        return role.publish(now, Values.of(values), self.clock.now_us())
