"""The consumer's role: each record of its topics once, in order per partition, none missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    Fetch,
    GetHeads,
    Head,
    Message,
    RecordBatchMessage,
    RecordMessage,
    StoreHello,
)
from dafka_core.protocol.partition_fetcher import (
    MAX_PARTITIONS,
    FetchScheduler,
    PartitionFetcher,
    ReorderBudget,
)
from dafka_core.protocol.role import Outgoing
from dafka_core.records import RecordBatch, TopicPartition

Start = Literal["earliest", "latest"] | Mapping[str, Mapping[str, int]]

HEADS_INTERVAL_S: Final = 10.0
"""How often stores are asked for heads.  PUB sockets drop silently: where the last records of a
partition and all heads after them were dropped, and its producer is gone, nothing else tells."""


class ConsumerRole:
    """Follows the topics it is subscribed to.

    ``delivered`` fills with runs; the node empties it.  While ``room`` is false nothing is
    delivered or asked for: records that come are left to be fetched later.
    """

    def __init__(self, address: str, start: Start) -> None:
        self.address = address
        self.delivered: list[RecordBatch] = []
        self.room = True
        self._start = start
        self._topics: dict[str, None] = {}
        self._ahead = ReorderBudget()
        self._catchups: dict[TopicPartition, PartitionFetcher] = {}
        self._missing = FetchScheduler()
        self._heads_due: float | None = None

    @property
    def topics(self) -> list[str]:
        """The topics subscribed to, in the order of their subscription."""
        return list(self._topics)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """By (topic, partition): the next offset to deliver and the known head (exclusive)."""
        return {key: (c.next_offset, c.head) for key, c in self._catchups.items()}

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Consumer Subscriptions, those to the consumer's own address."""
        kinds = (DirectRecord, DirectRecordBatch, DirectHead, StoreHello)
        return [subscription(kind, self.address) for kind in kinds]

    def topic_subscriptions(self, topic: str) -> list[bytes]:
        """RFC 46, Consumer Subscriptions, those to a topic."""
        kinds = (RecordMessage, RecordBatchMessage, Head)
        return [subscription(kind, topic) for kind in kinds]

    def subscribe(self, topic: str) -> list[Outgoing]:
        """RFC 46: "If a consumer subscribes to a dafka topic it SHALL sent a GET-HEADS"."""
        self._topics[topic] = None
        return [GetHeads(topic, self.address)]

    def unsubscribe(self, topic: str) -> None:
        """Forgets the topic and its positions."""
        self._topics.pop(topic, None)
        for key in [key for key in self._catchups if key.topic == topic]:
            self._catchups.pop(key).close()
            self._missing.forget(key)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """The next record delivered of the partition is the one at ``offset``."""
        known = self._catchups.get(tp)
        catchup = PartitionFetcher(tp, offset, self._ahead)
        if known is not None:
            catchup.raise_head(known.head)
            known.close()
        self._catchups[tp] = catchup
        self._missing.postpone(catchup)

    def on_message(self, now: float, message: Message, peer: str) -> list[Outgoing]:
        """Takes HEAD, DIRECT-HEAD and STORE-HELLO."""
        match message:
            case Head() | DirectHead():
                catchup = self._catchup(message.tp, message.end)
                if catchup is not None:
                    catchup.raise_head(message.end)
                    if isinstance(message, DirectHead):
                        catchup.retry_unanswered()  # its sender heard us, and we hear it
                    return self._ask(now, catchup)
            case StoreHello() if self._topics:
                # RFC 46: without a subscription "it MUST NOT send a CONSUMER-HELLO command".
                return [ConsumerHello(message.store, self.address, tuple(self._topics))]
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes RECORDs of the topics, and DIRECT-RECORDs that were sent to this consumer."""
        # Only what comes live says where "latest" is: an answer may be to a question from before
        # an ``unsubscribe``.
        if not requestor:
            catchup = self._catchup(batch.tp, batch.offset)
        elif requestor == self.address and batch.topic in self._topics:
            catchup = self._catchups.get(batch.tp)
        else:
            catchup = None
        if catchup is None:
            return []
        if self.room:
            self.delivered.extend(catchup.take(now, batch))
        else:
            catchup.lose(batch)
        return self._ask(now, catchup)

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """A store that subscribes to our hello has not got one from us yet."""
        if kind is Fetch:
            self._missing.retry_unanswered(topic)
        if kind is ConsumerHello and topic and self._topics:
            return [ConsumerHello(topic, self.address, tuple(self._topics))]
        return []

    def on_peer_lost(self, peer: str) -> None:
        """Others have its records, or it comes back: nothing to forget."""

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks for what is missing, and now and then for the heads."""
        if not self.room:
            return []
        messages: list[Outgoing] = []
        if self._heads_due is not None and now >= self._heads_due:
            messages.extend(GetHeads(topic, self.address) for topic in self._topics)
        if self._topics and (self._heads_due is None or messages):
            self._heads_due = now + HEADS_INTERVAL_S
        return [*messages, *self._missing.ask_due(now, self.address)]

    def deadline(self, now: float) -> float | None:
        """When to ask again."""
        if not self.room:
            return None
        deadlines = (self._missing.deadline(), self._heads_due)
        return min((due for due in deadlines if due is not None), default=None)

    def _catchup(self, tp: TopicPartition, latest: int) -> PartitionFetcher | None:
        # Subscriptions match by prefix: a subscriber of "a" is sent "ab", too.
        if tp.topic not in self._topics:
            return None
        catchup = self._catchups.get(tp)
        if catchup is None and len(self._catchups) < MAX_PARTITIONS:
            match self._start:
                case "earliest":
                    offset = 0
                case "latest":
                    offset = latest
                case offsets:
                    offset = offsets.get(tp.topic, {}).get(tp.partition, 0)
            catchup = PartitionFetcher(tp, offset, self._ahead)
            self._catchups[tp] = catchup
        return catchup

    def _ask(self, now: float, catchup: PartitionFetcher) -> list[Outgoing]:
        if self.room:
            return [*self._missing.ask(now, self.address, catchup)]
        self._missing.postpone(catchup)
        return []
