"""Gateways that change the partition registry at once, in a simulated cluster with faults.

``PartitionRegistry``, ``RegistryLease`` and the roles are production's.  A gateway runs beside each
store, in the same process: it stalls, crashes and starts again with it.  Messages are lost, delayed
and repeated, machines are separated and stall, and clocks are wrong, as in the worlds of
``cluster.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from dafka_core.model.epochs import LIFE_ID_BITS
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_kafka import partition_registry
from dafka_kafka.errors import RefusedError
from dafka_kafka.gateways import ranked
from dafka_kafka.partition_registry import (
    Change,
    PartitionRegistry,
    Proposal,
    RegistryLease,
    RegistryProducer,
)
from dafka_kafka.registry_table import REGISTRY, RegistryLog, RegistryTable
from tests.simulation.cluster import Cluster, Result, Roles
from tests.simulation.hosts import StoreHost
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.shape import OURS, Shape, limited, shape_of

TOPICS = ("t0", "t1", "t2")
DELETED = ("d0",)
"""Topics that are deleted and created again; their numbers may be assigned again."""

PROPOSALS = 16  # changes that each gateway proposes while there are faults
STEP_S = (0.005, 0.05)  # bounds of the pause between two steps of a gateway


class DiskLog:
    """A simulated disk with the defaults of ``Log.read``."""

    def __init__(self, host: StoreHost) -> None:
        self._disk = host.disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def read(self, tp: TopicPartition, start: int, end: int) -> list[RecordBatch]:
        return self._disk.read(tp, start, end, max_records=1_000, max_bytes=1 << 30)


class SimulatedProducer(RegistryProducer):
    """The registry's producer beside a simulated store."""

    def __init__(self, cluster: RegistryCluster, host: StoreHost, acks: int) -> None:
        self._cluster, self._host, self._acks = cluster, host, acks
        self.role = cluster.roles.producer(
            REGISTRY,
            acks=acks,
            head_interval_s=1.0,
            life_id=cluster.world.random.getrandbits(LIFE_ID_BITS),
            resume=True,
            least_number=int(host.clock.now_us() / 1e6),
        )
        self._queued = 0
        self._mesh = SimulatedMesh(
            cluster.network,
            cluster.checkers,
            host.name,
            self.role,
            host.style,
            on_round=lambda now: False,
            socket_per_peer=acks > 1,
        )
        cluster.world.note(host.name, f"wants the registry with {acks} acknowledgements")

    @property
    def next_offset(self) -> int:
        """The offset of the next record, which may be on its way to the role."""
        return self.role.next_offset + self._queued

    def publish_many(self, values: Sequence[bytes], /) -> None:
        """Append records, in the next round of the producer's loop."""
        life, now_us = self.role.epoch.life, self._host.clock.now_us()
        self._cluster.checkers.publish(REGISTRY, self.next_offset, list(values), life)
        self._queued += len(values)

        def publish(now: float) -> Any:
            self._queued -= len(values)
            self.role.urgent = True
            return self.role.publish(now, Values.of(values), now_us)

        self._mesh.call_soon(publish)

    def check(self) -> None:
        """Check that the disks have what it takes for safe."""
        epoch, end = self.role.epoch, self.role.acknowledged
        if self.role.takeover is None and end > epoch.start:
            checkers = self._cluster.checkers
            checkers.on_durable(self._host.name, REGISTRY, end, self._acks, epoch.life)

    def end(self, *, started_s: float) -> None:
        self._mesh.kill()


