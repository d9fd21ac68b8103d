"""A scripted mesh in simulated time.

    store, producer = world.store("a"), world.producer("t")
    producer.publish(100)
    producer.flush()
    store.stop()

Roles, codec, ``StoreLoop``, ``AppendQueue``, ``Deletions`` and ``Log`` are production's, on a real
disk.  Time, chance and the network are the simulator's, and nothing fails that the test does not
make fail.  ``Checkers`` check each step, as in the worlds of seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from dafka_core.errors import DafkaError
from dafka_core.model.epochs import LIFE_ID_BITS
from dafka_core.model.log_entries import Commit, LogEntry, Stage
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import NO_VERSION, RecordBatch, StagedTransaction, TopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.nodes.maintenance import Deletions
from dafka_core.nodes.store_loop import StoreLoop
from dafka_core.protocol.messages import Message
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_role import StoreRole
from dafka_core.security.permissions import PRODUCE, STORE
from dafka_core.storage import Log
from tests.simulation.checkers import Checkers
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.network import Network
from tests.simulation.shape import OURS, Shape, shape_of
from tests.simulation.world import World

T = TypeVar("T")

BEGIN_US: Final = 1_800_000_000_000_000
"""The time at which a script begins: stores doubt a clock from before this project existed."""

PATIENCE_S: Final = 150.0
"""Simulated time within which a condition must come true; timeouts of roles last a minute."""

CALM: Final[dict[str, Any]] = {
    **dict.fromkeys(("producers", "consumers", "readers", "writers", "queries", "byzantine"), 0),
    **dict.fromkeys(("loss", "double", "reorder", "corrupt", "leaves", "latest", "urgent"), 0.0),
    **dict.fromkeys(("partition_every_s", "cut_every_s", "crash_every_s", "stall_every_s"), 0.0),
    **dict.fromkeys(("tower_every_s", "trim_every_s", "another_every_s", "replaced_every_s"), 0.0),
    **dict.fromkeys(("late_stores", "limit_bytes"), 0),
    **dict.fromkeys(("acks", "towers"), 1),
    "beacon_s": 1.0,
    "delay_s": 0.002,
    "lag_s": 0.0005,
    "disk_s": 0.001,
    "high_water_mark": 1_000_000,
    "locked": False,
    "limits": {},
    "styles": (OURS,),
}
"""A shape without faults."""


def calm_shape(**changes: Any) -> Shape:
    """Return the shape of a world in which nothing goes wrong by chance."""
    return replace(shape_of(1), **CALM | changes)


def values(count: int, first: int = 0) -> list[bytes]:
    """Return the values of consecutive records: their numbers."""
    return [b"%d" % number for number in range(first, first + count)]


def tp_of(name: str, topic: str = "t") -> TopicPartition:
    """Return a partition with an address that derives from a name."""
    return TopicPartition(topic, hashlib.md5(name.encode()).hexdigest().upper())


class Script:
    """Time, network and the nodes of one test."""

    def __init__(self, directory: Path) -> None:
        shape = calm_shape()
        self.directory = directory
        self.world = World(shape.seed)
        self.checkers = Checkers(self.world)
        self.network = Network(self.world, shape)
        self.network.faulty = False
        self.closing = ExitStack()

    def now_us(self) -> int:
        return BEGIN_US + int(self.world.now * 1e6)

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def until(self, condition: Callable[[], T], what: str = "", step_s: float = 0.01) -> T:
        """Let time pass until a condition is true; return its value."""
        deadline = self.world.now + PATIENCE_S
        while not (found := condition()):
            assert self.world.now < deadline, what or "the condition did not come true"
            self.run(step_s)
        return found

    def result(self, future: Future[T]) -> T:
        """Let time pass until a store has processed a request; return or raise its outcome."""
        self.until(future.done)
        return future.result()

    # -- nodes -----------------------------------------------------------------------------------

    def store(self, name: str = "a") -> ScriptedStore:
        return ScriptedStore(self, name)

    def producer(self, topic: str, name: str = "producer", **options: Any) -> ScriptedProducer:
        return ScriptedProducer(self, topic, name, **options)

    @contextmanager
    def log(self, name: str) -> Iterator[Log]:
        """Open the log of a store that does not run."""
        with Log(self.directory / name, clock_us=self.now_us) as log:
            yield log


class Node:
    """A machine with a node of ours."""

    roles: tuple[str, ...] = ()

    def __init__(self, script: Script, name: str) -> None:
        self.script = script
        self.name = name
        self.permissions = script.network.keys.add(name, *self.roles)
        self.mesh = cast("SimulatedMesh", None)
        self.is_up = False

    @property
    def address(self) -> str:
        return self.mesh.role.address

    def own_address(self, name: str) -> str:
        return self.permissions.made_own(tp_of(name).partition)

    def call(self, function: Callable[[float], list[Outgoing] | None]) -> None:
        """Run a function in the node's loop, which sends the messages that it returns."""
        self.mesh.call_soon(function)

    def stop(self) -> None:
        """End the node, without a word to its peers."""
        if self.is_up:
            self.is_up = False
            self.mesh.kill()

    def _join(self, role: Any, on_round: Any = lambda now: False, **options: Any) -> None:
        network, checkers = self.script.network, self.script.checkers
        self.mesh = SimulatedMesh(
            network, checkers, self.name, role, OURS, on_round=on_round, **options
        )
        self.is_up = True


