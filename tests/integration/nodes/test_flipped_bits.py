"""Bits flip in the file of one of three running stores: no reader receives anything wrong.

Damaged records are refused, read at the other stores, and replaced by theirs.  With a damaged row a
store cannot list its partitions, so it ends, as it would refuse to start.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dafka_core import Consumer, Reader, Store
from dafka_core.errors import DafkaError, StoreError
from dafka_core.flight.requests import OffsetsRequest
from dafka_core.model.records import TopicPartition
from dafka_core.nodes import store_backup
from dafka_core.storage.log_check import Damage
from dafka_core.storage.snapshot import PartitionStatistics
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Consume, Produce
from tests.integration.nodes.content import flushed, polled, stored
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.nodes.staging import client_of, read

BLOCKS = [b"large %d " % number * 100 for number in range(300)]  # records of several blocks
GROUPED = [b"small %d " % number for number in range(3)]  # records that stay in the append area
DIRECTORY_AT = -96  # where the directory of their group is, or a header, before the second of them


def flip(store: Store, content: bytes, at: int = 0) -> None:
    """Flip a bit of each copy of some content in a running store's file, ``at`` bytes after it."""
    data = store.log.directory / "data.mdb"
    before, found = data.read_bytes(), -1
    with data.open("r+b") as file:
        while (found := before.find(content, found + 1)) >= 0:
            file.seek(found + at)
            file.write(bytes([before[found + at] ^ 4]))
    assert data.read_bytes() != before


def found_damage(store: Store) -> list[Damage]:
    return [each for part in store_backup.verify(str(store.log.directory)) for each in part.found]


def damaged_count(store: Store) -> int:
    """Return the number that 'dafka status' and 'dafka doctor' show."""
    with client_of(store) as client:
        return client.ask(PATIENCE_S, OffsetsRequest(()))[0].damaged


def statistics(store: Store, tp: TopicPartition) -> PartitionStatistics | None:
    """Return a partition's statistics; None as long as a group with it is damaged."""
    with suppress(StoreError):
        return store.log.statistics(tp)
    return None


class ThreeStores:
    """Stores with the same records: one whose bits flip, and two others."""

    def __init__(self, tower: str, directory: Path) -> None:
        self._tower, self._directory = tower, directory
        self._running: dict[str, Store] = {}
        self.damaged, *_ = (self.start(name) for name in "abc")

    def start(self, name: str) -> Store:
        store = self._running[name] = Store(self._directory / name, tower=self._tower)
        return store

    def stop_others(self) -> None:
        for name in "bc":
            self._running.pop(name).close()

    def start_others(self) -> None:
        for name in "bc":
            self.start(name)

    def close(self) -> None:
        for store in self._running.values():
            store.close()


@pytest.fixture
def stores(tower: str, tmp_path: Path) -> Iterator[ThreeStores]:
    with closing(ThreeStores(tower, tmp_path)) as stores:
        yield stores


def published(produce: Produce, contents: list[bytes]) -> TopicPartition:
    """Return a partition with these records at all three stores, in several blocks if many."""
    producer = produce("t", acks=3)
    for first in range(0, len(contents), 100):
        flushed(producer, contents[first : first + 100])
    return TopicPartition("t", producer.address)


def polled_all(consumer: Consumer, tp: TopicPartition, contents: list[bytes]) -> bool:
    return [polled(consumer) for _ in contents] == [(*tp, *each) for each in enumerate(contents)]


@pytest.mark.parametrize(("contents", "at"), [(BLOCKS, 0), (GROUPED, 0), (GROUPED, DIRECTORY_AT)])
def test_damaged_records_are_replaced_by_those_of_other_stores(
    stores: ThreeStores,
    produce: Produce,
    consume: Consume,
    contents: list[bytes],
    at: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No reader receives a wrong record meanwhile, and the store runs on."""
    tp, damaged = published(produce, contents), stores.damaged
    flip(damaged, contents[1], at)
    stores.stop_others()
    consumer, new = consume("t", start="earliest"), stores.start("new")
    wait_until(lambda: "are not replaced yet" in caplog.text)
    assert (consumer.poll(0), new.log.end(tp)) == (None, 0)
    assert damaged.log.healer.damaged == {tp}
    assert {each.partition for each in found_damage(damaged)} == {tp.partition}
    assert damaged_count(damaged) == 1
    stores.start_others()
    assert polled_all(consumer, tp, contents)
    wait_until(lambda: not damaged.log.healer.damaged)
    assert "are replaced by those of store" in caplog.text
    assert damaged.heal_thread.healed_count == (100 if contents is BLOCKS else 3)
    assert stored(damaged, *tp) == contents
    assert not found_damage(damaged)
    assert damaged_count(damaged) == 0
    wait_until(lambda: statistics(damaged, tp))
    wait_until(lambda: new.log.end(tp) == len(contents))
    assert stored(new, *tp) == contents
    damaged.close()
    again = stores.start("a")
    assert stored(again, *tp) == contents


def test_damage_is_replaced_after_a_restart(stores: ThreeStores, produce: Produce) -> None:
    tp = published(produce, GROUPED)
    flip(stores.damaged, GROUPED[1])
    stores.damaged.close()
    again = stores.start("a")
    with pytest.raises(StoreError, match="cannot be read"):
        stored(again, *tp)
    wait_until(lambda: again.heal_thread.healed_count == len(GROUPED))
    assert stored(again, *tp) == GROUPED
    flushed(produce("t", acks=3), GROUPED)


def test_flight_refuses_damaged_records_and_serves_others(
    stores: ThreeStores, produce: Produce
) -> None:
    tp, intact = published(produce, BLOCKS), published(produce, [b"intact"] * 3)
    flip(stores.damaged, BLOCKS[1])
    with client_of(stores.damaged) as client:
        with pytest.raises(DafkaError, match="damaged"):
            read(client, len(BLOCKS), tp.partition)
        assert read(client, 3, intact.partition) == [b"intact"] * 3
    wait_until(lambda: not stores.damaged.log.healer.damaged)
    with client_of(stores.damaged) as client:
        assert read(client, len(BLOCKS), tp.partition) == BLOCKS


def test_a_store_with_a_damaged_row_ends_and_the_others_answer(
    stores: ThreeStores, produce: Produce, consume: Consume, tower: str
) -> None:
    """It was silent, and everything that waits for the answers of all stores failed."""
    tp = published(produce, GROUPED)
    name = f"{tp.topic}\0{tp.partition}".encode()
    flip(stores.damaged, name, len(name) + 4)
    assert polled_all(consume("t", start="earliest"), tp, GROUPED)
    with pytest.raises(StoreError, match="its row does not match its checksum"):
        stores.damaged.wait(PATIENCE_S)
    with Reader(tower=tower) as reader:
        (found,) = reader.partitions(timeout_s=PATIENCE_S)
    assert (found.tp, found.end) == (tp, 3)
    flushed(produce("t", acks=2), GROUPED)
