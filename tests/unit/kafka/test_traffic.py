"""Room for octets, and complaints."""

from __future__ import annotations

import logging

import pytest

from dafka_core.kafka.traffic import Complaints, Room


def test_who_finds_no_room_gets_it_in_turn() -> None:
    room, called = Room(10), list[str]()

    def want(name: str, size_bytes: int, wanted: bool = True) -> bool:
        def when_there() -> bool:
            called.append(name)
            return wanted

        return room.take(size_bytes, when_there)

    assert want("a", 6)
    assert not want("b", 6)
    assert not want("c", 1)  # not before b
    assert not want("d", 3, wanted=False)
    room.give_back(6)
    assert called == ["b", "c", "d"]
    assert room.taken_bytes == 7


def test_what_is_larger_than_all_room_passes_alone() -> None:
    room = Room(10)
    assert room.take(100, lambda: True)
    assert not room.take(1, lambda: True)
    room.give_back(100)
    assert room.taken_bytes == 1


def test_complaints_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints()
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for _ in range(1_000):
            complaints.note("oddities", "10.0.0.1", "why")
    assert complaints.counts == {"oddities": 1_000}
    assert [record.message for record in caplog.records] == [
        "Kafka: oddities 1 times; the last one from 10.0.0.1: why"
    ]
