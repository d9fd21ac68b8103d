"""A client of the group APIs, for any version of a request."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from dafka_core import Store
from dafka_core.system.closing import Closing
from dafka_kafka.api import Api
from dafka_kafka.groups.group_requests import Groups
from tests.integration.kafka.fixed_node import asked, fixed_node
from tests.unit.kafka.messages import NEWEST

T = TypeVar("T")

OPTIONS: dict[str, Any] = {"group_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 200}
MEMBER: dict[str, Any] = {
    "group_id": "g",
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 6_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"}],
}


class Asking(Closing):
    """A client of a gateway's groups, which are loaded, in a loop that runs while it asks."""

    def __init__(self, store: Store, **options: Any) -> None:
        self._ending = ExitStack()
        node = self._ending.enter_context(fixed_node(store, **(OPTIONS | options)))
        self.runner = self._ending.enter_context(asyncio.Runner())
        self.groups = Groups(node)
        self.run(self.groups.start())
        self._ending.callback(lambda: self.run(self.groups.close()))
        self.until(lambda: not self.ask(Api.LIST_GROUPS).error_code)

    def close(self) -> None:
        self._ending.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.run(asyncio.sleep(0.01))

    def ask(self, api: Api, version: int = NEWEST, /, **fields: Any) -> Any:
        return self.run(asked(self.groups, api, version, **fields))

    def begin(self, api: Api, version: int = NEWEST, /, **fields: Any) -> asyncio.Task[Any]:
        """Ask, and let the loop run when it is used next."""
        return self.runner.get_loop().create_task(asked(self.groups, api, version, **fields))

    def join(self, member_id: str = "", version: int = NEWEST, **given: Any) -> Any:
        return self.ask(Api.JOIN_GROUP, version, **(MEMBER | {"member_id": member_id} | given))

    def sync(self, member_id: str, version: int = NEWEST, group_id: str = "g") -> Any:
        assignments = [{"member_id": member_id, "assignment": b"part"}]
        kind = {"protocol_type": "consumer", "protocol_name": "range"}
        named: dict[str, Any] = {"group_id": group_id, "generation_id": 1, "member_id": member_id}
        return self.ask(Api.SYNC_GROUP, version, **named, **kind, assignments=assignments)

    def member(self) -> str:
        """Join as the only member of a new group."""
        joined = self.join(self.join().member_id)
        synced = self.sync(joined.member_id)
        assert (joined.error_code, synced.error_code, bytes(synced.assignment)) == (0, 0, b"part")
        name: str = joined.member_id
        return name

    def beat(self, member_id: str, version: int = NEWEST, group_id: str = "g") -> int:
        named = {"group_id": group_id, "generation_id": 1, "member_id": member_id}
        code: int = self.ask(Api.HEARTBEAT, version, **named).error_code
        return code

    def commit(
        self,
        *offsets: int,
        topic: str = "t",
        generation: int = -1,
        metadata: str = "",
        version: int = NEWEST,
        **given: Any,
    ) -> list[int]:
        """Commit offsets of partitions 0, 1, …; return the errors."""
        parts = [
            {"partition_index": at, "committed_offset": each, "committed_metadata": metadata}
            for at, each in enumerate(offsets)
        ]
        fields = {"group_id": "g", "generation_id_or_member_epoch": generation} | given
        topics = [{"name": topic, "partitions": parts}]
        answer = self.ask(Api.OFFSET_COMMIT, version, topics=topics, **fields)
        return [each.error_code for topic in answer.topics for each in topic.partitions]

    def fetch(
        self, numbers: list[int] | None = None, version: int = NEWEST, group_id: str = "g"
    ) -> Any:
        """Return the commits of topic t; of all topics without numbers."""
        topics = None if numbers is None else [{"name": "t", "partition_indexes": numbers}]
        asked = {"group_id": group_id, "topics": topics}
        answer = self.ask(Api.OFFSET_FETCH, version, **asked, groups=[asked])
        return answer.groups[0] if answer.groups else answer

    def committed(self, numbers: list[int] | None = None) -> dict[tuple[str, int], int]:
        answer = self.fetch(numbers)
        assert answer.error_code == 0
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
        }

    def states(self) -> dict[str, str]:
        return {each.group_id: each.group_state for each in self.ask(Api.LIST_GROUPS).groups}
