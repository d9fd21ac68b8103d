"""The reader fetches ranges, complete and in order, several at once."""

from dataclasses import replace
from math import inf

import pytest

from dafka_core.errors import HistoryChangedError
from dafka_core.model.epochs import Epoch
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.consumer_role import RangeRead, ReaderRole
from dafka_core.protocol.role import Outgoing, PeerNews
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, fetches_in, offsets_of

ME = "21962C91115348329557DE71C90C3718"
STORE = "C907107406D149E897A2DEA4F157F211"


@pytest.fixture
def role() -> ReaderRole:
    role = ReaderRole(ME)
    role.on_tick(0.0)
    return role


def fetch(start: int, end: int) -> m.Fetch:
    return m.Fetch(ME, TOPIC, PARTITION, start, end - start)


def direct(role: ReaderRole, start: int, end: int, now: float = 0.0) -> list[Outgoing]:
    return role.on_batch(now, ME, batch_of(start, end))


def taken(read: RangeRead) -> list[int]:
    """Return delivered records, and remove them as the node does."""
    delivered, read.delivered = read.delivered, []
    return offsets_of(delivered)


def is_complete(read: RangeRead) -> bool:
    return read.next_offset >= read.end


def test_asks_for_the_range_with_the_next_tick(role: ReaderRole) -> None:
    read = role.read(TP, 10, 40)
    assert role.on_tick(0.0) == [fetch(10, 40)]
    assert role.on_tick(0.0) == []
    complete = [is_complete(read)]
    for start, end in ((10, 25), (25, 40)):
        assert direct(role, start, end) == []
        complete.append(is_complete(read))
    assert complete == [False, False, True]
    assert taken(read) == list(range(10, 40))
    assert role.on_tick(99.0) == []
    assert role.deadline(99.0) == inf


def test_records_beyond_the_range_are_cut_off(role: ReaderRole) -> None:
    read = role.read(TP, 10, 40)
    role.on_tick(0.0)
    # C stores send one record more than they were asked for.
    direct(role, 5, 30)
    direct(role, 30, 41)
    assert taken(read) == list(range(10, 40))
    assert is_complete(read)
    for start, end in ((40, 50), (10, 40), (39, 41)):
        assert direct(role, start, end) == []
    assert read.delivered == []
    assert role.reorder_budget.records == 0


def test_records_for_other_nodes_are_ignored(role: ReaderRole) -> None:
    read = role.read(TP, 0, 5)
    assert role.on_batch(0.0, "", batch_of(0, 5)) == []
    assert role.on_batch(0.0, ME + "0", batch_of(0, 5)) == []
    assert role.on_batch(0.0, ME, batch_of(0, 5, topic="hell")) == []
    assert role.on_batch(0.0, ME, batch_of(0, 5, partition="P2")) == []
    assert read.delivered == []


def test_without_room_nothing_more_is_requested(role: ReaderRole) -> None:
    read = role.read(TP, 0, 100_000)
    [first] = fetches_in(role.on_tick(0.0))
    read.room = False
    # Requested records are accepted nevertheless.
    assert direct(role, 0, first.end) == []
    assert taken(read) == list(range(first.end))
    assert role.on_tick(50.0) == []
    assert role.deadline(50.0) == inf
    read.room = True
    assert [request.sequence for request in fetches_in(role.on_tick(50.0))] == [first.end]


def test_a_forgotten_range_releases_its_memory(role: ReaderRole) -> None:
    read = role.read(TP, 0, 100)
    other = role.read(TP, 0, 50)
    direct(role, 60, 80)
    direct(role, 30, 40)
    assert role.reorder_budget.records == 40
    role.forget(read)
    assert role.reorder_budget.records == 10
    direct(role, 0, 30)
    direct(role, 40, 50)
    assert read.delivered == []
    assert taken(other) == list(range(50))
    role.forget(other)
    assert role.reorder_budget.records == role.reorder_budget.size_bytes == 0
    assert role.on_tick(99.0) == []


def test_two_reads_of_one_range_are_two(role: ReaderRole) -> None:
    reads = [role.read(TP, 0, 5) for _ in range(2)]
    direct(role, 0, 5)
    assert [taken(read) for read in reads] == [[0, 1, 2, 3, 4]] * 2
    role.forget(reads[1])
    assert [id(read) for read in role.reads] == [id(reads[0])]


