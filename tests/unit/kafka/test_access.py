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
from tests.unit.kafka.messages import request, response, rows, versions

TOPIC, GROUP, CLUSTER = 29, 30, 31


class Asked:
    """A handler's request and response."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self.request: Any = None
        self.client: Any = None

    async def __call__(self, request: Any, client: Client) -> Response:
        self.request, self.client = request, client
        return self.response


class Someone:
    def __init__(self, *roles: str, produce: str = "*", consume: str = "*") -> None:
        self.complaints = Complaints()
        self._access = Access(self.complaints)
        patterns = tuple(produce.split()), tuple(consume.split())
        self._rights = Rights(Permissions("alice", frozenset(roles), *patterns))

    def asks(
        self, api: Api, version: int, answered: Response = None, /, **fields: Any
    ) -> tuple[Any, Asked]:
        """Return the client's response, if ``answered`` is the handler's."""
        handler, asked = Asked(answered), request(api, **fields)
        served, client = APIS[api]._replace(handler=handler), Client("c", "10.0.0.1", version)
        found: Any = asyncio.run(self._access.answer(api, served, asked, client, self._rights))
        if isinstance(found, EncodedResponse) and found is not answered:
            found = schemas.decode_response(api, version, b"".join(found.pieces))
        return found, handler


def metadata(*topics: str) -> dict[str, Any]:
    return {"topics": [{"name": each} for each in topics]}


ALL_TOPICS: dict[str, Any] = {"topics": None}


def described(*topics: str) -> Any:
    listed = [{"error_code": 0, "name": each} for each in topics]
    return response(Api.METADATA, topics=listed, brokers=[], controller_id=1, cluster_id="c")


def errors(response: Any) -> dict[str, int]:
    return dict(rows(response, "topics", "name", "error_code"))


def test_topics_that_may_not_be_seen_are_refused_by_name_and_left_out_of_a_list() -> None:
    alice = Someone("consume", consume="a*")
    for version in versions(Api.METADATA):
        named, handler = alice.asks(Api.METADATA, version, described("a1"), **metadata("a1", "b"))
        assert errors(named) == {"a1": 0, "b": TOPIC}
        assert rows(handler.request, "topics", "name") == ["a1"]
        everything = ALL_TOPICS if version else metadata()
        octets = EncodedResponse([described("a1", "b").encode(version=version)])
        for answered in (described("a1", "b"), octets):
            listed, _ = alice.asks(Api.METADATA, version, answered, **everything)
            assert errors(listed) == {"a1": 0}
    # In version 0 an empty list means all topics.
    found, handler = alice.asks(Api.METADATA, 0, described(), **metadata("b"))
    assert handler.request.topics == []
    assert handler.client.version > 0
    assert errors(found) == {"b": TOPIC}


def test_refusals_are_in_no_other_response() -> None:
    """kafka-python's messages share the list that they have by default."""
    alice = Someone("consume", consume="a*")

    def empty() -> Any:
        return schemas.empty_response(Api.METADATA, 8, 0, None)

    for topic in ("b", "c"):
        refused, _ = alice.asks(Api.METADATA, 8, empty(), **metadata(topic))
        assert errors(refused) == {topic: TOPIC}
    assert errors(empty()) == {}


def test_what_is_kept_of_topics_is_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[int, set[int]] = {}
    keep = RecentNames.keep

    def noted(names: RecentNames[Any], name: str, value: Any) -> None:
        threads.setdefault(id(names), set()).add(threading.get_ident())
        keep(names, name, value)

    monkeypatch.setattr(RecentNames, "keep", noted)
    alice = Someone("consume", consume="a*")
    octets = EncodedResponse([described("a1", "b").encode(version=8)])
    alice.asks(Api.METADATA, 8, described("a1"), **metadata("a1"))
    alice.asks(Api.METADATA, 8, octets, **ALL_TOPICS)
    assert sorted(map(len, threads.values())) == [1, 1]


@pytest.mark.parametrize(
    ("roles", "is_made"), [(("produce",), True), (("admin",), True), (("consume",), False)]
)
def test_a_topic_is_made_for_who_may_write_to_it(roles: tuple[str, ...], is_made: bool) -> None:
    someone = Someone(*roles)
    _, handler = someone.asks(Api.METADATA, 8, described("a"), **metadata("a"))
    assert handler.client.may_make("a") is is_made
    assert bool(someone.complaints.counts) is not is_made


