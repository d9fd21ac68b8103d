"""Metadata, DescribeTopicPartitions and DescribeCluster: topics, partitions and gateways."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_kafka.api import (
    Api,
    Client,
    EncodedResponse,
    Feature,
    Rule,
    named_topic,
    on_topics,
    refuse_one,
    serves,
)
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.gateways import GatewayInfo
from dafka_kafka.registry_table import NumberedPartition
from dafka_kafka.schemas import (
    DescribeClusterResponse,
    DescribeTopicPartitionsResponse,
    MetadataResponse,
)
from dafka_kafka.topics import KAFKAS_OWN, wrong_name
from dafka_kafka.users import TOPIC_OPERATIONS, Operation

CREATION_S: Final = 5.0
"""Longest wait for the creation of a requested topic; the client asks again."""

SAY_AGAIN_S: Final = 30.0
"""Interval between warnings about topics that can't be created: clients retry."""

MOST_INLINE: Final = 1_000
"""Partitions in a response that is made in the loop, in about 20 ms; larger ones use a thread."""

_Broker = MetadataResponse.MetadataResponseBroker
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition
_Described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_DescribedPartition = _Described.DescribeTopicPartitionsResponsePartition
_SEE: Final = on_topics(Operation.DESCRIBE)
_NO_EPOCH: Final = -1
FIRST_WITH_IDS: Final = 12
"""The first version that names topics by ids; they are unknown, as topics have none here."""

_BROKERS: Final = 1  # the endpoint type of DescribeCluster

_log: Final = logging.getLogger("dafka.kafka")


