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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from dafka_core.config.node_options import C_LAYOUT, MAX_RECORD_BYTES
from dafka_core.errors import DafkaError, HistoryChangedError, ProtocolError, RecordTooLargeError
from dafka_core.model.epochs import LIFE_ID_BITS
from dafka_core.model.log_entries import Commit, LogEntry, Stage
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
)
from dafka_core.model.values import Values
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.nodes.deletions import Deletions
from dafka_core.nodes.maintenance import usage_at_start
from dafka_core.nodes.store_loop import StoreLoop
from dafka_core.protocol.beacons import WELCOME, NodeBeacon, decode_tower_beacon, encode_node_beacon
from dafka_core.protocol.codec import decode, encode
from dafka_core.protocol.consumer_role import ConsumerRole, Loss
from dafka_core.protocol.messages import HeadsQuery, Message
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.reader_role import ReaderRole
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_limits import StoreLimits
from dafka_core.protocol.store_role import StoreRole
from dafka_core.security.permissions import CONSUME, PRODUCE, STORE, Permissions
from dafka_core.storage import Log
from tests.simulation.checkers import Checkers
from tests.simulation.keys import Keys, SimulatedSecurity
from tests.simulation.mesh import SimulatedMesh
from tests.simulation.network import Link, Network
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

    def __init__(self, directory: Path, *, locked: bool = False) -> None:
        shape = calm_shape(locked=locked)
        self.directory = directory
        self.world = World(shape.seed)
        self.checkers = Checkers(self.world)
        self.network = Network(self.world, shape)
        self.network.faulty = False
        self.closing = ExitStack()

    def now_us(self) -> int:
        """Return the wall-clock time."""
        return BEGIN_US + int(self.world.now * 1e6)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now + seconds)

    def until(self, condition: Callable[[], T], what: str = "") -> T:
        """Let time pass until a condition is true; return its value."""
        deadline = self.world.now + PATIENCE_S
        while not (found := condition()):
            assert self.world.now < deadline, what or "the condition did not come true"
            self.run(0.01)
        return found

    def result(self, future: Future[T]) -> T:
        """Let time pass until a store has processed a request; return or raise its outcome."""
        self.until(future.done)
        return future.result()

    def separate(self, one: Node | Peer, other: Node | Peer) -> None:
        """Lose all messages between two machines from now on."""
        for pair in ((one.name, other.name), (other.name, one.name)):
            self.network.blocks[pair] = (float("inf"), "lost")

    def refused(self, kind: str) -> int:
        """Return the number of messages of a kind that nodes did not permit."""
        return self.world.refused[kind]

    # -- nodes -----------------------------------------------------------------------------------

    def store(self, name: str = "a", **limits: int) -> ScriptedStore:
        return ScriptedStore(self, name, limits)

    def producer(self, topic: str, name: str = "producer", **options: Any) -> ScriptedProducer:
        return ScriptedProducer(self, topic, name, **options)

    def consumer(self, *topics: str, **options: Any) -> ScriptedConsumer:
        consumer = ScriptedConsumer(self, **options)
        for topic in topics:
            consumer.subscribe(topic)
        return consumer

    def reader(self, name: str = "reader") -> ScriptedReader:
        return ScriptedReader(self, name)

    def peer(self, *prefixes: bytes, **options: Any) -> Peer:
        return Peer(self, prefixes, **options)

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
        keys = script.network.keys
        known = keys.find(name) if keys.locked else None
        self.permissions = known.permissions if known else keys.add(name, *self.roles)
        self.mesh = cast("SimulatedMesh", None)
        self.is_up = False

    @property
    def address(self) -> str:
        return self.mesh.role.address

    def own_address(self, name: str) -> str:
        """Return an address that derives from a name, within the node's key."""
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

    def __init__(self, script: Script, name: str, limits: dict[str, int]) -> None:
        super().__init__(script, name)
        self._limits = limits
        self.start()

    def start(self) -> None:
        script, world = self.script, self.script.world
        address = self.own_address(self.name)
        locked = script.network.keys.locked
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
            limits=StoreLimits(self._limits, by_key=locked),
        )
        self.role.on_scan(usage_at_start(self.log, self.role.limits))
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

    # -- contents --------------------------------------------------------------------------------

    def held(self, tp: TopicPartition) -> tuple[int, int]:
        """Return earliest and end offset of a partition; zeros if the log does not have it."""
        info = self.log.info(tp)
        return (0, 0) if info is None else (info.earliest, info.end)

    def values(self, tp: TopicPartition) -> list[bytes]:
        """Return the values of a partition's records."""
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
        """Commit staged records."""
        for each in transactions:
            published = self.script.checkers.published.setdefault(each.tp, [])
            published[each.start :] = values(each.end - each.start, each.start)
        self.script.result(self.queue.put(Commit(transactions)))

    def transact(self, tp: TopicPartition, start: int, end: int, version: int = NO_VERSION) -> None:
        """Stage and commit numbered records."""
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
        """Wait until all records are acknowledged."""
        self.script.run(0.01)  # the loop publishes them
        self.script.until(lambda: not self.role.unacknowledged, "all is acknowledged")


