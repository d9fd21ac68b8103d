"""Records that protected queries have not read stay beyond the rules, within limits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dafka_core.config.topic_rules import parse_rules
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log, block_writer
from dafka_core.storage.retention import Unread
from dafka_core.storage.retention_pass import Retention
from tests.integration.storage.clocks import Clock
from tests.integration.storage.test_retention_pass import OTHER, A, B, S, held, once, put


@pytest.fixture(autouse=True)
def each_append_makes_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_writer, "SMALL_BLOCK_BYTES", 1)


class Query:
    """A query that has read up to these positions; other partitions are unread."""

    def __init__(self, **positions: int) -> None:
        self.positions = {
            TopicPartition("flights", name * 32): positions[name] for name in positions
        }
        self.looks = 0

    def look(self) -> None:
        self.looks += 1

    def unread(self, tp: TopicPartition) -> Unread | None:
        return Unread(self.positions[tp], "hourly") if tp in self.positions else None


def retention_of(store: Log, rules: str, limits: str, query: Query) -> Retention:
    return Retention(store, parse_rules(rules), until_read=parse_rules(limits), readers=query)


def filled(store: Log, clock: Clock) -> None:
    """A block a second in each partition, of 10 kB."""
    for at_s in range(6):
        clock.now_us = at_s * S
        for tp in (A, B, OTHER):
            put(store, tp)
    clock.now_us = 100 * S


def test_what_is_not_read_stays_until_it_is(
    store: Log, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store, clock)
    query = Query(A=25)
    retention = retention_of(store, "*=50s", "flights=forever", query)
    with caplog.at_level(logging.INFO, "dafka.store"):
        once(retention)
        # In whole blocks; B has no reader, and no rule is about the other topic.
        assert held(store) == {A: (20, 60), B: (60, 60), OTHER: (60, 60)}
        once(retention)
    assert caplog.messages == ["topic 'flights': retention waits for query 'hourly' to read more"]
    query.positions[A] = 40
    once(retention)
    assert held(store)[A] == (40, 60)
    query.positions[A] = 1_000
    once(retention)
    assert held(store)[A] == (60, 60)
    assert (query.looks, retention.counts.unread) == (4, 0)


@pytest.mark.parametrize(
    ("limits", "earliest"), [("*=97.5s", 30), ("*=60kB", 30), ("*=97.5s,1GB", 30), ("*=1s", 60)]
)
def test_beyond_its_limits_it_goes_and_that_is_said(
    store: Log, clock: Clock, caplog: pytest.LogCaptureFixture, limits: str, earliest: int
) -> None:
    filled(store, clock)
    retention = retention_of(store, "flights=50s", limits, Query(A=10, B=0))
    once(retention)
    assert held(store) == {A: (earliest, 60), B: (earliest, 60), OTHER: (0, 60)}
    assert retention.counts.unread == 2 * earliest - 10
    said = f"deleted {earliest - 10} records that query 'hourly' has not read"
    assert any(said in message for message in caplog.messages)


def test_by_size_too_nothing_goes_before_it_is_read(store: Log, clock: Clock) -> None:
    filled(store, clock)
    query = Query(A=20, B=60)
    retention = retention_of(store, "flights=25kB", "flights=1h", query)
    once(retention)
    assert held(store) == {A: (20, 60), B: (40, 60), OTHER: (0, 60)}
    query.positions[A] = 60
    once(retention)
    assert held(store)[A] == (50, 60)


def test_a_clock_that_jumps_takes_nothing_that_is_not_read(tmp_path: Path, clock: Clock) -> None:
    with Log(tmp_path, clock_us=clock, steady_us=lambda: 0) as store:
        filled(store, clock)
        retention = retention_of(store, "flights=25kB", "flights=1h", Query(A=0, B=0))
        once(retention)
        clock.now_us += 3 * 3_600 * S
        once(retention)
        assert held(store) == {A: (0, 60), B: (0, 60), OTHER: (0, 60)}
