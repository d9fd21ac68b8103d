"""The producer keeps what is not acknowledged, and answers with it whatever was acknowledged."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.protocol import messages as m
from dafka_core.protocol import producer_role, timing
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_SEQUENCE
from dafka_core.protocol.producer_role import MAX_ACKING_STORES, Missing, ProducerRole
from dafka_core.protocol.role import Outgoing, OutgoingBatch, PeerNews
from tests.unit.protocol.model import (
    LIFE,
    PARTITION,
    TOPIC,
    TP,
    batch_of,
    batches_in,
    offsets_of,
    values_of,
)

NOW_US = 1_700_000_000_000_000


def producer(*, acks: int = 1, resume: bool = False) -> ProducerRole:
    return ProducerRole(TP, acks=acks, head_interval_s=1.0, life_id=LIFE.id, resume=resume)


@pytest.fixture
def role() -> ProducerRole:
    return producer()


def publish(role: ProducerRole, count: int, now: float = 0.0) -> RecordBatch:
    values = values_of(role.next_offset, role.next_offset + count)
    [message] = role.publish(now, values, NOW_US)
    assert isinstance(message, OutgoingBatch)
    assert message.requestor == ""
    return message.batch


def acknowledge(role: ProducerRole, end: int, store: str = "", peer: str = "") -> None:
    assert role.on_message(0.0, m.Ack(TOPIC, PARTITION, end - 1, store), peer) == []


def fetched(role: ProducerRole, start: int, count: int) -> list[RecordBatch]:
    messages = role.on_message(0.0, m.Fetch("C", TOPIC, PARTITION, start, count), "")
    answers = batches_in(messages)
    assert len(answers) == len(messages)
    assert {message.requestor for message in answers} <= {"C"}
    return [message.batch for message in answers]


STORES = ["S1", "S2", "S3"]
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 7), st.just("")),
    st.tuples(st.just("ack"), st.integers(1, 40), st.sampled_from(STORES)),
    st.tuples(st.just("fetch"), st.integers(0, 40), st.just("")),
)


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 3), st.lists(STEPS, max_size=40), st.sampled_from([0, 0, 3, 17]))
def test_answers_are_right_after_any_acknowledgements(
    acks: int, steps: Sequence[tuple[str, int, str]], resumed_at: int
) -> None:
    role = producer(acks=acks)
    role.resume((Epoch.first(LIFE)._replace(start=resumed_at),))
    ends = dict.fromkeys(STORES, 0)
    end = resumed_at
    for what, number, store in steps:
        if what == "publish":
            assert offsets_of([publish(role, number)]) == list(
                range(role.next_offset - number, role.next_offset)
            )
        elif what == "ack":
            acknowledge(role, number, store)
            if number <= role.next_offset:
                ends[store] = max(ends[store], number)
            # Distinct stores count: the one that is acks-th furthest decides.
            end = max(end, sorted(ends.values())[-acks])
        for start in range(role.next_offset + 2):
            count = number if what == "fetch" else MAX_FETCH_COUNT
            answer = offsets_of(fetched(role, start, count))
            expected = list(range(start, min(start + count, role.next_offset)))
            # The producer may have dropped what stores have, and sends all the rest.
            dropped = len(expected) - len(answer)
            assert answer == expected[dropped:]
            assert dropped <= max(end - start, 0)
        assert role.acknowledged == end
        assert role.acknowledged_bytes == values_of(resumed_at, end).size_bytes
        assert role.unacknowledged == role.next_offset - end


def test_only_acknowledged_batches_are_deleted(role: ProducerRole) -> None:
    for _ in range(3):
        publish(role, 10)
    acknowledge(role, 14)
    # The batch with record 14 is kept as a whole.
    assert fetched(role, 9, 1) == []
    assert fetched(role, 10, 30) == [batch_of(10, 30)]  # small ones are sent as one
    acknowledge(role, 20)
    assert fetched(role, 19, 30) == [batch_of(20, 30)]
    assert fetched(role, 20, 30) == [batch_of(20, 30)]
    acknowledge(role, 30)
    assert role.unacknowledged == 0
    assert role.retained == []
    assert fetched(role, 29, 30) == []


def test_only_a_store_asks_for_acknowledged_records_because_it_lacks_them(
    role: ProducerRole,
) -> None:
    publish(role, 3)
    acknowledge(role, 3)
    role.on_peer(0.0, PeerNews("C", is_store=False))
    assert fetched(role, 1, 1) == []
    assert role.asked_for is None
    role.on_message(0.0, m.Fetch("S", TOPIC, PARTITION, 2, 1), "")
    assert role.asked_for == 2


@pytest.mark.parametrize(("stores", "end"), [("SS", 0), ("ST", 10)])
def test_c_stores_are_distinguished_by_their_connections(stores: str, end: int) -> None:
    role = producer(acks=2)
    publish(role, 10)
    for store in stores:
        acknowledge(role, 10, peer=store)
    assert role.acknowledged == end


@pytest.mark.parametrize("ack", [m.Ack(TOPIC, "P2", 4), m.Ack("hell", PARTITION, 4)])
def test_acknowledgements_for_other_producers_change_nothing(ack: m.Ack) -> None:
    role = producer()
    publish(role, 10)
    role.on_message(0.0, ack, "")
    assert role.acknowledged == 0


def test_acknowledgements_of_a_lost_store_remain_valid() -> None:
    role = producer(acks=2)
    publish(role, 10)
    acknowledge(role, 10, store="S1")
    role.on_peer(0.0, PeerNews("S1", is_lost=True))
    acknowledge(role, 10, store="S2")
    assert role.acknowledged == 10


def test_names_of_stores_are_bounded() -> None:
    role = producer(acks=2)
    publish(role, 10)
    for i in range(MAX_ACKING_STORES + 100):
        acknowledge(role, 1, store=f"S{i}")
    assert len(role.acknowledgements.by_store) == MAX_ACKING_STORES
    # Known ones still count.
    acknowledge(role, 10, store="S1")
    acknowledge(role, 10, store="S2")
    assert role.acknowledged == 10


def test_an_answer_is_limited_in_bytes_but_has_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_role, "MAX_ANSWER_BYTES", 80)
    role = producer()
    publish(role, 8)
    publish(role, 100)
    # 8 bytes each: the tenth reaches the limit, in the middle of a batch.
    assert offsets_of(fetched(role, 0, 100)) == list(range(10))
    assert offsets_of(fetched(role, 10, 100)) == list(range(10, 20))
    role.publish(0.0, Values.of([bytes(500), b"", b""]), NOW_US)
    assert [batch.values.size_bytes for batch in fetched(role, 108, 3)] == [500]
    assert [len(batch.values) for batch in fetched(role, 109, 3)] == [2]


@pytest.mark.parametrize(
    "fetch",
    [
        m.Fetch("C", "hell", PARTITION, 0, 10),
        m.Fetch("C", TOPIC, "P2", 0, 10),
        m.Fetch("C", TOPIC, PARTITION, 10, 10),
        m.Fetch("C", TOPIC, PARTITION, 0, 0),
        m.Fetch("C", TOPIC, PARTITION, MAX_SEQUENCE, MAX_FETCH_COUNT),
    ],
)
def test_fetches_without_an_answer(role: ProducerRole, fetch: m.Fetch) -> None:
    assert role.on_message(0.0, fetch, "") == []
    publish(role, 10)
    assert role.on_message(0.0, fetch, "") == []


def heads_at(role: ProducerRole, tenths: range) -> list[float]:
    times = []
    for tenth in tenths:
        for message in role.on_tick(tenth / 10):
            assert message == m.Head(TOPIC, PARTITION, role.next_offset - 1)
            times.append(tenth / 10)
    return times


def test_heads_at_the_interval_after_the_first_record(role: ProducerRole) -> None:
    assert heads_at(role, range(50)) == []
    assert role.deadline(5.0) == inf
    publish(role, 3, now=5.0)
    assert role.deadline(5.0) == 6.0
    assert heads_at(role, range(50, 90)) == [6.0, 7.0, 8.0]
    # Consumers may still miss acknowledged records.
    acknowledge(role, 3)
    assert heads_at(role, range(90, 110)) == [9.0, 10.0]


def test_heads_come_more_often_while_the_application_waits_for_acknowledgements() -> None:
    role = producer()
    publish(role, 3)
    role.urgent = True
    role.on_tick(0.0)
    for i in range(1, 10):
        due = role.deadline(0.0)
        assert due == pytest.approx(i * timing.FLUSH_HEAD_INTERVAL_S)
        assert role.on_tick(due)[0] == m.Head(TOPIC, PARTITION, 2)
    acknowledge(role, 3)
    assert len(heads_at(role, range(20, 40))) <= 3


def test_get_heads_is_answered_with_acknowledged_records(role: ProducerRole) -> None:
    assert role.on_message(0.0, m.GetHeads(TOPIC, "C"), "") == []
    publish(role, 5)
    # It may be gone before a store has its records: only those that can be had are an answer.
    assert role.on_message(0.0, m.GetHeads(TOPIC, "C"), "") == []
    acknowledge(role, 3)
    assert role.on_message(0.0, m.GetHeads(TOPIC, "C"), "") == [
        m.DirectHead("C", TOPIC, PARTITION, 2)
    ]
    assert role.on_message(0.0, m.GetHeads("hell", "C"), "") == []


def test_a_new_subscriber_receives_the_head_at_once(role: ProducerRole) -> None:
    assert role.on_subscribed(0.0, m.RecordBatchMessage, TOPIC) == []
    publish(role, 3)
    # Stores subscribe to all topics, by the empty prefix.
    for topic in (TOPIC, "hel", ""):
        assert role.on_subscribed(0.0, m.RecordBatchMessage, topic) == [m.Head(TOPIC, PARTITION, 2)]
        # C nodes, which subscribe to nothing else, must not FETCH before we receive it.
        for kind in (m.RecordMessage, m.Head):
            assert role.on_subscribed(0.0, kind, topic) == []
    assert role.on_subscribed(0.0, m.RecordBatchMessage, "hello, too") == []
    assert role.on_subscribed(0.0, m.StoreHello, TOPIC) == []


def test_a_fetched_last_record_replaces_a_lost_acknowledgement(role: ProducerRole) -> None:
    publish(role, 3)
    role.urgent = True
    role.on_tick(0.0)
    sent = [
        message for i in range(1, 20) for message in role.on_tick(i * timing.FLUSH_HEAD_INTERVAL_S)
    ]
    fetches = [message for message in sent if isinstance(message, m.Fetch)]
    assert set(fetches) == {m.Fetch(PARTITION, TOPIC, PARTITION, 2, 1)}
    assert len(fetches) in (3, 4)
    for requestor in ("", "C"):
        role.on_batch(0.0, requestor, batch_of(2, 3))
        assert role.acknowledged == 0
    role.on_batch(0.0, PARTITION, batch_of(2, 3))
    assert role.acknowledged == 3
    assert not [
        each for i in range(20, 60) for each in role.on_tick(i / 5) if isinstance(each, m.Fetch)
    ]


def test_a_different_record_at_its_offset_is_no_acknowledgement(role: ProducerRole) -> None:
    # A C store that was missed when the partition was resumed keeps what it has.
    publish(role, 3)
    role.on_batch(0.0, PARTITION, RecordBatch.of(TP, 2, [b"of another life"]))
    role.on_batch(0.0, PARTITION, RecordBatch.of(TP, 7, [b"never published"]))
    assert role.acknowledged == 0


def test_a_fetched_record_counts_as_one_acknowledgement() -> None:
    role = producer(acks=2)
    publish(role, 3)
    role.on_batch(0.0, PARTITION, batch_of(2, 3))
    acknowledge(role, 3, "S1")
    assert role.acknowledged == 0


PRIOR = Epoch(3, 0x33, 1, 0, 0)
MINE = EpochId(4, LIFE.id, 1)


def greeted(*stores: str) -> ProducerRole:
    """A producer that has just asked the stores how far C stores have its partition."""
    role = producer(resume=True)
    for store in stores:
        role.on_subscribed(0.0, m.ConsumerHello, store)
        role.on_message(0.0, m.HeadsReply(PARTITION, m.UNSOLICITED, store, 0, 1, ()), "")
    assert role.on_tick(0.0) == [m.HeadsQuery(PARTITION, 1, (TOPIC,))]
    return role


def answer_heads(role: ProducerRole, *stores: str) -> list[Outgoing]:
    """Deliver the stores' answers; return the role's messages."""
    for store in stores:
        role.on_message(0.1, m.HeadsReply(PARTITION, 1, store, 0, 1, ()), "")
    return role.on_tick(timing.SETTLE_S)


def answer(
    role: ProducerRole,
    query: int,
    *,
    life: EpochId = NO_LIFE,
    now: float = timing.SETTLE_S,
    **ends: int,
) -> list[Outgoing]:
    """Deliver each store's part of the prior life; return the role's messages."""
    for store, end in ends.items():
        history = (PRIOR,) if end else ()
        reply = m.HistoryReply(PARTITION, query, store, TOPIC, PARTITION, end, life, history)
        role.on_message(now, reply, "")
    return role.on_tick(now)


def test_resumes_at_the_greatest_end_of_any_store() -> None:
    role = greeted("S1", "S2")
    # Stores acknowledge their records to every new producer; that is no head yet.
    acknowledge(role, 7, store="S1")
    asked = answer_heads(role, "S1", "S2")
    assert asked == [m.HistoryQuery(PARTITION, 2, TOPIC, PARTITION)]
    assert role.deadline(timing.SETTLE_S) < inf
    asked = answer(role, 2, S1=7, S2=9)
    assert asked == [m.HistoryQuery(PARTITION, 3, TOPIC, PARTITION, MINE)]
    # In the meantime an older life has written more.
    assert answer(role, 3, life=MINE, S1=7, S2=11) == []
    assert role.takeover is None
    assert role.epoch == Epoch(*MINE, 11, PRIOR.digest)
    assert (role.next_offset, role.acknowledged, role.unacknowledged) == (11, 11, 0)
    # Stores and consumers that lag behind receive the head at once.
    assert role.on_tick(timing.SETTLE_S) == [m.Head(TOPIC, PARTITION, 10)]
    batch = publish(role, 2, now=1.0)
    assert batch == batch_of(11, 13)
    assert batch.epoch == role.epoch
    assert fetched(role, 11, 100) == [batch]
    assert fetched(role, 10, 100) == [batch]
    acknowledge(role, 13)
    assert role.unacknowledged == 0


def test_a_store_without_a_promise_is_asked_again() -> None:
    role = greeted("S1", "S2")
    answer_heads(role, "S1", "S2")
    answer(role, 2, S1=7, S2=9)
    # One knows a newer life meanwhile: it cannot promise this one anything.
    newer = EpochId(9, 1, 1)
    answer(role, 3, life=MINE, S1=7)
    assert answer(role, 3, life=newer, S2=9) == []
    assert role.takeover is not None
    assert role.takeover.too_few == Missing(2, ("S2",))
    mine = EpochId(10, LIFE.id, 1)
    asked = role.on_tick(timing.SETTLE_S + timing.TAKEOVER_RETRY_S)
    assert asked == [m.HistoryQuery(PARTITION, 4, TOPIC, PARTITION, mine)]
    answer(role, 4, life=mine, now=2.0, S1=7)
    # A store keeps with its promise that an earlier life needed fewer acks.
    answer(role, 4, life=mine._replace(acks=0), now=2.0, S2=9)
    assert role.epoch == Epoch(*mine, 9, PRIOR.digest)


def test_a_takeover_does_not_wait_for_a_lost_store_but_may_miss_it() -> None:
    role = greeted("S1", "S2")
    role.on_message(0.1, m.HeadsReply(PARTITION, 1, "S1", 0, 1, ()), "")
    assert role.on_tick(timing.SETTLE_S) == []
    role.on_peer(0.0, PeerNews("S2", is_lost=True))
    assert role.on_tick(timing.SETTLE_S) == [m.HistoryQuery(PARTITION, 2, TOPIC, PARTITION)]
    # It may have acknowledged records that the other store does not have.
    reply = m.HistoryReply(PARTITION, 2, "S1", TOPIC, PARTITION, 7, NO_LIFE, (PRIOR,), ("S2",))
    role.on_message(timing.SETTLE_S, reply, "")
    role.on_tick(timing.SETTLE_S)
    role.on_message(timing.SETTLE_S, replace(reply, query=3, promised=MINE), "")
    assert role.on_tick(timing.SETTLE_S) == []
    assert role.takeover is not None
    assert role.takeover.too_few == Missing(2, ("S2",))
    # It comes back, and has more.
    (asked,) = role.on_tick(timing.SETTLE_S + timing.TAKEOVER_RETRY_S)
    assert isinstance(asked, m.HistoryQuery)
    assert asked.life >= MINE
    role.on_message(2.0, replace(reply, query=4, promised=asked.life), "")
    answer(role, 4, life=asked.life, now=2.0, S2=8)
    assert role.epoch == Epoch(*asked.life, 8, PRIOR.digest)


def test_missing_stores_can_be_ignored() -> None:
    role = ProducerRole(
        TP, acks=1, head_interval_s=1.0, life_id=LIFE.id, resume=True, ignore_missing=True
    )
    role.on_tick(0.0)
    role.on_message(0.0, m.HeadsReply(PARTITION, m.UNSOLICITED, "S1", 0, 1, ()), "")
    answer_heads(role, "S1")
    reply = m.HistoryReply(PARTITION, 2, "S1", TOPIC, PARTITION, 7, NO_LIFE, (PRIOR,), ("S2",))
    role.on_message(timing.SETTLE_S, reply, "")
    role.on_tick(timing.SETTLE_S)
    role.on_message(timing.SETTLE_S, replace(reply, query=3, promised=MINE), "")
    role.on_tick(timing.SETTLE_S)
    assert role.epoch == Epoch(*MINE, 7, PRIOR.digest)


# -- two lives ------------------------------------------------------------------------------------

NEWER = EpochId(5, 0x55, 1)


def resumed(start: int = 5) -> ProducerRole:
    role = producer(resume=True)
    role.resume((Epoch(*MINE, start, PRIOR.digest),))
    return role


def ack_of(life: EpochId, end: int) -> m.EpochAck:
    return m.EpochAck(TOPIC, PARTITION, end - 1, "S1", life)


@pytest.mark.parametrize(
    "message",
    [
        ack_of(NEWER, 7),
        m.HistoryReply(PARTITION, 0, "S1", TOPIC, PARTITION, 5, NEWER, (PRIOR,)),
        m.HistoryReply(PARTITION, 0, "S1", TOPIC, PARTITION, 6, NO_LIFE, (Epoch(*NEWER, 5, 1),)),
    ],
    ids=["acknowledged", "promised", "begun"],
)
def test_a_newer_life_fences_the_producer(message: m.Message) -> None:
    role = resumed()
    publish(role, 3)
    role.on_message(0.0, message, "S1")
    assert role.fenced_by == NEWER
    assert (role.acknowledged, role.unacknowledged) == (5, 3)
    # It is silent from now on: its records are unknown.
    assert role.publish(1.0, values_of(8, 9), 0) == []
    assert role.on_tick(9.0) == []
    assert role.deadline(9.0) == inf
    assert role.on_subscribed(9.0, m.RecordBatchMessage, TOPIC) == []
    assert fetched(role, 5, 100) == []


def test_only_its_own_lifes_acknowledgements_count() -> None:
    role = resumed()
    publish(role, 3)
    role.on_message(0.0, ack_of(PRIOR.life, 8), "S1")  # a store that another history was lost to
    assert (role.acknowledged, role.fenced_by) == (5, None)
    role.on_message(0.0, ack_of(EpochId(4, MINE.id - 1, 1), 8), "S1")
    assert (role.acknowledged, role.fenced_by) == (5, None)
    role.on_message(0.0, ack_of(MINE, 7), "S1")
    assert (role.acknowledged, role.fenced_by) == (7, None)
    # C nodes have carried these to the store: it does not know their life.
    role.on_message(0.0, ack_of(NO_LIFE, 8), "S1")
    assert role.acknowledged == 8


def test_a_store_with_an_older_life_receives_the_first_of_many_records() -> None:
    role = resumed()
    publish(role, MAX_FETCH_COUNT + 1)
    reply = m.HistoryReply(PARTITION, 0, "S1", TOPIC, PARTITION, 9, NO_LIFE, (PRIOR,))
    answers = batches_in(role.on_message(0.0, reply, "S1"))
    assert {message.requestor for message in answers} == {"S1"}
    assert answers[0].batch.offset == 5
    assert sum(message.batch.count for message in answers) == MAX_FETCH_COUNT


def test_lives_of_other_partitions_are_ignored() -> None:
    role = resumed()
    for partition, topic in ((PARTITION, "t2"), ("P2", TOPIC)):
        role.on_message(0.0, m.EpochAck(topic, partition, 9, "S1", NEWER), "")
        reply = m.HistoryReply(PARTITION, 0, "S1", topic, partition, 5, NEWER, ())
        role.on_message(0.0, reply, "")
    assert role.fenced_by is None


def test_other_lives_do_not_end_a_takeover() -> None:
    role = greeted("S1")
    told = m.HistoryReply(PARTITION, 0, "S1", TOPIC, PARTITION, 5, NEWER, (PRIOR,))
    role.on_message(0.0, told, "S1")
    role.on_message(0.0, ack_of(NEWER, 7), "S1")
    assert role.fenced_by is None


def test_a_last_record_of_an_older_life_does_not_count() -> None:
    role = resumed()
    publish(role, 3)
    other = replace(batch_of(7, 8), epoch=PRIOR)
    role.on_batch(0.0, PARTITION, other)
    assert role.acknowledged == 5
    role.on_batch(0.0, PARTITION, replace(other, epoch=role.epoch))
    assert role.acknowledged == 8


# -- stores that have more ------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, 2])
def test_the_producer_compares_its_last_record_with_a_store_that_has_more(acks: int) -> None:
    # It was away when the producer resumed, and acknowledges everything of an earlier life. Without
    # room, or other records to publish, it never reaches that again.
    role = producer(acks=acks, resume=True)
    role.resume((Epoch.first(LIFE)._replace(start=2),))
    publish(role, 3)
    fetch = m.Fetch(PARTITION, TOPIC, PARTITION, 4, 1)
    assert fetch not in role.on_tick(1.0)
    for store in ("S1", "S2"):
        acknowledge(role, 9, store)
    assert role.acknowledged == 2
    assert role.on_tick(2.0) == [m.Head(TOPIC, PARTITION, 4), fetch]
    # An earlier life's record at this offset may differ.
    role.on_batch(2.0, PARTITION, RecordBatch.of(TP, 4, [b"of another life"]))
    assert role.acknowledged == 2
    assert fetch in role.on_tick(3.0)  # the answer may be lost, too
    role.on_batch(3.0, PARTITION, batch_of(4, 5))
    assert role.unacknowledged == 0
    for store in ("S1", "S2"):
        acknowledge(role, 9, store)
    assert role.on_tick(4.0) == [m.Head(TOPIC, PARTITION, 4)]
    publish(role, 6)
    assert role.acknowledged == 5


def test_a_store_with_more_records_counts_up_to_its_acknowledgement() -> None:
    role = producer(acks=2)
    publish(role, 3)
    for store in ("S1", "S2"):
        acknowledge(role, 4, store)
    publish(role, 7)
    role.on_batch(0.0, PARTITION, batch_of(9, 10))
    assert role.acknowledged == 4


def test_names_of_stores_that_have_more_are_bounded(role: ProducerRole) -> None:
    for i in range(2 * MAX_ACKING_STORES):
        acknowledge(role, 7, f"S{i}")
    assert len(role.acknowledgements.unverified) == MAX_ACKING_STORES


def test_a_store_with_another_history_receives_the_producers_until_records_follow() -> None:
    # It has promised that this life continues its records, and yields none of them to an older
    # life's history.
    other, role = Epoch(2, 0x22, 1, 0, 0), producer(resume=True)
    mine = (other, PRIOR._replace(start=5, parent=other.digest))
    history = (*mine, Epoch(*MINE, 7, mine[-1].digest))
    role.resume(history)

    def told(end: int, *lives: Epoch, promised: EpochId = MINE) -> list[Outgoing]:
        reply = m.HistoryReply(
            PARTITION, m.UNSOLICITED, "S2", TOPIC, PARTITION, end, promised, lives
        )
        return role.on_message(1.0, reply, "")

    expected = m.HistoryReply("S2", m.UNSOLICITED, PARTITION, *TP, 7, MINE, history)
    assert told(6, other) == [expected]
    # Not stores with an equal prefix, or without a promise.
    assert told(5, other) == told(7, *mine) == told(6, other, promised=NO_LIFE) == []
    # From now on its records reveal it.
    batch = publish(role, 1)
    assert told(6, other) == [OutgoingBatch(batch, "S2")]
