"""The store takes every partition in order and acknowledges what is on disk, and only that."""

from typing import NoReturn

import pytest

from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.log_entries import StoreSeen
from dafka_core.model.records import PartitionLives, RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_limits import StoreLimits
from dafka_core.protocol.store_partition import StorePartition
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, offsets_of

ME = "3B6B7CF3E064452E83D012EC823A4DD9"
OTHER = "C907107406D149E897A2DEA4F157F211"
SYNC_S = 30.0


class Disk:
    """The node's part: a log that reports synced entries to the role."""

    def __init__(self, **held: int) -> None:
        self.batches: dict[TopicPartition, list[RecordBatch]] = {}
        self.met: list[str] = []
        self._held = held

    def end(self, tp: TopicPartition) -> int:
        batches = self.batches.get(tp)
        return batches[-1].end if batches else self._held.get(tp.topic, 0)

    def lives(self, tp: TopicPartition) -> PartitionLives:
        return PartitionLives(self.end(tp), (), NO_LIFE)

    def store(self, role: StoreRole) -> list[Outgoing]:
        """Stores what is pending; the acknowledgements."""
        pending = role.take_pending()
        for batch in pending:
            if isinstance(batch, StoreSeen):
                self.met.append(batch.store)
                continue
            assert isinstance(batch, RecordBatch)
            assert batch.offset == self.end(batch.tp)
            self.batches.setdefault(batch.tp, []).append(batch)
        return role.on_stored(pending)

    def offsets(self, topic: str = TOPIC, partition: str = PARTITION) -> list[int]:
        return offsets_of(self.batches.get(TopicPartition(topic, partition), []))


def store(disk: Disk | None = None, **most: int) -> StoreRole:
    """Return a store that asks others for their heads, with these limits."""
    lives = (disk or Disk()).lives
    role = StoreRole(ME, lives, sync_interval_s=SYNC_S, limits=StoreLimits(most))
    assert role.on_tick(0.0) == [m.GetHeads("", ME)]
    return role


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def role(disk: Disk) -> StoreRole:
    return store(disk)


def ack(
    end: int, partition: str = PARTITION, topic: str = TOPIC, life: EpochId = NO_LIFE
) -> m.EpochAck:
    return m.EpochAck(topic, partition, end - 1, ME, life)


def fetch(start: int, end: int) -> m.Fetch:
    return m.Fetch(ME, TOPIC, PARTITION, start, end - start)


def head(role: StoreRole, end: int, now: float = 0.0) -> list[Outgoing]:
    return role.on_message(now, m.Head(TOPIC, PARTITION, end - 1), "")


# -- acknowledgements -----------------------------------------------------------------------------


def test_acknowledges_only_what_is_on_disk(disk: Disk, role: StoreRole) -> None:
    for _ in range(2):
        assert role.on_batch(0.0, "", batch_of(0, 10)) == []
        assert role.on_tick(0.1) == []
    assert head(role, 10) == []
    assert role.on_tick(0.2) == []
    assert disk.store(role) == [ack(10)]
    assert role.on_tick(0.3) == []
    assert role.take_pending() == []
    role.on_batch(0.0, "", batch_of(10, 20))
    role.on_batch(0.0, "", batch_of(0, 10))
    assert role.on_tick(0.4) == [ack(10)]


def test_one_acknowledgement_for_a_partition_of_a_group(disk: Disk, role: StoreRole) -> None:
    for start in range(0, 100, 10):
        role.on_batch(0.0, "", batch_of(start, start + 10))
        role.on_batch(0.0, "", batch_of(start, start + 10, partition="P2"))
    assert disk.store(role) == [ack(100), ack(100, "P2")]
    assert disk.offsets() == disk.offsets(partition="P2") == list(range(100))


def test_acknowledges_again_when_a_record_arrives_again(disk: Disk, role: StoreRole) -> None:
    role.on_batch(0.0, "", batch_of(0, 10))
    disk.store(role)
    for batch in (batch_of(0, 10), batch_of(3, 4), batch_of(9, 10)):
        # The sender has not received the ACK; C stores send none, so it would wait for ever.
        assert role.on_batch(1.0, "", batch) == []
        assert role.on_tick(1.0) == [ack(10)]
        assert role.take_pending() == []
    # Half of it is new.
    role.on_batch(2.0, "", batch_of(5, 15))
    assert disk.store(role) == [ack(15)]
    assert disk.offsets() == list(range(15))


@pytest.mark.parametrize("end", [1, 5, 10])
def test_acknowledges_again_for_a_head_that_is_on_disk(end: int) -> None:
    role = store(Disk(hello=10))
    assert head(role, end) == []
    assert role.on_tick(0.0) == [ack(10)]
    assert head(role, 11) == [fetch(10, 11)]
    assert role.on_tick(0.0) == []


