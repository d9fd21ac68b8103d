"""The producer's role: publishes, keeps until acknowledged, answers FETCHes.

RFC 46: "A producer MUST NOT delete send records before receiving at least one ACK command."
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from dafka_core.model.epochs import (
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    digest,
    last_life,
    parting,
    with_epoch,
)
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import PartitionLives, RecordBatch, TopicPartition
from dafka_core.model.timestamps import stamped_once
from dafka_core.model.values import Values
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.histories import TOLD
from dafka_core.protocol.limits import MAX_ANSWER_BYTES
from dafka_core.protocol.messages import HistoryReply
from dafka_core.protocol.role import Outgoing, OutgoingBatch, PeerNews
from dafka_core.protocol.store_directory import StoreDirectory, StoreQuery

# How a producer goes on with a partition that an earlier one has written.
#
# It asks the stores for their histories, draws a life newer than all it hears of, and has them
# promise that they acknowledge nothing more to older ones (``histories.py``).  Then it goes on from
# the newest history among their answers.


ROUNDS: Final = 3
"""How often C stores are asked how far the partition goes.  If a lost answer were taken for "no
such partition", the producer would begin it anew, over the records that it has."""

LEAST_NUMBER: Final = 2
"""1 is that of a partition's first life, for which no store has promised anything."""

MAX_EPOCH_ACKS: Final = 255
"""What an epoch has room for.  A life that asked for more counts as one that asked for so many."""

Replies = Mapping[str, HistoryReply]
"""Stores' answers by their addresses."""


_Ask = Callable[[float], tuple[StoreQuery, list[Outgoing]]]


class Missing(NamedTuple):
    """Too few stores have answered: ``needed``, and of those known ``stores`` are missing."""

    needed: int
    stores: tuple[str, ...]


def new_life(number: int, life_id: int, acks: int) -> EpochId:
    """A life with what it asks of stores."""
    return EpochId(number, life_id, min(acks, MAX_EPOCH_ACKS))


def newest_life(replies: Replies) -> EpochId:
    """The newest that the stores know of."""
    lives = (PartitionLives(0, each.history, each.promised).newest for each in replies.values())
    return max(lives, default=NO_LIFE)


def missing(
    replies: Replies, others: Iterable[str], acks: int, known: Collection[str] = ()
) -> Missing | None:
    """Whether too few of the stores there are have answered, with a promise.

    ``others`` are C stores that have told how far the partition goes.  Any record that a life has
    acknowledged lies on as many stores as its acks: so many less one may be missing.  The records
    may be of the newest life that has some at these stores, or of any that they have promised
    something since.  A life with fewer acks must be known to as many stores as those of before,
    too, so that a later one that counts on the old number hears of it.
    """
    answered = {*replies, *others}
    stores = {*known, *answered}
    for reply in replies.values():
        stores.update(reply.stores)
    newest = max((last_life(each.history) for each in replies.values()), default=NO_LIFE)
    before = max(newest.acks, 1)
    least = min([before, *(each.promised.acks for each in replies.values())])
    needed = max(len(stores) - max(least, 1) + 1, 1)  # also where all have gone meanwhile
    if acks < before:
        needed = max(needed, before)
    if len(answered) >= needed:
        return None
    return Missing(needed, tuple(sorted(stores - answered)))


def promised(replies: Replies, life: EpochId) -> dict[str, HistoryReply]:
    """The answers of the stores that have promised it to this life."""
    return {store: each for store, each in replies.items() if each.promised[:2] == life[:2]}


def goes_on(replies: Replies, life: EpochId, least: int) -> History:
    """The newest history, going on with an epoch of ``life``; that begins at ``least`` there.

    ``least`` is how far C stores have the partition.  Nobody can tell whose their records are, nor
    those of a store that has them from C nodes.
    """
    unnamed = (each.end for each in replies.values() if not each.history)
    least = max(least, *unnamed, 0)
    best = max(replies.values(), key=_newness, default=None)
    if best is None:
        return (Epoch(*life, least, 0),)
    start = max(best.end, least)
    return with_epoch(best.history, Epoch(*life, start, digest(best.history)))


def _newness(reply: HistoryReply) -> tuple[EpochId, int]:
    return last_life(reply.history), reply.end


