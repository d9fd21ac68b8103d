"""The consumer delivers each record of its topics once, in order, and none is missing."""

import dataclasses
from math import inf
from typing import Any

import pytest

from dafka_core.errors import HistoryChangedError, RecordTooLargeError
from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import RecordBatch
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.consumer_role import ConsumerRole
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_SEQUENCE
from dafka_core.protocol.partition_fetcher import MAX_REORDER_RECORDS
from dafka_core.protocol.role import Outgoing
from tests.unit.protocol.model import PARTITION, TOPIC, TP, answer, batch_of, fetches_in, offsets_of

ME = "21962C91115348329557DE71C90C3718"
STORE = "C907107406D149E897A2DEA4F157F211"


def consumer(start: Any = "earliest", *topics: str) -> ConsumerRole:
    role = ConsumerRole(ME, start)
    for topic in topics or (TOPIC,):
        assert role.subscribe(topic) == [m.GetHeads(topic, ME)]
    return role


@pytest.fixture
def role() -> ConsumerRole:
    """A consumer of the topic from its first record on."""
    return consumer("earliest")


def record(role: ConsumerRole, start: int, end: int, now: float = 0.0) -> list[Outgoing]:
    """RECORDs ``[start, end)`` arrive."""
    return role.on_batch(now, "", batch_of(start, end))


def direct(role: ConsumerRole, start: int, end: int, now: float = 0.0) -> list[Outgoing]:
    """DIRECT-RECORDs ``[start, end)`` arrive."""
    return role.on_batch(now, ME, batch_of(start, end))


def head(role: ConsumerRole, end: int, now: float = 0.0) -> list[Outgoing]:
    return role.on_message(now, m.Head(TOPIC, PARTITION, end - 1), "")


def fetch(start: int, end: int) -> m.Fetch:
    return m.Fetch(ME, TOPIC, PARTITION, start, end - start)


# -- the scenarios of the C project ---------------------------------------------------------------


def test_a_store_hello_is_answered_with_the_topics() -> None:
    role = consumer("earliest", "b", "a")
    hello = m.ConsumerHello(STORE, ME, ("b", "a"))
    # Before messages go both ways, the hello or its answer would be lost.
    assert role.on_message(0.0, m.StoreHello(ME, STORE), "") == []
    assert role.on_subscribed(0.0, m.ConsumerHello, STORE) == [hello]
    assert role.on_message(0.0, m.StoreHello(ME, STORE), "") == [hello]
    role.unsubscribe("b")
    assert role.on_message(0.0, m.StoreHello(ME, STORE), "") == [m.ConsumerHello(STORE, ME, ("a",))]
    role.unsubscribe("a")
    # RFC 46: "it MUST NOT send a CONSUMER-HELLO command"; the C project's sends an empty one.
    assert role.on_message(0.0, m.StoreHello(ME, STORE), "") == []
    assert role.on_subscribed(0.0, m.ConsumerHello, STORE) == []


def test_a_store_receives_the_topics_once_in_any_order_of_introduction() -> None:
    hello = m.ConsumerHello(STORE, ME, (TOPIC,))
    greeting = m.HeadsReply(ME, m.UNSOLICITED, STORE, 0, 1, ())
    met = consumer("earliest", TOPIC)
    assert met.on_subscribed(0.0, m.ConsumerHello, STORE) == []
    assert met.on_message(0.0, m.StoreHello(ME, STORE), "") == [hello]
    assert met.on_message(0.0, greeting, "") == []
    heard = consumer("earliest", TOPIC)
    assert heard.on_message(0.0, m.StoreHello(ME, STORE), "") == []
    assert heard.on_message(0.0, greeting, "") == []
    assert heard.on_subscribed(0.0, m.ConsumerHello, STORE) == [hello]
    # Its hello is lost, and the reply that ends its greeting is not.
    deaf = consumer("earliest", TOPIC)
    assert deaf.on_subscribed(0.0, m.ConsumerHello, STORE) == []
    assert deaf.on_message(0.0, greeting, "") == [hello]


