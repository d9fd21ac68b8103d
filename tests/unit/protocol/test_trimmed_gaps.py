"""When a store continues without lost records, and when it waits."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.log_entries import RestartPartition, StoreSeen
from dafka_core.model.records import PartitionInfo, PartitionLives, TopicPartition, Transaction
from dafka_core.protocol import timing
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.messages import HistoryQuery, HistoryReply
from dafka_core.protocol.partition_fetcher import FetchState, ReorderBudget
from dafka_core.protocol.store_partition import StorePartition, TrimmedGaps
from dafka_core.protocol.store_role import StoreRole

TP = TopicPartition("t", "A" * 32)
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
    ) -> RestartPartition | None:
        reply = HistoryReply(OWN, 0, store, *TP, 100, NO_LIFE, history, stores, transaction)
        return self.trimmed.on_history(now, self.partition, reply)


@pytest.fixture
def store() -> Waiting:
    return Waiting()


def test_it_restarts_where_the_others_begin_with_their_history(store: Waiting) -> None:
    assert store.trimmed.deadline() == inf
    store.hears(60)
    assert store.trimmed.deadline() < inf
    assert store.trimmed.on_tick(timing.STORE_LOSS_S - 0.1, {TP: store.partition}) == []
    asked = store.trimmed.on_tick(LONG, {TP: store.partition})
    assert asked == [HistoryQuery(OWN, 0, *TP)]
    assert store.trimmed.on_tick(LONG, {TP: store.partition}) == []
    assert store.told(LONG) == RestartPartition(TP, 60, (OLD, NEW))
    partition = store.partition
    assert (partition.pending_replacements, partition.visible_end, partition.durable) == (1, 60, 30)
    assert (partition.next_offset, partition.head) == (60, 100)
    partition.on_replaced(RestartPartition(TP, 60, (OLD, NEW)))
    assert (partition.pending_replacements, partition.durable) == (0, 60)
    assert store.trimmed.deadline() == inf
    assert store.told(LONG) is None


@pytest.mark.parametrize("end", [59, 60, 61, 100])
def test_it_learns_the_last_transaction_before_its_restart(store: Waiting, end: int) -> None:
    """A repeated write of it is recognised; later records come with theirs."""
    store.hears(60)
    last = Transaction(7, 40, end)
    known = RestartPartition(TP, 60, (OLD, NEW), last if end <= 60 else None)
    assert store.told(LONG, transaction=last) == known


@pytest.mark.parametrize("end", [4, 5, 6])
def test_the_last_transaction_is_one_of_stored_records(end: int) -> None:
    last = Transaction(7, 3, end)
    role = StoreRole(OWN, lambda tp: PartitionLives(5, (OLD,), NO_LIFE, last), sync_interval_s=1e9)
    (reply,) = role.on_message(0.0, HistoryQuery(ONE, 0, *TP), "")
    assert isinstance(reply, HistoryReply)
    assert reply.transaction == (last if end <= 5 else None)


def heard_from_one_that_has_them(store: Waiting) -> None:
    store.known.add(TWO)
    store.hears(30, store=TWO)
    store.hears(60)


def sent_just_now(store: Waiting) -> None:
    store.partition.unanswered_since = LONG - 1


def committing(store: Waiting) -> None:
    store.partition.commits = 1


def newer_itself(store: Waiting) -> None:
    store.partition.history = (OLD, Epoch(9, 9, 1, 20, OLD.digest))


@pytest.mark.parametrize(
    "why", [heard_from_one_that_has_them, sent_just_now, committing, newer_itself]
)
def test_it_does_not_restart_yet(store: Waiting, why: Callable[[Waiting], None]) -> None:
    store.hears(60)
    why(store)
    assert store.told(LONG) is None
    assert store.partition.next_offset == 30


def test_a_store_that_loses_the_records_or_ends_does_not_count(store: Waiting) -> None:
    store.hears(60)
    heard_from_one_that_has_them(store)
    store.hears(0, 30, store=TWO)
    assert store.told(LONG) is not None
    again = Waiting()
    again.hears(60)
    heard_from_one_that_has_them(again)
    again.known.on_peer_lost(TWO)
    assert again.told(LONG) is None
    assert again.told(timing.ABSENT_STORE_S) is not None


def test_no_question_is_sent_after_the_records_have_arrived(store: Waiting) -> None:
    store.hears(60)
    store.partition.begin(60)
    assert store.trimmed.on_tick(LONG, {TP: store.partition}) == []
    assert store.trimmed.deadline() == inf
