"""A consumer group: who is in it, who leads, who is given up, and what is refused."""

from __future__ import annotations

import pytest

from dafka_core.kafka.groups.group import Group
from dafka_core.kafka.groups.group_states import GroupState
from dafka_core.kafka.groups.member import JoinAnswer, SyncAnswer
from dafka_core.kafka.kafka_errors import KafkaError
from tests.unit.kafka.groups.model import (
    PROTOCOLS,
    REBALANCE_S,
    SESSION_S,
    Tried,
    joining,
    members_of,
)


def test_those_that_start_together_get_one_generation_and_one_leader() -> None:
    tried = Tried(delay_s=3.0)
    first = tried.join()
    tried.pass_s(2.0)
    second = tried.join()
    tried.pass_s(1.5)  # the first delay is over; a member has come meanwhile
    third = tried.join()
    assert tried.joined(first) is None
    tried.pass_s(2.0)
    assert tried.joined(first) is None  # another delay, for the third
    tried.pass_s(5.0)
    answers = [tried.joined(each) for each in (first, second, third)]
    names = [each.member_id for each in answers if each is not None]
    assert [each.generation for each in answers if each] == [1, 1, 1]
    assert {each.leader for each in answers if each} == {names[0]}
    assert [members_of(each) for each in answers] == [names, [], []]


def test_the_delay_ends_with_the_shortest_patience() -> None:
    tried = Tried(delay_s=3.0)
    ticket = tried.join(rebalance_s=4.0)
    for _ in range(5):
        tried.pass_s(1.0)
        tried.join(rebalance_s=4.0)
    assert tried.joined(ticket) is not None


def test_each_member_gets_the_part_that_the_leader_gives_it() -> None:
    tried = Tried()
    leader, other = tried.stable(2)
    for name in (leader, other):
        assert tried.synced(tried.sync(name)) == SyncAnswer(KafkaError.NONE, name.encode())
    tried.join(leader)
    tried.join(other)
    waits = tried.sync(other)
    assert tried.synced(waits) is None
    assert tried.synced(tried.sync(leader, {leader: b"all"})) == SyncAnswer(KafkaError.NONE, b"all")
    assert tried.synced(waits) == SyncAnswer(KafkaError.NONE, b"")


def test_a_new_member_has_the_others_join_again() -> None:
    tried = Tried()
    leader, *_ = tried.stable(2)
    ticket = tried.join()
    beat = tried.group.heartbeat(tried.now, leader, None, 2)
    assert beat is KafkaError.REBALANCE_IN_PROGRESS
    for name in [*tried.group.members]:
        if tried.group.members[name].join_ticket is None:
            tried.join(name)
    found = tried.joined(ticket)
    assert found is not None
    assert (found.error, found.generation, found.leader) == (KafkaError.NONE, 3, leader)


def test_an_id_is_given_first_to_who_asks_for_it() -> None:
    tried = Tried()
    asked = tried.joined(tried.join(knows_ids=True))
    assert asked is not None
    assert asked.error is KafkaError.MEMBER_ID_REQUIRED
    assert asked.member_id.startswith("app-")
    assert tried.group.members == {}
    joined = tried.joined(tried.join(asked.member_id, knows_ids=True))
    assert joined is not None
    assert (joined.error, joined.member_id) == (KafkaError.NONE, asked.member_id)


def test_an_id_with_which_nobody_joins_is_waited_for_only_for_a_session() -> None:
    tried = Tried()
    (leader,) = tried.stable()
    tried.join(knows_ids=True)
    ticket = tried.join(leader)
    tried.pass_s(SESSION_S - 1)
    assert tried.joined(ticket) is None
    tried.pass_s(1.0)
    found = tried.joined(ticket)
    assert found is not None
    assert found.error is KafkaError.NONE
    late = tried.joined(tried.join("app-unheard-of", knows_ids=True))
    assert late == JoinAnswer(KafkaError.UNKNOWN_MEMBER_ID, "app-unheard-of")


def test_an_id_can_be_given_back() -> None:
    tried = Tried()
    (leader,) = tried.stable()
    asked = tried.joined(tried.join(knows_ids=True))
    ticket = tried.join(leader)
    assert asked is not None
    assert tried.group.leave(tried.now, asked.member_id, None) is KafkaError.NONE
    assert tried.joined(ticket) is not None


