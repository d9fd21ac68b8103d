"""Each API in each of its versions, over a real connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from dafka_core import Store
from dafka_core.security.permissions import CONSUME, Permissions
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from dafka_kafka.users import OPERATIONS, Resource
from tests.integration.kafka.one_request import ask_as, tell
from tests.unit.kafka.messages import versions
from tests.unit.kafka.records.batches import batch, messages_of

Values = dict[str, Any]


def on_topic(**partition: Any) -> list[Values]:
    partition = {"partition_index": 0} | partition
    return [{"name": "t", "partitions": [partition]}]


MEMBER: Final = {
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 6_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"}],
}


@pytest.fixture
def gateway(store: Store) -> Iterator[Gateway]:
    with Gateway(store, listen="127.0.0.1:0", group_rebalance_delay_ms=0) as gateway:
        yield gateway


class Requests:
    """A minimal valid request for each API."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tell(Api.CREATE_TOPICS, 0, self.create_topics(topic="t"))

    def ask(self, api: Api, version: int) -> Any:
        return self._tell(api, version, self.values(api, version))

    def values(self, api: Api, version: int) -> Values:
        make: Callable[..., Values] = getattr(self, api.name.lower(), lambda **_: {})
        return make(version=version)

    def _tell(self, api: Api, version: int, values: Values) -> Any:
        return tell(self._gateway, api, version, **values)

    def produce(self, version: int) -> Values:
        parts = [
            {"index": 0, "records": batch([b"value"]) if version >= 3 else messages_of(0, [b"v"])}
        ]
        data = [{"name": "t", "partition_data": parts}]
        return {"acks": 1, "timeout_ms": 9_000, "topic_data": data}

    def init_producer_id(self, version: int) -> Values:
        return {"transactional_id": None}

    def fetch(self, version: int) -> Values:
        parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
        return {"max_bytes": 1_000, "topics": [{"topic": "t", "partitions": parts}]}

    def list_offsets(self, version: int) -> Values:
        return {"replica_id": -1, "topics": on_topic(timestamp=-1)}

    def metadata(self, version: int) -> Values:
        return {"topics": [{"name": "t"}]}

    def describe_topic_partitions(self, version: int) -> Values:
        return {"topics": [{"name": "t"}]}

    def find_coordinator(self, version: int) -> Values:
        return {"key": "g", "coordinator_keys": ["g"]}

    def member(self, version: int) -> Values:
        """Join a group of this version as its only member."""
        asked = {"group_id": f"g{version}", **MEMBER}
        joined = self._tell(Api.JOIN_GROUP, 0, asked)
        assert joined.error_code == 0
        return {"group_id": f"g{version}", "member_id": joined.member_id}

    def join_group(self, version: int) -> Values:
        return {"group_id": f"j{version}", **MEMBER}

    def sync_group(self, version: int) -> Values:
        asked = self.member(version)
        given = [{"member_id": asked["member_id"], "assignment": b"all"}]
        kinds = {"protocol_type": "consumer", "protocol_name": "range"}
        return {**asked, "generation_id": 1, "assignments": given, **kinds}

    def heartbeat(self, version: int) -> Values:
        asked = self.member(100 + version)
        return {**asked, "generation_id": 1}

    def leave_group(self, version: int) -> Values:
        asked = self.member(200 + version)
        return {**asked, "members": [{"member_id": asked["member_id"], "reason": "it ends"}]}

    def describe_groups(self, version: int) -> Values:
        return {"groups": [self.member(300 + version)["group_id"]]}

    def delete_groups(self, version: int) -> Values:
        self.committed()
        return {"groups_names": ["simple"]}

    def committed(self) -> None:
        answer = self._tell(Api.OFFSET_COMMIT, 2, self.offset_commit(2))
        assert answer.topics[0].partitions[0].error_code == 0

    def offset_commit(self, version: int) -> Values:
        topics = on_topic(committed_offset=7, committed_metadata="")
        return {"group_id": "simple", "generation_id_or_member_epoch": -1, "topics": topics}

    def offset_fetch(self, version: int) -> Values:
        asked = {"group_id": "simple", "topics": [{"name": "t", "partition_indexes": [0]}]}
        return {**asked, "groups": [asked], "require_stable": True}

    def offset_delete(self, version: int) -> Values:
        self.committed()
        return {"group_id": "simple", "topics": on_topic()}

    def api_versions(self, version: int) -> Values:
        return {"client_software_name": "test", "client_software_version": "1"}

    def create_topics(self, version: int = 0, topic: str = "") -> Values:
        made = {"name": topic or f"made{version}", "num_partitions": 1, "replication_factor": 1}
        return {"topics": [{**made, "assignments": [], "configs": []}], "timeout_ms": 9_000}

    def delete_topics(self, version: int) -> Values:
        topic = f"deleted{version}"
        self._tell(Api.CREATE_TOPICS, 0, self.create_topics(topic=topic))
        return {"topics": [{"name": topic}], "topic_names": [topic], "timeout_ms": 9_000}

    def create_partitions(self, version: int) -> Values:
        topic = f"extended{version}"
        self._tell(Api.CREATE_TOPICS, 0, self.create_topics(topic=topic))
        grown = {"name": topic, "count": 2, "assignments": None}
        return {"topics": [grown], "timeout_ms": 9_000}

    def delete_records(self, version: int) -> Values:
        return {"topics": on_topic(offset=0), "timeout_ms": 9_000}

    def describe_acls(self, version: int) -> Values:
        kinds = {"resource_type_filter": 1, "pattern_type_filter": 1}
        return {**kinds, "operation": 1, "permission_type": 1}

    def create_acls(self, version: int) -> Values:
        made = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*"}
        return {"creations": [{**made, "operation": 3, "permission_type": 3}]}

    def delete_acls(self, version: int) -> Values:
        asked = {"resource_type_filter": 2, "pattern_type_filter": 3}
        return {"filters": [{**asked, "operation": 1, "permission_type": 1}]}

    def describe_configs(self, version: int) -> Values:
        return {"resources": [{"resource_type": 2, "resource_name": "t"}]}

    def alter_configs(self, version: int) -> Values:
        return {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]}

    incremental_alter_configs = alter_configs


