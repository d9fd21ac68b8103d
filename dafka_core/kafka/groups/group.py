"""A consumer group: the classic protocol as Kafka's coordinator speaks it, without I/O.

Time is an argument.  A request is given with a ticket; its answer comes out of ``take_answers``
with the ticket, at once or when the group is ready for it.  What happens in which state is
``group_states.GROUP_TABLE``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any, Final

from dafka_core.kafka.groups import group_states as states
from dafka_core.kafka.groups.group_limits import NEW_MEMBER_S, GroupLimits
from dafka_core.kafka.groups.group_states import GROUP_TABLE, GroupState
from dafka_core.kafka.groups.member import (
    JoinAnswer,
    Joining,
    Member,
    SyncAnswer,
    chosen_protocol,
)
from dafka_core.kafka.kafka_errors import KafkaError

_LEAST_WAIT_S: Final = 1.0
"""So that a client's timeouts of nothing do not end a rebalance before it has begun."""


class Group:
    """One group.  Members' sessions end, and rebalances, when ``on_time`` is called."""

    def __init__(self, group_id: str, limits: GroupLimits | None = None) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.changes = 0
        """How often it has become stable, or empty: what another gateway goes on with."""
        self._limits = limits or GroupLimits()
        self._pending: dict[str, float] = {}  # ids given, and how long they hold
        self._answers: list[tuple[Any, JoinAnswer | SyncAnswer]] = []
        self._ready_at = 0.0  # when a rebalance does not wait any longer
        self._delay_left_s = 0.0  # how long an empty group may still wait for more members
        self._delays = False  # it does so: it is not complete even if all have joined
        self._grew = False  # meanwhile
        self._sync_until: float | None = None

    @property
    def is_unused(self) -> bool:
        """Whether nobody is in it, or about to be."""
        return self.state in (GroupState.EMPTY, GroupState.DEAD) and not self._pending

    def take_answers(self) -> list[tuple[Any, JoinAnswer | SyncAnswer]]:
        """The answers since the last call, each with its request's ticket."""
        taken, self._answers = self._answers, []
        return taken

    # -- requests ----------------------------------------------------------------------------------

    def join(self, now: float, asked: Joining, ticket: Any) -> None:
        """A client joins, or a member joins again."""
        member = self._who_joins(now, asked)
        if isinstance(member, JoinAnswer):
            self._answers.append((ticket, member))
            return
        leader = self.leader
        if member is None:
            member, event = self._add(now, asked), states.JOIN
        else:
            is_same = list(member.joined.protocols) == list(asked.protocols)
            is_stable = self.state is GroupState.STABLE
            if member.member_id != asked.member_id:
                self._replace(now, member, asked)
                is_same = is_same and is_stable
            elif is_stable and member.member_id == leader:
                is_same = False  # it has topics to share anew
            event = states.REJOIN if is_same else states.CHANGE
        action = self._action(event)
        self._answer_join(now, member, KafkaError.REBALANCE_IN_PROGRESS)  # an older request
        member.joined, member.join_ticket = asked, ticket
        if action == states.REPEAT:
            self._answer_join(now, member, KafkaError.NONE, leader)
        elif action == states.REBALANCE:
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
        """A member asks for its part; the leader says what each member's is."""
        event = states.ASSIGN if member_id == self.leader else states.SYNC
        error = self._hears(now, event, member_id, instance_id, generation)
        if error is not KafkaError.NONE:
            self._answers.append((ticket, SyncAnswer(error)))
            return
        member = self.members[member_id]
        self._answer_sync(now, member, KafkaError.REBALANCE_IN_PROGRESS)  # an older request
        member.sync_ticket = ticket
        if event == states.ASSIGN and self.state is GroupState.COMPLETING_REBALANCE:
            self._assign(now, assignments)
        elif self.state is GroupState.STABLE:
            self._answer_sync(now, member, KafkaError.NONE)

    def heartbeat(
        self, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> KafkaError:
        """A member says that it is there."""
        return self._hears(now, states.HEARTBEAT, member_id, instance_id, generation)

    def may_commit(
        self, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> KafkaError:
        """Whether a member may commit offsets, or a client that is in no group (generation -1)."""
        if generation < 0 and (self.state is GroupState.EMPTY or not (member_id or instance_id)):
            action = self._action(states.SIMPLE_COMMIT)
            return action if isinstance(action, KafkaError) else KafkaError.NONE
        return self._hears(now, states.COMMIT, member_id, instance_id, generation)

    def leave(self, now: float, member_id: str, instance_id: str | None) -> KafkaError:
        """A member leaves; a static one may be named by its instance alone."""
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
        """It is deleted, or goes to another gateway; whoever waits gets the error."""
        for member in self.members.values():
            self._refuse(member, error)
        self.members.clear()
        self._pending.clear()
        self._sync_until = None
        self.state = GroupState.DEAD

    def restore(
        self,
        now: float,
        generation: int,
        protocol: tuple[str, str],
        leader: str,
        members: Collection[tuple[str, Joining, bytes]],
    ) -> None:
        """Goes on from what another gateway has kept: its members have not noticed yet.

        Args:
            protocol: type and name.
            members: their ids, how they have joined, and their parts.
        """
        self.generation = generation
        self.protocol_type, self.protocol = protocol if members else ("", "")
        for member_id, joined, assignment in members:
            expires = now + joined.session_s
            self.members[member_id] = Member(member_id, joined, expires, False, assignment)
        self.leader = leader if leader in self.members else next(iter(self.members), "")
        self.state = GroupState.STABLE if members else GroupState.EMPTY

    # -- time --------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When ``on_time`` has something to do; infinite if never."""
        times = [member.ends for member in self.members.values()]
        times += self._pending.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._ready_at)
        if self._sync_until is not None:
            times.append(self._sync_until)
        return min(times, default=inf)

    def on_time(self, now: float) -> None:
        """Ends what has lasted for too long."""
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

    # -- within ------------------------------------------------------------------------------------

    def _action(self, event: str) -> str | KafkaError:
        return GROUP_TABLE[self.state][event].action

    def _who_joins(self, now: float, asked: Joining) -> Member | JoinAnswer | None:
        """The member that joins again, None for a new one, or what is answered at once."""
        if self.state is GroupState.DEAD:
            return JoinAnswer(KafkaError.COORDINATOR_NOT_AVAILABLE, asked.member_id)
        refusal = self._limits.refusal(asked, self.members.values(), self.protocol_type)
        if refusal is not None:
            return JoinAnswer(refusal, asked.member_id)
        if asked.member_id:
            if self._pending.pop(asked.member_id, None) is not None:
                return None
            member = self._member(asked.member_id, asked.instance_id)
            return JoinAnswer(member, asked.member_id) if isinstance(member, KafkaError) else member
        static = self._static(asked.instance_id)
        if static is not None:
            return static
        if len(self.members) + len(self._pending) >= self._limits.max_members:
            return JoinAnswer(KafkaError.GROUP_MAX_SIZE_REACHED)
        if asked.knows_ids and asked.instance_id is None:
            member_id = asked.new_id()
            self._pending[member_id] = now + asked.session_s
            return JoinAnswer(KafkaError.MEMBER_ID_REQUIRED, member_id)
        return None

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _member(self, member_id: str, instance_id: str | None) -> Member | KafkaError:
        """The member; an error where there is none, or its instance is another member by now."""
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
        """A static member has begun anew: it gets another id, and whoever has the old one none."""
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
        self.changes += 1
        for member in self.members.values():
            self._answer_sync(now, member, KafkaError.NONE)

    def _remove(self, now: float, gone: Sequence[Member]) -> None:
        for member in gone:
            del self.members[member.member_id]
            self._refuse(member, KafkaError.UNKNOWN_MEMBER_ID)
        if self._action(states.LEAVE) == states.REBALANCE:
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
        if was_empty and self._limits.delay_s > 0:
            self._delay_left_s = wait_s
            self._delay(now)
        self._check(now)

    def _longest_wait_s(self) -> float:
        return max((each.joined.rebalance_s for each in self.members.values()), default=0.0)

    def _delay(self, now: float) -> None:
        """A group that was empty waits for more members, which mostly start together."""
        step_s = min(self._limits.delay_s, self._delay_left_s)
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
            self.state, self.protocol_type, self.protocol, self.leader = (
                GroupState.EMPTY,
                "",
                "",
                "",
            )
            self.changes += 1
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
        """Answers a member that waits for the others; ``leader`` is whom it takes for that."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is None:
            return
        answer = JoinAnswer(error, member.member_id)
        if error is KafkaError.NONE:
            member.expires = now + member.joined.session_s
            of_all = self.members.values() if member.member_id == leader else ()
            members = [(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in of_all]
            answer = JoinAnswer(
                error, member.member_id, self.generation, self.protocol, leader, members
            )
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