class Metadata(Feature):
    """Describes topics, and creates missing ones if allowed."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._registry = node.registry
        self._said_s = float("-inf")

    @serves(
        Api.METADATA,
        range(14),
        Rule(
            each=named_topic(Operation.DESCRIBE),
            refused=refuse_one(_Topic),
        ),
    )
    async def _metadata(self, request: Any, client: Client) -> Any:
        by_id = [each for each in request.topics or () if each.name is None]
        if by_id and client.version < FIRST_WITH_IDS:
            raise ProtocolError(f"a Metadata of version {client.version} without a topic's name")
        if request.topics is None or (client.version == 0 and not request.topics):
            await self._try(self._registry.refresh())
            errors = dict.fromkeys(sorted(self._registry.topics()), KafkaError.NONE)
        else:
            names = dict.fromkeys(each.name for each in request.topics if each.name is not None)
            errors = await self._found(
                names, creates=request.allow_auto_topic_creation, may_make=client.may_make
            )
        partitions = {topic: self._registry.partitions(topic) for topic in errors}
        if sum(map(len, partitions.values())) <= MOST_INLINE:
            return self._response(errors, partitions, by_id)
        return await self._node.in_thread(self._encoded, errors, partitions, by_id, client.version)

    @serves(Api.DESCRIBE_TOPIC_PARTITIONS, range(1), Rule())
    async def _describe_partitions(self, request: Any, client: Client) -> Any:
        """Describe topics by name, from the cursor on, until the response is full."""
        kind, start = DescribeTopicPartitionsResponse, request.cursor
        first, number = (start.topic_name, start.partition_index) if start else ("", 0)
        if number < 0:
            raise ProtocolError(f"a cursor at partition {number}")
        names = {each.name for each in request.topics}
        if not names:
            await self._try(self._registry.refresh())
            topics = self._registry.topics()
            names = {each for each in topics if client.may(_SEE, each, is_noted=False)}
        asked = sorted(each for each in names if each >= first)
        refused = {each for each in asked if not client.may(_SEE, each)}
        seen = (each for each in asked if each not in refused)
        errors = await self._found(seen, creates=False, may_make=client.may_make)
        errors |= dict.fromkeys(refused, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        room = min(max(request.response_partition_limit, 1), MOST_INLINE)
        found, cursor = [], None
        for name in asked:
            rest = () if errors[name] else self._registry.partitions(name)
            rest = rest[number if name == first else 0 :]
            page, room = rest[:room], room - len(rest)
            if page or not rest:
                found.append(self._described(name, errors[name], page, client))
            if room < 0:
                at = page[-1].number + 1 if page else 0
                cursor = kind.Cursor(topic_name=name, partition_index=at)
                break
        return kind(throttle_time_ms=0, topics=found, next_cursor=cursor)

    def _described(
        self, name: str, error: KafkaError, page: Sequence[NumberedPartition], client: Client
    ) -> Any:
        gateways = self._node.gateways
        ids = [each.node_id for each in gateways.live()]
        allowed = sum(
            1 << each
            for each in TOPIC_OPERATIONS
            if not error and client.may(on_topics(each), name, is_noted=False)
        )
        return _Described(
            error_code=error,
            name=name,
            partitions=[
                _partition(_DescribedPartition, each.number, gateways.leader(each), ids)
                for each in page
            ],
            topic_authorized_operations=allowed,
        )

    @serves(Api.DESCRIBE_CLUSTER, range(3), Rule())
    async def _describe_cluster(self, request: Any, client: Client) -> Any:
        if client.version > 0 and request.endpoint_type != _BROKERS:
            error, why = KafkaError.UNSUPPORTED_ENDPOINT_TYPE, "only brokers, no controllers"
            return DescribeClusterResponse(error_code=error, error_message=why, cluster_id="")
        brokers = [
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=each.node_id, host=each.host, port=each.port, rack=None
            )
            for each in self._node.gateways.live()
        ]
        return DescribeClusterResponse(
            error_code=KafkaError.NONE,
            endpoint_type=_BROKERS,
            cluster_id=self._registry.cluster_id or "",
            controller_id=self._node.gateways.controller().node_id,
            brokers=brokers,
        )

    async def _found(
        self, names: Iterable[str], *, creates: bool, may_make: Callable[[str], bool]
    ) -> dict[str, KafkaError]:
        registry, options = self._registry, self._node.options
        errors = dict.fromkeys(names, KafkaError.NONE)

        def missing() -> list[str]:
            return [name for name in errors if registry.get(name, 0) is None]

        if any(map(registry.exists, missing())):
            await self._try(registry.refresh())
        made = []
        for name in missing():
            if wrong_name(name) and name not in KAFKAS_OWN:
                errors[name] = KafkaError.INVALID_TOPIC_EXCEPTION
            elif name in KAFKAS_OWN or not (creates and options.auto_create_topics):
                errors[name] = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            elif not may_make(name):
                errors[name] = KafkaError.TOPIC_AUTHORIZATION_FAILED
            else:
                made.append(name)
        if made:
            create = (registry.create(each, options.num_partitions) for each in made)
            await self._try(asyncio.gather(*create))
        late = set(missing()).intersection(made)
        return errors | dict.fromkeys(late, KafkaError.LEADER_NOT_AVAILABLE)

    async def _try(self, work: Any) -> None:
        """Await work; log a failure or a timeout, as the client asks again."""
        try:
            async with asyncio.timeout(CREATION_S):
                await work
        except (RefusedError, TimeoutError) as error:
            now = time.monotonic()
            if now >= self._said_s + SAY_AGAIN_S:
                self._said_s = now
                why = getattr(error, "why", f"it takes more than {CREATION_S:.0f} s")
                _log.warning("a topic for Kafka clients cannot be made: %s", why)

    def _encoded(
        self,
        errors: dict[str, KafkaError],
        partitions: dict[str, Sequence[NumberedPartition]],
        by_id: Sequence[Any],
        version: int,
    ) -> EncodedResponse:
        return EncodedResponse([self._response(errors, partitions, by_id).encode(version=version)])

    def _response(
        self,
        errors: dict[str, KafkaError],
        partitions: dict[str, Sequence[NumberedPartition]],
        by_id: Sequence[Any],
    ) -> Any:
        gateways = self._node.gateways
        live = gateways.live()
        ids = [each.node_id for each in live]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                _Broker(node_id=each.node_id, host=each.host, port=each.port, rack=None)
                for each in live
            ],
            cluster_id=self._registry.cluster_id,
            controller_id=gateways.controller().node_id,
            topics=[
                _Topic(
                    error_code=error,
                    name=name,
                    is_internal=False,
                    partitions=[
                        _partition(_Partition, each.number, gateways.leader(each), ids)
                        for each in partitions[name]
                    ],
                )
                for name, error in errors.items()
            ]
            + [
                _Topic(error_code=KafkaError.UNKNOWN_TOPIC_ID, name=None, topic_id=each.topic_id)
                for each in by_id
            ],
        )


def _partition(kind: Any, number: int, leader: GatewayInfo, ids: Sequence[int]) -> Any:
    """Return a partition; every live gateway is a replica, as every store has its records."""
    copies = [leader.node_id, *(each for each in ids if each != leader.node_id)]
    return kind(
        error_code=0,
        partition_index=number,
        leader_id=leader.node_id,
        leader_epoch=_NO_EPOCH,
        replica_nodes=copies,
        isr_nodes=copies,
        offline_replicas=[],
    )
