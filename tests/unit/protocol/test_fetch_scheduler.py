"""A role asks for some partitions at a time; each has its turn, whatever is answered."""

from __future__ import annotations

import pytest

from dafka_core.protocol import partition_fetcher
from dafka_core.protocol.consumer_role import ConsumerRole
from dafka_core.protocol.messages import DirectHead, HeadsReply
from dafka_core.protocol.partition_fetcher import MAX_UNDER_WAY, RETRY_MAX_S
from dafka_core.records import PartitionInfo
from tests.unit.protocol.model import TOPIC, batch_of, fetches_in

ME, STORE = "21962C91115348329557DE71C90C3718", "A" * 32


def told_of(count: int) -> ConsumerRole:
    """A consumer that has heard of so many partitions of one record, by one message."""
    role = ConsumerRole(ME, "earliest")
    role.subscribe(TOPIC)
    infos = tuple(PartitionInfo(TOPIC, f"P{i}", 0, 1) for i in range(count))
    asked = fetches_in(role.on_message(0.0, HeadsReply(ME, 0, STORE, 0, 1, infos), STORE))
    assert [fetch.partition for fetch in asked] == [
        f"P{i}" for i in range(min(count, MAX_UNDER_WAY))
    ]
    return role


def test_the_others_are_asked_for_when_some_are_done() -> None:
    total = 3 * MAX_UNDER_WAY
    role = told_of(total)
    assert fetches_in(role.on_tick(0.0)) == []
    for i in range(10):
        assert role.on_batch(0.1, ME, batch_of(0, 1, TOPIC, f"P{i}")) == []
    asked = [fetch.partition for fetch in fetches_in(role.on_tick(0.1))]
    assert asked == [f"P{MAX_UNDER_WAY + i}" for i in range(10)]
    under_way = [f"P{i}" for i in range(10, MAX_UNDER_WAY + 10)]
    while under_way:
        for partition in under_way:
            role.on_batch(0.2, ME, batch_of(0, 1, TOPIC, partition))
        under_way = [fetch.partition for fetch in fetches_in(role.on_tick(0.2))]
        assert len(under_way) <= MAX_UNDER_WAY
    assert role.positions() == {(TOPIC, f"P{i}"): (1, 1) for i in range(total)}
    assert len(role.scheduler) == 0


def test_partitions_that_nobody_answers_for_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_fetcher, "MAX_UNDER_WAY", 3)
    role = told_of(0)
    dead = {f"P{i}" for i in range(10)}
    for i in range(20):
        role.on_message(0.0, DirectHead(ME, TOPIC, f"P{i}", 0), STORE)
    now, asked = 0.0, dict.fromkeys((f"P{i}" for i in range(20)), 0)
    while now < 20 * RETRY_MAX_S:
        now += 0.5
        requests = fetches_in(role.on_tick(now))
        assert len(requests) <= 3
        for fetch in requests:
            asked[fetch.partition] += 1
            if fetch.partition not in dead:
                role.on_batch(now, ME, batch_of(0, 1, TOPIC, fetch.partition))
    assert {tp.partition for tp, (offset, _) in role.positions().items() if not offset} == dead
    assert all(asked[partition] > 2 for partition in dead)


def test_unsubscribing_makes_room() -> None:
    role = told_of(2 * MAX_UNDER_WAY)
    role.unsubscribe(TOPIC)
    assert len(role.scheduler) == 0
    role.subscribe("other")
    assert len(fetches_in(role.on_message(0.0, DirectHead(ME, "other", "P", 0), STORE))) == 1
