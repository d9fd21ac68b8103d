"""The states of nodes that may be stores, and the end of the wait for their greetings."""

import random

import pytest

from dafka_core.model.records import KnownStore
from dafka_core.protocol import messages as m
from dafka_core.protocol import store_directory as d
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.role import PeerNews
from dafka_core.protocol.store_directory import (
    AWAITED,
    DISCOVERY_TABLE,
    MAX_GIVEN_UP,
    MAX_KNOWN,
    Candidate,
    GivenUp,
    NodeState,
    StoreDirectory,
)

ME, AT = "8E1BBB578999443B8818C5851AFC9A3F", "tcp://h:1"
SIGNS = (d.ANNOUNCEMENT, d.CONNECTION, d.NAMED, d.STORE_KIND, d.OTHER_KIND, d.SUBSCRIPTION)
EVENTS = (*SIGNS, d.HELLO, d.GREETS, d.LOSS, d.TIMEOUT)


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_events_follows_the_table(seed: int) -> None:
    chance, node, state, now = random.Random(seed), Candidate("N"), NodeState.UNKNOWN, 0.0
    for _ in range(300):
        event = chance.choice(EVENTS)
        now += chance.choice([0.0, 0.01, 0.2, 2.0])
        outcome = node.apply(now, event)
        before, state = state, DISCOVERY_TABLE[state].get(event, state)
        assert node.state is state
        assert node.has_greeted == (
            state in (NodeState.GREETED, NodeState.LOST, NodeState.RETURNING)
        )
        assert outcome is None or (before in AWAITED and state not in AWAITED)
        if state in AWAITED and before not in AWAITED:
            assert (node.since, node.due > now) == (now, True)
        assert state not in AWAITED or node.due <= node.since + timing.MAX_STORE_TIMEOUT_S


class Nodes(StoreDirectory):
    """A requestor's directory, with the messages that introduce nodes to it."""

    def __init__(self, *announced: str) -> None:
        super().__init__(ME)
        self.on_tick(-9.0)
        self.on_peer(-9.0, PeerNews(ME))  # the first news; the time for it is over at 0
        for node in announced:
            self.announce(0.0, node)

    def announce(self, now: float, node: str) -> None:
        self.on_peer(now, PeerNews(node, AT))

    def subscribe(self, now: float, node: str) -> None:
        self.on_subscribed(now, m.Ack, node)

    def hello(self, now: float, node: str) -> None:
        self.on_subscribed(now, m.ConsumerHello, node)

    def greet(self, now: float, node: str) -> None:
        self.on_message(now, m.HeadsReply(ME, m.UNSOLICITED, node, 0, 1, ()))

    def name(self, now: float, store: str, *, here: bool = True) -> None:
        known = KnownStore(store, AT, 5, here=here)
        self.on_message(now, m.StoresKnown(ME, "T", (known,)))

    def waits(self, now: float) -> bool:
        """Return True if an answer to a question waits for other nodes than one that answers."""
        self.greet(now, "T")
        question, _ = self.ask(now, m.HeadsQuery, ())
        self.on_message(now, m.HeadsReply(ME, question.query.query, "T", 0, 1, ()))
        for store in self.stores:
            question.parts[store] = (1, {0})
        self.on_tick(now)
        self.forget(question)
        return not question.answered


def test_an_announced_node_is_awaited_and_given_up_by_name() -> None:
    nodes = Nodes("N")
    assert nodes.waits(timing.STORE_TIMEOUT_S - 0.01)
    assert not nodes.waits(timing.STORE_TIMEOUT_S)
    assert list(nodes.given_up) == [GivenUp("N", AT, timing.STORE_TIMEOUT_S, False)]
    # Once, although its beacons continue.
    nodes.announce(9.0, "N")
    assert not nodes.waits(9.0)


def test_a_node_that_only_connects_again_and_again_is_given_up() -> None:
    """As one that does not admit this node's key, or ends before it greets."""
    nodes = Nodes("N")
    for second in range(int(timing.MAX_STORE_TIMEOUT_S)):
        nodes.on_peer(second, PeerNews("N", accepts=True))
        assert nodes.waits(second)
    assert not nodes.waits(timing.MAX_STORE_TIMEOUT_S)
    assert [each.node for each in nodes.given_up] == ["N"]


@pytest.mark.parametrize("is_first", [True, False])
def test_another_kind_ends_the_wait(*, is_first: bool) -> None:
    nodes = Nodes()
    facts = [PeerNews("N", AT), PeerNews("N", is_store=False)]
    for news in reversed(facts) if is_first else facts:
        nodes.on_peer(0.0, news)
    assert not nodes.waits(0.0)
    assert not nodes.given_up


@pytest.mark.parametrize("is_first", [True, False])
def test_a_c_node_without_a_hello_is_no_store(*, is_first: bool) -> None:
    nodes = Nodes()
    for step in (
        (nodes.subscribe, nodes.announce) if is_first else (nodes.announce, nodes.subscribe)
    ):
        step(0.0, "N")
    assert nodes.waits(timing.INTRODUCTION_S - 0.01)
    assert not nodes.waits(timing.INTRODUCTION_S)
    assert not nodes.given_up


def test_a_store_is_awaited_until_it_greets() -> None:
    nodes = Nodes("S", "C")
    nodes.on_peer(0.0, PeerNews("S", is_store=True))
    nodes.subscribe(0.0, "C")
    nodes.hello(0.0, "C")
    assert set(nodes.awaited_stores) == {"S", "C"}
    assert nodes.waits(1.0)
    nodes.greet(1.0, "S")
    assert nodes.waits(1.0)
    nodes.greet(1.0, "C")
    assert not set(nodes.awaited_stores)
    assert set(nodes.stores) == {"S", "C", "T"}
    assert not nodes.given_up


