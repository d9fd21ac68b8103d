"""The reader's role: asks stores for heads and times, and fetches ranges; follows no topic."""

from __future__ import annotations

from dataclasses import dataclass, field

from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    ConsumerHello,
    DirectRecord,
    DirectRecordBatch,
    Fetch,
    HeadsReply,
    Message,
    StoreHello,
)
from dafka_core.protocol.partition_fetcher import PartitionFetcher, ReorderBudget
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreDirectory
from dafka_core.records import RecordBatch, TopicPartition


@dataclass(slots=True, eq=False)
class RangeRead:
    """One range of a partition on its way: ``delivered`` fills until ``end`` is reached."""

    catchup: PartitionFetcher
    end: int
    delivered: list[RecordBatch] = field(default_factory=list)
    room: bool = True
    """Whether to ask for more; what has been asked for is taken in any case."""

    @property
    def complete(self) -> bool:
        """Whether everything has been delivered."""
        return self.catchup.next_offset >= self.end


class ReaderRole:
    """Fetches what it is asked for, several ranges at once."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.directory = StoreDirectory(address)
        self._ahead = ReorderBudget()
        self._reads: dict[TopicPartition, list[RangeRead]] = {}

    def subscriptions(self) -> list[bytes]:
        """What is sent to this node alone."""
        kinds = (DirectRecord, DirectRecordBatch)
        direct = [subscription(kind, self.address) for kind in kinds]
        return [*direct, *self.directory.subscriptions()]

    def read(self, tp: TopicPartition, start: int, end: int) -> RangeRead:
        """Begins to fetch ``[start, end)``; the next tick asks."""
        read = RangeRead(PartitionFetcher(tp, start, self._ahead), end)
        read.catchup.raise_head(end)
        self._reads.setdefault(tp, []).append(read)
        return read

    def forget(self, read: RangeRead) -> None:
        """The range is complete, or of no interest any more."""
        key = read.catchup.tp
        reads = self._reads.get(key, [])
        if read in reads:
            reads.remove(read)
            read.catchup.close()
        if not reads:
            self._reads.pop(key, None)

    def on_message(self, now: float, message: Message, peer: str) -> list[Outgoing]:
        """Takes greetings and answers."""
        match message:
            case StoreHello() | HeadsReply(query=0):
                self._heard_anew()
        return self.directory.on_message(now, message)

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes DIRECT-RECORDs that were sent to this reader."""
        messages: list[Outgoing] = []
        if requestor != self.address:
            return messages
        for read in self._reads.get(batch.tp, ()):
            # A range ends within what others read, and stores may send more than was asked for.
            if batch.offset >= read.end:
                continue
            part = batch.between(batch.offset, min(batch.end, read.end))
            read.delivered.extend(read.catchup.take(now, part))
            messages.extend(self._ask(now, read))
        return messages

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """A store that hears us now may have missed what was asked before."""
        if kind in (Fetch, ConsumerHello):
            self._heard_anew()
        return self.directory.on_subscribed(now, kind, topic)

    def on_peer_lost(self, peer: str) -> None:
        """A store that is gone is not waited for."""
        self.directory.on_peer_lost(peer)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks for what is missing."""
        messages = self.directory.on_tick(now)
        for reads in self._reads.values():
            for read in reads:
                messages.extend(self._ask(now, read))
        return messages

    def deadline(self, now: float) -> float | None:
        """When to ask again."""
        deadlines = [self.directory.deadline(now)]
        for reads in self._reads.values():
            deadlines.extend(read.catchup.deadline() for read in reads if read.room)
        return min((d for d in deadlines if d is not None), default=None)

    def _heard_anew(self) -> None:
        for reads in self._reads.values():
            for read in reads:
                read.catchup.retry_unanswered()

    def _ask(self, now: float, read: RangeRead) -> list[Outgoing]:
        if read.complete or not read.room:
            return []
        fetch = read.catchup.ask(now, self.address)
        return [fetch] if fetch is not None else []