class Takeover:
    """Asks until there is a ``history``, whose last epoch is the producer's.

    ``has_deletions`` says whether topics were ever deleted here, of which stores have notes.
    ``lack`` says which stores it still waits for, if that is what it does; with
    ``ignore_missing`` it goes on without them.  A life's number is ``least_number`` at least, the
    time in seconds: stores that have forgotten the lives of before, consumers have not.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        tp: TopicPartition,
        *,
        life_id: int,
        acks: int,
        least_number: int,
        ignore_missing: bool,
    ) -> None:
        self.history: History = ()
        self.lack: Missing | None = None
        self.has_deletions = False
        self._directory = directory
        self._tp = tp
        self._life_id = life_id
        self._acks = acks
        self._least_number = least_number
        self._ignore_missing = ignore_missing
        self._question: StoreQuery | None = None
        self._due = 0.0
        self._steps = self._run()
        self._next: _Ask | None = next(self._steps)

    @property
    def epoch(self) -> Epoch | None:
        """The producer's, when it is known."""
        return self.history[-1] if self.history else None

    @property
    def missing(self) -> Missing | None:
        """The stores that it waits for, if it knows of any, whatever becomes of them."""
        waited = self._directory.discovery.awaited_stores
        met = len(self._directory.stores)
        return self.lack or (Missing(met + len(waited), waited) if waited else None)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks the next question when the last one is answered."""
        messages = self._directory.on_tick(now)
        question = self._question
        if question is not None and question.answered:
            self._directory.forget(question)
            self._question = None
            try:
                self._next = self._steps.send(question)
            except StopIteration:
                return messages
            if self.lack is not None:
                self._due = now + timing.TAKEOVER_RETRY_S
        if self._question is None and self._next is not None and now >= self._due:
            self._question, asked = self._next(now)
            messages += asked
        return messages

    def deadline(self, now: float) -> float | None:
        """When to look again."""
        return self._due if self._question is None else self._directory.deadline(now)

    def _run(self) -> Generator[_Ask, StoreQuery, None]:
        directory, tp = self._directory, self._tp
        topics = [tp.topic, DELETIONS_TOPIC]
        heads = yield lambda now: directory.ask_heads(now, topics, rounds=ROUNDS)
        self.has_deletions = any(each.topic == DELETIONS_TOPIC for each in heads.heads)
        prior = newest_life((yield lambda now: directory.ask_history(now, tp)).histories)
        while True:
            number = max(prior.number + 1, self._least_number, LEAST_NUMBER)
            life = new_life(number, self._life_id, self._acks)
            answer = yield partial(directory.ask_history, tp=tp, life=life)
            replies = promised(answer.histories, life)
            c_stores = directory.c_stores
            self.lack = missing(replies, c_stores, self._acks, directory.stores)
            if self.lack is None or self._ignore_missing:
                # C stores do not know lives: nobody can tell whose their records are.
                held = heads.heads.get(tp)
                least = held.end if held and c_stores else 0
                self.history = goes_on(replies, life, least)
                return
            # Stores that come may know a newer life.
            prior = max(prior, newest_life(answer.histories))


MAX_ACKING_STORES: Final = 1_000
"""Stores told apart by their acknowledgements.  A name costs memory and peers choose it."""

HURRIES_PER_FETCH: Final = 5
"""C stores acknowledge nothing twice.  After so many HEADs in a hurry without an ACK the producer
fetches its last record: a store that has it has all of them."""

_END: Final = attrgetter("end")


class ProducerRole:
    """The only writer of one partition."""

    def __init__(
        self,
        tp: TopicPartition,
        *,
        acks: int,
        head_interval_s: float,
        life_id: int,
        resume: bool = False,
        least_number: int = 1,
        ignore_missing: bool = False,
    ) -> None:
        self.tp = tp
        self._history: History = (Epoch.first(new_life(1, life_id, acks)),)
        self.fenced_by: EpochId | None = None
        """A newer life of this partition's producer, if there is one: this one is over."""
        self.topic, self.address = tp
        self.directory = StoreDirectory(tp.partition) if resume else None
        self.takeover: Takeover | None = None
        """From an earlier producer with this address, while it lasts."""
        if self.directory is not None:
            self.takeover = Takeover(
                self.directory,
                tp,
                life_id=life_id,
                acks=acks,
                least_number=least_number,
                ignore_missing=ignore_missing,
            )
        self.next_offset = 0
        self.durable = 0
        """``acks`` stores have everything before this offset on disk."""
        self.asked_for: int | None = None
        """The record that stores ask for and that is not here any more, since the last ACK."""
        self.hurry = False  # the application waits for the acknowledgements
        self.acked: dict[str, int] = {}  # by store: up to where it has everything on disk
        self.beyond: dict[str, int] = {}  # the same of stores that have more than is published
        self.retained: list[RecordBatch] = []  # not acknowledged; the first one may be in part
        self._acks = acks
        self._hurries = 0  # HEADs in a hurry since the last acknowledgement
        self._last_us = 0  # the last record's timestamp
        self._head_interval_s = head_interval_s
        self._head_due = 0.0

    @property
    def epoch(self) -> Epoch:
        """That of its records."""
        return self._history[-1]

    @property
    def unacknowledged(self) -> int:
        """How many records wait for their acknowledgement."""
        return self.next_offset - self.durable

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Producer Subscriptions; and GET-HEADS, which C producers do not take."""
        kinds = (m.EpochAck, m.Ack, m.Fetch, m.DirectRecord, m.DirectRecordBatch, m.HistoryReply)
        return [
            *(subscription(kind, self.address) for kind in kinds),
            subscription(m.GetHeads, self.topic),
            *(self.directory.subscriptions() if self.directory else ()),
        ]

    def resume(self, history: History) -> None:
        """Goes on where an earlier producer has ended; the last epoch of ``history`` begins."""
        assert not self.retained
        self._history = history
        self.next_offset = self.durable = self.epoch.start
        self.directory = self.takeover = None

    def publish(self, now: float, values: Values, time_us: int) -> list[Outgoing]:
        """Appends records.  RFC 46: the first offset is 0, and each further one is one more.

        ``time_us`` is their timestamp; where the clock has gone back, the last one is theirs.
        """
        self._last_us = max(self._last_us, time_us)
        times = stamped_once(len(values), self._last_us)
        batch = RecordBatch(self.tp, self.next_offset, values, times=times, epoch=self.epoch)
        if not self._head_due:
            self._head_due = now + self._head_interval_s
        self.next_offset = batch.end
        self.retained.append(batch)
        return [] if self.fenced_by else [OutgoingBatch(batch)]

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Takes ACK, FETCH and GET-HEADS."""
        match message:
            case m.EpochAck(partition=self.address, topic=self.topic):
                # Records that have come by C nodes are anybody's, as their ACKs are.
                if message.life in (self.epoch.life, NO_LIFE):
                    self._on_ack(message.store, message.end)
                self._heard_of(message.life)
            case m.Ack(partition=self.address, topic=self.topic):
                self._on_ack(message.store or peer, message.end)
            case m.HistoryReply(partition=self.address, topic=self.topic) if not self.directory:
                return self._on_history(message)
            case m.Fetch(partition=self.address, topic=self.topic):
                return self._answer(message)
            case m.GetHeads(topic=self.topic) if self.durable:
                # RFC 46: a producer "SHALL send a DIRECT-HEAD".  Not of all that is published:
                # requestors take it for what they can read from now on, also when this producer is
                # gone.  HEADs tell of the rest.
                return [m.DirectHead(message.requestor, *self.tp, self.durable - 1)]
            case _ if self.directory is not None:
                return self.directory.on_message(now, message)
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes its own last record, from a store that it has fetched it from."""
        own = (requestor, batch.tp) == (self.address, self.tp)
        own = own and batch.epoch in (None, self.epoch)
        # Only if it is this record, and not that of an earlier producer at the same offset.
        if own and batch.values[-1] == self._retained_value(batch.end - 1):
            beyond, self.beyond = self.beyond, {}
            for store, end in beyond.items():
                self._on_ack(store, min(end, batch.end))
            # It is not known which store has sent it, so by itself it counts where any one will do.
            if self._acks == 1:
                self._on_ack("", batch.end)
        return []

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """A new subscriber may have missed records: tells it at once how far the partition goes."""
        if self.directory is not None:
            return self.directory.on_subscribed(now, kind, topic)
        # Not a C node: it fetches its first records once, and stops if that FETCH does not reach us
        # yet.  It gets the HEAD that is due next.
        if kind is m.RecordBatchMessage and self.topic.startswith(topic):
            return self._head()
        return []

    def on_peer(self, now: float, news: PeerNews) -> None:
        """The peer may be a store, whose answers count."""
        if self.directory is not None:
            self.directory.on_peer(now, news)

    def on_peer_lost(self, peer: str) -> None:
        """What a lost store has acknowledged stays acknowledged: it is on its disk."""
        if self.directory is not None:
            self.directory.on_peer_lost(peer)

    def on_tick(self, now: float) -> list[Outgoing]:
        """RFC 46: sends "the HEAD command at regular a interval" after the first record."""
        if self.takeover is not None:
            messages = self.takeover.on_tick(now)
            if self.takeover.history:
                self.resume(self.takeover.history)
            return messages
        if not self.next_offset or self.fenced_by:
            return []
        interval_s = self._head_interval_s
        self.hurry = self.hurry and self.unacknowledged > 0
        if self.hurry:
            interval_s = min(interval_s, timing.FLUSH_HEAD_INTERVAL_S)
        if now < self._head_due:
            self._head_due = min(self._head_due, now + interval_s)
            return []
        self._head_due = now + interval_s
        self._hurries = self._hurries + 1 if self.hurry else 0
        doubtful = bool(self.beyond) and self.unacknowledged > 0
        if self._hurries < HURRIES_PER_FETCH and not doubtful:
            return self._head()
        self._hurries = 0
        return [
            *self._head(),
            m.Fetch(self.address, self.address, self.topic, self.next_offset - 1, 1),
        ]

    def deadline(self, now: float) -> float | None:
        """When the next HEAD is due."""
        if self.takeover is not None:
            return self.takeover.deadline(now)
        return self._head_due if self.next_offset and not self.fenced_by else None

    def _on_history(self, reply: m.HistoryReply) -> list[Outgoing]:
        newest = last_life(reply.history)
        self._heard_of(max(newest, reply.promised))
        if newest >= self.epoch.life:
            return []
        if self.retained:
            # It has an older life's records where this one's are, and cannot know it by their
            # offsets.
            start, count = self.retained[0].offset, self.unacknowledged
            return self._answer(m.Fetch(self.address, reply.store, self.topic, start, count))
        # It has promised that this life goes on from what it had, and takes no other history.  It
        # went on from another one, and as long as it says nothing nobody else could know.
        start, life, mine = self.epoch.start, self.epoch.life, self._history
        has_begun, parts = self.next_offset > start, parting(reply.history, mine)
        if has_begun or parts is None or parts >= reply.end or reply.promised[:2] != life[:2]:
            return []
        return [m.HistoryReply(reply.store, TOLD, self.address, *self.tp, start, life, mine)]

    def _heard_of(self, life: EpochId) -> None:
        """A life of this partition's producer that stores know of; after a newer one it ends."""
        if self.directory is None and life > self.epoch.life:
            self.fenced_by = life

    def _head(self) -> list[Outgoing]:
        has_any = self.next_offset and not self.fenced_by
        return [m.Head(*self.tp, self.next_offset - 1)] if has_any else []

    def _on_ack(self, store: str, end: int) -> None:
        if end > self.next_offset:
            # Forged, or of an earlier producer: the store was away when this one asked where to go
            # on.  It may have other records at these offsets, so its ACK does not count yet, and it
            # will not send a smaller one.  With the next HEAD the producer fetches its last record
            # from it, and compares.
            if store in self.beyond or len(self.beyond) < MAX_ACKING_STORES:
                self.beyond[store] = end
            return
        self.beyond.pop(store, None)
        if store not in self.acked and len(self.acked) >= MAX_ACKING_STORES:
            return
        self.acked[store] = max(end, self.acked.get(store, 0))
        ends = sorted(self.acked.values(), reverse=True)
        if len(ends) < self._acks or ends[self._acks - 1] <= self.durable:
            return
        self.durable = ends[self._acks - 1]
        self.asked_for = None
        self._hurries = 0
        # RFC 46: records are kept until "at least one ACK", here until ``acks`` stores have them.
        del self.retained[: bisect_right(self.retained, self.durable, key=_END)]

    def first_above(self, limit_bytes: int) -> tuple[int, int] | None:
        """Offset and size of the first record above a limit that is not acknowledged."""
        for batch in self.retained:
            if batch.values.largest_bytes > limit_bytes:
                for offset, value in enumerate(batch.values, batch.offset):
                    if len(value) > limit_bytes and offset >= self.durable:
                        return offset, len(value)
        return None

    def _retained_value(self, offset: int) -> bytes | None:
        index = bisect_right(self.retained, offset, key=_END)
        if index == len(self.retained) or self.retained[index].offset > offset:
            return None
        batch = self.retained[index]
        return batch.values[offset - batch.offset]

    def _answer(self, fetch: m.Fetch) -> list[Outgoing]:
        """RFC 46: records "SHALL be send according to their offset in ascending order"."""
        answer: list[Outgoing] = []
        # Not from later than was asked for: a requestor cannot use what follows a gap.
        if not self.retained or self.retained[0].offset > fetch.sequence or self.fenced_by:
            if self.asked_for is None and fetch.sequence < self.durable:
                self.asked_for = fetch.sequence
            return answer
        room_bytes = MAX_ANSWER_BYTES
        for batch in self.retained[bisect_right(self.retained, fetch.sequence, key=_END) :]:
            start, end = max(batch.offset, fetch.sequence), min(batch.end, fetch.end)
            if start >= end or room_bytes <= 0:
                break
            part = next(batch.between(start, end).split(end - start, room_bytes))
            room_bytes -= part.values.size_bytes
            answer.append(OutgoingBatch(part, fetch.requestor))
            if part.end < end:
                break
        return answer
