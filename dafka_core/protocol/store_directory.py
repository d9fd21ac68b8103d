"""Which stores there are, and asking all of them something.

Stores introduce themselves: a node that subscribes to STORE-HELLO is greeted by every store it
reaches, and a store that reaches the node subscribes to the hello with its own address.  Both
seen, messages go both ways.

Our stores also greet with an empty reply, which says that they answer queries (``HeadsQuery``,
``TimesQuery``).  Answers to queries have an end, so a requestor knows when it has heard
everything, also when that is nothing.  C stores are asked with GET-HEADS, whose answers
have no end: silence for a while ends them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    ConsumerHello,
    DirectHead,
    GetHeads,
    HeadEntry,
    HeadsQuery,
    HeadsReply,
    Message,
    StoreEndpoints,
    StoreHello,
    TimesQuery,
    TimesReply,
)
from dafka_core.protocol.role import Outgoing
from dafka_core.records import TopicPartition

SETTLE_S: Final = 0.25
"""Stores that exist greet a new node within this time; before it has passed nothing is known to
be complete.  Beacons are answered at once, so a greeting takes some milliseconds."""

QUIET_S: Final = 0.4
"""Answers to GET-HEADS are complete when none has come for this long."""

ASK_AGAIN_S: Final = 0.5
"""A query or its answer may be lost: it is asked again when nothing has come for this long.
Longer than ``QUIET_S``: asking ends the silence."""

GREETING: Final = 0
"""The number of no query: the reply with which our stores introduce themselves."""

MAX_STORES: Final = 1_000
"""Stores remembered.  Peers choose the names."""


@dataclass(slots=True)
class StoreQuery:
    """A question to all stores, and what they have answered so far."""

    query: HeadsQuery | TimesQuery
    heard_at: float
    """When it was asked, or something of an answer came, last."""
    rounds: int = 1
    """How often C stores are still to be asked, or waited for."""
    heads: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """By (topic, partition): the earliest offset and the furthest end that any store has."""
    times: dict[str, dict[int, int]] = field(default_factory=dict)
    """By store: from which offset on it wrote at which time (microseconds)."""
    parts: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    """By store: how many parts its answer has, and those heard."""
    answered: bool = False

    def best_times(self) -> list[tuple[int, int]]:
        """The answer of the store that knows the most."""
        return sorted(max(self.times.values(), key=len, default={}).items())

    def has_answered(self, store: str) -> bool:
        """Whether every part of a store's answer has been heard."""
        count, heard = self.parts.get(store, (1, ()))
        return len(heard) == count


@dataclass(slots=True)
class _Store:
    greeted: bool = False
    """It has said hello: we hear it."""
    reached: bool = False
    """It has subscribed to our hello: it hears us."""
    answers_queries: bool = False
    locations: tuple[str, ...] = ()


