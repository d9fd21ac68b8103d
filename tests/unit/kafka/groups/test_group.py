"""A consumer group: members, leaders, expiry and refusals."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from dafka_kafka.errors import KafkaError
from dafka_kafka.groups import group as states
from dafka_kafka.groups.group import (
    GROUP_TABLE,
    Group,
    GroupState,
    JoinAnswer,
    SyncAnswer,
    assigned_partitions,
    subscribed_topics,
)
from dafka_kafka.options import KafkaOptions
from tests.unit.kafka.groups.model import PROTOCOLS, REBALANCE_S, SESSION_S, Tried, members_of


@pytest.fixture
def tried() -> Tried:
    return Tried()


def test_those_that_start_together_get_one_generation_and_one_leader() -> None:
    tried = Tried(delay_ms=3_000)
    first = tried.join()
    tried.pass_s(2.0)
    second = tried.join()
    tried.pass_s(1.5)  # the first delay is over; a member has joined meanwhile
    third = tried.join()
    assert tried.joined(first) is None
    tried.pass_s(2.0)
    assert tried.joined(first) is None  # another delay, for the third
    tried.pass_s(5.0)
    answers = [tried.told(each) for each in (first, second, third)]
    names = [each.member_id for each in answers]
    assert [each.generation for each in answers] == [1, 1, 1]
    assert {each.leader for each in answers} == {names[0]}
    assert [members_of(each) for each in answers] == [names, [], []]


def test_the_delay_ends_with_the_shortest_patience() -> None:
    tried = Tried(delay_ms=3_000)
    ticket = tried.join(rebalance_s=4.0)
    for _ in range(5):
        tried.pass_s(1.0)
        tried.join(rebalance_s=4.0)
    assert tried.joined(ticket) is not None


def test_each_member_gets_the_part_that_the_leader_gives_it(tried: Tried) -> None:
    leader, other = tried.stable(2)
    for name in (leader, other):
        assert tried.synced(tried.sync(name)) == SyncAnswer(KafkaError.NONE, name.encode())
    tried.join(leader)
    tried.join(other)
    waits = tried.sync(other)
    assert tried.synced(waits) is None
    assert tried.synced(tried.sync(leader, {leader: b"all"})) == SyncAnswer(KafkaError.NONE, b"all")
    assert tried.synced(waits) == SyncAnswer(KafkaError.NONE, b"")


def test_a_new_member_has_the_others_join_again(tried: Tried) -> None:
    leader, *_ = tried.stable(2)
    ticket = tried.join()
    beat = tried.beat(leader, generation=2)
    assert beat is KafkaError.REBALANCE_IN_PROGRESS
    for name in [*tried.group.members]:
        if tried.group.members[name].join_ticket is None:
            tried.join(name)
    found = tried.told(ticket)
    assert (found.error, found.generation, found.leader) == (KafkaError.NONE, 3, leader)


def test_an_id_is_given_first_to_who_asks_for_it(tried: Tried) -> None:
    asked = tried.told(tried.join(version=4))
    assert asked.error is KafkaError.MEMBER_ID_REQUIRED
    assert asked.member_id.startswith("app-")
    assert tried.group.members == {}
    joined = tried.told(tried.join(asked.member_id, version=4))
    assert (joined.error, joined.member_id) == (KafkaError.NONE, asked.member_id)


def test_an_id_with_which_nobody_joins_is_waited_for_only_for_a_session(tried: Tried) -> None:
    (leader,) = tried.stable()
    tried.join(version=4)
    ticket = tried.join(leader)
    tried.pass_s(SESSION_S - 1)
    assert tried.joined(ticket) is None
    tried.pass_s(1.0)
    assert tried.told(ticket).error is KafkaError.NONE
    late = tried.joined(tried.join("app-unheard-of", version=4))
    assert late == JoinAnswer(KafkaError.UNKNOWN_MEMBER_ID, "app-unheard-of")


def test_an_id_of_a_dynamic_member_is_for_no_static_one(tried: Tried) -> None:
    (static,) = tried.stable(instance_id="one")
    asked = tried.told(tried.join(version=4)).member_id
    for instance, error in (("one", "FENCED_INSTANCE_ID"), ("two", "UNKNOWN_MEMBER_ID")):
        assert tried.told(tried.join(asked, instance_id=instance)).error.name == error
    assert [*tried.group.members] == [static]


def test_an_id_can_be_given_back(tried: Tried) -> None:
    (leader,) = tried.stable()
    asked = tried.told(tried.join(version=4))
    ticket = tried.join(leader)
    assert tried.leave(asked.member_id) is KafkaError.NONE
    assert tried.joined(ticket) is not None


def test_a_silent_member_is_given_up_after_its_session(tried: Tried) -> None:
    leader, other = tried.stable(2)
    tried.beat_s(SESSION_S - 1, leader)
    assert other in tried.group.members
    tried.beat_s(2, leader)
    assert [*tried.group.members] == [leader]
    assert tried.group.state is GroupState.PREPARING_REBALANCE
    assert tried.beat(other, generation=2) is KafkaError.UNKNOWN_MEMBER_ID


def test_who_does_not_join_again_in_time_is_left_out(tried: Tried) -> None:
    leader, *others = tried.stable(3)
    tried.join(others[0], protocols=PROTOCOLS[:1])
    ticket = tried.join(others[1])
    tried.beat_s(REBALANCE_S + 1, leader)  # it sends heartbeats, and does not join
    found = tried.told(ticket)
    assert {leader, found.leader} <= {leader, *others}
    assert found.leader != leader
    assert set(tried.group.members) == set(others)


def test_a_new_member_that_waits_for_long_is_given_up(tried: Tried) -> None:
    (leader,) = tried.stable(rebalance_s=1_000.0)
    ticket = tried.join()
    tried.beat_s(301, leader)
    assert tried.told(ticket).error is KafkaError.UNKNOWN_MEMBER_ID


def test_who_does_not_ask_for_its_part_in_time_is_given_up(tried: Tried) -> None:
    leader, other = tried.stable(2)
    tried.join(leader)
    tried.join(other)
    tried.sync(other)
    tried.beat_s(REBALANCE_S + 1, leader)  # the leader assigns nothing
    assert [*tried.group.members] == [other]
    assert tried.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_whose_last_member_leaves_is_empty_and_begins_again(tried: Tried) -> None:
    (leader,) = tried.stable()
    assert tried.leave(leader) is KafkaError.NONE
    assert (tried.group.state, tried.group.protocol_type) == (GroupState.EMPTY, "")
    assert tried.group.is_unused
    assert tried.member(protocol_type="connect")


def test_the_protocol_is_what_most_like_best_of_what_all_know() -> None:
    tried = Tried(delay_ms=3_000)
    tickets = [
        tried.join(protocols=tuple((name, b"%d" % member) for name in names))
        for member, names in enumerate(("ab", "bac", "cba"), 1)
    ]
    tried.pass_s(10.0)
    answers = [tried.told(each) for each in tickets]
    assert [each.protocol for each in answers] == ["b", "b", "b"]
    assert [octets for _, _, octets in answers[0].members] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("generation", [0, 2, -5])
def test_another_generation_is_refused(tried: Tried, generation: int) -> None:
    (leader,) = tried.stable()
    illegal = KafkaError.ILLEGAL_GENERATION
    assert tried.beat(leader, generation=generation) is illegal
    assert tried.may_commit(leader, generation=generation) is illegal
    assert tried.synced(tried.sync(leader, generation=generation)) == SyncAnswer(illegal)


def test_a_static_member_that_starts_again_keeps_its_part_without_a_rebalance(tried: Tried) -> None:
    (old,) = tried.stable(instance_id="one")
    found = tried.told(tried.join(instance_id="one"))
    assert (found.error, found.generation) == (KafkaError.NONE, 1)
    assert found.member_id != old
    assert found.leader == old  # so that it does not rebalance with the same result
    assert tried.group.state is GroupState.STABLE
    synced = tried.synced(tried.sync(found.member_id, instance_id="one"))
    assert synced == SyncAnswer(KafkaError.NONE, old.encode())
    fenced = KafkaError.FENCED_INSTANCE_ID  # for the old id
    for answer in (tried.beat, tried.may_commit, tried.leave):
        assert answer(old, "one") is fenced
    assert tried.synced(tried.sync(old, instance_id="one")) == SyncAnswer(fenced)
    assert tried.joined(tried.join(old, instance_id="one")) == JoinAnswer(fenced, old)


def test_a_static_member_with_other_topics_has_the_group_rebalance(tried: Tried) -> None:
    tried.stable(instance_id="one")
    found = tried.told(tried.join(instance_id="one", protocols=(("range", b"more"),)))
    assert (found.generation, found.leader) == (2, found.member_id)
    others = SUBSCRIPTION.replace(b"bc", b"de")
    for generation, octets in ((3, SUBSCRIPTION), (4, others)):
        found = tried.told(tried.join(instance_id="one", protocols=(("range", octets),)))
        assert found.generation == generation
        tried.sync(found.member_id, instance_id="one")


def test_a_static_member_need_not_tell_its_former_partitions_when_it_starts_again(
    tried: Tried,
) -> None:
    before, after = (("range", SUBSCRIPTION + b"its partitions"),), (("range", SUBSCRIPTION),)
    tried.stable(instance_id="one", protocols=before)
    assert tried.told(tried.join(instance_id="one", protocols=after)).generation == 1


def test_a_static_member_that_waits_is_fenced_by_its_next_start() -> None:
    tried = Tried(delay_ms=3_000)
    first = tried.join(instance_id="one")
    second = tried.join(instance_id="one")
    assert tried.told(first).error is KafkaError.FENCED_INSTANCE_ID
    tried.pass_s(10.0)
    assert tried.told(second).error is KafkaError.NONE
    assert len(tried.group.members) == 1


def test_a_static_member_is_kept_over_a_rebalance_until_its_session_ends(tried: Tried) -> None:
    (static,) = tried.stable(instance_id="one", session_s=60.0)
    ticket = tried.join()
    tried.pass_s(REBALANCE_S)
    found = tried.told(ticket)
    assert members_of(found) == [static, found.member_id]
    tried.sync(found.member_id, {static: b"half", found.member_id: b"half"})
    assert tried.group.state is GroupState.STABLE
    tried.beat_s(61, found.member_id)
    assert static not in tried.group.members


def test_a_static_member_leaves_by_its_instance(tried: Tried) -> None:
    tried.stable(instance_id="one")
    assert tried.leave("", "two") is KafkaError.UNKNOWN_MEMBER_ID
    assert tried.leave("", "one") is KafkaError.NONE
    assert tried.group.state is GroupState.EMPTY


def test_who_waits_when_the_group_moves_is_told_to_ask_elsewhere(tried: Tried) -> None:
    tried.stable()
    ticket = tried.join()
    tried.group.end(KafkaError.NOT_COORDINATOR)
    assert tried.told(ticket).error is KafkaError.NOT_COORDINATOR
    assert tried.group.deadline() == float("inf")


def test_another_gateway_goes_on_with_the_members(tried: Tried) -> None:
    leader, other = tried.stable(2)
    taken = Group("g", KafkaOptions())
    kept = tried.group.kept(time_ms=7)
    assert (kept.number, kept.leader, len(kept.members), kept.time_ms) == (2, leader, 2, 7)
    taken.restore(tried.now, kept)
    assert taken.kept(time_ms=7) == kept
    assert taken.heartbeat(tried.now, other, None, 2) is KafkaError.NONE
    assert taken.may_commit(tried.now, leader, None, 2) is KafkaError.NONE
    taken.on_time(tried.now + SESSION_S + 1)
    assert taken.state is GroupState.EMPTY
    assert taken.generation == 3


def test_a_member_that_joins_twice_is_answered_once_each(tried: Tried) -> None:
    leader, other = tried.stable(2)
    first, second = tried.join(other, protocols=PROTOCOLS[:1]), tried.join(other)
    assert tried.joined(first) == JoinAnswer(KafkaError.REBALANCE_IN_PROGRESS, other)
    tried.join(leader)
    assert tried.told(second).error is KafkaError.NONE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_s": 5.9}, KafkaError.INVALID_SESSION_TIMEOUT),
        ({"session_s": 1_800.1}, KafkaError.INVALID_SESSION_TIMEOUT),
        ({"session_s": -1}, KafkaError.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, KafkaError.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("range", bytes(4 << 20)),)}, KafkaError.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_who_cannot_join_is_told_why(
    tried: Tried, changes: dict[str, Any], error: KafkaError
) -> None:
    tried.stable()
    found = tried.told(tried.join(**changes))
    assert found.error is error
    assert len(tried.group.members) == 1


def test_a_member_that_joins_again_is_counted_once(tried: Tried) -> None:
    large: dict[str, Any] = {"protocols": (("range", bytes(3 << 20)),), "instance_id": "one"}
    (name,) = tried.stable(**large)
    for each in (name, ""):
        assert tried.told(tried.join(each, **large)).error is KafkaError.NONE


def test_a_group_has_so_many_members_and_no_more() -> None:
    tried = Tried(group_max_size=3)
    tried.stable(2)
    assert tried.told(tried.join(version=4)).error is KafkaError.MEMBER_ID_REQUIRED
    assert tried.joined(tried.join()) == JoinAnswer(KafkaError.GROUP_MAX_SIZE_REACHED)
    first, second = tried.group.members
    tried.join(first)  # its members may join again
    assert tried.group.members[first].join_ticket is not None
    assert second in tried.group.members


OTHER = (("range", b"changed"),)
DRIVEN = [
    (state, event)
    for state in GroupState
    for event in GROUP_TABLE[GroupState.COMPLETING_REBALANCE]
    if event not in (states.READY, states.OVERDUE)
]


def tried_in(state: GroupState) -> tuple[Tried, str, str]:
    """A group in a state, with its leader and another member, if any."""
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
    """Trigger the event; return the error in the answer, None without an answer yet."""
    group = tried.group
    protocols = group.members[other].joined.protocols if other in group.members else PROTOCOLS
    others = OTHER if protocols != OTHER else PROTOCOLS
    asks: dict[str, Callable[[], int]] = {
        states.JOIN: tried.join,
        states.REJOIN: lambda: tried.join(other, protocols=protocols),
        states.CHANGE: lambda: tried.join(other, protocols=others),
        states.SYNC: lambda: tried.sync(other),
        states.ASSIGN: lambda: tried.sync(leader, {leader: b"all"}),
    }
    tells: dict[str, Callable[[], KafkaError | None]] = {
        states.HEARTBEAT: lambda: tried.beat(other),
        states.LEAVE: lambda: tried.leave(other),
        states.COMMIT: lambda: tried.may_commit(other),
        states.SIMPLE_COMMIT: lambda: tried.may_commit("", generation=-1),
        states.DELETE: lambda: group.end(KafkaError.NOT_COORDINATOR),
    }
    if event in tells:
        return tells[event]()
    answer = tried.answer(asks[event]())
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
    """A group under random events."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tried = Tried(chance.choice([0, 0, 3_000]))

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
                tried.now += REBALANCE_S  # on_time was not called
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
        """A client gets an id, the others join meanwhile, and then it joins."""
        tried = self.tried
        asked = tried.joined(tried.join(version=4))
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
    # And it really does something then.
    assert {
        (state.label, event, then)
        for state, reactions in GROUP_TABLE.items()
        for event, reaction in reactions.items()
        for then in reaction.then.split(", ")
        if then not in seen[state, event] and event not in (states.READY, states.OVERDUE)
    } == set()


