"""A record has one timestamp, whichever store is asked, and however it got there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Store
from dafka_core.model.records import TopicPartition
from dafka_core.model.timestamps import WallClock
from dafka_core.nodes import producer as producer_module
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S

COUNT = 300
YEAR_US = 365 * 86_400 * 1_000_000

Times = list[tuple[int, int]]


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Callable[[str], Store]:
    """Starts a store."""
    return lambda name: open_nodes.enter_context(
        Store(tmp_path / name, tower=tower, sync_interval_ms=100)
    )


def now_us() -> int:
    return time.time_ns() // 1000


def us_of(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def times_at(store: Store, tp: TopicPartition, end: int) -> Times:
    """The timestamps of the records up to ``end``, when the store has them."""
    wait_until(lambda: store.log.end(tp) >= end, f"{tp} is at store {store.address}")
    return store.log.times(tp, 0, end)


def test_an_application_may_give_the_create_time(
    start: Callable[[str], Store], produce: Callable[..., Producer], tower: str
) -> None:
    store, producer = start("first"), produce("t")
    tp = TopicPartition("t", producer.address)
    first = datetime(2020, 2, 29, 12, tzinfo=timezone(timedelta(hours=2)))
    early = datetime(1900, 1, 1, tzinfo=UTC)
    soon = datetime.now(UTC) + timedelta(minutes=50)
    producer.publish(b"0", timestamp=first)
    producer.publish_many([b"1", b"2"], [b"k", None], timestamp=soon)
    producer.publish(b"3")
    producer.publish(b"4", timestamp=early)
    producer.publish(b"5", timestamp=datetime.now(UTC) + timedelta(minutes=70))
    producer.flush(PATIENCE_S)
    times = times_at(store, tp, 6)
    assert [at for at, _ in times] == [0, 1, 3, 4, 5]
    assert [us for at, us in times if at in (0, 1, 4)] == [us_of(first), us_of(soon), us_of(early)]
    assert all(abs(us - now_us()) < 60_000_000 for at, us in times if at in (3, 5))
    with Consumer(tower=tower) as consumer:
        consumer.subscribe("t")
        records = [consumer.poll(PATIENCE_S) for _ in range(6)]
    stamps = [record.timestamp for record in records if record]
    assert stamps[:3] + stamps[4:5] == [first, soon, soon, early]
    assert [record.key for record in records if record] == [None, b"k", *[None] * 4]


def test_a_producer_stamps_its_records_once(
    start: Callable[[str], Store], produce: Callable[..., Producer]
) -> None:
    first, second = start("first"), start("second")
    producer = produce("t", acks=2)
    tp = TopicPartition("t", producer.address)
    said: Times = []
    for offset in range(0, COUNT, 3):
        before_us = now_us()
        producer.publish_many(values(2, offset))
        producer.publish(values(1, offset + 2)[0])
        said.append((before_us, now_us()))
        producer.flush(PATIENCE_S)  # so that each is written by itself
    times = times_at(first, tp, COUNT)
    assert times_at(second, tp, COUNT) == times
    stamps = dict(times)
    for at, (before_us, after_us) in enumerate(said):
        stamp_us = max(us for offset, us in times if offset <= 3 * at)
        assert before_us <= stamp_us <= after_us
    assert len(stamps) >= len(said)
    # A store that fetches them from other stores has the same timestamps.
    assert times_at(start("late"), tp, COUNT) == times


def test_a_clock_far_ahead_poisons_no_partition(
    start: Callable[[str], Store],
    produce: Callable[..., Producer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = start("store")
    before_us = now_us()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "dafka"):
        ahead = WallClock(lambda: now_us() + 10 * YEAR_US)
        patch.setattr(producer_module, "WallClock", lambda: ahead)
        wrong = produce("t")
    tp = TopicPartition("t", wrong.address)
    wrong.publish_many(values(2))
    wrong.flush(PATIENCE_S)
    between_us = now_us()
    assert f"partition {wrong.address}: its records are stamped 3153600" in caplog.text
    right = produce("t", address=wrong.address)
    right.publish_many(values(2, 2))
    right.flush(PATIENCE_S)
    [(_, wrong_us), (_, right_us)] = times_at(store, tp, 4)
    assert before_us <= wrong_us <= between_us <= right_us <= now_us()