Delivered = RecordBatch | RecordTooLargeError | HistoryChangedError


class ScriptedConsumer(Node):
    """A consumer with an application that takes records at once, unless ``max_queued`` is set."""

    roles = (CONSUME,)

    def __init__(
        self,
        script: Script,
        name: str = "consumer",
        *,
        max_queued: int = 0,
        limit_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        super().__init__(script, name)
        self.max_queued = max_queued
        self.delivered: list[Delivered] = []
        self.losses: list[Loss] = []
        address = self.own_address(name)
        self.role = ConsumerRole(address, "earliest", limit_bytes=limit_bytes)
        self._join(self.role, self._on_round, limit_bytes=limit_bytes)

    def subscribe(self, topic: str) -> None:
        def subscribe(now: float) -> list[Outgoing]:
            self.mesh.subscribe(self.role.topic_subscriptions(topic))
            return self.role.subscribe(topic)

        self.call(subscribe)

    @property
    def batches(self) -> list[RecordBatch]:
        return [each for each in self.delivered if isinstance(each, RecordBatch)]

    def values(self, tp: TopicPartition | None = None) -> list[bytes]:
        """Return all delivered values, or those of a partition, in their order."""
        found = (each for each in self.batches if tp in (None, each.tp))
        return [bytes(value) for batch in found for value in batch.values]

    def by_partition(self) -> dict[TopicPartition, list[bytes]]:
        """Return the delivered values of each partition; their offsets must be consecutive."""
        found = defaultdict[TopicPartition, list[bytes]](list)
        for batch in self.batches:
            assert batch.offset == len(found[batch.tp])
            found[batch.tp] += map(bytes, batch.values)
        return dict(found)

    def wait_for(self, *expected: bytes) -> None:
        """Wait for exactly these values, and that no further ones follow them."""
        self.script.until(lambda: len(self.values()) >= len(expected), f"{len(expected)} values")
        self.script.run(0.1)
        assert self.values() == [*expected]

    def _on_round(self, now: float) -> bool:
        self.delivered += self.role.delivered
        self.losses += self.role.losses
        self.role.delivered, self.role.losses = [], []
        had_room = self.role.room
        self.role.room = not self.max_queued or len(self.values()) < self.max_queued
        return self.role.room and not had_room


class ScriptedReader(Node):
    """A reader of ranges."""

    roles = (CONSUME,)

    def __init__(self, script: Script, name: str) -> None:
        super().__init__(script, name)
        self.role = ReaderRole(self.own_address(name))
        self._join(self.role)
        script.until(lambda: self.mesh.peers.table.announced)

    def partitions(self, *topics: str) -> list[PartitionInfo]:
        """Return what the stores hold of topics, or of all."""
        directory = self.role.directory
        query, messages = directory.ask(self.script.world.now, HeadsQuery, topics)
        self.mesh.send(messages)
        self.script.until(lambda: query.answered, "all stores answer")
        directory.forget(query)
        return sorted(query.heads.values())

    def read(self, tp: TopicPartition, start: int, end: int) -> list[bytes]:
        """Return the values of a range."""
        read = self.role.read(tp, start, end)
        self.mesh.wake(self.script.world.now)
        self.script.until(lambda: read.next_offset >= end, "the range is complete")
        self.role.forget(read)
        batches = [each for each in read.delivered if isinstance(each, RecordBatch)]
        assert batches == read.delivered
        return [bytes(value) for batch in batches for value in batch.values]


class Peer:
    """Any other program in the mesh, as ``RawPeer`` is with sockets: a C node, or a hostile one.

    It connects to all nodes.  Its invalid messages are counted and nothing else comes of them, and
    in a locked script it may send what its key allows.
    """

    byzantine = True  # in the words of the simulator: not held to the protocol

    def __init__(
        self,
        script: Script,
        prefixes: Sequence[bytes],
        *,
        name: str = "peer",
        permissions: Permissions | None = None,
    ) -> None:
        self.script, self.name = script, name
        self._network = script.network
        own = tp_of(name).partition
        self.address = permissions.made_own(own) if permissions else own
        script.checkers.liars.add(self.address)
        self.alive = True
        self.role = self  # the network needs its address only
        self.security = SimulatedSecurity(Keys(locked=False), name)
        self.subscriptions = dict.fromkeys(prefixes)
        self.received: list[list[bytes]] = []
        self._endpoints: dict[str, None] = {}
        self.tower_subscriptions = (b"",)
        self.port = self._network.add(cast("Any", self))
        self._announce()

    def subscribe(self, *prefixes: bytes) -> None:
        self.subscriptions.update(dict.fromkeys(prefixes))
        for link in self._network.subscriber_links(cast("Any", self)):
            self._network.tell(link, [b"\1" + prefix for prefix in prefixes])

    def send(self, *messages: Message, layout: str = C_LAYOUT) -> None:
        for message in messages:
            self.send_frames(encode(message, layout))

    def send_frames(self, frames: list[bytes]) -> None:
        self._network.publish(cast("Any", self), frames)

    def messages(self, kind: type[T]) -> list[T]:
        """Return the received messages of a kind."""
        found = (_decoded(frames) for frames in self.received)
        return [message for message in found if type(message) is kind]

    def wait_for(self, kind: type[T], count: int = 1) -> list[T]:
        what = f"{count} {kind.__name__}"
        self.script.until(lambda: len(self.messages(kind)) >= count, what)
        return self.messages(kind)

    def is_subscribed(self, prefix: bytes) -> bool:
        """Return True if a node is subscribed to a prefix here."""
        return any(prefix in link.prefixes for link in self._links)

    def wait_until_subscribed(self, *prefixes: bytes) -> None:
        for prefix in prefixes:
            self.script.until(lambda: self.is_subscribed(prefix), f"{prefix!r}")  # noqa: B023

    def announce_as(self, node: str, name: str, port: int) -> None:
        """Announce to the towers that a node is at a place."""
        beacon = encode_node_beacon(NodeBeacon(node, name, port))
        self._network.beacon(cast("Any", self), beacon)

    def stop(self) -> None:
        self.alive = False
        self._network.remove(cast("Any", self))

    @property
    def _links(self) -> list[Link]:
        return self._network.links_to(cast("Any", self))

    def _announce(self) -> None:
        if self.alive:
            self.announce_as(self.address, self.name, self.port)
            self.script.world.after(1.0, self._announce)

    # -- what the network calls ------------------------------------------------------------------

    def trusts(self, endpoint: str, key: str) -> bool:
        return True

    def learn(self, news: object) -> None:
        """Ignore news of peers."""

    def take_subscription(self, link: Link, frame: bytes, key: str = "") -> None:
        """Send what a node has subscribed to, as an XPUB socket does by itself."""
        prefixes = dict.fromkeys(link.prefixes)
        if frame[:1] == b"\1":
            prefixes[frame[1:]] = None
        else:
            prefixes.pop(frame[1:], None)
        link.prefixes = tuple(prefixes)

    def take_frames(self, link: Link, frames: list[bytes]) -> None:
        self.received.append(frames)

    def take_beacon(self, frames: list[bytes]) -> None:
        if frames == [WELCOME]:
            self.announce_as(self.address, self.name, self.port)
            return
        endpoint = decode_tower_beacon(frames[:3]).endpoint
        own = endpoint == f"tcp://{self.name}:{self.port}"
        if not own and endpoint not in self._endpoints:
            self._endpoints[endpoint] = None
            self._network.connect(cast("Any", self), endpoint)


def _decoded(frames: list[bytes]) -> Message | None:
    try:
        return decode(frames)
    except ProtocolError:
        return None
