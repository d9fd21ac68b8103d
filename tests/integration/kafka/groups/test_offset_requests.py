"""What clients commit, fetch and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.kafka import schemas
from dafka_core.kafka.api_versions import VERSIONS, Api
from dafka_core.kafka.kafka_errors import KafkaError
from tests.integration.kafka.groups.asking import Asking, asking


def running(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("version", VERSIONS[Api.OFFSET_COMMIT])
def test_a_client_without_a_group_commits_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            assert await client.commit(5, 7, version=version, metadata="why") == [0, 0]
            assert await client.committed() == {("t", 0): 5, ("t", 1): 7}

    running(work())


@pytest.mark.parametrize("version", VERSIONS[Api.OFFSET_FETCH])
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


@pytest.mark.parametrize("version", VERSIONS[Api.OFFSET_COMMIT])
def test_negative_offsets_are_committed_in_each_version(store: Store, version: int) -> None:
    async def work() -> None:
        async with asking(store) as client:
            await client.commit(5, 5, 5, 5)
            assert await client.commit(*LOWS, version=version, metadata="why") == [0] * 4
        async with asking(store) as client:  # a gateway that has read them from disk
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
            await client.member()  # it reads topic t
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