def test_acknowledges_again_when_a_producer_subscribes(disk: Disk, role: StoreRole) -> None:
    role.on_batch(0.0, "", batch_of(0, 10))
    role.on_batch(0.0, "", batch_of(0, 5, "t2"))
    role.on_batch(0.0, "", batch_of(0, 5, "t2", "P2"))
    disk.store(role)
    assert role.on_subscribed(1.0, m.Ack, PARTITION) == []
    assert role.on_tick(1.0) == [ack(10), ack(5, topic="t2")]
    assert role.on_subscribed(1.0, m.Ack, "P3") == []
    assert role.on_tick(1.0) == []


class Unlisted(dict[TopicPartition, StorePartition]):
    """Partitions that are too many to be listed."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all partitions were visited")

    items = values = __iter__


def test_a_producer_comes_and_goes_whatever_the_number_of_partitions_is(
    disk: Disk, role: StoreRole
) -> None:
    role.on_batch(0.0, "", batch_of(0, 10))
    disk.store(role)
    role.partitions = Unlisted(role.partitions)
    assert role.on_subscribed(1.0, m.Ack, PARTITION) == []
    assert role.on_tick(1.0) == [ack(10)]
    role.on_peer(2.0, PeerNews(PARTITION, is_lost=True))


def test_a_partition_without_stored_records_is_not_acknowledged(role: StoreRole) -> None:
    head(role, 5)
    role.on_subscribed(0.0, m.Ack, PARTITION)
    assert role.on_tick(0.0) == []


# -- records --------------------------------------------------------------------------------------


def test_a_new_subscriber_to_fetches_is_asked_at_once(role: StoreRole) -> None:
    head(role, 5)
    role.on_subscribed(0.0, m.Fetch, "P2")
    assert role.on_tick(0.0) == []
    role.on_subscribed(0.0, m.Fetch, PARTITION)
    assert role.on_tick(0.0) == [fetch(0, 5)]


def test_catches_up_with_another_store() -> None:
    disk = Disk(hello=3)
    role = store(disk)
    assert role.on_message(0.0, m.StoreHello(ME, OTHER), "") == [m.GetHeads("", ME)]
    messages = role.on_message(0.0, m.DirectHead(ME, TOPIC, PARTITION, 8), "")
    assert messages == [fetch(3, 9)]
    role.on_batch(0.0, "C", batch_of(3, 9))  # an answer to another node
    assert role.next_offset(TP) == 3
    role.on_batch(0.0, ME, batch_of(3, 9))
    assert disk.store(role) == [ack(9)]
    # The other store is noted on disk: a resuming producer relies on it.
    assert disk.met == [OTHER]
    role.on_message(0.0, m.StoreHello(ME, OTHER), "")
    assert role.take_pending() == []


def test_a_store_that_announces_a_head_is_asked_at_once(role: StoreRole) -> None:
    assert head(role, 9) == [fetch(0, 9)]
    assert head(role, 9) == []
    message = m.DirectHead(ME, TOPIC, PARTITION, 8)
    assert role.on_message(0.0, message, "") == [fetch(0, 9)]
    # Not once more when an answer is coming.
    role.on_batch(0.1, ME, batch_of(0, 5))
    assert role.on_message(0.1, message, "") == []


def test_partitions_are_bounded() -> None:
    role = store(max_partitions=10)
    for i in range(30):
        role.on_message(0.0, m.Head(TOPIC, f"P{i}", 5), "")
        role.on_batch(0.0, "", batch_of(0, 1, partition=f"P{i}"))
    assert len(role.take_pending()) == 10
    assert len(role.partitions) == 10
    assert role.limits.refused["max_partitions"] == 40


# -- other nodes ----------------------------------------------------------------------------------


def test_other_stores_are_asked_for_their_heads_at_an_interval() -> None:
    role = StoreRole(ME, Disk().lives, sync_interval_s=SYNC_S)
    times = [t for t in range(100) if role.on_tick(float(t)) == [m.GetHeads("", ME)]]
    assert times == [0, 30, 60, 90]
    assert role.deadline(99.0) == 120.0


def test_a_subscriber_to_hellos_is_greeted(role: StoreRole) -> None:
    assert role.on_subscribed(0.0, m.StoreHello, "C") == [m.StoreHello("C", ME)]
    assert role.on_subscribed(0.0, m.StoreHello, ME) == []
    assert role.on_subscribed(0.0, m.StoreHello, "") == []
    assert role.on_subscribed(0.0, m.TimesReply, "C") == [
        m.HeadsReply("C", m.UNSOLICITED, ME, 0, 1, ())
    ]
    assert "C" in role.packing
    role.on_peer(0.0, PeerNews("C", is_lost=True))
    assert "C" in role.packing  # it may be late, and does not subscribe anew
    assert role.on_subscribed(0.0, m.RecordMessage, "") == []


def test_a_store_that_subscribes_is_asked_for_its_heads(role: StoreRole) -> None:
    assert role.on_subscribed(0.0, m.GetHeads, "") == [m.GetHeads("", ME)]
    assert role.on_subscribed(0.0, m.GetHeads, TOPIC) == []


def test_its_own_hello_is_not_answered() -> None:
    assert store().on_message(0.0, m.StoreHello(ME, ME), "") == []
