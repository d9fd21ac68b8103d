"""Stores that come late, go, return, and lack what other stores have given up."""

from typing import Any

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.model.log_entries import Forget
from tests.simulation.scripts.script import Script, ScriptedProducer, values


def published(world: Script, count: int, life: str = "", **options: Any) -> ScriptedProducer:
    """A producer that has published records and ended; each ``life`` continues the one before."""
    producer = world.producer("t", life=life, resume=bool(life), ignore_missing=True, **options)
    producer.publish(count)
    producer.flush()
    producer.stop()
    return producer


def test_a_store_that_comes_late_fetches_from_the_producer(world: Script) -> None:
    producer = world.producer("t")
    producer.publish(10)
    world.run(60)  # without any store
    store = world.store()
    producer.flush()
    assert store.values(producer.tp) == values(10)


def test_stores_remember_each_other_until_they_are_forgotten(world: Script) -> None:
    first, second = world.store("first"), world.store("second")
    [met] = world.until(first.log.met)
    assert (met.store, met.endpoint[:6]) == (second.address, "tcp://")
    second.stop()
    world.until(lambda: first.log.met()[0].seen_us > met.seen_us, "its loss is written down")
    first.stop()
    for store in (first, second):
        store.start()
    world.until(lambda: second.address in first.role.known.here)
    with pytest.raises(InvalidRequestError):
        world.result(first.queue.put(Forget(second.address)))
    second.stop()
    world.run(10)
    world.result(first.queue.put(Forget(second.address)))
    assert first.log.met() == []


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
