"""Two stores that lose power at the same moment, and meet again when it is back.

Real nodes write: Dafka's producers, transactions over Flight, and Kafka's clients through both
stores' gateways.  Afterwards the two images meet in the simulated network, and clients continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dafka_core import Producer, Store, Tower
from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import LogEntry
from dafka_core.model.records import StagedTransaction, TopicPartition
from dafka_core.nodes import store_backup
from dafka_core.nodes.store_identity import address_of
from dafka_core.storage import Log, append_area, entry_writer
from dafka_core.testing.waiting import PATIENCE_S, wait_until
from dafka_kafka.gateway import Gateway
from dafka_kafka.groups.offsets import OFFSETS_TOPIC, GroupRecord, Offsets
from dafka_kafka.producer_states import NOTES, ProducerKey, ProducerState
from dafka_kafka.registry_table import REGISTRY, NumberedPartition, RegistryLog
from tests.integration.storage.processes import values_of
from tests.powerloss.workload import State, Workload
from tests.simulation.scripts.script import Script, ScriptedStore, tp_of

NAMES: Final = "one", "two"
"""The stores; and the producers, which wait for as many acknowledgements."""

ONE, TWO = (tp_of(name) for name in NAMES)

COMMITTED: Final = tp_of("committed")  # the partition of transactions
TOPIC: Final = "kafka"  # its two partitions are written by an idempotent client

GROUP: Final = "group"

AT_BOTH: Final = " at both stores"


SLOW_S: Final = 0.03
"""What a write takes longer at one of the stores, so that the other one is ahead."""


def slow_down(log: Log) -> None:
    write = log.write

    def write_slowly(entries: Sequence[LogEntry]) -> list[DafkaError | None]:
        time.sleep(SLOW_S)
        return write(entries)

    log.write = write_slowly  # type: ignore[method-assign]


def values(name: str, start: int, end: int) -> list[bytes]:
    return [f"{name} {at},".encode() * (1 + at * 7919 % 97) for at in range(start, end)]


class StorePair(Workload):
    """A state has ends of partitions, and other numbers that only grow."""

    first: ClassVar[State] = {}

    def run(self) -> None:
        entry_writer.SMALL_BLOCK_BYTES = append_area.MOVED_BYTES = 2_000
        append_area.APPENDED_GROUPS, append_area.FAN_IN = 3, 2
        self._state: dict[str, int] = {}
        self._producers: dict[str, Producer] = {}
        with ExitStack() as nodes:
            any_port = "tcp://127.0.0.1:0"
            tower = nodes.enter_context(Tower(sub_address=any_port, pub_address=any_port))
            self._tower, self._nodes = tower.tower, nodes
            stores = [
                nodes.enter_context(Store(self.root / name, tower=self._tower)) for name in NAMES
            ]
            wait_until(lambda: all(store.known.here for store in stores))
            gateways = [nodes.enter_context(Gateway(each, listen="127.0.0.1:0")) for each in stores]
            self._logs = [each.log for each in stores]
            slow_down(self.chance.choice(self._logs))
            self._clients = [
                nodes.enter_context(StoreClient(StoreLocation(each.address, each.locations)))
                for each in stores
            ]
            bootstrap = ",".join(str(each.listens) for each in gateways)
            servers: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
            self._admin = AdminClient(servers)
            self._create_topic(TOPIC, 2)
            self._kafka = confluent_kafka.Producer({**servers, "enable.idempotence": True})
            self._consumer = confluent_kafka.Consumer({**servers, "group.id": GROUP})
            nodes.callback(self._consumer.close)
            work: list[Callable[[], None]] = [self._commit] * 4
            work += [partial(self._publish, name) for name in NAMES] * 4
            work += [partial(self._produce, number) for number in (0, 1)] * 3
            work += [self._commit_offset] * 3 + [self._create_topic] * 2
            self.chance.shuffle(work)
            for each in work:
                each()

    def _step(self, **numbers: int) -> AbstractContextManager[None]:
        self._state = {**self._state, **numbers}
        return self.step(self._state)

    def _publish(self, name: str) -> None:
        if self.chance.random() < 0.3 and name in self._producers:
            self._producers.pop(name).close()
        if name not in self._producers:
            address, acks = tp_of(name).partition, 1 + NAMES.index(name)
            producer = Producer("t", address=address, tower=self._tower, acks=acks)
            self._producers[name] = self._nodes.enter_context(producer)
        start = self._state.get(name, 0)
        end = start + self.chance.choice((1, 30, 2_000))
        with self._step(**{name: end}):
            assert self._producers[name].publish_many(values(name, start, end)) == start
            self._producers[name].flush(PATIENCE_S)

    def _commit(self) -> None:
        start, version = (self._state.get(name, 0) for name in ("committed", "version"))
        wait_until(lambda: all(log.end(COMMITTED) == start for log in self._logs))
        client, attempt = self.chance.choice(self._clients), f"{self.chance.getrandbits(128):032X}"
        end, version = start + self.chance.choice((1, 700)), version + 1
        with client.put(
            COMMITTED, start, attempt=attempt, version=version, timeout_s=PATIENCE_S
        ) as put:
            put.write(pa.array(values("committed", start, end), pa.binary()))
            put.finish(PATIENCE_S)
        with self._step(committed=end, version=version):
            transaction = StagedTransaction(*COMMITTED, attempt, start, end, version)
            client.commit([transaction], timeout_s=PATIENCE_S)

    def _produce(self, number: int) -> None:
        name = f"{TOPIC} {number}"
        start = self._state.get(name, 0)
        end = start + self.chance.choice((1, 30, 300))
        with self._step(**{name: end}):
            for each in values(name, start, end):
                self._kafka.produce(TOPIC, each, partition=number)
            assert self._kafka.flush(PATIENCE_S) == 0

    def _commit_offset(self) -> None:
        offset = self._state.get("offset", 0) + self.chance.randint(1, 50)
        committed = confluent_kafka.TopicPartition(TOPIC, 0, offset)
        with self._step(offset=offset):
            self._consumer.commit(offsets=[committed], asynchronous=False)

    def _create_topic(self, name: str = "", partition_count: int = 1) -> None:
        created = self._state.get("partitions", 0)
        with self._step(partitions=created + partition_count):
            new = NewTopic(name or f"other.{created}", partition_count)
            for each in self._admin.create_topics([new]).values():
                each.result()

    # -- the check -------------------------------------------------------------------------------

    def is_allowed(self, found: State, done: State, begun: State) -> bool:
        def in_range(name: str, end: int) -> bool:
            step = name.removesuffix(AT_BOTH)
            return bool(done.get(step, 0) <= end <= begun.get(step, 0))

        return all(in_range(*each) for each in found.items())

    def state(self) -> State:
        script = Restart(self.root)
        with script.closing:
            stores = one, two = [RestartedStore(script, name) for name in NAMES]
            before = [ends(store.log) for store in stores]
            noted = {tp for store in stores for tp in noted_partitions(store.log)}
            assert noted == {tp for each in before for tp in each if tp.topic == TOPIC}
            script.meet(stores)
            assert contents(one.log) == contents(two.log)
            numbered = numbered_partitions(one.log)
            assert numbered == numbered_partitions(two.log)
            found = {
                "partitions": sum(each.hosted for each in numbered),
                "offset": committed_offset(one.log),
            }
            tps = {"one": ONE, "two": TWO, "committed": COMMITTED}
            tps |= {f"{TOPIC} {each.number}": each.tp for each in numbered if each.topic == TOPIC}
            for name, tp in tps.items():
                end = found[name] = one.log.end(tp)
                assert not end or values_of(one.log, tp) == values(name, 0, end), name
                if name not in ("one", "committed"):
                    found[name + AT_BOTH] = min(each.get(tp, 0) for each in before)
            transaction = one.log.transaction_state(COMMITTED).transaction
            found["version"] = transaction.version if transaction else 0
            assert found["committed"] == (transaction.end if transaction else 0)
            self._continue(script, stores, found)
        for name in NAMES:
            parts = store_backup.verify(str(self.root / name))
            assert [each for part in parts for each in part.found] == []
        return found

    def _continue(
        self, script: Restart, stores: Sequence[ScriptedStore], found: dict[str, int]
    ) -> None:
        """Write more everywhere, also over what transactions and the cut have left."""
        for name in NAMES:
            producer = script.producer("t", name, acks=2, resume=True)
            start = producer.role.next_offset
            assert start == found[name]
            script.checkers.published[producer.tp] = values(name, 0, start)
            producer.publish(contents=values(name, start, start + 300))
            producer.flush()
            for store in stores:
                assert values_of(store.log, producer.tp) == values(name, 0, start + 300)
        end = found["committed"]
        self.chance.choice(stores).transact(COMMITTED, end, end + 300, found["version"] + 1)
        script.until(lambda: all(store.log.end(COMMITTED) == end + 300 for store in stores))
        for store in stores:
            while store.log.merge_step():
                pass
        assert contents(stores[0].log) == contents(stores[1].log)


class RestartedStore(ScriptedStore):
    """A store with the address of its directory."""

    def own_address(self, name: str) -> str:
        return address_of(self.script.directory / name) or super().own_address(f"store {name}")


class Restart(Script):
    """The simulated network after the cut, at the machine's time."""

    def now_us(self) -> int:
        return self._begin_us + int(self.world.now * 1e6)

    def __init__(self, directory: Path) -> None:
        self._begin_us = time.time_ns() // 1_000
        super().__init__(directory)

    def meet(self, stores: Sequence[ScriptedStore]) -> None:
        """Let time pass until both stores have the same partitions."""
        for info in (info for store in stores for info in store.log.partitions()):
            self.checkers.liars.add(info.partition)  # the checkers did not see their records
        self.until(lambda: all(store.mesh.peers.table.announced for store in stores))
        self.run(3)
        one, two = stores
        self.until(lambda: one.log.partitions() == two.log.partitions(), "the stores to agree")


