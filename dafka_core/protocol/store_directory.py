"""The directory of stores: discovery, and questions to all of them.

Stores introduce themselves: each store greets a node that subscribes to STORE-HELLO, and a store
that reaches the node subscribes to the hello with its own address.  After both, messages are
delivered in both directions.

Our stores also greet with an empty reply, which shows that they answer queries (``HeadsQuery``,
``TimesQuery``).  An answer to a query has an end, so a requestor knows when it is complete, also if
it is empty.  C stores are asked with GET-HEADS, whose answers have no end: they count as complete
when none has arrived for a while.

An answer also waits for stores that have not introduced themselves yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final, NamedTuple

from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_STORES, RecentNames
from dafka_core.protocol.role import Outgoing, PeerNews

# The stores that an answer waits for: nodes that may be stores and have not greeted yet.
#
# The number of stores is unknown.  But a tower announces every node, a store names the other stores
# it knows (STORES-KNOWN), and a node announces its kind when it has connected.  So each announced
# node is awaited until it turns out to be no store, has greeted, or is given up, by name.  The
# timeout depends on its distance.


PATIENCE_S: Final = 3.0
"""Timeout without any message of a node.  A near and busy node takes less; an unused address or a
firewall costs this time once."""

ROUND_TRIPS: Final = 6
"""The timeout in round trips, if these are known to take longer: a connection and its subscriptions
take about four of them."""

MOST_PATIENCE_S: Final = 30.0
"""The longest timeout, at any distance."""

SLOW_S: Final = 2.0
"""A requestor that has waited for a store for longer learns its name."""

INTRODUCTION_S: Final = 0.1
"""A C node that is a store subscribes to hellos within this time after its first subscription: the
SUB socket sends all of them at once.  Our nodes announce their kind."""

MAX_KNOWN: Final = 10 * MAX_STORES
"""Stores named by other stores, in total; a store that lies costs no more."""

MAX_NEWS: Final = 100
"""Unread outcomes; the oldest are dropped."""


class Outcome(NamedTuple):
    """The result of waiting for a node, for the log."""

    node: str
    endpoint: str
    waited_s: float
    is_given_up: bool
    is_store: bool
    """True if it is a store; otherwise unknown."""


@dataclass(slots=True)
class _Expected:
    endpoint: str
    since: float
    due: float
    """The deadline."""
    is_store: bool = False
    is_announced: bool = False
    introduced_at: float = inf
    """When it connected to us, if it has not announced its kind."""


class ExpectedStores:
    """The nodes that an answer waits for, and the stores' lists of each other."""

    def __init__(self) -> None:
        self.outcomes: deque[Outcome] = deque(maxlen=MAX_NEWS)
        """Drained by the node that runs the role."""
        self._expected: dict[str, _Expected] = {}
        self._done = RecentNames[None](MAX_PEERS)
        """Nodes that need no waiting: other kinds, greeted ones, and those given up."""
        self._introduced = RecentNames[float](MAX_PEERS)
        """C nodes that have connected to us before they were announced, and when."""
        self.told: dict[str, tuple[KnownStore, ...]] = {}
        """Each store's list of others."""

    def __bool__(self) -> bool:
        """Return True if any node was awaited at the last check."""
        return bool(self._expected)

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the stores among the awaited nodes; any thread may call this."""
        return tuple(node for node, each in [*self._expected.items()] if each.is_store)

    def known(self) -> dict[str, KnownStore]:
        """Merge all lists of stores by address; the newest entry wins."""
        newest: dict[str, KnownStore] = {}
        for each in (each for told in [*self.told.values()] for each in told):
            before = newest.get(each.store, each)
            newest[each.store] = max(before, each, key=lambda known: known.heard_us)
        return newest

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Process a node's announcement, connection or kind."""
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
        """Process a subscription with the node's own address: it has connected to us."""
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
        """Process a store's list of others; present ones are awaited.

        Except those in ``lost``: this node's mesh has given them up, and the sender soon will.
        """
        stores = tuple(stores)
        others = sum(len(told) for name, told in self.told.items() if name != teller)
        if others + len(stores) <= MAX_KNOWN:
            self.told[teller] = stores
        for each in stores:
            if each.here and each.store not in self._done and each.store not in lost:
                self._expect(now, each.store, each.endpoint).is_store = True

    def met(self, now: float, node: str) -> None:
        """Stop waiting for a store that has greeted: its answers are awaited from now on."""
        expected = self._expected.get(node)
        if expected is not None and now - expected.since >= SLOW_S:
            waited_s = now - expected.since
            self.outcomes.append(Outcome(node, expected.endpoint, waited_s, False, True))
        self.done(node)

    def done(self, node: str) -> None:
        """Stop waiting for a node."""
        self._expected.pop(node, None)
        self._introduced.pop(node, None)
        self._done.keep(node, None)

    def lost(self, node: str) -> None:
        """Note that the mesh has given a node up; if it is announced again, it is awaited again."""
        if node in self._expected:
            expected = self._expected[node]
            expected.due, expected.is_announced = -inf, False
        self._done.pop(node, None)
        self._introduced.pop(node, None)

    def waits(self, now: float) -> bool:
        """Return True if any node is awaited, after giving up those past their deadline."""
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


