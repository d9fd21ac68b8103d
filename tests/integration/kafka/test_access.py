"""Each API in each version is answered, as far as the user's permissions allow."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from dafka_core import Store
from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import RecentNames
from dafka_core.security.permissions import CONSUME, NOBODY, Permissions
from dafka_kafka import acls
from dafka_kafka import metadata as metadata_module
from dafka_kafka.api import Api, Client, on_groups, on_topics
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from dafka_kafka.server import DENIED, MAX_NAME
from dafka_kafka.users import OPERATIONS, Operation, Resource, Rights
from tests.integration.kafka.groups.asking import MEMBER
from tests.integration.kafka.locked import Locked
from tests.integration.kafka.one_request import ask_as, tell
from tests.unit.kafka.messages import rows, versions
from tests.unit.kafka.records.batches import batch, messages_of

TOPIC, GROUP, CLUSTER = 29, 30, 31


@pytest.fixture
def gateway(store: Store) -> Iterator[Gateway]:
    with Gateway(store, listen="127.0.0.1:0", group_rebalance_delay_ms=0) as gateway:
        for topic in ("a", "a1", "b"):
            tell(gateway, Api.METADATA, 8, **metadata(topic))
        yield gateway


Values = dict[str, Any]


def on_topic(**partition: Any) -> list[Values]:
    partition = {"partition_index": 0} | partition
    return [{"name": "t", "partitions": [partition]}]


def produce(*topics: str, version: int, acks: int = 1) -> dict[str, Any]:
    records = batch([b"value"]) if version >= 3 else messages_of(0, [b"v"])
    parts = [{"index": 0, "records": records}]
    data = [{"name": each, "partition_data": parts} for each in topics]
    return {"acks": acks, "timeout_ms": 9_000, "topic_data": data}


_FETCHED: Final = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
_COMMITTED: Final = on_topic(committed_offset=7, committed_metadata="")
_SIMPLE: Final[Values] = {"group_id": "simple", "topics": [{"name": "t", "partition_indexes": [0]}]}
_OF_ACLS: Final = {"operation": 1, "permission_type": 1, "resource_type_filter": 1}
_ACL: Final = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*"}
_ALTERED: Final = {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]}

FIXED: Final[dict[Api, Values]] = {
    Api.INIT_PRODUCER_ID: {"transactional_id": None},
    Api.FETCH: {"max_bytes": 1_000, "topics": [{"topic": "t", "partitions": _FETCHED}]},
    Api.LIST_OFFSETS: {"replica_id": -1, "topics": on_topic(timestamp=-1)},
    Api.METADATA: {"topics": [{"name": "t"}]},
    Api.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "t"}]},
    Api.FIND_COORDINATOR: {"key": "g", "coordinator_keys": ["g"]},
    Api.OFFSET_COMMIT: {
        "group_id": "simple",
        "generation_id_or_member_epoch": -1,
        "topics": _COMMITTED,
    },
    Api.OFFSET_FETCH: {**_SIMPLE, "groups": [_SIMPLE], "require_stable": True},
    Api.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1"},
    Api.DELETE_RECORDS: {"topics": on_topic(offset=0), "timeout_ms": 9_000},
    Api.DESCRIBE_ACLS: {**_OF_ACLS, "pattern_type_filter": 1},
    Api.CREATE_ACLS: {"creations": [{**_ACL, "operation": 3, "permission_type": 3}]},
    Api.DELETE_ACLS: {"filters": [{**_OF_ACLS, "pattern_type_filter": 3}]},
    Api.DESCRIBE_CONFIGS: {"resources": [{"resource_type": 2, "resource_name": "t"}]},
    Api.ALTER_CONFIGS: _ALTERED,
    Api.INCREMENTAL_ALTER_CONFIGS: _ALTERED,
}
"""The requests that are the same in each version."""


class Requests:
    """A minimal valid request for each API."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tell(Api.CREATE_TOPICS, 0, self.create_topics(topic="t"))

    def ask(self, api: Api, version: int) -> Any:
        return self._tell(api, version, self.values(api, version))

    def values(self, api: Api, version: int) -> Values:
        made: Callable[..., Values] = getattr(self, api.name.lower(), lambda _: FIXED.get(api, {}))
        return made(version)

    def _tell(self, api: Api, version: int, values: Values) -> Any:
        return tell(self._gateway, api, version, **values)

    def produce(self, version: int) -> Values:
        return produce("t", version=version)

    def member(self, version: int) -> Values:
        """Join a group of this version as its only member."""
        asked = MEMBER | {"group_id": f"g{version}"}
        joined = self._tell(Api.JOIN_GROUP, 0, asked)
        assert joined.error_code == 0
        return {"group_id": f"g{version}", "member_id": joined.member_id}

    def join_group(self, version: int) -> Values:
        return MEMBER | {"group_id": f"j{version}"}

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
        answer = self._tell(Api.OFFSET_COMMIT, 2, FIXED[Api.OFFSET_COMMIT])
        assert answer.topics[0].partitions[0].error_code == 0

    def offset_delete(self, version: int) -> Values:
        self.committed()
        return {"group_id": "simple", "topics": on_topic()}

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


