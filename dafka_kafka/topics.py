"""CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from dafka_core.errors import DafkaError, ProtocolError
from dafka_core.flight.requests import Trimmed, TrimRequest
from dafka_core.model.name_limits import check_topic
from dafka_core.model.names import INTERNAL
from dafka_kafka.api_versions import Api
from dafka_kafka.configs import (
    ANSWER_S,
    RETENTION,
    Source,
    changed,
    changed_configs,
    check_all_there,
    parsed,
    refused_config,
    set_retention,
    tell_others,
    topic_configs,
)
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway_node import Client, Feature, GatewayNode, Handler
from dafka_kafka.schemas import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
)

MAX_NAME_BYTES: Final = 249
"""Kafka's limit."""

KAFKAS_OWN: Final = {
    *("__consumer_offsets", "__transaction_state", "__share_group_state"),
    *("__cluster_metadata", "__remote_log_metadata"),
}
"""Topics of Kafka's brokers.  A gateway has none: an empty one misleads tools that measure lag.
Clients may create others whose names begin with ``__``, as Debezium does."""

_LEGAL: Final = re.compile(rf"(?a)[a-zA-Z0-9._-]{{1,{MAX_NAME_BYTES}}}")


def wrong_name(topic: str | None) -> str:
    """Why Kafka clients can make no topic of this name; empty where they can.

    Topics that Dafka's own clients have made have other names, too, and are served.
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
"""Of a topic, that a client may ask for: a slip of the finger is not to fill the list."""

DEFAULT: Final = -1
"""The count for which the gateway's option is taken."""

HIGH_WATERMARK: Final = -1
"""The offset by which DeleteRecords means all records."""

NO_DELETION: Final = "topics cannot be deleted here: the gateway has option delete_topics = false"

WRITE_S: Final = 30.0
"""How long the disk may take for what was on its way there when a topic was deleted."""

OfTopic = Callable[[str], Awaitable[None]]
"""What is done with a topic."""

_log: Final = logging.getLogger("dafka.kafka")

_Created = CreateTopicsResponse.CreatableTopicResult
_Deleted = DeleteRecordsResponse.DeleteRecordsTopicResult


class Topics(Feature):
    """Makes and deletes topics and partitions, and gives up the first records of a partition.

    Args:
        settle: waits until nothing more is written of a topic without numbers.
        forget: has groups forget what they have committed of a topic.
    """

    def __init__(self, node: GatewayNode, *, settle: OfTopic, forget: OfTopic) -> None:
        self._node = node
        self._settle = settle
        self._forget = forget
        self._works: set[asyncio.Task[None]] = set()
        self.handlers: dict[int, Handler] = {
            Api.CREATE_TOPICS: self._create_topics,
            Api.CREATE_PARTITIONS: self._create_partitions,
            Api.DELETE_TOPICS: self._delete_topics,
            Api.DELETE_RECORDS: self._delete_records,
        }

    async def close(self) -> None:
        """Gives up what is not done."""
        for each in self._works:
            each.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Has it done, also if the client goes meanwhile: there would be half a topic otherwise."""
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_say_failure)
            raise

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
            count, gateways, limits = self._checked_topic(topic, times)
            if not validate_only:
                await self._to_its_end(self._make(topic.name, count, gateways, limits))
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
                    read_only=name not in RETENTION,
                    config_source=Source.DYNAMIC_TOPIC_CONFIG
                    if name in changed_configs(self._node, topic.name)
                    else Source.DEFAULT_CONFIG,
                    is_sensitive=False,
                )
                for name, value in topic_configs(self._node, topic.name).items()
            ],
        )

    async def _make(
        self, topic: str, count: int, gateways: Sequence[str], limits: Mapping[str, int | None]
    ) -> None:
        rules = self._node.store.retention_control.rules
        is_changed = bool(limits) and changed(topic, rules, limits) != rules
        if is_changed:
            check_all_there(self._node.store)
        await self._node.numbers.create(topic, count, new=True, gateways=gateways)
        if is_changed:
            try:
                await set_retention(self._node, topic, limits)
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
        if self._node.numbers.is_there(topic.name):
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} is there")
        count = self._checked_count(topic)
        limits = {}
        for config in topic.configs or ():
            if config.name in RETENTION:
                limits[config.name] = parsed(config.name, config.value)
            elif why := refused_config(self._node, topic.name, config.name, config.value):
                raise RefusedError(KafkaError.INVALID_CONFIG, why)
        numbers = [each.partition_index for each in topic.assignments or ()]
        if numbers and sorted(numbers) != list(range(count)):
            why = f"partitions {numbers} are assigned: it must be each one from 0 on, once"
            raise RefusedError(KafkaError.INVALID_REPLICA_ASSIGNMENT, why)
        in_order = sorted(topic.assignments or (), key=lambda each: each.partition_index)
        return count, self._assigned(in_order), limits

    def _checked_count(self, topic: Any) -> int:
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
        result = DeleteTopicsResponse.DeletableTopicResult

        async def delete(name: str) -> Any:
            error, why = await _outcome(self._delete(name, client.version))
            return result(name=name, error_code=error, error_message=why)

        found = await asyncio.gather(*map(delete, dict.fromkeys(request.topic_names)))
        return DeleteTopicsResponse(throttle_time_ms=0, responses=found)

    async def _delete(self, topic: str, version: int) -> None:
        """Deletes a topic at all stores; those that are away do it when they come back."""
        if not self._node.options.delete_topics:
            disabled = KafkaError.TOPIC_DELETION_DISABLED
            raise RefusedError(
                disabled if version >= 3 else KafkaError.INVALID_REQUEST, NO_DELETION
            )
        if topic.startswith(INTERNAL):
            raise RefusedError(KafkaError.INVALID_TOPIC_EXCEPTION, f"topic {topic!r} is internal")
        store = self._node.store
        held = []
        with contextlib.suppress(ProtocolError):  # a name that no topic has
            check_topic(topic)
            held = await self._node.in_thread(store.log.partitions, topic)
        has_rule = bool(changed_configs(self._node, topic))
        # Records or a rule without numbers: it was cut short before.
        is_left = has_rule or any(info.earliest < info.end for info in held)
        if not (is_left or self._node.numbers.is_there(topic)):
            why = f"there is no topic {topic!r}"
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, why)
        if has_rule:
            # At a store that does not hear of it the topic's rule would be that of the next one.
            check_all_there(store)
        await self._to_its_end(self._remove(topic, has_rule=has_rule))

    async def _remove(self, topic: str, *, has_rule: bool) -> None:
        numbers, deletions = self._node.numbers, self._node.store.deletions
        # Another gateway may write to those that it hosts until it has heard of it.
        hosted = numbers.hosted(topic)
        await numbers.delete(topic)
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
        """Has all stores that are there give up records; the offset of the first that is left."""
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
        low = await self._node.in_thread(log.trim, found.tp, before)
        request = TrimRequest(((*found.tp, before),))
        try:
            await self._node.in_thread(
                tell_others, self._node.store, lambda other: other.ask(Trimmed, ANSWER_S, request)
            )
        except RefusedError as refused:
            _log.warning("%s: records before offset %d: %s", found.tp, before, refused.why)
            return -1, KafkaError(refused.code)
        return low, KafkaError.NONE


def _say_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("what a client asked for that has gone is not done: %s", error)


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
