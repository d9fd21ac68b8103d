"""The producer's role: publish, keep until acknowledged, answer who missed something.

RFC 46: "A producer MUST NOT delete send records before receiving at least one ACK command."
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import MAX_ANSWER_BYTES
from dafka_core.protocol.messages import (
    Ack,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    Fetch,
    GetHeads,
    Head,
    Message,
    RecordBatchMessage,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_directory import StoreDirectory
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.values import Values

MAX_ACKING_STORES: Final = 1_000
"""Stores told apart by their acknowledgements.  A name costs memory and peers choose it."""

HURRY_INTERVAL_S: Final = 0.2
"""The interval of HEAD while somebody waits in ``flush``: a HEAD makes stores acknowledge again,
so a lost acknowledgement costs this long."""

HURRIES_PER_FETCH: Final = 5
"""C stores acknowledge nothing twice.  After so many HEADs in a hurry without an
acknowledgement the last record is fetched: who has it has all, and has not been heard."""


class ProducerRole:
    """One partition's only writer."""

    def __init__(
        self, tp: TopicPartition, *, acks: int, head_interval_s: float, resume: bool = False
    ) -> None:
        self.tp = tp
        self.topic, self.address = tp
        self.directory = StoreDirectory(tp.partition) if resume else None
        """Where to ask how far the partition has come in an earlier life."""
        self.next_offset = 0
        self.durable = 0
        """``acks`` stores have everything before this offset on disk."""
        self.hurry = False
        """Somebody waits for the acknowledgements."""
        self._acks = acks
        self._hurries = 0  # HEADs in a hurry since the last acknowledgement
        self._head_interval_s = head_interval_s
        self._head_due = 0.0
        self._acked: dict[str, int] = {}
        self._beyond: dict[str, int] = {}
        """Stores that have more than is published, and up to where: see ``_on_ack``."""
        self._retained: list[RecordBatch] = []
        self._offsets: list[int] = []  # of the retained runs, to find one

    @property
    def unacknowledged(self) -> int:
        """How many records wait for their acknowledgement."""
        return self.next_offset - self.durable

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Producer Subscriptions; and GET-HEADS, which C producers never hear."""
        return [
            subscription(Ack, self.address),
            subscription(Fetch, self.address),
            subscription(DirectRecord, self.address),
            subscription(DirectRecordBatch, self.address),
            subscription(GetHeads, self.topic),
            *(self.directory.subscriptions() if self.directory else ()),
        ]

    def resume_at(self, offset: int) -> None:
        """Goes on where an earlier life of this producer has ended: the stores have all of it."""
        assert not self._retained
        self.next_offset = self.durable = offset
        self.directory = None

    def publish(self, now: float, values: Values) -> list[Outgoing]:
        """Appends records to the partition."""
        batch = RecordBatch(self.tp, self.next_offset, values)
        if not self._head_due:
            self._head_due = now + self._head_interval_s
        self.next_offset = batch.end
        self._retained.append(batch)
        self._offsets.append(batch.offset)
        return [OutgoingBatch(batch)]

    def on_message(self, now: float, message: Message, peer: str) -> list[Outgoing]:
        """Takes ACK, FETCH and GET-HEADS."""
        match message:
            case Ack(partition=self.address, topic=self.topic):
                self._on_ack(message.store or peer, message.end)
            case Fetch(partition=self.address, topic=self.topic):
                return self._answer(message)
            case GetHeads(topic=self.topic) if self.durable:
                # Not what is published: whoever asks takes it for what can be had from now on,
                # also when this producer is gone. What is beyond it is told by HEADs.
                return [DirectHead(message.requestor, self.topic, self.address, self.durable - 1)]
            case _ if self.directory is not None:
                return self.directory.on_message(now, message)
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes its own last record, from a store that was asked for it."""
        own = (requestor, batch.tp) == (self.address, self.tp)
        # Only if it is this record, and not one that an earlier life has left at its offset.
        if own and batch.values[-1] == self._retained_value(batch.end - 1):
            beyond, self._beyond = self._beyond, {}
            for store, end in beyond.items():
                self._on_ack(store, min(end, batch.end))
            # Which store has sent it is not known, so by itself it counts where any one will do.
            if self._acks == 1:
                self._on_ack("", batch.end)
        return []

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """A new subscriber may have missed records: tell it at once where we are."""
        if self.directory is not None:
            return self.directory.on_subscribed(now, kind, topic)
        # Not a C node, which may not be heard yet: it asks once for its first records, and
        # stops for ever when that is lost. It gets the HEAD that is due next.
        if kind is RecordBatchMessage and self.topic.startswith(topic):
            return self._head()
        return []

    def on_peer_lost(self, peer: str) -> None:
        """What a lost store has acknowledged stays acknowledged: it is on its disk."""
        if self.directory is not None:
            self.directory.on_peer_lost(peer)

    def on_tick(self, now: float) -> list[Outgoing]:
        """RFC 46: HEAD "at regular a interval" after the first record."""
        if self.directory is not None:
            return self.directory.on_tick(now)
        if not self.next_offset:
            return []
        interval_s = self._head_interval_s
        hurry = self.hurry = self.hurry and self.unacknowledged > 0
        if hurry:
            interval_s = min(interval_s, HURRY_INTERVAL_S)
        if now < self._head_due:
            self._head_due = min(self._head_due, now + interval_s)
            return []
        self._head_due = now + interval_s
        self._hurries = self._hurries + 1 if hurry else 0
        doubtful = bool(self._beyond) and self.unacknowledged > 0
        if self._hurries < HURRIES_PER_FETCH and not doubtful:
            return self._head()
        self._hurries = 0
        fetch = Fetch(self.address, self.address, self.topic, self.next_offset - 1, 1)
        return [*self._head(), fetch]

    def deadline(self, now: float) -> float | None:
        """When the next HEAD is due."""
        if self.directory is not None:
            return self.directory.deadline(now)
        return self._head_due if self.next_offset else None

    def _head(self) -> list[Outgoing]:
        if not self.next_offset:
            return []
        return [Head(self.topic, self.address, self.next_offset - 1)]

    def _on_ack(self, store: str, end: int) -> None:
        if end > self.next_offset:
            # Forged, or of an earlier life: the store was away when this one asked where to go on.
            # It says nothing less from now on, so to wait until as much is published would be to
            # wait for ever where there is no room for it. Nor does it count, as other records may
            # be at these offsets: with the next HEAD the last one is fetched, and compared.
            if store in self._beyond or len(self._beyond) < MAX_ACKING_STORES:
                self._beyond[store] = end
            return
        self._beyond.pop(store, None)
        if store not in self._acked and len(self._acked) >= MAX_ACKING_STORES:
            return
        self._acked[store] = max(end, self._acked.get(store, 0))
        ends = sorted(self._acked.values(), reverse=True)
        if len(ends) < self._acks or ends[self._acks - 1] <= self.durable:
            return
        self.durable = ends[self._acks - 1]
        self._hurries = 0
        keep_from = bisect_right(self._offsets, self.durable) - 1
        if keep_from >= 0 and self._retained[keep_from].end <= self.durable:
            keep_from += 1
        if keep_from > 0:
            del self._retained[:keep_from]
            del self._offsets[:keep_from]

    def _retained_value(self, offset: int) -> bytes | None:
        index = bisect_right(self._offsets, offset) - 1
        if index < 0 or offset >= self._retained[index].end:
            return None
        batch = self._retained[index]
        return batch.values[offset - batch.offset]

    def _answer(self, fetch: Fetch) -> list[Outgoing]:
        """RFC 46: records "SHALL be send according to their offset in ascending order"."""
        answer: list[Outgoing] = []
        size_bytes = 0
        index = max(bisect_right(self._offsets, fetch.sequence) - 1, 0)
        # Not before what was asked for: a requestor can do nothing with what follows a gap.
        if not self._retained or self._retained[index].offset > fetch.sequence:
            return []
        for batch in self._retained[index:]:
            if batch.offset >= fetch.end or size_bytes >= MAX_ANSWER_BYTES:
                break
            start = max(batch.offset, fetch.sequence)
            stop = min(batch.end, fetch.end)
            if start >= stop:
                continue
            room_bytes = MAX_ANSWER_BYTES - size_bytes
            part = next(batch.between(start, stop).split(stop - start, room_bytes))
            size_bytes += part.values.size_bytes
            answer.append(OutgoingBatch(part, fetch.requestor))
            if part.end < stop:
                break
        return answer
