"""A store with a wrong clock deletes nothing by age, replaces no timestamp, and reports it."""

import logging
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dafka_core import Consumer, RecordBatch, Store
from dafka_core.model import timestamps
from dafka_core.model.log_entries import Stage
from dafka_core.model.records import TopicPartition
from dafka_core.model.timestamps import WallClock
from dafka_core.model.values import Values
from dafka_core.nodes import producer as producer_module
from dafka_core.ops.checks import check_all
from dafka_core.ops.findings import Severity
from dafka_core.ops.gathering import gathered
from dafka_core.ops.health import of_node
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Produce, Start
from tests.integration.nodes.content import flushed, values
from tests.integration.nodes.peers import PATIENCE_S, new_address

MINUTE_US = 60_000_000
DAY_US = 1440 * MINUTE_US
Y2K_US = 946_684_800_000_000


def now_us() -> int:
    return time.time_ns() // 1_000


class WrongClock:
    """The clock of the stores that a test starts."""

    def __init__(self) -> None:
        self.wrong_us = 0

    def now_us(self) -> int:
        return now_us() + self.wrong_us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WrongClock:
    clock = WrongClock()
    monkeypatch.setattr(timestamps, "machine_us", clock.now_us)
    return clock


def retained(store: Store) -> None:
    """Waits until a pass of retention has seen all current records."""
    for _ in range(2):
        before = store.retention.counts.passes
        store.retention_control.wake()
        wait_until(lambda: store.retention.counts.passes > before, "retention has passed")  # noqa: B023


def put(store: Store, tp: TopicPartition, count: int = 1, times: Any = None) -> int:
    """Writes records at the store, as clients of Flight do; returns the partition's end."""
    batch = RecordBatch(tp, store.log.end(tp), Values.of(values(count)), times=times)
    end: int = store.append_queue.put(batch).result(PATIENCE_S)
    return end


def stamp_us(store: Store, tp: TopicPartition) -> int:
    end = store.log.end(tp)
    return store.log.times(tp, end - 1, end)[0][1]


