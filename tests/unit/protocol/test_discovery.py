"""The states of nodes that may be stores, and the end of the wait for their greetings."""

from __future__ import annotations

import random

import pytest

from dafka_core.model.records import KnownStore
from dafka_core.protocol import discovery as d
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.discovery import DISCOVERY_TABLE, Discovery, NodeState, Outcome
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.role import PeerNews

AT = "tcp://h:1"
SIGNS = (d.ANNOUNCEMENT, d.CONNECTION, d.NAMED, d.STORE_KIND, d.OTHER_KIND, d.SUBSCRIPTION)
EVENTS = (*SIGNS, d.HELLO, d.GREETS, d.LOSS, d.TIMEOUT)
AWAITED = (NodeState.EXPECTED, NodeState.CONNECTED, NodeState.STORE, NodeState.RETURNING)


def announced(*nodes: str) -> Discovery:
    made = Discovery()
    for node in nodes:
        made.on_peer(0.0, PeerNews(node, AT))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_events_follows_the_table(seed: int) -> None:
    chance, nodes, state, now = random.Random(seed), Discovery(), NodeState.UNKNOWN, 0.0
    for _ in range(300):
        event = chance.choice(EVENTS)
        now += chance.choice([0.0, 0.01, 0.2, 2.0])
        found = nodes.apply(now, "N", event)
        state = DISCOVERY_TABLE[state].get(event, state)
        assert found.state is state
        assert ("N" in nodes.greeted) == (state is NodeState.GREETED)
        assert ("N" in nodes.lost) == (state in (NodeState.LOST, NodeState.RETURNING))
        assert ("N" in nodes.awaited_stores) == (state in (NodeState.STORE, NodeState.RETURNING))
        assert nodes.waits(now) == (state in AWAITED and now < found.due)
        state = found.state  # ``waits`` gives up a node whose time is over
        assert state not in AWAITED or found.due <= now + timing.MAX_STORE_TIMEOUT_S


def test_an_announced_node_is_awaited_and_given_up_by_name() -> None:
    nodes = announced("N")
    assert nodes.waits(timing.STORE_TIMEOUT_S - 0.01)
    assert not nodes.waits(timing.STORE_TIMEOUT_S)
    assert list(nodes.outcomes) == [Outcome("N", AT, timing.STORE_TIMEOUT_S, True, False)]
    # Once, although its beacons continue.
    nodes.on_peer(9.0, PeerNews("N", AT))
    assert not nodes.waits(9.0)


@pytest.mark.parametrize("is_first", [True, False])
def test_another_kind_ends_the_wait(*, is_first: bool) -> None:
    nodes = Discovery()
    facts = [PeerNews("N", AT), PeerNews("N", is_store=False)]
    for news in reversed(facts) if is_first else facts:
        nodes.on_peer(0.0, news)
    assert not nodes.waits(0.0)
    assert not nodes.outcomes


@pytest.mark.parametrize("is_first", [True, False])
def test_a_c_node_without_a_hello_is_no_store(*, is_first: bool) -> None:
    nodes = Discovery()
    if is_first:
        nodes.apply(0.0, "N", d.SUBSCRIPTION)
    nodes.on_peer(0.0, PeerNews("N", AT))
    if not is_first:
        nodes.apply(0.0, "N", d.SUBSCRIPTION)
    assert nodes.waits(timing.INTRODUCTION_S - 0.01)
    assert not nodes.waits(timing.INTRODUCTION_S)
    assert not nodes.outcomes


def test_a_store_is_awaited_until_it_greets() -> None:
    nodes = announced("S", "C")
    nodes.on_peer(0.0, PeerNews("S", is_store=True))
    nodes.apply(0.0, "C", d.SUBSCRIPTION)
    nodes.apply(0.0, "C", d.HELLO)
    assert nodes.waits(1.0)
    nodes.apply(1.0, "S", d.GREETS)
    assert nodes.waits(1.0)
    nodes.apply(1.0, "C", d.GREETS)
    assert not nodes.waits(1.0)
    assert not nodes.outcomes


def test_a_c_node_named_by_a_store_has_the_timeout_of_stores() -> None:
    nodes = announced("C")
    nodes.apply(0.0, "C", d.SUBSCRIPTION)
    nodes.on_known(0.05, "T", [KnownStore("C", AT, 0, here=True)])
    assert nodes.waits(timing.STORE_TIMEOUT_S)
    assert not nodes.waits(timing.STORE_TIMEOUT_S + 0.05)


