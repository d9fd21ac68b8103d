"""The requests of Kafka's clients about committed offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.gateway_node import Client, GatewayNode, Handler
from dafka_core.kafka.groups.coordinator import Coordinator
from dafka_core.kafka.groups.group import Group
from dafka_core.kafka.groups.group_records import DELETED, Committed
from dafka_core.kafka.groups.group_states import GroupState
from dafka_core.kafka.groups.member import CONSUMER, subscribed_topics
from dafka_core.kafka.groups.offsets import Place, records_of
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.schemas import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)

UNKNOWN: Final = -1
"""The offset of a partition of which nothing is committed."""

_log: Final = logging.getLogger("dafka.kafka")


class OffsetRequests:
    """Answers OffsetCommit, OffsetFetch and OffsetDelete."""

    def __init__(self, node: GatewayNode, coordinator: Coordinator) -> None:
        self._node = node
        self._coordinator = coordinator
        self.handlers: dict[int, Handler] = {
            Api.OFFSET_COMMIT: self._commit,
            Api.OFFSET_FETCH: self._fetch,
            Api.OFFSET_DELETE: self._delete,
        }

    async def _commit(self, request: Any, client: Client) -> Any:
        asked = [(topic.name, each) for topic in request.topics for each in topic.partitions]
        group = self._coordinator.group(request.group_id)
        error = group if isinstance(group, KafkaError) else self._may_commit(group, request)
        time_ms = self._node.store.log.now_us() // 1_000
        errors: dict[Place, KafkaError] = {}
        commits = []
        for topic, each in asked:
            place = topic, each.partition_index
            errors[place] = error or self._refusal(place, each)
            if errors[place] is KafkaError.NONE:
                offset, epoch = each.committed_offset, each.committed_leader_epoch
                metadata = each.committed_metadata or ""
                commits.append(Committed(*place, offset, epoch, metadata, time_ms))
        failure = await self._written(request.group_id, commits)
        for each in commits:
            errors[each.topic, each.number] = failure
        if isinstance(group, Group):
            self._coordinator.settle(group)
        response = OffsetCommitResponse.OffsetCommitResponseTopic
        partition = response.OffsetCommitResponsePartition
        return OffsetCommitResponse(
            throttle_time_ms=0,
            topics=_by_topic(
                request.topics,
                lambda topic, each: partition(
                    partition_index=each.partition_index,
                    error_code=errors[topic, each.partition_index],
                ),
                response,
            ),
        )

    def _may_commit(self, group: Group, request: Any) -> KafkaError:
        error = group.may_commit(
            self._coordinator.now(),
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
        )
        is_gone = error is KafkaError.UNKNOWN_MEMBER_ID and not group.members
        if is_gone and request.generation_id_or_member_epoch >= 0:
            return KafkaError.ILLEGAL_GENERATION  # as Kafka: the group is not known any more
        return error

    def _refusal(self, place: Place, asked: Any) -> KafkaError:
        if self._node.numbers.get(*place) is None:
            return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        size_bytes = len((asked.committed_metadata or "").encode())
        is_too_large = size_bytes > self._node.options.offset_metadata_max_bytes
        return KafkaError.OFFSET_METADATA_TOO_LARGE if is_too_large else KafkaError.NONE

    async def _written(self, group_id: str, commits: list[Committed]) -> KafkaError:
        """Writes what a group has committed; the error to answer if it is not on disk."""
        if not commits:
            return KafkaError.NONE
        counter = self._coordinator.offsets.next_counter()
        try:
            await self._coordinator.log.write([*records_of(group_id, counter, commits)])
        except InvalidRequestError:
            return KafkaError.INVALID_COMMIT_OFFSET_SIZE
        except TimeoutError:
            return KafkaError.REQUEST_TIMED_OUT
        except DafkaError as error:
            _log.warning("offsets of group %r are not committed: %s", group_id, error)
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        return KafkaError.NONE

    async def _fetch(self, request: Any, client: Client) -> Any:
        error = self._coordinator.error(request.group_id) or KafkaError.NONE
        committed = {} if error else self._coordinator.offsets.committed(request.group_id)
        topic = OffsetFetchResponse.OffsetFetchResponseTopic
        partition = topic.OffsetFetchResponsePartition

        def answered(name: str, number: int) -> Any:
            found = committed.get((name, number)) or Committed(name, number, UNKNOWN)
            return partition(
                partition_index=number,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
                error_code=KafkaError.NONE if client.version >= 2 else error,
            )

        asked: Iterable[tuple[str, Sequence[int]]]
        if request.topics is None:
            numbers: dict[str, list[int]] = {}
            for name, number in committed:
                numbers.setdefault(name, []).append(number)
            asked = numbers.items()
        else:
            asked = [(each.name, each.partition_indexes) for each in request.topics]
        return OffsetFetchResponse(
            throttle_time_ms=0,
            error_code=error,
            topics=[
                topic(name=name, partitions=[answered(name, each) for each in numbers_])
                for name, numbers_ in asked
            ],
        )

    async def _delete(self, request: Any, client: Client) -> Any:
        group = self._coordinator.group(request.group_id)
        error = group if isinstance(group, KafkaError) else KafkaError.NONE
        subscribed: set[str] | None = set()
        if isinstance(group, Group):
            if not self._coordinator.is_known(group):
                error = KafkaError.GROUP_ID_NOT_FOUND
            elif group.members and group.protocol_type != CONSUMER:
                error = KafkaError.NON_EMPTY_GROUP
            subscribed = _subscribed(group)
            self._coordinator.settle(group)
        response = OffsetDeleteResponse.OffsetDeleteResponseTopic
        if error:
            return OffsetDeleteResponse(error_code=error, throttle_time_ms=0, topics=[])
        gone = [
            Committed(topic.name, each.partition_index, DELETED)
            for topic in request.topics
            for each in topic.partitions
            if subscribed is not None and topic.name not in subscribed
        ]
        failure = await self._written(request.group_id, gone)
        partition = response.OffsetDeleteResponsePartition

        def answered(topic: str, each: Any) -> Any:
            is_read = subscribed is None or topic in subscribed
            error = KafkaError.GROUP_SUBSCRIBED_TO_TOPIC if is_read else failure
            return partition(partition_index=each.partition_index, error_code=error)

        return OffsetDeleteResponse(
            error_code=KafkaError.NONE,
            throttle_time_ms=0,
            topics=_by_topic(request.topics, answered, response),
        )


def _by_topic(topics: Iterable[Any], answered: Callable[[str, Any], Any], kind: Any) -> list[Any]:
    return [
        kind(name=topic.name, partitions=[answered(topic.name, each) for each in topic.partitions])
        for topic in topics
    ]


def _subscribed(group: Group) -> set[str] | None:
    """The topics that a group's members read; None if that is not known."""
    if group.state is GroupState.EMPTY:
        return set()
    found: set[str] = set()
    for member in group.members.values():
        for _, metadata in member.joined.protocols:
            topics = subscribed_topics(metadata)
            if topics is None:
                return None
            found |= topics
    return found