def test_a_c_node_named_by_a_store_has_the_timeout_of_stores() -> None:
    nodes = Nodes("C")
    nodes.subscribe(0.0, "C")
    nodes.name(0.05, "C")
    assert nodes.waits(timing.STORE_TIMEOUT_S)
    assert not nodes.waits(timing.STORE_TIMEOUT_S + 0.05)


def test_each_new_sign_of_life_extends_the_wait() -> None:
    nodes = Nodes()
    nodes.name(0.0, "S")
    nodes.announce(2.0, "S")
    assert nodes.waits(4.9)
    nodes.announce(4.9, "S")  # a repeated announcement is no new sign
    assert not nodes.waits(5.0)
    nodes = Nodes()
    nodes.name(0.0, "S")
    nodes.on_peer(2.9, PeerNews("S", accepts=True))
    assert nodes.waits(5.8)
    nodes.hello(5.8, "S")
    assert nodes.waits(8.7)
    nodes.on_peer(8.0, PeerNews("S", accepts=True))
    assert nodes.waits(10.9)
    nodes.greet(10.9, "S")
    assert not nodes.given_up


def test_the_wait_for_a_returning_store_begins_anew() -> None:
    nodes = Nodes("S")
    nodes.on_peer(0.0, PeerNews("S", accepts=True))
    nodes.greet(1.0, "S")
    nodes.on_peer(0.0, PeerNews("S", is_lost=True))
    nodes.announce(2.0, "S")
    assert nodes.waits(2.0 + timing.STORE_TIMEOUT_S - 0.01)
    assert not nodes.waits(2.0 + timing.STORE_TIMEOUT_S)
    [outcome] = nodes.given_up
    assert outcome.waited_s == timing.STORE_TIMEOUT_S


def test_an_absent_store_is_awaited_only_when_a_tower_announces_it() -> None:
    nodes = Nodes()
    nodes.name(0.0, "S", here=False)
    assert not nodes.waits(0.0)
    nodes.announce(0.0, "S")
    assert nodes.waits(0.0)


def test_a_lost_store_is_awaited_again_when_it_returns() -> None:
    nodes = Nodes("S")
    nodes.greet(0.0, "S")
    nodes.on_message(0.0, m.StoreEndpoints(ME, "S", ("grpc://h:1",)))
    nodes.name(1.0, "S")
    nodes.hello(1.0, "S")
    assert nodes.endpoints == {"S": ("grpc://h:1",)}
    assert not nodes.waits(1.0)
    nodes.on_peer(0.0, PeerNews("S", is_lost=True))
    assert "S" in nodes.lost
    nodes.name(1.0, "S")  # that store does not know yet
    assert not nodes.waits(1.0)
    nodes.announce(2.0, "S")
    assert nodes.waits(2.0)
    # Lost again before it has greeted: given up at once.
    nodes.on_peer(0.0, PeerNews("S", is_lost=True))
    assert not nodes.waits(2.1)
    assert len(nodes.given_up) == 1
    nodes.announce(3.0, "S")
    assert "S" in set(nodes.lost) & set(nodes.awaited_stores)
    assert nodes.waits(3.0)
    nodes.greet(3.0, "S")
    assert "S" not in nodes.lost
    assert nodes.endpoints == {}  # it may have other ports now


def test_a_store_that_greets_late_keeps_its_subscription() -> None:
    nodes = Nodes("S")
    nodes.hello(0.0, "S")
    assert not nodes.waits(timing.STORE_TIMEOUT_S)
    nodes.greet(9.0, "S")
    assert nodes.is_connected("S")


def test_names_chosen_by_peers_are_bounded_and_leave_room_for_stores() -> None:
    nodes = Nodes(*(f"N{number}" for number in range(MAX_PEERS + 5)))
    # Each list has new entries, and together they are twice the limit.
    for number in range(2 * MAX_KNOWN // MAX_STORES):
        known = (KnownStore(f"T{number} {each}", AT, 0, here=True) for each in range(MAX_STORES))
        nodes.on_message(0.0, m.StoresKnown(ME, f"T{number}", tuple(known)))
    for number in range(MAX_STORES):
        nodes.on_message(0.0, m.StoresKnown(ME, f"E{number}", ()))
    assert len(nodes._known) == MAX_STORES
    assert len(nodes.missing) == MAX_KNOWN
    for number in range(MAX_PEERS + 5):
        nodes.subscribe(0.0, f"M{number}")
        nodes.on_peer(0.0, PeerNews(f"D{number}", is_store=False))
    for number in range(MAX_STORES + 5):
        nodes.greet(0.0, f"S{number}")
    assert list(nodes.stores) == [f"S{number}" for number in range(MAX_STORES)]
    # The first nodes are awaited, and no later one takes the place of one of them.
    nodes.give_up_late(timing.STORE_TIMEOUT_S)
    given_up = [f"N{number}" for number in range(MAX_PEERS - MAX_GIVEN_UP, MAX_PEERS)]
    assert [outcome.node for outcome in nodes.given_up] == given_up
    # Lost stores give way to new ones.
    for number in range(MAX_STORES):
        nodes.on_peer(0.0, PeerNews(f"S{number}", is_lost=True))
    for store in ("X", "Y"):
        nodes.greet(9.0, store)
    assert list(nodes.stores) == ["X", "Y"]
    assert nodes.lost == tuple(f"S{number}" for number in range(2, MAX_STORES))
