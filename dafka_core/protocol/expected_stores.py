"""Which stores an answer has to wait for: those that may be there and have not greeted yet.

Nobody says how many stores there are.  But a tower announces every node that joins or that is
there, a store tells which others it knows (STORES-KNOWN), and a node says what it is when it has
connected.  So each node that is announced is waited for until it is known to be no store, has
greeted, or is given up, by name.  How long that takes depends on how far away it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.recent_names import RecentNames
from dafka_core.protocol.role import PeerNews
from dafka_core.records import KnownStore

PATIENCE_S: Final = 3.0
"""How long nothing may come of a node before it is given up.  A node that is near and busy takes
less; an address that nobody has, or a firewall, costs so long once."""

ROUND_TRIPS: Final = 6
"""The same in round trips, if these are known to take longer: a connection and its subscriptions
take some four of them."""

MOST_PATIENCE_S: Final = 30.0
"""More than that nobody waits, however far the node is."""

SLOW_S: Final = 2.0
"""Who has waited so long for a store is told which one it was."""

INTRODUCTION_S: Final = 0.1
"""Within this time after its first subscription a C node that is a store subscribes to hellos, too:
the SUB socket sends all of them at once.  Our nodes say what they are."""

MAX_KNOWN: Final = 10 * MAX_STORES
"""What stores say of others, all together: one that lies costs no more."""

MAX_NEWS: Final = 100
"""Outcomes that nobody has looked at are forgotten, the oldest first."""


class Outcome(NamedTuple):
    """What has become of a node that was waited for, worth telling."""

    node: str
    endpoint: str
    waited_s: float
    is_given_up: bool
    is_store: bool
    """It is one; otherwise that is not known."""


@dataclass(slots=True)
class _Expected:
    endpoint: str
    since: float
    due: float
    """When it is given up."""
    is_store: bool = False
    is_announced: bool = False
    introduced_at: float = inf
    """When it had connected to us, if it has not said what it is."""


class ExpectedStores:
    """The nodes that an answer waits for, and what stores say of each other."""

    def __init__(self) -> None:
        self.outcomes: deque[Outcome] = deque(maxlen=MAX_NEWS)
        """For the node that runs this; it empties it."""
        self._expected: dict[str, _Expected] = {}
        self._done = RecentNames[None](MAX_PEERS)
        """Nodes not to be waited for: no stores, those that have greeted, and those given up."""
        self._introduced = RecentNames[float](MAX_PEERS)
        """C nodes that have connected to us before they were announced, and when."""
        self.told: dict[str, tuple[KnownStore, ...]] = {}
        """What stores have said of others, by who has said it."""

    def __bool__(self) -> bool:
        """Whether there is anybody to wait for, as far as was looked."""
        return bool(self._expected)

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores among the nodes that are waited for; any thread may ask."""
        return tuple(node for node, each in [*self._expected.items()] if each.is_store)

    def known(self) -> dict[str, KnownStore]:
        """All that stores have said of others, by address: of each the newest."""
        newest: dict[str, KnownStore] = {}
        for each in (each for told in [*self.told.values()] for each in told):
            before = newest.get(each.store, each)
            newest[each.store] = max(before, each, key=lambda known: known.heard_us)
        return newest

    def on_peer(self, now: float, news: PeerNews) -> None:
        """A node was announced, has a connection to us, or says what it is."""
        if news.is_store is False:
            self.done(news.node)
        elif news.node not in self._done:
            expected = self._expect(now, news.node, news.endpoint)
            is_repeated = bool(news.endpoint) and expected.is_announced
            expected.is_store = expected.is_store or news.is_store is True
            expected.is_announced = expected.is_announced or bool(news.endpoint)
            if not is_repeated:
                self._go_on(now, expected, news.round_trip_s)

    def on_subscribed(self, now: float, node: str, *, is_store: bool) -> None:
        """A node subscribes to what is sent to it alone: it has connected to us."""
        if node in self._done:
            return
        expected = self._expected.get(node)
        if expected is None:
            self._introduced.keep(node, now)
            return
        expected.introduced_at = min(expected.introduced_at, now)
        expected.is_store = expected.is_store or is_store
        self._go_on(now, expected)

    def on_known(
        self,
        now: float,
        teller: str,
        stores: Iterable[KnownStore],
        lost: Container[str] = (),
    ) -> None:
        """A store says which others it knows; those that are there are waited for.

        Not those ``lost``: the mesh has given them up here, as the teller is about to.
        """
        stores = tuple(stores)
        others = sum(len(told) for name, told in self.told.items() if name != teller)
        if others + len(stores) <= MAX_KNOWN:
            self.told[teller] = stores
        for each in stores:
            if each.here and each.store not in self._done and each.store not in lost:
                self._expect(now, each.store, each.endpoint).is_store = True

    def met(self, now: float, node: str) -> None:
        """A store has greeted: it is waited for by its answers from now on."""
        expected = self._expected.get(node)
        if expected is not None and now - expected.since >= SLOW_S:
            waited_s = now - expected.since
            self.outcomes.append(Outcome(node, expected.endpoint, waited_s, False, True))
        self.done(node)

    def done(self, node: str) -> None:
        """A node is not to be waited for."""
        self._expected.pop(node, None)
        self._introduced.pop(node, None)
        self._done.keep(node, None)

    def lost(self, node: str) -> None:
        """The mesh has given up a node; when it is announced again, it is waited for again."""
        if node in self._expected:
            expected = self._expected[node]
            expected.due, expected.is_announced = -inf, False
        self._done.pop(node, None)
        self._introduced.pop(node, None)

    def waits(self, now: float) -> bool:
        """Whether there is anybody to wait for; gives up those whose time is over."""
        for node, expected in [*self._expected.items()]:
            if not expected.is_store and now >= expected.introduced_at + INTRODUCTION_S:
                self.done(node)
            elif now >= expected.due:
                self._give_up(now, node)
        return bool(self._expected)

    def _expect(self, now: float, node: str, endpoint: str) -> _Expected:
        expected = self._expected.get(node)
        if expected is None:
            at = self._introduced.pop(node, inf)
            expected = _Expected(endpoint, now, now + PATIENCE_S, introduced_at=at)
            if len(self._expected) < MAX_PEERS:
                self._expected[node] = expected
        expected.endpoint = endpoint or expected.endpoint
        return expected

    def _go_on(self, now: float, expected: _Expected, round_trip_s: float = 0.0) -> None:
        patience_s = min(max(PATIENCE_S, ROUND_TRIPS * round_trip_s), MOST_PATIENCE_S)
        expected.due = max(expected.due, now + patience_s)

    def _give_up(self, now: float, node: str) -> None:
        expected = self._expected[node]
        waited_s = now - expected.since
        self.outcomes.append(Outcome(node, expected.endpoint, waited_s, True, expected.is_store))
        self.done(node)
        if expected.due == -inf:
            self.lost(node)
