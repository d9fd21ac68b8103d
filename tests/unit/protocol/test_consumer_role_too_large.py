"""A consumer reports a record above its limit, and continues after it."""

from __future__ import annotations

import dataclasses

from dafka_core.errors import HistoryChangedError, RecordTooLargeError
from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import RecordBatch
from dafka_core.protocol import timing
from dafka_core.protocol.consumer_role import ConsumerRole
from dafka_core.protocol.histories import TOLD
from dafka_core.protocol.messages import Fetch, Head, HistoryReply, RecordTooLarge
from dafka_core.protocol.role import Outgoing
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, fetches_in

ME = "21962C91115348329557DE71C90C3718"
LIMIT = 10


def consumer() -> ConsumerRole:
    role = ConsumerRole(ME, "earliest", limit_bytes=LIMIT)
    role.subscribe(TOPIC)
    return role


def refuse(role: ConsumerRole, offset: int, size_bytes: int = 100, to: str = ME) -> list[Outgoing]:
    return role.on_message(0.5, RecordTooLarge(to, *TP, offset, size_bytes), "")


def delivered(role: ConsumerRole) -> list[range | int]:
    """The ranges of offsets, and the offsets of errors."""
    return [
        range(each.offset, each.end) if isinstance(each, RecordBatch) else each.offset
        for each in role.delivered
        if not isinstance(each, HistoryChangedError)
    ]


def test_the_error_stands_where_the_record_would() -> None:
    role = consumer()
    role.on_message(0.0, Head(*TP, 5), "")
    role.on_batch(0.0, ME, batch_of(0, 2))
    role.on_batch(0.0, "", batch_of(3, 6))  # it waits behind the gap
    refuse(role, 2)
    assert delivered(role) == [range(2), 2, range(3, 6)]
    error = role.delivered[1]
    assert isinstance(error, RecordTooLargeError)
    assert (error.size_bytes, error.limit_bytes, error.node) == (100, LIMIT, "this consumer")
    assert role.positions() == {TP: (6, 6)}
    assert role.on_tick(20.0)[1:] == []  # nothing is missing


def test_what_follows_is_asked_for() -> None:
    role = consumer()
    role.on_message(0.0, Head(*TP, 0), "")
    assert refuse(role, 0) == []
    assert fetches_in(role.on_message(0.5, Head(*TP, 3), "")) == [Fetch(PARTITION, ME, TOPIC, 1, 3)]


def test_only_the_next_record_is_passed_over_and_only_for_its_size() -> None:
    role = consumer()
    role.on_message(0.0, Head(*TP, 5), "")
    refuse(role, 1)  # the ones before it were lost on the way
    refuse(role, 0, LIMIT)  # within its limit: the report is wrong
    refuse(role, 0, to="another")
    assert role.delivered == []
    assert fetches_in(role.on_tick(timing.FETCH_RETRY_S + 0.1)) == [
        Fetch(PARTITION, ME, TOPIC, 0, 6)
    ]


def test_a_life_that_began_with_what_was_passed_over_has_changed_nothing() -> None:
    """Otherwise it would return to records that no node sends, skip them, and return, for ever."""
    role, old = consumer(), Epoch(1, 7, 1, 0, 0)
    role.on_batch(0.0, "", dataclasses.replace(batch_of(0, 2), epoch=old))
    role.on_message(0.0, Head(*TP, 2), "")
    refuse(role, 2)

    def hear(start: int) -> None:
        history = (old, Epoch(start, 8, 1, start, old.digest))
        role.on_message(1.0, HistoryReply(ME, TOLD, "S", *TP, 3, NO_LIFE, history), "")

    hear(2)
    assert role.positions() == {TP: (3, 3)}
    assert isinstance(role.delivered[-1], RecordTooLargeError)
    hear(1)
    assert isinstance(role.delivered[-1], HistoryChangedError)


def test_without_room_the_record_is_asked_for_again() -> None:
    role = consumer()
    role.on_message(0.0, Head(*TP, 5), "")
    role.room = False
    refuse(role, 0)
    assert role.delivered == []
    role.room = True
    assert fetches_in(role.on_tick(timing.FETCH_RETRY_S + 0.1)) == [
        Fetch(PARTITION, ME, TOPIC, 0, 6)
    ]


def test_of_partitions_that_it_does_not_read_it_knows_nothing() -> None:
    role = consumer()
    assert refuse(role, 0) == []
    role.on_message(0.0, Head(*TP, 5), "")
    role.unsubscribe(TOPIC)
    refuse(role, 0)
    assert role.delivered == []
