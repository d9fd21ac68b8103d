"""The states of a node in the discovery of stores (docs/states.md).

The number of stores is unknown.  But a tower announces every node, a store names the other stores
it knows (STORES-KNOWN), and a node announces its kind when it has connected.  So an answer from all
stores waits for each announced node, until it turns out to be no store, has greeted, or is given
up, by name.  ``timing`` has a timeline.

Stores introduce themselves: each store greets a node that subscribes to STORE-HELLO, and a store
that reaches the node subscribes to the hello with its own address.  After both, messages are
delivered in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from dafka_core.protocol import timing

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


class NodeState(Enum):
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

AWAITED: Final = (NodeState.EXPECTED, NodeState.CONNECTED, NodeState.STORE, NodeState.RETURNING)
# Signs of life, which extend the wait.
_EXTENDING: Final = (ANNOUNCEMENT, CONNECTION, STORE_KIND, SUBSCRIPTION, HELLO)


class GivenUp(NamedTuple):
    """A node that was given up, for the log."""

    node: str
    endpoint: str
    waited_s: float
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

    node: str
    state: NodeState = NodeState.UNKNOWN
    since: float = 0.0
    due: float = 0.0
    endpoint: str = ""
    is_announced: bool = False
    receives_ours: bool = False
    answers_queries: bool = False
    locations: tuple[str, ...] = ()

    @property
    def has_greeted(self) -> bool:
        """Return True if it has greeted at any time."""
        return self.state in (NodeState.GREETED, NodeState.LOST, NodeState.RETURNING)

    def apply(self, now: float, event: str, *, endpoint: str = "") -> GivenUp | None:
        """Change the state by ``DISCOVERY_TABLE``; return a node that is given up."""
        before, self.state = self.state, DISCOVERY_TABLE[self.state].get(event, self.state)
        if self.state in AWAITED:
            self._extend(now, before, event)
            self.endpoint = endpoint or self.endpoint
            self.is_announced = self.is_announced or event == ANNOUNCEMENT
            return None
        if self.state is NodeState.LOST:
            self.locations, self.is_announced = (), False
        if event not in (TIMEOUT, LOSS) or before not in AWAITED or before is NodeState.CONNECTED:
            return None
        is_store = before is not NodeState.EXPECTED
        return GivenUp(self.node, self.endpoint, now - self.since, is_store)

    def _extend(self, now: float, before: NodeState, event: str) -> None:
        """Set the end of the wait: a new state or sign of life makes it later."""
        if before not in AWAITED:
            self.since = self.due = now
        if self.state is NodeState.CONNECTED:
            if before is not NodeState.CONNECTED:
                self.due = now + timing.INTRODUCTION_S
            return
        is_repeated = event == ANNOUNCEMENT and self.is_announced
        if self.state is not before or (event in _EXTENDING and not is_repeated):
            self.due = max(self.due, now + timing.STORE_TIMEOUT_S)