def test_latest_begins_with_the_first_record() -> None:
    role = consumer("latest")
    assert record(role, 2, 3) == []
    assert role.delivered == [batch_of(2, 3)]
    assert record(role, 1, 2) == []
    assert record(role, 4, 5) == [fetch(3, 4)]
    assert direct(role, 3, 4) == []
    assert offsets_of(role.delivered) == [2, 3, 4]


def test_latest_begins_after_the_first_head() -> None:
    role = consumer("latest")
    assert head(role, 7) == []
    assert record(role, 7, 8) == []
    assert offsets_of(role.delivered) == [7]


def test_latest_is_not_set_by_an_old_answer() -> None:
    role = consumer("latest")
    head(role, 100)
    role.seek(TP, 0)
    assert role.on_tick(0.0) == [fetch(0, 100)]
    role.unsubscribe(TOPIC)
    role.subscribe(TOPIC)
    assert direct(role, 0, 100) == []
    assert record(role, 100, 101) == []
    assert offsets_of(role.delivered) == [100]


def test_begins_at_given_offsets() -> None:
    role = consumer({TOPIC: {PARTITION: 5}})
    assert head(role, 9) == [fetch(5, 9)]
    # Partitions and topics that are not named are read from their beginning.
    other = m.Head(TOPIC, "P2", 1)
    assert role.on_message(0.0, other, "") == [m.Fetch(ME, TOPIC, "P2", 0, 2)]


# -- replay and topics ----------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [0, 1])
def test_replays_a_long_partition_whose_producer_is_gone(role: ConsumerRole, extra: int) -> None:
    # C consumers stop after one block; C stores answer with one record too many.
    total = 350_000
    requests = fetches_in(
        role.on_message(0.0, m.DirectHead(ME, TOPIC, PARTITION, total - 1), STORE)
    )
    delivered: list[int] = []
    while requests:  # no time passes: nothing waits for a retry
        request = requests.pop(0)
        assert 0 < request.count <= MAX_FETCH_COUNT
        stop = min(request.end + extra, total)
        for batch in answer(request, stop, at_once=8_192):
            requests.extend(fetches_in(role.on_batch(0.0, ME, batch)))
            assert sum(r.count for r in requests) <= MAX_FETCH_COUNT
            delivered.extend(offsets_of(role.delivered))
            role.delivered.clear()
    assert delivered == list(range(total))


def test_topics_match_exactly() -> None:
    role = consumer("earliest", "a")
    # A SUB socket that subscribed to "a" is sent all of these.
    for topic in ("ab", "a/b", "a ", "A"):
        assert role.on_batch(0.0, "", batch_of(5, 9, topic)) == []
        assert role.on_message(0.0, m.Head(topic, PARTITION, 9), "") == []
        assert role.on_batch(0.0, ME, batch_of(5, 9, topic)) == []
    assert role.positions() == {}
    role.on_message(0.0, m.Head("a", PARTITION, 9), "")
    assert role.on_batch(0.0, ME + "0", batch_of(0, 9, "a")) == []  # for another node
    assert role.delivered == []


# -- when to ask ----------------------------------------------------------------------------------


def test_heads_are_requested_at_an_interval() -> None:
    # The last records may be dropped on their way, and all heads after them, without any message.
    role = ConsumerRole(ME, "earliest")
    assert role.on_tick(0.0) == []
    for topic in ("a", "b"):
        role.subscribe(topic)
    assert role.on_tick(1.0) == []
    assert role.deadline(1.0) == 1.0 + timing.HEADS_INTERVAL_S
    asked = [m.GetHeads("a", ME), m.GetHeads("b", ME)]
    assert role.on_tick(1.0 + timing.HEADS_INTERVAL_S) == asked
    assert role.on_tick(2.0 + timing.HEADS_INTERVAL_S) == []
    role.unsubscribe("a")
    role.room = False
    assert role.on_tick(1.0 + 3 * timing.HEADS_INTERVAL_S) == []
    assert role.deadline(1.0 + 3 * timing.HEADS_INTERVAL_S) == inf
    role.room = True
    assert role.on_tick(1.0 + 3 * timing.HEADS_INTERVAL_S) == [m.GetHeads("b", ME)]
    role.unsubscribe("b")
    assert role.on_tick(9 * timing.HEADS_INTERVAL_S) == []
    # Otherwise the node's loop would never wait.
    assert role.deadline(9 * timing.HEADS_INTERVAL_S) == inf


