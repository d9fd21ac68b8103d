"""Metadata, DescribeTopicPartitions and DescribeCluster: topics, partitions and gateways."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.security.throttles import LogThrottle
from dafka_kafka.api import (
    Answer,
    Api,
    Client,
    Feature,
    Response,
    encoded,
    on_topics,
    serves,
)
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.gateways import GATEWAYS_TOPIC
from dafka_kafka.registry_table import NumberedPartition
from dafka_kafka.topics import KAFKAS_OWN, wrong_name
from dafka_kafka.users import TOPIC_OPERATIONS, Operation, Resource

CREATION_S: Final = 5.0  # longest wait for the creation of a requested topic; the client asks again

MOST_INLINE: Final = 1_000
"""Partitions in a response that is made in the loop, in about 20 ms; larger ones use a thread."""

_SEE: Final = on_topics(Operation.DESCRIBE)
_WRITE: Final = on_topics(Operation.WRITE)
_CREATE: Final = on_topics(Operation.CREATE)
FIRST_WITH_IDS: Final = 12
"""The first version that names topics by ids; they are unknown, as topics have none here."""

_BROKERS: Final = 1  # the endpoint type of DescribeCluster

_log: Final = logging.getLogger("dafka.kafka")


class Metadata(Feature):
    """Describes topics, and creates missing ones if allowed."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._registry = node.registry
        self._said = LogThrottle()

    @serves(Api.METADATA, range(14))
    async def _metadata(self, request: Any, client: Client) -> Response:
        by_id = [each for each in request.topics or () if each.name is None]
        if by_id and client.version < FIRST_WITH_IDS:
            raise ProtocolError(f"a Metadata of version {client.version} without a topic's name")
        if request.topics is None or (client.version == 0 and not request.topics):
            errors = dict.fromkeys(await self._all(client), KafkaError.NONE)
        else:
            names = [each.name for each in request.topics if each.name is not None]
            errors = await self._found(names, client, creates=request.allow_auto_topic_creation)
        partitions = {
            topic: () if error else self._registry.table.partitions(topic)
            for topic, error in errors.items()
        }
        asked = errors if request.include_topic_authorized_operations else ()
        of_topics = {each: client.operations(Resource.TOPIC, each) for each in asked}
        of_cluster = _of_cluster(request, client)

        def answer() -> Answer:
            return self._answer(errors, partitions, by_id, of_topics) | of_cluster

        if sum(map(len, partitions.values())) <= MOST_INLINE:
            return answer()

        version = client.version
        return await self._node.in_thread(lambda: encoded(Api.METADATA, version, answer()))

    async def _all(self, client: Client) -> list[str]:
        """Return all topics that a client may see, sorted."""
        await self._try(self._registry.refresh())
        topics = sorted(self._registry.table.topics)
        return [each for each in topics if client.may(_SEE, each, is_noted=False)]

    @serves(Api.DESCRIBE_TOPIC_PARTITIONS, range(1))
    async def _describe_partitions(self, request: Any, client: Client) -> Answer:
        """Describe topics by name, from the cursor on, until the response is full."""
        start = request.cursor
        first, number = (start.topic_name, start.partition_index) if start else ("", 0)
        if number < 0:
            raise ProtocolError(f"a cursor at partition {number}")
        names = {each.name for each in request.topics} or await self._all(client)
        asked = sorted(each for each in names if each >= first)
        errors = await self._found(asked, client, creates=False)
        room = min(max(request.response_partition_limit, 1), MOST_INLINE)
        found, cursor = [], None
        for name in asked:
            rest = () if errors[name] else self._registry.table.partitions(name)
            rest = rest[number if name == first else 0 :]
            page, room = rest[:room], room - len(rest)
            if page or not rest:
                found.append(self._described(name, errors[name], page, client))
            if room < 0:
                at = page[-1].number + 1 if page else 0
                cursor = {"topic_name": name, "partition_index": at}
                break
        return {"topics": found, "next_cursor": cursor}

    def _described(
        self, name: str, error: KafkaError, page: Sequence[NumberedPartition], client: Client
    ) -> Answer:
        allowed = sum(
            1 << each
            for each in TOPIC_OPERATIONS
            if not error and client.may(on_topics(each), name, is_noted=False)
        )
        ids = [each.node_id for each in self._node.gateways.live()]
        found = self._topic(name, error, page, ids)
        for each in found["partitions"]:  # Java's clients fail if these are null, the default
            each |= {"eligible_leader_replicas": [], "last_known_elr": []}
        return found | {"topic_authorized_operations": allowed}

    @serves(Api.DESCRIBE_CLUSTER, range(3))
    async def _describe_cluster(self, request: Any, client: Client) -> Answer:
        if client.version > 0 and request.endpoint_type != _BROKERS:
            why = "only brokers, no controllers"
            raise RefusedError(KafkaError.UNSUPPORTED_ENDPOINT_TYPE, why)
        found = self._cluster("broker_id") | {"cluster_id": self._registry.table.cluster_id or ""}
        return found | _of_cluster(request, client)

    async def _found(
        self, names: Iterable[str], client: Client, *, creates: bool
    ) -> dict[str, KafkaError]:
        registry, options = self._registry, self._node.options
        errors = {each: client.refusal(_SEE, each) for each in names}

        def missing() -> list[str]:
            return [
                name
                for name, error in errors.items()
                if not error and registry.table.get(name, 0) is None
            ]

        if any(map(registry.exists, missing())):
            await self._try(registry.refresh())
        made = []
        for name in missing():
            if wrong_name(name) and name not in KAFKAS_OWN:
                errors[name] = KafkaError.INVALID_TOPIC_EXCEPTION
            elif name in KAFKAS_OWN or not (creates and options.auto_create_topics):
                errors[name] = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            elif not client.may(_WRITE, name, is_noted=False) and (
                refusal := client.refusal(_CREATE, name)
            ):
                errors[name] = refusal
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
            why = getattr(error, "why", f"it takes more than {CREATION_S:.0f} s")
            if self._said.is_new(why):  # clients retry
                _log.warning("a topic for Kafka clients cannot be made: %s", why)

    def _answer(
        self,
        errors: dict[str, KafkaError],
        partitions: Mapping[str, Sequence[NumberedPartition]],
        by_id: Sequence[Any],
        operations: Mapping[str, Any],
    ) -> Answer:
        ids = [each.node_id for each in self._node.gateways.live()]
        topics = [
            self._topic(name, error, partitions[name], ids)
            | {"authorized_operations": operations.get(name)}
            for name, error in errors.items()
        ]
        unknown = {"error_code": KafkaError.UNKNOWN_TOPIC_ID, "name": None}
        topics += [unknown | {"topic_id": each.topic_id} for each in by_id]
        return self._cluster("node_id") | {"topics": topics}

    def _cluster(self, number: str) -> Answer:
        """Return the gateways, with their ids in field ``number``."""
        gateways = self._node.gateways
        return {
            "cluster_id": self._registry.table.cluster_id,
            "controller_id": gateways.chosen(GATEWAYS_TOPIC).node_id,  # all name the same one
            "brokers": [
                {number: each.node_id, "host": each.host, "port": each.port}
                for each in gateways.live()
            ],
        }

    def _topic(
        self,
        name: str,
        error: KafkaError,
        partitions: Sequence[NumberedPartition],
        ids: Sequence[int],
    ) -> Answer:
        """Return a topic; every live gateway is a replica, as every store has its records."""
        found = []
        for each in partitions:
            leader = self._node.gateways.leader(each).node_id
            copies = [leader, *(other for other in ids if other != leader)]
            found.append(
                {
                    "partition_index": each.number,
                    "leader_id": leader,
                    "replica_nodes": copies,
                    "isr_nodes": copies,
                }
            )
        return {"error_code": error, "name": name, "partitions": found}


def _of_cluster(request: Any, client: Client) -> Answer:
    """Return the permitted operations on the cluster, if the client asks for them."""
    if not request.include_cluster_authorized_operations:
        return {}
    return {"authorized_operations": client.operations(Resource.CLUSTER)}