def errors(part: Any) -> set[int]:
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


Ask = Callable[..., Any]


def alice(
    gateway: Gateway, *roles: str, produce: tuple[str, ...] = ("*",), consume: str = "*"
) -> Ask:
    """Return a function that sends requests of a user."""
    user = Permissions("alice", frozenset(roles), produce, (consume,))

    def ask(api: Api, version: int, **fields: Any) -> Any:
        return ask_as(gateway, user, api, version, **fields)

    return ask


def metadata(*topics: str) -> dict[str, Any]:
    return {"topics": [{"name": each} for each in topics], "allow_auto_topic_creation": True}


def topic_errors(response: Any) -> dict[str, int]:
    return dict(rows(response, "topics", "name", "error_code"))


@pytest.mark.parametrize("is_encoded", [False, True])
def test_topics_that_may_not_be_seen_are_refused_by_name_and_left_out_of_a_list(
    gateway: Gateway, is_encoded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_encoded:  # as a large response, in a thread
        monkeypatch.setattr(metadata_module, "MOST_INLINE", 0)
    ask = alice(gateway, "consume", consume="a*")
    for version in versions(Api.METADATA):
        named = ask(Api.METADATA, version, **metadata("a1", "b"))
        assert topic_errors(named) == {"a1": 0, "b": TOPIC}
        assert len(rows(named, "topics.partitions", "partition_index")) == 1
        everything = ask(Api.METADATA, version, topics=None if version else [])
        assert topic_errors(everything) == {"a": 0, "a1": 0}
        assert topic_errors(ask(Api.METADATA, version, **metadata("b"))) == {"b": TOPIC}


def test_what_is_kept_of_topics_is_for_one_thread(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    keep = RecentNames.keep

    def noted(names: RecentNames[Any], name: str, value: Any) -> None:
        threads.add(threading.get_ident())
        keep(names, name, value)

    monkeypatch.setattr(RecentNames, "keep", noted)
    monkeypatch.setattr(metadata_module, "MOST_INLINE", 0)
    ask = alice(gateway, "consume", consume="a*")
    of_topics = {"include_topic_authorized_operations": True}
    ask(Api.METADATA, 8, **metadata("a1"), **of_topics)
    ask(Api.METADATA, 8, topics=None, **of_topics)
    assert len(threads) == 1


@pytest.mark.parametrize(
    ("roles", "is_made"), [(("produce",), True), (("admin",), True), (("consume",), False)]
)
def test_a_topic_is_made_for_who_may_write_to_it(
    gateway: Gateway, roles: tuple[str, ...], is_made: bool
) -> None:
    found = alice(gateway, *roles)(Api.METADATA, 8, **metadata("new"))
    assert topic_errors(found) == {"new": 0 if is_made else TOPIC}
    assert bool(gateway.server.complaints.counts) is not is_made
    assert (tell(gateway, Api.METADATA, 8, topics=None).topics[-1].name == "new") is is_made


def test_who_asks_for_its_operations_is_told(gateway: Gateway) -> None:
    ask = alice(gateway, "produce", "consume", produce=("a",), consume="*")
    of_cluster = {"include_cluster_authorized_operations": True}
    asked = metadata("a", "b") | of_cluster | {"include_topic_authorized_operations": True}
    found = ask(Api.METADATA, 8, **asked)
    first, second = rows(found, "topics", "authorized_operations")
    assert Operation.WRITE in first
    assert second == {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    assert found.authorized_operations == {Operation.IDEMPOTENT_WRITE}
    not_asked = ask(Api.METADATA, 8, **metadata("a"))
    assert rows(not_asked, "topics", "authorized_operations") == [None]
    asked = {"groups": ["g"], "include_authorized_operations": True}
    operations = {Operation.READ, Operation.DESCRIBE}
    groups = ask(Api.DESCRIBE_GROUPS, 4, **asked)
    assert rows(groups, "groups", "authorized_operations") == [operations]
    cluster = ask(Api.DESCRIBE_CLUSTER, 1, endpoint_type=1, **of_cluster)
    assert cluster.authorized_operations == {Operation.IDEMPOTENT_WRITE}


def test_records_are_written_where_they_may_be(gateway: Gateway) -> None:
    ask = alice(gateway, "produce", produce=("a",))
    for count, version in enumerate(versions(Api.PRODUCE)):
        found = ask(Api.PRODUCE, version, **produce("a", "b", version=version))
        assert rows(found, "responses", "name") == ["a", "b"]
        named = ("index", "error_code", "base_offset")
        answers = rows(found, "responses.partition_responses", *named)
        assert answers == [(0, 0, count), (0, TOPIC, -1)]
    with pytest.raises(ProtocolError, match="the user may not do this"):  # it wants no answer
        ask(Api.PRODUCE, 8, **produce("a", "b", version=8, acks=0))
    assert ask(Api.PRODUCE, 8, **produce("a", version=8, acks=0)) is None
    wanted = {"topics": [{"name": "b", "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
    assert tell(gateway, Api.LIST_OFFSETS, 1, **wanted).topics[0].partitions[0].offset == 0


def test_who_may_read_a_part_is_told_of_the_rest_at_once(gateway: Gateway) -> None:
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
    topics = [{"topic": each, "partitions": parts} for each in "ab"]
    asked = {"max_wait_ms": 60_000, "min_bytes": 1_000, "max_bytes": 1_000, "topics": topics}
    found = alice(gateway, "consume", consume="a")(Api.FETCH, 11, **asked)
    assert rows(found, "responses", "topic") == ["a", "b"]
    named = ("partition_index", "error_code", "high_watermark")
    assert rows(found, "responses.partitions", *named) == [(0, 0, 0), (0, TOPIC, -1)]


def test_groups_are_for_who_consumes(gateway: Gateway) -> None:
    ask = alice(gateway, "produce")
    assert ask(Api.JOIN_GROUP, 5, group_id="g").error_code == GROUP
    hidden = ask(Api.LIST_GROUPS, 2)
    assert (hidden.error_code, hidden.groups) == (0, [])
    topics = [{"name": "t", "partitions": [{"partition_index": 7}]}]
    commit = ask(Api.OFFSET_COMMIT, 8, group_id="g", topics=topics)
    named = ("partition_index", "error_code")
    assert rows(commit, "topics.partitions", *named) == [(7, GROUP)]


def test_a_handler_checks_what_the_request_names() -> None:
    held = Permissions("alice", frozenset({"consume"}), consume=("a",))
    client = Client("c", "10.0.0.1", 5, rights=Rights(held))
    see = on_topics(Operation.DESCRIBE)
    assert client.may(on_groups(Operation.DESCRIBE))
    assert client.may(see, "a")
    assert not client.may(see, "b", is_noted=False)
    assert not client.refused
    assert not client.may(see, "b")
    assert client.refused == [(see, "b")]


def test_what_changes_the_cluster_is_for_admins(gateway: Gateway) -> None:
    made = {"name": "t", "num_partitions": 1, "replication_factor": 1}
    asked = {"topics": [{**made, "assignments": [], "configs": []}], "timeout_ms": 9_000}
    found = alice(gateway, "produce", "consume")(Api.CREATE_TOPICS, 6, **asked)
    assert topic_errors(found) == {"t": CLUSTER}
    assert "kafka-user" in found.topics[0].error_message
    assert topic_errors(alice(gateway, "admin")(Api.CREATE_TOPICS, 6, **asked)) == {"t": 0}
    dirs = alice(gateway, "consume")(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
    assert dirs.error_code == CLUSTER


def test_a_gateway_without_users_has_no_acls(gateway: Gateway) -> None:
    asked = Requests(gateway).values(Api.DESCRIBE_ACLS, 3)
    found = tell(gateway, Api.DESCRIBE_ACLS, 3, **asked)
    assert (found.error_code, found.resources) == (KafkaError.SECURITY_DISABLED, [])
    assert "no authorizer" in found.error_message


def test_acls_are_listed_while_others_are_served(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, listed = set[str](), acls.fits

    def noted(*args: Any) -> bool:
        threads.add(threading.current_thread().name)
        return listed(*args)

    monkeypatch.setattr(acls, "fits", noted)
    for version in versions(Api.DESCRIBE_ACLS):
        asked = FIXED[Api.DESCRIBE_ACLS] | dict.fromkeys(
            ("resource_name_filter", "principal_filter", "host_filter")
        )
        admin = Permissions("admin", frozenset({"admin"}))
        found = ask_as(locked.gateway, admin, Api.DESCRIBE_ACLS, version, **asked)
        assert "User:alice" in rows(found, "resources.acls", "principal")
    assert "dafka-kafka" not in threads  # the event loop's


def test_refusals_are_counted_and_said_once_of_each_user_and_kind(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    ask = alice(gateway, "consume", consume="a")
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for _ in range(3):
            ask(Api.METADATA, 8, **metadata("b\n" + "x" * 1_000, "c"))
            ask(Api.PRODUCE, 8, **produce("a", "b", version=8))
    assert gateway.server.complaints.counts == {DENIED: 6}
    first, second = (each.getMessage() for each in caplog.records)
    assert "alice may not METADATA: it needs DESCRIBE on topic 'b" in first
    assert "\n" not in first
    assert len(first) < MAX_NAME + 200
    assert "alice may not PRODUCE: it needs WRITE on topic 'a'" in second


OF_GROUPS: Final = (
    *(Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP, Api.SYNC_GROUP),
    *(Api.DESCRIBE_GROUPS, Api.DELETE_GROUPS),
    *(Api.OFFSET_COMMIT, Api.OFFSET_FETCH, Api.OFFSET_DELETE),
)
OF_TOPICS: Final = (
    *(Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.METADATA, Api.DESCRIBE_TOPIC_PARTITIONS),
    *(Api.DELETE_TOPICS, Api.DELETE_RECORDS, Api.CREATE_PARTITIONS),
    *(Api.DESCRIBE_CONFIGS, Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS),
)
REFUSALS: Final = {**dict.fromkeys(OF_GROUPS, GROUP), **dict.fromkeys(OF_TOPICS, TOPIC)}
"""The error of each API for a user without permissions; of all others it is that of the cluster."""

OPEN: Final = {Api.API_VERSIONS, Api.LIST_GROUPS, Api.DESCRIBE_CLUSTER, Api.LIST_TRANSACTIONS}
"""APIs that are answered to everyone: lists leave out what may not be seen."""


@pytest.mark.parametrize("api", AFTER_AUTHENTICATION)
def test_who_may_do_nothing_is_refused_in_each_version(gateway: Gateway, api: Api) -> None:
    requests = Requests(gateway)
    expected = set() if api in OPEN else {REFUSALS.get(api, CLUSTER)}
    for version in versions(api):
        asked = requests.values(api, version)
        found = errors(ask_as(gateway, NOBODY, api, version, **asked))
        # DescribeLogDirs has had no place for an error before version 3.
        is_silent = api is Api.DESCRIBE_LOG_DIRS and version < 3
        assert found == (set() if is_silent else expected)


READER: Final = Permissions("alice", frozenset({"consume"}), consume=("a*",))


@pytest.mark.parametrize("api", [Api.OFFSET_FETCH, Api.DESCRIBE_TOPIC_PARTITIONS])
def test_a_topic_of_others_is_refused_in_each_version(gateway: Gateway, api: Api) -> None:
    requests = Requests(gateway)
    for version in versions(api):
        asked = requests.values(api, version)
        assert errors(ask_as(gateway, READER, api, version, **asked)) == {TOPIC}


def test_hidden_topics_are_not_described(gateway: Gateway) -> None:
    Requests(gateway)
    for user, names in ((READER, ["a", "a1"]), (replace(READER, consume=("t",)), ["t"])):
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