class SimulatedRegistry(PartitionRegistry):
    """The registry of one run of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        host, cluster = gateway.host, gateway.cluster
        log = cast("Any", DiskLog(host))
        role = cast("Any", host.mesh).role

        def live() -> list[str]:
            return [host.address, *role.known.here]

        gateways = SimpleNamespace(
            own=SimpleNamespace(address=host.address),
            live=lambda: [SimpleNamespace(address=each) for each in live()],
            ranked=lambda key: [SimpleNamespace(address=each) for each in ranked(key, live())],
        )
        store = SimpleNamespace(log=log, known=role.known)
        super().__init__(cast("Any", store), cast("Any", gateways))
        self.log = RegistryLog(log, lambda: cluster.world.now)
        self._lease = cluster.lease(
            self.log, lambda: role.known, partial(SimulatedProducer, cluster, host)
        )
        self._gateway = gateway

    async def _propose(self, change: Change) -> None:
        proposal = Proposal(change, self._gateway.cluster.world.now)
        self._lease.propose(proposal)
        self._gateway.proposed = proposal

    def _scan(self) -> None:
        pass

    @property
    def producer(self) -> SimulatedProducer | None:
        """The producer, while it is one or wants to be."""
        return cast("SimulatedProducer | None", self._lease.producer)

    @property
    def has_proposals(self) -> bool:
        """True while any proposal is not completed."""
        return self._lease.has_proposals

    def step(self, now: float) -> RegistryTable:
        """Do what the registry's threads do."""
        self._propose_new(now)
        self._lease.step(now)
        return self.log.read()


class Gateway:
    """A gateway beside a store, in all of its runs."""

    def __init__(self, cluster: RegistryCluster, host: StoreHost) -> None:
        self.cluster, self.host, self.world = cluster, host, cluster.world
        self.registry: SimulatedRegistry | None = None
        self.proposed: Proposal | None = None
        self._run = 0
        self._checked: tuple[RegistryTable | None, int] = (None, 0)
        self._tick()
        for _ in range(PROPOSALS):
            self.world.at(self.world.between(0.5, cluster.shape.faults_s), self._propose)

    @property
    def table(self) -> RegistryTable | None:
        return self.registry.table if self.registry else None

    def _tick(self) -> None:
        host, mesh = self.host, self.host.mesh
        if mesh is None or self._run != host.lives:
            self._stop()
            if mesh is not None:
                self._run, self.registry = host.lives, SimulatedRegistry(self)
        elif mesh.stalled_until <= self.world.now and self.registry is not None:
            table = self.registry.step(self.world.now)
            if (producer := self.registry.producer) is not None:
                producer.check()
            self._check(table)
        self.world.after(self.world.between(*STEP_S), self._tick)

    def _stop(self) -> None:
        if self.registry is not None and (producer := self.registry.producer) is not None:
            producer.end(started_s=0.0)
        self.registry = None
        self._checked = None, 0

    def _check(self, table: RegistryTable) -> None:
        before, start = self._checked
        start = start if table is before else 0
        records = self.host.disk.records(REGISTRY, table.applied)
        for offset in range(start, table.applied):
            self.cluster.on_applied(self.host.name, offset, records[offset])
        if table.skipped:
            self.world.fail(self.host.name, f"{table.skipped} records do not fit the table")
        if start < table.applied:
            for topic in TOPICS:
                for each in table.partitions(topic):
                    self.cluster.on_assigned(self.host.name, each.topic, each.number, each.address)
        self._checked = table, table.applied

    def _propose(self) -> None:
        if self.registry is None:
            return
        chance = self.world.random
        topic, count = chance.choice((*TOPICS, *DELETED)), chance.randint(1, 3)
        kind = chance.choice(("create", "create", "new", "extend"))
        if topic in DELETED and chance.random() < 0.5:
            kind = "delete"
        work = {
            "create": lambda registry: registry.create(topic, count),
            "new": lambda registry: registry.create(topic, count, new=True),
            "extend": lambda registry: registry.extend(topic, count + 1),
            "delete": lambda registry: registry.delete(topic),
        }[kind](self.registry)
        try:
            work.send(None)
        except StopIteration:
            proposal, self.proposed = self.proposed, None
            assert proposal is not None
            self.world.note(self.host.name, f"proposes to {kind} {topic} with {count}")
            told = partial(self._told, self.registry, kind, topic, count)
            proposal.future.add_done_callback(told)

    def _told(
        self, registry: SimulatedRegistry, kind: str, topic: str, count: int, future: Any
    ) -> None:
        error = future.exception()
        self.world.note(self.host.name, f"{kind} {topic}: {error or 'done'}")
        self.world.faults["refused" if error else "committed"] += 1
        if error is not None:
            if not isinstance(error, RefusedError):
                self.world.fail(self.host.name, f"{kind} {topic}: {error!r}")
            return
        if topic in TOPICS:
            found = registry.table.partitions(topic)
            if len(found) < count:
                self.world.fail(self.host.name, f"{topic} has {len(found)} of {count} partitions")
            for each in found:
                self.cluster.on_assigned(self.host.name, topic, each.number, each.address)
            if kind == "new":
                self.cluster.on_created(self.host.name, topic)


