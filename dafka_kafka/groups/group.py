"""A consumer group: members, states and the classic protocol, without I/O.

Time is an argument. A request comes with a ticket; ``take_answers`` returns its answer with the
ticket, at once or when the group is ready. ``GROUP_TABLE`` has the transitions.
"""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from dafka_core.model.json_message import Natural
from dafka_kafka.errors import KafkaError
from dafka_kafka.options import KafkaOptions

# The states of a consumer group, by Kafka's names, and its actions. ``Group`` implements this
# table; tests compare both.


JOIN: Final = "a new member joins"
REJOIN: Final = "a member joins again, as it was"
CHANGE: Final = "a member joins again, with other protocols"
SYNC: Final = "a member requests its assignment"
ASSIGN: Final = "the leader assigns partitions"
HEARTBEAT: Final = "a heartbeat arrives"
LEAVE: Final = "a member leaves, or its session ends"
COMMIT: Final = "a member commits"
SIMPLE_COMMIT: Final = "a client without a group commits"
READY: Final = "all have joined, or the time to join is over"
OVERDUE: Final = "the time to request assignments is over"
DELETE: Final = "it is deleted, or moves to another gateway"

REBALANCE: Final = "begins a rebalance"
WAIT: Final = "waits for the others"
CHECK: Final = "checks if all have joined"
REPEAT: Final = "repeats its answer"
GIVE: Final = "sends the assignment"
TAKE: Final = "accepts it"
BEGIN: Final = "begins a generation"
END: Final = "rejects open requests"


class GroupState(Enum):
    """A state, with its meaning."""

    EMPTY = "it has no members; it may have committed offsets"
    PREPARING_REBALANCE = "members join, until all have joined or the time to join is over"
    COMPLETING_REBALANCE = "the leader knows the members, and assigns partitions to them"
    STABLE = "each member knows its partitions"
    DEAD = "this gateway no longer coordinates it"

    @property
    def label(self) -> str:
        """The state's name in prose."""
        return self.name.lower().replace("_", " ")

    @property
    def kafka_name(self) -> str:
        """The state's name in Kafka's responses, as ``PreparingRebalance``."""
        return self.name.title().replace("_", "")


class Reaction(NamedTuple):
    """A transition: the labels of the possible next states, and the action or error."""

    then: str
    action: str | KafkaError


Table = Mapping[GroupState, Mapping[str, Reaction]]

_UNKNOWN: Final = KafkaError.UNKNOWN_MEMBER_ID
_REBALANCING: Final = KafkaError.REBALANCE_IN_PROGRESS
_GONE: Final = KafkaError.COORDINATOR_NOT_AVAILABLE
_PREPARING: Final = "preparing rebalance"
_COMPLETING: Final = "completing rebalance"
_NEXT: Final = f"{_PREPARING}, {_COMPLETING}, empty"
_LESS: Final = f"{_PREPARING}, empty"
_OF_MEMBERS: Final = (REJOIN, CHANGE, SYNC, ASSIGN, HEARTBEAT, LEAVE, COMMIT)