def test_a_store_that_starts_with_its_clock_ahead_deletes_nothing_and_reports_it(
    start: Start, produce: Produce, clock: WrongClock, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as store:
        producer = flushed(produce("t"), values(100))
        tp = TopicPartition("t", producer.address)
    clock.wrong_us = 2 * DAY_US
    for _ in range(2):
        caplog.clear()
        with start(retain="t=1d", flight_port=0) as store:
            retained(store)
            assert store.log.read(tp, 0, 1)
            put(store, TopicPartition("own", new_address()))
            (warned,) = (each for each in caplog.records if "clock" in each.message)
            assert warned.levelno == logging.WARNING
            assert "is 48.0 h ahead of the newest time in its log: it is in d" in warned.message
            facts = gathered({}, uris=store.locations[-1:], timeout_s=PATIENCE_S)
            told = [*check_all(facts), *of_node(store)]
            doubts = [each for each in told if "is in doubt" in each.sentence]
            assert [each.severity for each in doubts] == [Severity.WARNING] * 2
            assert all("so it deletes nothing by age: the store's" in str(e) for e in doubts)
    clock.wrong_us = 0
    with start(retain="t=1d") as store:
        assert not store.log.clock.doubt()
        retained(store)
        assert store.log.read(tp, 0, 1)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_store_whose_clock_is_far_behind_replaces_no_timestamp(
    start: Start, produce: Produce, clock: WrongClock, is_new: bool
) -> None:
    own, given, staged = (TopicPartition("t", new_address()) for _ in range(3))
    if not is_new:
        with start() as store:
            put(store, TopicPartition("t", new_address()))
    clock.wrong_us = Y2K_US - now_us()
    with start(retain="t=1d") as store:
        assert store.log.clock.doubt() == "the store's clock is before 2026-01-01T00:00:00Z"
        before_us = now_us()
        producer = flushed(produce("t"), values(100))
        published = TopicPartition("t", producer.address)
        times = np.array([[1, before_us]], np.int64)
        put(store, given, times=times)
        batch = RecordBatch(staged, 0, Values.of(values(1)), times=times)
        store.append_queue.put(Stage(batch, "A" * 32, 0)).result(PATIENCE_S)
        put(store, own)
        clock.wrong_us = 0
        assert bool(store.log.clock.doubt()) is is_new
        retained(store)
        assert before_us <= stamp_us(store, published) <= now_us()
        assert stamp_us(store, given) == before_us
        assert store.log.staged()[0].staged_at_us <= now_us()
        for tp in (published, given, own):
            assert store.log.read(tp, 0, 1)[0].offset == 0
        assert is_new or abs(stamp_us(store, own) - now_us()) < MINUTE_US
        put(store, own)
        assert abs(stamp_us(store, own) - now_us()) < MINUTE_US


def test_what_is_staged_is_not_discarded_by_a_clock_that_is_ahead(
    start: Start, clock: WrongClock
) -> None:
    tp = TopicPartition("t", new_address())
    with start() as store:
        batch = RecordBatch(tp, 0, Values.of(values(1)))
        store.append_queue.put(Stage(batch, "A" * 32, 0)).result(PATIENCE_S)
    clock.wrong_us = 30 * DAY_US
    with start() as store:
        assert [each.tp for each in store.log.staged()] == [tp]


def test_a_new_store_whose_clock_is_ahead_of_another_ones_deletes_nothing(
    start: Start, tower: str, tmp_path: Path, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both doubt their clocks: neither knows which one is wrong."""
    producer = produce("t")
    with Store(tmp_path / "other", tower=tower) as other:
        flushed(producer, values(100))
        tp = TopicPartition("t", producer.address)
        # Of the server's process, which both stores share: one of them answers with another time.
        monkeypatch.setattr(
            "dafka_core.flight.store_client.StoreClient.clock_us",
            lambda *_, **__: now_us() - 2 * DAY_US,
        )
        with start(retain="t=1d") as store:
            wait_until(lambda: store.log.end(tp) == 100, "the records are copied")
            wait_until(lambda: other.address in store.known.endpoints, "it has met the other store")
            retained(store)
            store.retention_control._compare_at = 0.0
            retained(store)
            assert f"h ahead of the clock of store {other.address}" in store.log.clock.doubt()
            assert store.log.read(tp, 0, 1)


def test_a_restarted_store_deletes_nothing_before_it_has_met_the_others(
    start: Start, tower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock has always been ahead, and agrees with its own log."""
    tp, times = TopicPartition("t", new_address()), np.array([[1, now_us() - DAY_US]], np.int64)
    two_days_ago: Any = lambda *_, **__: now_us() - 2 * DAY_US  # noqa: E731 -- of the other store
    monkeypatch.setattr("dafka_core.flight.store_client.StoreClient.clock_us", two_days_ago)
    with Store(tmp_path / "other", tower=tower):
        with start() as store:
            put(store, TopicPartition("own", new_address()))
        with start() as store:  # its log is new no more
            put(store, tp, times=times)
            wait_until(store.log.met)
            assert not store.log.clock.doubt()
        with start(retain="t=1h") as store:
            wait_until(store.log.clock.doubt)
            assert store.log.read(tp, 0, 1)


YEAR_US = 365 * 86_400 * 1_000_000

Times = list[tuple[int, int]]


def us_of(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def times_at(store: Store, tp: TopicPartition, end: int) -> Times:
    """The timestamps of the records up to ``end``, when the store has them."""
    wait_until(lambda: store.log.end(tp) >= end, f"{tp} is at store {store.address}")
    return store.log.times(tp, 0, end)


def test_an_application_may_give_the_create_time(
    start: Start, produce: Produce, tower: str
) -> None:
    store, producer = start(), produce("t")
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


def test_each_record_of_a_call_may_have_its_own_create_time(start: Start, produce: Produce) -> None:
    store, producer = start(), produce("t")
    first_us, count = (
        us_of(datetime(2020, 2, 29, 12, tzinfo=UTC)),
        producer_module.CHUNK_COUNT + 4_000,
    )
    times = pa.array([first_us + number // 2 for number in range(count)], pa.timestamp("us", "UTC"))
    producer.publish_many(pa.array([b"v"] * count), timestamp=times)
    producer.publish(b"now")
    producer.flush(PATIENCE_S)
    found = times_at(store, TopicPartition("t", producer.address), count + 1)
    assert found[:-1] == [(at, first_us + at // 2) for at in range(0, count, 2)]


def test_a_clock_far_ahead_poisons_no_partition(
    start: Start,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = start()
    before_us = now_us()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "dafka"):
        ahead = WallClock(lambda: now_us() + 10 * YEAR_US)
        patch.setattr(producer_module, "WallClock", lambda: ahead)
        wrong = produce("t")
    tp = TopicPartition("t", wrong.address)
    flushed(wrong, values(2))
    between_us = now_us()
    assert f"partition {wrong.address}: its records are stamped 3153600" in caplog.text
    flushed(produce("t", address=wrong.address), values(2, 2))
    [(_, wrong_us), (_, right_us)] = times_at(store, tp, 4)
    assert before_us <= wrong_us <= between_us <= right_us <= now_us()
