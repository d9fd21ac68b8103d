"""A partition in a store: its state, a newer life, clients' records, and lost records."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from dafka_core.errors import OffsetConflictError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import RestartPartition, StoreSeen
from dafka_core.model.records import PartitionInfo, PartitionLives, RecordBatch, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol import store_partition, timing
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.partition_fetcher import FetchState, ReorderBudget
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import KnownStores
from dafka_core.protocol.store_partition import StorePartition, TrimmedGaps
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, batches_in
from tests.unit.protocol.test_store_role import ME, OTHER, Disk, ack, head, store

A = Epoch(1, 0xA, 1, 0, 0)
B = Epoch(2, 0xB, 1, 5, A.digest)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def role(disk: Disk) -> StoreRole:
    return store(disk)


def partition(end: int = 9) -> StorePartition:
    return StorePartition(TP, end, ReorderBudget(), history=(A, B))


@pytest.mark.parametrize(("start", "history"), [(7, (A, B)), (5, (A,)), (3, (A,))])
def test_replaced_records_are_requested(start: int, history: tuple[Epoch, ...]) -> None:
    made = replace(partition(), staged=Transaction(1, 9, 12))
    made.replace_from(start, 20, EpochId(9, 9, 1))
    assert made.newest == EpochId(9, 9, 1)
    assert (made.durable, made.visible_end) == (start, start)
    assert made.staged is None
    assert made.history == history
    assert (made.next_offset, made.head) == (start, 20)
    assert made.state(0.0) is FetchState.BEHIND


def test_a_batch_continues_a_partial_transaction_or_proves_it_complete() -> None:
    transaction = Transaction(1, 0, 20)
    first = replace(batch_of(0, 9), transaction=transaction)
    last = replace(batch_of(9, 20), transaction=transaction)
    plain, another = batch_of(9, 12), replace(batch_of(9, 12), transaction=Transaction(2, 9, 15))
    assert partition(0).extend(batch_of(0, 9)).transaction is None
    for batch, stored, end in ((last, last, 20), (plain, plain, 12), (another, plain, 12)):
        made = partition(0)
        assert made.extend(first) == first
        assert (made.staged, made.visible_end) == (transaction, 0)
        assert made.extend(batch) == stored
        assert (made.staged, made.visible_end) == (None, end)


HOSTED = EpochId(1, 0, 1)  # the first life of what clients write to the store

HEAD = [m.Head(TOPIC, PARTITION, 9)]


def heads_in(messages: list[Outgoing]) -> list[Outgoing]:
    return [message for message in messages if isinstance(message, m.Head)]


def test_a_put_is_published_when_it_is_on_disk(disk: Disk, role: StoreRole) -> None:
    assert isinstance(role.host(0.0, batch_of(0, 10)), RecordBatch)
    assert role.on_tick(0.0) == []
    assert role.pending_bytes == 10 * 9
    (batch,) = role.pending
    assert isinstance(batch, RecordBatch)
    acked, record, announced = disk.store(role)
    assert acked == ack(10, life=HOSTED)
    assert [message.batch for message in batches_in([record])] == [batch]
    assert batch.epoch == Epoch.first(HOSTED)
    assert [announced] == HEAD
    assert disk.offsets() == list(range(10))


def test_a_put_must_begin_where_the_partition_ends(disk: Disk, role: StoreRole) -> None:
    assert role.next_offset(TP) == 0
    assert isinstance(role.host(0.0, batch_of(1, 10)), OffsetConflictError)  # a gap
    assert isinstance(role.host(0.0, batch_of(0, 10)), RecordBatch)
    assert role.next_offset(TP) == 10  # also while it is not on disk
    for overlapping in (batch_of(0, 10), batch_of(5, 15), batch_of(0, 1)):
        assert isinstance(role.host(0.0, overlapping), OffsetConflictError)
    assert isinstance(role.host(0.0, batch_of(10, 20)), RecordBatch)
    disk.store(role)
    assert isinstance(role.host(0.0, batch_of(21, 22)), OffsetConflictError)
    assert disk.offsets() == list(range(20))


def test_the_head_is_repeated_for_a_while(disk: Disk, role: StoreRole) -> None:
    role.host(0.0, batch_of(0, 10))
    assert role.on_tick(0.0) == []  # nothing is on disk yet
    disk.store(role)
    now, announced = 0.0, 0
    while now < 3 * timing.HOSTED_HEADS_S:
        due = role.deadline(now)
        now = max(due, now + 0.01)
        heads = heads_in(role.on_tick(now))
        assert heads in ([], HEAD)
        assert not heads_in(role.on_tick(now))  # the next round begins at once
        announced += len(heads)
    assert (
        timing.HOSTED_HEADS_S / timing.HOSTED_HEAD_INTERVAL_S - 1
        <= announced
        <= timing.HOSTED_HEADS_S / timing.HOSTED_HEAD_INTERVAL_S + 2
    )


def test_a_partition_with_records_of_a_producer_is_no_longer_hosted() -> None:
    disk = Disk()
    role = store(disk)
    role.host(0.0, batch_of(0, 10))
    disk.store(role)
    role.on_batch(0.0, "", batch_of(5, 10))  # nothing new: another store's copy
    assert heads_in(role.on_tick(1.0)) == HEAD
    # Without an epoch, so it counts as of the last one.
    role.on_batch(2.0, "", batch_of(10, 20))
    assert disk.store(role) == [ack(20, life=HOSTED)]
    assert heads_in(role.on_tick(3.0)) == []


def test_kept_records_follow_a_put(disk: Disk, role: StoreRole) -> None:
    role.on_batch(0.0, "", batch_of(10, 20))
    assert isinstance(role.host(0.0, batch_of(0, 10)), RecordBatch)
    disk.store(role)
    assert disk.offsets() == list(range(20))
    assert role.next_offset(TP) == 20


def test_a_head_above_the_end_does_not_delay_a_put() -> None:
    role = store(Disk())
    head(role, 50)  # forged, or of an earlier life with lost records
    assert isinstance(role.host(0.0, batch_of(0, 10)), RecordBatch)


def test_hosted_partitions_are_bounded(disk: Disk, role: StoreRole) -> None:
    for index in range(store_partition.MAX_HOSTED + 10):
        role.host(0.0, batch_of(0, 1, partition=f"P{index}"))
    disk.store(role)
    heads = heads_in(role.on_tick(2.0))
    assert len(heads) == store_partition.MAX_HOSTED
    assert heads[0] == m.Head(TOPIC, "P10", 0)


def test_a_store_sends_requestors_its_endpoints() -> None:
    role = store(Disk())
    assert role.on_subscribed(0.0, m.StoreEndpoints, OTHER) == []  # it cannot
    role.known.locations = ("grpc://h:1",)
    told = [m.StoreEndpoints(OTHER, ME, ("grpc://h:1",))]
    assert role.on_subscribed(0.0, m.StoreEndpoints, OTHER) == told
    assert role.on_subscribed(0.0, m.StoreEndpoints, ME) == []
    # Subscriptions arrive in the order of their bytes: the greeting is the last message.
    assert role.on_subscribed(0.0, m.TimesReply, OTHER) != []


def test_endpoints_of_other_stores_are_kept_while_they_are_present() -> None:
    role = store(Disk())
    for index in range(MAX_STORES + 5):
        role.on_message(0.0, m.StoreEndpoints(ME, f"S{index}", ("grpc://h:1",)), "")
    assert len(role.known.endpoints) == MAX_STORES
    role.on_message(0.0, m.StoreEndpoints(ME, "S1", ("grpc://h:2",)), "")
    assert role.known.endpoints["S1"] == ("grpc://h:2",)
    role.on_peer(0.0, PeerNews("S1", is_lost=True))
    assert "S1" not in role.known.endpoints


OWN, ONE, TWO = "0" * 32, "1" * 32, "2" * 32
OLD = Epoch.first(EpochId(1, 1, 1))
NEW = Epoch(2, 2, 1, 50, OLD.digest)
LATER = Epoch(3, 3, 1, 200, NEW.digest)
LONG = timing.STORE_LOSS_S + timing.STORE_LOSS_CHECK_S


class Waiting:
    """A store with records up to 30 that requests the next from second 0 on; ONE is present."""

    def __init__(self) -> None:
        self.known = KnownStores(OWN, [StoreSeen(ONE)], lambda: 0, lambda entry: None)
        self.known.add(ONE)
        self.trimmed = TrimmedGaps(self.known)
        self.partition = StorePartition(TP, 30, ReorderBudget(), history=(OLD,))
        self.partition.raise_head(100)
        self.partition.claim(0.0, FetchState.BEHIND)

    def hears(self, earliest: int, end: int = 100, store: str = ONE) -> None:
        info = PartitionInfo(*TP, earliest, end)
        self.trimmed.note_records(self.partition, store, info)

    def told(
        self,
        now: float,
        history: tuple[Epoch, ...] = (OLD, NEW, LATER),
        store: str = ONE,
        stores: tuple[str, ...] = (OWN,),
        transaction: Transaction | None = None,
        end: int = 100,
    ) -> RestartPartition | None:
        reply = m.HistoryReply(OWN, 0, store, *TP, end, NO_LIFE, history, stores, transaction)
        return self.trimmed.on_history(now, self.partition, reply)


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_it_restarts_where_the_others_begin_with_their_history(waiting: Waiting) -> None:
    assert waiting.trimmed.deadline() == inf
    waiting.hears(60)
    assert waiting.trimmed.deadline() < inf
    assert waiting.trimmed.on_tick(timing.STORE_LOSS_S - 0.1, {TP: waiting.partition}) == []
    asked = waiting.trimmed.on_tick(LONG, {TP: waiting.partition})
    assert asked == [m.HistoryQuery(OWN, 0, *TP)]
    assert waiting.trimmed.on_tick(LONG, {TP: waiting.partition}) == []
    assert waiting.told(LONG) == RestartPartition(TP, 60, (OLD, NEW))
    partition = waiting.partition
    assert (partition.pending_replacements, partition.visible_end, partition.durable) == (1, 60, 30)
    assert (partition.next_offset, partition.head) == (60, 100)
    partition.on_replaced(RestartPartition(TP, 60, (OLD, NEW)))
    assert (partition.pending_replacements, partition.durable) == (0, 60)
    assert waiting.trimmed.deadline() == inf
    assert waiting.told(LONG) is None


@pytest.mark.parametrize("end", [59, 60, 61, 100])
def test_it_learns_the_last_transaction_before_its_restart(waiting: Waiting, end: int) -> None:
    """A repeated write of it is recognised; later records come with theirs."""
    waiting.hears(60)
    last = Transaction(7, 40, end)
    known = RestartPartition(TP, 60, (OLD, NEW), last if end <= 60 else None)
    assert waiting.told(LONG, transaction=last) == known


@pytest.mark.parametrize("end", [4, 5, 6])
def test_the_last_transaction_is_one_of_stored_records(end: int) -> None:
    last = Transaction(7, 3, end)
    role = StoreRole(OWN, lambda tp: PartitionLives(5, (OLD,), NO_LIFE, last), sync_interval_s=1e9)
    (reply,) = role.on_message(0.0, m.HistoryQuery(ONE, 0, *TP), "")
    assert isinstance(reply, m.HistoryReply)
    assert reply.transaction == (last if end <= 5 else None)


def heard_from_one_that_has_them(waiting: Waiting) -> None:
    waiting.known.add(TWO)
    waiting.hears(30, store=TWO)
    waiting.hears(60)


def sent_just_now(waiting: Waiting) -> None:
    waiting.partition.unanswered_since = LONG - 1


def committing(waiting: Waiting) -> None:
    waiting.partition.commits = 1


def newer_itself(waiting: Waiting) -> None:
    waiting.partition.history = (OLD, Epoch(9, 9, 1, 20, OLD.digest))


@pytest.mark.parametrize(
    "why", [heard_from_one_that_has_them, sent_just_now, committing, newer_itself]
)
def test_it_does_not_restart_yet(waiting: Waiting, why: Callable[[Waiting], None]) -> None:
    waiting.hears(60)
    why(waiting)
    assert waiting.told(LONG) is None
    assert waiting.partition.next_offset == 30


def test_a_store_that_has_set_the_records_aside_since_does_not_count(waiting: Waiting) -> None:
    """It may continue this store's history: both would restart at the other's beginning."""
    waiting.hears(60)
    assert waiting.told(LONG, (OLD,), end=30) is None
    assert waiting.told(LONG) is None
    assert waiting.trimmed.on_tick(LONG, {TP: waiting.partition}) == []
    assert waiting.trimmed.deadline() == inf
    assert waiting.partition.next_offset == 30
    waiting.hears(60)
    assert waiting.told(LONG, end=60) is not None  # all of its records are trimmed


def test_a_store_that_loses_the_records_or_ends_does_not_count(waiting: Waiting) -> None:
    waiting.hears(60)
    heard_from_one_that_has_them(waiting)
    waiting.hears(0, 30, store=TWO)
    assert waiting.told(LONG) is not None
    again = Waiting()
    again.hears(60)
    heard_from_one_that_has_them(again)
    again.known.on_peer_lost(TWO)
    assert again.told(LONG) is None
    assert again.told(timing.ABSENT_STORE_S) is not None


def test_no_question_is_sent_after_the_records_have_arrived(waiting: Waiting) -> None:
    waiting.hears(60)
    waiting.partition.begin(60)
    assert waiting.trimmed.on_tick(LONG, {TP: waiting.partition}) == []
    assert waiting.trimmed.deadline() == inf
