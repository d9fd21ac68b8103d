"""A producer goes on where an earlier life ended, also where a store was missed that has more."""

from __future__ import annotations

import pytest

from dafka_core.protocol.messages import (
    ConsumerHello,
    Fetch,
    Head,
    HeadsQuery,
    HeadsReply,
)
from dafka_core.protocol.producer_role import MAX_ACKING_STORES
from dafka_core.protocol.store_directory import GREETING, SETTLE_S
from dafka_core.records import PartitionInfo, RecordBatch
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of
from tests.unit.protocol.test_producer_role import acknowledge, fetched, producer, publish


def test_resumes_where_the_furthest_store_says_that_it_ended() -> None:
    role = producer(resume=True)
    directory = role.directory
    assert directory is not None
    assert role.on_tick(0.0) == []
    question, messages = directory.ask_heads(0.0, [TOPIC])
    assert messages == [HeadsQuery(PARTITION, 1, (TOPIC,))]
    assert role.deadline(0.0) is not None
    for store in ("S1", "S2"):
        role.on_subscribed(0.0, ConsumerHello, store)
        role.on_message(0.0, HeadsReply(PARTITION, GREETING, store, 0, 1, ()), "")
    # Stores acknowledge what they have to a producer they hear of; that is no head yet.
    acknowledge(role, 7, store="S1")
    for store, end in (("S1", 7), ("S2", 9)):
        entries = (PartitionInfo(TOPIC, PARTITION, 0, end), PartitionInfo(TOPIC, "P2", 0, 99))
        role.on_message(0.1, HeadsReply(PARTITION, 1, store, 0, 1, entries), "")
    role.on_tick(SETTLE_S)
    assert question.answered
    role.resume_at(question.heads[TP][1])
    assert (role.next_offset, role.durable, role.unacknowledged) == (9, 9, 0)
    # Stores and consumers that lag behind hear at once how far it has come.
    assert role.on_tick(SETTLE_S) == [Head(TOPIC, PARTITION, 8)]
    batch = publish(role, 2, now=1.0)
    assert batch == batch_of(9, 11)
    assert fetched(role, 9, 100) == [batch]
    assert fetched(role, 8, 100) == []
    acknowledge(role, 11)
    assert role.unacknowledged == 0


def test_a_lost_store_is_not_waited_for_when_resuming() -> None:
    role = producer(resume=True)
    assert role.directory is not None
    role.on_tick(0.0)
    for store in ("S1", "S2"):
        role.on_message(0.0, HeadsReply(PARTITION, GREETING, store, 0, 1, ()), "")
    question, _ = role.directory.ask_heads(0.0, [TOPIC])
    role.on_message(0.1, HeadsReply(PARTITION, 1, "S1", 0, 1, ()), "")
    role.on_tick(SETTLE_S)
    before = question.answered
    role.on_peer_lost("S2")
    role.on_tick(SETTLE_S)
    assert (before, question.answered) == (False, True)
    assert question.heads == {}


@pytest.mark.parametrize("acks", [1, 2])
def test_a_store_that_has_more_than_is_published_is_asked_whether_it_is_the_same(acks: int) -> None:
    # It was away when the producer resumed, and acknowledges all that an earlier life has sent.
    # Where there is no room, or nothing else to publish, there will never be as much again.
    role = producer(acks=acks, resume=True)
    role.resume_at(2)
    publish(role, 3)
    fetch = Fetch(PARTITION, PARTITION, TOPIC, 4, 1)
    assert fetch not in role.on_tick(1.0)
    for store in ("S1", "S2"):
        acknowledge(role, 9, store)
    assert role.durable == 2
    assert role.on_tick(2.0) == [Head(TOPIC, PARTITION, 4), fetch]
    # What an earlier life left at this offset may be another record.
    role.on_batch(2.0, PARTITION, RecordBatch.of(TP, 4, [b"of another life"]))
    assert role.durable == 2
    assert fetch in role.on_tick(3.0)  # the answer may be lost, too
    role.on_batch(3.0, PARTITION, batch_of(4, 5))
    assert role.unacknowledged == 0
    for store in ("S1", "S2"):
        acknowledge(role, 9, store)
    assert role.on_tick(4.0) == [Head(TOPIC, PARTITION, 4)]
    publish(role, 6)
    assert role.durable == 5


def test_a_store_that_has_more_counts_up_to_where_it_has_said() -> None:
    role = producer(acks=2)
    publish(role, 3)
    for store in ("S1", "S2"):
        acknowledge(role, 4, store)
    publish(role, 7)
    role.on_batch(0.0, PARTITION, batch_of(9, 10))
    assert role.durable == 4


def test_names_of_stores_that_have_more_are_bounded() -> None:
    role = producer()
    for i in range(2 * MAX_ACKING_STORES):
        acknowledge(role, 7, f"S{i}")
    assert len(role.beyond) == MAX_ACKING_STORES