def test_heads_of_many_partitions_are_requested_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka_core.protocol.consumer_role.HEADS_PER_INTERVAL", 10)
    role = consumer("latest")
    role.on_tick(0.0)
    for i in range(20):
        role.on_message(0.0, m.Head(TOPIC, f"P{i}", 4), "")
    assert role.deadline(0.0) == 3 * timing.HEADS_INTERVAL_S
    assert role.on_tick(3 * timing.HEADS_INTERVAL_S - 1) == []
    assert role.on_tick(3 * timing.HEADS_INTERVAL_S) == [m.GetHeads(TOPIC, ME)]


def test_deadline_is_when_to_ask_again(role: ConsumerRole) -> None:
    assert role.deadline(0.0) == inf
    head(role, 5, now=10.0)
    assert role.deadline(10.0) == 10.0 + timing.FETCH_RETRY_S
    assert role.on_tick(10.0 + timing.FETCH_RETRY_S) == [fetch(0, 5)]
    direct(role, 0, 5, now=11.5)
    assert role.deadline(11.5) == 10.0 + timing.FETCH_RETRY_S + timing.HEADS_INTERVAL_S  # for heads


def test_a_new_subscriber_to_fetches_is_asked_at_once(role: ConsumerRole) -> None:
    head(role, 5)
    assert role.on_tick(0.0) == []
    role.on_subscribed(0.0, m.Fetch, "P2")
    assert role.on_tick(0.0) == []
    # A store receives FETCHes of all partitions, a producer those of its own.
    for topic in ("", PARTITION):
        role.on_subscribed(0.0, m.Fetch, topic)
        assert role.on_tick(0.0) == [fetch(0, 5)]


# -- room, seek, unsubscribe ----------------------------------------------------------------------


def test_without_room_nothing_is_delivered_or_requested(role: ConsumerRole) -> None:
    assert record(role, 0, 10) == []
    role.room = False
    assert record(role, 10, 20) == []
    assert head(role, 30) == []
    assert role.on_tick(5.0) == []
    # Otherwise the node would go round and round.
    assert role.deadline(5.0) == inf
    assert role.delivered == [batch_of(0, 10)]
    assert role.scheduler.budget.records == 0
    role.room = True
    assert role.on_tick(5.0) == [fetch(10, 30)]
    assert direct(role, 10, 30) == []
    assert offsets_of(role.delivered) == list(range(30))


def test_latest_without_room_loses_nothing() -> None:
    role = consumer("latest")
    role.room = False
    record(role, 5, 8)
    role.room = True
    assert role.on_tick(0.0) == [fetch(5, 8)]


@pytest.mark.parametrize("offset", [0, 7, 25, 40])
def test_seek(role: ConsumerRole, offset: int) -> None:
    record(role, 0, 20)
    record(role, 25, 30)
    role.delivered.clear()
    role.seek(TP, offset)
    assert role.scheduler.budget.records == 0
    asked = fetches_in(role.on_tick(0.0))
    assert asked == ([fetch(offset, 30)] if offset < 30 else [])
    for request in asked:
        for batch in answer(request, 30):
            role.on_batch(0.0, ME, batch)
    record(role, 30, 50)
    assert offsets_of(role.delivered) == list(range(offset, 50))


def test_seek_before_subscribing() -> None:
    role = ConsumerRole(ME, "earliest")
    role.seek(TP, 3)
    assert role.on_tick(0.0) == []
    assert head(role, 9) == []
    role.subscribe(TOPIC)
    assert head(role, 9) == [fetch(3, 9)]


