"""``acks=all`` waits for all reachable stores, and for a majority of three or more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dafka_core import Store, Tower
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.testing import wait_until
from dafka_kafka.gateway_node import Replication

TP = TopicPartition("t", "A" * 32)
OTHER = TopicPartition("other", "B" * 32)


@pytest.fixture
def nodes() -> Iterator[ExitStack]:
    with ExitStack() as nodes:
        yield nodes


@pytest.fixture
def second(store: Store, tower: str, tmp_path: Path, nodes: ExitStack) -> Store:
    second = nodes.enter_context(Store(tmp_path / "second", tower=tower))
    wait_until(lambda: second.address in store.known.endpoints, "the stores know each other")
    return second


def put(store: Store, tp: TopicPartition, count: int = 1) -> int:
    batch = RecordBatch.of(tp, store.log.end(tp), [b"v"] * count)
    return store.append_queue.put(batch).result(30)


def test_records_are_at_the_other_store_when_the_wait_ends(store: Store, second: Store) -> None:
    replication = Replication(store.log, lambda: store.known.endpoints)

    async def write(tp: TopicPartition, count: int) -> None:
        for _ in range(count):
            end = await asyncio.to_thread(put, store, tp)
            assert await replication.wait({tp: end}, 30)
            assert second.log.end(tp) >= end

    async def write_both() -> None:
        await asyncio.gather(write(TP, 20), write(OTHER, 20))

    asyncio.run(write_both())
    replication.close()


def test_without_another_store_nothing_is_waited_for(store: Store) -> None:
    assert asyncio.run(Replication(store.log, lambda: store.known.endpoints).wait({TP: 1}, 0))


def test_what_is_not_there_in_time_is_told(store: Store, second: Store) -> None:
    replication = Replication(store.log, lambda: store.known.endpoints)
    began = time.monotonic()
    assert not asyncio.run(replication.wait({TP: put(store, TP) + 1}, 0.3))
    assert time.monotonic() - began < 5
    replication.close()


def test_other_records_at_the_same_offsets_are_no_copies(
    store: Store, second: Store, tower: str, tmp_path: Path, nodes: ExitStack
) -> None:
    """A store that was cut off has others, of a newer life, which replace this store's."""
    end = put(store, TP)
    wait_until(lambda: second.log.end(TP) == end, "the second store has the record")
    nodes.close()
    wait_until(lambda: not store.known.endpoints)
    free = "tcp://127.0.0.1:0"
    with (
        Tower(sub_address=free, pub_address=free) as other,
        Store(tmp_path / "second", tower=other.tower) as alone,
    ):
        put(alone, TP, 3)
    newer = put(store, TP)
    replication = Replication(store.log, lambda: store.known.endpoints)

    async def wait() -> bool:
        waiting = asyncio.create_task(replication.wait({TP: newer}, 10, 2))
        await asyncio.sleep(0)  # it begins
        await asyncio.to_thread(nodes.enter_context, Store(tmp_path / "second", tower=tower))
        await asyncio.to_thread(wait_until, lambda: store.log.end(TP) == 4)
        return await waiting

    assert not asyncio.run(wait())
    replication.close()


def test_a_store_that_starts_anew_elsewhere_is_asked_there(store: Store, second: Store) -> None:
    where: dict[str, tuple[str, ...]] = {second.address: ("grpc://127.0.0.1:1",)}
    replication = Replication(store.log, lambda: where)

    async def wait() -> bool:
        end = await asyncio.to_thread(put, store, TP)
        waiting = asyncio.create_task(replication.wait({TP: end}, 20))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        where.update(store.known.endpoints)
        return await waiting

    assert asyncio.run(wait())
    replication.close()


def test_a_store_that_goes_away_is_not_waited_for_any_more(
    store: Store, second: Store, nodes: ExitStack
) -> None:
    replication = Replication(store.log, lambda: store.known.endpoints)

    async def wait() -> bool:
        waiting = asyncio.create_task(replication.wait({TP: 1_000}, 60))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await asyncio.to_thread(nodes.close)
        return await waiting

    assert asyncio.run(wait())
    replication.close()


def test_too_few_copies_are_waited_for_until_more_stores_are_reachable(
    store: Store, second: Store
) -> None:
    where: dict[str, tuple[str, ...]] = {}
    replication = Replication(store.log, lambda: where)

    async def wait() -> bool:
        end = await asyncio.to_thread(put, store, TP)
        assert await replication.wait({TP: end}, 0)
        assert not await replication.wait({TP: end}, 0.3, 2)
        waiting = asyncio.create_task(replication.wait({TP: end}, 20, 2))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        where.update(store.known.endpoints)
        return await waiting

    assert asyncio.run(wait())
    replication.close()


def test_a_copy_counts_although_its_store_has_gone_away_since(
    store: Store, second: Store, nodes: ExitStack
) -> None:
    locations = {**store.known.endpoints, "C" * 32: ("grpc://127.0.0.1:1",)}
    replication = Replication(store.log, lambda: locations)

    async def wait() -> bool:
        end = await asyncio.to_thread(put, store, TP)
        waiting = asyncio.create_task(replication.wait({TP: end}, 20, 2))
        await asyncio.sleep(0)
        reported = replication._followed[second.address]
        await asyncio.to_thread(wait_until, lambda: not reported._waits)
        locations.clear()
        return await waiting

    assert asyncio.run(wait())
    replication.close()