SETTLE_S: Final = 0.25
"""Before this time has passed no answer is complete: stores are discovered meanwhile.  Beacons are
answered at once, within milliseconds, and other stores name those that are farther away."""

HEARD_S: Final = 0.15
"""The settle time from the first beacon on, for a distant tower."""

QUIET_S: Final = 0.4
"""Answers to GET-HEADS are complete when none has arrived for this time."""

ASK_AGAIN_S: Final = 0.5
"""A query or its answer may be lost: the directory asks again after this time without a message.
Longer than ``QUIET_S``, since each question restarts that time."""

POLL_S: Final = 0.02
"""Interval of checks for completed answers."""

OWN: Final = (m.DirectRecord, m.Fetch, m.Ack, m.StoreHello, m.ConsumerHello)
"""Subscriptions of nodes with their own address, by kind (RFC 46)."""

GREETING: Final = 0
"""Reserved query number of the reply with which our stores introduce themselves."""

HEADS: Final = 2**64 - 1
"""Reserved query number of replies to GET-HEADS and CONSUMER-HELLO."""


_REPLIES: Final = {m.HeadsQuery: m.HeadsReply, m.TimesQuery: m.TimesReply}
"""The reply to each query; a history needs more checks."""


@dataclass(slots=True)
class StoreQuery:
    """A question to all stores, and their answers so far."""

    query: m.HeadsQuery | m.TimesQuery | m.HistoryQuery
    heard_at: float  # time of the question or of the last part of an answer
    rounds: int = 1  # remaining questions to C stores, or waits for them
    wanted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records that the question is about, one for each partition."""
    available: dict[TopicPartition, int] = field(default_factory=dict)
    """The first of them, or after them, that any store has."""
    heads: dict[TopicPartition, PartitionInfo] = field(default_factory=dict)
    """The combined records of the stores, by partition."""
    times: dict[str, dict[int, int]] = field(default_factory=dict)
    """By store: timestamps (microseconds since 1970 UTC) by first offset."""
    histories: dict[str, m.HistoryReply] = field(default_factory=dict)
    """By store."""
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
        return isinstance(reply, _REPLIES[type(query)])

    def best_times(self) -> list[tuple[int, int]]:
        """Return the answer of the store with most timestamps."""
        return sorted(max(self.times.values(), key=len, default={}).items())

    def has_answered(self, store: str) -> bool:
        """Return True if every part of a store's answer has arrived."""
        parts, heard = self.parts.get(store, (1, ()))
        return len(heard) == parts

    def add_head(self, info: PartitionInfo) -> None:
        """Add a store's records of a partition."""
        tp = info.tp
        known = self.heads.get(tp)
        merged = self.heads[tp] = info if known is None else known.merged(info)
        # If one store ends here and another one begins later, the gap between matters.
        wanted = self.wanted.get(tp)
        if wanted is not None and min(info.end, merged.end) > wanted:
            first = max(info.earliest, wanted)
            self.available[tp] = min(first, self.available.get(tp, first))

    def add_reply(self, reply: m.HeadsReply | m.TimesReply | m.HistoryReply) -> None:
        """Add a part of a store's answer."""
        if isinstance(reply, m.HistoryReply):
            self.parts[reply.store] = (1, {0})
            self.histories[reply.store] = reply
            return
        known = self.parts.get(reply.store)
        if known is None or known[0] != reply.parts:
            # The answer has more parts than the one to an earlier question.
            known = self.parts[reply.store] = (reply.parts, set())
        known[1].add(reply.part)
        if isinstance(reply, m.HeadsReply):
            for info in reply.entries:
                self.add_head(info)
        else:
            self.times.setdefault(reply.store, {}).update(reply.entries)


@dataclass(slots=True)
class _Store:
    greeted: bool = False  # we have received its hello: its messages reach us
    lost: bool = False  # it had greeted, and is silent
    reached: bool = False  # it has subscribed to our hello: our messages reach it
    answers_queries: bool = False
    locations: tuple[str, ...] = ()


