"""The roles of consumers and readers: each record once, in order per partition, none missing.

A record may be dropped on its way.  The consumer notices that from a later record, or from a HEAD,
DIRECT-HEAD or HEADS-REPLY: each of them raises the known end of its partition, the ``head``.
Everything from ``next_offset`` to ``head`` is missing, and ``FetchScheduler`` requests it until it
arrives.  If the last records are dropped, and the heads after them, the answer to GET-HEADS reveals
them, which the consumer sends every ``HEADS_INTERVAL_S``.  ``LossDetector`` finds the records that
no node has any more.

A reader asks stores for heads and times, and fetches ranges (``ReaderRole``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple

from dafka_core.config.node_options import FAIL, MAX_RECORD_BYTES, SKIP, WAIT
from dafka_core.model.epochs import NO_LIFE, last_life
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.fetch_scheduler import MAX_PARTITIONS, FetchScheduler
from dafka_core.protocol.partition_fetcher import Delivered, FollowedPartition, ReorderBudget
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import Question, StoreDirectory

Start = Literal["earliest", "latest"] | Mapping[str, Mapping[str, int]]

# With more partitions the interval grows, so that heads never dominate the load: this many keep a
# store and a consumer busy for about half a second.
HEADS_PER_INTERVAL: Final = 50_000


class Loss(NamedTuple):
    """Records ``[start, end)`` of a partition that no node has."""

    tp: TopicPartition
    start: int
    end: int
    available: int | None  # the earliest later record, if any
    why: str
    is_beginning: bool = False
    """The consumer begins at the earliest record, so it has lost none that it was to read."""


class ConsumerRole:
    """Follows the topics it is subscribed to."""

    def __init__(
        self,
        address: str,
        start: Start,
        on_data_loss: str = FAIL,
        *,
        limit_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.address = address
        # Batches, with an error in the place of each record above the consumer's limit, and one
        # where another history has replaced delivered records; drained by the node.
        self.delivered: list[Delivered] = []
        self.losses: list[Loss] = []  # records that no node has; drained by the node
        self.skipped: dict[TopicPartition, int] = {}  # the number of lost records skipped
        self.room = True  # while False, it neither delivers nor requests records
        self.partitions: dict[TopicPartition, FollowedPartition] = {}
        self.scheduler = FetchScheduler(address)
        self.directory = StoreDirectory(address)
        self._detector = LossDetector(self.directory, self.scheduler, self.partitions)
        self._limit_bytes = limit_bytes
        self._on_data_loss = on_data_loss
        self._start = start
        self.topics: dict[str, None] = {}  # in the order of their subscription
        self._heads_asked_at: float | None = None
        self._paused_at = inf  # without room since then

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the next offset and the known head (exclusive) of each partition."""
        return {tp: (each.next_offset, each.head) for tp, each in self.partitions.items()}

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
        self.topics[topic] = None
        return [m.GetHeads(topic, self.address)]

    def unsubscribe(self, topic: str) -> None:
        """Forget the topic and its positions."""
        self.topics.pop(topic, None)
        for tp in [tp for tp in self.partitions if tp.topic == topic]:
            self.partitions.pop(tp).close()
            self.scheduler.forget(tp)
            self.skipped.pop(tp, None)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Deliver the record at ``offset`` next."""
        known = self.partitions.get(tp)
        partition = FollowedPartition(tp, offset, self.scheduler.budget)
        if known is not None:
            partition.raise_head(known.head)
            known.close()
        self.partitions[tp] = partition
        self.scheduler.enqueue(partition)

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process HEAD, DIRECT-HEAD, STORE-HELLO, RECORD-TOO-LARGE and answers to queries."""
        known = self.directory.stores if isinstance(message, m.HeadsReply) else ()
        messages = [] if isinstance(message, m.Head) else self.directory.on_message(now, message)
        match message:
            case m.Head() | m.DirectHead():
                partition = self._partition(message.tp, message.end)
                if partition is not None:
                    # After the records of a replaced life, a retry would only bring them again.
                    direct = isinstance(message, m.DirectHead) and not partition.asks_history(now)
                    messages += self.scheduler.on_head(
                        now, partition, message.end, direct=direct, room=self.room
                    )
            case m.HeadsReply():
                messages += self._on_heads(now, message)
                if message.store not in known:  # its STORE-HELLO was lost
                    messages += self._hello(message.store)
            case m.StoreHello():
                messages += self._hello(message.store)
            case m.RecordTooLarge(requestor=self.address):
                partition = self.partitions.get(message.tp)
                if partition is not None and self.room:
                    self.delivered += partition.skip_too_large(
                        now, message, self._limit_bytes, "this consumer"
                    )
                    messages += self.scheduler.fetch(now, partition)
            case m.HistoryReply(requestor=self.address):
                partition = self.partitions.get(message.tp)
                if partition is not None and (changed := partition.on_history(message)):
                    self.delivered += changed
                    self.scheduler.enqueue(partition)
        return messages

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process RECORDs of the topics, and DIRECT-RECORDs to this consumer."""
        # Only a live record marks "latest": a direct one may answer a FETCH from before an
        # ``unsubscribe``.
        partition = None
        if not requestor:
            partition = self._partition(batch.tp, batch.offset)
        elif requestor == self.address and batch.tp.topic in self.topics:
            partition = self.partitions.get(batch.tp)
        if partition is None:
            return []
        if partition.is_stale(batch):
            # They belong to a replaced life; or the delivered ones do, and others have followed.
            return self._ask_history(now, partition) if requestor else []
        if self.room:
            self.delivered += partition.follow(now, batch)
        else:
            partition.give_back(batch)
        return self.scheduler.fetch(now, partition, self.room)

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Greet a store that subscribes to our hello, if it was the last to be introduced."""
        if kind is m.Fetch:
            self.scheduler.retry_unanswered(topic)
        messages = self.directory.on_subscribed(now, kind, topic)
        return messages + self._hello(topic) if kind is m.ConsumerHello and topic else messages

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store, or its loss."""
        self.directory.on_peer(now, news)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Request missing records, and the heads at an interval."""
        messages = self.directory.on_tick(now)
        if not self.room:
            self._paused_at = min(self._paused_at, now)
            return messages
        if self._paused_at < now:
            self.scheduler.extend_waits(now - self._paused_at)
        self._paused_at = inf
        due = self._heads_due()
        if now >= due:
            messages.extend(m.GetHeads(topic, self.address) for topic in self.topics)
        if due == inf or now >= due:
            self._heads_asked_at = now if self.topics else None
        for loss in self._detector.losses(now):
            self._lose(now, loss)
        return [*messages, *self.scheduler.fetch_due(now), *self._detector.ask(now)]

    def deadline(self, now: float) -> float:
        """Return the time of the next request."""
        if not self.room:
            return self.directory.deadline(now)
        return min(self.scheduler.deadline(), self._heads_due(), self.directory.deadline(now))

    def _heads_due(self) -> float:
        if self._heads_asked_at is None or not self.topics:
            return inf
        intervals = 1 + len(self.partitions) // HEADS_PER_INTERVAL
        return self._heads_asked_at + timing.HEADS_INTERVAL_S * intervals

    def _on_heads(self, now: float, reply: m.HeadsReply) -> list[Outgoing]:
        """Process many heads at once; most are unchanged.  The next tick requests records."""
        messages: list[Outgoing] = []
        for info in reply.entries:
            known = self.partitions.get(info.tp)
            if known is not None and info.end <= known.next_offset:
                if info.life > last_life(known.epochs) > NO_LIFE:
                    messages += self._ask_history(now, known)
            elif known is None or known.head < info.end:
                partition = self._partition(info.tp, info.end)
                if partition is not None:
                    self.scheduler.on_store_head(partition, info.end, reply.store)
        return messages

    def _ask_history(self, now: float, partition: FollowedPartition) -> list[Outgoing]:
        if partition.asks_history(now):
            return []
        partition.history_asked_at = now
        return [m.HistoryQuery(self.address, m.UNSOLICITED, *partition.tp)]

    def _lose(self, now: float, loss: Loss) -> None:
        """Skip lost records, or keep waiting, by option ``on_data_loss``."""
        partition = self.partitions[loss.tp]
        if loss.start != partition.next_offset:
            return  # it waits at an earlier gap
        self.losses.append(loss)
        # Never skip to a head alone: it may have been forged.
        skips = self._on_data_loss == SKIP and loss.available is not None
        if not (skips or loss.is_beginning):
            # With ``wait`` the loss is reported once; otherwise again as long as it lasts.
            partition.unanswered_since = inf if self._on_data_loss == WAIT else now
            return
        if not loss.is_beginning:
            self.skipped[loss.tp] = self.skipped.get(loss.tp, 0) + loss.end - loss.start
        self.delivered += partition.skip(loss.end)
        self.scheduler.enqueue(partition)

    def _hello(self, store: str) -> list[Outgoing]:
        # RFC 46: without a subscription "it MUST NOT send a CONSUMER-HELLO command".  Before
        # messages go both ways it, or the heads that answer it, would be lost.
        if not self.topics or not self.directory.is_connected(store):
            return []
        return [m.ConsumerHello(store, self.address, tuple(self.topics))]

    def _partition(self, tp: TopicPartition, latest: int) -> FollowedPartition | None:
        # ZeroMQ matches subscriptions by prefix: a subscriber of "a" receives "ab", too.
        if tp.topic not in self.topics:
            return None
        partition = self.partitions.get(tp)
        if partition is None and len(self.partitions) < MAX_PARTITIONS:
            offset = latest if self._start == "latest" else 0
            if isinstance(self._start, Mapping):
                offset = self._start.get(tp.topic, {}).get(tp.partition, 0)
            partition = FollowedPartition(tp, offset, self.scheduler.budget)
            partition.is_beginning = self._start == "earliest"
            self.partitions[tp] = partition
        return partition


