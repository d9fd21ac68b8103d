"""A complete simulation: its nodes, its faults, and the check at its end."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from dafka_core.config.node_options import MAX_RECORD_BYTES
from dafka_core.model.log_entries import StoreSeen
from dafka_core.model.records import TopicPartition
from dafka_core.nodes.store_loop import StoreLoop
from dafka_core.protocol import fetch_scheduler
from dafka_core.protocol.consumer_role import ConsumerRole, ReaderRole
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.store_role import StoreRole
from tests.simulation.byzantine import ByzantinePeer
from tests.simulation.checkers import LOST, Checkers
from tests.simulation.exact import ExactQuery
from tests.simulation.faults import Faults
from tests.simulation.hosts import ConsumerHost, Host, StoreHost
from tests.simulation.network import Network
from tests.simulation.producer import ProducerHost
from tests.simulation.reader import ReaderHost
from tests.simulation.shape import OURS, Shape, limited, shape_of
from tests.simulation.world import World
from tests.simulation.writer import Writer

CATCH_UP_S: Final = 60.0
"""Within this time after the last fault everyone has everything.  It holds the largest sync
interval, and the longest wait before something is asked for again, twice."""

LOOK_S: Final = 0.5

QUICK_S: Final = 0.011
"""With slower messages a new node may discover a store too late for its first question."""


@dataclass(frozen=True)
class Roles:
    """The simulated classes: production's, except for a defect that a test puts in."""

    store: Callable[..., StoreRole] = StoreRole
    producer: Callable[..., ProducerRole] = ProducerRole
    consumer: Callable[..., ConsumerRole] = ConsumerRole
    reader: Callable[..., ReaderRole] = ReaderRole
    loop: Callable[..., StoreLoop] = StoreLoop


@dataclass(frozen=True)
class Result:
    """The counts of a simulation."""

    seed: int
    trace_hash: str
    faults: Counter[str]
    sent: Counter[str]
    refused: Counter[str]  # messages of byzantine peers, and the refused ones among them, by kind
    steps: int
    records: int  # published
    delivered: int  # records delivered, to all consumers and readers together
    caught_up_s: float  # time from the last fault until each node had every record
    virtual_s: float


