"""Requests to stores, the order of answers, and the answers."""

from dataclasses import replace

import pytest

from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import PartitionInfo, PartitionLives, RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import store_requests
from dafka_core.protocol.codec import decode, encode
from dafka_core.protocol.limits import DIRECT_BATCH_BYTES, MAX_FETCH_COUNT, MAX_REPLY_ENTRIES
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.protocol.store_directory import StoreDirectory
from dafka_core.protocol.store_requests import (
    MAX_PENDING_REQUESTS,
    HeadsRequest,
    RecordsRequest,
    Request,
    RequestQueue,
    fetched_batches,
    heads,
    replies,
    requests_of,
)
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import PARTITION, TOPIC

ME = "3B6B7CF3E064452E83D012EC823A4DD9"


Asked = m.Fetch | m.GetHeads | m.ConsumerHello | m.HeadsQuery | m.TimesQuery


@pytest.fixture
def role() -> StoreRole:
    return StoreRole(ME, lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=30.0)


def asked(start: int, count: int = 10, requestor: str = "C", partition: str = PARTITION) -> m.Fetch:
    """Return a node's request."""
    return m.Fetch(requestor, TOPIC, partition, start, count)


def queue(role: StoreRole, *requests: m.Message) -> None:
    for request in requests:
        assert role.on_message(0.0, request, "") == []


def in_queue(*messages: Asked) -> list[Request]:
    return [request for message in messages for request in requests_of(message)]


def taken(role: StoreRole) -> list[Request]:
    """All requests, in the order in which they are served."""
    requests = []
    while role.requests:
        request = role.requests.take()
        assert request is not None
        requests.append(request)
    assert role.requests.take() is None
    return requests


# -- requests -------------------------------------------------------------------------------------


def test_requestors_take_turns(role: StoreRole) -> None:
    many = [asked(0, partition=f"P{i}") for i in range(1_000)]
    late = [asked(0, partition=f"P{i}", requestor="C2") for i in range(3)]
    queue(role, *many, *late)
    first = in_queue(many[0], late[0], many[1], late[1], many[2], late[2], many[3])
    assert taken(role)[:7] == first


def test_many_requests_of_one_peer_leave_room_for_others(
    role: StoreRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_requests, "MAX_PENDING_REQUESTS", 100)
    queue(role, *(asked(0, partition=f"P{i}") for i in range(150)))
    assert (len(role.requests), role.requests.refused_count) == (100, 50)
    for requestor in ("C2", "C3"):
        queue(role, *(asked(0, partition=f"P{i}", requestor=requestor) for i in range(60)))
    # A half for the second, a third for the third.
    assert len(role.requests) == 100 + 50 + 33
    assert role.requests.refused_count == 50 + 10 + 27
    queue(role, asked(9))
    requests = taken(role)
    assert (len(requests), len(role.requests)) == (183, 0)
    assert role.requests.add(in_queue(asked(0))[0])


def fetch_batch(*partitions: str, requestor: str = "C", end: int = 5) -> m.FetchBatch:
    return m.FetchBatch(ME, requestor, tuple(PartitionInfo(TOPIC, p, 0, end) for p in partitions))


def test_each_partition_of_a_fetch_batch_counts(
    role: StoreRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_requests, "MAX_PENDING_REQUESTS", 100)
    names = [f"P{i}" for i in range(150)]
    queue(role, fetch_batch(*names[:80]), fetch_batch(*names[40:]))
    # The second one fills the room; repeated requests take none.
    assert (len(role.requests), role.requests.refused_count) == (100, 50)
    queue(role, fetch_batch(*names, requestor="C2"), fetch_batch(*names, requestor="C3"))
    assert len(role.requests) == 100 + 50 + 33
    assert [each.tp.partition for each in packed(role, 3)] == names[:3]
    assert len(role.requests) == 97 + 50 + 33
    # The next requestor's turn.
    assert [each.requestor for each in packed(role, 200)] == ["C2"] * 50
    assert len(role.requests) == 97 + 33
    while role.requests.take():
        pass
    assert len(role.requests) == 0


