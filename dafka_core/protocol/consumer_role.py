"""The consumer's role: each record of its topics once, in order per partition, none missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, Literal

from dafka_core.config.node_options import FAIL, MAX_RECORD_BYTES, SKIP, WAIT
from dafka_core.errors import CHANGED, HistoryChangedError, RecordTooLargeError
from dafka_core.model.epochs import NO_LIFE, last_life, parting
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.fetch_scheduler import MAX_PARTITIONS, FetchScheduler
from dafka_core.protocol.histories import FollowedHistory
from dafka_core.protocol.loss_detector import TRIMMED, Loss, LossDetector
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.partition_states import RECORDS, TAKE
from dafka_core.protocol.record_limits import error_of
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import StoreDirectory

Start = Literal["earliest", "latest"] | Mapping[str, Mapping[str, int]]

# With more partitions the interval grows, so that heads never dominate the load: this many keep a
# store and a consumer busy for about half a second.
HEADS_PER_INTERVAL: Final = 50_000


class ConsumerRole:
    """Follows the topics it is subscribed to.

    A consumer learns that it has missed a record from a later record, a HEAD or a HEADS-REPLY:
    each raises the known end of the partition in its ``PartitionFetcher``, and ``FetchScheduler``
    requests what is missing.  ``LossDetector`` reports records that no node has.

    Attributes:
        delivered: batches, with an error in the place of each record above the consumer's limit,
            and one where another history has replaced delivered records; drained by the node.
        losses: records that no node has; drained by the node.
        skipped: the number of these that were skipped.
        room: while False, the consumer neither delivers nor requests records.
    """

    def __init__(
        self,
        address: str,
        start: Start,
        on_data_loss: str = FAIL,
        *,
        limit_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.address = address
        self.delivered: list[RecordBatch | RecordTooLargeError | HistoryChangedError] = []
        self.losses: list[Loss] = []
        self.skipped: dict[TopicPartition, int] = {}
        self._limit_bytes = limit_bytes
        self.room = True
        self.fetchers: dict[TopicPartition, PartitionFetcher] = {}
        self.scheduler = FetchScheduler(address)
        self.directory = StoreDirectory(address)
        self._histories = defaultdict[TopicPartition, FollowedHistory](FollowedHistory)
        self._detector = LossDetector(self.directory, self.scheduler)
        self._on_data_loss = on_data_loss
        self._start = start
        self._beginning: set[TopicPartition] = set()  # wait for their earliest record
        self._topics: dict[str, None] = {}
        self._heads_asked_at: float | None = None

    @property
    def topics(self) -> list[str]:
        """Return the subscribed topics, in the order of their subscription."""
        return list(self._topics)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the next offset and the known head (exclusive) of each partition."""
        return {tp: (each.next_offset, each.head) for tp, each in self.fetchers.items()}

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Consumer Subscriptions: those to the consumer's own address."""
        kinds = (m.DirectRecord, m.DirectRecordBatch, m.DirectRecordBatches, m.RecordTooLarge)
        direct = [subscription(kind, self.address) for kind in kinds]
        return [*direct, *self.directory.subscriptions()]

    def topic_subscriptions(self, topic: str) -> list[bytes]:
        """RFC 46, Consumer Subscriptions: those to a topic."""
        kinds = (m.RecordMessage, m.RecordBatchMessage, m.Head)
        return [subscription(kind, topic) for kind in kinds]

    def subscribe(self, topic: str) -> list[Outgoing]:
        """RFC 46: "If a consumer subscribes to a dafka topic it SHALL sent a GET-HEADS"."""
        self._topics[topic] = None
        return [m.GetHeads(topic, self.address)]

    def unsubscribe(self, topic: str) -> None:
        """Forget the topic and its positions."""
        self._topics.pop(topic, None)
        for tp in [tp for tp in self.fetchers if tp.topic == topic]:
            self.fetchers.pop(tp).close()
            self.scheduler.forget(tp)
            self.skipped.pop(tp, None)
            self._histories.pop(tp, None)
            self._beginning.discard(tp)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Deliver the record at ``offset`` next."""
        fetcher = self.fetchers.setdefault(tp, self.scheduler.fetcher(tp, offset))
        fetcher.begin(offset)
        self._beginning.discard(tp)
        self._histories.pop(tp, None)
        self.scheduler.visit_soon(fetcher)

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process HEAD, DIRECT-HEAD, STORE-HELLO, RECORD-TOO-LARGE and answers to queries."""
        known = self.directory.stores if isinstance(message, m.HeadsReply) else []
        messages = [] if isinstance(message, m.Head) else self.directory.on_message(now, message)
        match message:
            case m.Head() | m.DirectHead():
                fetcher = self._fetcher(message.tp, message.end)
                if fetcher is not None:
                    direct = isinstance(message, m.DirectHead)
                    messages += self.scheduler.on_head(
                        now, fetcher, message.end, direct=direct, room=self.room
                    )
            case m.HeadsReply():
                messages += self._on_heads(now, message)
                if message.store not in known:  # its STORE-HELLO was lost
                    messages += self._hello(message.store)
            case m.StoreHello():
                messages += self._hello(message.store)
            case m.RecordTooLarge(requestor=self.address):
                messages += self._skip_too_large(now, message)
            case m.HistoryReply(requestor=self.address):
                self._on_history(message)
        return messages

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process RECORDs of the topics, and DIRECT-RECORDs to this consumer."""
        # Only a live record marks "latest": a direct one may answer a FETCH from before an
        # ``unsubscribe``.
        fetcher = None
        if not requestor:
            fetcher = self._fetcher(batch.tp, batch.offset)
        elif requestor == self.address and batch.tp.topic in self._topics:
            fetcher = self.fetchers.get(batch.tp)
        if fetcher is None:
            return []
        history, position = self._histories[batch.tp], fetcher.next_offset
        if history.is_stale(batch):
            # They belong to a replaced life; or the delivered ones do, and others have followed.
            return self._ask_history(now, batch.tp) if requestor else []
        start = history.parted_by(batch.epoch, position)
        if start is not None:
            self._rewind(fetcher, start, position, batch.end)
        elif fetcher.action(RECORDS, now, self.room) == TAKE:
            self._deliver(fetcher, fetcher.take(now, batch), position)
        else:
            fetcher.give_back(batch)
        return self.scheduler.ask(now, fetcher, self.room)

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Greet a store that subscribes to our hello, if it was the last to be introduced."""
        if kind is m.Fetch:
            self.scheduler.retry_unanswered(topic)
        messages = self.directory.on_subscribed(now, kind, topic)
        return messages + self._hello(topic) if kind is m.ConsumerHello and topic else messages

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store."""
        self.directory.on_peer(now, news)

    def on_peer_lost(self, peer: str) -> None:
        """Keep everything: other peers have its records, or it returns."""
        self.directory.on_peer_lost(peer)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Request missing records, and the heads at an interval."""
        if not self.room:
            return []
        messages: list[Outgoing] = []
        due = self._heads_due()
        if due is not None and now >= due:
            messages.extend(m.GetHeads(topic, self.address) for topic in self._topics)
        if due is None or messages:
            self._heads_asked_at = now if self._topics else None
        messages += self.directory.on_tick(now)
        for loss in self._detector.losses(now, self.fetchers):
            self._lose(now, loss)
        return [*messages, *self.scheduler.ask_due(now), *self._detector.ask(now)]

    def deadline(self, now: float) -> float | None:
        """Return the time of the next request."""
        if not self.room:
            return None
        deadlines = (self.scheduler.deadline(), self._heads_due(), self.directory.deadline(now))
        return min((due for due in deadlines if due is not None), default=None)

    def _skip_too_large(self, now: float, record: m.RecordTooLarge) -> list[Outgoing]:
        fetcher, limit_bytes = self.fetchers.get(record.tp), self._limit_bytes
        # For a smaller record the report is wrong: another node may still send it.
        if fetcher is None or record.size_bytes <= limit_bytes:
            return []
        is_next = fetcher.next_offset == record.sequence
        if is_next and fetcher.action(RECORDS, now, self.room) == TAKE:
            fetcher.raise_head(record.sequence + 1)
            self.delivered.append(error_of(record, limit_bytes, "this consumer"))
            self._histories[record.tp].skip_from(record.sequence)
            self._deliver(fetcher, fetcher.advance(record.sequence + 1, now), record.sequence + 1)
        return self.scheduler.ask(now, fetcher, self.room)

    def _heads_due(self) -> float | None:
        if self._heads_asked_at is None or not self._topics:
            return None
        intervals = 1 + len(self.fetchers) // HEADS_PER_INTERVAL
        return self._heads_asked_at + timing.HEADS_INTERVAL_S * intervals

    def _on_heads(self, now: float, reply: m.HeadsReply) -> list[Outgoing]:
        """Process many heads at once; most are unchanged.  The next tick requests records."""
        messages: list[Outgoing] = []
        for info in reply.entries:
            tp = info.tp
            known = self.fetchers.get(tp)
            if known is not None and info.end <= known.next_offset:
                if info.life > last_life(self._histories[tp].epochs) > NO_LIFE:
                    messages += self._ask_history(now, tp)
            elif known is None or known.head < info.end:
                fetcher = self._fetcher(tp, info.end)
                if fetcher is not None:
                    self.scheduler.on_held(fetcher, info.end, reply.store)
        return messages

    def _ask_history(self, now: float, tp: TopicPartition) -> list[Outgoing]:
        history = self._histories[tp]
        if now < history.asked_s + timing.HISTORY_INTERVAL_S:
            return []
        history.asked_s = now
        return [m.HistoryQuery(self.address, m.UNSOLICITED, *tp)]

    def _on_history(self, reply: m.HistoryReply) -> None:
        """Apply a store's history if it is newer than that of the delivered records."""
        fetcher = self.fetchers.get(reply.tp)
        if fetcher is None:  # a reply without a question
            return
        followed, position = self._histories[reply.tp], fetcher.next_offset
        if last_life(reply.history) <= last_life(followed.epochs):
            return
        start = parting(followed.epochs, reply.history)
        if start is not None and start < followed.read_to(position):
            self._rewind(fetcher, start, position, reply.end)

    def _deliver(
        self, fetcher: PartitionFetcher, taken: Sequence[RecordBatch], position: int
    ) -> None:
        """Deliver the next records, from ``position`` on, unless their history differs."""
        followed, start = self._histories[fetcher.tp].take(taken)
        self.delivered.extend(followed)
        if start is not None:
            position = followed[-1].end if followed else position
            self._rewind(fetcher, start, position, taken[-1].end)

    def _rewind(self, fetcher: PartitionFetcher, start: int, position: int, end: int) -> None:
        """Another history of the partition has won, which is known to reach ``end``."""
        error = HistoryChangedError(*fetcher.tp, start, start, CHANGED, position)
        self.delivered.append(error)
        self._histories[fetcher.tp].rewind(start)
        self._beginning.discard(fetcher.tp)
        fetcher.head = start
        fetcher.begin(start)
        fetcher.raise_head(end)
        self.scheduler.visit_soon(fetcher)

    def _lose(self, now: float, loss: Loss) -> None:
        """Skip lost records, or keep waiting, by option ``on_data_loss``."""
        fetcher = self.fetchers[loss.tp]
        if loss.start != fetcher.next_offset:
            return  # it waits at an earlier gap
        begins = loss.tp in self._beginning and loss.start == 0 and loss.why == TRIMMED
        self.losses.append(loss._replace(is_beginning=begins))
        # Never skip to a head alone: it may have been forged.
        if begins or (self._on_data_loss == SKIP and loss.available is not None):
            if not begins:
                self.skipped[loss.tp] = self.skipped.get(loss.tp, 0) + loss.end - loss.start
            self._beginning.discard(loss.tp)
            self._histories[loss.tp].skip_from(loss.start)
            self._deliver(fetcher, fetcher.advance(loss.end), loss.end)
            self.scheduler.visit_soon(fetcher)
        else:
            # With ``wait`` the loss is reported once; otherwise again as long as it lasts.
            fetcher.unanswered_since = inf if self._on_data_loss == WAIT else now

    def _hello(self, store: str) -> list[Outgoing]:
        # RFC 46: without a subscription "it MUST NOT send a CONSUMER-HELLO command".  Before
        # messages go both ways it, or the heads that answer it, would be lost.
        if not self._topics or not self.directory.is_connected(store):
            return []
        return [m.ConsumerHello(store, self.address, tuple(self._topics))]

    def _fetcher(self, tp: TopicPartition, latest: int) -> PartitionFetcher | None:
        # ZeroMQ matches subscriptions by prefix: a subscriber of "a" receives "ab", too.
        if tp.topic not in self._topics:
            return None
        fetcher = self.fetchers.get(tp)
        if fetcher is None and len(self.fetchers) < MAX_PARTITIONS:
            match self._start:
                case "earliest":
                    offset = 0
                    self._beginning.add(tp)
                case "latest":
                    offset = latest
                case offsets:
                    offset = offsets.get(tp.topic, {}).get(tp.partition, 0)
            fetcher = self.fetchers[tp] = self.scheduler.fetcher(tp, offset)
        return fetcher
