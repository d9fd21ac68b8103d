"""The group APIs: membership, coordinators and committed offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

from dafka_core.errors import DafkaError, InvalidRequestError, ProtocolError
from dafka_kafka.api import (
    WHY,
    Answer,
    Api,
    Client,
    Feature,
    on_groups,
    on_topics,
    serves,
)
from dafka_kafka.errors import KafkaError, RefusedError
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
from dafka_kafka.users import Operation, Resource

UNKNOWN: Final = -1  # the offset of a partition without a commit

_log: Final = logging.getLogger("dafka.kafka")


def _errors_by_topic(topics: Iterable[Any], errors: dict[Place, KafkaError]) -> list[Answer]:
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": each.partition_index,
                    "error_code": errors[topic.name, each.partition_index],
                }
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]


def _subscribed(group: Group) -> set[str] | None:
    """Return the topics that a group's members consume; None if unknown."""
    protocols = [each for member in group.members.values() for each in member.joined.protocols]
    found = [subscribed_topics(metadata) for _, metadata in protocols]
    return None if None in found else set[str]().union(*filter(None, found))


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
"""FindCoordinator's key types; type 1 is for transactional ids, which are refused."""

CLASSIC: Final = "classic"  # the only group type, by Kafka's name
LOADING: Final = KafkaError.COORDINATOR_LOAD_IN_PROGRESS

_SEE: Final = on_topics(Operation.DESCRIBE)
_READ: Final = on_groups(Operation.READ)
_DESCRIBE: Final = on_groups(Operation.DESCRIBE)
_DELETE: Final = on_groups(Operation.DELETE)