class ScriptedStore(Node):
    """A store with a log on a real disk; ``start`` starts it again."""

    roles = (STORE,)
    is_full = False  # the disk

    def __init__(self, script: Script, name: str) -> None:
        super().__init__(script, name)
        self.start()

    def start(self) -> None:
        script, world = self.script, self.script.world
        address = self.own_address(self.name)
        self.log = Log(script.directory / self.name, clock_us=script.now_us)
        script.closing.callback(self.log.close)
        self.role = StoreRole(
            address,
            self.log.lives,
            sync_interval_s=1.0,
            hosting_id=world.random.getrandbits(LIFE_ID_BITS),
            least_number=script.now_us() // 1_000_000,
            known=self.log.met(),
            wall_us=script.now_us,
        )
        script.checkers.disks[address] = cast("Any", self.log)
        self._join(self.role, self._on_round)
        mesh = cast("Any", self.mesh)
        self._loop = StoreLoop(self.role, self.log, cast("Any", self), mesh)
        self.queue = AppendQueue(mesh, self.role, self.log)
        self.deletions = Deletions(self.log, address, cast("Any", _DeletionsQueue(self)))
        self.busy = False

    def stop(self) -> None:
        """End the store; entries that are not on disk are lost."""
        super().stop()
        self.queue.close()
        self.log.close()

    def _on_round(self, now: float) -> bool:
        return self._loop.on_round(now)

    def write(self, entries: list[LogEntry]) -> None:
        """Write a group to the log, as ``LogWriter`` does in its thread."""
        self.busy, mesh = True, self.mesh

        def write() -> None:
            if not mesh.alive:
                return
            outcomes = self.log.write(entries)
            self.busy = False
            self.call(lambda now: acknowledge(outcomes))
            if any(isinstance(e, RecordBatch) and e.tp.topic == DELETIONS_TOPIC for e in entries):
                self.deletions.apply()

        def acknowledge(outcomes: list[DafkaError | None]) -> list[Outgoing]:
            messages = self.role.on_stored(entries, outcomes)
            self.queue.on_written(entries, outcomes)
            return messages

        self.script.world.after(0.001, write)

    def ask(self, *messages: Message) -> list[Outgoing]:
        """Return what the store sends within a second after these messages; nobody receives it."""
        mesh, sent = cast("Any", self.mesh), list[Outgoing]()
        mesh.send = sent.extend
        for each in messages:
            self.call(lambda now, each=each: self.role.on_message(now, each, ""))  # type: ignore[misc]
        self.script.run(1)
        del mesh.send
        return sent

    # -- contents --------------------------------------------------------------------------------

    def held(self, tp: TopicPartition) -> tuple[int, int]:
        """Return earliest and end offset of a partition; zeros if the log does not have it."""
        info = self.log.info(tp)
        return (0, 0) if info is None else (info.earliest, info.end)

    def values(self, tp: TopicPartition) -> list[bytes]:
        found = self.log.read(tp, 0, self.log.end(tp))
        return [bytes(value) for batch in found for value in batch.values]

    # -- writers in the store's process ----------------------------------------------------------

    def submit(self, batch: RecordBatch) -> Future[int]:
        """Put records at the end of a partition, as a client of the store does."""
        checkers = self.script.checkers
        checkers.liars.add(batch.tp.partition)  # the log may refuse them
        if batch.offset == len(checkers.published.get(batch.tp, ())):
            checkers.publish(batch.tp, batch.offset, [*map(bytes, batch.values)])
        return self.queue.put(batch)

    def append(self, tp: TopicPartition, offset: int, count: int) -> int:
        """Put numbered records, and wait for them; return the partition's end."""
        return self.script.result(self.submit(RecordBatch.of(tp, offset, values(count, offset))))

    def stage(
        self, tp: TopicPartition, attempt: str, start: int, end: int, version: int = NO_VERSION
    ) -> StagedTransaction:
        """Stage numbered records; return what to commit."""
        batch = RecordBatch.of(tp, start, values(end - start, start))
        self.script.checkers.liars.add(tp.partition)
        self.script.result(self.queue.put(Stage(batch, attempt * 32, version)))
        return StagedTransaction(*tp, attempt * 32, start, end, version)

    def commit(self, *transactions: StagedTransaction) -> None:
        for each in transactions:
            published = self.script.checkers.published.setdefault(each.tp, [])
            published[each.start :] = values(each.end - each.start, each.start)
        self.script.result(self.queue.put(Commit(transactions)))

    def transact(self, tp: TopicPartition, start: int, end: int, version: int = NO_VERSION) -> None:
        self.commit(self.stage(tp, "E", start, end, version))


