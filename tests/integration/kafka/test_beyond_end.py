"""Offsets beyond what a store has."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core.kafka import beyond_end
from dafka_core.kafka.beyond_end import LAG_S, BeyondEnd
from dafka_core.log_entries import Met
from dafka_core.records import TopicPartition
from dafka_core.storage import Log

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def with_another_store(log: Log) -> Log:
    log.write([Met("E" * 32, "tcp://127.0.0.1:1")])
    return log


def test_a_store_that_knows_no_other_has_all_there_is(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        assert not BeyondEnd(log).may_come(A, 5)
        assert BeyondEnd(with_another_store(log)).may_come(A, 5)


def test_it_is_taken_for_lag_for_a_while_and_each_offset_for_its_own(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path) as log:
        beyond = BeyondEnd(with_another_store(log), clock)
        assert beyond.may_come(A, 5)
        clock.now = LAG_S - 1
        assert beyond.may_come(A, 5)
        assert beyond.may_come(A, 6)
        clock.now = LAG_S
        assert not beyond.may_come(A, 5)
        assert beyond.may_come(A, 6)
        assert beyond.may_come(B, 5)
        clock.now = 2 * LAG_S + 1  # another client, later
        assert beyond.may_come(A, 5)


def test_it_remembers_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond_end, "MAX_KEPT", 10)
    with Log(tmp_path) as log:
        beyond = BeyondEnd(with_another_store(log))
        for offset in range(100):
            beyond.may_come(A, offset)
        assert len(beyond._since) == 10