def test_a_silent_member_is_given_up_after_its_session() -> None:
    tried = Tried()
    leader, other = tried.stable(2)
    tried.beat_s(SESSION_S - 1, leader)
    assert other in tried.group.members
    tried.beat_s(2, leader)
    assert [*tried.group.members] == [leader]
    assert tried.group.state is GroupState.PREPARING_REBALANCE
    assert tried.group.heartbeat(tried.now, other, None, 2) is KafkaError.UNKNOWN_MEMBER_ID


def test_who_does_not_join_again_in_time_is_left_out() -> None:
    tried = Tried()
    leader, *others = tried.stable(3)
    tried.join(others[0], protocols=PROTOCOLS[:1])
    ticket = tried.join(others[1])
    tried.beat_s(REBALANCE_S + 1, leader)  # it beats, and does not join
    found = tried.joined(ticket)
    assert found is not None
    assert {leader, found.leader} <= {leader, *others}
    assert found.leader != leader
    assert set(tried.group.members) == set(others)


def test_a_new_member_that_waits_for_long_is_given_up() -> None:
    tried = Tried()
    (leader,) = tried.stable(rebalance_s=1_000.0)
    ticket = tried.join()
    tried.beat_s(301, leader)
    assert tried.joined(ticket) == JoinAnswer(
        KafkaError.UNKNOWN_MEMBER_ID, getattr(tried.joined(ticket), "member_id", "")
    )


def test_who_does_not_ask_for_its_part_in_time_is_given_up() -> None:
    tried = Tried()
    leader, other = tried.stable(2)
    tried.join(leader)
    tried.join(other)
    tried.sync(other)
    tried.beat_s(REBALANCE_S + 1, leader)  # the leader assigns nothing
    assert [*tried.group.members] == [other]
    assert tried.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_whose_last_member_leaves_is_empty_and_begins_again() -> None:
    tried = Tried()
    (leader,) = tried.stable()
    assert tried.group.leave(tried.now, leader, None) is KafkaError.NONE
    assert (tried.group.state, tried.group.protocol_type) == (GroupState.EMPTY, "")
    assert tried.group.is_unused
    assert tried.member(protocol_type="connect")


def test_the_protocol_is_what_most_like_best_of_what_all_know() -> None:
    tried = Tried(delay_s=3.0)
    both, only, third = (
        tried.join(protocols=(("a", b"1"), ("b", b"1"))),
        tried.join(protocols=(("b", b"2"), ("a", b"2"), ("c", b"2"))),
        tried.join(protocols=(("c", b"3"), ("b", b"3"), ("a", b"3"))),
    )
    tried.pass_s(10.0)
    answers = [tried.joined(each) for each in (both, only, third)]
    assert [each.protocol for each in answers if each] == ["b", "b", "b"]
    assert answers[0] is not None
    assert [octets for _, _, octets in answers[0].members] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("generation", [0, 2, -5])
def test_another_generation_is_refused(generation: int) -> None:
    tried = Tried()
    (leader,) = tried.stable()
    group, now = tried.group, tried.now
    assert group.heartbeat(now, leader, None, generation) is KafkaError.ILLEGAL_GENERATION
    assert group.may_commit(now, leader, None, generation) is KafkaError.ILLEGAL_GENERATION
    assert tried.synced(tried.sync(leader, generation=generation)) == SyncAnswer(
        KafkaError.ILLEGAL_GENERATION
    )


def test_a_static_member_that_starts_again_keeps_its_part_without_a_rebalance() -> None:
    tried = Tried()
    (old,) = tried.stable(instance_id="one")
    found = tried.joined(tried.join(instance_id="one"))
    assert found is not None
    assert (found.error, found.generation) == (KafkaError.NONE, 1)
    assert found.member_id != old
    assert found.leader == old  # so that it does not share anew what all have
    assert tried.group.state is GroupState.STABLE
    synced = tried.synced(tried.sync(found.member_id, instance_id="one"))
    assert synced == SyncAnswer(KafkaError.NONE, old.encode())
    # Who still has the old id is told that another one has its place.
    group, now = tried.group, tried.now
    assert group.heartbeat(now, old, "one", 1) is KafkaError.FENCED_INSTANCE_ID
    assert group.may_commit(now, old, "one", 1) is KafkaError.FENCED_INSTANCE_ID
    assert group.leave(now, old, "one") is KafkaError.FENCED_INSTANCE_ID
    assert tried.synced(tried.sync(old, instance_id="one")) == SyncAnswer(
        KafkaError.FENCED_INSTANCE_ID
    )
    assert tried.joined(tried.join(old, instance_id="one")) == JoinAnswer(
        KafkaError.FENCED_INSTANCE_ID, old
    )


