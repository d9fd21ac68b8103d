"""``acks=all`` waits for all reachable stores, and for a majority of three or more.

Consumers read what enough stores have.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core import Store, Tower
from dafka_core.errors import ClosedError
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.testing import wait_until
from dafka_kafka import replication as replication_module
from dafka_kafka.registry_table import REGISTRY, Lead
from dafka_kafka.replication import Replication

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


@pytest.fixture
def replication(store: Store) -> Iterator[Replication]:
    with closing(Replication(store.log, lambda: store.known)) as replication:
        yield replication


def known_at(where: dict[str, tuple[str, ...]]) -> Callable[[], Any]:
    """Return a function that returns stores at these locations."""
    return lambda: SimpleNamespace(endpoints=where, names=tuple(where))


def put(store: Store, tp: TopicPartition, count: int = 1) -> int:
    batch = RecordBatch.of(tp, store.log.end(tp), [b"v"] * count)
    end: int = store.append_queue.put(batch).result(30)
    return end


def waited(
    replication: Replication,
    end: int,
    meanwhile: Callable[[], object],
    copies: int = 1,
    timeout_s: float = 30,
) -> bool:
    """Wait for copies, and do something meanwhile, without which the wait does not end."""

    async def wait() -> bool:
        waiting = asyncio.create_task(replication.wait({TP: end}, timeout_s, copies))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await asyncio.to_thread(meanwhile)
        return await waiting

    return asyncio.run(wait())


def test_records_are_at_the_other_store_when_the_wait_ends(
    store: Store, second: Store, replication: Replication
) -> None:
    async def write(tp: TopicPartition, count: int) -> None:
        for _ in range(count):
            end = await asyncio.to_thread(put, store, tp)
            assert await replication.wait({tp: end}, 30)
            assert second.log.end(tp) >= end

    async def write_both() -> None:
        await asyncio.gather(write(TP, 20), write(OTHER, 20))

    asyncio.run(write_both())


def test_what_is_not_there_in_time_is_told(
    store: Store, second: Store, replication: Replication
) -> None:
    assert not asyncio.run(replication.wait({TP: put(store, TP) + 1}, 0.3))


def test_other_records_at_the_same_offsets_are_no_copies(
    store: Store,
    second: Store,
    tower: str,
    tmp_path: Path,
    nodes: ExitStack,
    replication: Replication,
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

    def meet() -> None:
        nodes.enter_context(Store(tmp_path / "second", tower=tower))
        wait_until(lambda: store.log.end(TP) == 4)

    assert not waited(replication, put(store, TP), meet, 2, timeout_s=10)


def test_a_store_that_starts_anew_elsewhere_is_asked_there(store: Store, second: Store) -> None:
    where: dict[str, tuple[str, ...]] = {second.address: ("grpc://127.0.0.1:1",)}
    with closing(Replication(store.log, known_at(where))) as replication:
        assert waited(replication, put(store, TP), lambda: where.update(store.known.endpoints))


def test_a_store_that_goes_away_is_not_waited_for_any_more(
    second: Store, nodes: ExitStack, replication: Replication
) -> None:
    assert waited(replication, 1_000, nodes.close)


def test_too_few_copies_are_waited_for_until_more_stores_are_reachable(
    store: Store, second: Store
) -> None:
    where: dict[str, tuple[str, ...]] = {}
    end = put(store, TP)
    with closing(Replication(store.log, known_at(where))) as replication:
        assert asyncio.run(replication.wait({TP: end}, 0))
        assert not asyncio.run(replication.wait({TP: end}, 0.3, 2))
        assert waited(replication, end, lambda: where.update(store.known.endpoints), 2)


def test_a_copy_counts_although_its_store_has_gone_away_since(store: Store, second: Store) -> None:
    locations = {**store.known.endpoints, "C" * 32: ("grpc://127.0.0.1:1",)}
    replication = Replication(store.log, known_at(locations))

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


def test_consumers_read_what_enough_stores_have(
    store: Store,
    second: Store,
    tower: str,
    tmp_path: Path,
    nodes: ExitStack,
    replication: Replication,
) -> None:
    third = Store(tmp_path / "third", tower=tower)
    nodes.callback(third.close)
    wait_until(lambda: len(store.known.endpoints) == 2)
    reported: set[TopicPartition] = set()
    replication.on_reported = reported.update

    def watermark(copies: int) -> int | None:
        return replication.watermark(TP, store.log.end(TP), copies)

    put(store, TP, 5)
    assert watermark(1) == 5
    wait_until(lambda: watermark(2) == watermark(3) == 5)
    assert watermark(4) is None
    assert reported >= {TP}
    third.close()
    wait_until(lambda: len(store.known.endpoints) == 1)
    put(store, TP, 2)
    wait_until(lambda: watermark(2) == 7)
    assert watermark(3) == 5  # the third one's disk still has them
    nodes.close()
    wait_until(lambda: not store.known.endpoints)
    put(store, TP)
    assert [watermark(copies) for copies in (1, 2, 3)] == [8, 7, 5]
    back = nodes.enter_context(Store(tmp_path / "third", tower=tower))
    wait_until(lambda: watermark(2) == 8)
    assert back.log.end(TP) == 8


def test_consumers_do_not_read_records_of_which_other_stores_have_others(
    store: Store, second: Store, replication: Replication
) -> None:
    wait_until(lambda: store.address in second.known.endpoints)
    end = put(store, TP, 5)
    wait_until(lambda: replication.watermark(TP, end, 2) == 5)
    heads = replication._followed[second.address].heads
    with replication._followed[second.address].lock:
        heads[TP] = heads[TP]._replace(end=9, life=EpochId(1, 1, 1))  # of an older life
    assert replication.watermark(TP, end, 2) == 0


def test_copies_count_for_a_leader_if_voting_stores_know_no_newer_one(
    store: Store, second: Store
) -> None:
    newer_at: list[PartitionInfo | None] = []  # this store's registry is None there
    table = SimpleNamespace(leads={"A": "B"})
    registry: Any = SimpleNamespace(confirms=lambda lead, head: head not in newer_at, table=table)
    replication = Replication(store.log, lambda: store.known, registry=registry)
    lead = Lead(store.address, store.address, EpochId(5, 5, 2), (store.address, second.address))
    end = put(store, TP)

    def is_acknowledged(lead: Lead) -> bool:
        return asyncio.run(replication.wait({TP: end}, 0.5, 2, lead))

    assert not is_acknowledged(lead)  # the other store's registry is unknown
    put(store, REGISTRY)
    wait_until(lambda: replication.watermark(TP, end, 2, lead) == end)
    assert is_acknowledged(lead)
    others = lead._replace(stores=("B" * 32, second.address))
    assert not is_acknowledged(others)
    assert replication.watermark(TP, end, 2, others) is None
    newer_at.append(second.log.info(REGISTRY))
    assert not is_acknowledged(lead)
    assert replication.watermark(TP, end, 2, lead) is None
    replication.close()


def test_without_leaders_other_stores_report_only_the_topics_that_are_waited_for(
    store: Store, second: Store
) -> None:
    table = SimpleNamespace(leads={})
    registry: Any = SimpleNamespace(confirms=lambda lead, head: True, table=table)
    replication = Replication(store.log, lambda: store.known, registry=registry)
    ends = {tp: put(store, tp) for tp in (TP, OTHER)}
    assert asyncio.run(replication.wait({TP: ends[TP]}, 10, 2))
    followed = replication._followed[second.address]
    assert followed.heads.keys() == {TP}
    assert asyncio.run(replication.wait({OTHER: ends[OTHER]}, 10, 2))
    assert followed.heads.keys() == {TP, OTHER}
    put(store, REGISTRY)
    table.leads = {"A": "B"}
    wait_until(lambda: replication.watermark(REGISTRY, 1, 2) == 1)
    replication.close()


def test_an_error_of_the_log_does_not_end_a_thread(
    store: Store, second: Store, replication: Replication
) -> None:
    errors = [ClosedError("store's log")]

    def has(heads: object) -> bool:
        if heads and errors:
            raise errors.pop()
        return bool(heads)

    put(second, TP)
    [endpoints] = store.known.endpoints.items()
    replication._follow(*endpoints).wait(has, {TP.topic}).result(30)
    assert not errors


def test_an_unused_thread_ends_and_begins_again(
    store: Store, second: Store, monkeypatch: pytest.MonkeyPatch, replication: Replication
) -> None:
    monkeypatch.setattr(replication_module, "IDLE_S", 0.1)
    for count in range(1, 4):
        end = put(store, TP)
        wait_until(lambda: second.log.end(TP) == end)  # noqa: B023 -- it is called now
        wait_until(lambda: replication.watermark(TP, end, 2) == count)  # noqa: B023
        followed = replication._followed[second.address]
        wait_until(lambda: followed._thread is None)  # noqa: B023
