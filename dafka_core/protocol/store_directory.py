"""Questions to all stores, and their answers; ``discovery`` finds the stores.

Our stores greet with an empty reply, which shows that they answer queries (``HeadsQuery``,
``TimesQuery``).  An answer to a query has an end, so a requestor knows when it is complete, also if
it is empty.  C stores are asked with GET-HEADS, whose answers have no end: they count as complete
when none has arrived for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import KnownStore, PartitionInfo, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.discovery import GREETS, HELLO, STORE_KIND, SUBSCRIPTION, Discovery
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.role import Outgoing, PeerNews

# Subscriptions of nodes with their own address, by kind (RFC 46).
OWN: Final = (m.DirectRecord, m.Fetch, m.Ack, m.StoreHello, m.ConsumerHello)


@dataclass(slots=True)
class StoreQuery:
    """A question to all stores, and their answers so far."""

    query: m.HeadsQuery | m.TimesQuery | m.HistoryQuery
    active_at: float  # time of the question or of the last part of an answer
    rounds: int = 1  # remaining questions to C stores, or waits for them
    wanted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records that the question is about, one for each partition."""
    available: dict[TopicPartition, int] = field(default_factory=dict)
    """The first of them, or after them, that any store has."""
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


class StoreDirectory:
    """The stores, and the open questions."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.discovery = Discovery()
        self._settled_at: float | None = None
        self._has_beacon = False
        self._questions: dict[int, StoreQuery] = {}
        self._numbers = count(m.UNSOLICITED + 1)

    @property
    def stores(self) -> list[str]:
        """Return the addresses of the stores that have greeted."""
        return list(self.discovery.greeted)

    @property
    def c_stores(self) -> list[str]:
        """Return the addresses of those that answer no queries."""
        greeted = self.discovery.greeted
        return [name for name, store in greeted.items() if not store.answers_queries]

    @property
    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """Return the bulk endpoints of stores, by address."""
        greeted = self.discovery.greeted
        return {name: store.locations for name, store in greeted.items() if store.locations}

    @property
    def missing(self) -> list[KnownStore]:
        """Return known stores that do not answer here.

        A store that no other store knows any more was forgotten; without other stores, none is.
        """
        known, greeted = self.discovery.known(), self.discovery.greeted
        if not self.discovery.lists:
            known |= {name: KnownStore(name) for name in self.discovery.lost}
        return [known[name] for name in sorted(known) if name not in greeted]

    def is_connected(self, store: str) -> bool:
        """Return True if messages are delivered in both directions."""
        found = self.discovery.greeted.get(store)
        return found is not None and found.receives_ours

    def waits_for_others(self, question: StoreQuery) -> bool:
        """Return True if all greeted stores have answered, so that only others are awaited."""
        return bool(self.discovery.greeted) and self._have_answered(question)

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
                is_new = message.store not in self.discovery.greeted
                store = self.discovery.apply(now, message.store, GREETS)
                # A C store sends nothing more, and only now GET-HEADS is sent for it.
                return self._ask_all(now) if is_new and store.receives_ours else []
            case m.StoreEndpoints():
                store = self.discovery.apply(now, message.store, STORE_KIND)
                store.locations = message.locations
            case m.HeadsReply(query=m.UNSOLICITED):
                # The last message of a store's introduction: messages are delivered in both
                # directions now.
                self.discovery.apply(now, message.store, GREETS).answers_queries = True
                return self._ask_all(now)
            case m.StoresKnown():
                others = (each for each in message.entries if each.store != self.address)
                self.discovery.on_known(now, message.store, others)
            case m.HeadsReply() | m.TimesReply() | m.HistoryReply() if (
                question := self._questions.get(message.query)
            ) is not None and question.is_answered_by(message):
                # Messages are delivered in both directions, also if the store's greeting was lost.
                self.discovery.apply(now, message.store, GREETS).answers_queries = True
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

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Ask a store that subscribes to our hello, and so receives our messages from now on."""
        if not topic or kind not in (*OWN, m.HistoryReply):
            return []
        event = HELLO if kind is m.ConsumerHello else SUBSCRIPTION
        node = self.discovery.apply(now, topic, event)
        # C nodes do not subscribe to histories.  Ours do before they greet.
        node.answers_queries = node.answers_queries or kind is m.HistoryReply
        node.receives_ours = node.receives_ours or event == HELLO
        return self._ask_all(now) if event == HELLO else []

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store."""
        if not self._has_beacon:
            self._has_beacon = True
            settled_at = self._settled_at or now + timing.SETTLE_S
            self._settled_at = max(settled_at, now + timing.SETTLE_AFTER_BEACON_S)
        self.discovery.on_peer(now, news)

    def on_peer_lost(self, peer: str) -> None:
        """Stop waiting for a store that is gone.

        It may only be late. Then it will greet us again, but not subscribe again, since its own
        connection to us has persisted.
        """
        self.discovery.on_peer_lost(peer)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Complete the questions that are answered, and repeat the others in time."""
        if self._settled_at is None:
            self._settled_at = now + timing.SETTLE_S
        messages: list[Outgoing] = []
        for question in self._open():
            if self._is_answered(now, question):
                question.rounds -= 1
                question.answered = not question.rounds or not self._ends_with_silence(question)
                if not question.answered:
                    messages.extend(self._ask(now, question))
            elif now >= question.active_at + timing.QUERY_RETRY_S:
                messages.extend(self._ask(now, question))
        return messages

    def deadline(self, now: float) -> float | None:
        """Return the time of the next check while a question is open."""
        return now + timing.ANSWER_POLL_S if self._open() else None

    def _open(self) -> list[StoreQuery]:
        return [question for question in self._questions.values() if not question.answered]

    def _begin(self, now: float, question: StoreQuery) -> tuple[StoreQuery, list[Outgoing]]:
        self._questions[question.query.query] = question
        return question, self._ask(now, question)

    def _ask_all(self, now: float) -> list[Outgoing]:
        return [message for question in self._open() for message in self._ask(now, question)]

    def _ask(self, now: float, question: StoreQuery) -> list[Outgoing]:
        """Return the query, and GET-HEADS for stores that do not know queries."""
        question.active_at = now
        query = question.query
        messages: list[Outgoing] = [query]
        if isinstance(query, m.HeadsQuery) and self.c_stores:
            messages.extend(m.GetHeads(topic, self.address) for topic in query.topics or ("",))
        return messages

    def _is_answered(self, now: float, question: StoreQuery) -> bool:
        settled = self._settled_at is not None and now >= self._settled_at
        if self.discovery.waits(now) or not settled or not self.waits_for_others(question):
            return False
        silent = now >= question.active_at + timing.C_STORE_SILENCE_S
        return silent or not self._ends_with_silence(question)

    def _have_answered(self, question: StoreQuery) -> bool:
        """Return True if all greeted stores have; C stores when they receive the question."""
        return all(
            question.has_answered(name) if store.answers_queries else store.receives_ours
            for name, store in self.discovery.greeted.items()
        )

    def _ends_with_silence(self, question: StoreQuery) -> bool:
        return isinstance(question.query, m.HeadsQuery) and bool(self.c_stores)