def packed(role: StoreRole, most: int) -> list[RecordsRequest]:
    """Take the ranges that the next message answers."""
    first = role.requests.take()
    assert isinstance(first, RecordsRequest)
    return role.requests.take_packed(first, most)


def test_one_message_answers_adjacent_ranges_of_one_requestor() -> None:
    queue = RequestQueue()
    messages = (fetch_batch("P1", "P2"), asked(0), fetch_batch("P3"))
    for message in (*messages, fetch_batch("P4", "P5", requestor="C2")):
        for request in requests_of(message):
            queue.add(request, "peer")
    found = []
    while (first := queue.take()) is not None:
        assert isinstance(first, RecordsRequest)
        taken = queue.take_packed(first, 9) if first.is_packed else [first]
        found.append([each.tp.partition for each in taken])
    assert found == [["P1", "P2"], [PARTITION], ["P3"], ["P4", "P5"]]
    assert len(queue) == 0


def test_different_requests_of_one_peer_all_wait() -> None:
    queue = RequestQueue()
    packed = RecordsRequest("C", TopicPartition("t", "P"), 0, 5, is_packed=True)
    requests: list[Request] = [
        packed,
        packed._replace(is_packed=False),
        packed._replace(tp=TopicPartition("u", "P")),
        packed._replace(tp=TopicPartition("t", "Q")),
        HeadsRequest("C", ("t",)),
        HeadsRequest("C", ("t",), packed.tp),
        HeadsRequest("C", ("u",)),
        m.HeadsQuery("C", 1, ()),
        m.HeadsQuery("C", 2, ()),
        m.TimesQuery("C", 1, "t", "P", 0, 5),
    ]
    for request in requests:
        assert queue.add(request)
    assert [queue.take() for _ in requests] == requests


def test_a_fetch_batch_for_another_store_is_ignored(role: StoreRole) -> None:
    queue(role, replace(fetch_batch("P"), store="S2"))
    assert not role.requests


def test_a_continued_fetch_batch_is_joined_to_its_rest(role: StoreRole) -> None:
    queue(role, fetch_batch("P1", "P2", "P3"))
    first, second = packed(role, 2)
    later = PartitionInfo(TOPIC, "P1", 5, 8), PartitionInfo(TOPIC, "P2", 0, 3)
    queue(role, m.FetchBatch(ME, "C", later))
    role.requests.put_back(first.rest(2))
    role.requests.put_back(second.rest(2))
    assert [(*each.tp, each.start, each.end) for each in packed(role, 9)] == [
        (TOPIC, "P3", 0, 5),
        (TOPIC, "P1", 2, 8),
        (TOPIC, "P2", 0, 3),
    ]
    assert not role.requests


def test_small_batches_are_answered_in_one_message_and_large_ones_alone() -> None:
    def batch(partition: str, size_bytes: int) -> RecordBatch:
        return RecordBatch.of(TopicPartition(TOPIC, partition), 0, [bytes(size_bytes)])

    half = DIRECT_BATCH_BYTES // 2
    parts = [batch("P1", 1), batch("P2", half), batch("P3", 2 * half), batch("P4", half)]
    large, first, second = fetched_batches("C", parts)
    assert large == OutgoingBatch(parts[2], "C")
    assert isinstance(first, m.DirectRecordBatches)
    assert isinstance(second, m.DirectRecordBatches)
    assert [*first.batches()] == parts[:2]
    assert [*second.batches()] == parts[3:]
    assert fetched_batches("C", []) == []