GROUP_TABLE: Final[Table] = {
    GroupState.EMPTY: {
        JOIN: Reaction(f"{_PREPARING}, {_COMPLETING}", REBALANCE),
        **dict.fromkeys(_OF_MEMBERS, Reaction("empty", _UNKNOWN)),
        SIMPLE_COMMIT: Reaction("empty", TAKE),
        DELETE: Reaction("dead", END),
    },
    GroupState.PREPARING_REBALANCE: {
        **dict.fromkeys((JOIN, REJOIN, CHANGE), Reaction(f"{_PREPARING}, {_COMPLETING}", WAIT)),
        **dict.fromkeys((SYNC, ASSIGN, HEARTBEAT), Reaction(_PREPARING, _REBALANCING)),
        LEAVE: Reaction(_NEXT, CHECK),
        COMMIT: Reaction(_PREPARING, TAKE),
        SIMPLE_COMMIT: Reaction(_PREPARING, _UNKNOWN),
        READY: Reaction(_NEXT, BEGIN),
        DELETE: Reaction("dead", END),
    },
    GroupState.COMPLETING_REBALANCE: {
        JOIN: Reaction(_PREPARING, REBALANCE),
        REJOIN: Reaction(_COMPLETING, REPEAT),
        CHANGE: Reaction(f"{_PREPARING}, {_COMPLETING}", REBALANCE),
        SYNC: Reaction(_COMPLETING, WAIT),
        ASSIGN: Reaction("stable", GIVE),
        HEARTBEAT: Reaction(_COMPLETING, TAKE),
        LEAVE: Reaction(_LESS, REBALANCE),
        COMMIT: Reaction(_COMPLETING, _REBALANCING),
        SIMPLE_COMMIT: Reaction(_COMPLETING, _UNKNOWN),
        OVERDUE: Reaction(_LESS, REBALANCE),
        DELETE: Reaction("dead", END),
    },
    GroupState.STABLE: {
        JOIN: Reaction(_PREPARING, REBALANCE),
        REJOIN: Reaction("stable", REPEAT),
        CHANGE: Reaction(f"{_PREPARING}, {_COMPLETING}", REBALANCE),
        SYNC: Reaction("stable", GIVE),
        ASSIGN: Reaction("stable", GIVE),
        HEARTBEAT: Reaction("stable", TAKE),
        LEAVE: Reaction(_LESS, REBALANCE),
        COMMIT: Reaction("stable", TAKE),
        SIMPLE_COMMIT: Reaction("stable", _UNKNOWN),
        OVERDUE: Reaction(_LESS, REBALANCE),
        DELETE: Reaction("dead", END),
    },
    GroupState.DEAD: {
        event: Reaction("dead", _GONE) for event in (JOIN, *_OF_MEMBERS, SIMPLE_COMMIT)
    },
}
"""Transitions by state and event; other events do nothing."""


CONSUMER: Final = "consumer"
"""The protocol type of consumers, whose metadata and assignments have a known format."""


Seconds = Annotated[float, Meta(ge=0)]

FIRST_WITH_IDS: Final = 4
FIRST_WITH_SKIPPING: Final = 9
"""The first versions of JoinGroup in which clients request a member id before they join (KIP-394),
and in which the leader of a stable group can be told to assign nothing (KIP-814)."""


