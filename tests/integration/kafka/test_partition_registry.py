"""Gateways write to the registry: one lease for many changes, and takeovers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Tower
from dafka_core.security.key_files import new_key
from dafka_core.testing import wait_until
from dafka_kafka import partition_registry
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.partition_registry import LeaseState, PartitionRegistry
from dafka_kafka.registry_table import REGISTRY
from tests.integration.kafka.numbering import ANY_PORTS, PATIENCE_S, Numbering, agree, meet

Start = Callable[[str], Numbering]


@pytest.fixture
def start(live_tower: Tower, tmp_path: Path) -> Iterator[Start]:
    """Start a store and its registry."""
    with ExitStack() as running:

        def make(name: str) -> Numbering:
            made = Numbering(tmp_path / name, live_tower.tower, 9_000 + len(name))
            running.callback(made.close)
            return made

        yield make


def refusal(work: Callable[..., object], *args: Any, **named: Any) -> tuple[int, str]:
    """Return the error of work that is refused."""
    with pytest.raises(RefusedError) as refused:
        work(*args, **named)
    return refused.value.code, refused.value.why


def lives(numbering: Numbering) -> int:
    """Return how often the registry was taken over."""
    return len(numbering.store.log.lives(REGISTRY).history)


def test_gateways_take_the_list_over_from_each_other_once_for_many_topics(
    start: Start, live_tower: Tower
) -> None:
    one, two = start("a"), start("bb")
    meet(one, two)
    one.create("topic-0", 1)
    for number, numbering in enumerate((two, one, one, two), 1):
        before = lives(numbering)
        numbering.create(f"topic-{number}", 1)
        agree(f"topic-{number}", 1, one, two)
        assert lives(numbering) == before + (number != 3)
        wait_until(lambda: lives(one) == lives(two))
    wait_until(lambda: one.registry._lease.state is LeaseState.FOLLOWING)
    live_tower.close()  # it needs no tower while it has the list
    two.create("alerts", 1)
    assert len(two.names("alerts")) == 1


def test_a_store_with_a_key_makes_topics(tmp_path: Path) -> None:
    allowed, away = tmp_path / "allowed", tmp_path / "away"
    allowed.mkdir()
    options = {}
    for name in ("tower", "store"):
        new_key(away, name, (name,))
        shutil.copy(away / f"{name}.key", allowed)
        secret = str(away / f"{name}.key_secret")
        options[name] = {"secret_key_file": secret, "allowed_keys": str(allowed)}
    with Tower(**ANY_PORTS, **options["tower"]) as tower:
        locked = Numbering(tmp_path / "locked", tower.tower, 9_000, **options["store"])
        with closing(locked):
            locked.create("flights", 2)
            assert len(locked.names("flights")) == 2


def test_asking_again_for_what_is_there_changes_nothing(start: Start) -> None:
    one = start("a")
    one.create("flights", 2)
    before, found = one.names("flights"), one.registry.partitions("flights")
    assert [each.number for each in found] == [0, 1]
    assert len(set(before)) == 2
    assert all(each.hosted and each.gateway == one.store.address for each in found)
    assert one.registry.cluster_id
    one.create("flights", 2)
    assert one.names("flights") == before
    assert refusal(one.create, "flights", 2, new=True)[0] == KafkaError.TOPIC_ALREADY_EXISTS
    assert refusal(one.extend, "flights", 2)[0] == KafkaError.INVALID_PARTITIONS
    assert refusal(one.extend, "flihgts", 2)[0] == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    one.extend("flights", 5)
    assert one.names("flights")[:2] == before
    assert len(one.names("flights")) == 5


def test_two_gateways_that_create_at_once_never_give_one_number_twice(start: Start) -> None:
    both = one, two = start("a"), start("bb")
    meet(*both)

    def create(task: int) -> int:
        try:
            both[task % 2].create(f"topic-{task // 2 % 3}", 2, new=True)
        except RefusedError as error:
            return error.code
        return KafkaError.NONE

    with ThreadPoolExecutor(12) as threads:
        made = list(threads.map(create, range(12)))
    # Each topic by one of them.
    assert sorted(made) == [KafkaError.NONE] * 3 + [KafkaError.TOPIC_ALREADY_EXISTS] * 9
    for number in range(3):
        found = agree(f"topic-{number}", 2, one, two)
        assert len(set(found)) == 2
        hosts = {each.gateway for each in one.registry.partitions(f"topic-{number}")}
        assert hosts == {one.store.address, two.store.address}  # spread over the live ones
    assert one.registry.cluster_id == two.registry.cluster_id


def test_a_topic_of_dafkas_is_numbered_and_can_be_added_to(start: Start, live_tower: Tower) -> None:
    one = start("a")
    with Producer("flights", tower=live_tower.tower) as producer:
        producer.publish(b"from Dafka")
        producer.flush(PATIENCE_S)
        asyncio.run(one.registry.refresh())
        assert one.names("flights") == [producer.address]
        assert refusal(one.create, "flights", 1, new=True)[0] == KafkaError.TOPIC_ALREADY_EXISTS
        one.create(
            "flights", 2
        )  # for writes of Kafka clients, which can't go to a producer's partition
        assert one.names("flights")[0] == producer.address
        assert [each.hosted for each in one.registry.partitions("flights")] == [False, True, True]


def test_stores_that_come_are_asked_to_agree_before_one_goes(start: Start) -> None:
    one = start("a")
    one.create("flights", 1)  # acknowledged by one store: all must answer the next lease
    two, three = start("bb"), start("ccc")
    all_ = one, two, three
    meet(*all_)
    wait_until(lambda: all(each.registry._records.is_committed_by(2) for each in all_))
    one.close()
    two.create("alerts", 1)
    agree("alerts", 1, two, three)


def test_without_a_majority_there_is_an_error_and_the_list_still_serves(start: Start) -> None:
    one, two = start("a"), start("bb")
    meet(one, two)
    one.create("flights", 2)
    two.close()
    wait_until(lambda: not one.store.known.here)
    code, why = refusal(one.create, "alerts", 1)
    assert (code, two.store.address in why) == (KafkaError.NOT_ENOUGH_REPLICAS, True)
    assert len(one.names("flights")) == 2
    assert not one.names("alerts")
    back = start("bb")
    one.create("alerts", 1)
    agree("alerts", 1, one, back)


def test_a_list_that_was_trimmed_is_not_gone_on_with(start: Start) -> None:
    one = start("a")
    one.create("flights", 1)
    one.store.log.trim(REGISTRY, 1)
    one.registry.close()
    one.registry = PartitionRegistry(one.store, one.gateways)
    one.registry.start()
    code, why = refusal(one.create, "flights", 1)
    assert (code, "trimmed" in why) == (KafkaError.KAFKA_STORAGE_ERROR, True)


def test_a_dead_tower_is_an_error_and_the_list_still_serves(
    start: Start, live_tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_registry, "IDLE_S", 0.0)
    one = start("a")
    one.create("flights", 2)
    wait_until(lambda: one.registry._lease.state is LeaseState.FOLLOWING)
    live_tower.close()
    code, why = refusal(one.create, "alerts", 1)
    assert (code, "tower" in why) == (KafkaError.NOT_ENOUGH_REPLICAS, True)
    assert len(one.names("flights")) == 2


def test_who_waits_while_the_gateway_ends_is_told(
    start: Start, live_tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_registry, "IDLE_S", 0.0)
    one = start("a")
    one.create("flights", 1)
    live_tower.close()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(one.create, "alerts", 1)
        wait_until(lambda: one.registry._lease.has_proposals)
        one.registry.close()
        with pytest.raises(RefusedError):
            waiting.result(PATIENCE_S)
    assert refusal(one.create, "alerts", 1)[0] == KafkaError.NOT_CONTROLLER