class RegistryCluster(Cluster):
    """A cluster with a gateway at each store, and what is known of their registry."""

    def __init__(
        self, shape: Shape, lease: type[RegistryLease], write: Callable[[str], object] | None
    ) -> None:
        super().__init__(shape, Roles(), write)
        self.lease = lease
        self._applied: dict[int, bytes] = {}
        self._numbers: dict[tuple[str, int], str] = {}
        self._created: dict[str, str] = {}
        self.gateways = [Gateway(self, host) for host in self.stores]

    def on_applied(self, name: str, offset: int, record: bytes) -> None:
        """All gateways apply the same record at an offset, now and later."""
        known = self._applied.setdefault(offset, record)
        if known != record:
            self.world.fail(name, f"applies {record!r} at {offset}, where {known!r} was applied")

    def on_assigned(self, name: str, topic: str, number: int, address: str) -> None:
        """A number is never assigned to another partition."""
        known = self._numbers.setdefault((topic, number), address)
        if known != address:
            self.world.fail(name, f"{topic} {number} is {address[:6]}, and was {known[:6]}")

    def on_created(self, name: str, topic: str) -> None:
        """A topic is created by one client; the others are told that it exists."""
        if (by := self._created.setdefault(topic, name)) != name or name == "":
            self.world.fail(name, f"has created {topic}, which {by} has created")
        self._created[topic] = f"{name} before"

    def _behind(self) -> list[str]:
        behind = super()._behind()
        for gateway in self.gateways:
            name, registry, table = gateway.host.name, gateway.registry, gateway.table
            if registry is None or table is None or registry.has_proposals:
                behind.append(f"{name} has proposals")
                continue
            if table.applied < len(self._applied) - 1:  # without the last commit record
                behind.append(f"{name} has applied {table.applied} of {len(self._applied)}")
            lacking = [
                (topic, number)
                for (topic, number), address in self._numbers.items()
                if getattr(table.get(topic, number), "address", "") != address
            ]
            if lacking:
                behind.append(f"{name} lacks {lacking}")
        return behind


def registry_shape(seed: int) -> Shape:
    """The world of a seed, with several stores, no other nodes, and many faults of machines."""
    chance = random.Random(f"registry {seed}")
    return replace(
        shape_of(seed),
        stores=chance.choice((2, 3, 3, 4)),
        late_stores=0,
        producers=0,
        writers=0,
        queries=0,
        consumers=0,
        readers=0,
        faults_s=chance.uniform(10, 20),
        partition_every_s=chance.choice((0.0, 1.0, 2.5, 2.5)),
        crash_every_s=chance.choice((0.0, 1.0, 2.5)),
        stall_every_s=chance.choice((0.0, 1.5)),
        loss=chance.choice((0.0, 0.05, 0.2)),
        delay_s=chance.choice((0.01, 0.1)),
        disk_s=chance.choice((0.02, 0.3)),
        beacon_s=0.5,
        sync_s=2.0,
        styles=(OURS,),
        locked=False,
        byzantine=0,
        trim_every_s=0.0,
        another_every_s=0.0,
        replaced_every_s=0.0,
        limits={},
    )


def simulate_registry(
    seed: int,
    lease: type[RegistryLease] = RegistryLease,
    write: Callable[[str], object] | None = None,
) -> Result:
    """Run the world of a seed.

    Raises:
        SimulationError: gateways disagree, or do not end.
    """
    cluster = RegistryCluster(registry_shape(seed), lease, write)
    chance = cluster.world.random
    tokens = SimpleNamespace(
        token_hex=lambda count: f"{chance.getrandbits(8 * count):0{2 * count}x}"
    )
    names = {
        (partition_registry, "random"): chance,
        (partition_registry, "secrets"): tokens,
        (partition_registry, "new_address"): cluster.world.address,
    }
    with limited(names):
        return cluster.run()