def test_a_requestors_requests_are_served_in_the_order_of_their_arrival(role: StoreRole) -> None:
    requests: list[Asked] = [
        asked(0),
        m.GetHeads(TOPIC, "C"),
        m.GetHeads("", "C"),
        m.ConsumerHello(ME, "C", (TOPIC, "u")),
        m.HeadsQuery("C", 1, ()),
        m.HeadsQuery("C", 2, ()),
        m.TimesQuery("C", 1, TOPIC, PARTITION, 0, 9),
        asked(0, partition="P2"),
    ]
    queue(role, *requests)
    assert taken(role) == in_queue(*requests)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (asked(0), asked(0)),
        (asked(0), asked(5)),
        (asked(5), asked(0)),
        (asked(0), asked(0, 99)),
        (asked(0), asked(99)),
        (m.GetHeads(TOPIC, "C"), m.GetHeads(TOPIC, "C")),
        (m.ConsumerHello(ME, "C", ("a", "b")), m.ConsumerHello(ME, "C", ("a", "b"))),
        (m.HeadsQuery("C", 1, ()), m.HeadsQuery("C", 1, ())),
        (
            m.TimesQuery("C", 1, TOPIC, PARTITION, 0, 9),
            m.TimesQuery("C", 1, TOPIC, PARTITION, 0, 9),
        ),
    ],
)
def test_the_same_question_is_answered_once_and_the_newer_one_counts(
    role: StoreRole, older: Asked, newer: Asked
) -> None:
    queue(role, older, asked(7, requestor="C2"), newer)
    assert taken(role) == in_queue(newer, asked(7, requestor="C2"))
    assert len(role.requests) == 0


def test_the_next_block_is_joined_to_the_one_before(role: StoreRole) -> None:
    # Readers ask for the next block while one is under way: neither may push the other out.
    queue(role, asked(0, 10), asked(10, 20), asked(30, 5))
    assert taken(role) == in_queue(asked(0, 35))
    # Together they are no more than one may ask for.
    queue(role, asked(0, MAX_FETCH_COUNT), asked(MAX_FETCH_COUNT, 1))
    assert taken(role) == in_queue(asked(MAX_FETCH_COUNT, 1))


def test_the_rest_of_a_request_is_served_after_others(role: StoreRole) -> None:
    queue(role, asked(0, 100), asked(0, requestor="C2"))
    assert role.requests.take() == in_queue(asked(0, 100))[0]
    role.requests.put_back(*in_queue(asked(40, 60)))
    assert taken(role) == in_queue(asked(0, requestor="C2"), asked(40, 60))


def test_a_newer_request_replaces_the_rest_of_an_older_one(role: StoreRole) -> None:
    queue(role, asked(0, 100))
    role.requests.take()
    queue(role, asked(7, 5))
    role.requests.put_back(*in_queue(asked(40, 60)))
    assert taken(role) == in_queue(asked(7, 5))


def test_the_next_block_is_joined_to_the_rest_of_the_one_before(role: StoreRole) -> None:
    queue(role, asked(0, 100))
    role.requests.take()
    queue(role, asked(100, 50))
    role.requests.put_back(*in_queue(asked(40, 60)))
    assert taken(role) == in_queue(asked(40, 110))
    queue(role, asked(0, 100))
    role.requests.take()
    role.requests.put_back(*in_queue(asked(40, 60)))
    queue(role, asked(100, 50))
    assert taken(role) == in_queue(asked(40, 110))


def test_waiting_requests_are_bounded(role: StoreRole) -> None:
    queue(role, *(asked(0, requestor=f"C{i}") for i in range(MAX_PENDING_REQUESTS + 100)))
    assert role.requests.refused_count == 100
    queue(role, m.GetHeads(TOPIC, "C"))
    # A waiting requestor may still change its request.
    queue(role, asked(3, requestor="C0"))
    requests = taken(role)
    assert len(requests) == MAX_PENDING_REQUESTS
    assert requests[:1] == in_queue(asked(3, requestor="C0"))
    assert requests[-1:] == in_queue(asked(0, requestor=f"C{MAX_PENDING_REQUESTS - 1}"))


# -- answers --------------------------------------------------------------------------------------


def test_heads_of_partitions_with_records_are_sent_to_all_or_to_one_requestor() -> None:
    infos = [PartitionInfo("a", "P1", 0, 9), PartitionInfo("b", "P2", 3, 3)]
    infos.append(PartitionInfo("c", "P3", 0, 0))
    assert heads(infos) == [m.Head("a", "P1", 8), m.Head("b", "P2", 2)]
    assert heads(infos, "C") == [m.DirectHead("C", "a", "P1", 8), m.DirectHead("C", "b", "P2", 2)]


