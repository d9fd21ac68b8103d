"""Discovery: the nodes that may be stores, and their states (docs/states.md).

The number of stores is unknown.  But a tower announces every node, a store names the other stores
it knows (STORES-KNOWN), and a node announces its kind when it has connected.  So an answer from all
stores waits for each announced node, until it turns out to be no store, has greeted, or is given
up, by name.  ``timing`` has a timeline.

Stores introduce themselves: each store greets a node that subscribes to STORE-HELLO, and a store
that reaches the node subscribes to the hello with its own address.  After both, messages are
delivered in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dafka_core.model.records import KnownStore
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import MAX_STORES, RecentNames
from dafka_core.protocol.partition_states import LabelledState
from dafka_core.protocol.role import PeerNews

# Stores named by other stores, in total; a false list costs no more.
MAX_KNOWN: Final = 10 * MAX_STORES
MAX_OUTCOMES: Final = 100  # unread outcomes; the oldest are dropped

ANNOUNCEMENT: Final = "a tower announces it"
CONNECTION: Final = "it accepts our connection"
NAMED: Final = "a store names it as present"
STORE_KIND: Final = "it announces that it is a store"
OTHER_KIND: Final = "it announces another kind"
SUBSCRIPTION: Final = "it subscribes with its own address"
HELLO: Final = "it subscribes to our hello"
GREETS: Final = "it greets, or answers"
LOSS: Final = "its beacons stop"
TIMEOUT: Final = "its time is over"


class NodeState(LabelledState):
    """States of a node in the discovery of stores."""

    UNKNOWN = "no peer has mentioned it, or it has gone"
    EXPECTED = "it may be a store: an answer waits for it"
    CONNECTED = "it has connected and announced no kind, as C nodes do: an answer waits 0.1 s"
    STORE = "it is a store that has not greeted yet: an answer waits for it"
    GREETED = "its messages arrive: an answer waits for its reply"
    LOST = "it had greeted, and is silent: answers lack its records"
    RETURNING = "it was lost, and gives a sign of life: an answer waits for its greeting"
    DISMISSED = "it is no store, or has not greeted in time"


_BEFORE_GREETING: Final = {
    NAMED: NodeState.STORE,
    STORE_KIND: NodeState.STORE,
    OTHER_KIND: NodeState.DISMISSED,
    HELLO: NodeState.STORE,
    GREETS: NodeState.GREETED,
    LOSS: NodeState.UNKNOWN,
    TIMEOUT: NodeState.DISMISSED,
}

DISCOVERY_TABLE: Final[Mapping[NodeState, Mapping[str, NodeState]]] = {
    NodeState.UNKNOWN: {
        ANNOUNCEMENT: NodeState.EXPECTED,
        CONNECTION: NodeState.EXPECTED,
        NAMED: NodeState.STORE,
        STORE_KIND: NodeState.STORE,
        OTHER_KIND: NodeState.DISMISSED,
        SUBSCRIPTION: NodeState.CONNECTED,
        HELLO: NodeState.STORE,
        GREETS: NodeState.GREETED,
    },
    NodeState.EXPECTED: {SUBSCRIPTION: NodeState.CONNECTED} | _BEFORE_GREETING,
    NodeState.CONNECTED: _BEFORE_GREETING,
    NodeState.STORE: _BEFORE_GREETING,
    NodeState.GREETED: {LOSS: NodeState.LOST},
    NodeState.LOST: {
        ANNOUNCEMENT: NodeState.RETURNING,
        CONNECTION: NodeState.RETURNING,
        STORE_KIND: NodeState.RETURNING,
        HELLO: NodeState.RETURNING,
        GREETS: NodeState.GREETED,
    },
    NodeState.RETURNING: {GREETS: NodeState.GREETED, LOSS: NodeState.LOST, TIMEOUT: NodeState.LOST},
    NodeState.DISMISSED: {GREETS: NodeState.GREETED, LOSS: NodeState.UNKNOWN},
}  # the next state, by state and event; without an entry the state stays

_AWAITED: Final = (NodeState.EXPECTED, NodeState.CONNECTED, NodeState.STORE, NodeState.RETURNING)
# Signs of life, which extend the wait.
_EXTENDING: Final = (ANNOUNCEMENT, CONNECTION, STORE_KIND, SUBSCRIPTION, HELLO)


class Outcome(NamedTuple):
    """The result of waiting for a node, for the log."""

    node: str
    endpoint: str
    waited_s: float
    is_given_up: bool
    is_store: bool  # true if it is a store; otherwise unknown


@dataclass(slots=True)
class Candidate:
    """A node that is a store, or may be one.

    Attributes:
        since, due: the start of the wait for its greeting, and its end.
        receives_ours: it has subscribed to our hello, so our messages reach it.
        answers_queries: it is a store of ours.
        locations: its bulk endpoints.
    """

    since: float
    due: float
    state: NodeState = NodeState.UNKNOWN
    endpoint: str = ""
    is_announced: bool = False
    receives_ours: bool = False
    answers_queries: bool = False
    locations: tuple[str, ...] = ()


class Discovery:
    """The nodes that may be stores, and the stores' lists of each other.

    One thread changes it; any thread may read its properties.
    """

    def __init__(self) -> None:
        self.outcomes: deque[Outcome] = deque(maxlen=MAX_OUTCOMES)
        """Drained by the node that runs the role."""
        self.lists: dict[str, tuple[KnownStore, ...]] = {}  # each store's list of others
        self._candidates: dict[str, Candidate] = {}
        self._dismissed = RecentNames[Candidate](MAX_PEERS)
        self._now = 0.0

    @property
    def greeted(self) -> dict[str, Candidate]:
        """Return the stores that have greeted, by address."""
        return self._in(NodeState.GREETED)

    @property
    def awaited_stores(self) -> tuple[str, ...]:
        """Return the stores that have not greeted yet."""
        return tuple(self._in(NodeState.STORE, NodeState.RETURNING))

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the stores that had greeted, and have not done so again."""
        return tuple(self._in(NodeState.LOST, NodeState.RETURNING))

    def known(self) -> dict[str, KnownStore]:
        """Merge all lists of stores by address; the newest entry wins."""
        newest: dict[str, KnownStore] = {}
        for each in (each for known in [*self.lists.values()] for each in known):
            before = newest.get(each.store, each)
            newest[each.store] = max(before, each, key=lambda known: known.seen_us)
        return newest

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Process a node's announcement, connection or kind."""
        if news.endpoint:
            self.apply(now, news.node, ANNOUNCEMENT, endpoint=news.endpoint)
        if news.round_trip_s:
            self.apply(now, news.node, CONNECTION, round_trip_s=news.round_trip_s)
        if news.is_store is not None:
            self.apply(now, news.node, STORE_KIND if news.is_store else OTHER_KIND)

    def on_known(self, now: float, sender: str, stores: Iterable[KnownStore]) -> None:
        """Process a store's list of others."""
        stores = tuple(stores)
        others = sum(len(known) for name, known in self.lists.items() if name != sender)
        if others + len(stores) <= MAX_KNOWN:
            self.lists[sender] = stores
        for each in stores:
            if each.here:
                self.apply(now, each.store, NAMED, endpoint=each.endpoint)

    def on_peer_lost(self, node: str) -> None:
        """Process the loss of a node without beacons."""
        self.apply(self._now, node, LOSS)

    def waits(self, now: float) -> bool:
        """Return True if any greeting is awaited, after giving up those past their deadline."""
        self._now = now
        awaited = self._in(*_AWAITED)
        for name, each in awaited.items():
            if now >= each.due:
                self.apply(now, name, TIMEOUT)
        return any(each.state in _AWAITED for each in awaited.values())

    def apply(
        self, now: float, node: str, event: str, *, endpoint: str = "", round_trip_s: float = 0.0
    ) -> Candidate:
        """Change a node's state by ``DISCOVERY_TABLE``, and return the node."""
        self._now = now
        each = self._candidates.get(node) or self._dismissed.get(node) or Candidate(now, now)
        before = each.state
        then = self._limited(node, before, DISCOVERY_TABLE[before].get(event, before))
        if before in _AWAITED and then not in _AWAITED:
            self._report(now, node, each, event)
        if then in _AWAITED:
            self._extend(now, each, then, event, round_trip_s)
            each.endpoint = endpoint or each.endpoint
            each.is_announced = each.is_announced or event == ANNOUNCEMENT
        elif then is NodeState.LOST:
            each.locations, each.is_announced = (), False
        if then is not before:
            self._move(node, each, then)
        return each

    def _in(self, *states: NodeState) -> dict[str, Candidate]:
        # A copy first: other threads call this, too.
        found = list(self._candidates.items())
        return {name: each for name, each in found if each.state in states}

    def _extend(
        self, now: float, each: Candidate, then: NodeState, event: str, round_trip_s: float
    ) -> None:
        trips_s = timing.STORE_TIMEOUT_ROUND_TRIPS * round_trip_s
        due = now + min(max(timing.STORE_TIMEOUT_S, trips_s), timing.MAX_STORE_TIMEOUT_S)
        if each.state not in _AWAITED:
            each.since, each.due = now, due
        if then is NodeState.CONNECTED:
            if each.state is not NodeState.CONNECTED:
                each.due = now + timing.INTRODUCTION_S
        elif each.state is NodeState.CONNECTED or (
            event in _EXTENDING and not (event == ANNOUNCEMENT and each.is_announced)
        ):
            each.due = max(each.due, due)

    def _report(self, now: float, node: str, each: Candidate, event: str) -> None:
        """Report a store that was slow, or a node that was given up."""
        waited_s, is_given_up = now - each.since, event in (TIMEOUT, LOSS)
        is_silent = is_given_up and each.state is not NodeState.CONNECTED
        if is_silent or (event == GREETS and waited_s >= timing.SLOW_STORE_S):
            is_store = not is_given_up or each.state is not NodeState.EXPECTED
            self.outcomes.append(Outcome(node, each.endpoint, waited_s, is_given_up, is_store))

    def _limited(self, node: str, before: NodeState, then: NodeState) -> NodeState:
        """Return the next state within the limits of memory; peers choose the names."""
        if then in (before, NodeState.UNKNOWN, NodeState.DISMISSED):
            return then
        if then is NodeState.GREETED:
            if len(self.greeted) >= MAX_STORES:
                return NodeState.DISMISSED
            if len(self._candidates) >= MAX_PEERS + MAX_STORES:
                self._candidates = self.greeted
        elif node not in self._candidates and len(self._candidates) >= MAX_PEERS:
            return before
        return then

    def _move(self, node: str, each: Candidate, then: NodeState) -> None:
        each.state = then
        self._dismissed.pop(node, None)
        if then in (NodeState.UNKNOWN, NodeState.DISMISSED):
            self._candidates.pop(node, None)
        else:
            self._candidates[node] = each
        if then is NodeState.DISMISSED:
            self._dismissed.keep(node, each)
