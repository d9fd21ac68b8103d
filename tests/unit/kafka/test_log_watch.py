"""Who waits for a log's changes is woken by them, and by those alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from dafka_core.kafka.log_watch import LogWatch
from dafka_core.records import TopicPartition
from dafka_core.storage import head_changes
from dafka_core.storage.head_changes import HeadChanges

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
    monkeypatch.setattr(head_changes, "MAX_KEPT", 1)

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
