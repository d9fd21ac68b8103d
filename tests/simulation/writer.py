"""A writer of a hosted partition: it puts records into a store, and moves when that fails.

It keeps its rows until a store has them, and continues at the end of the next store, as an
application that puts records over Arrow Flight.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from dafka_core.errors import DafkaError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.hosts import StoreHost

WINDOW = 4  # puts under way at one time


class Hosted:
    """An application that writes a partition into stores."""

    def __init__(self, cluster: Cluster, name: str, topic: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.topic = topic
        self.address = self.world.address()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.address)


class Writer(Hosted):
    """An application that hosts its partition at any store."""

    def __init__(self, cluster: Cluster, name: str, topic: str) -> None:
        super().__init__(cluster, name, topic)
        self.target = cluster.shape.records
        self.acknowledged = 0
        self._host: StoreHost | None = None
        self._session = 0
        self._next = 0
        self._under_way = 0
        self.move()

    @property
    def done(self) -> bool:
        """Everything is on a disk."""
        return self.acknowledged >= self.target

    def move(self) -> None:
        """Choose a store, a different one if possible, and continue at its end."""
        self._session += 1
        session = self._session
        self._under_way = 0

        def look() -> None:
            if session != self._session:
                return
            up = [host for host in self.cluster.stores if host.up and host is not self._host]
            up = up or [host for host in self.cluster.stores if host.up]
            if not up:
                self.world.after(0.5, look)
                return
            self._host = self.world.random.choice(up)
            self._next = self._host.disk.end(self.tp)
            self.acknowledged = max(self.acknowledged, self._next)
            self.world.note(self.name, f"is hosted by {self._host.name} from {self._next} on")
            self._put(session)

        self.world.after(self.world.between(0.05, 0.5), look)

    def _put(self, session: int) -> None:
        if session != self._session or self.done:
            return
        host = self._host
        if host is None or host.puts is None or host.mesh is None:
            self.move()
            return
        count = min(
            self.world.random.randint(1, self.cluster.shape.burst), self.target - self._next
        )
        if count > 0 and self._under_way < WINDOW:
            values = self.cluster.values(self.address, self._next, count)
            batch = RecordBatch(self.tp, self._next, Values.of(values))
            self.cluster.checkers.publish(self.tp, self._next, values)
            self._under_way += 1
            self._next = batch.end
            mesh, size_bytes = host.mesh, batch.values.size_bytes + len(batch.values)
            mesh.put_bytes += size_bytes
            promise = host.puts.put(batch)
            promise.add_done_callback(lambda done: self._on_put(session, host, batch.end, done))
            promise.add_done_callback(lambda done: _gave_back(mesh, size_bytes))
        self.world.after(self.cluster.pause_s(self.target), lambda: self._put(session))

    def _on_put(self, session: int, host: StoreHost, end: int, done: Future[int]) -> None:
        error = done.exception()
        if error is None:
            self.cluster.checkers.on_durable(self.name, self.tp, end, 1)
            # Another life of the partition may have replaced the records meanwhile.
            if host.disk.end(self.tp) < end and self.tp not in host.disk.set_aside:
                self.world.fail(self.name, f"{host.name} has less than {end} on disk, and says so")
            self.acknowledged = max(self.acknowledged, end)
        elif not isinstance(error, DafkaError):
            self.world.fail(self.name, f"a put failed with {error!r}")
        if session != self._session:
            return
        self._under_way -= 1
        if error is not None:
            self.world.note(self.name, f"moves: {type(error).__name__}")
            self.move()


def _gave_back(mesh: object, size_bytes: int) -> None:
    mesh.put_bytes -= size_bytes  # type: ignore[attr-defined]
