"""A reader, as Spark's driver and executors are: asks for heads, then reads ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from dafka_core.errors import HistoryChangedError
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.protocol.consumer_role import RangeRead, ReaderRole
from dafka_core.protocol.messages import HeadsQuery
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import Question
from dafka_core.security.permissions import CONSUME
from tests.simulation.hosts import Host, StoreHost
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.producer import RESUME_TIMEOUT_S
from tests.simulation.shape import SINGLE

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

READS = 3  # ranges read, one after the other, that make it done; more while others are not


class ReaderHost(Host):
    roles = (CONSUME,)

    def __init__(self, cluster: Cluster, name: str, style: str) -> None:
        super().__init__(cluster, name, style)
        self._role = cast("ReaderRole", None)
        self._question: Question | None = None
        self._read: RangeRead | None = None
        self._position = 0
        self._reads = 0
        self._deadline_s = 0.0
        self._asked_at = 0.0
        self._asked_ends: dict[TopicPartition, int] = {}
        self._changes = Counter[TopicPartition]()
        self._greeted_once = any(store.style == SINGLE for store in cluster.stores)

    @property
    def done(self) -> bool:
        """It has read enough."""
        return self._reads >= READS

    def _start(self) -> SimulatedMesh:
        role = self.cluster.roles.reader(self.new_address())
        self._role, self._question, self._read = role, None, None
        mesh = self._new_mesh(role, self._on_round)
        self._ask_later(mesh)
        return mesh

    def _ask_later(self, mesh: SimulatedMesh) -> None:
        def ask() -> None:
            if mesh.alive:
                mesh.call_soon(self._ask)

        self.world.after(self.world.between(0.05, 1), ask)

    def _ask(self, now: float) -> list[Outgoing]:
        topics = [t for t in self.shape.topics if self.world.chance(0.5)]
        self._deadline_s = now + RESUME_TIMEOUT_S
        self._asked_at = now
        self._asked_ends = self._on_disk(topics, self._has_heard)
        self._changes = self.checkers.set_aside.copy()
        self._question, messages = self._role.directory.ask(
            now, HeadsQuery, tuple(topics), rounds=2
        )
        return messages

    def _on_round(self, now: float) -> bool:
        if self._question is not None and self._question.answered:
            question, self._question = self._question, None
            self._role.directory.forget(question)
            self._choose(question)
        elif self._question is not None and now > self._deadline_s and self._greeted_once:
            # A C store greets once, and after its loss only a new node helps.
            self.world.note(self.name, "hears no store")
            self.world.after(0, self.give_up)
        read = self._read
        changed = read is not None and (
            any(isinstance(each, HistoryChangedError) for each in read.delivered)
            or self._has_changed(read.tp)
        )
        if read is not None and (changed or self._is_trimmed(read)):
            self.world.note(self.name, "reads what is trimmed, or was set aside")
            self._role.forget(read)
            self._read = read = None
            assert self.mesh is not None
            self._ask_later(self.mesh)
        if read is not None:
            delivered, read.delivered = read.delivered, []
            for batch in delivered:
                assert isinstance(batch, RecordBatch)
                self.checkers.on_delivered(self.name, batch, self._position)
                self._position = batch.end
            if read.next_offset >= read.end:
                if self._position != read.end:
                    self.world.fail(self.name, f"ends at {self._position}, not at {read.end}")
                self._role.forget(read)
                self._read = None
                self._reads += 1
                self.world.note(self.name, f"has read up to {self._position}")
                assert self.mesh is not None
                self._ask_later(self.mesh)
        return False

    def _has_changed(self, tp: TopicPartition) -> bool:
        """Another history has won since the question: ``Reader`` raises, or waits in vain.

        Those of byzantine peers change at any time.
        """
        return (
            tp.partition in self.checkers.liars or self.checkers.set_aside[tp] > self._changes[tp]
        )

    def _is_readable(self, tp: TopicPartition) -> bool:
        """Return True if a store has records of a partition that its own producer has written."""
        return tp.partition not in self.checkers.liars and any(
            store.disk.earliest(tp) < store.disk.ends().get(tp, 0) for store in self.cluster.stores
        )

    def _is_trimmed(self, read: RangeRead) -> bool:
        """No store has the next record any more, as ``Reader`` finds out by asking them."""
        return read.next_offset < read.end and all(
            read.next_offset < store.disk.earliest(read.tp) for store in self.cluster.stores
        )

    def _has_heard(self, store: StoreHost) -> bool:
        """Return True if it must know a store: a C store's only greeting may be lost."""
        return store.style != SINGLE or store.address in self._role.directory.stores

    def _on_disk(
        self, topics: list[str], among: Callable[[StoreHost], bool] = lambda _: True
    ) -> dict[TopicPartition, int]:
        ends: dict[TopicPartition, int] = {}
        for store in filter(among, self.cluster.stores):
            for tp, end in store.disk.ends().items():
                if not topics or tp.topic in topics:
                    ends[tp] = max(end, ends.get(tp, 0))
        return ends

    def _check_heads(self, heads: dict[TopicPartition, PartitionInfo]) -> None:
        """Stores report exactly their disks' ends, if they are reachable."""
        on_disk = self._on_disk([])
        for tp, info in heads.items():
            if self._has_changed(tp):
                continue
            if info.end > on_disk.get(tp, 0):
                self.world.fail(
                    self.name, f"was told {info.end} of {tp}, and {on_disk.get(tp, 0)} are on disk"
                )
        if self.cluster.reaches_all(self._asked_at):
            for tp, end in self._asked_ends.items():
                told = heads[tp].end if tp in heads else 0
                if told < end and not self._has_changed(tp):
                    self.world.fail(self.name, f"was told {told} of {tp}, and {end} are on disk")

    def _choose(self, question: Question) -> None:
        heads = question.heads
        self._check_heads(heads)
        assert self.mesh is not None
        held = [tp for tp, info in heads.items() if info.end > info.earliest]
        held = [tp for tp in held if tp.partition not in self.checkers.liars]
        if not held:
            self._reads += not any(map(self._is_readable, self._asked_ends))
            self._ask_later(self.mesh)
            return
        tp = self.world.random.choice(sorted(held))
        end = self.world.random.randint(1, heads[tp].end)
        start = self.world.random.randint(min(heads[tp].earliest, end - 1), end - 1)
        self.world.note(self.name, f"reads {tp.topic} {tp.partition[:4]} [{start}, {end})")
        self._position = start
        self.checkers.begins(self.name)
        self._read = self._role.read(tp, start, end)
        self.mesh.wake(self.world.now)