class Joining(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JoinGroup request, which is stored with its member.

    ``protocols`` are assignors by preference, each with metadata that only clients understand.
    """

    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    session_s: Seconds
    rebalance_s: Seconds
    protocol_type: str = CONSUMER
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    version: int = 0  # of the request

    @property
    def size_bytes(self) -> int:
        """The part of a member that is stored."""
        return sum(len(name) + len(octets) for name, octets in self.protocols)

    @property
    def subscriptions(self) -> list[tuple[str, set[str] | bytes]]:
        """The protocols, each with its topics if its metadata has a known format.

        The rest of a consumer's metadata is about its previous partitions.
        """
        return [(name, subscribed_topics(octets) or octets) for name, octets in self.protocols]

    def new_id(self) -> str:
        """A new member id."""
        return f"{self.instance_id or self.client_id}-{uuid.uuid4()}"


class KeptMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member as stored; bytes are in base 64."""

    member_id: str
    joined: Joining
    assignment: bytes = b""


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored state of a group since it became stable, or empty."""

    number: Natural
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[KeptMember, ...] = ()
    time_ms: Natural = 0  # when it became so (ms since 1970 UTC)


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a JoinGroup.

    The leader's has the members: id, instance and metadata. It need not assign partitions if it
    ``skips_assignment``.
    """

    error: KafkaError
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a SyncGroup: the member's assignment."""

    error: KafkaError
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class Member:
    """A member, as its coordinator keeps it."""

    member_id: str
    joined: Joining
    expires: float  # the end of its session, unless it waits for the group
    is_new: bool = True
    assignment: bytes = b""
    join_ticket: Any = field(default=None, repr=False)
    """The request to answer when the rebalance completes; None before it joins."""
    sync_ticket: Any = field(default=None, repr=False)
    has_synced: bool = True  # true if it has its assignment of this generation, if already computed

    @property
    def instance_id(self) -> str | None:
        """The identity of a static member across restarts."""
        return self.joined.instance_id

    @property
    def ends(self) -> float:
        """The time at which it is removed; never while it waits for the group, unless it is new."""
        if self.join_ticket is not None and self.is_new:
            return self.expires
        waits = self.join_ticket is not None or self.sync_ticket is not None
        return inf if waits else self.expires

    @property
    def has_asked(self) -> bool:
        """True if it has its assignment, or waits for it."""
        return self.has_synced or self.sync_ticket is not None

    @property
    def size_bytes(self) -> int:
        """The state to store."""
        return self.joined.size_bytes + len(self.assignment)

    def metadata(self, protocol: str) -> bytes:
        """Return its metadata for a protocol."""
        return dict(self.joined.protocols).get(protocol, b"")


def common_protocols(members: Iterable[Member]) -> set[str]:
    """Return the protocols that all members support."""
    names = [{name for name, _ in each.joined.protocols} for each in members]
    return set.intersection(*names) if names else set()


def chosen_protocol(members: Collection[Member]) -> str:
    """Return the protocol that most members prefer, of those that all support."""
    common = common_protocols(members)
    votes = Counter(
        next(name for name, _ in each.joined.protocols if name in common) for each in members
    )
    return votes.most_common(1)[0][0]


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Return the topics in a consumer's metadata; None if its format is unknown."""
    try:
        return {name for name, _ in _topics(metadata, with_partitions=False)}
    except (ValueError, struct.error):
        return None


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """Return the partitions in a consumer's assignment; empty if its format is unknown."""
    try:
        found = _topics(assignment, with_partitions=True)
    except (ValueError, struct.error):
        return []
    return [(topic, number) for topic, numbers in found for number in numbers]


def _topics(octets: bytes, *, with_partitions: bool) -> list[tuple[str, Sequence[int]]]:
    """Parse the array of topics that follows the version in both (Kafka's ConsumerProtocol).

    Raises:
        ValueError, struct.error: the format is unknown.
    """
    (count,), at, found = struct.unpack_from(">i", octets, 2), 6, []
    for _ in range(min(count, len(octets))):
        (length,) = struct.unpack_from(">h", octets, at)
        topic = octets[at + 2 : at + 2 + max(length, 0)].decode()
        at += 2 + max(length, 0)
        numbers: Sequence[int] = ()
        if with_partitions:
            (many,) = struct.unpack_from(">i", octets, at)
            if not 0 <= many <= len(octets):
                raise ValueError("more partitions than bytes")
            numbers = struct.unpack_from(f">{many}i", octets, at + 4)
            at += 4 + 4 * many
        if at > len(octets):
            raise ValueError("cut short")
        found.append((topic, numbers))
    return found


NEW_MEMBER_S: Final = 300.0
"""Time a new member waits for the others, as in Kafka: a client that gives up and joins again would
count several times."""

MAX_GROUP_BYTES: Final = 4 << 20
"""Size of all members' metadata and assignments: the leader's answer contains all metadata."""


_LEAST_WAIT_S: Final = 1.0  # so that client timeouts of zero don't end a rebalance before it begins


class Group:
    """One group. ``on_time`` ends sessions and rebalances."""

    def __init__(self, group_id: str, options: KafkaOptions) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.is_unsaved = False
        """True once it has become stable or empty, or a member has another id then, until its
        coordinator stores that."""
        self._options = options
        self._pending: dict[str, float] = {}  # new ids, and their expiry
        self._answers: list[tuple[Any, JoinAnswer | SyncAnswer]] = []
        self._ready_at = 0.0  # the deadline of a rebalance
        self._delay_left_s = 0.0  # longest further wait of an empty group for members
        self._delays = False  # waiting so: not complete even if all have joined
        self._grew = False  # meanwhile
        self._sync_until: float | None = None

    @property
    def is_unused(self) -> bool:
        """True if it has no members, and none is joining."""
        return self.state in (GroupState.EMPTY, GroupState.DEAD) and not self._pending

    def take_answers(self) -> list[tuple[Any, JoinAnswer | SyncAnswer]]:
        """Return the answers since the last call, each with its request's ticket."""
        taken, self._answers = self._answers, []
        return taken

    # -- requests ----------------------------------------------------------------------------------

    def join(self, now: float, asked: Joining, ticket: Any) -> None:
        """Add a client, or let a member join again."""
        member = self._who_joins(now, asked)
        if isinstance(member, JoinAnswer):
            self._answers.append((ticket, member))
            return
        leader = self.leader
        if member is None:
            member, event = self._add(now, asked), JOIN
        else:
            is_same = member.joined.protocols == asked.protocols
            is_stable = self.state is GroupState.STABLE
            if member.member_id != asked.member_id:
                self._replace(now, member, asked)
                is_same = is_stable and member.joined.subscriptions == asked.subscriptions
            elif is_stable and member.member_id == leader:
                is_same = False  # its subscription has changed
            event = REJOIN if is_same else CHANGE
        action = self._action(event)
        self._answer_join(now, member, KafkaError.REBALANCE_IN_PROGRESS)  # an older request
        member.joined, member.join_ticket = asked, ticket
        if action == REPEAT:
            # Another gateway that continues the group must know a restarted member's new id.
            self.is_unsaved |= member.member_id != asked.member_id
            if asked.version >= FIRST_WITH_SKIPPING:  # others would assign partitions in vain
                leader = self.leader
            self._answer_join(now, member, KafkaError.NONE, leader)
        elif action == REBALANCE:
            self._rebalance(now)
        else:
            self._check(now)

    def sync(
        self,
        now: float,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        ticket: Any,
    ) -> None:
        """Answer with the member's assignment; the leader's request brings all assignments."""
        event = ASSIGN if member_id == self.leader else SYNC
        error = self._hears(now, event, member_id, instance_id, generation)
        if error is not KafkaError.NONE:
            self._answers.append((ticket, SyncAnswer(error)))
            return
        member = self.members[member_id]
        self._answer_sync(now, member, KafkaError.REBALANCE_IN_PROGRESS)  # an older request
        member.sync_ticket = ticket
        if event == ASSIGN and self.state is GroupState.COMPLETING_REBALANCE:
            self._assign(now, assignments)
        elif self.state is GroupState.STABLE:
            self._answer_sync(now, member, KafkaError.NONE)

    def heartbeat(
        self, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> KafkaError:
        """Extend a member's session."""
        return self._hears(now, HEARTBEAT, member_id, instance_id, generation)

    def may_commit(
        self, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> KafkaError:
        """Return an error unless the member, or client without a group, may commit."""
        if generation < 0 and (self.state is GroupState.EMPTY or not (member_id or instance_id)):
            action = self._action(SIMPLE_COMMIT)
            return action if isinstance(action, KafkaError) else KafkaError.NONE
        return self._hears(now, COMMIT, member_id, instance_id, generation)

    def leave(self, now: float, member_id: str, instance_id: str | None) -> KafkaError:
        """Remove a member; a static one may be named by its instance alone."""
        if self.state is GroupState.DEAD:
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        if self._pending.pop(member_id, None) is not None:
            self._check(now)
            return KafkaError.NONE
        static = None if member_id else self._static(instance_id)
        member = self._member(static.member_id if static else member_id, instance_id)
        if isinstance(member, KafkaError):
            return member
        self._remove(now, [member])
        return KafkaError.NONE

    def end(self, error: KafkaError) -> None:
        """End the group, as deleted or moved; answer all waiting requests with the error."""
        for member in self.members.values():
            self._refuse(member, error)
        self.members.clear()
        self._pending.clear()
        self._sync_until = None
        self.state = GroupState.DEAD

    def kept(self, time_ms: int) -> Generation:
        """Return the state to store, at a time."""
        members = tuple(
            KeptMember(each.member_id, each.joined, each.assignment)
            for each in self.members.values()
        )
        protocol = self.protocol_type, self.protocol
        return Generation(self.generation, *protocol, self.leader, members, time_ms)

    def restore(self, now: float, kept: Generation) -> None:
        """Continue from the state that another gateway stored; its members don't notice."""
        self.generation = kept.number
        for member_id, joined, assignment in map(msgspec.structs.astuple, kept.members):
            expires = now + joined.session_s
            self.members[member_id] = Member(member_id, joined, expires, False, assignment)
        if self.members:
            self.protocol_type, self.protocol = kept.protocol_type, kept.protocol
            self.leader = kept.leader if kept.leader in self.members else next(iter(self.members))
            self.state = GroupState.STABLE

    # -- time --------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """The time of the next ``on_time`` call; infinite if none is needed."""
        times = [member.ends for member in self.members.values()]
        times += self._pending.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._ready_at)
        if self._sync_until is not None:
            times.append(self._sync_until)
        return min(times, default=inf)

    def on_time(self, now: float) -> None:
        """End sessions and rebalances that are over."""
        for member_id in [name for name, until in self._pending.items() if until <= now]:
            del self._pending[member_id]
        gone = [each for each in self.members.values() if each.ends <= now]
        if self._sync_until is not None and self._sync_until <= now:
            self._sync_until = None
            late = [each for each in self.members.values() if not each.has_asked]
            gone += [each for each in late if each not in gone]
        if gone:
            self._remove(now, gone)
        self._check(now)
        if self.state is GroupState.PREPARING_REBALANCE and self._ready_at <= now:
            if self._delays and self._grew and self._delay_left_s > 0:
                self._delay(now)
            else:
                self._begin_generation(now)

    # -- internal ----------------------------------------------------------------------------------

    def _action(self, event: str) -> str | KafkaError:
        return GROUP_TABLE[self.state][event].action

    def _who_joins(self, now: float, asked: Joining) -> Member | JoinAnswer | None:
        """Return the member that joins again, None for a new one, or an immediate answer."""
        if self.state is GroupState.DEAD:
            return JoinAnswer(KafkaError.COORDINATOR_NOT_AVAILABLE, asked.member_id)
        if (refusal := self._refusal(asked)) is not None:
            return JoinAnswer(refusal, asked.member_id)
        if asked.member_id:
            is_dynamic = asked.instance_id is None  # only such a client gets an id first
            if is_dynamic and self._pending.pop(asked.member_id, None) is not None:
                return None
            member = self._member(asked.member_id, asked.instance_id)
            return JoinAnswer(member, asked.member_id) if isinstance(member, KafkaError) else member
        static = self._static(asked.instance_id)
        if static is not None:
            return static
        if len(self.members) + len(self._pending) >= self._options.group_max_size:
            return JoinAnswer(KafkaError.GROUP_MAX_SIZE_REACHED)
        if asked.version >= FIRST_WITH_IDS and asked.instance_id is None:
            member_id = asked.new_id()
            self._pending[member_id] = now + asked.session_s
            return JoinAnswer(KafkaError.MEMBER_ID_REQUIRED, member_id)
        return None

    def _refusal(self, asked: Joining) -> KafkaError | None:
        """Return the error for a client that can't join the other members."""
        most_s = self._options.group_max_session_timeout_ms / 1000
        if not self._options.group_min_session_timeout_ms / 1000 <= asked.session_s <= most_s:
            return KafkaError.INVALID_SESSION_TIMEOUT
        names = {name for name, _ in asked.protocols}
        if not asked.protocol_type or not names:
            return KafkaError.INCONSISTENT_GROUP_PROTOCOL
        members = self.members.values()
        if members and (
            asked.protocol_type != self.protocol_type or names.isdisjoint(common_protocols(members))
        ):
            return KafkaError.INCONSISTENT_GROUP_PROTOCOL
        known = self.members.get(asked.member_id) or self._static(asked.instance_id)
        others = sum(each.size_bytes for each in members if each is not known)
        is_too_large = asked.size_bytes + others > MAX_GROUP_BYTES
        return KafkaError.GROUP_MAX_SIZE_REACHED if is_too_large else None

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _member(self, member_id: str, instance_id: str | None) -> Member | KafkaError:
        """Return the member, or an error if it is unknown or its instance has been replaced."""
        if self.state is GroupState.DEAD:
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        static = self._static(instance_id)
        if static is not None and static.member_id != member_id:
            return KafkaError.FENCED_INSTANCE_ID
        if static is None and instance_id is not None:
            return KafkaError.UNKNOWN_MEMBER_ID
        return self.members.get(member_id) or KafkaError.UNKNOWN_MEMBER_ID

    def _hears(
        self, now: float, event: str, member_id: str, instance_id: str | None, generation: int
    ) -> KafkaError:
        member = self._member(member_id, instance_id)
        if isinstance(member, KafkaError):
            return member
        if generation != self.generation:
            return KafkaError.ILLEGAL_GENERATION
        if not member.is_new:
            member.expires = now + member.joined.session_s
        action = self._action(event)
        return action if isinstance(action, KafkaError) else KafkaError.NONE

    def _add(self, now: float, asked: Joining) -> Member:
        member = Member(asked.member_id or asked.new_id(), asked, now + NEW_MEMBER_S)
        self.members[member.member_id] = member
        self.protocol_type = asked.protocol_type
        self._grew = True
        return member

    def _replace(self, now: float, member: Member, asked: Joining) -> None:
        """Replace a restarted static member: it gets a new id, and the old one becomes unknown."""
        self._refuse(member, KafkaError.FENCED_INSTANCE_ID)
        old, member.member_id = member.member_id, asked.new_id()
        del self.members[old]
        self.members[member.member_id] = member
        if self.leader == old:
            self.leader = member.member_id

    def _assign(self, now: float, assignments: Mapping[str, bytes]) -> None:
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.state = GroupState.STABLE
        self.is_unsaved = True
        for member in self.members.values():
            self._answer_sync(now, member, KafkaError.NONE)

    def _remove(self, now: float, gone: Sequence[Member]) -> None:
        for member in gone:
            del self.members[member.member_id]
            self._refuse(member, KafkaError.UNKNOWN_MEMBER_ID)
        if self._action(LEAVE) == REBALANCE:
            self._rebalance(now)
        else:
            self._check(now)

    def _rebalance(self, now: float) -> None:
        for member in self.members.values():
            self._answer_sync(now, member, KafkaError.REBALANCE_IN_PROGRESS)
        self._sync_until = None
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        wait_s = self._longest_wait_s()
        self._ready_at = now + wait_s
        self._delays = False
        if was_empty and self._options.group_rebalance_delay_ms:
            self._delay_left_s = wait_s
            self._delay(now)
        self._check(now)

    def _longest_wait_s(self) -> float:
        return max((each.joined.rebalance_s for each in self.members.values()), default=0.0)

    def _delay(self, now: float) -> None:
        """Wait for more members of a group that was empty: they mostly start together."""
        step_s = min(self._options.group_rebalance_delay_ms / 1000, self._delay_left_s)
        self._delay_left_s -= step_s
        self._ready_at = now + step_s
        self._delays, self._grew = True, False

    def _check(self, now: float) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self._delays or self._pending:
            return
        if all(each.join_ticket is not None for each in self.members.values()):
            self._begin_generation(now)

    def _begin_generation(self, now: float) -> None:
        self._delays = False
        for member in [*self.members.values()]:
            if member.join_ticket is None and member.instance_id is None:
                del self.members[member.member_id]
        joined = [each for each in self.members.values() if each.join_ticket is not None]
        if self.members and not joined:
            # Static members are waited for until their sessions end.
            self._ready_at = now + max(self._longest_wait_s(), _LEAST_WAIT_S)
            return
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol_type = self.protocol = self.leader = ""
            self.is_unsaved = True
            return
        if self.leader not in {each.member_id for each in joined}:
            self.leader = joined[0].member_id
        self.protocol = chosen_protocol(self.members.values())
        self.state = GroupState.COMPLETING_REBALANCE
        self._sync_until = now + max(self._longest_wait_s(), _LEAST_WAIT_S)
        for member in self.members.values():
            member.is_new = member.has_synced = False
        for member in joined:
            self._answer_join(now, member, KafkaError.NONE, self.leader)

    def _answer_join(self, now: float, member: Member, error: KafkaError, leader: str = "") -> None:
        """Answer a member that waits for the others; ``leader`` is the leader in its view."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is None:
            return
        answer = JoinAnswer(error, member.member_id)
        if error is KafkaError.NONE:
            member.expires = now + member.joined.session_s
            is_leader = member.member_id == leader
            of_all = self.members.values() if is_leader else ()
            members = [(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in of_all]
            skips = is_leader and self.state is GroupState.STABLE
            at = self.generation, self.protocol, leader
            answer = JoinAnswer(error, member.member_id, *at, members, skips)
        self._answers.append((ticket, answer))

    def _answer_sync(self, now: float, member: Member, error: KafkaError) -> None:
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is None:
            return
        member.expires = now + member.joined.session_s
        answer = SyncAnswer(error)
        if error is KafkaError.NONE:
            member.has_synced = True
            answer = SyncAnswer(error, member.assignment)
        self._answers.append((ticket, answer))

    def _refuse(self, member: Member, error: KafkaError) -> None:
        self._answer_join(0.0, member, error)
        self._answer_sync(0.0, member, error)