@dataclass
class LossDetector:
    """Detects lost records: a consumer waits for them, no store has them, and no peer sends them.

    An unanswered FETCH proves nothing: it may be lost, or a store may be away for a moment.  So the
    detector asks all stores for their partitions (``StoreDirectory``), and declares records lost if
    each reachable store answers without them, and some time has passed.
    """

    directory: StoreDirectory
    scheduler: FetchScheduler
    partitions: Mapping[TopicPartition, FollowedPartition]

    def __post_init__(self) -> None:
        self._question: Question | None = None
        self._asked_at = self._due = -inf
        self._had_stores = False

    def ask(self, now: float) -> list[Outgoing]:
        """Ask the stores about missing records, at intervals."""
        if self._question is not None or now < self._due:
            return []
        waiting = self.scheduler.unanswered(now, timing.LOSS_CHECK_S)
        self._due = now + (timing.LOSS_QUESTION_S if waiting else timing.LOSS_CHECK_S)
        if not waiting:
            return []
        self._asked_at = now
        wanted = {each.tp: each.next_offset for each in waiting}
        topics = tuple(sorted({tp.topic for tp in wanted}))
        self._question, messages = self.directory.ask(now, m.HeadsQuery, topics, wanted=wanted)
        return messages

    def losses(self, now: float) -> Iterator[Loss]:
        """Yield losses proved by the stores' answers, or by the absence of stores.

        A partition's next record is lost if it has been requested in vain

        - for 5 s, and all known stores answered that they have only later ones;
        - for 60 s otherwise: a store is away, silent or late, or no store has later records.

        All gaps of a partition, in order: a consumer that waits at the first has no use for the
        others.  A loss is yielded again after its partition has waited as long again.
        """
        if bool(self.directory.stores) != self._had_stores:
            # The last store has gone, or the first one has returned: give it time to answer.
            self._had_stores, self._asked_at = not self._had_stores, now
        question = self._question
        # Without a tower, a store that does not answer may still exist.
        is_over = now >= self._asked_at + timing.ABSENT_STORE_S
        if question is None or not (question.answered or is_over):
            return
        self.directory.forget(question)
        self._question = None
        for tp, start in question.wanted.items():
            partition, first = self.partitions.get(tp), question.available.get(tp)
            if partition is None or partition.next_offset != start:
                continue  # unsubscribed, or advanced meanwhile
            is_answered = question.answered and not self.directory.lost
            is_sure = first is not None and is_answered and tp not in question.late
            wait_s = timing.LOSS_CHECK_S if is_sure else timing.ABSENT_STORE_S
            if partition.unanswered_s(now) >= wait_s:
                newest = question.heads[tp].life if first is not None else NO_LIFE
                partition.is_orphan = NO_LIFE < newest < last_life(partition.epochs)
                yield from self._gaps(partition, first)

    def _gaps(self, partition: FollowedPartition, first: int | None) -> Iterator[Loss]:
        """Yield the gaps before the kept records, and before ``first``.

        ``first`` is the first offset, from the next one on, that any store has; None if no store
        has one.  If it is the next one, no gap is yielded: the record will arrive.  Without kept
        records and ``first``, the gap lasts up to the head.
        """
        tp, start = partition.tp, partition.next_offset
        there = [(batch.offset, batch.end) for batch in partition.kept]
        why = "no store has them, and the node that had them is gone"
        if first is not None:
            why = "the stores have trimmed them"
            there = [*(each for each in there if each[0] < first), (first, first)]
        elif not self.directory.stores:
            why = "no store is reachable, and the node that had them is gone"
        if not there:
            yield Loss(tp, start, partition.head, None, why)
        for begin, end in there:
            if begin > start:
                is_beginning = partition.is_beginning and start == 0 and first is not None
                yield Loss(tp, start, begin, begin, why, is_beginning)
            start = max(start, end)