@pytest.mark.parametrize("kind", [m.Fetch, m.ConsumerHello])
def test_a_store_that_receives_us_from_now_on_is_asked_at_once(
    role: ReaderRole, kind: type[m.Fetch | m.ConsumerHello]
) -> None:
    role.read(TP, 0, 5)
    assert role.on_tick(0.0) == [fetch(0, 5)]
    role.on_subscribed(0.0, m.Ack, "")
    assert role.on_tick(0.0) == []
    role.on_subscribed(0.0, kind, "")
    assert role.on_tick(0.0) == [fetch(0, 5)]


def test_a_store_that_greets_is_asked_at_once(role: ReaderRole) -> None:
    role.read(TP, 0, 5)
    for greeting in (m.StoreHello(ME, STORE), m.HeadsReply(ME, m.UNSOLICITED, STORE, 0, 1, ())):
        assert role.on_tick(0.0) == [fetch(0, 5)]
        assert role.on_tick(0.0) == []
        role.on_message(0.0, greeting, STORE)
    assert role.on_tick(0.0) == [fetch(0, 5)]


def test_its_directory_asks_the_questions(role: ReaderRole) -> None:
    role.on_message(0.0, m.StoreHello(ME, STORE), STORE)
    role.on_message(0.0, m.HeadsReply(ME, m.UNSOLICITED, STORE, 0, 1, ()), STORE)
    question, messages = role.directory.ask(0.0, m.HeadsQuery, (TOPIC,))
    assert messages == [m.HeadsQuery(ME, 1, (TOPIC,))]
    due = role.deadline(0.0)
    assert due < timing.SETTLE_S
    assert role.on_subscribed(0.0, m.ConsumerHello, STORE) == messages
    role.on_message(0.1, m.HeadsReply(ME, 1, STORE, 0, 1, ()), STORE)
    assert role.on_tick(timing.SETTLE_S) == []
    assert question.answered
    role.on_peer(0.0, PeerNews(STORE, is_lost=True))
    assert not role.directory.stores


def test_records_of_a_newer_life_restart_a_range_after_an_error(role: ReaderRole) -> None:
    old = Epoch(1, 7, 1, 0, 0)
    new = Epoch(2, 8, 1, 2, old.digest)
    read = role.read(TP, 1, 5)
    role.on_batch(0.0, ME, replace(batch_of(1, 4), epoch=old))
    asked = role.on_batch(0.0, ME, replace(batch_of(2, 5), epoch=new))
    assert asked == [fetch(2, 5)]
    error = read.delivered.pop()
    assert isinstance(error, HistoryChangedError)
    assert (error.wanted, error.position) == (2, 4)
    assert taken(read) == [1, 2, 3]
    role.on_batch(0.0, ME, replace(batch_of(2, 4), epoch=new))
    assert taken(read) == [2, 3]
    role.on_batch(0.0, ME, replace(batch_of(4, 5), epoch=Epoch(1, 9, 1, 0, 0)))  # a replaced life
    assert read.delivered == []
    role.on_batch(0.0, ME, replace(batch_of(4, 5), epoch=new))
    assert taken(read) == [4]


def test_a_range_goes_on_after_records_of_an_older_life_that_waited(role: ReaderRole) -> None:
    old = Epoch(1, 7, 1, 0, 0)
    new = Epoch(2, 8, 1, 2, old.digest)
    read = role.read(TP, 0, 6)
    for start, end, epoch in ((0, 2, old), (4, 6, old), (2, 4, new)):
        asked = role.on_batch(0.0, ME, replace(batch_of(start, end), epoch=epoch))
    assert taken(read) == [0, 1, 2, 3]
    assert asked == [fetch(4, 6)]


def test_a_read_fails_at_a_record_above_the_readers_limit() -> None:
    role = ReaderRole(ME, limit_bytes=10)
    read, later = role.read(TP, 0, 5), role.read(TP, 3, 5)
    role.on_tick(0.0)
    for offset, size_bytes, to in ((0, 10, ME), (1, 100, ME), (0, 100, STORE)):
        role.on_message(0.0, m.RecordTooLarge(to, *TP, offset, size_bytes), STORE)
    assert read.delivered == later.delivered == []
    direct(role, 0, 2)
    role.on_message(0.0, m.RecordTooLarge(ME, *TP, 2, 100), STORE)
    error = read.delivered.pop()
    assert taken(read) == [0, 1]
    assert later.delivered == []
    assert "offset 2 has 100 bytes, and this reader takes at most 10" in str(error)
