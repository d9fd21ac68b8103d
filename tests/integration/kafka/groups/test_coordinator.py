"""Groups that a gateway takes over, and gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.storage.retention import StoreClock
from dafka_core.testing import wait_until
from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import GatewayNode, Replication
from dafka_kafka.gateways import GatewayInfo, Gateways
from dafka_kafka.groups import coordinator
from dafka_kafka.groups.coordinator import OffsetLog, wait_for_others
from dafka_kafka.groups.group import Generation, Joining, KeptMember
from dafka_kafka.groups.offsets import OFFSETS_TOPIC, Committed, GroupRecord
from dafka_kafka.options import KafkaOptions
from dafka_kafka.partition_registry import PartitionRegistry
from tests.integration.kafka.fixed_node import ELSEWHERE, FixedGateways
from tests.integration.kafka.groups.asking import Asking, asking


def running(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def beat(client: Asking, name: str, generation: int = 1) -> int:
    members: dict[str, Any] = {"group_id": "g", "generation_id": generation, "member_id": name}
    answer = await client.ask(Api.HEARTBEAT, **members, group_instance_id=None)
    code: int = answer.error_code
    return code


def test_a_silent_member_is_given_up_in_time(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            first = await client.join(session_timeout_ms=300)
            await client.join(first.member_id, session_timeout_ms=300)
            assert (await client.ask(Api.LIST_GROUPS)).groups
            while (await client.ask(Api.LIST_GROUPS)).groups:
                await asyncio.sleep(0.05)

    running(work())


def test_who_has_left_is_not_there_before_that_is_on_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        disk_is_free = asyncio.Event()

        async def put_later(records: Sequence[GroupRecord]) -> int:
            await disk_is_free.wait()
            return await put(records)

        async with asking(store) as client:
            name = await client.member()
            log = client.groups._coordinator.log
            while log.offsets.generation("g") is None:
                await asyncio.sleep(0.01)
            put = log._put
            monkeypatch.setattr(log, "_put", put_later)
            kind: Any = schemas.LeaveGroupRequest.MemberIdentity
            members = [kind(member_id=name, group_instance_id=None)]
            left = await client.ask(Api.LEAVE_GROUP, group_id="g", members=members)
            assert left.members[0].error_code == 0
            kept = log.offsets.generation("g")
            assert kept is not None
            assert kept.members  # on disk it still exists
            found = await client.ask(Api.DESCRIBE_GROUPS, groups=["g"])
            assert (found.groups[0].group_state, found.groups[0].members) == ("Empty", [])
            again = await client.ask(Api.LIST_GROUPS)
            assert [each.group_state for each in again.groups] == ["Empty"]
            disk_is_free.set()
            while client.groups._coordinator._groups:  # forgotten once that is on disk
                await asyncio.sleep(0.01)
            assert not (await client.ask(Api.LIST_GROUPS)).groups

    running(work())


def test_another_gateway_goes_on_with_a_group(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            name = await client.member()
            member: dict[str, Any] = {"member_id": name, "generation_id_or_member_epoch": 1}
            assert await client.commit(5, **member) == [0]
            # Its members are stored beside its commits.
            log = client.groups._coordinator.log
            while log.offsets.generation("g") is None:
                await asyncio.sleep(0.01)
        async with asking(store) as client:
            assert await beat(client, name) == 0
            assert await client.commit(6, **member) == [0]
            assert await client.committed() == {("t", 0): 6}

    running(work())


def test_a_group_that_moves_away_has_its_clients_ask_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with asking(store) as client:
            name = await client.member()
            waiting = asyncio.ensure_future(client.join(version=0))
            await asyncio.sleep(0)

            def moved(self: FixedGateways, key: str) -> GatewayInfo:
                return ELSEWHERE

            monkeypatch.setattr(FixedGateways, "chosen", moved)
            assert await beat(client, name) == KafkaError.NOT_COORDINATOR
            assert (await waiting).error_code == KafkaError.NOT_COORDINATOR

    running(work())


def test_a_gateway_reads_before_it_answers_when_others_come_or_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5)
            name = await client.member()
            monkeypatch.setattr(FixedGateways, "live", lambda self: [self.own])
            loading = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
            assert (await client.fetch([0])).error_code in (0, loading)
            assert (await client.join(group_id="new")).error_code == loading
            assert await beat(client, name) == 0  # a group of this gateway continues
            while (await client.join(group_id="new")).error_code == loading:
                await asyncio.sleep(0.01)
            assert await client.committed() == {("t", 0): 5}

    running(work())


def test_there_are_so_many_groups_and_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_GROUPS", 2)

    async def work() -> None:
        async with asking(store) as client:
            assert await client.commit(5, group_id="a") == [0]
            assert (await client.join(group_id="b", version=0)).error_code == 0
            full = KafkaError.GROUP_MAX_SIZE_REACHED
            assert await client.commit(5, group_id="c") == [full]
            assert (await client.join(group_id="d")).error_code == full
            assert await client.commit(6, group_id="a") == [0]

    running(work())


def _committed(coordinating: coordinator.Coordinator, group: str, hours_ago: float) -> GroupRecord:
    time_ms = time.time_ns() // 1_000_000 - int(hours_ago * 3_600_000)
    commits = (Committed("t", 0, 5, time_ms=time_ms),)
    return GroupRecord(group, coordinating.offsets.next_counter(), commits)


def test_a_group_that_is_not_used_for_long_is_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "EXPIRE_S", 0.02)

    async def work() -> None:
        async with asking(store, offsets_retention_minutes=60) as client:
            coordinating = client.groups._coordinator
            offsets = coordinating.offsets
            await client.member()
            used = {"g": 2.0, "new": 0.5, "old": 2.0, "gone elsewhere": 2.0}
            records = [_committed(coordinating, *each) for each in used.items()]
            await coordinating.log.write(records)
            while offsets.is_there("old"):
                await asyncio.sleep(0.01)
            # One of them has members, and one belongs to another gateway.
            assert {*offsets.groups()} == {"g", "new", "gone elsewhere"}
            assert await client.committed() == {("t", 0): 5}
        async with asking(store) as client:
            assert not client.groups._coordinator.offsets.is_there("old")

    running(work())


def test_no_group_is_deleted_by_a_clock_that_has_jumped_ahead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "EXPIRE_S", 0.02)

    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5)
            wrong_us = 30 * 86_400_000_000
            ahead = StoreClock(store.log.now_us(), lambda: time.time_ns() // 1_000 + wrong_us)
            monkeypatch.setattr(store.log, "clock", ahead)
            monkeypatch.setattr(store.log, "now_us", ahead.now_us)
            assert ahead.doubt()
            await client.groups._coordinator._expire()
            assert await client.committed() == {("t", 0): 5}


def test_what_was_committed_by_a_clock_far_behind_is_not_deleted_when_it_is_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "EXPIRE_S", 0.02)
    wall_us = [946_684_800_000_000]  # 2000-01-01
    clock = StoreClock(time.time_ns() // 1_000, lambda: wall_us[0])
    monkeypatch.setattr(store.log, "clock", clock)
    monkeypatch.setattr(store.log, "now_us", clock.now_us)

    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5)
            wall_us[0] = time.time_ns() // 1_000
            assert not clock.doubt()
            await client.groups._coordinator._expire()
            assert await client.committed() == {("t", 0): 5}

    running(work())


OTHER = TopicPartition(OFFSETS_TOPIC, "B" * 32)

Run = Callable[[Callable[[OffsetLog], Awaitable[None]]], OffsetLog]


@pytest.fixture
def node(store: Store) -> Iterator[GatewayNode]:
    with ThreadPoolExecutor(2) as threads:
        gateways = Gateways(store, "127.0.0.1", 1)
        numbers = PartitionRegistry(store, gateways)
        yield GatewayNode(store, KafkaOptions(), numbers, gateways, threads)


@pytest.fixture
def run(node: GatewayNode) -> Run:
    """Let a gateway that has just started process the stored records."""

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
    """Only read."""


def positions(log: OffsetLog, group: str = "g") -> list[int]:
    return [each.offset for each in log.offsets.committed(group).values()]


def append(store: Store, tp: TopicPartition, *values: bytes) -> None:
    batch = RecordBatch(tp, store.log.end(tp), Values.of(list(values)))
    store.append_queue.put(batch).result(30)


def test_what_was_committed_is_there_after_a_restart(run: Run) -> None:
    async def work(log: OffsetLog) -> None:
        await log.write([commit(log, 5)])
        # Concurrent writes share an append, in order.
        await asyncio.gather(*(log.write([commit(log, each, 1)]) for each in range(3_000)))

    assert positions(run(work)) == [5, 2_999]
    again = run(nothing)
    assert positions(again) == [5, 2_999]
    assert again.offsets.next_counter() == 3_002


def test_a_generation_is_kept_with_its_octets(run: Run) -> None:
    joined = Joining("m", (("range", bytes(range(256))),), 6.0, 6.0)
    member = KeptMember("m", joined, b"\xff\0")
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
    monkeypatch.setattr(coordinator, "LEAST_REPEATED", 100)

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
    monkeypatch.setattr(coordinator, "LEAST_REPEATED", 20)
    theirs = GroupRecord("gone", 1, (Committed("t", 0, 1),))
    append(store, OTHER, theirs.packed())

    async def work(log: OffsetLog) -> None:
        async def until_repeated() -> int:
            for each in range(25):
                await log.write([commit(log, each)])
            assert [*log.offsets.groups()] == ["g"]
            return len(log.offsets.repeated(log.own.partition))

        await log.write([GroupRecord("gone", log.offsets.next_counter(), deleted=True)])
        assert await until_repeated() == 2  # the other's exists
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
    # A marker with a future offset is invalid.
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
    monkeypatch.setattr(coordinator, "REPLICATE_S", 0.5)
    store = node.store

    async def work() -> None:
        log = OffsetLog(node)
        with Store(tmp_path / "other", tower=store.options.tower) as other:
            await asyncio.to_thread(wait_until, lambda: other.address in store.known.endpoints)
            for each in range(20):
                await log.write([commit(log, each)])
                assert other.log.end(log.own) == each + 1
            # A reachable store that does not receive it.
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


def test_what_another_store_has_is_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_others(store)  # no other store exists
    with Store(tmp_path / "other", tower=store.options.tower) as other:
        tp = TopicPartition(OFFSETS_TOPIC, other.address)
        batch = RecordBatch(tp, 0, Values.of([b"a", b"b"]))
        other.append_queue.put(batch).result(30)
        wait_until(lambda: other.address in store.known.here, "the stores meet")
        wait_for_others(store)
        assert store.log.end(tp) == 2
        # The wait for missing records is bounded.
        monkeypatch.setattr(coordinator, "WAIT_S", 0.1)
        monkeypatch.setattr(coordinator, "ends_at_others", lambda store: {tp: 3})
        wait_for_others(store)