# -- the reader ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RangeRead(FollowedPartition):
    """One range of a partition: its records are ``delivered`` until ``end``, or until an error."""

    end: int = 0
    delivered: list[Delivered] = field(default_factory=list)
    room: bool = True  # set to False to pause; requested records still arrive


class ReaderRole:
    """Fetches several ranges at once."""

    def __init__(self, address: str, *, limit_bytes: int = MAX_RECORD_BYTES) -> None:
        self.address = address
        self.directory = StoreDirectory(address)
        self.reorder_budget = ReorderBudget()
        self.reads: list[RangeRead] = []
        self._limit_bytes = limit_bytes

    def subscriptions(self) -> list[bytes]:
        """Subscribe to messages addressed to this node."""
        kinds = (m.DirectRecord, m.DirectRecordBatch, m.RecordTooLarge)
        direct = [subscription(kind, self.address) for kind in kinds]
        return [*direct, *self.directory.subscriptions()]

    def read(self, tp: TopicPartition, start: int, end: int) -> RangeRead:
        """Start to fetch ``[start, end)``; the next tick sends the request."""
        read = RangeRead(tp, start, self.reorder_budget, head=end, end=end)
        self.reads.append(read)
        return read

    def forget(self, read: RangeRead) -> None:
        """Drop a range that is complete or cancelled."""
        self.reads.remove(read)
        read.close()

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process greetings and answers."""
        match message:
            case m.StoreHello() | m.HeadsReply(query=m.UNSOLICITED):
                self._retry_unanswered()
            case m.RecordTooLarge(requestor=self.address):
                for read in self.reads:
                    if read.tp == message.tp and read.next_offset < read.end:
                        read.delivered += read.skip_too_large(
                            now, message, self._limit_bytes, "this reader"
                        )
        return self.directory.on_message(now, message)

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process DIRECT-RECORDs addressed to this reader."""
        messages: list[Outgoing] = []
        for read in self.reads if requestor == self.address else ():
            # Ranges may overlap, and C stores send one record more than requested.
            if read.tp == batch.tp and batch.offset < read.end:
                part = batch.between(batch.offset, min(batch.end, read.end))
                if not read.is_stale(part):
                    read.delivered += read.follow(now, part)
                messages += self._ask(now, read)
        return messages

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Retry at a store that receives our messages only from now on."""
        if kind in (m.Fetch, m.ConsumerHello):
            self._retry_unanswered()
        return self.directory.on_subscribed(now, kind, topic)

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store, or its loss."""
        self.directory.on_peer(now, news)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Request missing records."""
        messages = self.directory.on_tick(now)
        for read in self.reads:
            messages += self._ask(now, read)
        return messages

    def deadline(self, now: float) -> float:
        """Return the time of the next request."""
        deadlines = (read.deadline() for read in self.reads if read.room)
        return min(self.directory.deadline(now), *deadlines, inf)

    def _retry_unanswered(self) -> None:
        for read in self.reads:
            read.retry_unanswered()

    def _ask(self, now: float, read: RangeRead) -> list[Outgoing]:
        offsets = read.claim(now, read.state(now, read.room))
        return [m.Fetch.of(self.address, read.tp, *offsets)] if offsets else []
