"""The size of a Fetch response."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage import environment
from dafka_core.storage.environment import HeadChanges
from dafka_kafka.fetch import (
    BATCH_BYTES,
    LEAST_BATCH_BYTES,
    RECORD_BYTES,
    FetchLimits,
    LogWatch,
    most_records,
)

EACH = 100 + RECORD_BYTES


def hundreds(count: int) -> Values:
    return Values.of([b"x" * 100] * count)


def test_partitions_share_what_there_is_in_their_order() -> None:
    limits = FetchLimits(100_000)
    assert limits.room(60_000) == 60_000
    limits.take(60_000)
    assert limits.room(60_000) == 40_000
    limits.take(40_000)
    assert limits.room(60_000) == 0


@pytest.mark.parametrize("max_bytes", [0, -1, 1, 50])
def test_the_first_with_records_gives_a_batch_however_little_is_asked_for(max_bytes: int) -> None:
    limits = FetchLimits(max_bytes)
    room = limits.room(max_bytes)
    assert limits.fitting(hundreds(300), room) == (LEAST_BATCH_BYTES - BATCH_BYTES) // EACH
    assert limits.fitting(Values.of([bytes(LEAST_BATCH_BYTES)] * 2), room) == 1
    limits.take(150)
    assert limits.room(1_000) == 0
    assert limits.fitting(hundreds(3), 50) == 0


@pytest.mark.parametrize("more", [-1, 0, 1, EACH - 1, EACH])
def test_records_fit_with_what_is_around_them(more: int) -> None:
    limits = FetchLimits(10_000)
    count = limits.fitting(hundreds(30), BATCH_BYTES + 3 * EACH + more)
    assert count == 3 + more // EACH


def test_a_slice_of_values_counts_alone() -> None:
    values = Values.of([b"x" * 1_000] * 5 + [b"y"] * 5)[5:]
    values.columns()
    assert FetchLimits(10_000).fitting(values, BATCH_BYTES + 3 * (1 + RECORD_BYTES)) == 3


def test_empty_records_are_bounded_too() -> None:
    assert most_records(1) == 1
    assert most_records(7_000_000) == 1_000_001


A, B, C = (TopicPartition("t", name) for name in "ABC")
PATIENCE_S = 30


def in_other_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_only_who_waits_for_what_has_changed_is_woken() -> None:
    async def scenario() -> None:
        changes = HeadChanges()
        changes.add([A])
        watch = LogWatch(changes)
        with watch.waiting([A, B]) as both, watch.waiting([C]) as other:
            assert not both.woken.is_set()
            in_other_thread(lambda: changes.add([A]))
            in_other_thread(lambda: changes.add([B, TopicPartition("u", "A")]))
            await asyncio.wait_for(both.woken.wait(), PATIENCE_S)
            assert both.take() == {A, B}
            assert not both.woken.is_set()
            assert not other.woken.is_set()
            changes.add([C])
            await asyncio.wait_for(other.woken.wait(), PATIENCE_S)
            assert other.take() == {C}
            assert both.take() == set()
        assert watch._waits == {}
        watch.close()
        assert changes._watchers == {}

    asyncio.run(scenario())


def test_two_waits_for_one_partition_are_apart() -> None:
    async def scenario() -> None:
        changes = HeadChanges()
        watch = LogWatch(changes)
        with watch.waiting([A, A]) as one:
            with watch.waiting([A]):
                pass
            changes.add([A])
            await asyncio.wait_for(one.woken.wait(), PATIENCE_S)
        assert watch._waits == {}

    asyncio.run(scenario())


def test_more_changes_than_are_remembered_wake_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAX_KEPT_CHANGES", 1)

    async def scenario() -> None:
        changes = HeadChanges()
        watch = LogWatch(changes)
        with watch.waiting([A]) as one, watch.waiting([B]) as other:
            for tp in (A, B, C):
                changes.add([tp])
            await asyncio.wait_for(one.woken.wait(), PATIENCE_S)
            await asyncio.wait_for(other.woken.wait(), PATIENCE_S)
            assert (one.take(), other.take()) == ({A}, {B})

    asyncio.run(scenario())


def test_a_writer_does_not_fail_when_the_loop_has_ended() -> None:
    changes = HeadChanges()

    async def scenario() -> LogWatch:
        return LogWatch(changes)

    watch = asyncio.run(scenario())
    changes.add([A])
    watch.close()
