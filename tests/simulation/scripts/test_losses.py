"""A consumer that requires records which no store has any more: ``on_data_loss``."""

from __future__ import annotations

import pytest

from dafka_core.errors import RecordTooLargeError
from dafka_core.model.records import RecordBatch
from dafka_core.protocol import record_limits
from tests.simulation.scripts.script import Script, ScriptedStore, tp_of, values

TP, UNTRIMMED = tp_of("p"), tp_of("p", "u")


@pytest.fixture
def store(world: Script) -> ScriptedStore:
    """A store that has the records 50 to 100; those before were trimmed."""
    store = world.store()
    store.append(TP, 0, 100)
    assert store.log.trim(TP, 50) == 50
    return store


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
