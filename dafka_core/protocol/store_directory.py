"""Finding all stores: a requestor's directory, and the list of the others that each store sends it.

The number of stores is unknown.  But a tower announces every node, a store names the other stores
it knows (STORES-KNOWN), and a node announces its kind when it has connected.  So an answer from all
stores waits for each announced node, a ``Candidate``, until it turns out to be no store, has
greeted, or is given up, by name (docs/states.md); and for the answers of all that have greeted.
``timing`` has a timeline.

Stores introduce themselves: each store greets a node that subscribes to STORE-HELLO, and a store
that reaches the node subscribes to the hello with its own address.  After both, messages are
delivered in both directions.

Our stores greet with an empty reply, which shows that they answer queries (``HeadsQuery``,
``TimesQuery``).  An answer to a query has an end, so a requestor knows when it is complete, also if
it is empty.  C stores are asked with GET-HEADS, whose answers have no end: they count as complete
when none has arrived for a while.

Records that only an absent store has are missing from every answer.  The other stores cannot know
them, but they know that the store exists.  They keep its name on disk, and send it to each
requestor when it connects, and before an answer if the list has changed (``KnownStores``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from math import inf
from typing import Final, NamedTuple

from dafka_core.model.log_entries import LogEntry, StoreSeen
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_STORES, RecentNames
from dafka_core.protocol.role import Outgoing, PeerNews

# -- the states of a node that may be a store ------------------------------------------------------

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


_KIND_KNOWN: Final = {
    NAMED: NodeState.STORE,
    STORE_KIND: NodeState.STORE,
    OTHER_KIND: NodeState.DISMISSED,
    HELLO: NodeState.STORE,
    GREETS: NodeState.GREETED,
}
_BEFORE_GREETING: Final = _KIND_KNOWN | {LOSS: NodeState.UNKNOWN, TIMEOUT: NodeState.DISMISSED}

DISCOVERY_TABLE: Final[Mapping[NodeState, Mapping[str, NodeState]]] = {
    NodeState.UNKNOWN: {
        ANNOUNCEMENT: NodeState.EXPECTED,
        CONNECTION: NodeState.EXPECTED,
        SUBSCRIPTION: NodeState.CONNECTED,
        **_KIND_KNOWN,
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
    """A node that is a store, or may be one."""

    node: str
    state: NodeState = NodeState.UNKNOWN
    since: float = 0.0  # the start of the wait for its greeting
    due: float = 0.0  # the end of the wait
    endpoint: str = ""
    is_announced: bool = False
    receives_ours: bool = False  # it has subscribed to our hello, so our messages reach it
    answers_queries: bool = False  # it is a store of ours
    locations: tuple[str, ...] = ()  # its bulk endpoints

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
            due = max(self.due, now + timing.STORE_TIMEOUT_S)
            self.due = min(due, self.since + timing.MAX_STORE_TIMEOUT_S)


# -- stores and questions --------------------------------------------------------------------------

# Entries in the stores' lists of other stores, in total; a false list costs no more.
MAX_KNOWN: Final = 10 * MAX_STORES
MAX_GIVEN_UP: Final = 100  # unread entries; the oldest are dropped

# Subscriptions of nodes with their own address, by kind: RFC 46's, and to histories, which C nodes
# do not know.  Ours subscribe to histories before they greet.
_OWN: Final = (m.DirectRecord, m.Fetch, m.Ack, m.StoreHello, m.ConsumerHello, m.HistoryReply)


Query = m.HeadsQuery | m.TimesQuery | m.HistoryQuery


@dataclass(slots=True)
class Question:
    """A question to all stores, and their answers so far."""

    query: Query
    active_at: float  # time of the question or of the last part of an answer
    rounds: int = 1  # remaining questions to C stores, or waits for them
    wanted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records that the question is about, one for each partition."""
    available: dict[TopicPartition, int] = field(default_factory=dict)
    """The first of them, or after them, that any store has."""
    late: set[TopicPartition] = field(default_factory=set)
    """Partitions of which a store has only earlier records: it may still receive the wanted one."""
    heads: dict[TopicPartition, PartitionInfo] = field(default_factory=dict)
    """The combined records of the stores, by partition."""
    times: dict[str, dict[int, int]] = field(default_factory=dict)
    """By store: timestamps (microseconds since 1970 UTC) by first offset."""
    histories: dict[str, m.HistoryReply] = field(default_factory=dict)  # by store
    parts: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    """By store: the number of its answer's parts, and those that have arrived."""
    answered: bool = False

    def asks_for(self, topic: str) -> bool:
        """Return True if it asks for the heads of a topic."""
        query = self.query
        return isinstance(query, m.HeadsQuery) and (not query.topics or topic in query.topics)

    def is_answered_by(self, reply: m.HeadsReply | m.TimesReply | m.HistoryReply) -> bool:
        """Return True if a reply with its number is a valid answer.

        A history does not answer a question for heads: any producer may send the one of its own
        partition, and would count as a store that never answers.
        """
        query = self.query
        if isinstance(query, m.HistoryQuery):
            return isinstance(reply, m.HistoryReply) and reply.tp == query.tp
        return isinstance(reply, m.REPLIES[type(query)])

    def best_times(self) -> list[tuple[int, int]]:
        """Return the answer of the store with most timestamps."""
        return sorted(max(self.times.values(), key=len, default={}).items())

    def has_answered(self, store: str) -> bool:
        """Return True if every part of a store's answer has arrived."""
        parts, arrived = self.parts.get(store, (1, ()))
        return len(arrived) == parts

    def add_head(self, info: PartitionInfo) -> None:
        """Add a store's records of a partition."""
        tp = info.tp
        known = self.heads.get(tp)
        merged = self.heads[tp] = info if known is None else known.merged(info)
        # If one store ends here and another begins later, the gap between matters.
        wanted = self.wanted.get(tp)
        if wanted is None:
            return
        if info.end <= wanted:
            self.late.add(tp)
        elif merged.end > wanted:
            first = max(info.earliest, wanted)
            self.available[tp] = min(first, self.available.get(tp, first))

    def add_reply(self, reply: m.HeadsReply | m.TimesReply | m.HistoryReply) -> None:
        """Add a part of a store's answer."""
        part, parts = (0, 1) if isinstance(reply, m.HistoryReply) else (reply.part, reply.parts)
        if self.parts.get(reply.store, (0,))[0] != parts:
            # The answer has more parts than the one to an earlier question.
            self.parts[reply.store] = (parts, set())
        self.parts[reply.store][1].add(part)
        match reply:
            case m.HeadsReply():
                for info in reply.entries:
                    self.add_head(info)
            case m.TimesReply():
                self.times.setdefault(reply.store, {}).update(reply.entries)
            case m.HistoryReply():
                self.histories[reply.store] = reply