def test_unsubscribe_forgets_the_topic() -> None:
    role = consumer("earliest", TOPIC, "b")
    record(role, 3, 9)
    role.on_message(0.0, m.Head("b", PARTITION, 3), "")
    role.unsubscribe(TOPIC)
    assert list(role.topics) == ["b"]
    assert list(role.positions()) == [("b", PARTITION)]
    assert role.scheduler.budget.records == 0
    assert {f.topic for f in fetches_in(role.on_tick(99.0))} == {"b"}
    assert record(role, 0, 3) == []
    assert role.delivered == []
    # Subscribed again it begins again.
    role.subscribe(TOPIC)
    assert record(role, 0, 3) == []
    assert offsets_of(role.delivered) == [0, 1, 2]


# -- limits ---------------------------------------------------------------------------------------


def test_a_forged_head_costs_little(role: ConsumerRole) -> None:
    head(role, MAX_SEQUENCE + 1)
    asked = 0
    for tenth in range(2_000):
        now = tenth / 10
        sent = role.on_tick(now)
        for request in fetches_in([*sent, *head(role, MAX_SEQUENCE + 1, now)]):
            asked += 1
            for batch in answer(request, 10):
                direct(role, batch.offset, batch.end, now)
    assert offsets_of(role.delivered) == list(range(10))
    # Once in eight seconds in the end.
    assert asked <= 200 / timing.MAX_FETCH_RETRY_S + 8
    assert role.scheduler.budget.records == 0
    assert len(role.positions()) == len(role.scheduler) == 1


def test_requests_for_records_that_no_node_has_cost_little(role: ConsumerRole) -> None:
    # The first ones are lost for ever, and new ones come and come.
    asked = 0
    for i in range(600):
        asked += len(fetches_in(record(role, 1_000 * (i + 1), 1_000 * (i + 2), i / 10)))
    assert asked <= 60 / timing.MAX_FETCH_RETRY_S + 8
    assert role.delivered == []
    assert role.scheduler.budget.records <= MAX_REORDER_RECORDS
    # All that did not fit is asked for when the first ones turn up.
    requests = [fetch(0, 1_000)]
    while requests:
        for batch in answer(requests.pop(0), 601_000):
            requests.extend(fetches_in(direct(role, batch.offset, batch.end, 60.0)))
    assert offsets_of(role.delivered) == list(range(601_000))
    assert role.scheduler.budget.records == role.scheduler.budget.size_bytes == 0


def test_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka_core.protocol.consumer_role.MAX_PARTITIONS", 10)
    role = consumer("earliest")
    for i in range(30):
        role.on_message(0.0, m.Head(TOPIC, f"P{i}", 5), "")
        role.on_batch(0.0, "", batch_of(0, 1, partition=f"P{i}"))
    assert len(role.positions()) == 10
    assert len(role.delivered) == 10


def test_histories_of_other_partitions_are_not_kept(role: ConsumerRole) -> None:
    record(role, 0, 1)
    history = (Epoch(2, 7, 1, 0, 0),)
    for i in range(100):
        reply = m.HistoryReply(ME, m.UNSOLICITED, "S", TOPIC, f"P{i}", 5, NO_LIFE, history)
        assert role.on_message(0.0, reply, "") == []
    assert set(role.partitions) == {TP}
    assert len(role.delivered) == 1


def test_records_of_a_replaced_life_are_ignored_and_the_history_is_requested() -> None:
    role, old = consumer("earliest"), Epoch(1, 7, 1, 0, 0)
    new, replaced = Epoch(2, 8, 1, 2, old.digest), Epoch(1, 9, 1, 0, 0)
    for start, epoch in ((0, old), (2, new)):
        role.on_batch(0.0, "", dataclasses.replace(batch_of(start, start + 2), epoch=epoch))
    stale = dataclasses.replace(batch_of(4, 6), epoch=replaced)
    assert role.on_batch(1.0, "", stale) == []
    assert role.on_batch(1.0, ME, stale) == [m.HistoryQuery(ME, m.UNSOLICITED, *TP)]
    assert role.on_batch(1.1, ME, stale) == []  # asked a moment ago
    # The head after them does not bring them again at once.
    head = m.DirectHead(ME, *TP, 5)
    assert [type(each) for each in role.on_message(1.1, head, "")] == [m.Fetch]
    assert role.on_message(1.2, head, "") == []
    after_s = 1.0 + timing.HISTORY_INTERVAL_S
    assert [type(each) for each in role.on_message(after_s, head, "")] == [m.Fetch]
    assert offsets_of(role.delivered) == [0, 1, 2, 3]


