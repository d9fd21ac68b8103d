"""Committed offsets on a store's disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dafka_core import Store
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.kafka.gateway_node import GatewayNode
from dafka_core.kafka.gateways import Gateways
from dafka_core.kafka.groups import offset_log
from dafka_core.kafka.groups.group_records import (
    OFFSETS_TOPIC,
    Committed,
    Generation,
    GroupRecord,
    KeptMember,
)
from dafka_core.kafka.groups.offset_log import OffsetLog
from dafka_core.kafka.kafka_options import KafkaOptions
from dafka_core.kafka.partition_numbers import PartitionNumbers
from dafka_core.kafka.replication import Replication
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.testing import wait_until
from dafka_core.values import Values

OTHER = TopicPartition(OFFSETS_TOPIC, "B" * 32)

Run = Callable[[Callable[[OffsetLog], Awaitable[None]]], OffsetLog]


@pytest.fixture
def node(store: Store) -> Iterator[GatewayNode]:
    with ThreadPoolExecutor(2) as threads:
        gateways = Gateways(store, "127.0.0.1", 1)
        numbers = PartitionNumbers(store, gateways)
        yield GatewayNode(store, KafkaOptions(), numbers, gateways, threads)


@pytest.fixture
def run(node: GatewayNode) -> Run:
    """Lets a gateway that has just started do something with what is on disk."""

    def run(work: Callable[[OffsetLog], Awaitable[None]]) -> OffsetLog:
        async def running() -> OffsetLog:
            log = OffsetLog(node)
            await log.catch_up()
            await work(log)
            await log.close()
            return log

        return asyncio.run(running())

    return run


def commit(log: OffsetLog, offset: int, number: int = 0, group: str = "g") -> GroupRecord:
    return GroupRecord(group, log.offsets.next_counter(), (Committed("t", number, offset),))


async def nothing(log: OffsetLog) -> None:
    """Only reads."""


def positions(log: OffsetLog, group: str = "g") -> list[int]:
    return [each.offset for each in log.offsets.committed(group).values()]


def append(store: Store, tp: TopicPartition, *values: bytes) -> None:
    batch = RecordBatch(tp, store.log.end(tp), Values.of(list(values)))
    store.append_queue.put(batch).result(30)


def test_what_was_committed_is_there_after_a_restart(run: Run) -> None:
    async def work(log: OffsetLog) -> None:
        await log.write([commit(log, 5)])
        # Many at the same time go to disk together, in their order.
        await asyncio.gather(*(log.write([commit(log, each, 1)]) for each in range(3_000)))

    assert positions(run(work)) == [5, 2_999]
    again = run(nothing)
    assert positions(again) == [5, 2_999]
    assert again.offsets.next_counter() == 3_002


def test_a_generation_is_kept_with_its_octets(run: Run) -> None:
    member = KeptMember("m", 6_000, 6_000, (("range", bytes(range(256))),), b"\xff\0")
    generation = Generation(7, "consumer", "range", "m", (member,))

    async def work(log: OffsetLog) -> None:
        await log.write([GroupRecord("g", 1, generation=generation)])

    run(work)
    assert run(nothing).offsets.generation("g") == generation


def test_another_gateways_records_are_followed(store: Store, run: Run) -> None:
    async def work(log: OffsetLog) -> None:
        await log.write([commit(log, 5)])
        newer = GroupRecord("g", 9, (Committed("t", 0, 3),))
        await asyncio.to_thread(append, store, OTHER, b"not a record", newer.packed())
        assert positions(log) == [5]
        await log.catch_up()
        assert positions(log) == [3]
        await log.write([commit(log, 4)])

    log = run(work)
    assert positions(log) == [4]
    assert log.offsets.next_counter() == 11


def test_what_does_not_count_any_more_is_given_up(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_log, "LEAST_REPEATED", 100)

    async def work(log: OffsetLog) -> None:
        for each in range(450):
            await log.write([commit(log, each, each % 7)])
        await log.write([commit(log, 1, group="gone")])
        await log.write([GroupRecord("gone", log.offsets.next_counter(), deleted=True)])

    kept = run(work)
    info = store.log.info(kept.own)
    assert info is not None
    assert info.end - info.earliest < 150
    assert positions(run(nothing)) == positions(kept) == [448, 449, 443, 444, 445, 446, 447]
    assert [*run(nothing).offsets.groups()] == ["g"]


def test_a_group_that_is_gone_is_forgotten_where_others_have_written_of_it(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_log, "LEAST_REPEATED", 20)
    theirs = GroupRecord("gone", 1, (Committed("t", 0, 1),))
    append(store, OTHER, theirs.packed())

    async def work(log: OffsetLog) -> None:
        async def until_repeated() -> int:
            for each in range(25):
                await log.write([commit(log, each)])
            assert [*log.offsets.groups()] == ["g"]
            return len(log.offsets.repeated(log.own.partition))

        await log.write([GroupRecord("gone", log.offsets.next_counter(), deleted=True)])
        assert await until_repeated() == 2  # the other one's is there
        await asyncio.to_thread(append, store, OTHER, GroupRecord(repeats=1).packed())
        await log.catch_up()
        assert await until_repeated() == 1
        assert [*log.offsets._groups] == ["g"]

    assert [*run(work).offsets.groups()] == ["g"]
    assert [*run(nothing).offsets.groups()] == ["g"]


def test_other_stores_give_up_what_was_written_again(store: Store, run: Run) -> None:
    old, new = GroupRecord("g", 1, (Committed("t", 0, 1),)), GroupRecord("h", 2, deleted=True)
    values = [old.packed(), new.packed(), old.packed(), GroupRecord(repeats=2).packed()]
    append(store, OTHER, *values)
    assert positions(run(nothing)) == [1]
    info = store.log.info(OTHER)
    assert info is not None
    assert (info.earliest, info.end) == (2, 4)
    # One that speaks of what is yet to come is none.
    append(store, OTHER, GroupRecord(repeats=50).packed())
    run(nothing)


def test_a_commit_that_is_too_large_fails_alone(
    node: GatewayNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.store.append_queue, "_max_record_bytes", 4_096)

    async def work() -> None:
        log = OffsetLog(node)
        large = Committed("t", 0, 1, metadata="x" * 5_000)
        found = await asyncio.gather(
            log.write([commit(log, 1)]),
            log.write([GroupRecord("g", 2, (large,))]),
            log.write([commit(log, 3, 1)]),
            return_exceptions=True,
        )
        assert [type(each) for each in found] == [type(None), InvalidRequestError, type(None)]
        assert positions(log) == [1, 3]
        await log.close()

    asyncio.run(work())


def test_a_commit_waits_for_the_other_stores(
    node: GatewayNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_log, "REPLICATE_S", 0.5)
    store = node.store

    async def work() -> None:
        log = OffsetLog(node)
        with Store(tmp_path / "other", tower=store.options.tower) as other:
            await asyncio.to_thread(wait_until, lambda: other.address in store.endpoints)
            for each in range(20):
                await log.write([commit(log, each)])
                assert other.log.end(log.own) == each + 1
            # One that is there and does not take it.
            monkeypatch.setattr(Replication, "wait", nobody_answers)
            with pytest.raises(TimeoutError, match="before offset 21"):
                await log.write([commit(log, 99)])
        await log.close()

    async def nobody_answers(self: Replication, ends: object, timeout_s: float) -> bool:
        return False

    asyncio.run(work())


def test_a_store_that_has_ended_takes_no_commit(store: Store, node: GatewayNode) -> None:
    async def work() -> None:
        log = OffsetLog(node)
        await log.write([commit(log, 1)])
        await asyncio.to_thread(store.close)
        with pytest.raises(DafkaError):
            await log.write([commit(log, 2)])
        await log.close()

    asyncio.run(work())