class StoreDirectory:
    """The stores, and the questions under way."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._stores: dict[str, _Store] = {}
        self._started_at: float | None = None
        self._questions: dict[int, StoreQuery] = {}
        self._last_query = GREETING

    @property
    def stores(self) -> list[str]:
        """The addresses of the stores heard of."""
        return [address for address, store in list(self._stores.items()) if store.greeted]

    @property
    def c_stores(self) -> list[str]:
        """The addresses of the stores that answer no queries."""
        return [
            a
            for a, store in list(self._stores.items())
            if store.greeted and not store.answers_queries
        ]

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """Where the stores that say so can be read in bulk, by address."""
        return {
            address: store.locations
            for address, store in list(self._stores.items())
            if store.greeted and store.locations
        }

    def subscriptions(self) -> list[bytes]:
        """What stores send to one requestor."""
        kinds = (StoreHello, DirectHead, HeadsReply, TimesReply, StoreEndpoints)
        return [subscription(kind, self.address) for kind in kinds]

    def ask_heads(
        self, now: float, topics: Collection[str], *, rounds: int = 1
    ) -> tuple[StoreQuery, list[Outgoing]]:
        """Asks what stores hold of some topics; of all topics if there are none.

        C stores are asked in so many rounds: their silence may also be a lost message.
        """
        self._last_query += 1
        query = HeadsQuery(self.address, self._last_query, tuple(sorted(topics)))
        return self._ask(now, query, rounds)

    def ask_times(
        self, now: float, tp: TopicPartition, start: int, end: int
    ) -> tuple[StoreQuery, list[Outgoing]]:
        """Asks when stores wrote the records ``[start, end)`` of a partition."""
        self._last_query += 1
        query = TimesQuery(self.address, self._last_query, *tp, start, end)
        return self._ask(now, query)

    def forget(self, question: StoreQuery) -> None:
        """The question is of no interest any more."""
        self._questions.pop(question.query.query, None)

    def on_message(self, now: float, message: Message) -> list[Outgoing]:
        """Takes greetings and answers."""
        match message:
            case StoreHello():
                store = self._store(message.store)
                if not store.greeted:
                    store.greeted = True
                    # A C store says no more, and only now is GET-HEADS sent for it.
                    return self._ask_all_again(now) if store.reached else []
            case StoreEndpoints():
                self._store(message.store).locations = message.locations
            case HeadsReply(query=0):
                store = self._store(message.store)
                # The last thing that a new acquaintance says: it hears us, and we hear it.
                store.greeted = store.answers_queries = True
                return self._ask_all_again(now)
            case HeadsReply() | TimesReply() if message.query in self._questions:
                # Who answers hears us, and we hear it, also where its greeting was lost.
                store = self._store(message.store)
                store.greeted = store.answers_queries = True
                self._on_reply(now, message)
            case DirectHead():
                for question in self._questions.values():
                    if isinstance(question.query, HeadsQuery):
                        topics = question.query.topics
                        if not topics or message.topic in topics:
                            question.heard_at = now
                            entry = HeadEntry(*message.tp, 0, message.end)
                            _add_head(question, entry)
        return []

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """A store that subscribes to our hello hears us from now on: ask what is open."""
        if kind is not ConsumerHello or not topic:
            return []
        self._store(topic).reached = True
        return self._ask_all_again(now)

    def on_peer_lost(self, peer: str) -> None:
        """A store that is gone is not waited for."""
        store = self._stores.get(peer)
        if store is not None:
            # It may be there all the same, only late. Then it will greet us anew, but its own
            # connection to us has lasted, and so it will not subscribe anew.
            store.greeted = store.answers_queries = False
            store.locations = ()

    def on_tick(self, now: float) -> list[Outgoing]:
        """Finds out which questions are answered, and asks the others again in time."""
        if self._started_at is None:
            self._started_at = now
        messages: list[Outgoing] = []
        for question in self._questions.values():
            if not question.answered:
                messages.extend(self._follow(now, question))
        return messages

    def deadline(self, now: float) -> float | None:
        """Soon, while something is asked."""
        waiting = any(not question.answered for question in self._questions.values())
        return now + 0.02 if waiting else None

    def _store(self, address: str) -> _Store:
        if address not in self._stores and len(self._stores) >= MAX_STORES:
            self._stores = {name: s for name, s in self._stores.items() if s.greeted}
            if len(self._stores) >= MAX_STORES:
                return _Store()
        return self._stores.setdefault(address, _Store())

    def _ask(
        self, now: float, query: HeadsQuery | TimesQuery, rounds: int = 1
    ) -> tuple[StoreQuery, list[Outgoing]]:
        question = StoreQuery(query, now, rounds)
        self._questions[query.query] = question
        return question, self._all_ways(now, question)

    def _ask_all_again(self, now: float) -> list[Outgoing]:
        messages: list[Outgoing] = []
        for question in self._questions.values():
            if not question.answered:
                messages.extend(self._all_ways(now, question))
        return messages

    def _all_ways(self, now: float, question: StoreQuery) -> list[Outgoing]:
        """The query, and GET-HEADS if there are stores that do not know queries."""
        question.heard_at = now
        query = question.query
        messages: list[Outgoing] = [query]
        if isinstance(query, HeadsQuery) and self.c_stores:
            messages.extend(GetHeads(topic, self.address) for topic in query.topics or ("",))
        return messages

    def _on_reply(self, now: float, reply: HeadsReply | TimesReply) -> None:
        question = self._questions.get(reply.query)
        if question is None or question.answered:
            return
        known = question.parts.get(reply.store)
        if known is None and len(question.parts) >= MAX_STORES:
            return
        if known is None or known[0] != reply.parts:
            # The store has got more to say since it was asked before.
            known = question.parts[reply.store] = (reply.parts, set())
        question.heard_at = now
        known[1].add(reply.part)
        if isinstance(reply, HeadsReply):
            for entry in reply.entries:
                _add_head(question, entry)
        else:
            question.times.setdefault(reply.store, {}).update(reply.entries)

    def _follow(self, now: float, question: StoreQuery) -> list[Outgoing]:
        if self._is_answered(now, question):
            question.rounds -= 1
            if question.rounds and self._ends_with_silence(question):
                return self._all_ways(now, question)
            question.answered = True
        elif now >= question.heard_at + ASK_AGAIN_S:
            return self._all_ways(now, question)
        return []

    def _is_answered(self, now: float, question: StoreQuery) -> bool:
        greeted = {address: s for address, s in self._stores.items() if s.greeted}
        if not greeted or not self._settled(now):
            return False
        for address, store in greeted.items():
            if store.answers_queries and not question.has_answered(address):
                return False
            if not store.answers_queries and not store.reached:
                return False
        return not self._ends_with_silence(question) or now >= question.heard_at + QUIET_S

    def _ends_with_silence(self, question: StoreQuery) -> bool:
        return isinstance(question.query, HeadsQuery) and bool(self.c_stores)

    def _settled(self, now: float) -> bool:
        return self._started_at is not None and now >= self._started_at + SETTLE_S


def _add_head(question: StoreQuery, entry: HeadEntry) -> None:
    key = TopicPartition(entry.topic, entry.partition)
    earliest, end = question.heads.get(key, (entry.earliest, entry.end))
    # The furthest head wins, and so does the longest memory: any store may be read from.
    question.heads[key] = (min(earliest, entry.earliest), max(end, entry.end))