def test_a_static_member_with_other_topics_has_the_group_rebalance() -> None:
    tried = Tried()
    tried.stable(instance_id="one")
    found = tried.joined(tried.join(instance_id="one", protocols=(("range", b"more"),)))
    assert found is not None
    assert (found.generation, found.leader) == (2, found.member_id)


def test_a_static_member_that_waits_is_fenced_by_its_next_start() -> None:
    tried = Tried(delay_s=3.0)
    first = tried.join(instance_id="one")
    second = tried.join(instance_id="one")
    found = tried.joined(first)
    assert found is not None
    assert found.error is KafkaError.FENCED_INSTANCE_ID
    tried.pass_s(10.0)
    found = tried.joined(second)
    assert found is not None
    assert found.error is KafkaError.NONE
    assert len(tried.group.members) == 1


def test_a_static_member_is_kept_over_a_rebalance_until_its_session_ends() -> None:
    tried = Tried()
    (static,) = tried.stable(instance_id="one", session_s=60.0)
    ticket = tried.join()
    tried.pass_s(REBALANCE_S)
    found = tried.joined(ticket)
    assert found is not None
    assert members_of(found) == [static, found.member_id]
    tried.sync(found.member_id, {static: b"half", found.member_id: b"half"})
    assert tried.group.state is GroupState.STABLE
    tried.beat_s(61, found.member_id)
    assert static not in tried.group.members


def test_a_static_member_leaves_by_its_instance() -> None:
    tried = Tried()
    tried.stable(instance_id="one")
    group, now = tried.group, tried.now
    assert group.leave(now, "", "two") is KafkaError.UNKNOWN_MEMBER_ID
    assert group.leave(now, "", "one") is KafkaError.NONE
    assert group.state is GroupState.EMPTY


def test_a_group_without_members_takes_commits_of_simple_consumers_only() -> None:
    tried = Tried()
    group, now = tried.group, tried.now
    assert group.may_commit(now, "", None, -1) is KafkaError.NONE
    assert group.may_commit(now, "who", None, 3) is KafkaError.UNKNOWN_MEMBER_ID
    tried.stable()
    assert group.may_commit(now, "", None, -1) is KafkaError.UNKNOWN_MEMBER_ID


def test_who_waits_when_the_group_moves_is_told_to_ask_elsewhere() -> None:
    tried = Tried()
    tried.stable()
    ticket = tried.join()
    tried.group.end(KafkaError.NOT_COORDINATOR)
    found = tried.joined(ticket)
    assert found is not None
    assert found.error is KafkaError.NOT_COORDINATOR
    assert tried.group.deadline() == float("inf")


def test_another_gateway_goes_on_with_the_members() -> None:
    tried = Tried()
    leader, other = tried.stable(2)
    taken = Group("g")
    kept = [(name, joining(name), name.encode()) for name in (leader, other)]
    taken.restore(tried.now, 2, ("consumer", "range"), leader, kept)
    assert taken.heartbeat(tried.now, other, None, 2) is KafkaError.NONE
    assert taken.may_commit(tried.now, leader, None, 2) is KafkaError.NONE
    taken.on_time(tried.now + SESSION_S + 1)
    assert taken.state is GroupState.EMPTY
    assert taken.generation == 3


def test_a_member_that_joins_twice_is_answered_once_each() -> None:
    tried = Tried()
    leader, other = tried.stable(2)
    first, second = tried.join(other, protocols=PROTOCOLS[:1]), tried.join(other)
    assert tried.joined(first) == JoinAnswer(KafkaError.REBALANCE_IN_PROGRESS, other)
    tried.join(leader)
    found = tried.joined(second)
    assert found is not None
    assert found.error is KafkaError.NONE
