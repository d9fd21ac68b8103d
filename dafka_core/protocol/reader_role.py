"""The reader's role: asks stores for heads and times, and fetches ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from dafka_core.config.node_options import MAX_RECORD_BYTES
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.partition_fetcher import Delivered, FollowedPartition, ReorderBudget
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import StoreDirectory


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