class StoreDirectory:
    """The candidates, the stores' lists of each other, and the open questions.

    One thread changes it; any thread may read its properties.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.given_up = deque[GivenUp](maxlen=MAX_GIVEN_UP)  # drained by the node
        self._stores: dict[str, Candidate] = {}  # that have ever greeted
        self._awaited: dict[str, Candidate] = {}  # others, whose greeting is awaited
        self._dismissed = RecentNames[Candidate](MAX_PEERS)
        self._known: dict[str, tuple[KnownStore, ...]] = {}  # each store's list of the others
        self._questions: dict[int, Question] = {}
        self._numbers = count(m.UNSOLICITED + 1)
        self._settled_at: float | None = None
        self._has_beacon = False

    # -- the stores ------------------------------------------------------------------------------

    @property
    def stores(self) -> dict[str, Candidate]:
        """Return the stores that have greeted, by address."""
        # A copy first: other threads call this, too.
        stores = [*self._stores.items()]
        return {name: each for name, each in stores if each.state is NodeState.GREETED}

    @property
    def awaited_stores(self) -> tuple[str, ...]:
        """Return the stores that have not greeted yet."""
        return tuple(each.node for each in self._in(NodeState.STORE, NodeState.RETURNING))

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the stores that had greeted, and have not done so again."""
        return tuple(each.node for each in self._in(NodeState.LOST, NodeState.RETURNING))

    @property
    def c_stores(self) -> list[str]:
        """Return the addresses of those that answer no queries."""
        return [name for name, store in self.stores.items() if not store.answers_queries]

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """Return the bulk endpoints of stores, by address."""
        return {name: each.locations for name, each in self.stores.items() if each.locations}

    @property
    def missing(self) -> list[KnownStore]:
        """Return known stores that do not answer here.

        A store that no other store knows any more was forgotten; without other stores, none is.
        """
        greeted, lists = self.stores, [*self._known.values()]
        entries = [each for known in lists for each in known]
        if not lists:
            entries = [KnownStore(name) for name in self.lost]
        newest = {each.store: each for each in sorted(entries, key=lambda each: each.seen_us)}
        return [newest[name] for name in sorted(newest) if name not in greeted]

    def is_connected(self, store: str) -> bool:
        """Return True if messages are delivered in both directions."""
        return store in self.stores and self.stores[store].receives_ours

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Process a node's announcement, connection, kind or loss.

        A lost node may only be late.  Then it will greet us again, but not subscribe again, since
        its own connection to us has persisted.
        """
        if not self._has_beacon:
            self._has_beacon = True
            settled_at = self._settled_at or now + timing.SETTLE_S
            self._settled_at = max(settled_at, now + timing.SETTLE_AFTER_BEACON_S)
        if news.endpoint:
            self._apply(now, news.node, ANNOUNCEMENT, endpoint=news.endpoint)
        if news.accepts:
            self._apply(now, news.node, CONNECTION)
        if news.is_store is not None:
            self._apply(now, news.node, STORE_KIND if news.is_store else OTHER_KIND)
        if news.is_lost:
            self._apply(now, news.node, LOSS)

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Ask a store that subscribes to our hello, and so receives our messages from now on."""
        if not topic or kind not in _OWN:
            return []
        event = HELLO if kind is m.ConsumerHello else SUBSCRIPTION
        node = self._apply(now, topic, event)
        node.answers_queries = node.answers_queries or kind is m.HistoryReply
        node.receives_ours = node.receives_ours or event == HELLO
        return self._ask_all(now) if event == HELLO else []

    def give_up_late(self, now: float) -> None:
        """Stop waiting for nodes that have not greeted in time."""
        for each in self._in(*AWAITED):
            if now >= each.due:
                self._apply(now, each.node, TIMEOUT)

    def _in(self, *states: NodeState) -> list[Candidate]:
        found = [*self._stores.values(), *self._awaited.values()]
        return [each for each in found if each.state in states]

    def _apply(self, now: float, node: str, event: str, *, endpoint: str = "") -> Candidate:
        """Apply an event to a candidate, and return it."""
        groups = (self._stores, self._awaited, self._dismissed)
        each = next((group[node] for group in groups if node in group), None) or Candidate(node)
        before = each.state
        if (given_up := each.apply(now, event, endpoint=endpoint)) is not None:
            self.given_up.append(given_up)
        if each.state is not before:
            self._keep(each)
        return each

    def _keep(self, each: Candidate) -> None:
        """Keep a candidate by its state; peers choose the names, so their number is limited."""
        is_new = each.has_greeted and each.node not in self._stores
        if is_new and len(self._stores) >= MAX_STORES:
            if lost := self.lost:
                del self._stores[lost[0]]
            else:
                each.state = NodeState.DISMISSED
        for group in (self._awaited, self._dismissed):
            group.pop(each.node, None)
        if each.has_greeted:
            self._stores[each.node] = each
        elif each.state is NodeState.DISMISSED:
            self._dismissed.keep(each.node, each)
        elif each.state in AWAITED and len(self._awaited) < MAX_PEERS:
            self._awaited[each.node] = each

    # -- questions -------------------------------------------------------------------------------

    def waits_for_others(self, question: Question) -> bool:
        """Return True if all greeted stores have answered, so that only others are awaited.

        C stores count when they receive the question.
        """
        greeted = self.stores
        return bool(greeted) and all(
            question.has_answered(name) if store.answers_queries else store.receives_ours
            for name, store in greeted.items()
        )

    def subscriptions(self) -> list[bytes]:
        """Subscribe to the messages of stores to one requestor."""
        replies = (m.HeadsReply, m.TimesReply, m.HistoryReply)
        kinds = (m.StoreHello, m.DirectHead, m.StoreEndpoints, m.StoresKnown, *replies)
        return [subscription(kind, self.address) for kind in kinds]

    def ask(
        self,
        now: float,
        kind: Callable[..., Query],
        *content: object,
        rounds: int = 1,
        wanted: Mapping[TopicPartition, int] | None = None,
    ) -> tuple[Question, list[Outgoing]]:
        """Ask all stores a query of a ``kind`` with a ``content``.

        C stores are asked for heads in several ``rounds``: their silence may also be a lost
        message.  With ``wanted`` the answer has the first available record from each of these on.
        """
        query = kind(self.address, next(self._numbers), *content)
        question = self._questions[query.query] = Question(query, now, rounds, wanted or {})
        return question, self._ask(now, question)

    def forget(self, question: Question) -> None:
        """Drop a question."""
        self._questions.pop(question.query.query, None)

    def on_message(self, now: float, message: m.Message) -> list[Outgoing]:
        """Process greetings and answers."""
        match message:
            case m.StoreHello():
                is_new = message.store not in self.stores
                store = self._apply(now, message.store, GREETS)
                # A C store sends nothing more, and only now GET-HEADS is sent for it.
                return self._ask_all(now) if is_new and store.receives_ours else []
            case m.StoreEndpoints():
                self._apply(now, message.store, STORE_KIND).locations = message.locations
            case m.HeadsReply(query=m.UNSOLICITED):
                # The last message of a store's introduction: messages are delivered in both
                # directions now.
                self._apply(now, message.store, GREETS).answers_queries = True
                return self._ask_all(now)
            case m.StoresKnown():
                self._on_known(now, message)
            case m.HeadsReply() | m.TimesReply() | m.HistoryReply() if (
                question := self._questions.get(message.query)
            ) is not None and question.is_answered_by(message):
                # Messages are delivered in both directions, also if the store's greeting was lost.
                self._apply(now, message.store, GREETS).answers_queries = True
                known = message.store in question.parts or len(question.parts) < MAX_STORES
                if known and not question.answered:
                    question.active_at = now
                    question.add_reply(message)
            case m.DirectHead():
                for question in self._questions.values():
                    if question.asks_for(message.topic):
                        question.active_at = now
                        question.add_head(PartitionInfo(*message.tp, 0, message.end))
        return []

    def _on_known(self, now: float, message: m.StoresKnown) -> None:
        """Keep a store's list of the others, and wait for those that it names as present."""
        stores = tuple(each for each in message.entries if each.store != self.address)
        others = [known for name, known in self._known.items() if name != message.store]
        if len(others) < MAX_STORES and sum(map(len, others)) + len(stores) <= MAX_KNOWN:
            self._known[message.store] = stores
        for each in stores:
            if each.here:
                self._apply(now, each.store, NAMED, endpoint=each.endpoint)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Complete the questions that are answered, and repeat the others in time."""
        self._settled_at = self._settled_at or now + timing.SETTLE_S
        questions, messages = self._open(), list[Outgoing]()
        if not questions:
            return []
        self.give_up_late(now)
        all_found = now >= self._settled_at and not self._in(*AWAITED)
        for question in questions:
            # Answers of C stores to GET-HEADS have no end.
            needs_silence = isinstance(question.query, m.HeadsQuery) and bool(self.c_stores)
            is_silent = now >= question.active_at + timing.C_STORE_SILENCE_S
            has_ended = is_silent or not needs_silence
            if is_complete := all_found and has_ended and self.waits_for_others(question):
                question.rounds -= 1
                question.answered = question.rounds == 0 or not needs_silence
            is_late = now >= question.active_at + timing.QUERY_RETRY_S
            if not question.answered and (is_complete or is_late):
                messages += self._ask(now, question)
        return messages

    def deadline(self, now: float) -> float:
        """Return the time of the next check while a question is open."""
        return now + timing.ANSWER_POLL_S if self._open() else inf

    def _open(self) -> list[Question]:
        return [question for question in self._questions.values() if not question.answered]

    def _ask_all(self, now: float) -> list[Outgoing]:
        return [message for question in self._open() for message in self._ask(now, question)]

    def _ask(self, now: float, question: Question) -> list[Outgoing]:
        """Return the query, and GET-HEADS for stores that do not know queries."""
        query, question.active_at = question.query, now
        if not isinstance(query, m.HeadsQuery) or not self.c_stores:
            return [query]
        return [query, *(m.GetHeads(topic, self.address) for topic in query.topics or ("",))]


# -- the list of a store ---------------------------------------------------------------------------


class KnownStores:
    """A store's durable list of the other stores.

    Args:
        store: its own address.
        known: the list on its disk.
        wall_us: clock, microseconds since 1970 UTC.
        write: passes an entry to the log.
    """

    def __init__(
        self,
        store: str,
        known: Iterable[StoreSeen],
        wall_us: Callable[[], int],
        write: Callable[[LogEntry], None],
    ) -> None:
        self.store = store
        self.locations: tuple[str, ...] = ()  # this store's Flight endpoints; sent to requestors
        # Those of the other present stores.  Replaced, not changed: other threads read it.
        self.endpoints: Mapping[str, tuple[str, ...]] = {}
        self._stores = {each.store: each for each in known if each.store != store}
        self._wall_us = wall_us
        self._write = write
        self._peers: dict[str, str] = {}  # endpoints of present nodes, which may be stores
        self._sent = RecentNames[int](MAX_PEERS)  # by requestor: the last change sent
        self._changes = 0
        self._is_starting = True  # until the beacons of present stores have arrived
        self._due = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Return all addresses."""
        return tuple(self._stores)

    @property
    def here(self) -> frozenset[str]:
        """Return the addresses of present stores."""
        # Called from other threads: each of the two copies is atomic.
        return frozenset(tuple(self._stores)).intersection(tuple(self._peers))

    def on_announced(self, peer: str, endpoint: str) -> None:
        """Note the endpoint of a peer that may be a store."""
        self._changes += peer in self._stores
        if peer in self._peers or len(self._peers) < MAX_PEERS:
            self._peers[peer] = endpoint

    def on_endpoints(self, message: m.StoreEndpoints) -> None:
        """Note the Flight endpoints of a store."""
        known = self.endpoints.get(message.store)
        if known != message.locations and (known or len(self.endpoints) < MAX_STORES):
            self.endpoints = {**self.endpoints, message.store: message.locations}

    def add(self, store: str) -> None:
        """Add or confirm a store; a new one is written at once."""
        if store in self._stores:
            if store not in self._peers:
                self.on_announced(store, "")
        elif len(self._stores) < MAX_STORES:
            self._peers.setdefault(store, "")
            self._note(store)

    def forget(self, store: str) -> bool:
        """Forget a store until it appears again; return False if it is present."""
        if store in self._peers:
            return False
        self._changes += self._stores.pop(store, None) is not None
        return True

    def on_peer_lost(self, peer: str) -> None:
        """Note that a peer was silent for too long."""
        if peer in self.endpoints:
            self.endpoints = {each: at for each, at in self.endpoints.items() if each != peer}
        if peer in self._stores and peer in self._peers:
            self._note(peer)
        self._peers.pop(peer, None)

    def greeting(self, kind: type[m.Message], requestor: str) -> Outgoing | None:
        """Return the greeting for a peer that subscribes to it with its own address."""
        if not requestor or requestor == self.store:
            return None
        if kind is m.StoreHello:  # RFC 46: a store "SHALL send a STORE-HELLO ... to the subscriber"
            return m.StoreHello(requestor, self.store)
        if kind is m.StoreEndpoints and self.locations:
            return m.StoreEndpoints(requestor, self.store, self.locations)
        if kind is m.StoresKnown:
            # Permanently: a peer that is only late does not subscribe again.
            self._sent.keep(requestor, -1)
            return self.changes_for(requestor)
        return None

    def changes_for(self, requestor: str) -> m.StoresKnown | None:
        """Return changes since the last message to a requestor that understands them."""
        if self._sent.get(requestor, self._changes) == self._changes:
            return None
        self._sent[requestor] = self._changes
        here = self._stores if self._is_starting else self._peers
        entries = tuple(KnownStore(*each, name in here) for name, each in self._stores.items())
        return m.StoresKnown(requestor, self.store, entries)

    def on_tick(self, now: float) -> None:
        """Write the times of present stores at intervals."""
        if not self._due:
            self._due = now + timing.KNOWN_STORE_GRACE_S
        elif now >= self._due:
            self._due = now + timing.KNOWN_STORE_WRITE_S
            if self._is_starting:
                self._is_starting = False
                self._changes += 1
            else:
                for store in [name for name in self._stores if name in self._peers]:
                    self._note(store)

    def deadline(self) -> float:
        """Return the time of the next write."""
        return self._due

    def _note(self, store: str) -> None:
        known = self._stores.get(store, StoreSeen(store))
        endpoint = self._peers.get(store) or known.endpoint
        self._stores[store] = StoreSeen(store, endpoint, self._wall_us())
        self._write(self._stores[store])
        self._changes += 1
