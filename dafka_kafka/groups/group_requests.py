"""The group APIs: membership, coordinators and committed offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dafka_core.errors import DafkaError, InvalidRequestError, ProtocolError
from dafka_kafka.api import (
    WHY,
    Api,
    Client,
    Feature,
    Rule,
    named_topic,
    on_groups,
    on_topics,
    plain_name,
    refuse_one,
    refuse_partitions,
    serves,
)
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.groups.coordinator import MAX_GROUPS, Coordinator, OffsetLog
from dafka_kafka.groups.group import (
    CONSUMER,
    Group,
    GroupState,
    JoinAnswer,
    Joining,
    SyncAnswer,
    subscribed_topics,
)
from dafka_kafka.groups.offsets import DELETED, Committed, Place, records_of
from dafka_kafka.schemas import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from dafka_kafka.users import Operation

UNKNOWN: Final = -1
"""The offset of a partition without a commit."""

_log: Final = logging.getLogger("dafka.kafka")


def _by_topic(topics: Iterable[Any], answered: Callable[[str, Any], Any], kind: Any) -> list[Any]:
    return [
        kind(name=topic.name, partitions=[answered(topic.name, each) for each in topic.partitions])
        for topic in topics
    ]


def _subscribed(group: Group) -> set[str] | None:
    """Return the topics that a group's members consume; None if unknown."""
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


def _few(groups: Sequence[Any]) -> Sequence[Any]:
    """Return the groups that a request names; raise ProtocolError for too many."""
    if len(groups) > MAX_GROUPS:
        raise ProtocolError(f"a request that names more than {MAX_GROUPS} groups")
    return groups


FIRST_WITH_GROUP_ERROR: Final = 2
FIRST_WITH_KEYS: Final = 4
FIRST_WITH_PROTOCOL: Final = 5
FIRST_WITH_MISSING: Final = 6
FIRST_WITH_GROUPS: Final = 8
"""The first versions of OffsetFetch with an error of the group, of FindCoordinator for several
keys, of SyncGroup with the group's protocol, of DescribeGroups with an error for a missing group,
and of OffsetFetch for several groups."""

GROUP: Final = 0
KEY_TYPES: Final = (GROUP, 1)
"""FindCoordinator's key types; the other one is for transactional ids, which are refused."""

CLASSIC: Final = "classic"
"""The only group type, by Kafka's name."""