class _DeletionsQueue:
    """The append queue of ``Deletions``, which waits in simulated time."""

    def __init__(self, store: ScriptedStore) -> None:
        self._store = store
        self.limit = store.queue.limit

    def append(self, tp: TopicPartition, contents: Sequence[bytes], *, timeout_s: float) -> range:
        store, start = self._store, self._store.log.end(tp)
        put = store.submit(RecordBatch.of(tp, start, contents))
        return range(start, store.script.result(put))


class ScriptedProducer(Node):
    """A producer; ``resume`` continues the partition of an earlier one with its ``name``."""

    roles = (PRODUCE,)

    def __init__(
        self,
        script: Script,
        topic: str,
        name: str,
        *,
        acks: int = 1,
        resume: bool = False,
        ignore_missing: bool = False,
        life: str = "",
    ) -> None:
        super().__init__(script, f"{name}-{life}" if life else name)
        self.tp = TopicPartition(topic, self.own_address(name))
        self.role = ProducerRole(
            self.tp,
            acks=acks,
            head_interval_s=1.0,
            life_id=script.world.random.getrandbits(LIFE_ID_BITS),
            resume=resume,
            ignore_missing=ignore_missing,
        )
        self._join(self.role, socket_per_peer=acks > 1)
        if resume:
            script.until(lambda: self.role.takeover is None, "the producer takes over")

    def publish(self, count: int = 1, contents: Sequence[bytes] = ()) -> None:
        """Publish ``contents``, or numbered records."""
        role = self.role

        def publish(now: float) -> list[Outgoing]:
            records = [*contents] or values(count, role.next_offset)
            life = role.epoch.life
            self.script.checkers.publish(self.tp, role.next_offset, records, life)
            return role.publish(now, Values.of(records), self.script.now_us())

        self.call(publish)

    def flush(self) -> None:
        self.script.run(0.01)  # the loop publishes them
        self.script.until(lambda: not self.role.unacknowledged, "all is acknowledged")
