"""Stores that come late, go, return, and lack what other stores have given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import Forget
from dafka_core.model.records import RecordBatch
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import ConsumerHello, StoresKnown
from tests.simulation.scripts.script import Script, ScriptedProducer, ScriptedStore, tp_of, values


def published(world: Script, count: int, life: str = "", **options: Any) -> ScriptedProducer:
    """A producer that has published records and ended; each ``life`` continues the one before."""
    producer = world.producer("t", life=life, resume=bool(life), ignore_missing=True, **options)
    producer.publish(count)
    producer.flush()
    producer.stop()
    return producer


def test_a_late_store_receives_everything_and_replaces_the_first(world: Script) -> None:
    first = world.store("first")
    producers = [world.producer(topic, topic) for topic in ("x", "y")]
    for producer in producers:
        producer.publish(5_000)
        producer.flush()
        producer.stop()
    late = world.store("late")
    world.until(lambda: [late.held(each.tp) for each in producers] == [(0, 5_000)] * 2)
    first.stop()
    consumer = world.consumer("x", "y")
    world.until(lambda: len(consumer.values()) == 10_000)
    assert consumer.by_partition() == {each.tp: values(5_000) for each in producers}
    reader = world.reader()
    assert [info.end for info in reader.partitions("x")] == [5_000]
    assert reader.read(producers[0].tp, 4_990, 5_000) == values(10, 4_990)


def test_a_store_that_comes_late_fetches_from_the_producer(world: Script) -> None:
    producer, consumer = world.producer("t"), world.consumer("t")
    producer.publish(10)
    consumer.wait_for(*values(10))  # without any store
    store = world.store()
    producer.flush()
    assert store.values(producer.tp) == values(10)


@pytest.mark.parametrize(("losing", "winning"), [(4, 4), (4, 5), (5, 4)])
def test_the_store_with_an_older_history_sets_its_records_aside(
    world: Script, losing: int, winning: int
) -> None:
    """From the first difference on, also if it has more records."""
    tp, first = tp_of("p"), Epoch.first(EpochId(1, 0xA, 1))
    for number, begun, end in ((2, losing, 9), (3, winning, 6)):
        epoch = Epoch(number, number, 1, begun, first.digest)
        with world.log(f"store-{number}") as log:
            for start, stop, life in ((0, begun, first), (begun, end, epoch)):
                batch = RecordBatch.of(tp, start, values(stop - start, 100 * life.number + start))
                log.append([replace(batch, epoch=life)])
    world.checkers.liars.add(tp.partition)
    loser, winner = world.store("store-2"), world.store("store-3")
    world.until(lambda: loser.log.lives(tp) == winner.log.lives(tp))
    expected = [*values(winning, 100), *values(6 - winning, 300 + winning)]
    assert loser.values(tp) == winner.values(tp) == expected
    [aside] = loser.log.aside()
    assert (aside.start, aside.end, winner.log.aside()) == (min(losing, winning), 9, [])


def test_stores_remember_each_other_and_report_it(world: Script) -> None:
    first = world.store("first")
    with_second = world.peer()
    with_second.subscribe(subscription(StoresKnown, with_second.address))
    assert [each.entries for each in with_second.wait_for(StoresKnown)] == [()]
    second = world.store("second")
    [met] = world.until(first.log.met)
    assert (met.store, met.endpoint[:6]) == (second.address, "tcp://")
    second.stop()
    world.until(lambda: first.log.met()[0].seen_us > met.seen_us, "its loss is written down")
    first.stop()
    first.start()
    other = world.peer(name="other")
    other.subscribe(subscription(StoresKnown, other.address))
    other.wait_until_subscribed(subscription(ConsumerHello, first.address))
    told = other.wait_for(StoresKnown)[0]
    assert [(each.store, each.endpoint) for each in told.entries] == [(met.store, met.endpoint)]
    # Both are started again: neither is missing.
    first.stop()
    for store in (first, second):
        store.start()
    reader = world.reader()
    reader.partitions()
    assert set(reader.role.directory.stores) == {first.address, second.address}
    assert not reader.role.directory.awaited_stores
    with pytest.raises(InvalidRequestError):
        world.result(first.queue.put(Forget(second.address)))
    second.stop()
    world.run(10)
    world.result(first.queue.put(Forget(second.address)))
    assert first.log.met() == []


def test_a_record_has_its_producers_timestamp_at_each_store(world: Script) -> None:
    stores, producer = [world.store("one"), world.store("two")], world.producer("t", acks=2)
    sent_us: list[int] = []
    for _ in range(20):
        sent_us.append(world.now_us())
        producer.publish(3)
        producer.flush()
    stores.append(world.store("late"))
    world.until(lambda: stores[2].held(producer.tp) == (0, 60))
    times, *others = (store.log.times(producer.tp, 0, 60) for store in stores)
    assert others == [times] * 2
    # The script's clock has milliseconds.
    assert [us // 1_000 for _, us in times] == [us // 1_000 for us in sent_us]


# -- stores with different retention


@pytest.mark.parametrize("before", [50, 100])
def test_a_new_store_begins_where_the_others_do(world: Script, before: int) -> None:
    one = world.store("one")
    tp = published(world, 100).tp
    one.log.trim(tp, before)
    other = world.store("other")
    world.until(lambda: other.held(tp) == (before, 100))
    assert other.values(tp) == values(100 - before, before)
    assert other.log.aside() == []
    assert other.log.lives(tp).history == one.log.lives(tp).history
    published(world, 20, "second", acks=2)  # it takes part from then on
    assert other.held(tp) == (before, 120)


def test_a_store_that_was_away_for_too_long_continues_where_the_others_begin(world: Script) -> None:
    one, other = world.store("one"), world.store("other")
    tp = published(world, 30, acks=2).tp
    other.stop()
    published(world, 40, "second")
    published(world, 30, "third")
    one.log.trim(tp, 60)
    other.start()
    world.until(lambda: other.held(tp) == (60, 100))
    assert other.values(tp) == values(40, 60)
    assert other.log.lives(tp).history == one.log.lives(tp).history
    [aside] = other.log.aside()
    assert (aside.start, aside.end) == (0, 30)
    [batch] = other.log.read_aside(aside.id)
    assert batch.values.to_list() == values(30)
    published(world, 20, "fourth", acks=2)
    other.stop()
    other.start()
    assert other.held(tp) == (60, 120)


@pytest.fixture
def trimmed(world: Script) -> tuple[ScriptedStore, ScriptedStore]:
    """Two stores of one partition: they begin at 80 and at 20."""
    one, two = world.store("one"), world.store("two")
    tp = published(world, 100, acks=2).tp
    one.log.trim(tp, 80)
    two.log.trim(tp, 20)
    return one, two


def test_records_that_one_store_still_has_come_from_there(
    world: Script, trimmed: tuple[ScriptedStore, ScriptedStore]
) -> None:
    tp, other, consumer = tp_of("producer"), world.store("other"), world.consumer("t")
    world.until(lambda: other.held(tp) == (20, 100))
    assert other.values(tp) == values(80, 20)
    consumer.wait_for(*values(80, 20))


def test_an_absent_store_that_may_have_the_records_is_awaited(
    world: Script, trimmed: tuple[ScriptedStore, ScriptedStore]
) -> None:
    one, two = trimmed
    two.stop()
    world.until(lambda: not one.role.known.here)
    tp, other = tp_of("producer"), world.store("other")  # it has never met the absent one
    world.run(timing.ABSENT_STORE_S - 15)
    assert other.held(tp) == (0, 0)
    two.start()
    world.until(lambda: other.held(tp) == (20, 100))
