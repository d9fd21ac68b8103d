"""Permissions: each message, by each kind of sender."""

import pytest

from dafka_core.model.epochs import EpochId
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.authorization import granted, records_refusal, refusal, shown
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.record_limits import announcement
from dafka_core.security.permissions import (
    ADMIN,
    CONSUME,
    EVERYBODY,
    NOBODY,
    PRODUCE,
    STORE,
    Permissions,
)
from tests.unit.protocol.vectors import VECTORS

OWN, OTHERS, STORES = "A" * 12, "B" * 12, "C" * 12  # prefixes of addresses

OWNER = Permissions("owner", frozenset({PRODUCE}), produce=("t",), prefix=OWN)
THIEF = Permissions("thief", frozenset({PRODUCE, CONSUME}), ("x",), ("x",), prefix=OTHERS)
READER = Permissions("reader", frozenset({CONSUME}), consume=("t",), prefix=OTHERS)
ADMINISTRATOR = Permissions("admin", frozenset({ADMIN}), prefix=OTHERS)
KEEPER = Permissions("keeper", frozenset({STORE}), prefix=STORES)

P, R, S = OWN + "0" * 20, OTHERS + "1" * 20, STORES + "2" * 20
"""A producer's partition, a requestor, and a store."""

LIFE = EpochId(7, 8, 1)
RECORDS = RecordBatch.of(TopicPartition("t", P), 0, [b"v"])

WRITTEN = [
    m.RecordMessage("t", P, 0, b""),
    m.DirectRecord(R, "t", P, 0, b""),
    m.Head("t", P, 9),
    m.DirectHead(R, "t", P, 9),
    m.RecordTooLarge(R, "t", P, 9, 99),
    m.DirectRecordBatches.of(R, [RECORDS]),
]
OF_STORES = [
    m.EpochAck("t", P, 1, S, LIFE),
    m.Ack("t", P, 1, S),
    m.Ack("t", P, 1),
    m.StoreHello(R, S),
    m.HeadsReply(R, 0, S, 0, 1, ()),
    m.TimesReply(R, 0, S, 0, 1, ()),
    m.StoreEndpoints(R, S, ("grpc://127.0.0.1:1",)),
    m.StoresKnown(R, S, ()),
]
ASKED = [
    m.Fetch(R, "t", P, 0, 1),
    m.TimesQuery(R, 0, "t", P, 0, 1),
    m.HistoryQuery(R, 0, "t", P),
    m.FetchBatch(S, R, (PartitionInfo("t", P, 0, 1),)),
]
OF_ANYBODY = [m.GetHeads("", R), m.HeadsQuery(R, 0, ()), m.ConsumerHello("", R, ("t",))]


def test_every_message_has_a_rule() -> None:
    """A new one without a rule would be a KeyError where nodes have keys."""
    for message in (each.message for each in VECTORS):
        assert refusal(NOBODY, message), message
        assert not refusal(EVERYBODY, message), message


@pytest.mark.parametrize("message", WRITTEN)
def test_records_and_heads_come_from_their_producer_or_a_store(message: m.Message) -> None:
    assert not refusal(OWNER, message)
    assert not refusal(KEEPER, message)
    for who in (THIEF, READER, ADMINISTRATOR):
        assert "may not write to that topic, or to that partition" in refusal(who, message)
    # Of the topic that it may write to, but not of its own partition.
    assert refusal(Permissions("o", frozenset({PRODUCE}), prefix=OTHERS), message)


@pytest.mark.parametrize("message", OF_STORES)
def test_only_a_store_sends_messages_of_stores(message: m.Message) -> None:
    assert not refusal(KEEPER, message)
    for who in (OWNER, THIEF, READER, ADMINISTRATOR):
        assert "may not speak for a store" in refusal(who, message)
    if getattr(message, "store", ""):
        another = Permissions("another", frozenset({STORE}), prefix=OTHERS)
        assert refusal(another, message)  # nor does a store for another store


@pytest.mark.parametrize("message", ASKED)
def test_a_consumer_requests_in_its_own_name(message: m.Message) -> None:
    assert not refusal(READER, message)
    assert "may not ask for it" in refusal(THIEF, message)
    assert refusal(OWNER, message)  # the answer would go to a foreign address


def test_a_fetch_batch_needs_the_right_to_each_of_its_topics() -> None:
    entries = (PartitionInfo("t", P, 0, 1), PartitionInfo("u", P, 0, 1))
    assert "may not ask for it" in refusal(READER, m.FetchBatch(S, R, entries))


@pytest.mark.parametrize("message", OF_ANYBODY)
def test_any_key_may_ask_for_heads_in_its_own_name(message: m.Message) -> None:
    assert not refusal(READER, message)
    assert not refusal(ADMINISTRATOR, message)
    assert refusal(OWNER, message)
    assert refusal(KEEPER, message)