class Groups(Feature):
    """Answers all requests about groups and committed offsets."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node
        self.coordinator = Coordinator(node, OffsetLog(node), self.begin)

    async def start(self) -> None:
        """Start to load the groups."""
        self.coordinator.start()

    async def close(self) -> None:
        """End the groups' waiting requests."""
        await super().close()
        await self.coordinator.close()

    @serves(Api.FIND_COORDINATOR, range(7))
    async def _find_coordinator(self, request: Any, client: Client) -> Answer:
        if client.version < FIRST_WITH_KEYS:
            return self._located(request.key, request.key_type, client)
        keys = _few(request.coordinator_keys)
        return {
            "coordinators": [
                {"key": each, **self._located(each, request.key_type, client)} for each in keys
            ]
        }

    def _located(self, key: str, key_type: int, client: Client) -> Answer:
        error, why = KafkaError.NONE, None
        if key_type not in KEY_TYPES:
            error, why = KafkaError.INVALID_REQUEST, f"key type {key_type} is not known"
        elif key_type == GROUP and (error := client.refusal(_DESCRIBE)):
            why = WHY
        node_id, host, port = (-1, "", -1) if error else self.coordinator.place(key)[1:]
        place = {"node_id": node_id, "host": host, "port": port}
        return {"error_code": error, "error_message": why, **place}

    @serves(Api.JOIN_GROUP, range(10), _READ)
    async def _join(self, request: Any, client: Client) -> Answer:
        try:
            answer = await self._joined(self._group(request.group_id), request, client)
        except RefusedError as refused:
            answer = JoinAnswer(KafkaError(refused.code), request.member_id)
        return {
            "error_code": answer.error,
            "generation_id": answer.generation,
            "protocol_type": None if answer.error else request.protocol_type,
            "protocol_name": answer.protocol,
            "leader": answer.leader,
            "member_id": answer.member_id,
            "members": [
                {"member_id": name, "group_instance_id": instance, "metadata": metadata}
                for name, instance, metadata in answer.members
            ],
            "skip_assignment": answer.skips_assignment,
        }

    async def _joined(self, group: Group, request: Any, client: Client) -> JoinAnswer:
        if self.coordinator.is_one_too_many(group):
            self.coordinator.settle(group)
            raise RefusedError(KafkaError.GROUP_MAX_SIZE_REACHED, "")
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
            client.version,
        )
        ticket: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        group.join(self.coordinator.now(), asked, ticket)
        self.coordinator.settle(group)
        return await ticket

    @serves(Api.SYNC_GROUP, range(6), _READ)
    async def _sync(self, request: Any, client: Client) -> Answer:
        # Not LOADING: Java's consumers and aiokafka's would end.
        group = self._group(request.group_id, KafkaError.REBALANCE_IN_PROGRESS)
        protocol = request.protocol_type, request.protocol_name
        if (
            client.version >= FIRST_WITH_PROTOCOL
            and request.member_id in group.members
            and request.generation_id == group.generation
            and protocol != (group.protocol_type, group.protocol)
        ):
            raise RefusedError(KafkaError.INCONSISTENT_GROUP_PROTOCOL, "")
        ticket: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        group.sync(
            self.coordinator.now(),
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            {each.member_id: bytes(each.assignment) for each in request.assignments},
            ticket,
        )
        self.coordinator.settle(group)
        answer = await ticket
        if answer.error:
            raise RefusedError(answer.error, "")
        kind = {"protocol_type": request.protocol_type, "protocol_name": request.protocol_name}
        return {"assignment": answer.assignment, **kind}

    @serves(Api.HEARTBEAT, range(5), _READ)
    async def _heartbeat(self, request: Any, client: Client) -> Answer:
        group = self._group(request.group_id, KafkaError.NONE)  # as for SyncGroup
        member = request.member_id, request.group_instance_id, request.generation_id
        if error := group.heartbeat(self.coordinator.now(), *member):
            self.coordinator.settle(group)
        return {"error_code": error}

    @serves(Api.LEAVE_GROUP, range(6), _READ)
    async def _leave(self, request: Any, client: Client) -> Answer:
        group, now = self._group(request.group_id), self.coordinator.now()
        members = [(each.member_id, each.group_instance_id) for each in request.members]
        is_one = client.version < 3
        if is_one:
            members = [(request.member_id, None)]
        errors = [group.leave(now, *each) for each in members]
        self.coordinator.settle(group)
        return {
            "error_code": errors[0] if is_one else KafkaError.NONE,
            "members": [
                {"member_id": name, "group_instance_id": instance, "error_code": error}
                for (name, instance), error in zip(members, errors, strict=True)
            ],
        }

    @serves(Api.LIST_GROUPS, range(6))
    async def _list(self, request: Any, client: Client) -> Answer:
        if not client.may(_DESCRIBE):
            return {"groups": []}  # as Kafka: groups that may not be seen are hidden
        if error := self.coordinator.loading():
            raise RefusedError(error, "")
        states = {each.lower() for each in request.states_filter or ()}
        types = {each.lower() for each in request.types_filter or ()}
        found = [] if types and CLASSIC not in types else self.coordinator.groups()
        return {
            "groups": [
                {
                    "group_id": each.group_id,
                    "protocol_type": each.protocol_type,
                    "group_state": each.state.kafka_name,
                    "group_type": CLASSIC,
                }
                for each in found
                if not states or each.state.kafka_name.lower() in states
            ]
        }

    @serves(Api.DESCRIBE_GROUPS, range(7))
    async def _describe(self, request: Any, client: Client) -> Answer:
        told = {}
        if request.include_authorized_operations:
            told["authorized_operations"] = client.operations(Resource.GROUP)
        return {"groups": [self._described(each, client) | told for each in _few(request.groups)]}

    def _described(self, group_id: str, client: Client) -> Answer:
        group = client.refusal(_DESCRIBE) or self.coordinator.group(group_id)
        if isinstance(group, KafkaError):
            return {"error_code": group, "group_id": group_id}
        is_there = self.coordinator.is_known(group)
        is_stable = group.state is GroupState.STABLE
        is_missing = not is_there and client.version >= FIRST_WITH_MISSING
        named = _subscribed(group)
        topics = {""} if named is None else named  # unknown ones need the right to see all
        has_hidden = group.protocol_type == CONSUMER and not all(
            client.may(_SEE, each, is_noted=False) for each in topics
        )
        found = {
            "error_code": KafkaError.GROUP_ID_NOT_FOUND if is_missing else KafkaError.NONE,
            "error_message": f"group {group_id!r} does not exist" if is_missing else None,
            "group_id": group_id,
            "group_state": (group.state if is_there else GroupState.DEAD).kafka_name,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol if is_stable else "",
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "client_id": each.joined.client_id,
                    "client_host": f"/{each.joined.host}",  # as Kafka writes it
                    "member_metadata": each.metadata(group.protocol)
                    if is_stable and not has_hidden
                    else b"",
                    "member_assignment": b"" if has_hidden else each.assignment,
                }
                for each in group.members.values()
            ],
        }
        self.coordinator.settle(group)
        return found

    @serves(Api.DELETE_GROUPS, range(3))
    async def _delete(self, request: Any, client: Client) -> Answer:
        names = _few(request.groups_names)
        errors = [client.refusal(_DELETE) or await self._deleted(each) for each in names]
        found = zip(names, errors, strict=True)
        return {"results": [{"group_id": each, "error_code": error} for each, error in found]}

    async def _deleted(self, group_id: str) -> KafkaError:
        group = self.coordinator.group(group_id)
        if isinstance(group, KafkaError):
            return group
        if not self.coordinator.is_known(group):
            self.coordinator.settle(group)
            return KafkaError.GROUP_ID_NOT_FOUND
        if not group.is_unused:
            return KafkaError.NON_EMPTY_GROUP
        return await self._outcome(group_id, self.coordinator.delete(group))

    def _group(self, group_id: str, loading: KafkaError = LOADING) -> Group:
        """Return a group; raise RefusedError if this gateway can't, or is ``loading`` it."""
        group = self.coordinator.group(group_id) if group_id else KafkaError.INVALID_GROUP_ID
        if isinstance(group, KafkaError):
            raise RefusedError(loading if group is LOADING else group, "")
        return group

    # -- committed offsets -------------------------------------------------------------------------

    @serves(Api.OFFSET_COMMIT, range(10))
    async def _offset_commit(self, request: Any, client: Client) -> Answer:
        asked = [(topic.name, each) for topic in request.topics for each in topic.partitions]
        group = client.refusal(_READ) or self.coordinator.group(request.group_id)
        error = group if isinstance(group, KafkaError) else self._may_commit(group, request)
        may_read = on_topics(Operation.READ)
        time_ms = self._node.store.log.now_us() // 1_000
        errors: dict[Place, KafkaError] = {}
        commits = []
        for topic, each in asked:
            place = topic, each.partition_index
            errors[place] = error or client.refusal(may_read, topic) or self._refusal(place, each)
            if errors[place] is KafkaError.NONE:
                offset, epoch = each.committed_offset, each.committed_leader_epoch
                metadata = each.committed_metadata or ""
                commits.append(Committed(*place, offset, epoch, metadata, time_ms))
        failure = await self._written(request.group_id, commits)
        errors |= {(each.topic, each.number): failure for each in commits}
        if isinstance(group, Group):
            self.coordinator.settle(group)
        return {"topics": _errors_by_topic(request.topics, errors)}

    def _may_commit(self, group: Group, request: Any) -> KafkaError:
        if self.coordinator.is_one_too_many(group):
            return KafkaError.GROUP_MAX_SIZE_REACHED
        error = group.may_commit(
            self.coordinator.now(),
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
        )
        is_gone = error is KafkaError.UNKNOWN_MEMBER_ID and not self.coordinator.is_known(group)
        if is_gone and request.generation_id_or_member_epoch >= 0:
            return KafkaError.ILLEGAL_GENERATION  # as Kafka: the group is unknown now
        return error

    def _refusal(self, place: Place, asked: Any) -> KafkaError:
        if self._node.registry.table.get(*place) is None:
            return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        length = len(asked.committed_metadata or "")  # Kafka counts characters
        is_too_large = length > self._node.options.offset_metadata_max_bytes
        return KafkaError.OFFSET_METADATA_TOO_LARGE if is_too_large else KafkaError.NONE

    async def _written(self, group_id: str, commits: list[Committed]) -> KafkaError:
        """Write a group's commits; return an error if they are not on disk."""
        if not commits:
            return KafkaError.NONE
        counter = self.coordinator.offsets.next_counter()
        records = [*records_of(group_id, counter, commits)]
        return await self._outcome(group_id, self.coordinator.log.write(records))

    async def _outcome(self, group_id: str, write: Awaitable[None]) -> KafkaError:
        """Return the error of a change to a group's commits."""
        try:
            await write
        except InvalidRequestError:
            return KafkaError.INVALID_COMMIT_OFFSET_SIZE
        except TimeoutError:
            return KafkaError.REQUEST_TIMED_OUT
        except DafkaError as error:
            _log.warning("commits of group %r are not changed: %s", group_id, error)
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        return KafkaError.NONE

    @serves(Api.OFFSET_FETCH, range(10))
    async def _offset_fetch(self, request: Any, client: Client) -> Answer:
        if client.version >= FIRST_WITH_GROUPS:
            return {"groups": [self._fetched(each, client) for each in _few(request.groups)]}
        found = self._fetched(request, client)
        return {"error_code": found["error_code"], "topics": found["topics"]}

    def _fetched(self, asked: Any, client: Client) -> Answer:
        """Return a group's commits; ``asked`` has its id and the topics, None for all."""
        error = client.refusal(_DESCRIBE) or self.coordinator.error(asked.group_id)
        error = error or KafkaError.NONE
        committed = {} if error else self.coordinator.offsets.committed(asked.group_id)
        if asked.topics is None:
            named: dict[str, list[int]] = {}
            for name, number in committed:
                if client.may(_SEE, name, is_noted=False):
                    named.setdefault(name, []).append(number)
            topics = [*named.items()]
        else:
            topics = [(each.name, each.partition_indexes) for each in asked.topics]

        def answered(name: str, numbers: Sequence[int]) -> Answer:
            refusal = error if client.version < FIRST_WITH_GROUP_ERROR else KafkaError.NONE
            if not error:
                refusal = client.refusal(_SEE, name)
            parts = []
            for number in numbers:
                found = None if refusal else committed.get((name, number))
                _, _, offset, epoch, metadata, _ = found or Committed(name, number, UNKNOWN)
                parts.append(
                    {
                        "partition_index": number,
                        "committed_offset": offset,
                        "committed_leader_epoch": epoch,
                        "metadata": metadata,
                        "error_code": refusal,
                    }
                )
            return {"name": name, "partitions": parts}

        found = [answered(*each) for each in topics]
        return {"group_id": asked.group_id, "error_code": error, "topics": found}

    @serves(Api.OFFSET_DELETE, range(1), _DELETE)
    async def _offset_delete(self, request: Any, client: Client) -> Answer:
        group = self._group(request.group_id)
        error, subscribed = KafkaError.NONE, _subscribed(group)
        if not self.coordinator.is_known(group):
            error = KafkaError.GROUP_ID_NOT_FOUND
        elif group.members and group.protocol_type != CONSUMER:
            error = KafkaError.NON_EMPTY_GROUP
        self.coordinator.settle(group)
        if error:
            raise RefusedError(error, "")
        places = [
            (topic.name, e.partition_index) for topic in request.topics for e in topic.partitions
        ]
        errors = {place: client.refusal(_SEE, place[0]) for place in places}
        for topic, number in places:
            if not errors[topic, number] and (subscribed is None or topic in subscribed):
                errors[topic, number] = KafkaError.GROUP_SUBSCRIBED_TO_TOPIC
        unused = [place for place, error in errors.items() if not error]
        known = self.coordinator.offsets.committed(request.group_id)
        gone = [Committed(*place, DELETED) for place in unused if place in known]
        errors |= dict.fromkeys(unused, await self._written(request.group_id, gone))
        return {"topics": _errors_by_topic(request.topics, errors)}
