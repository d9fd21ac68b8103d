"""Groups that come to a gateway, and leave it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.kafka import schemas
from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.gateways import GatewayInfo
from dafka_core.kafka.groups import coordinator
from dafka_core.kafka.groups.group_records import Committed, GroupRecord
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.storage.store_clock import StoreClock
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


def test_who_has_left_is_not_there_before_that_is_on_disk(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            name = await client.member()
            log = client.groups._coordinator.log
            while log.offsets.generation("g") is None:
                await asyncio.sleep(0.01)
            kind: Any = schemas.LeaveGroupRequest.MemberIdentity
            members = [kind(member_id=name, group_instance_id=None)]
            left = await client.ask(Api.LEAVE_GROUP, group_id="g", members=members)
            assert left.members[0].error_code == 0
            kept = log.offsets.generation("g")
            assert kept is not None
            assert kept.members  # on disk it is there
            found = await client.ask(Api.DESCRIBE_GROUPS, groups=["g"])
            assert (found.groups[0].group_state, found.groups[0].members) == ("Empty", [])
            again = await client.ask(Api.LIST_GROUPS)
            assert [each.group_state for each in again.groups] == ["Empty"]
            while client.groups._coordinator._groups:  # it is forgotten once that is on disk
                await asyncio.sleep(0.01)
            assert not (await client.ask(Api.LIST_GROUPS)).groups

    running(work())


def test_another_gateway_goes_on_with_a_group(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            name = await client.member()
            member: dict[str, Any] = {"member_id": name, "generation_id_or_member_epoch": 1}
            assert await client.commit(5, **member) == [0]
            # Its members are kept beside what they have committed.
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
            assert await beat(client, name) == 0  # a group that is here goes on
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
            # In one of them somebody is, and one is another gateway's.
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
