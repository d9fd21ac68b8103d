"""The machines of a simulation: what an application or a disk keeps when its node is killed.

A host starts nodes, one after the other.  What a node of ``dafka_core/nodes`` does with threads
around its role, a host does with events.
"""

from __future__ import annotations

import abc
import copy
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from dafka_core.config.node_options import MAX_RECORD_BYTES, SKIP
from dafka_core.errors import HistoryChangedError
from dafka_core.model.epochs import LIFE_ID_BITS
from dafka_core.model.log_entries import LogEntry
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.nodes.store_loop import Outcomes, StoreLoop
from dafka_core.protocol.consumer_role import ConsumerRole, Start
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_role import StoreRole
from dafka_core.security.permissions import CONSUME, STORE
from tests.simulation.clocks import machine_clock
from tests.simulation.disk import Disk, Partition, SimulatedAppender
from tests.simulation.mesh import SimulatedMesh

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Host(abc.ABC):
    """A machine with at most one node running."""

    roles: tuple[str, ...] = ()  # roles of its key, in a locked world

    def __init__(
        self, cluster: Cluster, name: str, style: str, **patterns: tuple[str, ...]
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.shape = cluster.shape
        self.checkers = cluster.checkers
        self.name = name
        self.style = style
        self.mesh: SimulatedMesh | None = None
        self.permissions = cluster.network.keys.add(name, *self.roles, **patterns)
        self.clock = machine_clock(self.world, self.shape.seed, name, self.shape.faults_s)
        self.lives = 0
        self.gone = False  # it never comes back

    @property
    def up(self) -> bool:
        return self.mesh is not None

    def new_address(self) -> str:
        """An address that its key proves to be its own."""
        return self.permissions.made_own(self.world.address())

    def start(self) -> None:
        if not self.up and not self.gone:
            self.lives += 1
            self.mesh = self._start()
            self.world.note(self.name, f"starts as {self.mesh.role.address}")

    def crash(self) -> None:
        if self.mesh is not None:
            mesh, self.mesh = self.mesh, None
            mesh.kill()
            self._crashed()

    def give_up(self) -> None:
        """The application closes its node, and makes another."""
        if self.mesh is not None:
            mesh, self.mesh = self.mesh, None
            mesh.kill()
            self.world.after(self.world.between(0.1, 1), self.start)

    @abc.abstractmethod
    def _start(self) -> SimulatedMesh:
        """Makes a node."""

    def _crashed(self) -> None:  # noqa: B027 -- most lose nothing
        """Drop the state that a crash loses."""

    def _new_mesh(
        self, role: Any, on_round: Any, *, apart: bool = False, limit_bytes: int = MAX_RECORD_BYTES
    ) -> SimulatedMesh:
        return SimulatedMesh(
            self.cluster.network,
            self.checkers,
            self.name,
            role,
            self.style,
            on_round=on_round,
            socket_per_peer=apart,
            limit_bytes=limit_bytes,
        )


class StoreHost(Host):
    """A store and its disk."""

    roles = (STORE,)

    def __init__(self, cluster: Cluster, name: str, style: str) -> None:
        super().__init__(cluster, name, style)
        self.address = self.new_address()
        self.disk = Disk(self.world, self.checkers, name, self.clock.now_us)
        self.checkers.disks[self.address] = self.disk
        self.backup: dict[TopicPartition, Partition] = {}
        self.append_s = self.shape.disk_s
        self.puts: AppendQueue | None = None
        self._loop = cast("StoreLoop", None)
        self._role = cast("StoreRole", None)
        self._appender = cast("SimulatedAppender", None)

    def _start(self) -> SimulatedMesh:
        role = self.cluster.roles.store(
            self.address,
            self.disk.lives,
            sync_interval_s=self.shape.sync_s,
            hosting_id=self.world.random.getrandbits(LIFE_ID_BITS),
            known=list(self.disk.met.values()),
            wall_us=self.clock.now_us,
        )
        mesh = self._new_mesh(role, self._on_round)
        appender = SimulatedAppender(self.world, self.disk, self._on_appended)
        appender.append_s = self.append_s
        self._appender = appender
        self._role = role
        self._loop = self.cluster.roles.loop(role, self.disk, appender, mesh)
        self.puts = AppendQueue(cast("Any", mesh), role, cast("Any", self.disk))
        return mesh

    def keep_backup(self) -> None:
        """Somebody copies the disk, as it is now."""
        self.backup = copy.deepcopy(self.disk.held)

    def put_back(self, *, wiped: bool, renamed: bool) -> None:
        """Replace the disk by an older copy of it, or by an empty one.

        With ``renamed`` it is a store of its own (``dafka store restore``), and the
        others forget the lost one (``dafka store forget``).
        """
        self.crash()
        self.checkers.forget(self.address)
        if renamed or wiped:
            self._be_forgotten()
            self.address = self.new_address()
            self.checkers.disks[self.address] = self.disk
        self.disk.held = {} if wiped else copy.deepcopy(self.backup)

    def leave(self) -> None:
        """Remove the machine for good, and have the others forget its store."""
        self.crash()
        self.gone = True
        self.checkers.forget(self.address)
        self.cluster.stores.remove(self)
        self._be_forgotten()

    def _be_forgotten(self) -> None:
        """Stop the others, have them forget it (``dafka store forget``), and start them again."""
        for each in self.cluster.stores:
            if each is not self and each.up:
                each.crash()  # what it was writing may still get to its disk
                self.world.after(0.1, each.start)
            each.disk.met.pop(self.address, None)
        del self.checkers.disks[self.address]

    def slow_disk(self, append_s: float) -> None:
        """Set the longest duration of an append."""
        self.append_s = append_s
        if self.up:
            self._appender.append_s = append_s

    def heal_disk(self) -> None:
        self.slow_disk(0.001)

    def _crashed(self) -> None:
        self._appender.crash()
        assert self.puts is not None
        self.puts.close()
        self.puts = None
        self.checkers.after_crash(self.address)

    def _on_round(self, now: float) -> bool:
        return self._loop.on_round(now)

    def _on_appended(self, entries: list[LogEntry], outcomes: Outcomes) -> None:
        mesh, puts, role = self.mesh, self.puts, self._role
        assert mesh is not None
        assert puts is not None

        def acknowledge(now: float) -> list[Outgoing]:
            messages = role.on_stored(entries, outcomes)
            puts.on_written(entries, outcomes)
            return messages

        mesh.call_soon(acknowledge)


class ConsumerHost(Host):
    """An application that keeps its offsets with its results, in one transaction."""

    roles = (CONSUME,)

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        style: str,
        topics: tuple[str, ...],
        *,
        latest: bool,
        limit_bytes: int,
    ) -> None:
        super().__init__(cluster, name, style, consume=topics)
        self.topics = topics
        self.limit_bytes = limit_bytes
        self.latest = latest
        self.kept: dict[TopicPartition, int] = {}
        """The kept offsets: the next record of each partition."""
        self.paused_until = 0.0
        self._taken: dict[TopicPartition, int] = {}
        self._delivered: dict[TopicPartition, int] = {}
        self._skipped: dict[tuple[TopicPartition, int], int] = {}
        self._queue: deque[RecordBatch] = deque()
        self._role = cast("ConsumerRole", None)

    def position(self, tp: TopicPartition) -> int | None:
        """The next offset that the application takes; None where it takes the latest."""
        return self._taken.get(tp, self.kept.get(tp, None if self.latest else 0))

    def delivered_to(self, tp: TopicPartition) -> int | None:
        """The next offset to be delivered to the node's queue in this life."""
        first = self.kept.get(tp, None if self.latest else 0)
        return self._delivered.get(tp, first)

    def missing(self, tp: TopicPartition, end: int) -> str:
        """Return the lack of a partition that ends at ``end``; empty if complete."""
        if tp.topic not in self.topics:
            return ""
        if not self.up or self._queue:
            return "has not taken all"
        position, _ = self._role.positions().get(tp, (None, None))
        if position is None:
            return "" if self.latest else "knows nothing"
        return f"is at {position}" if position < end else ""

    def _start(self) -> SimulatedMesh:
        self._taken = {}
        self._delivered = {}
        self._skipped.clear()
        self._queue.clear()
        self.checkers.begins(self.name)
        start: Start = "latest" if self.latest else "earliest"
        if self.kept:
            offsets: dict[str, dict[str, int]] = {}
            for (topic, partition), offset in self.kept.items():
                offsets.setdefault(topic, {})[partition] = offset
            start = offsets
            self.latest = False  # partitions not named begin at 0
        limit_bytes = self.limit_bytes
        role = self.cluster.roles.consumer(self.new_address(), start, SKIP, limit_bytes=limit_bytes)
        self._role = role
        mesh = self._new_mesh(role, self._on_round, limit_bytes=limit_bytes)
        for topic in self.topics:
            self.world.after(self.world.between(0, 1), partial(self._subscribe, mesh, topic))
        self._take_later(mesh)
        return mesh

    def _subscribe(self, mesh: SimulatedMesh, topic: str) -> None:
        def subscribe(now: float) -> list[Outgoing]:
            role = cast("ConsumerRole", mesh.role)
            mesh.subscribe(role.topic_subscriptions(topic))
            return role.subscribe(topic)

        if mesh.alive:
            mesh.call_soon(subscribe)

    def _on_round(self, now: float) -> bool:
        role = self._role
        losses, role.losses = role.losses, []
        for loss in losses:
            self.checkers.on_lost(self.name, loss, role.directory.stores)
            if loss.available is not None:
                self._skipped[loss.tp, loss.start] = loss.end
        delivered, role.delivered = role.delivered, []
        for each in delivered:
            if isinstance(each, HistoryChangedError):
                self._go_back(each)
                continue
            batch = self.checkers.record_of(self.name, each, self.limit_bytes)
            tp = batch.tp
            if batch.tp.topic not in self.topics:
                self.world.fail(self.name, f"was delivered {batch.tp.topic}: not subscribed to")
            expected = self.delivered_to(tp)
            while expected is not None and (tp, expected) in self._skipped:
                expected = self._skipped.pop((tp, expected))
            if expected is None and self.mesh is not None:
                self.checkers.on_latest(self.mesh, batch)
            self.checkers.on_delivered(self.name, batch, expected)
            self._delivered[tp] = batch.end
            self.world.note(
                self.name,
                "delivered "
                f"{batch.tp.topic} {batch.tp.partition[:4]} [{batch.offset}, {batch.end})",
            )
            self._queue.append(batch)
        queued = sum(len(batch.values) for batch in self._queue)
        had_room = role.room
        share = 1.0 if had_room else 0.5
        role.room = queued < self.shape.max_queued * share or not self._queue
        return role.room and not had_room

    def _go_back(self, error: HistoryChangedError) -> None:
        """The application takes back what is not the partition's any more."""
        tp, start = TopicPartition(error.topic, error.partition), error.wanted
        self.checkers.on_changed(self.name, tp, start)
        self._delivered[tp] = self._taken[tp] = start
        self._queue = deque(each for each in self._queue if each.tp != tp)

    def _take_later(self, mesh: SimulatedMesh) -> None:
        def take() -> None:
            if not mesh.alive:
                return
            if self.world.now >= self.paused_until:
                self._take(mesh)
            self._take_later(mesh)

        self.world.after(self.world.between(0.01, 0.1), take)

    def _take(self, mesh: SimulatedMesh) -> None:
        """The application takes records, and sometimes keeps its results with the offsets."""
        had = bool(self._queue)
        while self._queue:
            batch = self._queue.popleft()
            self._taken[batch.tp] = batch.end
        if had:
            mesh.wake(self.world.now)
        if self._taken and self.world.chance(0.3):
            self.kept.update(self._taken)
