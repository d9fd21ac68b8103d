"""Questions to C stores, whose answers end with silence."""

from __future__ import annotations

import pytest

from dafka_core.model.records import PartitionInfo
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.role import Outgoing
from tests.unit.protocol.model import PARTITION, TOPIC, bounds
from tests.unit.protocol.test_store_directory import ME, answered, ask, directory
from tests.unit.protocol.test_store_directory import greet_c_store as greet


def test_answers_of_c_stores_to_get_heads_end_with_silence() -> None:
    stores = directory()
    greet(stores, "D1")
    question, messages = stores.ask(1.0, m.HeadsQuery, ("a", "b"))
    assert messages == [m.HeadsQuery(ME, 1, ("a", "b")), m.GetHeads("a", ME), m.GetHeads("b", ME)]
    stores.on_message(1.1, m.DirectHead(ME, "a", PARTITION, 8))
    # C stores compare by prefix, so they also send "ab".
    stores.on_message(1.2, m.DirectHead(ME, "ab", PARTITION, 8))
    stores.on_message(1.2, m.DirectHead(ME, "b", "P2", 3))
    assert not answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S - 0.01)
    assert answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S)
    assert bounds(question) == {("a", PARTITION): (0, 9), ("b", "P2"): (0, 4)}


def test_an_empty_topic_asks_c_stores_for_all_topics() -> None:
    stores = directory()
    greet(stores, "D1")
    question, messages = stores.ask(1.0, m.HeadsQuery, ())
    assert messages == [m.HeadsQuery(ME, 1, ()), m.GetHeads("", ME)]
    stores.on_message(1.1, m.DirectHead(ME, "any", PARTITION, 8))
    assert answered(stores, question, 1.1 + timing.C_STORE_SILENCE_S)
    assert bounds(question) == {("any", PARTITION): (0, 9)}


@pytest.mark.parametrize("latency_s", [0.0, 0.05, 0.15, 0.3, 0.39])
def test_a_slow_c_store_is_asked_once(latency_s: float) -> None:
    # Each time of asking ends the silence that ends the answer.
    stores = directory()
    greet(stores, "D1")
    question, sent = stores.ask(1.0, m.HeadsQuery, (TOPIC,))
    answers: list[float] = []
    for hundredth in range(100, 300):
        now = hundredth / 100
        answers.extend(now + latency_s for message in sent if isinstance(message, m.GetHeads))
        if answers and answers[0] <= now:
            answers.pop(0)
            stores.on_message(now, m.DirectHead(ME, TOPIC, PARTITION, 8))
        sent = stores.on_tick(now)
        if question.answered:
            break
    assert question.answered
    assert now == pytest.approx(1.0 + latency_s + timing.C_STORE_SILENCE_S, abs=0.02)
    assert bounds(question) == {(TOPIC, PARTITION): (0, 9)}


def test_an_answer_waits_for_a_c_store_that_does_not_receive_us_yet() -> None:
    stores = directory()
    stores.on_message(0.0, m.StoreHello(ME, "D1"))
    question = ask(stores, now=1.0)
    assert not answered(stores, question, 1.0 + timing.C_STORE_SILENCE_S)
    assert stores.on_subscribed(2.0, m.ConsumerHello, "D1") == [question.query, m.GetHeads("", ME)]
    assert not answered(stores, question, 2.0 + timing.C_STORE_SILENCE_S - 0.01)
    assert answered(stores, question, 2.0 + timing.C_STORE_SILENCE_S)


def test_both_kinds_of_stores_together() -> None:
    stores = directory()
    greet(stores, "D1")
    stores.on_message(0.0, m.HeadsReply(ME, m.UNSOLICITED, "S1", 0, 1, ()))
    question, messages = stores.ask(1.0, m.HeadsQuery, (TOPIC,))
    assert messages == [question.query, m.GetHeads(TOPIC, ME)]
    stores.on_message(1.1, m.DirectHead(ME, TOPIC, PARTITION, 20))
    entries = (PartitionInfo(TOPIC, PARTITION, 4, 9),)
    stores.on_message(1.2, m.HeadsReply(ME, question.query.query, "S1", 0, 1, entries))
    assert not answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S - 0.01)
    assert answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S)
    # A C store has nothing trimmed.
    assert bounds(question) == {(TOPIC, PARTITION): (0, 21)}


@pytest.mark.parametrize("hello_first", [True, False])
def test_a_new_c_store_is_asked_when_both_directions_are_open(hello_first: bool) -> None:
    stores = directory()
    question = ask(stores, "t", now=1.0)

    def greets() -> list[Outgoing]:
        return stores.on_message(1.1, m.StoreHello(ME, "D1"))

    def subscribes() -> list[Outgoing]:
        return stores.on_subscribed(1.1, m.ConsumerHello, "D1")

    first, second = (greets, subscribes) if hello_first else (subscribes, greets)
    first()
    assert m.GetHeads("t", ME) in second()
    stores.on_message(1.2, m.DirectHead(ME, "t", PARTITION, 8))
    assert answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S)
    assert bounds(question) == {("t", PARTITION): (0, 9)}


def test_a_lost_c_store_returns_with_a_greeting() -> None:
    # Its connection to us has lasted, so it does not subscribe a second time.
    stores = directory()
    greet(stores, "D1")
    stores.on_peer_lost("D1")
    assert stores.stores == []
    question = ask(stores, "t", now=2.0)
    assert not answered(stores, question, 3.0)
    assert m.GetHeads("t", ME) in stores.on_message(3.1, m.StoreHello(ME, "D1"))
    stores.on_message(3.2, m.DirectHead(ME, "t", PARTITION, 8))
    assert answered(stores, question, 3.2 + timing.C_STORE_SILENCE_S)


def test_c_stores_are_asked_once_in_each_round() -> None:
    stores = directory()
    greet(stores, "D1")
    question, _ = stores.ask(1.0, m.HeadsQuery, ("t",), rounds=3)
    now, sent = 1.0, []
    while not question.answered:
        now += 0.01
        sent += stores.on_tick(now)
    assert sent.count(m.GetHeads("t", ME)) == 2
    assert 1.0 + 3 * timing.C_STORE_SILENCE_S <= now < 1.1 + 3 * timing.C_STORE_SILENCE_S


def test_an_answer_in_a_later_round_counts() -> None:
    stores = directory()
    greet(stores, "D1")
    question, _ = stores.ask(1.0, m.HeadsQuery, ("t",), rounds=2)
    assert not answered(stores, question, 1.0 + timing.C_STORE_SILENCE_S)
    stores.on_message(1.5, m.DirectHead(ME, "t", PARTITION, 8))
    assert answered(stores, question, 1.5 + timing.C_STORE_SILENCE_S)
    assert bounds(question) == {("t", PARTITION): (0, 9)}
