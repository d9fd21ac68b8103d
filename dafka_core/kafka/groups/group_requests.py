"""The requests of Kafka's clients about groups: who is in them, and who coordinates them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dafka_core.errors import DafkaError
from dafka_core.kafka.api_versions import Api
from dafka_core.kafka.gateway_node import Client, Feature, GatewayNode, Handler
from dafka_core.kafka.groups.coordinator import Coordinator
from dafka_core.kafka.groups.group import Group
from dafka_core.kafka.groups.group_states import GroupState
from dafka_core.kafka.groups.member import JoinAnswer, Joining, SyncAnswer
from dafka_core.kafka.groups.offset_log import OffsetLog
from dafka_core.kafka.groups.offset_requests import OffsetRequests
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.schemas import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupResponse,
)

KEY_TYPES: Final = (0, 1)
"""What has a coordinator: a group, and a transactional id, to which its refusal is told there."""

CLASSIC: Final = "classic"
"""The only kind of groups, by Kafka's name of it."""


class Groups(Feature):
    """Answers all requests about groups and committed offsets."""

    def __init__(self, node: GatewayNode) -> None:
        self._coordinator = Coordinator(node, OffsetLog(node))
        offsets = OffsetRequests(node, self._coordinator)
        self.handlers: dict[int, Handler] = {
            Api.FIND_COORDINATOR: self._find_coordinator,
            Api.JOIN_GROUP: self._join,
            Api.SYNC_GROUP: self._sync,
            Api.HEARTBEAT: self._heartbeat,
            Api.LEAVE_GROUP: self._leave,
            Api.LIST_GROUPS: self._list,
            Api.DESCRIBE_GROUPS: self._describe,
            Api.DELETE_GROUPS: self._delete,
            **offsets.handlers,
        }

    async def start(self) -> None:
        """Begins to read what is known of groups."""
        self._coordinator.start()

    async def close(self) -> None:
        """Tells who waits for a group."""
        await self._coordinator.close()

    async def forget_topic(self, topic: str) -> None:
        """Deletes what all groups have committed of a topic; raises as ``OffsetLog.write``."""
        await self._coordinator.forget_topic(topic)

    async def _find_coordinator(self, request: Any, client: Client) -> Any:
        if request.key_type not in KEY_TYPES:
            return FindCoordinatorResponse(
                error_code=KafkaError.INVALID_REQUEST,
                error_message=f"key type {request.key_type} is not known",
                node_id=-1,
                host="",
                port=-1,
            )
        found = self._coordinator.place(request.key)
        return FindCoordinatorResponse(
            error_code=KafkaError.NONE,
            error_message=None,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    async def _join(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
        if isinstance(group, KafkaError):
            answer = JoinAnswer(group, request.member_id)
        else:
            session_s = request.session_timeout_ms / 1000
            has_rebalance = client.version >= 1
            asked = Joining(
                request.member_id,
                [(each.name, bytes(each.metadata)) for each in request.protocols],
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
            protocol_name=answer.protocol,
            leader=answer.leader,
            member_id=answer.member_id,
            members=[
                member(member_id=name, group_instance_id=instance, metadata=metadata)
                for name, instance, metadata in answer.members
            ],
        )

    async def _sync(self, request: Any, client: Client) -> Any:
        group = self._group(request.group_id)
        if isinstance(group, KafkaError):
            answer = SyncAnswer(group)
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
            throttle_time_ms=0, error_code=answer.error, assignment=answer.assignment
        )

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

    async def _describe(self, request: Any, client: Client) -> Any:
        return DescribeGroupsResponse(
            throttle_time_ms=0, groups=[self._described(each) for each in request.groups]
        )

    def _described(self, group_id: str) -> Any:
        group = self._coordinator.group(group_id)
        described = DescribeGroupsResponse.DescribedGroup
        if isinstance(group, KafkaError):
            return described(error_code=group, group_id=group_id, members=[])
        member = described.DescribedGroupMember
        is_there = self._coordinator.is_known(group)
        is_stable = group.state is GroupState.STABLE
        found = described(
            error_code=KafkaError.NONE,
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
                    member_metadata=each.metadata(group.protocol) if is_stable else b"",
                    member_assignment=each.assignment,
                )
                for each in group.members.values()
            ],
        )
        self._coordinator.settle(group)
        return found

    async def _delete(self, request: Any, client: Client) -> Any:
        result = DeleteGroupsResponse.DeletableGroupResult
        results = [
            result(group_id=each, error_code=await self._deleted(each))
            for each in request.groups_names
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