def test_each_new_sign_of_life_extends_the_wait() -> None:
    nodes = Discovery()
    nodes.on_known(0.0, "T", [KnownStore("S", AT, 0, here=True)])
    nodes.on_peer(2.0, PeerNews("S", AT))
    assert nodes.waits(4.9)
    nodes.on_peer(4.9, PeerNews("S", AT))  # a repeated announcement is no new sign
    assert not nodes.waits(5.0)
    nodes = Discovery()
    nodes.on_known(0.0, "T", [KnownStore("S", AT, 0, here=True)])
    nodes.on_peer(2.9, PeerNews("S", round_trip_s=1.0))
    assert nodes.waits(2.9 + timing.STORE_TIMEOUT_ROUND_TRIPS - 0.1)
    nodes.apply(8.0, "S", d.HELLO)
    assert nodes.waits(10.9)
    nodes.apply(10.9, "S", d.GREETS)
    assert list(nodes.outcomes) == [Outcome("S", AT, 10.9, False, True)]
    assert nodes.outcomes[0].waited_s > timing.SLOW_STORE_S


def test_no_round_trip_makes_the_wait_endless() -> None:
    nodes = announced("S")
    nodes.on_peer(0.0, PeerNews("S", round_trip_s=1000.0))
    assert nodes.waits(timing.MAX_STORE_TIMEOUT_S - 0.01)
    assert not nodes.waits(timing.MAX_STORE_TIMEOUT_S)


def test_an_absent_store_is_awaited_only_when_a_tower_announces_it() -> None:
    nodes = Discovery()
    nodes.on_known(0.0, "T", [KnownStore("S", AT, 5)])
    assert not nodes.waits(0.0)
    nodes.on_peer(0.0, PeerNews("S", AT))
    assert nodes.waits(0.0)


def test_a_lost_store_is_awaited_again_when_it_returns() -> None:
    nodes = announced("S")
    nodes.apply(0.0, "S", d.GREETS).locations = ("grpc://h:1",)
    nodes.on_known(1.0, "T", [KnownStore("S", AT, 0, here=True)])
    nodes.apply(1.0, "S", d.HELLO)
    assert not nodes.waits(1.0)
    nodes.on_peer_lost("S")
    nodes.on_known(1.0, "T", [KnownStore("S", AT, 0, here=True)])  # that store does not know yet
    assert not nodes.waits(1.0)
    nodes.on_peer(2.0, PeerNews("S", AT))
    assert nodes.waits(2.0)
    # Lost again before it has greeted: given up at once.
    nodes.on_peer_lost("S")
    assert not nodes.waits(2.1)
    assert [outcome.is_given_up for outcome in nodes.outcomes] == [True]
    nodes.on_peer(3.0, PeerNews("S", AT))
    assert nodes.waits(3.0)
    assert nodes.apply(3.0, "S", d.GREETS).locations == ()  # it may have other ports now


def test_a_store_that_greets_late_keeps_its_subscription() -> None:
    nodes = announced("S")
    nodes.apply(0.0, "S", d.HELLO).receives_ours = True
    assert not nodes.waits(timing.STORE_TIMEOUT_S)
    assert nodes.apply(9.0, "S", d.GREETS).receives_ours


def test_names_chosen_by_peers_are_bounded_and_leave_room_for_stores() -> None:
    nodes = announced(*(f"N{number}" for number in range(MAX_PEERS + 5)))
    for number in range(2 * d.MAX_KNOWN // MAX_STORES):
        known = [KnownStore(f"T{number} {each}", AT, 0, here=True) for each in range(MAX_STORES)]
        nodes.on_known(0.0, f"T{number}", known)
    for number in range(MAX_PEERS + 5):
        nodes.apply(0.0, f"M{number}", d.SUBSCRIPTION)
        nodes.apply(0.0, f"D{number}", d.OTHER_KIND)
    for number in range(MAX_STORES + 5):
        nodes.apply(0.0, f"S{number}", d.GREETS)
    assert len(nodes.greeted) == MAX_STORES
    assert not nodes.waits(timing.STORE_TIMEOUT_S)
    assert len(nodes.outcomes) == d.MAX_OUTCOMES
    assert sum(map(len, nodes.lists.values())) == d.MAX_KNOWN
    # Stores of the past give way to new ones.
    for number in range(MAX_STORES):
        nodes.on_peer_lost(f"S{number}")
    nodes.apply(9.0, "S", d.GREETS)
    assert list(nodes.greeted) == ["S"]
