"""CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.configs import Source, refused_config, topic_configs
from dafka_core.kafka.gateway_node import Client, Feature, GatewayNode, Handler
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.refusal import RefusedError
from dafka_core.kafka.schemas import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
)
from dafka_core.kafka.topic_names import wrong_name

MAX_PARTITIONS: Final = 10_000
"""Of a topic, that a client may ask for: a slip of the finger is not to fill the list."""

DEFAULT: Final = -1
"""The count for which the gateway's option is taken."""

HIGH_WATERMARK: Final = -1
"""The offset by which DeleteRecords means all records."""

NO_DELETION: Final = (
    "topics cannot be deleted yet: stores keep what they have, and give it to each other again"
)

_Created = CreateTopicsResponse.CreatableTopicResult
_Deleted = DeleteRecordsResponse.DeleteRecordsTopicResult


class Topics(Feature):
    """Makes topics and partitions, and gives up the first records of a partition."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self.handlers: dict[int, Handler] = {
            Api.CREATE_TOPICS: self._create_topics,
            Api.CREATE_PARTITIONS: self._create_partitions,
            Api.DELETE_TOPICS: self._delete_topics,
            Api.DELETE_RECORDS: self._delete_records,
        }

    # -- topics and partitions -------------------------------------------------------------------

    async def _create_topics(self, request: Any, client: Client) -> Any:
        counts = Counter(each.name for each in request.topics)
        unique = {each.name: each for each in request.topics}
        found = (
            self._create(each, counts[name], request.validate_only) for name, each in unique.items()
        )
        return CreateTopicsResponse(throttle_time_ms=0, topics=await asyncio.gather(*found))

    async def _create(self, topic: Any, times: int, validate_only: bool) -> Any:
        try:
            count, gateways = self._checked_topic(topic, times)
            if not validate_only:
                await self._node.numbers.create(topic.name, count, new=True, gateways=gateways)
        except RefusedError as refused:
            return _Created(name=topic.name, error_code=refused.code, error_message=refused.why)
        return _Created(
            name=topic.name,
            error_code=KafkaError.NONE,
            num_partitions=count,
            replication_factor=1 + len(self._node.store.known_stores),
            configs=[
                _Created.CreatableTopicConfigs(
                    name=name,
                    value=value,
                    read_only=True,
                    config_source=Source.DEFAULT_CONFIG,
                    is_sensitive=False,
                )
                for name, value in topic_configs(self._node, topic.name).items()
            ],
        )

    def _checked_topic(self, topic: Any, times: int) -> tuple[int, list[str]]:
        """How many partitions a new topic gets, and the gateways for them, if some are named."""
        if times > 1:
            raise RefusedError(KafkaError.INVALID_REQUEST, "the request has this topic twice")
        if why := wrong_name(topic.name):
            raise RefusedError(KafkaError.INVALID_TOPIC_EXCEPTION, why)
        if self._node.numbers.is_there(topic.name):
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} is there")
        count = self._checked_count(topic)
        for config in topic.configs or ():
            if why := refused_config(self._node, topic.name, config.name, config.value):
                raise RefusedError(KafkaError.INVALID_CONFIG, why)
        numbers = [each.partition_index for each in topic.assignments or ()]
        if numbers and sorted(numbers) != list(range(count)):
            why = f"partitions {numbers} are assigned: it must be each one from 0 on, once"
            raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
        in_order = sorted(topic.assignments or (), key=lambda each: each.partition_index)
        return count, self._assigned(in_order)

    def _checked_count(self, topic: Any) -> int:
        """How many partitions a new topic gets."""
        count, copies = topic.num_partitions, topic.replication_factor
        if topic.assignments:
            if (count, copies) != (DEFAULT, DEFAULT):
                why = "with assignments there is no number of partitions, and no replication factor"
                raise RefusedError(KafkaError.INVALID_REQUEST, why)
            return _checked(len(topic.assignments))
        stores = 1 + len(self._node.store.known_stores)
        if copies != DEFAULT and not 1 <= copies <= stores:
            why = f"replication factor {copies}: there are {stores} stores, and each keeps all"
            raise RefusedError(KafkaError.INVALID_REPLICATION_FACTOR, why)
        return self._node.options.num_partitions if count == DEFAULT else _checked(count)

    def _assigned(self, assignments: Sequence[Any]) -> list[str]:
        """The gateways that are to take writes: the first one that each assignment names."""
        live = {each.node_id: each.address for each in self._node.gateways.live()}
        found = []
        for each in assignments:
            if not each.broker_ids or not live.keys() >= set(each.broker_ids):
                why = f"nodes {each.broker_ids}: those that are live are {sorted(live)}"
                raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
            found.append(live[each.broker_ids[0]])
        return found

    async def _create_partitions(self, request: Any, client: Client) -> Any:
        result = CreatePartitionsResponse.CreatePartitionsTopicResult
        counts = Counter(each.name for each in request.topics)
        unique = {each.name: each for each in request.topics}

        async def extend(topic: Any) -> Any:
            error, why = await _outcome(
                self._extend(topic, counts[topic.name], request.validate_only)
            )
            return result(name=topic.name, error_code=error, error_message=why)

        found = await asyncio.gather(*map(extend, unique.values()))
        return CreatePartitionsResponse(throttle_time_ms=0, results=found)

    async def _extend(self, topic: Any, times: int, validate_only: bool) -> None:
        if times > 1:
            raise RefusedError(KafkaError.INVALID_REQUEST, "the request has this topic twice")
        numbers = self._node.numbers
        if not numbers.is_there(topic.name):
            why = f"there is no topic {topic.name!r}"
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, why)
        known, count = len(numbers.partitions(topic.name)), _checked(topic.count)
        if count <= known:
            why = f"topic {topic.name!r} has {known} partitions, and {count} are not more"
            raise RefusedError(KafkaError.INVALID_PARTITIONS, why)
        gateways = self._assigned(topic.assignments) if topic.assignments is not None else []
        if gateways and len(gateways) != count - known:
            why = f"{count - known} partitions are to be added, and {len(gateways)} are assigned"
            raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
        if not validate_only:
            await numbers.extend(topic.name, count, gateways=gateways)

    async def _delete_topics(self, request: Any, client: Client) -> Any:
        # As a broker does that has ``delete.topic.enable=false``.
        disabled = KafkaError.TOPIC_DELETION_DISABLED
        error = disabled if client.version >= 3 else KafkaError.INVALID_REQUEST
        result = DeleteTopicsResponse.DeletableTopicResult
        names = dict.fromkeys(request.topic_names)
        found = [result(name=each, error_code=error, error_message=NO_DELETION) for each in names]
        return DeleteTopicsResponse(throttle_time_ms=0, responses=found)

    # -- records ---------------------------------------------------------------------------------

    async def _delete_records(self, request: Any, client: Client) -> Any:
        topics = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                low, error = await self._give_up(topic.name, each.partition_index, each.offset)
                partitions.append(
                    _Deleted.DeleteRecordsPartitionResult(
                        partition_index=each.partition_index, low_watermark=low, error_code=error
                    )
                )
            topics.append(_Deleted(name=topic.name, partitions=partitions))
        return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)

    async def _give_up(self, topic: str, number: int, before: int) -> tuple[int, KafkaError]:
        """Has this store give up records; returns the offset of the first that is left."""
        found = self._node.numbers.get(topic, number)
        if found is None:
            return -1, KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        gateways = self._node.gateways
        if gateways.leader(found) != gateways.own:
            return -1, KafkaError.NOT_LEADER_OR_FOLLOWER
        log = self._node.store.log
        end = log.end(found.tp)
        before = end if before == HIGH_WATERMARK else before
        if not 0 <= before <= end:
            return -1, KafkaError.OFFSET_OUT_OF_RANGE
        if not end:
            return 0, KafkaError.NONE
        return await self._node.in_thread(log.trim, found.tp, before), KafkaError.NONE


def _checked(count: int) -> int:
    if not 1 <= count <= MAX_PARTITIONS:
        why = f"{count} partitions: a topic has 1 to {MAX_PARTITIONS} that are made by a client"
        raise RefusedError(KafkaError.INVALID_PARTITIONS, why)
    return count


async def _outcome(work: Any) -> tuple[KafkaError, str | None]:
    try:
        await work
    except RefusedError as refused:
        return KafkaError(refused.code), refused.why
    return KafkaError.NONE, None
