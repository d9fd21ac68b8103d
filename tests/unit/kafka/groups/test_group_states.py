"""The table of a group's states says what a group does: each event in each state."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from dafka_core.kafka.groups import group_states as states
from dafka_core.kafka.groups.group_states import GROUP_TABLE, GroupState
from dafka_core.kafka.groups.member import JoinAnswer, SyncAnswer
from dafka_core.kafka.kafka_errors import KafkaError
from tests.unit.kafka.groups.model import PROTOCOLS, REBALANCE_S, SESSION_S, Tried

OTHER = (("range", b"changed"),)
DRIVEN = [
    (state, event)
    for state in GroupState
    for event in GROUP_TABLE[GroupState.COMPLETING_REBALANCE]
    if event not in (states.READY, states.OVERDUE)
]


def tried_in(state: GroupState) -> tuple[Tried, str, str]:
    """A group in a state, and its leader and another member, if it has some."""
    tried = Tried()
    if state is GroupState.EMPTY:
        return tried, "who", "else"
    leader, other = tried.stable(2)
    match state:
        case GroupState.PREPARING_REBALANCE:
            tried.join()
        case GroupState.COMPLETING_REBALANCE:
            tried.join(leader)
            tried.join(other)
        case GroupState.DEAD:
            tried.group.end(KafkaError.NOT_COORDINATOR)
    tried.answer(0)
    assert tried.group.state is state
    return tried, leader, other


def outcome(tried: Tried, event: str, leader: str, other: str) -> KafkaError | None:
    """Has the event happen; the error of the answer, None if there is no answer yet."""
    group, now, generation = tried.group, tried.now, tried.group.generation
    protocols = group.members[other].joined.protocols if other in group.members else PROTOCOLS
    match event:
        case states.JOIN:
            answer = tried.answer(tried.join())
        case states.REJOIN:
            answer = tried.answer(tried.join(other, protocols=protocols))
        case states.CHANGE:
            answer = tried.answer(
                tried.join(other, protocols=OTHER if protocols != OTHER else PROTOCOLS)
            )
        case states.SYNC:
            answer = tried.answer(tried.sync(other))
        case states.ASSIGN:
            answer = tried.answer(tried.sync(leader, {leader: b"all"}))
        case states.HEARTBEAT:
            return group.heartbeat(now, other, None, generation)
        case states.LEAVE:
            return group.leave(now, other, None)
        case states.COMMIT:
            return group.may_commit(now, other, None, generation)
        case states.SIMPLE_COMMIT:
            return group.may_commit(now, "", None, -1)
        case _:
            group.end(KafkaError.NOT_COORDINATOR)
            return None
    assert answer is None or isinstance(answer, JoinAnswer | SyncAnswer)
    return None if answer is None else answer.error


@pytest.mark.parametrize(("state", "event"), DRIVEN)
def test_each_request_in_each_state_is_answered_as_the_table_says(
    state: GroupState, event: str
) -> None:
    tried, leader, other = tried_in(state)
    found = outcome(tried, event, leader, other)
    reaction = GROUP_TABLE[state].get(event)
    if reaction is None:
        assert (state, event) == (GroupState.DEAD, states.DELETE)
        return
    assert tried.group.state.label in reaction.then.split(", ")
    if isinstance(reaction.action, KafkaError):
        assert found is reaction.action
    elif event == states.DELETE:
        assert tried.group.members == {}
    elif reaction.action in (states.WAIT, states.REBALANCE):
        # A member that leaves is answered; one that joins or asks waits.
        is_alone = state is GroupState.EMPTY
        assert found is (KafkaError.NONE if event == states.LEAVE or is_alone else None)
    else:
        assert found is KafkaError.NONE


class Walk:
    """A group to which anything happens."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tried = Tried(chance.choice([0.0, 0.0, 3.0]))

    def step(self) -> str:
        tried, group = self.tried, self.tried.group
        names = [*group.members] or ["who"]
        leader = group.leader or names[0]
        others = [each for each in names if each != leader] or [leader]
        other = self.chance.choice(others)
        events = [states.JOIN, states.REJOIN, states.CHANGE, states.SYNC, states.ASSIGN]
        events += [states.HEARTBEAT, states.LEAVE, states.COMMIT, states.SIMPLE_COMMIT]
        if group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            events += [states.READY, states.REJOIN, states.REJOIN]
        if self.chance.random() < 0.01:
            events = [states.DELETE]
        event = self.chance.choice(events)
        if event == states.READY:
            if group.state is GroupState.COMPLETING_REBALANCE:
                event = states.OVERDUE
            elif self.chance.random() < 0.3:
                for each in others:
                    tried.join(each)
                tried.now += REBALANCE_S  # nobody looked at the time
            tried.now += self.chance.choice([SESSION_S / 2, SESSION_S, REBALANCE_S])
            group.on_time(tried.now)
        else:
            if event == states.SYNC and group.leader == other:
                event = states.ASSIGN
            if event == states.REJOIN and self.chance.random() < 0.5:
                other = leader
            if event == states.REJOIN and other == leader and group.state is GroupState.STABLE:
                event = states.CHANGE
            if event == states.JOIN and self.chance.random() < 0.3:
                self.join_with_an_id()
            else:
                outcome(tried, event, leader, other)
        tried.answer(0)
        return event

    def join_with_an_id(self) -> None:
        """A client asks for an id, the others join meanwhile, and then it does."""
        tried = self.tried
        asked = tried.joined(tried.join(knows_ids=True))
        if asked is None or asked.error is not KafkaError.MEMBER_ID_REQUIRED:
            return
        if tried.group.state is GroupState.PREPARING_REBALANCE:
            for each in [*tried.group.members]:
                tried.join(each)
        tried.join(asked.member_id)


def test_a_group_changes_its_state_only_as_the_table_says() -> None:
    chance = random.Random(1)
    seen: dict[tuple[GroupState, str], set[str]] = defaultdict(set)
    for _ in range(1_500):
        walk = Walk(chance)
        for _ in range(25):
            before = walk.tried.group.state
            event = walk.step()
            if event in (states.READY, states.OVERDUE):
                continue  # sessions end at the same time
            seen[before, event].add(walk.tried.group.state.label)
    wrong = {
        (state.label, event): (found, GROUP_TABLE[state].get(event))
        for (state, event), found in seen.items()
        if found - set(GROUP_TABLE[state].get(event, (state.label,))[0].split(", "))
    }
    assert wrong == {}
    # And what it says does happen.
    assert {
        (state.label, event, then)
        for state, reactions in GROUP_TABLE.items()
        for event, reaction in reactions.items()
        for then in reaction.then.split(", ")
        if then not in seen[state, event] and event not in (states.READY, states.OVERDUE)
    } == set()


def test_a_state_has_kafkas_name() -> None:
    assert [each.kafka_name for each in GroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]