def test_a_partition_is_taken_over_by_its_owner_alone() -> None:
    takes = m.HistoryQuery(P, 0, "t", P, LIFE)
    assert not refusal(OWNER, takes)
    for who, requestor in ((READER, R), (THIEF, R), (ADMINISTRATOR, R)):
        assert refusal(who, m.HistoryQuery(requestor, 0, "t", P, LIFE))
    fences = m.HistoryReply(S, 0, P, "t", P, 0, LIFE, ())
    assert not refusal(OWNER, fences)
    assert refusal(THIEF, fences)
    assert refusal(READER, m.HistoryReply(P, 0, R, "t", P, 0, LIFE, ()))
    # A producer fetches its own record from before.
    assert not refusal(OWNER, m.Fetch(P, "t", P, 0, 1))


def test_records_are_refused_by_name() -> None:
    assert not records_refusal(OWNER, RECORDS.tp)
    assert records_refusal(OWNER, TopicPartition("u", P))
    assert f"topic t, partition {P}: key thief may not write" in records_refusal(THIEF, RECORDS.tp)


@pytest.mark.parametrize(
    ("who", "kind", "topic", "expected"),
    [
        (READER, m.RecordMessage, "t", True),
        (READER, m.RecordBatchMessage, "t", True),
        (READER, m.Head, "t", True),
        (READER, m.RecordMessage, "", False),
        (READER, m.RecordMessage, "x", False),
        (READER, m.DirectRecord, R, True),
        (READER, m.DirectRecord, P, False),
        (READER, m.DirectRecord, "", False),
        (READER, m.DirectRecord, OTHERS[:11], False),
        (READER, m.HeadsQuery, "", False),
        (READER, m.Ack, P, False),
        (OWNER, m.EpochAck, P, True),
        (OWNER, m.GetHeads, "t", True),
        (OWNER, m.GetHeads, "x", False),
        (OWNER, m.RecordMessage, "t", False),
        (OWNER, m.Fetch, P, True),
        (OWNER, m.Fetch, "", False),
        (KEEPER, m.RecordMessage, "", True),
        (KEEPER, m.HistoryQuery, "", True),
        (KEEPER, m.HeadsReply, S, True),
        (KEEPER, m.HeadsReply, R, False),
        (ADMINISTRATOR, m.HeadsReply, R, True),
        (NOBODY, m.Head, "t", False),
    ],
)
def test_subscriptions_are_granted_by_permission(
    who: Permissions, kind: type[m.Message], topic: str, expected: bool
) -> None:
    asked = subscription(kind, topic) if topic else subscription(kind)
    for delimiter in (b"", b"\0") if topic else (b"",):
        applied = granted(who, b"\x01" + asked + delimiter)
        # The name is that name, and no other one begins with it.
        assert applied == (b"\x01" + asked + (b"\0" if topic else b"") if expected else None)


def test_unknown_subscriptions_are_refused() -> None:
    for frame in (b"", b"\x01", b"\x01?", b"\x01\0", b"\0"):
        assert granted(READER, frame) is None
        assert granted(KEEPER, frame) is None


def test_bytes_after_a_topic_do_not_make_it_match_a_pattern() -> None:
    """A subscription may go on with the beginning of a header, such as the partition's address."""
    who = Permissions("who", frozenset({CONSUME}), consume=("*0", "?????"), prefix=OTHERS)
    assert granted(who, b"\x01" + subscription(m.RecordMessage, "t0")) is not None
    for asked in (b"Mt\0\x01\x20" + P.encode(), b"Mt\0\x01\x20A", b"rt\0\x01\x20A"):
        assert granted(who, b"\x01" + asked) is None


def test_a_node_announces_only_its_own_kind() -> None:
    store = b"\x01" + announcement("store", S, 9_000_000)
    assert granted(KEEPER, store) == store
    assert granted(READER, store) is None
    assert granted(READER, b"\x01" + announcement("store", R, 9_000_000)) is None
    consumer = b"\x01" + announcement("consumer", R, 9_000_000)
    assert granted(READER, consumer) == consumer
    assert granted(THIEF, b"\x01" + announcement("producer", P, 9_000_000)) is None


def test_answers_contain_only_permitted_topics() -> None:
    entries = tuple(PartitionInfo(topic, P, 0, 1) for topic in ("t", "x"))
    reply = m.HeadsReply(R, 0, S, 0, 1, entries)

    def told(who: Permissions) -> list[str]:
        answer = shown(who, reply)
        assert isinstance(answer, m.HeadsReply)
        return [each.topic for each in answer.entries]

    assert told(READER) == told(OWNER) == ["t"]
    assert told(THIEF) == ["x"]
    assert told(ADMINISTRATOR) == told(KEEPER) == ["t", "x"]
    assert told(NOBODY) == []
    head = m.DirectHead(R, "t", P, 1)
    assert shown(READER, head) is head
    assert shown(THIEF, head) is None