def ends(log: Log) -> dict[TopicPartition, int]:
    return {info.tp: info.end for info in log.partitions()}


def contents(log: Log) -> list[tuple[object, ...]]:
    """Return all that stores must agree on: records, their times, lives and transactions."""
    return [
        (
            info,
            values_of(log, info.tp),
            log.times(info.tp, info.earliest, info.end),
            log.lives(info.tp).history,
            log.transaction_state(info.tp).transaction,
        )
        for info in log.partitions()
    ]


def noted_partitions(log: Log) -> Iterator[TopicPartition]:
    """Yield the partitions with the state of an idempotent producer, which must match the end."""
    for name, note in log.notes(NOTES).items():
        key, state = ProducerKey.parse(name), ProducerState.unpack(note)
        tp = TopicPartition(key.topic, key.partition)
        assert state.batches[-1].end == log.end(tp)
        yield tp


def numbered_partitions(log: Log) -> list[NumberedPartition]:
    table = RegistryLog(log).read(committed=log.end(REGISTRY))
    assert table.skipped == 0
    return [each for topic in sorted(table.topics) for each in table.partitions(topic)]


def committed_offset(log: Log) -> int:
    """Return the offset that the group has committed; 0 if none."""
    offsets = Offsets()
    for info in log.partitions(OFFSETS_TOPIC):
        for at, each in enumerate(values_of(log, info.tp), info.earliest):
            offsets.take(info.partition, GroupRecord.parse(each), at)
    found = offsets.committed(GROUP).get((TOPIC, 0))
    return found.offset if found else 0
