"""A consumer that requires records which no store has any more: ``on_data_loss``."""

from __future__ import annotations

import pytest

from dafka_core.config.node_options import WAIT
from dafka_core.errors import RecordTooLargeError
from dafka_core.model.records import RecordBatch
from dafka_core.protocol import record_limits, timing
from tests.simulation.scripts.script import Script, ScriptedStore, tp_of, values

TP, UNTRIMMED = tp_of("p"), tp_of("p", "u")


@pytest.fixture
def store(world: Script) -> ScriptedStore:
    """A store that has the records 50 to 100; those before were trimmed."""
    store = world.store()
    store.append(TP, 0, 100)
    assert store.log.trim(TP, 50) == 50
    return store


def test_a_loss_is_reported_again_while_other_partitions_continue(
    world: Script, store: ScriptedStore
) -> None:
    store.append(tp_of("q", "other"), 0, 10)
    consumer = world.consumer("t", "other", start={})
    world.until(lambda: len(consumer.losses) == 2)
    assert {(each.tp, each.start, each.end, each.available) for each in consumer.losses} == {
        (TP, 0, 50, 50)
    }
    assert consumer.values() == values(10)
    consumer.seek(TP, 50)
    consumer.wait_for(*values(10), *values(50, 50))


def test_records_before_a_gap_are_delivered(world: Script, store: ScriptedStore) -> None:
    """The consumer has no room, and the store trims the rest."""
    store.append(UNTRIMMED, 0, 10_000)
    consumer = world.consumer("u", max_queued=100)
    taken = len(world.until(consumer.values))
    store.log.trim(UNTRIMMED, 9_990)
    consumer.max_queued = 0
    consumer.mesh.wake(world.world.now)
    [loss] = world.until(lambda: consumer.losses)
    assert consumer.values() == values(taken)
    assert (loss.start, loss.end, loss.available) == (taken, 9_990, 9_990)


def test_wait_reports_a_loss_once_and_continues_when_a_store_has_the_records(
    world: Script, store: ScriptedStore
) -> None:
    store.append(UNTRIMMED, 0, 100)
    other = world.store("other")
    world.until(lambda: other.held(UNTRIMMED) == (0, 100))
    other.stop()
    store.log.trim(UNTRIMMED, 50)
    consumer = world.consumer("u", start={}, on_data_loss=WAIT)
    world.run(3 * timing.ABSENT_STORE_S)
    assert len(consumer.losses) == 1
    assert consumer.values() == []
    other.start()
    consumer.wait_for(*values(100))
    assert len(consumer.losses) == 1


def test_records_of_a_store_that_is_gone_are_lost(world: Script, store: ScriptedStore) -> None:
    store.append(UNTRIMMED, 0, 10_000)
    consumer = world.consumer("u", max_queued=100)
    taken = len(world.until(consumer.values))
    store.stop()
    consumer.max_queued = 0
    consumer.mesh.wake(world.world.now)
    [loss] = world.until(lambda: consumer.losses)
    assert (loss.start, loss.end, loss.available) == (taken, 10_000, None)
    assert "no store is reachable" in loss.why


def test_a_lost_fetch_is_repeated(world: Script, store: ScriptedStore) -> None:
    """Nothing that it asks arrives, for longer than any first retry."""
    consumer = world.consumer("t", start={"t": {TP.partition: 90}})
    consumer.wait_for(*values(10, 90))
    store.append(TP, 100, 5)
    consumer.wait_for(*values(15, 90))
    world.network.blocks[consumer.name, store.name] = (world.world.now + 20, "lost")
    consumer.seek(TP, 60)
    world.until(lambda: consumer.values()[15:] == values(45, 60))


def test_a_record_above_a_consumers_limit_does_not_stop_other_partitions(
    world: Script, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_limits, "LEAST_BYTES", 1)
    tps = [tp_of("large", "u"), tp_of("small", "u")]
    contents = [[b"x" * 200, b"next"], values(3)]
    for tp, content in zip(tps, contents, strict=True):
        world.result(store.submit(RecordBatch.of(tp, 0, content)))
    consumer = world.consumer("u", limit_bytes=100)
    world.until(lambda: len(consumer.values()) == 4)
    assert [consumer.values(tp) for tp in tps] == [[b"next"], values(3)]
    [error] = [each for each in consumer.delivered if isinstance(each, RecordTooLargeError)]
    assert (error.offset, error.size_bytes, error.limit_bytes) == (0, 200, 100)
    assert consumer.role.positions()[tps[0]] == (2, 2)
    assert world.world.faults["record too large"] == 0  # no connection was ended


def test_two_consumers_read_topics_that_are_prefixes_of_each_other(
    world: Script, store: ScriptedStore
) -> None:
    topics = ("a", "ab", "abc")
    for topic in topics:
        store.append(tp_of(topic, topic), 0, 3)
    both, latest = world.consumer("a", "ab"), world.consumer("ab", name="latest", start="latest")
    world.until(lambda: len(both.values()) == 6)
    both.unsubscribe("a")
    world.until(latest.role.positions)
    for topic in topics:
        store.append(tp_of(topic, topic), 3, 2)
    latest.wait_for(b"3", b"4")
    world.until(lambda: len(both.values()) == 8)
    assert both.by_partition()[tp_of("ab", "ab")] == values(5)
    both.subscribe("a")  # which begins again
    world.until(lambda: len(both.values()) == 13)
