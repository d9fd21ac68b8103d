"""Gateways write to the registry: one lease for many changes, and takeovers; the registry's log."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Store, Tower
from dafka_core.errors import StoreError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import Promise, SetAside
from dafka_core.model.records import PartitionInfo, RecordBatch
from dafka_core.model.values import Values
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from dafka_kafka import partition_registry
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateways import Gateways
from dafka_kafka.partition_registry import LeaseState, PartitionRegistry
from dafka_kafka.registry_table import REGISTRY, Lead, RegistryLog, RegistryRecord
from tests.integration.kafka.conftest import OFTEN

ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
PATIENCE_S = 30.0


class Numbering:
    """A store with what of a gateway gives numbers."""

    def __init__(self, directory: Path, tower: str, port: int, **options: Any) -> None:
        self.store = Store(directory, tower=tower, **OFTEN | options)
        self.gateways = Gateways(self.store, "127.0.0.1", port)
        self.registry = PartitionRegistry(self.store, self.gateways)
        self.gateways.announce()
        self.registry.start()

    def create(self, topic: str, count: int, *, new: bool = False) -> None:
        asyncio.run(self.registry.create(topic, count, new=new))

    def extend(self, topic: str, count: int) -> None:
        asyncio.run(self.registry.extend(topic, count))

    def names(self, topic: str) -> list[str]:
        return [each.address for each in self.registry.table.partitions(topic)]

    def close(self) -> None:
        self.registry.close()
        self.store.close()


def meet(*all_: Numbering) -> None:
    wait_until(lambda: all(len(each.store.known.here) == len(all_) - 1 for each in all_))


def agree(topic: str, count: int, *all_: Numbering) -> list[str]:
    wait_until(lambda: all(len(each.names(topic)) >= count for each in all_))
    found = all_[0].names(topic)
    assert all(each.names(topic) == found for each in all_)
    return found


Start = Callable[[str], Numbering]


@pytest.fixture
def start(live_tower: Tower, tmp_path: Path) -> Iterator[Start]:
    """Start a store and its registry."""
    with ExitStack() as running:

        def make(name: str) -> Numbering:
            made = Numbering(tmp_path / name, live_tower.tower, 9_000 + len(name))
            running.callback(made.close)
            return made

        yield make


def refusal(work: Callable[..., object], *args: Any, **named: Any) -> tuple[int, str]:
    """Return the error of work that is refused."""
    with pytest.raises(RefusedError) as refused:
        work(*args, **named)
    return refused.value.code, refused.value.why


def lives(numbering: Numbering) -> int:
    """Return how often the registry was taken over."""
    return len(numbering.store.log.lives(REGISTRY).history)


def test_gateways_take_the_list_over_from_each_other_once_for_many_topics(
    start: Start, live_tower: Tower
) -> None:
    one, two = start("a"), start("bb")
    meet(one, two)
    one.create("topic-0", 1)
    for number, numbering in enumerate((two, one, one, two), 1):
        before = lives(numbering)
        numbering.create(f"topic-{number}", 1)
        agree(f"topic-{number}", 1, one, two)
        assert lives(numbering) == before + (number != 3)
        wait_until(lambda: lives(one) == lives(two))
    wait_until(lambda: one.registry._lease.state is LeaseState.FOLLOWING)
    live_tower.close()  # it needs no tower while it has the list
    two.create("alerts", 1)
    assert len(two.names("alerts")) == 1


def test_asking_again_for_what_is_there_changes_nothing(start: Start) -> None:
    one = start("a")
    one.create("flights", 2)
    before, found = one.names("flights"), one.registry.table.partitions("flights")
    assert [each.number for each in found] == [0, 1]
    assert len(set(before)) == 2
    assert all(each.hosted and each.gateway == one.store.address for each in found)
    assert one.registry.table.cluster_id
    one.create("flights", 2)
    assert one.names("flights") == before
    assert refusal(one.create, "flights", 2, new=True)[0] == KafkaError.TOPIC_ALREADY_EXISTS
    assert refusal(one.extend, "flights", 2)[0] == KafkaError.INVALID_PARTITIONS
    assert refusal(one.extend, "flihgts", 2)[0] == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    one.extend("flights", 5)
    assert one.names("flights")[:2] == before
    assert len(one.names("flights")) == 5


def test_a_topic_of_dafkas_is_numbered_and_can_be_added_to(start: Start, live_tower: Tower) -> None:
    one = start("a")
    with Producer("flights", tower=live_tower.tower) as producer:
        producer.publish(b"from Dafka")
        producer.flush(PATIENCE_S)
        asyncio.run(one.registry.refresh())
        assert one.names("flights") == [producer.address]
        assert refusal(one.create, "flights", 1, new=True)[0] == KafkaError.TOPIC_ALREADY_EXISTS
        one.create(
            "flights", 2
        )  # for writes of Kafka clients, which can't go to a producer's partition
        assert one.names("flights")[0] == producer.address
        assert [each.hosted for each in one.registry.table.partitions("flights")] == [
            False,
            True,
            True,
        ]


def test_both_threads_go_on_when_damaged_records_are_replaced(
    start: Start,
    live_tower: Tower,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(partition_registry, "RETRY_S", 0.05)
    one = start("a")
    one.create("flights", 1)
    refused, damaged = set[str](), True
    for kind, name in ((RegistryLog, "read"), (Gateways, "ranked")):
        work = getattr(kind, name)

        def fail(*args: Any, work: Any = work) -> Any:
            thread = threading.current_thread().name
            if damaged and thread.startswith("dafka-kafka-"):
                refused.add(thread)
                raise StoreError("a", "the block at offset 0 cannot be read")
            return work(*args)

        monkeypatch.setattr(kind, name, fail)
    with Producer("alerts", tower=live_tower.tower) as producer:
        producer.publish(b"from Dafka")
        producer.flush(PATIENCE_S)
        one.registry._scan()
        wait_until(lambda: refused == {"dafka-kafka-registry", "dafka-kafka-lease"})
        damaged = False
        agree("alerts", 1, one)
    assert caplog.text.count("the partition registry cannot be read") == 1


def test_stores_that_come_are_asked_to_agree_before_one_goes(start: Start) -> None:
    one = start("a")
    one.create("flights", 1)  # acknowledged by one store: all must answer the next lease
    two, three = start("bb"), start("ccc")
    all_ = one, two, three
    meet(*all_)
    wait_until(lambda: all(each.registry.log.is_committed_by(2) for each in all_))
    one.close()
    two.create("alerts", 1)
    agree("alerts", 1, two, three)


def test_without_a_majority_there_is_an_error_and_the_list_still_serves(start: Start) -> None:
    one, two = start("a"), start("bb")
    meet(one, two)
    one.create("flights", 2)
    two.close()
    wait_until(lambda: not one.store.known.here)
    code, why = refusal(one.create, "alerts", 1)
    assert (code, two.store.address in why) == (KafkaError.NOT_ENOUGH_REPLICAS, True)
    assert len(one.names("flights")) == 2
    assert not one.names("alerts")
    back = start("bb")
    one.create("alerts", 1)
    agree("alerts", 1, one, back)


def test_a_list_that_was_trimmed_is_not_gone_on_with(start: Start) -> None:
    one = start("a")
    one.create("flights", 1)
    one.store.log.trim(REGISTRY, 1)
    one.registry.close()
    one.registry = PartitionRegistry(one.store, one.gateways)
    one.registry.start()
    code, why = refusal(one.create, "flights", 1)
    assert (code, "trimmed" in why) == (KafkaError.KAFKA_STORAGE_ERROR, True)


def test_a_dead_tower_is_an_error_and_the_list_still_serves(
    start: Start, live_tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_registry, "IDLE_S", 0.0)
    one = start("a")
    one.create("flights", 2)
    wait_until(lambda: one.registry._lease.state is LeaseState.FOLLOWING)
    live_tower.close()
    code, why = refusal(one.create, "alerts", 1)
    assert (code, "tower" in why) == (KafkaError.NOT_ENOUGH_REPLICAS, True)
    assert len(one.names("flights")) == 2
    one.registry.close()
    assert refusal(one.create, "alerts", 1)[0] == KafkaError.NOT_CONTROLLER


# -- the registry in a log: its committed records, and when they apply -----------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as opened:
        yield opened


FIRST = Epoch.first(EpochId(1, 1, 1))


def write(log: Log, *records: RegistryRecord, epoch: Epoch = FIRST) -> None:
    values = Values.of([each.packed() for each in records])
    log.append([RecordBatch(REGISTRY, log.end(REGISTRY), values, epoch=epoch)])


def topic(name: str, *names: str) -> RegistryRecord:
    return RegistryRecord(topic=name, partitions=tuple((each, "G", True) for each in names))


def test_what_is_not_agreed_on_does_not_count(log: Log) -> None:
    found = RegistryLog(log)
    write(log, RegistryRecord(lease="AB"), topic("t", "P"))
    assert (len(found.read()), found.unsettled_since is None) == (0, False)
    write(log, RegistryRecord(committed=2))
    assert (len(found.read()), found.unsettled_since) == (1, None)
    write(log, RegistryRecord(lease="CD"), topic("u", "P"))
    assert len(found.read()) == 1
    assert len(found.read(4)) == 1
    assert (
        len(found.read(5)) == 2
    )  # a caller that knows the stores' answers need not wait for the record
    assert len(RegistryLog(log).read()) == 1


def test_what_is_agreed_on_counts_when_it_is_here(log: Log) -> None:
    found = RegistryLog(log)
    assert len(found.read(2)) == 0
    write(log, RegistryRecord(lease="AB"), topic("t", "P"))
    assert len(found.read()) == 1


def test_records_of_an_older_producer_are_not_those_of_a_newer_one(log: Log) -> None:
    found = RegistryLog(log)
    write(log, RegistryRecord(lease="AB"), RegistryRecord(committed=1))
    assert found.has(FIRST.life, 2)
    assert not found.has(FIRST.life, 3)
    assert not found.is_fenced(FIRST.life)
    newer = EpochId(2, 2, 1)
    assert not found.has(newer, 2)
    log.write([Promise(REGISTRY, newer)])
    assert found.is_fenced(FIRST.life)
    assert not found.is_fenced(newer)


def test_another_history_is_read_from_its_beginning(log: Log) -> None:
    write(log, RegistryRecord(lease="AB"), topic("t", "P"), RegistryRecord(committed=2))
    found = RegistryLog(log)
    assert list(found.read().topics) == ["t"]
    log.write([SetAside(REGISTRY, 0)])
    assert list(found.read().topics) == []
    other = Epoch.first(EpochId(2, 2, 1))
    write(
        log, RegistryRecord(lease="EF"), topic("u", "Q"), RegistryRecord(committed=2), epoch=other
    )
    assert list(found.read().topics) == ["u"]
    assert found.table.cluster_id == "EF"


def test_a_list_without_its_beginning_says_nothing_wrong(log: Log) -> None:
    write(log, RegistryRecord(lease="AB"), topic("t", "P"), RegistryRecord(committed=2))
    log.trim(REGISTRY, 2)
    assert len(RegistryLog(log).read()) == 0


def test_a_store_confirms_a_leader_unless_it_knows_a_newer_one(log: Log) -> None:
    lives = [EpochId(number, 7, 2) for number in (5, 6)]
    records = [RegistryRecord(owner="G", leader="G", life=each, stores=("G",)) for each in lives]
    write(log, records[0], RegistryRecord(committed=1))
    found = RegistryLog(log)
    found.read()
    old, new = (Lead("G", "G", life, ("G",), at) for at, life in zip((0, 2), lives, strict=True))
    assert found.table.leads == {"G": old}

    def head(end: int, life: EpochId = FIRST.life) -> PartitionInfo:
        return PartitionInfo(*REGISTRY, 0, end, life)

    assert all(found.confirms(old, each) for each in (None, head(1), head(2)))
    assert not found.confirms(old, head(3))  # it knows something that this store does not
    assert not found.confirms(old, head(2, EpochId(9, 9, 1)))
    assert not found.confirms(new, None)
    assert found.is_at(old, head(1))
    assert not found.is_at(old, head(1, EpochId(9, 9, 1)))
    assert not found.is_at(new, head(2))
    write(log, records[1])  # which is not committed, and counts all the same
    assert not any(found.confirms(old, each) for each in (None, head(1), head(3)))
    assert found.confirms(new, head(3))
    assert (found.table.leads, found.life("G")) == ({"G": old}, new.life)
    assert found.is_at(new, head(3))
    log.write([SetAside(REGISTRY, 2)])
    assert found.confirms(old, head(2))
    assert (found.table.leads, found.life("G")) == ({"G": old}, old.life)
    invalid = RegistryRecord(owner="G", leader="", life=EpochId(9, 9, 2))
    write(log, invalid, RegistryRecord(committed=3))
    assert found.confirms(old, head(2))  # any producer may write there
    assert (found.read().skipped, found.life("H")) == (1, NO_LIFE)
