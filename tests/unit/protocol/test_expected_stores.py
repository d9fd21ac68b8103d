"""Who is waited for, how long, and what is said of those that are given up."""

from __future__ import annotations

import pytest

from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.expected_stores import (
    INTRODUCTION_S,
    MAX_KNOWN,
    MAX_NEWS,
    MOST_PATIENCE_S,
    PATIENCE_S,
    ROUND_TRIPS,
    SLOW_S,
    ExpectedStores,
    Outcome,
)
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.role import PeerNews
from dafka_core.records import KnownStore

AT = "tcp://h:1"


def announced(*nodes: str, now: float = 0.0) -> ExpectedStores:
    made = ExpectedStores()
    for node in nodes:
        made.on_peer(now, PeerNews(node, AT))
    return made


def test_a_node_that_is_announced_is_waited_for_and_given_up_by_name() -> None:
    expected = announced("N")
    assert expected.waits(PATIENCE_S - 0.01)
    assert not expected.waits(PATIENCE_S)
    assert list(expected.outcomes) == [Outcome("N", AT, PATIENCE_S, True, False)]
    # Not twice, though its beacons go on.
    expected.on_peer(9.0, PeerNews("N", AT))
    assert not expected.waits(9.0)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_node_of_ours_says_that_it_is_no_store(*, is_first: bool) -> None:
    expected = ExpectedStores()
    said = [PeerNews("N", AT), PeerNews("N", is_store=False)]
    for news in reversed(said) if is_first else said:
        expected.on_peer(0.0, news)
    assert not expected.waits(0.0)
    assert not expected.outcomes


@pytest.mark.parametrize("is_first", [True, False])
def test_a_c_node_that_is_no_store_is_known_by_its_subscriptions(*, is_first: bool) -> None:
    expected = ExpectedStores()
    if is_first:
        expected.on_subscribed(0.0, "N", is_store=False)
    expected.on_peer(0.0, PeerNews("N", AT))
    if not is_first:
        expected.on_subscribed(0.0, "N", is_store=False)
    assert expected.waits(INTRODUCTION_S - 0.01)
    assert not expected.waits(INTRODUCTION_S)
    assert not expected.outcomes


def test_a_store_is_waited_for_until_it_greets() -> None:
    expected = announced("S", "C")
    expected.on_peer(0.0, PeerNews("S", is_store=True))
    expected.on_subscribed(0.0, "C", is_store=False)
    expected.on_subscribed(0.0, "C", is_store=True)
    assert expected.waits(1.0)
    expected.met(1.0, "S")
    assert expected.waits(1.0)
    expected.met(1.0, "C")
    assert not expected.waits(1.0)
    assert not expected.outcomes


def test_each_sign_of_it_begins_the_patience_anew() -> None:
    expected = ExpectedStores()
    expected.on_known(0.0, "T", [KnownStore("S", AT, 0, here=True)])
    expected.on_peer(2.0, PeerNews("S", AT))
    assert expected.waits(4.9)
    expected.on_peer(4.9, PeerNews("S", AT))  # no sign of anything new
    expected.on_peer(4.9, PeerNews("S", round_trip_s=1.0))
    assert expected.waits(4.9 + ROUND_TRIPS - 0.1)
    expected.on_subscribed(10.0, "S", is_store=True)
    assert expected.waits(12.9)
    expected.met(12.9, "S")
    assert list(expected.outcomes) == [Outcome("S", AT, 12.9, False, True)]
    assert expected.outcomes[0].waited_s > SLOW_S


def test_no_patience_is_endless() -> None:
    expected = announced("S")
    expected.on_peer(0.0, PeerNews("S", round_trip_s=1000.0))
    assert expected.waits(MOST_PATIENCE_S - 0.01)
    assert not expected.waits(MOST_PATIENCE_S)


def test_stores_that_are_known_to_be_away_are_not_waited_for() -> None:
    expected = ExpectedStores()
    expected.on_known(0.0, "T", [KnownStore("S", AT, 5)])
    assert not expected.waits(0.0)
    # Unless a tower announces them.
    expected.on_peer(0.0, PeerNews("S", AT))
    assert expected.waits(0.0)


def test_what_is_done_is_done_until_the_mesh_loses_it() -> None:
    expected = announced("S")
    expected.met(0.0, "S")
    expected.on_known(1.0, "T", [KnownStore("S", AT, 0, here=True)])
    expected.on_subscribed(1.0, "S", is_store=True)
    assert not expected.waits(1.0)
    expected.lost("S")
    expected.on_peer(2.0, PeerNews("S", AT))
    assert expected.waits(2.0)
    # It is lost before it has greeted: given up at once, and waited for when it is there again.
    expected.lost("S")
    assert not expected.waits(2.1)
    assert [outcome.is_given_up for outcome in expected.outcomes] == [True]
    expected.on_peer(3.0, PeerNews("S", AT))
    assert expected.waits(3.0)


def test_what_peers_choose_is_bounded() -> None:
    expected = announced(*(f"N{number}" for number in range(MAX_PEERS + 5)))
    for number in range(2 * MAX_KNOWN // MAX_STORES):
        told = [KnownStore(f"T{number} {each}", AT, 0, here=True) for each in range(MAX_STORES)]
        expected.on_known(0.0, f"T{number}", told)
    for number in range(MAX_PEERS + 5):
        expected.on_subscribed(0.0, f"M{number}", is_store=False)
    assert not expected.waits(PATIENCE_S)
    assert len(expected.outcomes) == MAX_NEWS
    assert sum(map(len, expected.told.values())) == MAX_KNOWN
