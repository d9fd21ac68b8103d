"""Requests are answered as far as the user's permissions allow."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import RecentNames
from dafka_core.security.permissions import Permissions
from dafka_kafka import schemas
from dafka_kafka.access import DENIED, MAX_NAME, Access
from dafka_kafka.api import Api, Client, EncodedResponse, Response, on_groups, on_topics
from dafka_kafka.gateway import APIS
from dafka_kafka.gateway_node import Complaints
from dafka_kafka.requests import PartitionAnswer, encoded_answers
from dafka_kafka.users import REFUSALS, Operation, Resource, Rights

TOPIC, GROUP, CLUSTER = 29, 30, 31


class Asked:
    """A handler's request and response."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self.requests: list[Any] = []
        self.clients: list[Client] = []

    async def __call__(self, request: Any, client: Client) -> Response:
        self.requests.append(request)
        self.clients.append(client)
        return self.response


class Someone:
    def __init__(self, *roles: str, produce: str = "*", consume: str = "*") -> None:
        self.complaints = Complaints()
        self._access = Access(self.complaints)
        patterns = tuple(produce.split()), tuple(consume.split())
        self._rights = Rights(Permissions("alice", frozenset(roles), *patterns))

    def asks(self, api: Api, version: int, request: Any, response: Response) -> tuple[Any, Asked]:
        """Return the client's response, if ``response`` is the handler's."""
        handler = Asked(response)
        client = Client("c", "10.0.0.1", version)
        served = APIS[api]._replace(handler=handler)
        work = self._access.answer(api, served, request, client, self._rights)
        found: Any = asyncio.run(work)
        if isinstance(found, EncodedResponse):
            found = schemas.decode_response(api, version, b"".join(found.pieces))
        return found, handler


def metadata(*topics: str, all_topics: bool = False, **more: Any) -> Any:
    kind: Any = schemas.MetadataRequest
    listed = None if all_topics else [kind.MetadataRequestTopic(name=each) for each in topics]
    return kind(topics=listed, **more)


def described(*topics: str) -> Any:
    kind: Any = schemas.MetadataResponse
    listed = [kind.MetadataResponseTopic(error_code=0, name=each) for each in topics]
    return kind(topics=listed, brokers=[], controller_id=1, cluster_id="c")


def errors(response: Any) -> dict[str, int]:
    return {each.name: each.error_code for each in response.topics}


def test_topics_that_may_not_be_seen_are_refused_by_name_and_left_out_of_a_list() -> None:
    for version in APIS[Api.METADATA].versions:
        alice = Someone("consume", consume="a*")
        named, handler = alice.asks(Api.METADATA, version, metadata("a1", "b"), described("a1"))
        assert errors(named) == {"a1": 0, "b": TOPIC}
        assert [each.name for each in handler.requests[0].topics] == ["a1"]
        everything = metadata(all_topics=True) if version else metadata()
        listed, _ = alice.asks(Api.METADATA, version, everything, described("a1", "b"))
        assert errors(listed) == {"a1": 0}
        octets = EncodedResponse([described("a1", "b").encode(version=version)])
        listed, _ = alice.asks(Api.METADATA, version, everything, octets)
        assert errors(listed) == {"a1": 0}


def test_what_is_kept_of_topics_is_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[int, set[int]] = {}
    keep = RecentNames.keep

    def noted(names: RecentNames[Any], name: str, value: Any) -> None:
        threads.setdefault(id(names), set()).add(threading.get_ident())
        keep(names, name, value)

    monkeypatch.setattr(RecentNames, "keep", noted)
    alice = Someone("consume", consume="a*")
    octets = EncodedResponse([described("a1", "b").encode(version=8)])
    alice.asks(Api.METADATA, 8, metadata("a1"), described("a1"))
    alice.asks(Api.METADATA, 8, metadata(all_topics=True), octets)
    assert sorted(map(len, threads.values())) == [1, 1]


def test_who_names_topics_that_it_may_not_see_is_not_told_of_all() -> None:
    # In version 0 an empty list means all topics.
    found, handler = Someone("consume", consume="a").asks(
        Api.METADATA, 0, metadata("b"), described()
    )
    assert handler.requests[0].topics == []
    assert handler.clients[0].version > 0
    assert errors(found) == {"b": TOPIC}


@pytest.mark.parametrize(
    ("roles", "is_made"), [(("produce",), True), (("admin",), True), (("consume",), False)]
)
def test_a_topic_is_made_for_who_may_write_to_it(roles: tuple[str, ...], is_made: bool) -> None:
    someone = Someone(*roles)
    _, handler = someone.asks(Api.METADATA, 8, metadata("a"), described("a"))
    assert handler.clients[0].may_make("a") is is_made
    assert bool(someone.complaints.counts) is not is_made


