"""Responses of the group APIs, in each version."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dafka_core import Store
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from tests.integration.kafka.fixed_node import ELSEWHERE
from tests.integration.kafka.groups.asking import MEMBER, Asking
from tests.unit.kafka.messages import rows, versions

LIVES = (Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.DESCRIBE_GROUPS, Api.LEAVE_GROUP)
UNKNOWN = KafkaError.UNKNOWN_MEMBER_ID


@pytest.fixture
def client(store: Store) -> Iterator[Asking]:
    with Asking(store) as client:
        yield client


@pytest.mark.parametrize("version", versions(Api.FIND_COORDINATOR))
def test_a_coordinator_is_found(client: Asking, version: int) -> None:
    def find(key: str, key_type: int = 0) -> Any:
        asked = {"key": key, "key_type": key_type, "coordinator_keys": [key, "other"]}
        answer = client.ask(Api.FIND_COORDINATOR, version, **asked)
        keys = [each.key for each in answer.coordinators]
        assert keys == ([key, "other"] if version >= 4 else [])
        return answer.coordinators[0] if version >= 4 else answer

    here, there = find("g"), find("elsewhere")
    assert (here.error_code, here.node_id, here.host) == (0, 1, "127.0.0.1")
    assert (there.node_id, there.port) == (ELSEWHERE.node_id, ELSEWHERE.port)
    if version:
        assert find("g", 9).error_code == KafkaError.INVALID_REQUEST


@pytest.mark.parametrize("newest", versions(Api.JOIN_GROUP))
def test_a_member_joins_and_leaves_in_each_version(client: Asking, newest: int) -> None:
    join, sync, heartbeat, describe, leave = (min(newest, versions(api)[-1]) for api in LIVES)
    answer = client.join(version=join)
    if join >= 4:
        assert answer.error_code == KafkaError.MEMBER_ID_REQUIRED
        answer = client.join(answer.member_id, join)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    name = answer.leader
    assert [each.member_id for each in answer.members] == [answer.member_id] == [name]
    synced = client.sync(name, sync)
    assert bytes(synced.assignment) == b"part"
    assert answer.protocol_type == ("consumer" if join >= 7 else None)
    kind = (synced.protocol_type, synced.protocol_name)
    assert kind == (("consumer", "range") if sync >= 5 else (None, None))
    assert [client.beat(each, heartbeat) for each in (name, "who")] == [0, UNKNOWN]
    (group,) = client.ask(Api.DESCRIBE_GROUPS, describe, groups=["g"]).groups
    (member,) = group.members
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert (member.member_id, member.client_id) == (name, "test")
    assert member.client_host == "/127.0.0.1"
    assert bytes(member.member_assignment) == b"part"
    for error in (0, UNKNOWN):
        members = [{"member_id": name}]
        left = client.ask(Api.LEAVE_GROUP, leave, group_id="g", member_id=name, members=members)
        found = [left.error_code, *rows(left, "members", "error_code")]
        assert found == ([error] if leave < 3 else [0, error])


def test_a_static_member_is_described_by_its_instance(client: Asking) -> None:
    assert client.join(group_instance_id="one").error_code == 0
    (group,) = client.ask(Api.DESCRIBE_GROUPS, groups=["g"]).groups
    assert rows(group, "members", "group_instance_id") == ["one"]


def test_a_static_leader_that_starts_again_stays_the_leader(client: Asking) -> None:
    first = client.join(group_instance_id="one").member_id
    client.sync(first, 0)
    old = client.join(version=8, group_instance_id="one")
    assert (old.leader, old.members) == (first, [])  # it would assign partitions in vain
    new = client.join(version=9, group_instance_id="one")
    assert (new.leader, rows(new, "members", "member_id")) == (new.member_id, [new.member_id])
    assert (new.generation_id, new.skip_assignment) == (1, True)
    assert bytes(client.sync(new.member_id).assignment) == b"part"  # it is stable
    changed = client.join(new.member_id, group_instance_id="one")
    assert (changed.generation_id, changed.skip_assignment) == (2, False)


def test_what_another_gateway_coordinates_is_asked_for_there(client: Asking) -> None:
    named: dict[str, Any] = {"group_id": "elsewhere"}
    member = named | {"generation_id": 1, "member_id": "m"}
    answers = [
        client.join(**named),
        client.ask(Api.HEARTBEAT, **member),
        client.ask(Api.LEAVE_GROUP, **named, members=[]),
        client.ask(Api.SYNC_GROUP, **member, assignments=[]),
        client.fetch(**named),
        client.ask(Api.OFFSET_DELETE, **named, topics=[]),
        *client.ask(Api.DESCRIBE_GROUPS, groups=["elsewhere"]).groups,
        *client.ask(Api.DELETE_GROUPS, groups_names=["elsewhere"]).results,
    ]
    codes = {each.error_code for each in answers} | {*client.commit(1, **named)}
    assert codes == {KafkaError.NOT_COORDINATOR}
    assert client.join(group_id="").error_code == KafkaError.INVALID_GROUP_ID


def test_groups_are_listed_by_their_states_and_types(client: Asking) -> None:
    client.member()
    assert client.commit(5, group_id="simple") == [0]

    def listed(version: int, **asked: list[str]) -> list[tuple[str, str, str]]:
        found = client.ask(Api.LIST_GROUPS, version, **asked)
        return sorted(rows(found, "groups", "group_id", "group_state", "group_type"))

    both = [("g", "Stable", "classic"), ("simple", "Empty", "classic")]
    assert listed(5) == both
    assert listed(5, types_filter=["Classic", "consumer"]) == both
    assert listed(5, types_filter=["consumer"]) == []
    assert listed(5, states_filter=["empty", "Dead"]) == both[1:]
    assert listed(4, states_filter=["Stable"]) == [("g", "Stable", "")]
    for version in versions(Api.LIST_GROUPS):
        assert {each[0] for each in listed(version)} == {"g", "simple"}


def test_groups_without_members_are_deleted(client: Asking) -> None:
    client.member()
    client.commit(5, group_id="simple")
    names = ["g", "simple", "unheard of", "elsewhere"]
    deleted = client.ask(Api.DELETE_GROUPS, groups_names=names)
    missing, elsewhere = KafkaError.GROUP_ID_NOT_FOUND, KafkaError.NOT_COORDINATOR
    errors = [KafkaError.NON_EMPTY_GROUP, 0, missing, elsewhere]
    assert rows(deleted, "results", "error_code") == errors
    assert client.states() == {"g": "Stable"}
    (gone,) = client.ask(Api.DESCRIBE_GROUPS, groups=["simple"]).groups
    assert (gone.error_code, gone.group_state) == (missing, "Dead")
    assert client.fetch(group_id="simple").topics == []


def test_who_waits_when_a_gateway_ends_is_told(store: Store) -> None:
    with Asking(store, group_rebalance_delay_ms=60_000) as client:
        waiting = client.begin(Api.JOIN_GROUP, 0, **MEMBER)
        client.until(client.states)
    assert waiting.result().error_code == KafkaError.COORDINATOR_NOT_AVAILABLE


LOWS = (5, -1, -2, -7, -(2**63))


@pytest.mark.parametrize("version", versions(Api.OFFSET_COMMIT))
def test_any_offset_is_committed_in_each_version(store: Store, version: int) -> None:
    expected = {("t", number): low for number, low in enumerate(LOWS)}
    with Asking(store) as client:
        client.commit(9, 9, 9, 9, 9)
        assert client.commit(*LOWS, version=version, metadata="why") == [0] * len(LOWS)
        assert client.committed() == expected
        named = ("committed_offset", "metadata", "error_code")
        found = rows(client.fetch([0, 8], version), "topics.partitions", *named)
        assert found == [(5, "why", 0), (-1, "", 0)]
        if version >= 2:
            assert rows(client.fetch(None, version), "topics", "name") == ["t"]
    with Asking(store) as client:  # a gateway that has loaded them from disk
        assert client.committed() == expected
        assert rows(client.fetch([1]), "topics.partitions", "metadata") == ["why"]
        assert client.commit(6) == [0]
        assert client.committed([0]) == {("t", 0): 6}


def test_members_commit_with_their_generation(client: Asking) -> None:
    name, stale = client.member(), KafkaError.ILLEGAL_GENERATION
    assert client.commit(5, member_id=name, generation=1) == [0]
    assert client.commit(6, member_id=name, generation=7) == [stale]
    assert client.commit(6, member_id="who", generation=1) == [UNKNOWN]
    assert client.commit(6) == [UNKNOWN]
    assert client.commit(6, member_id=name, generation=1, group_id="unheard of") == [stale]
    assert client.committed() == {("t", 0): 5}


def test_each_partition_has_its_error(store: Store) -> None:
    with Asking(store, offset_metadata_max_bytes=10) as client:
        unknown = [KafkaError.UNKNOWN_TOPIC_OR_PARTITION]
        assert client.commit(6, metadata="über" * 2) == [0]
        assert client.commit(7, metadata="über" * 3) == [KafkaError.OFFSET_METADATA_TOO_LARGE]
        assert client.commit(5, topic="unheard of", metadata="über" * 3) == unknown
        assert client.commit(*range(11)) == [0] * 10 + unknown
        assert client.committed()["t", 9] == 9
        store.close()
        assert client.commit(6) == [KafkaError.COORDINATOR_NOT_AVAILABLE]


def delete(
    client: Asking, topic: str, group_id: str = "g", *, numbers: Iterable[int] = (0,)
) -> tuple[int, list[int]]:
    """Delete the commits of partitions; return the error, and the partitions'."""
    topics = [{"name": topic, "partitions": [{"partition_index": each} for each in numbers]}]
    answer = client.ask(Api.OFFSET_DELETE, group_id=group_id, topics=topics)
    return answer.error_code, rows(answer, "topics.partitions", "error_code")


def test_committed_offsets_are_deleted_unless_they_are_in_use(client: Asking) -> None:
    assert delete(client, "t") == (KafkaError.GROUP_ID_NOT_FOUND, [])
    client.commit(-1)  # makes a group, too
    assert client.states() == {"g": "Empty"}
    assert delete(client, "t") == (0, [0])
    assert (client.committed(), client.states()) == ({}, {})
    client.commit(5, 6)
    assert delete(client, "t") == (0, [0])
    assert client.committed() == {("t", 1): 6}
    client.member()  # it subscribes to topic t
    assert delete(client, "t") == (0, [KafkaError.GROUP_SUBSCRIBED_TO_TOPIC])
    assert delete(client, "other") == (0, [0])
    client.join(group_id="connect", protocol_type="connect", version=3)
    assert delete(client, "t", "connect") == (KafkaError.NON_EMPTY_GROUP, [])


def test_deleted_offsets_stay_deleted_whatever_else_was_named(store: Store) -> None:
    with Asking(store) as client:
        client.commit(5, 6)
        assert delete(client, "t", numbers=(0, -1, 2**31 - 1)) == (0, [0, 0, 0])
    with Asking(store) as client:
        assert client.committed() == {("t", 1): 6}