class StoreDirectory:
    """The stores, and the open questions."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.expected = ExpectedStores()
        """Nodes that have not greeted yet."""
        self._stores: dict[str, _Store] = {}
        self._ours = RecentNames[None](MAX_PEERS)
        """Nodes that subscribe to answers to queries, so they are no C nodes."""
        self._settled_at: float | None = None
        self._heard_of_any = False
        self._questions: dict[int, StoreQuery] = {}
        self._numbers = count(GREETING + 1)

    @property
    def stores(self) -> list[str]:
        """Return the addresses of the stores that have greeted."""
        return list(self._greeted())

    @property
    def c_stores(self) -> list[str]:
        """Return the addresses of those that answer no queries."""
        return [name for name, store in self._greeted().items() if not self._answering(name, store)]

    def greeted(self, store: str) -> bool:
        """Return True if a store's messages reach us."""
        return store in self._stores and self._stores[store].greeted

    def meets(self, store: str) -> bool:
        """Return True if messages are delivered in both directions."""
        return self.greeted(store) and self._stores[store].reached

    @property
    def away(self) -> bool:
        """Return True if a store is gone, perhaps only for a while."""
        return any(store.lost for store in list(self._stores.values()))

    @property
    def missing(self) -> list[KnownStore]:
        """Return known stores that do not answer here.

        A store that no other store knows any more was forgotten; without other stores, none is.
        """
        known = self.expected.known()
        here = self._greeted()
        if not self.expected.told:
            known |= {name: KnownStore(name) for name, each in [*self._stores.items()] if each.lost}
        return [known[name] for name in sorted(known) if name not in here]

    def waits_for_others(self, question: StoreQuery) -> bool:
        """Return True if all greeted stores have answered, so that only others are awaited."""
        return bool(self._greeted()) and self._have_answered(question)

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """Return the bulk endpoints of stores, by address."""
        greeted = self._greeted()
        return {name: store.locations for name, store in greeted.items() if store.locations}

    def subscriptions(self) -> list[bytes]:
        """Subscribe to the messages of stores to one requestor."""
        replies = (m.HeadsReply, m.TimesReply, m.HistoryReply)
        kinds = (m.StoreHello, m.DirectHead, m.StoreEndpoints, m.StoresKnown, *replies)
        return [subscription(kind, self.address) for kind in kinds]

    def ask_heads(
        self,
        now: float,
        topics: Collection[str],
        *,
        rounds: int = 1,
        wanted: Mapping[TopicPartition, int] | None = None,
    ) -> tuple[StoreQuery, list[Outgoing]]:
        """Ask stores for their partitions of some topics; of all topics if empty.

        C stores are asked in several ``rounds``: their silence may also be a lost message.  With
        ``wanted`` the answer has the first available record from each of these on.
        """
        query = m.HeadsQuery(self.address, next(self._numbers), tuple(sorted(topics)))
        return self._begin(now, StoreQuery(query, now, rounds, wanted or {}))

    def ask_times(
        self, now: float, tp: TopicPartition, start: int, end: int
    ) -> tuple[StoreQuery, list[Outgoing]]:
        """Ask for the timestamps of records ``[start, end)`` of a partition."""
        query = m.TimesQuery(self.address, next(self._numbers), *tp, start, end)
        return self._begin(now, StoreQuery(query, now))

    def ask_history(
        self, now: float, tp: TopicPartition, life: EpochId = NO_LIFE
    ) -> tuple[StoreQuery, list[Outgoing]]:
        """Ask stores for the history of a partition; with a ``life`` also for a promise."""
        query = m.HistoryQuery(self.address, next(self._numbers), *tp, life)
        return self._begin(now, StoreQuery(query, now))

    def forget(self, question: StoreQuery) -> None:
        """Drop a question."""
        self._questions.pop(question.query.query, None)

    def on_message(self, now: float, message: m.Message) -> list[Outgoing]:
        """Process greetings and answers."""
        match message:
            case m.StoreHello():
                is_new = not self.greeted(message.store)
                store = self._greets(now, message.store)
                # A C store sends nothing more, and only now GET-HEADS is sent for it.
                return self._ask_all(now) if is_new and store.reached else []
            case m.StoreEndpoints():
                self._store(message.store).locations = message.locations
            case m.HeadsReply(query=0):
                # The last message of a store's greeting: messages are delivered in both directions
                # now.
                self._greets(now, message.store).answers_queries = True
                return self._ask_all(now)
            case m.StoresKnown():
                others = (each for each in message.entries if each.store != self.address)
                lost = {name for name, each in self._stores.items() if each.lost}
                self.expected.on_known(now, message.store, others, lost)
            case m.HeadsReply() | m.TimesReply() | m.HistoryReply() if (
                question := self._questions.get(message.query)
            ) is not None and question.is_answered_by(message):
                # Messages are delivered in both directions, also if the store's greeting was lost.
                self._greets(now, message.store).answers_queries = True
                known = message.store in question.parts or len(question.parts) < MAX_STORES
                if known and not question.answered:
                    question.heard_at = now
                    question.add_reply(message)
            case m.DirectHead():
                for question in self._questions.values():
                    if question.asks_for(message.topic):
                        question.heard_at = now
                        question.add_head(PartitionInfo(*message.tp, 0, message.end))
        return []

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Ask a store that subscribes to our hello, and so receives our messages from now on."""
        if kind is m.HistoryReply and topic:
            # Before its hello, also if its own greeting is lost.
            self._ours.keep(topic, None)
        if topic and kind in OWN:
            self.expected.on_subscribed(now, topic, is_store=kind is m.ConsumerHello)
        if kind is not m.ConsumerHello or not topic:
            return []
        self._store(topic).reached = True
        return self._ask_all(now)

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store."""
        if not self._heard_of_any:
            self._heard_of_any = True
            self._settled_at = max(self._settled_at or now + SETTLE_S, now + HEARD_S)
        self.expected.on_peer(now, news)

    def on_peer_lost(self, peer: str) -> None:
        """Stop waiting for a store that is gone."""
        self.expected.lost(peer)
        store = self._stores.get(peer)
        if store is not None:
            # It may only be late. Then it will greet us again, but its own connection to us has
            # persisted, so it will not subscribe again: ``reached`` stays.
            store.lost = store.lost or store.greeted
            store.greeted = store.answers_queries = False
            store.locations = ()

    def on_tick(self, now: float) -> list[Outgoing]:
        """Complete the questions that are answered, and repeat the others in time."""
        if self._settled_at is None:
            self._settled_at = now + SETTLE_S
        messages: list[Outgoing] = []
        for question in self._open():
            if self._is_answered(now, question):
                question.rounds -= 1
                question.answered = not question.rounds or not self._ends_with_silence(question)
                if not question.answered:
                    messages.extend(self._ask(now, question))
            elif now >= question.heard_at + ASK_AGAIN_S:
                messages.extend(self._ask(now, question))
        return messages

    def deadline(self, now: float) -> float | None:
        """Return the time of the next check while a question is open."""
        return now + POLL_S if self._open() else None

    def _answering(self, name: str, store: _Store) -> bool:
        return store.answers_queries or name in self._ours

    def _greeted(self) -> dict[str, _Store]:
        # A copy first: other threads call this, too.
        return {name: store for name, store in list(self._stores.items()) if store.greeted}

    def _store(self, address: str) -> _Store:
        if address not in self._stores and len(self._stores) >= MAX_STORES:
            self._stores = self._greeted()
            if len(self._stores) >= MAX_STORES:
                return _Store()
        return self._stores.setdefault(address, _Store())

    def _greets(self, now: float, address: str) -> _Store:
        store = self._store(address)
        store.greeted, store.lost = True, False
        self.expected.met(now, address)
        return store

    def _open(self) -> list[StoreQuery]:
        return [question for question in self._questions.values() if not question.answered]

    def _begin(self, now: float, question: StoreQuery) -> tuple[StoreQuery, list[Outgoing]]:
        self._questions[question.query.query] = question
        return question, self._ask(now, question)

    def _ask_all(self, now: float) -> list[Outgoing]:
        return [message for question in self._open() for message in self._ask(now, question)]

    def _ask(self, now: float, question: StoreQuery) -> list[Outgoing]:
        """Return the query, and GET-HEADS if there are stores that do not know queries."""
        question.heard_at = now
        query = question.query
        messages: list[Outgoing] = [query]
        if isinstance(query, m.HeadsQuery) and self.c_stores:
            messages.extend(m.GetHeads(topic, self.address) for topic in query.topics or ("",))
        return messages

    def _is_answered(self, now: float, question: StoreQuery) -> bool:
        greeted = self._greeted()
        settled = self._settled_at is not None and now >= self._settled_at
        if self.expected.waits(now) or not greeted or not settled:
            return False
        if not self._have_answered(question):
            return False
        return not self._ends_with_silence(question) or now >= question.heard_at + QUIET_S

    def _have_answered(self, question: StoreQuery) -> bool:
        """Return True if all greeted stores have; C stores when they receive the question."""
        return all(
            question.has_answered(name) if self._answering(name, store) else store.reached
            for name, store in self._greeted().items()
        )

    def _ends_with_silence(self, question: StoreQuery) -> bool:
        return isinstance(question.query, m.HeadsQuery) and bool(self.c_stores)
