"""What a user needs for each kind of request, and how it is refused: all of it, or a part of it.

A kind of request that has no rule is not served to users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dafka_core.kafka import schemas as s
from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.rights import Need, Operation, Resource

WHY: Final = "the user may not do this: 'dafka kafka-user show' lists what each one may"
"""What a client is told beside the error, where Kafka has room."""

GROUP: Final = 0
"""The kind of coordinator that is asked for, of two: the other one is for transactions."""

Named = Callable[[Any], tuple[Need, str]]
Refused = Callable[[Any, KafkaError], Any]


@dataclass(frozen=True)
class Rule:
    """What a kind of request needs.

    Args:
        whole: for any of it.
        asked: the field that lists what the request is about, if it does.
        each: what is needed for one of these, and the name of what it is about.
        answered: where its response lists what has become of them.
        refused: what is listed there of one that is not allowed.
        only_if: ``whole`` is needed of requests alone of which this is true.
        is_hidden: who may see nothing is told that there is nothing.
    """

    whole: Need | None = None
    asked: str = ""
    each: Named | None = None
    answered: str = ""
    refused: Refused | None = None
    only_if: Callable[[Any], bool] = lambda _: True
    is_hidden: bool = False

    def refusal(self, part: Any, error: KafkaError) -> Any:
        """What is listed in the response of a part that is not allowed."""
        assert self.refused is not None
        return self.refused(part, error)


def _topic(operation: Operation, name: str = "name") -> Named:
    need = Need(Resource.TOPIC, operation)
    return lambda each: (need, getattr(each, name))


def _text(need: Need) -> Named:
    """What is listed are the names themselves."""
    return lambda each: (need, each)


def _configs(operation: Operation) -> Named:
    def needs(each: Any) -> tuple[Need, str]:
        is_topic = each.resource_type == Resource.TOPIC
        kind = Resource.TOPIC if is_topic else Resource.CLUSTER
        return Need(kind, operation), each.resource_name

    return needs


def _one(kind: Any, field: str = "name", named: str = "name", **more: Any) -> Refused:
    """Refuses what is listed by its name; ``named`` is that field in the request, if any."""

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
    """Refuses each partition of a topic; ``unknown`` is said in place of what it has."""

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
"""All that users are served.  What is known before they have said who they are needs nothing."""
