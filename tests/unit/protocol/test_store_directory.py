"""Questions to all stores: when the answer is complete, and that it becomes so."""

from itertools import permutations
from math import inf

import pytest

from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import Question, StoreDirectory
from tests.unit.protocol.model import PARTITION, TOPIC, TP, bounds

ME = "8E1BBB578999443B8818C5851AFC9A3F"
LONG_S = 60.0


def directory(now: float = 0.0) -> StoreDirectory:
    made = StoreDirectory(ME)
    assert made.on_tick(now) == []
    return made


@pytest.fixture
def stores() -> StoreDirectory:
    return directory()


def greet(of: StoreDirectory, store: str, now: float = 0.0) -> list[Outgoing]:
    """Introduce one of our stores, with both directions open."""
    messages = of.on_message(now, m.StoreHello(ME, store))
    messages += of.on_subscribed(now, m.ConsumerHello, store)
    return messages + of.on_message(now, m.HeadsReply(ME, m.UNSOLICITED, store, 0, 1, ()))


def greet_c_store(of: StoreDirectory, store: str, now: float = 0.0) -> list[Outgoing]:
    """Greet as a C store, which knows no queries."""
    messages = of.on_message(now, m.StoreHello(ME, store))
    return messages + of.on_subscribed(now, m.ConsumerHello, store)


def reply(
    of: StoreDirectory,
    question: Question,
    store: str,
    *entries: PartitionInfo,
    now: float = 0.0,
    part: int = 0,
    parts: int = 1,
) -> None:
    message = m.HeadsReply(ME, question.query.query, store, part, parts, entries)
    assert of.on_message(now, message) == []


def entry(
    end: int, earliest: int = 0, partition: str = PARTITION, topic: str = TOPIC
) -> PartitionInfo:
    return PartitionInfo(topic, partition, earliest, end)


def ask(of: StoreDirectory, *topics: str, now: float = 0.0) -> Question:
    return of.ask(now, m.HeadsQuery, tuple(topics))[0]


def answered(of: StoreDirectory, question: Question, now: float) -> bool:
    of.on_tick(now)
    return question.answered


# -- our stores -----------------------------------------------------------------------------------


def test_our_stores_greeting(stores: StoreDirectory) -> None:
    assert not stores.stores
    greet(stores, "S1")
    # A greeting alone is enough, whatever was lost before it.
    stores.on_message(0.0, m.HeadsReply(ME, m.UNSOLICITED, "S2", 0, 1, ()))
    assert list(stores.stores) == ["S1", "S2"]
    # A store that subscribed to our hello may not reach us yet.
    stores.on_subscribed(0.0, m.ConsumerHello, "S3")
    assert list(stores.stores) == ["S1", "S2"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"S1": []}, {}),
        ({"S1": [entry(9)], "S2": []}, {TP: (0, 9)}),
        # The greatest end and the earliest beginning count.
        (
            {"S1": [entry(9, 3), entry(4, 0, "P2")], "S2": [entry(12, 5)], "S3": [entry(7, 2)]},
            {TP: (2, 12), (TOPIC, "P2"): (0, 4)},
        ),
    ],
)
def test_an_answer_is_complete_when_every_store_has_answered(
    answers: dict[str, list[PartitionInfo]], expected: dict[tuple[str, str], tuple[int, int]]
) -> None:
    stores = directory()
    for store in answers:
        greet(stores, store)
    question, messages = stores.ask(1.0, m.HeadsQuery, ("a", "b"))
    assert messages == [m.HeadsQuery(ME, 1, ("a", "b"))]
    for store, entries in answers.items():
        assert not answered(stores, question, 1.0)
        reply(stores, question, store, *entries, now=1.0)
    assert answered(stores, question, 1.0)
    assert bounds(question) == expected


def test_no_answer_is_complete_before_the_settle_time() -> None:
    stores = directory(10.0)
    greet(stores, "S1", 10.0)
    question = ask(stores, now=10.0)
    reply(stores, question, "S1", now=10.0)
    assert not answered(stores, question, 10.0 + timing.SETTLE_S - 0.01)
    # A second store turns up in that time.
    assert question.query in greet(stores, "S2", 10.2)
    assert not answered(stores, question, 10.0 + timing.SETTLE_S)
    reply(stores, question, "S2", entry(3), now=10.3)
    assert answered(stores, question, 10.3)