def test_a_state_has_kafkas_name() -> None:
    names = "Empty PreparingRebalance CompletingRebalance Stable Dead"
    assert " ".join(each.kafka_name for each in GroupState) == names


SUBSCRIPTION = b"\0\1" + b"\0\0\0\2" + b"\0\1a" + b"\0\2bc" + b"\xff\xff\xff\xff"
ASSIGNMENT = (
    b"\0\0" + b"\0\0\0\1" + b"\0\1a" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\5" + b"\0\0\0\0"
)


def test_topics_and_partitions_are_read() -> None:
    assert subscribed_topics(SUBSCRIPTION) == {"a", "bc"}
    assert assigned_partitions(ASSIGNMENT) == [("a", 0), ("a", 5)]


@pytest.mark.parametrize("length", range(len(SUBSCRIPTION) - 4))
def test_what_is_cut_short_says_nothing(length: int) -> None:
    assert subscribed_topics(SUBSCRIPTION[:length]) is None


def test_anything_may_be_there() -> None:
    chance = random.Random(1)
    for _ in range(20_000):
        octets = bytearray(chance.choice([SUBSCRIPTION, ASSIGNMENT]))
        for _ in range(chance.randrange(1, 4)):
            octets[chance.randrange(len(octets))] = chance.randrange(256)
        subscribed_topics(bytes(octets))
        assert len(assigned_partitions(bytes(octets))) < 100