class Cluster:
    """Everyone in one world."""

    def __init__(self, shape: Shape, roles: Roles, write: Callable[[str], object] | None) -> None:
        self.shape = shape
        self.roles = roles
        self.world = World(shape.seed, write)
        self.checkers = Checkers(self.world, one_time=set(shape.styles) == {OURS})
        self.network = Network(self.world, shape)
        self._bodies: dict[str, bytes] = {}
        chance = self.world.random
        styles = shape.styles
        self.stores = [
            StoreHost(self, f"store-{i}", styles[i % len(styles)]) for i in range(shape.stores)
        ]
        for store in self.stores:  # they have met before the first fault
            others = (each.address for each in self.stores if each is not store)
            store.disk.met = {address: StoreSeen(address) for address in others}
        self.producers = [
            ProducerHost(
                self,
                f"producer-{i}",
                chance.choice(styles),
                chance.choice(shape.topics),
                leaves=self.world.chance(shape.leaves),
            )
            for i in range(shape.producers)
        ]
        self.consumers = [
            ConsumerHost(
                self,
                f"consumer-{i}",
                chance.choice(styles),
                tuple(sorted({chance.choice(shape.topics), chance.choice(shape.topics)})),
                latest=self.world.chance(shape.latest),
                limit_bytes=(i == 0 and shape.limit_bytes) or MAX_RECORD_BYTES,
            )
            for i in range(shape.consumers)
        ]
        self.readers = [ReaderHost(self, f"reader-{i}", styles[0]) for i in range(shape.readers)]
        self.writers = [
            Writer(self, f"writer-{i}", chance.choice(shape.topics)) for i in range(shape.writers)
        ]
        self.queries = [
            ExactQuery(self, f"query-{i}", chance.choice(shape.topics))
            for i in range(shape.queries)
        ]
        self.byzantine = [ByzantinePeer(self, f"byzantine-{i}") for i in range(shape.byzantine)]
        for peer in self.byzantine:
            self.checkers.liars.update((peer.address, *peer.partitions))
        self.faults = Faults(self)
        self._start()

    @property
    def hosts(self) -> list[Host]:
        return [*self.stores, *self.producers, *self.consumers, *self.readers]

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that honest nodes and clients write."""
        written = [each.tp for each in self.writers] + [each.tp for each in self.queries]
        return [*(each.tp for each in self.producers), *written]

    def values(self, address: str, offset: int, count: int, life: int = 0) -> list[bytes]:
        """Return records of a partition: each names itself, and has its own length."""
        body = self._bodies.get(address)
        if body is None:
            body = hashlib.blake2b(address.encode()).digest() * 4
            self._bodies[address] = body
        most = self.shape.value_bytes
        return [
            b"%x:%x:%s:" % (life, i, body[:3]) + body[: i * 7 % most]
            for i in range(offset, offset + count)
        ]

    def pause_s(self, target: int) -> float:
        """Return a random time until the next burst; the last one is near the faults' end."""
        mean_s = 0.8 * self.shape.faults_s / max(1.0, 2 * target / (1 + self.shape.burst))
        pause_s = self.world.random.expovariate(1.0) * mean_s
        # Chance alone has no bound, and a slow producer would be taken for stuck.
        remaining_s = self.shape.faults_s + self._saying_s() - self.world.now
        return min(pause_s, max(remaining_s, QUICK_S))

    def reaches_all(self, since_s: float) -> bool:
        """Return True if a node that started then must have discovered every store by now."""
        quick = self.shape.delay_s + self.shape.lag_s <= QUICK_S
        calm = since_s - self.shape.faults_s > 2 * self.shape.sync_s
        return quick and calm and all(store.up for store in self.stores)

    def run(self) -> Result:
        """Run the world until each node has every record.

        Raises:
            SimulationError: a checker has found something.
        """
        world, shape = self.world, self.shape
        world.run_until(shape.faults_s)
        self.faults.end()
        world.note("world", "the faults are over")
        behind = self._behind()
        while behind and world.now < shape.faults_s + CATCH_UP_S + self._saying_s():
            world.run_until(world.now + LOOK_S)
            behind = self._behind()
        if behind:
            waited_s = world.now - shape.faults_s
            world.fail("world", f"{LOST} {waited_s:.0f} s after the faults, {'; '.join(behind)}")
        return Result(
            shape.seed,
            world.trace_hash,
            world.faults,
            world.sent,
            world.refused,
            world.steps,
            sum(map(len, self.checkers.published.values())),
            self.checkers.delivered_records,
            world.now - shape.faults_s,
            world.now,
        )

    def _saying_s(self) -> float:
        """Return the time in which the remaining records are published."""
        return 2 * self.shape.faults_s

    def _start(self) -> None:
        late = self.shape.late_stores
        for i, host in enumerate(self.hosts):
            if i < late:
                self.world.after(self.world.between(0.3, 0.9) * self.shape.faults_s, host.start)
            else:
                self.world.after(self.world.between(0, 1), host.start)

    def _behind(self) -> list[str]:
        """Return the nodes that lack records or have other ones, each with a reason."""
        goals: dict[TopicPartition, int] = {}
        for store in self.stores:
            for tp, end in store.disk.ends().items():
                goals[tp] = max(end, goals.get(tp, 0))
        for producer in self.producers:
            goals[producer.tp] = max(producer.end, goals.get(producer.tp, 0))
        liars = self.checkers.liars
        goals = {tp: end for tp, end in goals.items() if end and tp.partition not in liars}
        behind = [f"{p.name} waits" for p in self.producers if not p.done]
        behind += [f"{w.name} waits at {w.acknowledged}" for w in self.writers if not w.done]
        behind += [f"{q.name} waits at transaction {q.number}" for q in self.queries if not q.done]
        behind += [f"{reader.name} reads" for reader in self.readers if not reader.done]
        for store in self.stores:
            for tp, end in goals.items():
                held = store.disk.end(tp)
                if held < end:
                    behind.append(f"{store.name} has {held} of {end} of {_name(tp)}")
        for consumer in self.consumers:
            for tp, end in goals.items():
                missing = consumer.missing(tp, end)
                if missing:
                    behind.append(f"{consumer.name} {missing} of {end} of {_name(tp)}")
        return [*behind, *self.checkers.others()]


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic} {tp.partition[:4]}"


def simulate(
    seed: int,
    roles: Roles | None = None,
    write: Callable[[str], Any] | None = None,
    **shape_changes: Any,
) -> Result:
    """Runs the world of a seed; ``write`` is given each line of the trace.

    ``shape_changes`` are members of its shape that are not left to chance.

    Raises:
        SimulationError: a checker has found something.
    """
    shape = replace(shape_of(seed), **shape_changes)
    if set(shape.styles) != {OURS}:
        shape = replace(shape, locked=False, byzantine=0)
    if shape.byzantine:
        # Byzantine peers announce records that no node has, and their turns may last seconds.
        few = (fetch_scheduler, "MAX_UNDER_WAY")
        limits = {each: value for each, value in shape.limits.items() if each != few}
        shape = replace(shape, limits=limits)
    if write is not None:
        for line in shape.describe():
            write(line)
    with limited(shape.limits):
        return Cluster(shape, roles or Roles(), write).run()