def test_without_a_store_a_question_is_never_answered(stores: StoreDirectory) -> None:
    question, messages = stores.ask(0.0, m.HeadsQuery, (TOPIC,))
    for tenth in range(1, 600):
        messages.extend(stores.on_tick(tenth / 10))
        assert not question.answered
    # It is asked again and again, for stores that may come, but not in a hurry.
    assert 60 / timing.QUERY_RETRY_S / 2 <= len(messages) <= 60 / timing.QUERY_RETRY_S + 1
    assert set(messages) == {question.query}


def test_a_store_that_receives_us_from_now_on_is_asked_the_open_questions() -> None:
    stores = directory()
    question = ask(stores, TOPIC)
    assert stores.on_subscribed(1.0, m.ConsumerHello, "S1") == [question.query]
    assert stores.on_subscribed(1.0, m.ConsumerHello, "") == []
    assert stores.on_subscribed(1.0, m.Ack, "S1") == []
    greet(stores, "S1", 1.0)
    reply(stores, question, "S1", now=1.0)
    assert answered(stores, question, 1.0)
    # Answered questions are not repeated.
    assert greet(stores, "S2", 2.0) == []
    assert stores.on_tick(LONG_S) == []


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_an_answer_in_parts_is_complete_with_all_of_them_in_any_order(
    stores: StoreDirectory, order: tuple[int, ...]
) -> None:
    greet(stores, "S1")
    question = ask(stores, now=1.0)
    for part in order:
        assert not answered(stores, question, 1.0)
        for _ in range(2):
            reply(stores, question, "S1", entry(7, partition=f"P{part}"), part=part, parts=3)
    assert answered(stores, question, 1.0)
    assert {partition for _, partition in question.heads} == {"P0", "P1", "P2"}


