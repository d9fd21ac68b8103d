"""Access checks: the permissions that each API requires, and its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.model.names import printable
from dafka_kafka import schemas
from dafka_kafka import schemas as s
from dafka_kafka.api_versions import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Client, Complaints, EncodedResponse, Handler, Response
from dafka_kafka.users import REFUSALS, Need, Operation, Resource, Rights

# The rules by API: a request is refused as a whole, or each topic, group or resource in it. An
# API without a rule is not served to users.


WHY: Final = "the user may not do this: 'dafka kafka-user show' lists what each one may"
"""The reason that clients get where Kafka has a field for it."""

GROUP: Final = 0
"""FindCoordinator's key type for groups; the other one is for transactions."""

Named = Callable[[Any], tuple[Need, str]]
Refused = Callable[[Any, KafkaError], Any]


@dataclass(frozen=True)
class Rule:
    """The permissions that an API requires.

    Args:
        whole: for the request as a whole.
        asked: the request's field that lists topics, groups or resources.
        each: returns the permission required for one of these, and its name.
        answered: the response's field with their results.
        refused: makes the result of a refused one.
        only_if: whether ``whole`` applies to this request.
        is_hidden: a refused client gets an empty list instead of an error.
    """

    whole: Need | None = None
    asked: str = ""
    each: Named | None = None
    answered: str = ""
    refused: Refused | None = None
    only_if: Callable[[Any], bool] = lambda _: True
    is_hidden: bool = False

    def refusal(self, part: Any, error: KafkaError) -> Any:
        """Return the result of a refused part."""
        assert self.refused is not None
        return self.refused(part, error)


def _topic(operation: Operation, name: str = "name") -> Named:
    need = Need(Resource.TOPIC, operation)
    return lambda each: (need, getattr(each, name))


def _text(need: Need) -> Named:
    """The listed elements are the names."""
    return lambda each: (need, each)


def _configs(operation: Operation) -> Named:
    def needs(each: Any) -> tuple[Need, str]:
        is_topic = each.resource_type == Resource.TOPIC
        kind = Resource.TOPIC if is_topic else Resource.CLUSTER
        return Need(kind, operation), each.resource_name

    return needs


def _one(kind: Any, field: str = "name", named: str = "name", **more: Any) -> Refused:
    """Refuse an element by its name; ``named`` is the request's field with the name, if any."""

    def refused(each: Any, error: KafkaError) -> Any:
        return kind(**{field: getattr(each, named) if named else each}, error_code=error, **more)

    return refused


def _partitions(
    kind: Any,
    part: Any,
    asked: str = "partitions",
    *,
    number: str = "partition_index",
    in_request: str = "partition_index",
    name: str = "name",
    listed: str = "partitions",
    **unknown: Any,
) -> Refused:
    """Refuse each partition of a topic; ``unknown`` are values for its other fields."""

    def refused(topic: Any, error: KafkaError) -> Any:
        numbers = [getattr(each, in_request, each) for each in getattr(topic, asked)]
        parts = [part(**{number: each}, error_code=error, **unknown) for each in numbers]
        return kind(**{name: getattr(topic, name), listed: parts})

    return refused


def _config(kind: Any, **more: Any) -> Refused:
    return lambda each, error: kind(
        error_code=error,
        error_message=WHY,
        resource_type=each.resource_type,
        resource_name=each.resource_name,
        **more,
    )


_O = Operation
_SEE_GROUPS: Final = Need(Resource.GROUP, _O.DESCRIBE)
_READ_GROUPS: Final = Need(Resource.GROUP, _O.READ)
_DELETE_GROUPS: Final = Need(Resource.GROUP, _O.DELETE)
_DELETE_TOPIC: Final = Need(Resource.TOPIC, _O.DELETE)
_SEE_CLUSTER: Final = Need(Resource.CLUSTER, _O.DESCRIBE)
_CREATE: Final = Need(Resource.CLUSTER, _O.CREATE)
_ALTER: Final = Need(Resource.CLUSTER, _O.ALTER)
_SEE_CONFIGS: Final = Need(Resource.CLUSTER, _O.DESCRIBE_CONFIGS)

