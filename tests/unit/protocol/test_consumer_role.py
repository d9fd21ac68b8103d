"""The consumer delivers each record of its topics once, in order, and none is missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dafka_core.model.records import RecordBatch
from dafka_core.protocol import partition_fetcher, timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.consumer_role import ConsumerRole
from dafka_core.protocol.limits import MAX_FETCH_COUNT
from dafka_core.protocol.messages import (
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    DirectRecordBatches,
    Fetch,
    GetHeads,
    Head,
    HeadsReply,
    RecordBatchMessage,
    RecordMessage,
    RecordTooLarge,
    StoreHello,
)
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import GREETING
from tests.unit.protocol.model import (
    PARTITION,
    TOPIC,
    TP,
    Network,
    answer,
    batch_of,
    fetches_in,
    offsets_of,
)

ME = "21962C91115348329557DE71C90C3718"
STORE = "C907107406D149E897A2DEA4F157F211"


def consumer(start: Any = "earliest", *topics: str) -> ConsumerRole:
    role = ConsumerRole(ME, start)
    for topic in topics or (TOPIC,):
        role.subscribe(topic)
    return role


def record(role: ConsumerRole, start: int, end: int, now: float = 0.0) -> list[Outgoing]:
    """RECORDs ``[start, end)`` arrive."""
    return role.on_batch(now, "", batch_of(start, end))


def direct(role: ConsumerRole, start: int, end: int, now: float = 0.0) -> list[Outgoing]:
    """DIRECT-RECORDs ``[start, end)`` arrive."""
    return role.on_batch(now, ME, batch_of(start, end))


def head(role: ConsumerRole, end: int, now: float = 0.0) -> list[Outgoing]:
    return role.on_message(now, Head(TOPIC, PARTITION, end - 1), "")


def fetch(start: int, end: int) -> Fetch:
    return Fetch(PARTITION, ME, TOPIC, start, end - start)


# -- the scenarios of the C project ---------------------------------------------------------------


def test_without_a_subscription_a_store_hello_is_not_answered() -> None:
    # RFC 46: "it MUST NOT send a CONSUMER-HELLO command"; the C project's sends an empty one.
    role = ConsumerRole(ME, "earliest")
    assert role.on_message(0.0, StoreHello(ME, STORE), "") == []
    assert role.on_subscribed(0.0, ConsumerHello, STORE) == []


def test_with_subscriptions_a_store_hello_is_answered_with_the_topics() -> None:
    role = consumer("earliest", "b", "a")
    hello = ConsumerHello(STORE, ME, ("b", "a"))
    # Before messages go both ways, the hello or its answer would be lost.
    assert role.on_message(0.0, StoreHello(ME, STORE), "") == []
    assert role.on_subscribed(0.0, ConsumerHello, STORE) == [hello]
    assert role.on_message(0.0, StoreHello(ME, STORE), "") == [hello]
    role.unsubscribe("b")
    assert role.on_message(0.0, StoreHello(ME, STORE), "") == [ConsumerHello(STORE, ME, ("a",))]
    role.unsubscribe("a")
    assert role.on_message(0.0, StoreHello(ME, STORE), "") == []


def test_a_store_is_told_the_topics_once_in_whatever_order_it_is_met() -> None:
    hello = ConsumerHello(STORE, ME, (TOPIC,))
    greeting = HeadsReply(ME, GREETING, STORE, 0, 1, ())
    met = consumer("earliest", TOPIC)
    assert met.on_subscribed(0.0, ConsumerHello, STORE) == []
    assert met.on_message(0.0, StoreHello(ME, STORE), "") == [hello]
    assert met.on_message(0.0, greeting, "") == []
    heard = consumer("earliest", TOPIC)
    assert heard.on_message(0.0, StoreHello(ME, STORE), "") == []
    assert heard.on_message(0.0, greeting, "") == []
    assert heard.on_subscribed(0.0, ConsumerHello, STORE) == [hello]
    # Its hello is lost, and the reply that ends its greeting is not.
    deaf = consumer("earliest", TOPIC)
    assert deaf.on_subscribed(0.0, ConsumerHello, STORE) == []
    assert deaf.on_message(0.0, greeting, "") == [hello]


def test_asks_for_the_heads_when_it_subscribes() -> None:
    role = ConsumerRole(ME, "earliest")
    assert role.subscribe(TOPIC) == [GetHeads(TOPIC, ME)]
    assert role.topics == [TOPIC]


def test_earliest_triggered_by_a_head() -> None:
    role = consumer("earliest")
    assert head(role, 2) == [fetch(0, 2)]
    assert direct(role, 0, 2) == []
    assert offsets_of(role.delivered) == [0, 1]


def test_earliest_triggered_by_a_direct_head() -> None:
    role = consumer("earliest")
    message = DirectHead(ME, TOPIC, PARTITION, 1)
    assert role.on_message(0.0, message, STORE) == [fetch(0, 2)]


def test_earliest_triggered_by_a_record() -> None:
    role = consumer("earliest")
    assert record(role, 1, 2) == [fetch(0, 1)]
    assert role.delivered == []
    assert record(role, 0, 1) == []
    assert role.delivered == [batch_of(0, 1), batch_of(1, 2)]


def test_earliest_begins_with_the_first_record() -> None:
    role = consumer("earliest")
    assert record(role, 0, 3) == []
    assert role.delivered == [batch_of(0, 3)]


def test_latest_begins_with_the_first_record_that_comes() -> None:
    role = consumer("latest")
    assert record(role, 2, 3) == []
    assert role.delivered == [batch_of(2, 3)]
    assert record(role, 1, 2) == []
    assert record(role, 4, 5) == [fetch(3, 4)]
    assert direct(role, 3, 4) == []
    assert offsets_of(role.delivered) == [2, 3, 4]


def test_latest_begins_after_the_first_head_that_comes() -> None:
    role = consumer("latest")
    assert head(role, 7) == []
    assert record(role, 7, 8) == []
    assert offsets_of(role.delivered) == [7]


def test_latest_is_not_where_an_old_answer_is() -> None:
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
    other = Head(TOPIC, "P2", 1)
    assert role.on_message(0.0, other, "") == [Fetch("P2", ME, TOPIC, 0, 2)]


# -- whatever the network does --------------------------------------------------------------------


def follow(role: ConsumerRole, network: Network, total: int, *, rate: int) -> list[int]:
    """Run a producer, and nodes that answer FETCHes; return the delivered records."""
    published, tenth, delivered = 0, 0, list[int]()
    # After the faults: the longest wait for a retry, a head, and a round trip for each gap.
    message_count = total / rate
    bound_s = (
        max(network.faults_end_s, message_count / 10)
        + timing.MAX_FETCH_RETRY_S
        + 1
        + 0.2 * message_count
    )
    while len(delivered) < total:
        now = tenth / 10
        assert now < bound_s
        sent: list[Outgoing] = []
        if published < total:
            end = min(published + rate, total)
            network.send(now, ("", batch_of(published, end)))
            published = end
        if tenth % 10 == 0:
            network.send(now, Head(TOPIC, PARTITION, published - 1))
        for item in network.arrived(now):
            if isinstance(item, tuple):
                sent.extend(role.on_batch(now, *item))
            elif isinstance(item, Head):
                sent.extend(role.on_message(now, item, ""))
            elif isinstance(item, Fetch):
                for batch in answer(item, published, at_once=rate):
                    network.send(now, (ME, batch))
        sent.extend(role.on_tick(now))
        for request in fetches_in(sent):
            assert request.end <= published
            network.send(now, request)
        delivered.extend(offsets_of(role.delivered))
        role.delivered.clear()
        tenth += 1
    return delivered


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.05, 0.3, 0.6, 0.9]),
    st.sampled_from([3.0, 15.0]),
    st.sampled_from([1, 5, 40]),
    st.sampled_from([10, 1 << 18]),
)
@example(0, 1.0, 15.0, 40, 1 << 18)
def test_everything_is_delivered_once_and_in_order(
    seed: int, loss: float, faults_end_s: float, rate: int, most_kept: int
) -> None:
    total = 10 * rate * 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_fetcher, "MAX_REORDER_RECORDS", most_kept)
        role = consumer("earliest")
        delivered = follow(role, Network(seed, loss, faults_end_s), total, rate=rate)
        assert delivered == list(range(total))
        assert role.scheduler.budget.records == role.scheduler.budget.size_bytes == 0
        assert role.positions() == {(TOPIC, PARTITION): (total, total)}
        assert role.scheduler.deadline() is None


@pytest.mark.parametrize("extra", [0, 1])
def test_replays_a_long_partition_whose_producer_is_gone(extra: int) -> None:
    # C consumers stop after one block; C stores answer with one record too many.
    role = consumer("earliest")
    total = 350_000
    requests = fetches_in(role.on_message(0.0, DirectHead(ME, TOPIC, PARTITION, total - 1), STORE))
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


def test_several_partitions_and_topics_do_not_mix() -> None:
    role = consumer("earliest", "a", "b")
    batches = [batch_of(0, 3, t, p) for t in ("a", "b") for p in ("P1", "P2")]
    for batch in batches:
        role.on_batch(0.0, "", batch.between(1, batch.end))
    for batch in batches:
        role.on_batch(0.0, "", batch_of(0, 1, batch.tp.topic, batch.tp.partition))
    for topic in ("a", "b"):
        for partition in ("P1", "P2"):
            batches = [each for each in role.delivered if isinstance(each, RecordBatch)]
            mine = [each for each in batches if each.tp == (topic, partition)]
            assert offsets_of(mine) == [0, 1, 2]


def test_topics_match_exactly() -> None:
    role = consumer("earliest", "a")
    # A SUB socket that subscribed to "a" is sent all of these.
    for topic in ("ab", "a/b", "a ", "A"):
        assert role.on_batch(0.0, "", batch_of(5, 9, topic)) == []
        assert role.on_message(0.0, Head(topic, PARTITION, 9), "") == []
        assert role.on_batch(0.0, ME, batch_of(5, 9, topic)) == []
    assert role.delivered == []
    assert role.positions() == {}


def test_records_sent_to_another_node_are_not_taken() -> None:
    role = consumer("earliest")
    assert role.on_batch(0.0, ME + "0", batch_of(0, 9)) == []
    assert role.delivered == []
    assert role.positions() == {}


# -- when to ask ----------------------------------------------------------------------------------


def test_heads_are_asked_for_now_and_then() -> None:
    # The last records may be dropped on their way, and all heads after them, without any message.
    role = ConsumerRole(ME, "earliest")
    assert role.on_tick(0.0) == []
    for topic in ("a", "b"):
        role.subscribe(topic)
    assert role.on_tick(1.0) == []
    assert role.deadline(1.0) == 1.0 + timing.HEADS_INTERVAL_S
    asked = [GetHeads("a", ME), GetHeads("b", ME)]
    assert role.on_tick(1.0 + timing.HEADS_INTERVAL_S) == asked
    assert role.on_tick(2.0 + timing.HEADS_INTERVAL_S) == []
    role.unsubscribe("a")
    role.room = False
    assert role.on_tick(1.0 + 3 * timing.HEADS_INTERVAL_S) == []
    assert role.deadline(1.0 + 3 * timing.HEADS_INTERVAL_S) is None
    role.room = True
    assert role.on_tick(1.0 + 3 * timing.HEADS_INTERVAL_S) == [GetHeads("b", ME)]


def test_heads_of_very_many_partitions_are_asked_for_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dafka_core.protocol.consumer_role.HEADS_PER_INTERVAL", 10)
    role = consumer("latest")
    role.on_tick(0.0)
    for i in range(20):
        role.on_message(0.0, Head(TOPIC, f"P{i}", 4), "")
    assert role.deadline(0.0) == 3 * timing.HEADS_INTERVAL_S
    assert role.on_tick(3 * timing.HEADS_INTERVAL_S - 1) == []
    assert role.on_tick(3 * timing.HEADS_INTERVAL_S) == [GetHeads(TOPIC, ME)]


def test_deadline_is_when_to_ask_again() -> None:
    role = consumer("earliest")
    assert role.deadline(0.0) is None
    head(role, 5, now=10.0)
    assert role.deadline(10.0) == 10.0 + timing.FETCH_RETRY_S
    assert role.on_tick(10.0 + timing.FETCH_RETRY_S) == [fetch(0, 5)]
    direct(role, 0, 5, now=11.5)
    assert role.deadline(11.5) == 10.0 + timing.FETCH_RETRY_S + timing.HEADS_INTERVAL_S  # for heads


def test_who_comes_to_hear_fetches_is_asked_at_once() -> None:
    role = consumer("earliest")
    head(role, 5)
    assert role.on_tick(0.0) == []
    role.on_subscribed(0.0, Fetch, "P2")
    assert role.on_tick(0.0) == []
    # A store hears FETCHes of all partitions, a producer those of its own.
    for topic in ("", PARTITION):
        role.on_subscribed(0.0, Fetch, topic)
        assert role.on_tick(0.0) == [fetch(0, 5)]


def test_a_lost_peer_changes_nothing() -> None:
    role = consumer("earliest")
    record(role, 0, 5)
    role.on_peer_lost(PARTITION)
    assert record(role, 5, 6) == []
    assert offsets_of(role.delivered) == list(range(6))


def test_subscriptions() -> None:
    role = consumer("earliest")
    records = (DirectRecord, DirectRecordBatch, DirectRecordBatches, RecordTooLarge)
    assert role.subscriptions() == [
        *(subscription(kind, ME) for kind in records),
        *role.directory.subscriptions(),
    ]
    assert subscription(StoreHello, ME) in role.subscriptions()
    assert subscription(DirectHead, ME) in role.subscriptions()
    assert role.topic_subscriptions(TOPIC) == [
        subscription(kind, TOPIC) for kind in (RecordMessage, RecordBatchMessage, Head)
    ]


def test_batches_that_are_delivered_do_not_touch_each_other_twice() -> None:
    role = consumer("earliest")
    record(role, 0, 10)
    record(role, 5, 15)
    record(role, 0, 15)
    assert role.delivered == [batch_of(0, 10), batch_of(10, 15)]