def test_parts_of_different_answers_are_not_mixed(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    question = ask(stores, now=1.0)
    reply(stores, question, "S1", entry(7, partition="P0"), part=0, parts=2)
    # Asked again, the store has more entries, in other parts.
    reply(stores, question, "S1", entry(7, partition="P1"), part=1, parts=3)
    reply(stores, question, "S1", entry(7, partition="P2"), part=2, parts=3)
    assert not answered(stores, question, 1.0)
    reply(stores, question, "S1", entry(8, partition="P0"), part=0, parts=3)
    assert answered(stores, question, 1.0)
    assert bounds(question)[TopicPartition(TOPIC, "P0")] == (0, 8)


def test_a_lost_part_is_requested_again(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    question = ask(stores, now=1.0)
    reply(stores, question, "S1", entry(7), now=1.0, part=1, parts=3)
    reply(stores, question, "S1", entry(8), now=1.1, part=2, parts=3)
    assert stores.on_tick(1.1 + timing.QUERY_RETRY_S - 0.01) == []
    assert stores.on_tick(1.1 + timing.QUERY_RETRY_S) == [question.query]
    reply(stores, question, "S1", entry(9), now=2.0, part=0, parts=3)
    assert answered(stores, question, 2.0)


def test_a_long_answer_is_not_requested_again_while_it_arrives(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    question = ask(stores, now=1.0)
    for part in range(100):
        now = 1.0 + part * 0.3
        assert stores.on_tick(now) == []
        reply(stores, question, "S1", now=now, part=part, parts=100)
    assert answered(stores, question, 31.0)


def test_an_answer_replaces_a_lost_greeting(stores: StoreDirectory) -> None:
    # Nobody greets twice on one connection, and PUB sockets drop.
    question = ask(stores, TOPIC)
    assert not answered(stores, question, 5.0)
    reply(stores, question, "S", entry(5), now=5.0)
    assert list(stores.stores) == ["S"]
    assert stores.c_stores == []
    assert answered(stores, question, 5.0)
    assert bounds(question) == {(TOPIC, PARTITION): (0, 5)}


def test_an_answer_does_not_wait_for_a_dead_store(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    greet(stores, "S2")
    question = ask(stores, now=1.0)
    reply(stores, question, "S1", entry(9), now=1.0)
    reply(stores, question, "S2", entry(3), now=1.0, part=0, parts=2)
    assert not answered(stores, question, LONG_S)
    stores.on_peer(0.0, PeerNews("S2", is_lost=True))
    stores.on_peer(0.0, PeerNews("never heard of", is_lost=True))
    assert answered(stores, question, LONG_S)
    assert list(stores.stores) == ["S1"]
    # If all are gone, no store can answer.
    stores.on_peer(0.0, PeerNews("S1", is_lost=True))
    question = ask(stores, now=LONG_S)
    assert not answered(stores, question, 2 * LONG_S)


def test_replies_to_other_questions_and_late_ones_change_nothing(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    question = ask(stores, now=1.0)
    stores.on_message(1.0, m.HeadsReply(ME, 99, "S1", 0, 1, (entry(5),)))
    assert not answered(stores, question, 1.0)
    reply(stores, question, "S1", entry(9), now=1.0)
    assert answered(stores, question, 1.0)
    reply(stores, question, "S1", entry(10), now=1.1)
    assert bounds(question) == {(TOPIC, PARTITION): (0, 9)}


def test_open_questions_have_different_numbers(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    first, second = ask(stores, "a", now=1.0), ask(stores, "b", now=1.0)
    assert (first.query.query, second.query.query) == (1, 2)
    reply(stores, second, "S1", entry(9))
    assert answered(stores, second, 1.0)
    assert not first.answered
    stores.forget(first)
    assert not any(each == first.query for each in stores.on_tick(LONG_S))
    stores.forget(first)
    assert stores.deadline(LONG_S) == inf


# -- times ----------------------------------------------------------------------------------------


def test_the_store_with_most_timestamps_counts(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    greet(stores, "S2")
    question, messages = stores.ask(1.0, m.TimesQuery, *TP, 3, 9)
    assert messages == [m.TimesQuery(ME, 1, TOPIC, PARTITION, 3, 9)]
    stores.on_message(1.0, m.TimesReply(ME, 1, "S1", 0, 1, ((3, 100),)))
    assert not answered(stores, question, 1.0)
    stores.on_message(1.0, m.TimesReply(ME, 1, "S2", 1, 2, ((6, 90),)))
    stores.on_message(1.0, m.TimesReply(ME, 1, "S2", 0, 2, ((3, 80),)))
    assert answered(stores, question, 1.0)
    assert question.best_times() == [(3, 80), (6, 90)]


def test_times_are_unknown_to_c_stores(stores: StoreDirectory) -> None:
    greet_c_store(stores, "D1")
    question, messages = stores.ask(1.0, m.TimesQuery, *TP, 3, 9)
    assert messages == [question.query]
    assert answered(stores, question, 1.0)
    assert question.best_times() == []


# -- limits ---------------------------------------------------------------------------------------


def test_stores_are_bounded(stores: StoreDirectory) -> None:
    for i in range(MAX_STORES + 100):
        greet(stores, f"S{i}")
    assert len(stores.stores) == MAX_STORES
    question = ask(stores, now=1.0)
    for i in range(MAX_STORES + 100):
        reply(stores, question, f"S{i}", now=1.0)
    assert len(question.parts) == MAX_STORES
    assert answered(stores, question, 1.0)


def test_subscriptions() -> None:
    hellos = (m.StoreHello, m.DirectHead, m.StoreEndpoints, m.StoresKnown)
    kinds = (*hellos, m.HeadsReply, m.TimesReply, m.HistoryReply)
    assert set(StoreDirectory(ME).subscriptions()) == {subscription(kind, ME) for kind in kinds}
    # Stores greet a node that subscribes to the last of them, after the others.
    assert max(StoreDirectory(ME).subscriptions()) == subscription(m.TimesReply, ME)


def test_endpoints_are_those_of_present_stores() -> None:
    of = directory()
    assert of.on_message(0.0, m.StoreEndpoints(ME, "S1", ("grpc://h:1",))) == []
    assert of.endpoints == {}  # it has not greeted yet
    greet(of, "S1")
    greet(of, "S2")
    greet_c_store(of, "C1")
    assert of.endpoints == {"S1": ("grpc://h:1",)}
    assert of.c_stores == ["C1"]
    of.on_message(1.0, m.StoreEndpoints(ME, "S1", ("grpc://h:2",)))
    assert of.endpoints == {"S1": ("grpc://h:2",)}  # started again
    of.on_peer(0.0, PeerNews("S1", is_lost=True))
    assert of.endpoints == {}


def test_endpoints_of_forged_stores_are_bounded() -> None:
    of = directory()
    for index in range(2 * MAX_STORES):
        of.on_message(0.0, m.StoreEndpoints(ME, f"F{index}", ("grpc://h:1",)))
    greet(of, "S1")
    of.on_message(0.0, m.StoreEndpoints(ME, "S1", ("grpc://h:1",)))
    assert of.endpoints == {"S1": ("grpc://h:1",)}


# -- missing stores -------------------------------------------------------------------------------

AWAY = KnownStore("S3", "tcp://h:3", 5)


def send_list(of: StoreDirectory, sender: str, *known: KnownStore) -> None:
    assert of.on_message(0.0, m.StoresKnown(ME, sender, known)) == []


def test_known_stores_without_a_greeting_are_missing(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    send_list(stores, "S1", AWAY, KnownStore("S2", "tcp://h:2", 7, here=True), KnownStore(ME))
    assert [each.store for each in stores.missing] == ["S2", "S3"]
    greet(stores, "S2")
    assert stores.missing == [AWAY]
    greet(stores, "S3")
    assert stores.missing == []
    stores.on_peer(0.0, PeerNews("S3", is_lost=True))
    assert stores.missing == [AWAY]


def test_the_newest_entry_counts(stores: StoreDirectory) -> None:
    for sender, seen_us in (("S1", 5), ("S2", 9), ("S4", 7)):
        greet(stores, sender)
        send_list(stores, sender, AWAY._replace(seen_us=seen_us))
    assert stores.missing == [AWAY._replace(seen_us=9)]


def test_a_store_is_missing_as_long_as_any_store_knows_it(stores: StoreDirectory) -> None:
    for sender in ("S1", "S2"):
        greet(stores, sender)
        send_list(stores, sender, AWAY)
    send_list(stores, "S1")
    assert stores.missing == [AWAY]
    # Also of one that is away: it may be the only one that has not forgotten.
    stores.on_peer(0.0, PeerNews("S2", is_lost=True))
    assert stores.missing == [AWAY]
    send_list(stores, "S2")
    assert stores.missing == []


def test_without_lists_only_lost_stores_are_missing(stores: StoreDirectory) -> None:
    greet(stores, "S1")
    greet(stores, "S2")
    assert stores.missing == []
    stores.on_peer(0.0, PeerNews("S2", is_lost=True))
    assert stores.missing == [KnownStore("S2")]
    greet(stores, "S2")
    assert stores.missing == []
    # A store with a list decides: stores outside of it are not missing.
    send_list(stores, "S1")
    stores.on_peer(0.0, PeerNews("S2", is_lost=True))
    assert stores.missing == []


def test_only_other_stores_are_awaited_after_the_greeted_ones_have_answered() -> None:
    stores = directory()
    stores.on_peer(0.0, PeerNews("N", "tcp://h:9"))
    question = ask(stores, now=1.0)
    assert not stores.waits_for_others(question)  # without any store
    greet(stores, "S1", 1.0)
    assert not stores.waits_for_others(question)
    reply(stores, question, "S1", now=1.0)
    assert stores.waits_for_others(question)
    assert not answered(stores, question, timing.STORE_TIMEOUT_S - 0.1)
    assert answered(stores, question, timing.STORE_TIMEOUT_S)


# -- replies that are no answers ------------------------------------------------------------------


def test_an_unrequested_history_comes_from_no_store(stores: StoreDirectory) -> None:
    """A producer may send the history of its partition, but never answers for heads."""
    greet(stores, "S1")
    heads = ask(stores, now=1.0)
    history = stores.ask(1.0, m.HistoryQuery, *TP)[0]
    other = TP._replace(partition="B" * 32)
    for question, tp in ((heads, TP), (history, other)):
        unasked = m.HistoryReply(ME, question.query.query, "P1", *tp, 5, NO_LIFE, ())
        assert stores.on_message(1.0, unasked) == []
    assert list(stores.stores) == ["S1"]
    reply(stores, heads, "S1", entry(9), now=1.0)
    assert answered(stores, heads, 1.0)
    stores.on_message(1.0, m.HistoryReply(ME, history.query.query, "S1", *TP, 9, NO_LIFE, ()))
    assert answered(stores, history, 1.0)


def test_answers_of_c_stores_to_get_heads_end_with_silence(stores: StoreDirectory) -> None:
    greet_c_store(stores, "D1")
    question, messages = stores.ask(1.0, m.HeadsQuery, ("a", "b"))
    assert messages == [m.HeadsQuery(ME, 1, ("a", "b")), m.GetHeads("a", ME), m.GetHeads("b", ME)]
    stores.on_message(1.1, m.DirectHead(ME, "a", PARTITION, 8))
    # C stores compare by prefix, so they also send "ab".
    stores.on_message(1.2, m.DirectHead(ME, "ab", PARTITION, 8))
    stores.on_message(1.2, m.DirectHead(ME, "b", "P2", 3))
    assert not answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S - 0.01)
    assert answered(stores, question, 1.2 + timing.C_STORE_SILENCE_S)
    assert bounds(question) == {("a", PARTITION): (0, 9), ("b", "P2"): (0, 4)}


@pytest.mark.parametrize("latency_s", [0.0, 0.05, 0.15, 0.3, 0.39])
def test_a_slow_c_store_is_asked_once(stores: StoreDirectory, latency_s: float) -> None:
    # Each time of asking ends the silence that ends the answer.
    greet_c_store(stores, "D1")
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


def test_an_answer_waits_for_a_c_store_that_does_not_receive_us_yet(stores: StoreDirectory) -> None:
    stores.on_message(0.0, m.StoreHello(ME, "D1"))
    question = ask(stores, now=1.0)
    assert not answered(stores, question, 1.0 + timing.C_STORE_SILENCE_S)
    assert stores.on_subscribed(2.0, m.ConsumerHello, "D1") == [question.query, m.GetHeads("", ME)]
    assert not answered(stores, question, 2.0 + timing.C_STORE_SILENCE_S - 0.01)
    assert answered(stores, question, 2.0 + timing.C_STORE_SILENCE_S)


def test_both_kinds_of_stores_together(stores: StoreDirectory) -> None:
    greet_c_store(stores, "D1")
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


def test_a_lost_c_store_returns_with_a_greeting(stores: StoreDirectory) -> None:
    # Its connection to us has lasted, so it does not subscribe a second time.
    greet_c_store(stores, "D1")
    stores.on_peer(0.0, PeerNews("D1", is_lost=True))
    assert not stores.stores
    question = ask(stores, "t", now=2.0)
    assert not answered(stores, question, 3.0)
    assert m.GetHeads("t", ME) in stores.on_message(3.1, m.StoreHello(ME, "D1"))
    stores.on_message(3.2, m.DirectHead(ME, "t", PARTITION, 8))
    assert answered(stores, question, 3.2 + timing.C_STORE_SILENCE_S)


def test_c_stores_are_asked_once_in_each_round(stores: StoreDirectory) -> None:
    greet_c_store(stores, "D1")
    question, _ = stores.ask(1.0, m.HeadsQuery, ("t",), rounds=3)
    now, sent = 1.0, []
    while not question.answered:
        now += 0.01
        sent += stores.on_tick(now)
    assert sent.count(m.GetHeads("t", ME)) == 2
    assert 1.0 + 3 * timing.C_STORE_SILENCE_S <= now < 1.1 + 3 * timing.C_STORE_SILENCE_S


def test_an_answer_in_a_later_round_counts(stores: StoreDirectory) -> None:
    greet_c_store(stores, "D1")
    question, _ = stores.ask(1.0, m.HeadsQuery, ("t",), rounds=2)
    assert not answered(stores, question, 1.0 + timing.C_STORE_SILENCE_S)
    stores.on_message(1.5, m.DirectHead(ME, "t", PARTITION, 8))
    assert answered(stores, question, 1.5 + timing.C_STORE_SILENCE_S)
    assert bounds(question) == {("t", PARTITION): (0, 9)}