_WRITTEN = s.ProduceResponse.TopicProduceResponse
_READ = s.FetchResponse.FetchableTopicResponse
_BOUNDS = s.ListOffsetsResponse.ListOffsetsTopicResponse
_COMMITTED = s.OffsetCommitResponse.OffsetCommitResponseTopic
_FOUND = s.OffsetFetchResponse.OffsetFetchResponseTopic
_FORGOTTEN = s.OffsetDeleteResponse.OffsetDeleteResponseTopic
_TRIMMED = s.DeleteRecordsResponse.DeleteRecordsTopicResult

RULES: Final[Mapping[int, Rule]] = MappingProxyType(
    {
        Api.PRODUCE: Rule(
            asked="topic_data",
            each=_topic(_O.WRITE),
            answered="responses",
            refused=_partitions(
                _WRITTEN,
                _WRITTEN.PartitionProduceResponse,
                "partition_data",
                number="index",
                in_request="index",
                listed="partition_responses",
                base_offset=-1,
                error_message=WHY,
            ),
        ),
        Api.FETCH: Rule(
            asked="topics",
            each=_topic(_O.READ, "topic"),
            answered="responses",
            refused=_partitions(
                _READ,
                _READ.PartitionData,
                in_request="partition",
                name="topic",
                high_watermark=-1,
                aborted_transactions=None,
            ),
        ),
        Api.LIST_OFFSETS: Rule(
            asked="topics",
            each=_topic(_O.DESCRIBE),
            answered="topics",
            refused=_partitions(_BOUNDS, _BOUNDS.ListOffsetsPartitionResponse),
        ),
        Api.METADATA: Rule(
            asked="topics",
            each=_topic(_O.DESCRIBE),
            answered="topics",
            refused=_one(s.MetadataResponse.MetadataResponseTopic),
        ),
        Api.OFFSET_COMMIT: Rule(
            _READ_GROUPS,
            asked="topics",
            each=_topic(_O.READ),
            answered="topics",
            refused=_partitions(_COMMITTED, _COMMITTED.OffsetCommitResponsePartition),
        ),
        Api.OFFSET_FETCH: Rule(
            _SEE_GROUPS,
            asked="topics",
            each=_topic(_O.DESCRIBE),
            answered="topics",
            refused=_partitions(
                _FOUND,
                _FOUND.OffsetFetchResponsePartition,
                "partition_indexes",
                committed_offset=-1,
                metadata="",
            ),
        ),
        Api.FIND_COORDINATOR: Rule(_SEE_GROUPS, only_if=lambda asked: asked.key_type == GROUP),
        Api.JOIN_GROUP: Rule(_READ_GROUPS),
        Api.HEARTBEAT: Rule(_READ_GROUPS),
        Api.LEAVE_GROUP: Rule(_READ_GROUPS),
        Api.SYNC_GROUP: Rule(_READ_GROUPS),
        Api.DESCRIBE_GROUPS: Rule(
            asked="groups",
            each=_text(_SEE_GROUPS),
            answered="groups",
            refused=_one(s.DescribeGroupsResponse.DescribedGroup, "group_id", "", members=[]),
        ),
        Api.LIST_GROUPS: Rule(_SEE_GROUPS, is_hidden=True),
        Api.CREATE_TOPICS: Rule(
            asked="topics",
            each=lambda each: (_CREATE, each.name),
            answered="topics",
            refused=_one(s.CreateTopicsResponse.CreatableTopicResult, error_message=WHY),
        ),
        Api.DELETE_TOPICS: Rule(
            asked="topic_names",
            each=_text(_DELETE_TOPIC),
            answered="responses",
            refused=_one(
                s.DeleteTopicsResponse.DeletableTopicResult, "name", "", error_message=WHY
            ),
        ),
        Api.DELETE_RECORDS: Rule(
            asked="topics",
            each=_topic(_O.DELETE),
            answered="topics",
            refused=_partitions(_TRIMMED, _TRIMMED.DeleteRecordsPartitionResult, low_watermark=-1),
        ),
        Api.INIT_PRODUCER_ID: Rule(Need(Resource.CLUSTER, _O.IDEMPOTENT_WRITE)),
        Api.DESCRIBE_ACLS: Rule(_SEE_CLUSTER),
        Api.CREATE_ACLS: Rule(
            asked="creations",
            each=lambda each: (_ALTER, each.resource_name),
            answered="results",
            refused=lambda _, error: s.CreateAclsResponse.AclCreationResult(
                error_code=error, error_message=WHY
            ),
        ),
        Api.DELETE_ACLS: Rule(
            asked="filters",
            each=lambda each: (_ALTER, each.resource_name_filter or ""),
            answered="filter_results",
            refused=lambda _, error: s.DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=error, error_message=WHY, matching_acls=[]
            ),
        ),
        Api.DESCRIBE_CONFIGS: Rule(
            asked="resources",
            each=_configs(_O.DESCRIBE_CONFIGS),
            answered="results",
            refused=_config(s.DescribeConfigsResponse.DescribeConfigsResult, configs=[]),
        ),
        Api.ALTER_CONFIGS: Rule(
            asked="resources",
            each=_configs(_O.ALTER_CONFIGS),
            answered="responses",
            refused=_config(s.AlterConfigsResponse.AlterConfigsResourceResponse),
        ),
        Api.INCREMENTAL_ALTER_CONFIGS: Rule(
            asked="resources",
            each=_configs(_O.ALTER_CONFIGS),
            answered="responses",
            refused=_config(s.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse),
        ),
        Api.DESCRIBE_LOG_DIRS: Rule(_SEE_CLUSTER),
        Api.CREATE_PARTITIONS: Rule(
            asked="topics",
            each=_topic(_O.ALTER),
            answered="results",
            refused=_one(s.CreatePartitionsResponse.CreatePartitionsTopicResult, error_message=WHY),
        ),
        Api.DELETE_GROUPS: Rule(
            asked="groups_names",
            each=_text(_DELETE_GROUPS),
            answered="results",
            refused=_one(s.DeleteGroupsResponse.DeletableGroupResult, "group_id", ""),
        ),
        Api.LIST_PARTITION_REASSIGNMENTS: Rule(_SEE_CLUSTER),
        Api.OFFSET_DELETE: Rule(
            _DELETE_GROUPS,
            asked="topics",
            each=_topic(_O.DESCRIBE),
            answered="topics",
            refused=_partitions(_FORGOTTEN, _FORGOTTEN.OffsetDeleteResponsePartition),
        ),
        Api.DESCRIBE_CLIENT_QUOTAS: Rule(_SEE_CONFIGS),
        Api.DESCRIBE_CLUSTER: Rule(),
        Api.LIST_TRANSACTIONS: Rule(),
    }
)
"""The APIs served to users. Those that precede authentication require nothing."""


