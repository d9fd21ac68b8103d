"""The reader's role: asks stores for heads and times, and fetches ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from dafka_core.config.node_options import MAX_RECORD_BYTES
from dafka_core.errors import RecordTooLargeError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.histories import FollowedHistory
from dafka_core.protocol.partition_fetcher import PartitionFetcher, ReorderBudget
from dafka_core.protocol.partition_states import TURN
from dafka_core.protocol.record_limits import error_of
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import StoreDirectory


@dataclass(slots=True, eq=False)
class RangeRead:
    """One range of a partition: ``delivered`` fills until ``end`` is reached."""

    fetcher: PartitionFetcher
    end: int
    delivered: list[RecordBatch] = field(default_factory=list)
    history: FollowedHistory = field(default_factory=FollowedHistory)
    parted_at: int | None = None
    """Offset from which a newer history has replaced the delivered records."""
    room: bool = True  # set to False to pause; requested records still arrive
    failure: RecordTooLargeError | None = None  # reason why no records follow the delivered ones

    def take(self, now: float, batch: RecordBatch) -> None:
        """Deliver records if they are next, and of the history of those before."""
        if self.history.is_stale(batch) or self.parted_at is not None:
            return
        self.parted_at = self.history.parted_by(batch.epoch, self.fetcher.next_offset)
        if self.parted_at is None:
            taken, self.parted_at = self.history.take(self.fetcher.take(now, batch))
            self.delivered.extend(taken)


class ReaderRole:
    """Fetches several ranges at once."""

    def __init__(self, address: str, *, limit_bytes: int = MAX_RECORD_BYTES) -> None:
        self.address = address
        self._limit_bytes = limit_bytes
        self.directory = StoreDirectory(address)
        self.reorder_budget = ReorderBudget()
        self.reads: dict[TopicPartition, list[RangeRead]] = {}

    def subscriptions(self) -> list[bytes]:
        """Subscribe to messages addressed to this node."""
        kinds = (m.DirectRecord, m.DirectRecordBatch, m.RecordTooLarge)
        direct = [subscription(kind, self.address) for kind in kinds]
        return [*direct, *self.directory.subscriptions()]

    def read(self, tp: TopicPartition, start: int, end: int) -> RangeRead:
        """Start to fetch ``[start, end)``; the next tick sends the request."""
        read = RangeRead(PartitionFetcher(tp, start, self.reorder_budget), end)
        read.fetcher.raise_head(end)
        self.reads.setdefault(tp, []).append(read)
        return read

    def forget(self, read: RangeRead) -> None:
        """Drop a range that is complete or cancelled."""
        tp = read.fetcher.tp
        reads = self.reads.get(tp, [])
        if read in reads:
            reads.remove(read)
            read.fetcher.close()
        if not reads:
            self.reads.pop(tp, None)

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process greetings and answers."""
        match message:
            case m.StoreHello() | m.HeadsReply(query=m.UNSOLICITED):
                self._retry_unanswered()
            case m.RecordTooLarge(requestor=self.address):
                self._fail(message)
        return self.directory.on_message(now, message)

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process DIRECT-RECORDs addressed to this reader."""
        messages: list[Outgoing] = []
        if requestor != self.address:
            return messages
        for read in self.reads.get(batch.tp, ()):
            # Ranges may overlap, and C stores send one record more than requested.
            if batch.offset < read.end:
                part = batch.between(batch.offset, min(batch.end, read.end))
                read.take(now, part)
                messages.extend(self._ask(now, read))
        return messages

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Retry at a store that receives our messages only from now on."""
        if kind in (m.Fetch, m.ConsumerHello):
            self._retry_unanswered()
        return self.directory.on_subscribed(now, kind, topic)

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store."""
        self.directory.on_peer(now, news)

    def on_peer_lost(self, peer: str) -> None:
        """Stop waiting for a lost store."""
        self.directory.on_peer_lost(peer)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Request missing records."""
        messages = self.directory.on_tick(now)
        for read in self._all_reads():
            messages.extend(self._ask(now, read))
        return messages

    def deadline(self, now: float) -> float | None:
        """Return the time of the next request."""
        deadlines = [self.directory.deadline(now)]
        deadlines.extend(read.fetcher.deadline() for read in self._all_reads() if read.room)
        return min((due for due in deadlines if due is not None), default=None)

    def _fail(self, record: m.RecordTooLarge) -> None:
        for read in self.reads.get(record.tp, ()):
            is_next = read.fetcher.next_offset == record.sequence < read.end
            if is_next and record.size_bytes > self._limit_bytes:
                read.failure = error_of(record, self._limit_bytes, "this reader")

    def _all_reads(self) -> chain[RangeRead]:
        return chain.from_iterable(self.reads.values())

    def _retry_unanswered(self) -> None:
        for read in self._all_reads():
            read.fetcher.retry_unanswered()

    def _ask(self, now: float, read: RangeRead) -> list[Outgoing]:
        action = read.fetcher.action(TURN, now, read.room)
        offsets = read.fetcher.claim(now, action)
        return [m.Fetch.of(self.address, read.fetcher.tp, *offsets)] if offsets else []