class Groups(Feature):
    """Answers all requests about groups and committed offsets."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self._coordinator = Coordinator(node, OffsetLog(node))

    async def start(self) -> None:
        """Start to load the groups."""
        self._coordinator.start()

    async def close(self) -> None:
        """End the groups' waiting requests."""
        await self._coordinator.close()

    async def forget_topic(self, topic: str) -> None:
        """Delete all groups' commits of a topic; raises as ``OffsetLog.write``."""
        await self._coordinator.forget_topic(topic)

    @serves(Api.FIND_COORDINATOR, range(7), Rule())
    async def _find_coordinator(self, request: Any, client: Client) -> Any:
        if client.version < FIRST_WITH_KEYS:
            found = self._located(request.key, request.key_type, client)
            return FindCoordinatorResponse(throttle_time_ms=0, **found)
        kind = FindCoordinatorResponse.Coordinator
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            coordinators=[
                kind(key=each, **self._located(each, request.key_type, client))
                for each in _few(request.coordinator_keys)
            ],
        )

    def _located(self, key: str, key_type: int, client: Client) -> dict[str, Any]:
        error, why = KafkaError.NONE, None
        if key_type not in KEY_TYPES:
            error, why = KafkaError.INVALID_REQUEST, f"key type {key_type} is not known"
        elif key_type == GROUP and not client.may(on_groups(Operation.DESCRIBE)):
            error, why = KafkaError.GROUP_AUTHORIZATION_FAILED, WHY
        node_id, host, port = -1, "", -1
        if not error:
            _, node_id, host, port = self._coordinator.place(key)
        return {
            "error_code": error,
            "error_message": why,
            "node_id": node_id,
            "host": host,
            "port": port,
        }

    @serves(Api.JOIN_GROUP, range(10), Rule(on_groups(Operation.READ)))
    async def _join(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
        if isinstance(group, KafkaError):
            answer = JoinAnswer(group, request.member_id)
        else:
            session_s = request.session_timeout_ms / 1000
            has_rebalance = client.version >= 1
            asked = Joining(
                request.member_id,
                tuple((each.name, bytes(each.metadata)) for each in request.protocols),
                session_s,
                max(request.rebalance_timeout_ms / 1000, 0) if has_rebalance else session_s,
                request.protocol_type,
                request.group_instance_id,
                client.client_id,
                client.host,
                client.version >= 4,
            )
            ticket = asyncio.get_running_loop().create_future()
            group.join(self._coordinator.now(), asked, ticket)
            self._coordinator.settle(group)
            answer = await ticket
        member = JoinGroupResponse.JoinGroupResponseMember
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=answer.error,
            generation_id=answer.generation,
            protocol_type=None if answer.error else request.protocol_type,
            protocol_name=answer.protocol,
            leader=answer.leader,
            member_id=answer.member_id,
            members=[
                member(member_id=name, group_instance_id=instance, metadata=metadata)
                for name, instance, metadata in answer.members
            ],
        )

    @serves(Api.SYNC_GROUP, range(6), Rule(on_groups(Operation.READ)))
    async def _sync(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
        protocol = request.protocol_type, request.protocol_name
        if isinstance(group, KafkaError):
            answer = SyncAnswer(group)
        elif (
            client.version >= FIRST_WITH_PROTOCOL
            and request.member_id in group.members
            and request.generation_id == group.generation
            and protocol != (group.protocol_type, group.protocol)
        ):
            answer = SyncAnswer(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        else:
            ticket = asyncio.get_running_loop().create_future()
            group.sync(
                self._coordinator.now(),
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                {each.member_id: bytes(each.assignment) for each in request.assignments},
                ticket,
            )
            self._coordinator.settle(group)
            answer = await ticket
        return SyncGroupResponse(
            throttle_time_ms=0,
            error_code=answer.error,
            protocol_type=None if answer.error else request.protocol_type,
            protocol_name=None if answer.error else request.protocol_name,
            assignment=answer.assignment,
        )

    @serves(Api.HEARTBEAT, range(5), Rule(on_groups(Operation.READ)))
    async def _heartbeat(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
        error = group
        if isinstance(group, Group):
            error = group.heartbeat(
                self._coordinator.now(),
                request.member_id,
                request.group_instance_id,
                request.generation_id,
            )
            self._coordinator.settle(group)
        return HeartbeatResponse(throttle_time_ms=0, error_code=error)

    @serves(Api.LEAVE_GROUP, range(6), Rule(on_groups(Operation.READ)))
    async def _leave(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
        members = (
            [(each.member_id, each.group_instance_id) for each in request.members]
            if client.version >= 3
            else [(request.member_id, None)]
        )
        if isinstance(group, KafkaError):
            return LeaveGroupResponse(throttle_time_ms=0, error_code=group, members=[])
        now = self._coordinator.now()
        errors = [group.leave(now, *each) for each in members]
        self._coordinator.settle(group)
        response = LeaveGroupResponse.MemberResponse
        return LeaveGroupResponse(
            throttle_time_ms=0,
            error_code=KafkaError.NONE if client.version >= 3 else errors[0],
            members=[
                response(member_id=name, group_instance_id=instance, error_code=error)
                for (name, instance), error in zip(members, errors, strict=True)
            ],
        )

    @serves(Api.LIST_GROUPS, range(6), Rule(on_groups(Operation.DESCRIBE), is_hidden=True))
    async def _list(self, request: Any, client: Client) -> Any:
        error = self._coordinator.loading()
        group = ListGroupsResponse.ListedGroup
        found = [] if error else self._coordinator.groups()
        states = {each.lower() for each in request.states_filter or ()}
        types = {each.lower() for each in request.types_filter or ()}
        if types and CLASSIC not in types:
            found = []
        return ListGroupsResponse(
            throttle_time_ms=0,
            error_code=error or KafkaError.NONE,
            groups=[
                group(
                    group_id=each.group_id,
                    protocol_type=each.protocol_type,
                    group_state=each.state.kafka_name,
                    group_type=CLASSIC,
                )
                for each in found
                if not states or each.state.kafka_name.lower() in states
            ],
        )

    @serves(
        Api.DESCRIBE_GROUPS,
        range(7),
        Rule(
            asked="groups",
            each=plain_name(on_groups(Operation.DESCRIBE)),
            answered="groups",
            refused=refuse_one(DescribeGroupsResponse.DescribedGroup, "group_id", "", members=[]),
        ),
    )
    async def _describe(self, request: Any, client: Client) -> Any:
        return DescribeGroupsResponse(
            throttle_time_ms=0,
            groups=[self._described(each, client) for each in _few(request.groups)],
        )

    def _described(self, group_id: str, client: Client) -> Any:
        group = self._coordinator.group(group_id)
        described = DescribeGroupsResponse.DescribedGroup
        if isinstance(group, KafkaError):
            return described(error_code=group, group_id=group_id, members=[])
        member = described.DescribedGroupMember
        is_there = self._coordinator.is_known(group)
        is_stable = group.state is GroupState.STABLE
        is_missing = not is_there and client.version >= FIRST_WITH_MISSING
        see = on_topics(Operation.DESCRIBE)
        named = _subscribed(group)
        topics = {""} if named is None else named  # unknown ones are for whoever may see all
        has_hidden = group.protocol_type == CONSUMER and not all(
            client.may(see, each, is_noted=False) for each in topics
        )
        found = described(
            error_code=KafkaError.GROUP_ID_NOT_FOUND if is_missing else KafkaError.NONE,
            error_message=f"group {group_id!r} does not exist" if is_missing else None,
            group_id=group_id,
            group_state=(group.state if is_there else GroupState.DEAD).kafka_name,
            protocol_type=group.protocol_type,
            protocol_data=group.protocol if is_stable else "",
            members=[
                member(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    client_id=each.joined.client_id,
                    client_host=f"/{each.joined.host}",  # as Kafka writes it
                    member_metadata=each.metadata(group.protocol)
                    if is_stable and not has_hidden
                    else b"",
                    member_assignment=b"" if has_hidden else each.assignment,
                )
                for each in group.members.values()
            ],
        )
        self._coordinator.settle(group)
        return found

    @serves(
        Api.DELETE_GROUPS,
        range(3),
        Rule(
            asked="groups_names",
            each=plain_name(on_groups(Operation.DELETE)),
            answered="results",
            refused=refuse_one(DeleteGroupsResponse.DeletableGroupResult, "group_id", ""),
        ),
    )
    async def _delete(self, request: Any, client: Client) -> Any:
        result = DeleteGroupsResponse.DeletableGroupResult
        results = [
            result(group_id=each, error_code=await self._deleted(each))
            for each in _few(request.groups_names)
        ]
        return DeleteGroupsResponse(throttle_time_ms=0, results=results)

    async def _deleted(self, group_id: str) -> KafkaError:
        group = self._coordinator.group(group_id)
        if isinstance(group, KafkaError):
            return group
        if not self._coordinator.is_known(group):
            self._coordinator.settle(group)
            return KafkaError.GROUP_ID_NOT_FOUND
        if not group.is_unused:
            return KafkaError.NON_EMPTY_GROUP
        try:
            await self._coordinator.delete(group)
        except TimeoutError:
            return KafkaError.REQUEST_TIMED_OUT
        except DafkaError:
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        return KafkaError.NONE

    def _group(self, group_id: str) -> Group | KafkaError:
        return self._coordinator.group(group_id) if group_id else KafkaError.INVALID_GROUP_ID

    # -- committed offsets -------------------------------------------------------------------------

    @serves(
        Api.OFFSET_COMMIT,
        range(10),
        Rule(
            on_groups(Operation.READ),
            each=named_topic(Operation.READ),
            refused=refuse_partitions(
                OffsetCommitResponse.OffsetCommitResponseTopic,
                OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition,
            ),
        ),
    )
    async def _offset_commit(self, request: Any, client: Client) -> Any:
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
        is_gone = error is KafkaError.UNKNOWN_MEMBER_ID and not self._coordinator.is_known(group)
        if is_gone and request.generation_id_or_member_epoch >= 0:
            return KafkaError.ILLEGAL_GENERATION  # as Kafka: the group is unknown now
        return error

    def _refusal(self, place: Place, asked: Any) -> KafkaError:
        if self._node.registry.get(*place) is None:
            return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        length = len(asked.committed_metadata or "")  # Kafka counts characters
        is_too_large = length > self._node.options.offset_metadata_max_bytes
        return KafkaError.OFFSET_METADATA_TOO_LARGE if is_too_large else KafkaError.NONE

    async def _written(self, group_id: str, commits: list[Committed]) -> KafkaError:
        """Write a group's commits; return an error if they are not on disk."""
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

    @serves(Api.OFFSET_FETCH, range(10), Rule())
    async def _offset_fetch(self, request: Any, client: Client) -> Any:
        if client.version < FIRST_WITH_GROUPS:
            found = self._fetched(request, client)
            return OffsetFetchResponse(
                throttle_time_ms=0, error_code=found.error_code, topics=found.topics
            )
        groups = [self._fetched(each, client) for each in _few(request.groups)]
        return OffsetFetchResponse(throttle_time_ms=0, groups=groups)

    def _fetched(self, asked: Any, client: Client) -> Any:
        """Return a group's commits; ``asked`` has its id and the topics, None for all."""
        error = self._coordinator.error(asked.group_id) or KafkaError.NONE
        if not client.may(on_groups(Operation.DESCRIBE)):
            error = KafkaError.GROUP_AUTHORIZATION_FAILED
        committed = {} if error else self._coordinator.offsets.committed(asked.group_id)
        see = on_topics(Operation.DESCRIBE)
        named: Iterable[tuple[str, Sequence[int]]]
        if asked.topics is None:
            numbers: dict[str, list[int]] = {}
            for name, number in committed:
                if client.may(see, name, is_noted=False):
                    numbers.setdefault(name, []).append(number)
            named = numbers.items()
        else:
            named = [(each.name, each.partition_indexes) for each in asked.topics]
        group = OffsetFetchResponse.OffsetFetchResponseGroup
        topic = group.OffsetFetchResponseTopics

        def answered(name: str, asked_numbers: Sequence[int]) -> Any:
            refusal = error if client.version < FIRST_WITH_GROUP_ERROR else KafkaError.NONE
            if not (error or client.may(see, name)):
                refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
            parts = []
            for number in asked_numbers:
                found = None if refusal else committed.get((name, number))
                found = found or Committed(name, number, UNKNOWN)
                parts.append(
                    topic.OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=refusal,
                    )
                )
            return topic(name=name, partitions=parts)

        return group(
            group_id=asked.group_id,
            error_code=error,
            topics=[answered(*each) for each in named],
        )

    @serves(
        Api.OFFSET_DELETE,
        range(1),
        Rule(
            on_groups(Operation.DELETE),
            each=named_topic(Operation.DESCRIBE),
            refused=refuse_partitions(
                OffsetDeleteResponse.OffsetDeleteResponseTopic,
                OffsetDeleteResponse.OffsetDeleteResponseTopic.OffsetDeleteResponsePartition,
            ),
        ),
    )
    async def _offset_delete(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
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
