"""Responses of the group APIs, in each version."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dafka_core import Store
from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import APIS
from tests.integration.kafka.fixed_node import ELSEWHERE
from tests.integration.kafka.groups.asking import Asking, asking

STATIC: dict[str, Any] = {"group_id": "g", "group_instance_id": None}


def running(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("version", APIS[Api.FIND_COORDINATOR].versions)
def test_a_coordinator_is_found(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:

            async def find(key: str, key_type: int = 0) -> Any:
                asked = {"key": key, "key_type": key_type, "coordinator_keys": [key, "other"]}
                answer = await client.ask(Api.FIND_COORDINATOR, version, **asked)
                assert [each.key for each in answer.coordinators] == (
                    [key, "other"] if version >= 4 else []
                )
                return answer.coordinators[0] if version >= 4 else answer

            here = await find("g")
            assert (here.error_code, here.node_id, here.host) == (0, 1, "127.0.0.1")
            there = await find("elsewhere")
            assert (there.node_id, there.port) == (ELSEWHERE.node_id, ELSEWHERE.port)
            if version:
                assert (await find("g", 9)).error_code == KafkaError.INVALID_REQUEST

    running(work())


@pytest.mark.parametrize("version", APIS[Api.JOIN_GROUP].versions)
def test_a_member_joins_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            answer = await client.join(version=version)
            if version >= 4:
                assert answer.error_code == KafkaError.MEMBER_ID_REQUIRED
                answer = await client.join(answer.member_id, version)
            assert (answer.error_code, answer.generation_id) == (0, 1)
            assert answer.leader == answer.member_id
            assert [each.member_id for each in answer.members] == [answer.member_id]
            synced = await client.sync(answer.member_id, 1, min(version, 5))
            assert bytes(synced.assignment) == b"part"
            types = (answer.protocol_type, synced.protocol_type, synced.protocol_name)
            assert types == (
                "consumer" if version >= 7 else None,
                *(("consumer", "range") if version >= 5 else (None, None)),
            )

    running(work())


@pytest.mark.parametrize("version", APIS[Api.HEARTBEAT].versions)
def test_heartbeats_are_answered_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            name = await client.member()
            for member_id, error in ((name, 0), ("who", KafkaError.UNKNOWN_MEMBER_ID)):
                members = {**STATIC, "generation_id": 1, "member_id": member_id}
                answer = await client.ask(Api.HEARTBEAT, version, **members)
                assert answer.error_code == error

    running(work())


@pytest.mark.parametrize("version", APIS[Api.LEAVE_GROUP].versions)
def test_members_leave_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        from dafka_kafka.schemas import LeaveGroupRequest

        async with asking(store) as client:
            name = await client.member()
            for error in (0, KafkaError.UNKNOWN_MEMBER_ID):
                identity = LeaveGroupRequest.MemberIdentity(member_id=name, group_instance_id=None)
                answer = await client.ask(
                    Api.LEAVE_GROUP, version, group_id="g", member_id=name, members=[identity]
                )
                if version < 3:
                    assert answer.error_code == error
                else:
                    assert answer.error_code == 0
                    assert [each.error_code for each in answer.members] == [error]

    running(work())


def test_a_group_without_a_name_is_none(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            assert (await client.join(group_id="")).error_code == KafkaError.INVALID_GROUP_ID

    running(work())


def test_a_group_that_is_elsewhere_is_asked_for_there(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            named: dict[str, Any] = {"group_id": "elsewhere"}
            answers = [
                await client.join(**named),
                await client.ask(Api.HEARTBEAT, **named, generation_id=1, member_id="m"),
                await client.ask(Api.LEAVE_GROUP, **named, members=[]),
                await client.ask(
                    Api.SYNC_GROUP, **named, generation_id=1, member_id="m", assignments=[]
                ),
                await client.fetch(**named),
                await client.ask(Api.OFFSET_DELETE, **named, topics=[]),
            ]
            described = await client.ask(Api.DESCRIBE_GROUPS, groups=["elsewhere"])
            deleted = await client.ask(Api.DELETE_GROUPS, groups_names=["elsewhere"])
            codes = [each.error_code for each in (*answers, *described.groups, *deleted.results)]
            codes += await client.commit(1, **named)
            assert set(codes) == {KafkaError.NOT_COORDINATOR}

    running(work())


async def states_of(client: Asking, version: int = -1) -> dict[str, str]:
    listed = (await client.ask(Api.LIST_GROUPS, version)).groups
    names = [each.group_id for each in listed]
    described = await client.ask(Api.DESCRIBE_GROUPS, groups=[*names, "unheard of"])
    assert described.groups[-1].error_code == KafkaError.GROUP_ID_NOT_FOUND
    return {each.group_id: each.group_state for each in described.groups}


def test_groups_are_listed_by_their_states_and_types(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.member()
            assert await client.commit(5, group_id="simple") == [0]

            async def listed(version: int, **asked: list[str]) -> list[tuple[str, str, str]]:
                found = await client.ask(Api.LIST_GROUPS, version, **asked)
                return [(each.group_id, each.group_state, each.group_type) for each in found.groups]

            both = [("g", "Stable", "classic"), ("simple", "Empty", "classic")]
            assert sorted(await listed(5)) == both
            assert sorted(await listed(5, types_filter=["Classic", "consumer"])) == both
            assert await listed(5, types_filter=["consumer"]) == []
            assert await listed(5, states_filter=["empty", "Dead"]) == both[1:]
            assert await listed(4, states_filter=["Stable"]) == [("g", "Stable", "")]
            for version in APIS[Api.LIST_GROUPS].versions:
                assert {each[0] for each in await listed(version)} == {"g", "simple"}

    running(work())


def test_groups_are_listed_described_and_deleted(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            assert await states_of(client) == {"unheard of": "Dead"}
            name = await client.member()
            assert await client.commit(5, group_id="simple") == [0]
            found = {"g": "Stable", "simple": "Empty", "unheard of": "Dead"}
            assert await states_of(client) == found
            for version in APIS[Api.DESCRIBE_GROUPS].versions:
                (group,) = (
                    await client.ask(
                        Api.DESCRIBE_GROUPS,
                        version,
                        groups=["g"],
                        include_authorized_operations=False,
                    )
                ).groups
                (member,) = group.members
                assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
                assert (member.member_id, member.client_host) == (name, "/127.0.0.1")
                assert bytes(member.member_assignment) == b"part"
            deleted = await client.ask(
                Api.DELETE_GROUPS, groups_names=["g", "simple", "unheard of", "elsewhere"]
            )
            assert [each.error_code for each in deleted.results] == [
                KafkaError.NON_EMPTY_GROUP,
                0,
                KafkaError.GROUP_ID_NOT_FOUND,
                KafkaError.NOT_COORDINATOR,
            ]
            assert await states_of(client) == {"g": "Stable", "unheard of": "Dead"}

    running(work())


def test_who_waits_when_a_gateway_ends_is_told(store: Store) -> None:
    async def work() -> None:
        async with asking(store, group_rebalance_delay_ms=60_000) as client:
            waiting = asyncio.ensure_future(client.join(version=0))
            while not (await client.ask(Api.LIST_GROUPS)).groups:
                await asyncio.sleep(0.01)
        assert (await waiting).error_code == KafkaError.COORDINATOR_NOT_AVAILABLE

    running(work())


@pytest.mark.parametrize("version", APIS[Api.OFFSET_COMMIT].versions)
def test_a_client_without_a_group_commits_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            assert await client.commit(5, 7, version=version, metadata="why") == [0, 0]
            assert await client.committed() == {("t", 0): 5, ("t", 1): 7}

    running(work())


@pytest.mark.parametrize("version", APIS[Api.OFFSET_FETCH].versions)
def test_what_was_committed_is_fetched_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5, metadata="why")
            ((_, partitions),) = [
                (each.name, each.partitions)
                for each in (await client.fetch([0, 3], version)).topics
            ]
            found = [(each.committed_offset, each.metadata, each.error_code) for each in partitions]
            assert found == [(5, "why", 0), (-1, "", 0)]
            if version >= 2:
                assert (await client.fetch(None, version)).topics[0].name == "t"

    running(work())


def test_members_commit_with_their_generation(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            name = await client.member()
            member: dict[str, Any] = {"member_id": name, "generation_id_or_member_epoch": 1}
            assert await client.commit(5, **member) == [0]
            old = {**member, "generation_id_or_member_epoch": 7}
            assert await client.commit(6, **old) == [KafkaError.ILLEGAL_GENERATION]
            who = {**member, "member_id": "who"}
            assert await client.commit(6, **who) == [KafkaError.UNKNOWN_MEMBER_ID]
            assert await client.commit(6) == [KafkaError.UNKNOWN_MEMBER_ID]
            none = await client.commit(6, **member, group_id="unheard of")
            assert none == [KafkaError.ILLEGAL_GENERATION]
            assert await client.committed() == {("t", 0): 5}

    running(work())


def test_each_partition_has_its_error(store: Store) -> None:
    async def work() -> None:
        async with asking(store, offset_metadata_max_bytes=10) as client:
            too_large = KafkaError.OFFSET_METADATA_TOO_LARGE
            assert await client.commit(6, metadata="über" * 2) == [0]
            assert await client.commit(7, metadata="über" * 3) == [too_large]
            unknown = [KafkaError.UNKNOWN_TOPIC_OR_PARTITION]
            assert await client.commit(5, topic="unheard of", metadata="über" * 3) == unknown
            assert await client.commit(*range(11)) == [0] * 10 + unknown
            assert (await client.committed())["t", 9] == 9

    running(work())


LOWS = (-1, -2, -7, -(2**63))


@pytest.mark.parametrize("version", APIS[Api.OFFSET_COMMIT].versions)
def test_negative_offsets_are_committed_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5, 5, 5, 5)
            assert await client.commit(*LOWS, version=version, metadata="why") == [0] * 4
        async with asking(store) as client:  # a gateway that has loaded them from disk
            expected = {("t", number): low for number, low in enumerate(LOWS)}
            assert await client.committed() == expected
            (topic,) = (await client.fetch([0, 1])).topics
            assert [each.metadata for each in topic.partitions] == ["why"] * 2
            assert await client.commit(6) == [0]
            assert await client.committed([0]) == {("t", 0): 6}

    running(work())


def test_a_group_with_a_negative_offset_alone_exists_until_that_is_deleted(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            assert await client.commit(-1) == [0]
            (listed,) = (await client.ask(Api.LIST_GROUPS)).groups
            assert listed.group_id == "g"
            assert await client.committed() == {("t", 0): -1}
            answer = await delete(client, "t")
            assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
            assert await client.committed() == {}
            assert (await client.ask(Api.LIST_GROUPS)).groups == []

    running(work())


async def delete(client: Asking, topic: str, group_id: str = "g") -> Any:
    kind: Any = schemas.OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = kind.OffsetDeleteRequestPartition(partition_index=0)
    topics = [kind(name=topic, partitions=[partition])]
    return await client.ask(Api.OFFSET_DELETE, group_id=group_id, topics=topics)


def test_committed_offsets_are_deleted_unless_they_are_in_use(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            answer = await delete(client, "t")
            assert answer.error_code == KafkaError.GROUP_ID_NOT_FOUND
            await client.commit(5, 6)
            answer = await delete(client, "t")
            assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
            assert await client.committed() == {("t", 1): 6}
            await client.member()  # it subscribes to topic t
            in_use = (await delete(client, "t")).topics[0].partitions[0].error_code
            assert in_use == KafkaError.GROUP_SUBSCRIBED_TO_TOPIC
            assert (await delete(client, "other")).topics[0].partitions[0].error_code == 0
            await client.join(group_id="connect", protocol_type="connect", version=3)
            answer = await delete(client, "t", "connect")
            assert answer.error_code == KafkaError.NON_EMPTY_GROUP

    running(work())


def test_what_was_committed_outlives_the_gateway(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5)
            await client.ask(Api.DELETE_GROUPS, groups_names=["g"])
            await client.commit(6, 7)
        async with asking(store) as client:
            assert await client.committed() == {("t", 0): 6, ("t", 1): 7}

    running(work())


def test_a_store_that_has_ended_answers_an_error(store: Store) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5)
            await asyncio.to_thread(store.close)
            assert await client.commit(6) == [KafkaError.COORDINATOR_NOT_AVAILABLE]

    running(work())