def test_who_asks_for_its_operations_is_told() -> None:
    alice = Someone("produce", "consume", produce="a", consume="*")
    of_cluster = {"include_cluster_authorized_operations": True}
    asked = metadata("a", "b") | of_cluster | {"include_topic_authorized_operations": True}
    found, _ = alice.asks(Api.METADATA, 8, described("a", "b"), **asked)
    first, second = rows(found, "topics", "authorized_operations")
    assert Operation.WRITE in first
    assert second == {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    assert found.authorized_operations == {Operation.IDEMPOTENT_WRITE}
    not_asked, _ = alice.asks(Api.METADATA, 8, described("a"), **metadata("a"))
    assert rows(not_asked, "topics", "authorized_operations") == [None]
    group = response(Api.DESCRIBE_GROUPS, groups=[{"group_id": "g", "members": []}])
    asked = {"groups": ["g"], "include_authorized_operations": True}
    groups, _ = alice.asks(Api.DESCRIBE_GROUPS, 4, group, **asked)
    operations = {Operation.READ, Operation.DESCRIBE}
    assert rows(groups, "groups", "authorized_operations") == [operations]
    answered = response(Api.DESCRIBE_CLUSTER, cluster_id="", brokers=[])
    cluster, _ = alice.asks(Api.DESCRIBE_CLUSTER, 1, answered, **of_cluster)
    assert cluster.authorized_operations == {Operation.IDEMPOTENT_WRITE}


def produce(*topics: str, acks: int = 1) -> dict[str, Any]:
    parts = [{"index": 3, "records": b"x"}]
    return {"acks": acks, "topic_data": [{"name": e, "partition_data": parts} for e in topics]}


def test_records_are_written_where_they_may_be() -> None:
    alice = Someone("produce", produce="a")
    for version in versions(Api.PRODUCE):
        octets = EncodedResponse([encoded_answers([PartitionAnswer("a", 3, 0, 7)], version)])
        found, handler = alice.asks(Api.PRODUCE, version, octets, **produce("a", "b"))
        assert rows(handler.request, "topic_data", "name") == ["a"]
        assert rows(found, "responses", "name") == ["a", "b"]
        named = ("index", "error_code", "base_offset")
        answers = rows(found, "responses.partition_responses", *named)
        assert answers == [(3, 0, 7), (3, TOPIC, -1)]
    with pytest.raises(ProtocolError, match="its user may not do"):  # it wants no answer
        alice.asks(Api.PRODUCE, 8, **produce("a", "b", acks=0))
    assert alice.asks(Api.PRODUCE, 8, **produce("a", acks=0))[0] is None


def test_what_is_allowed_is_answered_as_it_is() -> None:
    alice, answered = Someone("produce"), EncodedResponse([b"octets"])
    found, handler = alice.asks(Api.PRODUCE, 8, answered, **produce("a"))
    assert found is answered
    assert rows(handler.request, "topic_data", "name") == ["a"]
    assert not alice.complaints.counts


def test_who_may_read_a_part_is_told_of_the_rest_at_once() -> None:
    topics = [{"topic": each, "partitions": [{"partition": 2}]} for each in "ab"]
    asked = {"max_wait_ms": 60_000, "min_bytes": 1_000, "topics": topics}
    answered = response(Api.FETCH, error_code=0, session_id=0, responses=[])
    found, handler = Someone("consume", consume="a").asks(Api.FETCH, 11, answered, **asked)
    assert handler.request.min_bytes == 0
    assert rows(found, "responses", "topic") == ["b"]
    named = ("partition_index", "error_code", "high_watermark")
    assert rows(found, "responses.partitions", *named) == [(2, TOPIC, -1)]


def test_groups_are_for_who_consumes() -> None:
    someone = Someone("produce")
    assert someone.asks(Api.JOIN_GROUP, 5, group_id="g")[0].error_code == GROUP
    hidden, _ = someone.asks(Api.LIST_GROUPS, 2)
    assert (hidden.error_code, hidden.groups) == (0, [])
    topics = [{"name": "t", "partitions": [{"partition_index": 7}]}]
    commit, _ = someone.asks(Api.OFFSET_COMMIT, 8, group_id="g", topics=topics)
    named = ("partition_index", "error_code")
    assert rows(commit, "topics.partitions", *named) == [(7, GROUP)]


def test_a_handler_checks_what_a_rule_does_not_say() -> None:
    alice = Someone("consume", consume="a")
    _, handler = alice.asks(Api.OFFSET_FETCH, 5, "answered", group_id="g", topics=None)
    may, see = handler.client.may, on_topics(Operation.DESCRIBE)
    assert may(on_groups(Operation.DESCRIBE))
    assert may(see, "a")
    assert not may(see, "b", is_noted=False)
    assert not alice.complaints.counts
    assert not may(see, "b")
    assert alice.complaints.counts == {DENIED: 1}


def test_what_changes_the_cluster_is_for_admins() -> None:
    asked = {"topics": [{"name": "t"}]}
    answered = response(Api.CREATE_TOPICS, topics=[])
    found, _ = Someone("produce", "consume").asks(Api.CREATE_TOPICS, 6, answered, **asked)
    assert errors(found) == {"t": CLUSTER}
    assert "kafka-user" in found.topics[0].error_message
    _, handler = Someone("admin").asks(Api.CREATE_TOPICS, 6, answered, **asked)
    assert rows(handler.request, "topics", "name") == ["t"]
    dirs, _ = Someone("consume").asks(Api.DESCRIBE_LOG_DIRS, 4, topics=None)
    assert dirs.error_code == CLUSTER


def test_refusals_are_counted_and_said_once_of_each_user_and_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alice = Someone("consume", consume="a")
    octets = EncodedResponse([encoded_answers([], 8)])
    with caplog.at_level(logging.WARNING, "dafka.kafka"):
        for _ in range(3):
            alice.asks(Api.METADATA, 8, described(), **metadata("b\n" + "x" * 1_000))
            alice.asks(Api.PRODUCE, 8, octets, **produce("a"))
    assert alice.complaints.counts == {DENIED: 6}
    first, second = (each.getMessage() for each in caplog.records)
    assert "alice may not METADATA: it needs DESCRIBE on topic 'b" in first
    assert "\n" not in first
    assert len(first) < MAX_NAME + 200
    assert "alice may not PRODUCE: it needs WRITE on topic 'a'" in second


ELEMENT = SimpleNamespace(
    **dict.fromkeys(("name", "topic", "resource_name", "resource_name_filter"), "t"),
    resource_type=Resource.TOPIC,
    partitions=[SimpleNamespace(partition_index=7, partition=7)],
    partition_data=[SimpleNamespace(index=7)],
    partition_indexes=[7],
)
"""An element of requests, with the fields of all kinds of them."""

NAMES = (Api.DESCRIBE_GROUPS, Api.DELETE_TOPICS, Api.DELETE_GROUPS)
"""APIs with requests that list only names."""

RULES = {api: each.rule for api, each in APIS.items() if each.rule is not None}


def test_only_authentication_has_no_rule() -> None:
    assert {*APIS} - {*RULES} == {Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}


def error_codes(response: Any, version: int) -> list[int]:
    """Return all errors in a response, as its client reads them."""

    def within(each: Any) -> list[int]:
        if isinstance(each, (list, tuple)):
            return [code for one in each for code in within(one)]
        if not hasattr(each, "fields"):
            return []
        own = [each.error_code] if "error_code" in each.fields and each.error_code else []
        return own + [code for name in each.fields for code in within(getattr(each, name))]

    return within(type(response).decode(response.encode(version=version), version=version))


@pytest.mark.parametrize("api", [each for each in RULES if RULES[each].each is not None])
def test_a_part_is_refused_with_the_error_of_its_resource(api: Api) -> None:
    rule = RULES[api]
    part = "t" if api in NAMES else ELEMENT
    assert rule.each is not None
    need, name = rule.each(part)
    assert name == "t"
    error = REFUSALS[need.resource]
    for version in versions(api):
        response = schemas.made_response(api, {rule.answered: [rule.refused(part, error)]})
        assert error_codes(response, version) == [error]


@pytest.mark.parametrize("api", [each for each in RULES if RULES[each].whole is not None])
def test_all_of_a_request_is_refused_where_its_response_has_a_place_for_it(api: Api) -> None:
    whole = RULES[api].whole
    assert whole is not None
    for version in versions(api):
        response = schemas.empty_response(api, version, REFUSALS[whole.resource], "why")
        has_place = schemas.error_response(api, version, 0) is not None
        assert error_codes(response, version) == [REFUSALS[whole.resource]] * has_place
        # The others list the requested elements with errors, or are empty.
        assert has_place or RULES[api].answered or api == Api.DESCRIBE_LOG_DIRS
