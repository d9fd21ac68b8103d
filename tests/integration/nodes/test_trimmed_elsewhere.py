"""Stores with different retention: who lacks what nobody has goes on where the others begin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from dafka_core import Consumer, Producer, Store
from dafka_core.model.records import TopicPartition
from dafka_core.protocol import timing
from dafka_core.testing import wait_until
from tests.integration.nodes.content import values

Produce = Callable[..., Producer]
ADDRESS = "A" * 32


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "STORE_LOSS_S", 0.5)
    monkeypatch.setattr(timing, "ABSENT_STORE_S", 1.5)


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Callable[..., Store]:
    """Starts stores on directories of these names."""
    options: dict[str, Any] = {"tower": tower, "sync_interval_ms": 100, "flight_port": "off"}
    return lambda name: open_nodes.enter_context(Store(tmp_path / name, **options))


def publish(produce: Produce, count: int, first: int = 0, **options: Any) -> TopicPartition:
    """As a producer that comes back again and again."""
    with produce("t", address=ADDRESS, resume_missing="ignore", **options) as producer:
        producer.publish_many(values(count, first))
    return TopicPartition("t", producer.address)


def held(store: Store, tp: TopicPartition) -> tuple[int, int] | None:
    info = store.log.info(tp)
    return None if info is None else (info.earliest, info.end)


def contents(store: Store, tp: TopicPartition) -> list[bytes]:
    return [value for batch in store.log.read(tp, 0, 2**62) for value in batch.values.to_list()]


@pytest.mark.parametrize("before", [50, 100])
def test_a_store_that_is_new_begins_where_the_others_do(
    start: Callable[..., Store], produce: Produce, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = start("one")
    tp = publish(produce, 100)
    one.log.trim(tp, before)
    other = start("other")
    wait_until(lambda: held(other, tp) == (before, 100))
    assert contents(other, tp) == values(100 - before, before)
    assert other.log.aside() == []
    assert other.log.lives(tp).history == one.log.lives(tp).history
    assert f"no records before offset {before} any more" in caplog.text
    # It takes part from then on.
    publish(produce, 20, 100, acks=2)
    assert held(other, tp) == (before, 120)


def test_a_store_that_was_away_for_longer_than_the_others_keep_records_goes_on_where_they_do(
    start: Callable[..., Store], produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = start("one"), start("other")
    publish(produce, 30, acks=2)
    other.close()
    tp = publish(produce, 40, 30)  # of a second life
    publish(produce, 30, 70)  # of a third one
    one.log.trim(tp, 60)
    other = start("other")
    wait_until(lambda: held(other, tp) == (60, 100))
    assert contents(other, tp) == values(40, 60)
    assert other.log.lives(tp).history == one.log.lives(tp).history
    (aside,) = other.log.aside()
    assert (aside.start, aside.end) == (0, 30)
    (batch,) = other.log.read_aside(aside.id)
    assert batch.values.to_list() == values(30)
    publish(produce, 20, 100, acks=2)
    other.close()
    other = start("other")
    assert held(other, tp) == (60, 120)


def test_what_one_store_has_still_is_got_from_there(
    start: Callable[..., Store], produce: Produce
) -> None:
    one, two = start("one"), start("two")
    tp = publish(produce, 100, acks=2)
    one.log.trim(tp, 80)
    two.log.trim(tp, 20)
    other = start("other")
    wait_until(lambda: held(other, tp) == (20, 100))
    assert contents(other, tp) == values(80, 20)


def test_a_store_that_is_away_and_may_have_them_is_waited_for(
    start: Callable[..., Store], produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "ABSENT_STORE_S", 3600.0)
    one, two = start("one"), start("two")
    tp = publish(produce, 100, acks=2)
    wait_until(lambda: two.address in one.known_stores)
    one.log.trim(tp, 80)
    two.close()
    wait_until(lambda: not one.stores_here, timeout_s=60)
    other = start("other")
    # It has never met the one that is away, and hears of it.
    fetchers = other._role.partitions
    wait_until(lambda: tp in fetchers and fetchers[tp].fetcher.unanswered_s(monotonic()) > 2)
    assert held(other, tp) is None
    two = start("two")
    wait_until(lambda: held(other, tp) == (0, 100))


def test_a_consumer_gets_from_another_store_what_one_has_trimmed(
    start: Callable[..., Store], produce: Produce, consume: Callable[..., Consumer]
) -> None:
    one, _ = start("one"), start("two")
    tp = publish(produce, 100, acks=2)
    one.log.trim(tp, 100)
    consumer = consume("t", start="earliest")
    got: list[bytes | None] = []
    while len(got) < 100:
        record = consumer.poll(30)
        assert record is not None
        got.append(record.value)
    assert got == values(100)
    assert held(one, tp) == (100, 100)
