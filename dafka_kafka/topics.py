"""CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dafka_core.errors import DafkaError, ProtocolError, StoreError
from dafka_core.flight.limits import MAX_TRANSACTIONS, parts
from dafka_core.flight.requests import TrimRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.name_limits import check_topic
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import TopicPartition
from dafka_core.storage.log import TRIM_PARTITIONS
from dafka_kafka.api import (
    Answer,
    Api,
    Client,
    Feature,
    on_cluster,
    on_topics,
    outcome,
    serves,
)
from dafka_kafka.configs import (
    ANSWER_S,
    REGISTERED,
    changed,
    check_all_there,
    own_rule,
    set_retention,
    tell_others,
    topic_configs,
    values_of,
)
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.fetch import readable, say_damaged
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.partition_registry import check_more
from dafka_kafka.users import Operation

MAX_NAME_BYTES: Final = 249  # Kafka's limit

KAFKAS_OWN: Final = {
    *("__consumer_offsets", "__transaction_state", "__share_group_state"),
    *("__cluster_metadata", "__remote_log_metadata"),
}
"""Topics of Kafka's own brokers. A gateway has none: an empty one would mislead tools that measure
lag. Clients may create others whose names begin with ``__``, as Debezium does."""

_LEGAL: Final = re.compile(rf"(?a)[a-zA-Z0-9._-]{{1,{MAX_NAME_BYTES}}}")


def wrong_name(topic: str | None) -> str:
    """Return why Kafka clients can't create a topic of this name; empty if they can.

    Topics of Dafka's own clients may have other names, and are served.
    """
    if not topic:
        return "the topic has no name"
    if topic.startswith(INTERNAL):
        return f"names of Dafka's own topics begin with {INTERNAL}"
    if topic in KAFKAS_OWN:
        return (
            f"{topic} is internal to Kafka's brokers, and a gateway has none: choose another name"
        )
    if topic in (".", "..") or not _LEGAL.fullmatch(topic):
        return (
            f"a topic that is made by a client of Kafka has a name of 1 to {MAX_NAME_BYTES} "
            "letters, digits, dots, hyphens and underscores, and not of dots alone"
        )
    return ""


MAX_PARTITIONS: Final = 10_000
"""Limit in one request, so that a typing error does not fill the registry."""

DEFAULT: Final = -1  # stands for the gateway's default
HIGH_WATERMARK: Final = -1  # stands for the end in DeleteRecords

NO_IDS: Final = "topics have no ids here: name the topic"

NO_DELETION: Final = "topics cannot be deleted here: the gateway has option delete_topics = false"

WRITE_S: Final = 30.0  # time for writes in flight when a topic is deleted
OfTopic = Callable[[str], Awaitable[None]]  # one operation on a topic

_log: Final = logging.getLogger("dafka.kafka")


class Topics(Feature):
    """Creates and deletes topics and partitions, and trims partitions.

    Args:
        settle: waits until no write of a topic without numbers is in flight.
        forget: deletes the groups' committed offsets of a topic.
    """

    def __init__(self, node: GatewayNode, *, settle: OfTopic, forget: OfTopic) -> None:
        self._node = node
        self._settle = settle
        self._forget = forget

    # -- topics and partitions -------------------------------------------------------------------

    @serves(Api.CREATE_TOPICS, range(8))
    async def _create_topics(self, request: Any, client: Client) -> Answer:
        counts = Counter(each.name for each in request.topics)
        unique = {each.name: each for each in request.topics}
        found = (
            self._create(each, client, counts[name], request.validate_only)
            for name, each in unique.items()
        )
        return {"topics": await asyncio.gather(*found)}

    async def _create(self, topic: Any, client: Client, times: int, validate_only: bool) -> Answer:
        try:
            client.check(on_cluster(Operation.CREATE))
            count, gateways, values = self._checked_topic(topic, times)
            if not validate_only:
                await self.to_its_end(self._make(topic.name, count, gateways, values))
        except RefusedError as refused:
            why = refused.why
            return {"name": topic.name, "error_code": refused.code, "error_message": why}
        return {
            "name": topic.name,
            "error_message": None,
            "num_partitions": count,
            "replication_factor": 1 + len(self._node.store.known.names),
            "configs": [each.shown for each in topic_configs(self._node, topic.name)],
        }

    async def _make(
        self, topic: str, count: int, gateways: Sequence[str], values: Mapping[str, int | None]
    ) -> None:
        rules = self._node.store.retention_control.rules
        is_changed = bool(values) and changed(topic, rules, values) != rules
        if is_changed:
            check_all_there(self._node.store)
        configs = {name: values[name] for name in REGISTERED if name in values}
        await self._node.registry.create(topic, count, new=True, gateways=gateways, configs=configs)
        if is_changed:
            try:
                await set_retention(self._node, topic, values)
            except RefusedError as refused:
                why = f"{refused.why}; so the topic is not made"
                try:
                    await self._remove(topic, has_rule=True)
                except RefusedError as again:
                    why = f"{why}, and {again.why}"
                raise RefusedError(refused.code, why) from None

    def _checked_topic(
        self, topic: Any, times: int
    ) -> tuple[int, list[str], dict[str, int | None]]:
        if times > 1:
            raise RefusedError(KafkaError.INVALID_REQUEST, "the request has this topic twice")
        if why := wrong_name(topic.name):
            raise RefusedError(KafkaError.INVALID_TOPIC_EXCEPTION, why)
        if self._node.registry.exists(topic.name):
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} is there")
        count = self._checked_count(topic)
        values = values_of(self._node, topic.configs or ())
        numbers = [each.partition_index for each in topic.assignments or ()]
        if numbers and sorted(numbers) != list(range(count)):
            why = f"partitions {numbers} are assigned: it must be each one from 0 on, once"
            raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
        in_order = sorted(topic.assignments or (), key=lambda each: each.partition_index)
        return count, self._assigned(in_order), values

    def _checked_count(self, topic: Any) -> int:
        count, copies = topic.num_partitions, topic.replication_factor
        if topic.assignments:
            if (count, copies) != (DEFAULT, DEFAULT):
                why = "assignments exclude a number of partitions and a replication factor"
                raise RefusedError(KafkaError.INVALID_REQUEST, why)
            return _checked(len(topic.assignments))
        stores = 1 + len(self._node.store.known.names)
        if copies != DEFAULT and not 1 <= copies <= stores:
            why = f"replication factor {copies}: there are {stores} stores, and each keeps all"
            raise RefusedError(KafkaError.INVALID_REPLICATION_FACTOR, why)
        return self._node.options.num_partitions if count == DEFAULT else _checked(count)

    def _assigned(self, assignments: Sequence[Any]) -> list[str]:
        """Return the gateways that will take writes: the first one of each assignment."""
        live = {each.node_id: each.address for each in self._node.gateways.live()}
        found = []
        for each in assignments:
            if not each.broker_ids or not live.keys() >= set(each.broker_ids):
                why = f"nodes {each.broker_ids}: those that are live are {sorted(live)}"
                raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
            found.append(live[each.broker_ids[0]])
        return found

    @serves(Api.CREATE_PARTITIONS, range(4))
    async def _create_partitions(self, request: Any, client: Client) -> Answer:
        counts = Counter(each.name for each in request.topics)
        unique = {each.name: each for each in request.topics}

        async def extend(topic: Any) -> Answer:
            work = self._extend(topic, client, counts[topic.name], request.validate_only)
            return {"name": topic.name} | await outcome(work)

        return {"results": await asyncio.gather(*map(extend, unique.values()))}

    async def _extend(self, topic: Any, client: Client, times: int, validate_only: bool) -> None:
        client.check(on_topics(Operation.ALTER), topic.name)
        if times > 1:
            raise RefusedError(KafkaError.INVALID_REQUEST, "the request has this topic twice")
        registry = self._node.registry
        registry.check_exists(topic.name)
        known, count = len(registry.table.partitions(topic.name)), _checked(topic.count)
        check_more(topic.name, known, count)
        gateways = self._assigned(topic.assignments) if topic.assignments is not None else []
        if gateways and len(gateways) != count - known:
            why = f"{count - known} partitions are to be added, and {len(gateways)} are assigned"
            raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
        if not validate_only:
            await registry.extend(topic.name, count, gateways=gateways)

    @serves(Api.DELETE_TOPICS, range(7))
    async def _delete_topics(self, request: Any, client: Client) -> Answer:
        async def delete(name: str | None, topic_id: Any) -> Answer:
            return {"name": name, "topic_id": topic_id} | await outcome(self._delete(name, client))

        named = [(each.name, each.topic_id) for each in request.topics]
        asked = dict.fromkeys(named or ((name, None) for name in request.topic_names))
        return {"responses": await asyncio.gather(*(delete(*each) for each in asked))}

    async def _delete(self, topic: str | None, client: Client) -> None:
        """Delete a topic at all stores; stores that are away do so when they return."""
        if topic is None:
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_ID, NO_IDS)
        client.check(on_topics(Operation.DELETE), topic)
        if not self._node.options.delete_topics:
            disabled = KafkaError.TOPIC_DELETION_DISABLED
            raise RefusedError(
                disabled if client.version >= 3 else KafkaError.INVALID_REQUEST, NO_DELETION
            )
        if topic.startswith(INTERNAL):
            raise RefusedError(KafkaError.INVALID_TOPIC_EXCEPTION, f"topic {topic!r} is internal")
        store = self._node.store
        held = []
        with contextlib.suppress(ProtocolError):  # no topic has such a name
            check_topic(topic)
            held = await self._node.in_thread(store.log.partitions, topic)
        has_rule = own_rule(topic, store.retention_control.rules) is not None
        # Records or a rule without numbers: an earlier deletion was interrupted.
        is_left = has_rule or any(info.earliest < info.end for info in held)
        if not (is_left or self._node.registry.exists(topic)):
            why = f"topic {topic!r} does not exist"
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, why)
        if has_rule:
            # A store that misses the deletion would apply the rule to the next topic of this
            # name.
            check_all_there(store)
        await self.to_its_end(self._remove(topic, has_rule=has_rule))

    async def _remove(self, topic: str, *, has_rule: bool) -> None:
        registry, deletions = self._node.registry, self._node.store.deletions
        # Other gateways may write to their partitions until they have read the registry.
        hosted = registry.hosted(topic)
        await registry.delete(topic)
        try:
            async with asyncio.timeout(WRITE_S):
                await self._settle(topic)
            if has_rule:
                await set_retention(self._node, topic, {}, anew=True)
            await self._node.in_thread(deletions.delete, topic, hosted)
            await self._forget(topic)
        except (DafkaError, RefusedError, TimeoutError) as error:
            code = error.code if isinstance(error, RefusedError) else KafkaError.KAFKA_STORAGE_ERROR
            why = str(error) or f"the disk takes more than {WRITE_S:.0f} s"
            why = f"topic {topic!r} is deleted in part, ask again: {why}"
            raise RefusedError(code, why) from None

    # -- records ---------------------------------------------------------------------------------

    @serves(Api.DELETE_RECORDS, range(3))
    async def _delete_records(self, request: Any, client: Client) -> Answer:
        found = [(topic, self._bounds(topic, client)) for topic in request.topics]
        wanted = {each.tp: each.offset for _, bounds in found for each in bounds if each.tp}
        lows, failure = dict[TopicPartition, int](), KafkaError.NONE
        try:
            lows = await self._node.in_thread(self._trim, wanted)
        except StoreError as damage:
            failure = say_damaged(damage)
        except RefusedError as refused:
            _log.warning("records of %d partitions are not deleted: %s", len(wanted), refused.why)
            failure = KafkaError(refused.code)

        def result(asked: Any, bound: _Bound) -> Answer:
            low, error = bound.offset, bound.error
            if bound.tp is not None:
                low, error = lows.get(bound.tp, -1), failure
            number = asked.partition_index
            return {"partition_index": number, "low_watermark": low, "error_code": error}

        return {
            "topics": [
                {"name": topic.name, "partitions": [*map(result, topic.partitions, bounds)]}
                for topic, bounds in found
            ]
        }

    def _bounds(self, topic: Any, client: Client) -> list[_Bound]:
        refusal = client.refusal(on_topics(Operation.DELETE), topic.name)
        return [
            _Bound(None, error=refusal) if refusal else self._bound(topic.name, each)
            for each in topic.partitions
        ]

    def _bound(self, topic: str, asked: Any) -> _Bound:
        found = readable(self._node, topic, asked.partition_index)
        if isinstance(found, KafkaError):
            return _Bound(None, error=found)
        end = self._node.watermark(found, self._node.store.log.end(found))
        if end is None:
            return _Bound(None, error=KafkaError.NOT_ENOUGH_REPLICAS)
        before = end if asked.offset == HIGH_WATERMARK else asked.offset
        if not 0 <= before <= end:
            return _Bound(None, error=KafkaError.OFFSET_OUT_OF_RANGE)
        return _Bound(found if end else None, before)

    def _trim(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Trim partitions at all reachable stores; return their first remaining offsets.

        It blocks. Kafka Streams and tools name hundreds of partitions: one by one they would take
        longer than clients wait.

        Raises:
            StoreError: this store failed.
            RefusedError: another store failed.
        """
        lows: dict[TopicPartition, int] = {}
        for part in parts([*wanted.items()], TRIM_PARTITIONS):
            lows |= zip(dict(part), self._node.store.log.trim_all(part), strict=True)

        def tell(other: StoreClient) -> None:
            for part in parts([*wanted.items()], MAX_TRANSACTIONS):
                trims = tuple((*tp, before) for tp, before in part)
                other.ask(ANSWER_S, TrimRequest(trims))

        if wanted:
            tell_others(self._node.store, tell)
        return lows


class _Bound(NamedTuple):
    """The offset before which a partition's records are to be deleted; without it, the result."""

    tp: TopicPartition | None
    offset: int = -1
    error: KafkaError = KafkaError.NONE


def _checked(count: int) -> int:
    if not 1 <= count <= MAX_PARTITIONS:
        why = f"{count} partitions: a topic has 1 to {MAX_PARTITIONS} that are made by a client"
        raise RefusedError(KafkaError.INVALID_PARTITIONS, why)
    return count
