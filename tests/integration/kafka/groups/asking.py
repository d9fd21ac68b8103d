"""A client of the group APIs, for any version of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dafka_core import Store
from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.gateway import APIS
from dafka_kafka.groups.group_requests import Groups
from tests.integration.kafka.fixed_node import asked, fixed_node

NEWEST = -1
OPTIONS: dict[str, Any] = {
    "group_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 200,
}


class Asking:
    """A client of one gateway's groups."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    async def ask(self, api: Api, version: int = NEWEST, **members: Any) -> Any:
        name = "".join(part.title() for part in api.name.split("_"))
        request = getattr(schemas, f"{name}Request")(**members)
        return await asked(self.groups, api, request, APIS[api].versions[version])

    async def join(self, member_id: str = "", version: int = NEWEST, **given: Any) -> Any:
        kind: Any = schemas.JoinGroupRequest.JoinGroupRequestProtocol
        members: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 6_000,
            "rebalance_timeout_ms": 6_000,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [kind(name="range", metadata=b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff")],
        }
        return await self.ask(Api.JOIN_GROUP, version, **(members | given))

    async def sync(self, member_id: str, generation: int, version: int = NEWEST) -> Any:
        kind: Any = schemas.SyncGroupRequest.SyncGroupRequestAssignment
        return await self.ask(
            Api.SYNC_GROUP,
            version,
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[kind(member_id=member_id, assignment=b"part")],
        )

    async def member(self) -> str:
        """Join as the only member of a group."""
        asked_first = await self.join()
        joined = await self.join(asked_first.member_id)
        assert joined.error_code == 0
        synced = await self.sync(joined.member_id, joined.generation_id)
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"part")
        name: str = joined.member_id
        return name

    async def commit(self, *offsets: int, version: int = NEWEST, **given: Any) -> list[int]:
        """Commit offsets of partitions 0, 1, … of topic t; return the errors."""
        topic: Any = schemas.OffsetCommitRequest.OffsetCommitRequestTopic
        partition: Any = topic.OffsetCommitRequestPartition
        metadata = given.pop("metadata", "")
        of_topic = topic(
            name=given.pop("topic", "t"),
            partitions=[
                partition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
                for number, offset in enumerate(offsets)
            ],
        )
        members = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [of_topic],
        }
        answer = await self.ask(Api.OFFSET_COMMIT, version, **(members | given))
        return [each.error_code for topic in answer.topics for each in topic.partitions]

    async def fetch(
        self, numbers: list[int] | None = None, version: int = NEWEST, group_id: str = "g"
    ) -> Any:
        """Return the commits of topic t; of all topics without numbers."""
        group: Any = schemas.OffsetFetchRequest.OffsetFetchRequestGroup
        topic = group.OffsetFetchRequestTopics
        topics = None if numbers is None else [topic(name="t", partition_indexes=numbers)]
        named = {"group_id": group_id, "topics": topics}
        answer = await self.ask(Api.OFFSET_FETCH, version, **named, groups=[group(**named)])
        return answer.groups[0] if answer.groups else answer

    async def committed(self, numbers: list[int] | None = None) -> dict[tuple[str, int], int]:
        answer = await self.fetch(numbers)
        assert answer.error_code == 0
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
        }


@asynccontextmanager
async def asking(store: Store, **options: Any) -> AsyncIterator[Asking]:
    """Open a gateway that has loaded the stored groups."""
    with fixed_node(store, **(OPTIONS | options)) as node:
        groups = Groups(node)
        await groups.start()
        try:
            found = Asking(groups)
            while (await found.ask(Api.LIST_GROUPS)).error_code:
                await asyncio.sleep(0.01)
            yield found
        finally:
            await groups.close()