def errors(part: Any) -> set[int]:
    """Return all errors in a response."""
    if isinstance(part, (list, tuple)):
        return set().union(*map(errors, part)) if part else set()
    if not hasattr(part, "fields"):
        return set()
    inner = [errors(getattr(part, name)) for name in part.fields]
    own = {part.error_code} - {0} if "error_code" in part.fields else set()
    return own.union(*inner)


NOT_FIRST: Final = {(Api.JOIN_GROUP, version): {79} for version in range(4, 10)}
"""Errors that come with a version: from JoinGroup 4 on a member asks for its id first."""


AFTER_AUTHENTICATION: Final = sorted({*Api} - {Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})


@pytest.mark.parametrize("api", AFTER_AUTHENTICATION)
def test_each_version_is_answered(gateway: Gateway, api: Api) -> None:
    requests = Requests(gateway)
    found = {version: errors(requests.ask(api, version)) for version in versions(api)}
    first = {KafkaError.SECURITY_DISABLED} if api.name.endswith("_ACLS") else set()
    assert found == {version: NOT_FIRST.get((api, version), first) for version in versions(api)}
    assert not gateway.server.complaints.counts


PRODUCER: Final = Permissions("alice", frozenset({"produce"}))
READER: Final = Permissions("alice", frozenset({"consume"}), consume=("a*",))
REFUSED: Final = [
    (Api.FIND_COORDINATOR, PRODUCER, KafkaError.GROUP_AUTHORIZATION_FAILED),
    (Api.OFFSET_FETCH, PRODUCER, KafkaError.GROUP_AUTHORIZATION_FAILED),
    (Api.OFFSET_FETCH, READER, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (Api.DELETE_TOPICS, PRODUCER, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (Api.DESCRIBE_TOPIC_PARTITIONS, READER, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (Api.LIST_CONFIG_RESOURCES, PRODUCER, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
]


@pytest.mark.parametrize(("api", "user", "error"), REFUSED)
def test_each_version_is_refused(
    gateway: Gateway, api: Api, user: Permissions, error: KafkaError
) -> None:
    requests = Requests(gateway)
    for version in versions(api):
        asked = requests.values(api, version)
        assert errors(ask_as(gateway, user, api, version, **asked)) == {error}


def test_hidden_topics_are_not_described(gateway: Gateway) -> None:
    Requests(gateway)
    for user, names in ((READER, []), (replace(READER, consume=("*",)), ["t"])):
        found = ask_as(gateway, user, Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[])
        assert [each.name for each in found.topics] == names
        for each in found.topics:
            operations = OPERATIONS[CONSUME][Resource.TOPIC]
            assert each.topic_authorized_operations == sum(1 << each for each in operations)


def test_hidden_topics_of_a_group_are_not_shown(gateway: Gateway) -> None:
    requests = Requests(gateway)
    assert requests.ask(Api.SYNC_GROUP, 0).error_code == 0
    for user, shown in ((READER, b""), (replace(READER, consume=("*",)), b"all")):
        (group,) = ask_as(gateway, user, Api.DESCRIBE_GROUPS, 6, groups=["g0"]).groups
        (member,) = group.members
        assert bytes(member.member_assignment) == shown
        assert (b"t" in bytes(member.member_metadata)) is bool(shown)