DENIED: Final = "requests for what their user may not do"

SAY_AGAIN_S: Final = 60.0
"""Interval between log lines for a user and an API: clients retry."""

MAX_NAME: Final = 200
"""Length of a name in the log: clients can invent names."""

_MAKES: Final = frozenset({Operation.WRITE, Operation.CREATE})
_SEE: Final = Need(Resource.TOPIC, Operation.DESCRIBE)

_OF_CLUSTER: Final = "include_cluster_authorized_operations"
_OF_TOPICS: Final = "include_topic_authorized_operations"
_ASKED_OPERATIONS: Final[Mapping[int, Sequence[str]]] = MappingProxyType(
    {
        Api.METADATA: (_OF_TOPICS, _OF_CLUSTER),
        Api.DESCRIBE_CLUSTER: (_OF_CLUSTER,),
        Api.DESCRIBE_GROUPS: ("include_authorized_operations",),
    }
)
"""Request fields by which clients ask for their permitted operations."""


class Access:
    """Checks requests of users, and refuses what is not permitted."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints

    async def answer(
        self, api_key: int, request: Any, client: Client, rights: Rights, handler: Handler
    ) -> Response:
        """Run ``handler`` for the permitted parts, and add the refusals of the others.

        Raises:
            ProtocolError: refused, and the client expects no response: close the connection.
        """
        rule = RULES[api_key]
        if rule.whole is not None and not rights.may(rule.whole) and rule.only_if(request):
            self._note(api_key, client, rights, rule.whole)
            return _refusal(api_key, request, rule, client.version)
        is_all = _is_all(api_key, request, client.version)
        refused = [] if is_all else self._taken_out(api_key, request, client, rights)
        if api_key == Api.METADATA and not is_all:
            # In version 0 an empty list means all topics.
            version = client.version or int(not request.topics)
            may_make = partial(self._may_make, client, rights)
            response = await handler(request, replace(client, version=version, may_make=may_make))
        else:
            response = await handler(request, client)
        if not (refused or _tells(api_key, request) or (is_all and not rights.sees_all)):
            return response
        if response is None:
            why = "a request without an answer asked for what its user may not do"
            raise ProtocolError(why)
        is_encoded = isinstance(response, EncodedResponse)
        # The cache in ``Rights`` belongs to the loop.
        held = Rights(rights.permissions) if is_encoded else rights
        work = _Completion(api_key, request, held, refused, is_all=is_all)
        if is_encoded:
            return await asyncio.to_thread(work.encoded, response, client.version)
        return work.completed(response)

    def _taken_out(
        self, api_key: int, request: Any, client: Client, rights: Rights
    ) -> Sequence[Any]:
        rule = RULES[api_key]
        if rule.each is None:
            return ()
        asked = getattr(request, rule.asked)
        refused = [each for each in asked if not rights.may(*rule.each(each))]
        if not refused:
            return ()
        self._note(api_key, client, rights, *rule.each(refused[0]))
        errors = [(each, REFUSALS[rule.each(each)[0].resource]) for each in refused]
        setattr(request, rule.asked, [each for each in asked if rights.may(*rule.each(each))])
        if api_key == Api.FETCH:
            request.min_bytes = 0  # a client with an error should not wait for records
        return errors

    def _may_make(self, client: Client, rights: Rights, topic: str) -> bool:
        if not _MAKES.isdisjoint(rights.operations(Resource.TOPIC, topic)):
            return True
        self._note(Api.METADATA, client, rights, Need(Resource.TOPIC, Operation.CREATE), topic)
        return False

    def _note(
        self, api_key: int, client: Client, rights: Rights, need: Need, name: str = ""
    ) -> None:
        user, api = rights.permissions.name, Api(api_key).name
        what = need.resource.name.lower()
        named = f"{what} {printable(name[:MAX_NAME])!r}" if name and what == "topic" else what
        why = f"{user} may not {api}: it needs {need.operation.name} on {named}"
        self._complaints.note(DENIED, client.host, why, of=(user, api_key), again_s=SAY_AGAIN_S)


class _Completion:
    """Adds refusals and permitted operations to a response."""

    def __init__(
        self, api_key: int, request: Any, rights: Rights, refused: Sequence[Any], *, is_all: bool
    ) -> None:
        self._api_key = api_key
        self._request = request
        self._rights = rights
        self._refused = refused
        self._is_all = is_all

    def encoded(self, response: EncodedResponse, version: int) -> EncodedResponse:
        """Complete an encoded response; in a thread, as it may be large."""
        octets = b"".join(response.pieces)
        decoded = schemas.decode_response(self._api_key, version, octets)
        return EncodedResponse([self.completed(decoded).encode(version=version)])

    def completed(self, response: Any) -> Any:
        """Return the response with refusals and operations, and without hidden topics."""
        rule, request, rights = RULES[self._api_key], self._request, self._rights
        if self._is_all:
            response.topics = [each for each in response.topics if rights.may(_SEE, each.name)]
        for field in filter(partial(getattr, request), _ASKED_OPERATIONS.get(self._api_key, ())):
            if field == _OF_CLUSTER:
                response.authorized_operations = rights.operations(Resource.CLUSTER)
            elif field == _OF_TOPICS:
                for each in response.topics:
                    each.authorized_operations = rights.operations(Resource.TOPIC, each.name)
            else:
                for each in response.groups:
                    each.authorized_operations = rights.operations(Resource.GROUP)
        for part, error in self._refused:
            getattr(response, rule.answered).append(rule.refusal(part, error))
        return response


def _is_all(api_key: int, request: Any, version: int) -> bool:
    if api_key == Api.METADATA:
        return request.topics is None or (version == 0 and not request.topics)
    return api_key == Api.OFFSET_FETCH and request.topics is None


def _tells(api_key: int, request: Any) -> bool:
    return any(getattr(request, each) for each in _ASKED_OPERATIONS.get(api_key, ()))


def _refusal(api_key: int, request: Any, rule: Rule, version: int) -> Any:
    assert rule.whole is not None
    error = KafkaError.NONE if rule.is_hidden else REFUSALS[rule.whole.resource]
    response = schemas.empty_response(api_key, version, error, WHY if error else None)
    if rule.answered:
        parts = getattr(request, rule.asked) or ()
        setattr(response, rule.answered, [rule.refusal(each, error) for each in parts])
    return response