# -- records above its limit ----------------------------------------------------------------------

LIMIT = 10


def limited() -> ConsumerRole:
    role = ConsumerRole(ME, "earliest", limit_bytes=LIMIT)
    role.subscribe(TOPIC)
    return role


def refuse(role: ConsumerRole, offset: int, size_bytes: int = 100, to: str = ME) -> list[Outgoing]:
    return role.on_message(0.5, m.RecordTooLarge(to, *TP, offset, size_bytes), "")


def delivered(role: ConsumerRole) -> list[range | int]:
    """The ranges of offsets, and the offsets of errors."""
    return [
        range(each.offset, each.end) if isinstance(each, RecordBatch) else each.offset
        for each in role.delivered
        if not isinstance(each, HistoryChangedError)
    ]


def test_the_error_takes_the_place_of_the_record() -> None:
    role = limited()
    role.on_message(0.0, m.Head(*TP, 5), "")
    role.on_batch(0.0, ME, batch_of(0, 2))
    role.on_batch(0.0, "", batch_of(3, 6))  # it waits behind the gap
    refuse(role, 2)
    assert delivered(role) == [range(2), 2, range(3, 6)]
    error = role.delivered[1]
    assert isinstance(error, RecordTooLargeError)
    assert (error.size_bytes, error.limit_bytes, error.node) == (100, LIMIT, "this consumer")
    assert role.positions() == {TP: (6, 6)}
    assert role.on_tick(20.0)[1:] == []  # nothing is missing


def test_following_records_are_requested() -> None:
    role = limited()
    role.on_message(0.0, m.Head(*TP, 0), "")
    assert refuse(role, 0) == []
    assert fetches_in(role.on_message(0.5, m.Head(*TP, 3), "")) == [fetch(1, 4)]


def test_only_the_next_record_is_skipped_and_only_above_the_limit() -> None:
    role = limited()
    role.on_message(0.0, m.Head(*TP, 5), "")
    refuse(role, 1)  # the ones before it were lost on the way
    refuse(role, 0, LIMIT)  # within its limit: the report is wrong
    refuse(role, 0, to="another")
    assert role.delivered == []
    assert fetches_in(role.on_tick(timing.FETCH_RETRY_S + 0.1)) == [fetch(0, 6)]


def test_a_life_that_began_with_a_skipped_record_changes_nothing() -> None:
    """Otherwise it would return to records that no node sends, skip them, and return, for ever."""
    role, old = limited(), Epoch(1, 7, 1, 0, 0)
    role.on_batch(0.0, "", dataclasses.replace(batch_of(0, 2), epoch=old))
    role.on_message(0.0, m.Head(*TP, 2), "")
    refuse(role, 2)

    def hear(start: int) -> None:
        history = (old, Epoch(start, 8, 1, start, old.digest))
        role.on_message(1.0, m.HistoryReply(ME, m.UNSOLICITED, "S", *TP, 3, NO_LIFE, history), "")

    hear(2)
    assert role.positions() == {TP: (3, 3)}
    assert isinstance(role.delivered[-1], RecordTooLargeError)
    hear(1)
    assert isinstance(role.delivered[-1], HistoryChangedError)


def test_without_room_the_record_is_requested_again() -> None:
    role = limited()
    role.on_message(0.0, m.Head(*TP, 5), "")
    role.room = False
    refuse(role, 0)
    assert role.delivered == []
    role.room = True
    assert fetches_in(role.on_tick(timing.FETCH_RETRY_S + 0.1)) == [fetch(0, 6)]


def test_reports_of_other_partitions_are_ignored() -> None:
    role = limited()
    assert refuse(role, 0) == []
    role.on_message(0.0, m.Head(*TP, 5), "")
    role.unsubscribe(TOPIC)
    refuse(role, 0)
    assert role.delivered == []