def test_heads_are_sent_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_requests, "MAX_REPLY_ENTRIES", 2)
    partitions = {"t": infos_of(5), "u": infos_of(1)}

    def after(topic: str | None, tp: TopicPartition | None, most: int) -> list[PartitionInfo]:
        found = partitions[topic or "t"]
        return [each for each in found if tp is None or each.tp > tp][:most]

    rest: HeadsRequest | None = HeadsRequest("C", ("t", "u"))
    pages = []
    while rest is not None:
        infos, rest = rest.page(after)
        pages.append(infos)
    whole = partitions["t"]
    assert pages == [whole[:2], whole[2:4], whole[4:], partitions["u"]]


def infos_of(count: int) -> list[PartitionInfo]:
    return [PartitionInfo(TOPIC, f"P{i}", i, i + 1) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, [0]),
        (1, [1]),
        (MAX_REPLY_ENTRIES, [MAX_REPLY_ENTRIES]),
        (MAX_REPLY_ENTRIES + 1, [MAX_REPLY_ENTRIES, 1]),
        (2 * MAX_REPLY_ENTRIES + 7, [MAX_REPLY_ENTRIES, MAX_REPLY_ENTRIES, 7]),
    ],
)
@pytest.mark.parametrize("kind", [m.HeadsReply, m.TimesReply])
def test_answers_are_sent_in_parts(
    count: int, sizes: list[int], kind: type[m.HeadsReply | m.TimesReply]
) -> None:
    query: m.HeadsQuery | m.TimesQuery = m.HeadsQuery("C", 7, ())
    expected: list[object] = [*infos_of(count)]
    sent = [PartitionInfo(TOPIC, "empty", 0, 0), *expected]
    if kind is m.TimesReply:
        query = m.TimesQuery("C", 7, TOPIC, PARTITION, 0, count + 1)
        sent = expected = [(i, 1_000_000 * i) for i in range(count)]
    entries: list[object] = []
    for part, message in zip(range(len(sizes)), replies(query, ME, sent), strict=True):
        assert isinstance(message, kind)
        assert (message.requestor, message.query, message.store) == ("C", 7, ME)
        assert (message.part, message.parts) == (part, len(sizes))
        assert len(message.entries) == sizes[part]
        assert decode(encode(message)) == message
        entries.extend(message.entries)
    assert entries == expected


def test_heads_are_packed_for_requestors_that_support_it() -> None:
    infos = infos_of(MAX_REPLY_ENTRIES + 1)
    messages = replies(m.HeadsQuery("C", m.HEADS, ()), ME, infos)
    assert len(messages) == 2
    first = messages[0]
    assert isinstance(first, m.HeadsReply)
    # It is no greeting: a requestor would ask again what it has asked, without an end.
    assert StoreDirectory("C").on_message(0.0, first) == []
    assert (first.requestor, first.query, first.store, first.entries) == (
        "C",
        m.HEADS,
        ME,
        tuple(infos[:-1]),
    )


def test_a_peer_with_invented_names_has_one_turn() -> None:
    queue = RequestQueue()

    def add(message: m.Fetch, peer: str) -> None:
        (request,) = requests_of(message)
        queue.add(request, peer)

    for number in range(1_000):
        add(m.Fetch(f"name {number}", "t", "P", 0, 10), "greedy")
    for number in range(3):
        add(m.Fetch("honest", "t", f"P{number}", 0, 10), "honest")
    taken = [queue.take() for _ in range(6)]
    names = ["name 0", "honest", "name 1", "honest", "name 2", "honest"]
    assert [each.requestor for each in taken if each is not None] == names
    # The rest of a request waits after others of its peer.
    fetch = queue.take()
    assert isinstance(fetch, RecordsRequest)
    assert fetch.requestor == "name 3"
    queue.put_back(fetch.rest(5))
    while (request := queue.take()) is not None:
        final = request
    assert final == fetch.rest(5)