def test_who_asks_for_its_operations_is_told() -> None:
    asked = metadata(
        *("a", "b"),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    alice = Someone("produce", "consume", produce="a", consume="*")
    found, _ = alice.asks(Api.METADATA, 8, asked, described("a", "b"))
    first, second = found.topics
    assert Operation.WRITE in first.authorized_operations
    assert second.authorized_operations == {
        *(Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    }
    assert found.authorized_operations == {Operation.IDEMPOTENT_WRITE}
    not_asked, _ = alice.asks(Api.METADATA, 8, metadata("a"), described("a"))
    assert not_asked.topics[0].authorized_operations is None
    kind: Any = schemas.DescribeGroupsResponse
    groups, _ = alice.asks(
        Api.DESCRIBE_GROUPS,
        4,
        schemas.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True),
        kind(groups=[kind.DescribedGroup(error_code=0, group_id="g", members=[])]),
    )
    assert groups.groups[0].authorized_operations == {Operation.READ, Operation.DESCRIBE}
    cluster, _ = alice.asks(
        Api.DESCRIBE_CLUSTER,
        1,
        schemas.DescribeClusterRequest(include_cluster_authorized_operations=True),
        schemas.DescribeClusterResponse(error_code=0, cluster_id="", brokers=[]),
    )
    assert cluster.authorized_operations == {Operation.IDEMPOTENT_WRITE}


def produce(*topics: str, acks: int = 1) -> Any:
    kind: Any = schemas.ProduceRequest
    topic = kind.TopicProduceData
    return kind(
        acks=acks,
        topic_data=[
            topic(name=each, partition_data=[topic.PartitionProduceData(index=3, records=b"x")])
            for each in topics
        ],
    )


def test_records_are_written_where_they_may_be() -> None:
    for version in APIS[Api.PRODUCE].versions:
        alice = Someone("produce", produce="a")
        octets = encoded_answers([PartitionAnswer("a", 3, 0, 7)], version)
        asked = produce("a", "b")
        found, handler = alice.asks(Api.PRODUCE, version, asked, EncodedResponse([octets]))
        assert [each.name for each in handler.requests[0].topic_data] == ["a"]
        answers = [
            (topic.name, part.index, part.error_code, part.base_offset)
            for topic in found.responses
            for part in topic.partition_responses
        ]
        assert answers == [("a", 3, 0, 7), ("b", 3, TOPIC, -1)]


def test_who_wants_no_answer_is_cut_off() -> None:
    alice = Someone("produce", produce="a")
    with pytest.raises(ProtocolError, match="its user may not do"):
        alice.asks(Api.PRODUCE, 8, produce("a", "b", acks=0), None)
    assert alice.asks(Api.PRODUCE, 8, produce("a", acks=0), None)[0] is None


def test_what_is_allowed_is_answered_as_it_is() -> None:
    alice = Someone("produce", "consume", "admin")
    answered = EncodedResponse([b"octets"])
    handler = Asked(answered)
    client = Client("c", "10.0.0.1", 8)
    rights = Rights(Permissions("alice", frozenset({"produce"})))
    asked = produce("a")
    served = APIS[Api.PRODUCE]._replace(handler=handler)
    found = asyncio.run(Access(alice.complaints).answer(Api.PRODUCE, served, asked, client, rights))
    assert found is answered
    assert handler.requests[0] is asked
    assert not alice.complaints.counts


def test_who_may_read_a_part_is_told_of_the_rest_at_once() -> None:
    kind: Any = schemas.FetchRequest
    part = kind.FetchTopic.FetchPartition
    asked = kind(
        max_wait_ms=60_000,
        min_bytes=1_000,
        topics=[kind.FetchTopic(topic=each, partitions=[part(partition=2)]) for each in "ab"],
    )
    response = schemas.FetchResponse(error_code=0, session_id=0, responses=[])
    found, handler = Someone("consume", consume="a").asks(Api.FETCH, 11, asked, response)
    assert handler.requests[0].min_bytes == 0
    (refused,) = found.responses
    assert (refused.topic, refused.partitions[0].error_code) == ("b", TOPIC)
    assert (refused.partitions[0].partition_index, refused.partitions[0].high_watermark) == (2, -1)


def test_groups_are_for_who_consumes() -> None:
    join = schemas.JoinGroupRequest(group_id="g")
    assert Someone("produce").asks(Api.JOIN_GROUP, 5, join, None)[0].error_code == GROUP
    hidden, _ = Someone("produce").asks(Api.LIST_GROUPS, 2, schemas.ListGroupsRequest(), None)
    assert (hidden.error_code, hidden.groups) == (0, [])


def test_a_handler_checks_what_a_rule_does_not_say() -> None:
    alice = Someone("consume", consume="a")
    asked = schemas.OffsetFetchRequest(group_id="g", topics=None)
    _, handler = alice.asks(Api.OFFSET_FETCH, 5, asked, "answered")
    (client,) = handler.clients
    see = on_topics(Operation.DESCRIBE)
    assert client.may(on_groups(Operation.DESCRIBE))
    assert client.may(see, "a")
    assert not client.may(see, "b", is_noted=False)
    assert not alice.complaints.counts
    assert not client.may(see, "b")
    assert alice.complaints.counts == {DENIED: 1}


def test_what_changes_the_cluster_is_for_admins() -> None:
    kind: Any = schemas.CreateTopicsRequest
    topics = [kind.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    response = schemas.CreateTopicsResponse(topics=[])
    found, _ = Someone("produce", "consume").asks(
        Api.CREATE_TOPICS, 6, kind(topics=topics), response
    )
    assert errors(found) == {"t": CLUSTER}
    assert "kafka-user" in found.topics[0].error_message
    _, handler = Someone("admin").asks(Api.CREATE_TOPICS, 6, kind(topics=topics), response)
    assert [each.name for each in handler.requests[0].topics] == ["t"]
    dirs, _ = Someone("consume").asks(
        Api.DESCRIBE_LOG_DIRS, 4, schemas.DescribeLogDirsRequest(topics=None), None
    )
    assert dirs.error_code == CLUSTER


def test_refusals_are_counted_and_said_once_of_each_user_and_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alice = Someone("consume", consume="a")
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for _ in range(3):
            alice.asks(Api.METADATA, 8, metadata("b\n" + "x" * 1_000), described())
            alice.asks(Api.PRODUCE, 8, produce("a"), EncodedResponse([encoded_answers([], 8)]))
    assert alice.complaints.counts == {DENIED: 6}
    first, second = (each.getMessage() for each in caplog.records)
    assert "alice may not METADATA: it needs DESCRIBE on topic 'b" in first
    assert "\n" not in first
    assert len(first) < MAX_NAME + 200
    assert "alice may not PRODUCE: it needs WRITE on topic 'a'" in second


ACCESS_RULES_TOPIC = SimpleNamespace(
    name="t",
    topic="t",
    resource_name="t",
    resource_name_filter="t",
    resource_type=Resource.TOPIC,
    partitions=[SimpleNamespace(partition_index=7, partition=7)],
    partition_data=[SimpleNamespace(index=7)],
    partition_indexes=[7],
)
"""Elements of requests, with the fields of all kinds of them."""

NAMES = (Api.DESCRIBE_GROUPS, Api.DELETE_TOPICS, Api.DELETE_GROUPS)
"""APIs whose requests list names only."""


RULES = {api: each.rule for api, each in APIS.items() if each.rule is not None}


def test_only_authentication_has_no_rule() -> None:
    assert {*APIS} - {*RULES} == {Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}


def error_codes(octets_of: Any, version: int) -> list[int]:
    """Return all errors in a response, as its client reads them."""
    found: list[int] = []

    def walk(each: Any) -> None:
        if isinstance(each, (list, tuple)):
            for one in each:
                walk(one)
        elif hasattr(each, "fields"):
            for name in each.fields:
                value = getattr(each, name)
                found.extend([value] if name == "error_code" else [])
                walk(value)

    walk(type(octets_of).decode(octets_of.encode(version=version), version=version))
    return found


@pytest.mark.parametrize("api", [each for each in RULES if RULES[each].each is not None])
def test_a_part_is_refused_with_the_error_of_its_resource(api: Api) -> None:
    rule = RULES[api]
    part = "t" if api in NAMES else ACCESS_RULES_TOPIC
    assert rule.each is not None
    need, name = rule.each(part)
    assert name == "t"
    error = REFUSALS[need.resource]
    for version in APIS[api].versions:
        response = schemas.empty_response(api, version, 0, None)
        setattr(response, rule.answered, [rule.refusal(part, error)])
        assert [each for each in error_codes(response, version) if each] == [error]


@pytest.mark.parametrize("api", [each for each in RULES if RULES[each].whole is not None])
def test_all_of_a_request_is_refused_where_its_response_has_a_place_for_it(api: Api) -> None:
    whole = RULES[api].whole
    assert whole is not None
    for version in APIS[api].versions:
        response = schemas.empty_response(api, version, REFUSALS[whole.resource], "why")
        has_place = schemas.error_response(api, version, 0) is not None
        wanted = [REFUSALS[whole.resource]] if has_place else []
        assert [each for each in error_codes(response, version) if each] == wanted
        # The others list the requested elements with errors, or are empty.
        assert has_place or RULES[api].answered or api == Api.DESCRIBE_LOG_DIRS
