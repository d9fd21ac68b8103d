"""The producer's role: publish records, keep them until acknowledged, answer FETCHes.

RFC 46: "A producer MUST NOT delete send records before receiving at least one ACK command."  An ACK
names the last record that a store has on disk, and so all before it.  ``acks`` distinct stores
have each record before ``acknowledged``.  Every HEAD makes a store repeat its ACK, so a lost one
delays this, but loses nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from dafka_core.model.epochs import (
    MAX_ACKS,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    digest,
    divergence,
    last_life,
    with_epoch,
)
from dafka_core.model.records import RecordBatch, TopicPartition, coalesce, stamped_once
from dafka_core.model.values import Longs, Values
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import (
    DIRECT_BATCH_BYTES,
    MAX_ANSWER_BYTES,
    MAX_BATCH_COUNT,
    MAX_FETCH_COUNT,
    RecentNames,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch, PeerNews
from dafka_core.protocol.store_directory import Query, Question, StoreDirectory

# Number of questions to C stores for the partition's end.  If a lost answer were taken for "no such
# partition", the producer would overwrite its records.
ROUNDS: Final = 3
# 1 is the number of a partition's first life, for which no store has promised anything.
LEAST_NUMBER: Final = 2

# Limit of stores whose acknowledgements are distinguished: peers choose the names.
MAX_ACKING_STORES: Final = 1_000
# C stores repeat no acknowledgement.  After this many urgent HEADs without an ACK the producer
# fetches its last record: a store that has it has all before it.
URGENT_HEADS_PER_FETCH: Final = 5

Replies = Mapping[str, m.HistoryReply]  # the stores' answers by address
_END: Final = attrgetter("end")


class Missing(NamedTuple):
    """The number of stores that must answer, ``needed``, and the known ``stores`` that have not."""

    needed: int
    stores: tuple[str, ...]


def new_life(number: int, life_id: int, acks: int) -> EpochId:
    """Return a life with the number of acknowledgements that it requires."""
    return EpochId(number, life_id, min(acks, MAX_ACKS))


def newest_life(replies: Replies) -> EpochId:
    """Return the newest life that the stores know."""
    return max((max(last_life(r.history), r.promised) for r in replies.values()), default=NO_LIFE)


def missing(
    replies: Replies, others: Iterable[str], acks: int, known: Collection[str] = ()
) -> Missing | None:
    """Return the missing stores if too few have answered with a promise; otherwise None.

    ``others`` are C stores that have reported the partition's end.  Any record that a life has
    acknowledged is on as many stores as its acks, so one store less may be missing.  The records
    may belong to the newest life with records at these stores, or to any that they have promised
    something since.  A life with fewer acks must be known to as many stores as its predecessors,
    too, so that a later one that relies on the old number learns of it.
    """
    answered = {*replies, *others}
    stores = answered.union(known, *(each.stores for each in replies.values()))
    newest = max((last_life(each.history) for each in replies.values()), default=NO_LIFE)
    before = max(newest.acks, 1)
    least = min([before, *(each.promised.acks for each in replies.values())])
    needed = max(len(stores) - max(least, 1) + 1, 1)  # also if all stores have gone since
    if acks < before:
        needed = max(needed, before)
    if len(answered) >= needed:
        return None
    return Missing(needed, tuple(sorted(stores - answered)))


def continued_history(replies: Replies, life: EpochId, least: int) -> History:
    """Return the newest history, continued by an epoch of ``life`` from at least ``least`` on.

    ``least`` is the partition's end at C stores.  The lives of its records are unknown, like those
    of records that a store has received from C nodes.
    """
    unnamed = (each.end for each in replies.values() if not each.history)
    least = max(least, *unnamed, 0)
    best = max(replies.values(), key=lambda each: (last_life(each.history), each.end), default=None)
    if best is None:
        return (Epoch(*life, least, 0),)
    start = max(best.end, least)
    return with_epoch(best.history, Epoch(*life, start, digest(best.history)))


@dataclass(kw_only=True)
class Takeover:
    """The takeover of a partition that an earlier producer has written.

    It asks the stores for their histories, draws a life newer than all of them, and has the stores
    promise to acknowledge nothing more of older ones (``Histories``).  Then it continues the newest
    history among their answers.
    """

    directory: StoreDirectory
    tp: TopicPartition
    life_id: int
    acks: int
    least_number: int  # the time in seconds: consumers may know lives that stores have forgotten
    ignore_missing: bool  # continue without ``too_few``
    history: History = ()  # the partition's, ending with this life's epoch; empty while unknown
    too_few: Missing | None = None  # the stores whose promises are missing

    def __post_init__(self) -> None:
        self._now = self._due = 0.0
        self._steps = self._run()

    @property
    def missing(self) -> Missing | None:
        """Return the stores that it waits for, or has continued without, if any."""
        waited = self.directory.awaited_stores
        count = len(self.directory.stores) + len(waited)
        return self.too_few or (Missing(count, waited) if waited else None)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Ask the next question when the last one is answered."""
        self._now = now
        return self.directory.on_tick(now) + next(self._steps, [])

    def deadline(self, now: float) -> float:
        """Return the time of the next check."""
        due = self.directory.deadline(now)
        return due if due < inf else self._due

    def _run(self) -> Generator[list[Outgoing], None, None]:
        directory, tp = self.directory, self.tp
        heads = yield from self._answer(m.HeadsQuery, (tp.topic,), rounds=ROUNDS)
        answer = yield from self._answer(m.HistoryQuery, *tp)
        prior = newest_life(answer.histories)
        while True:
            number = max(prior.number + 1, self.least_number, LEAST_NUMBER)
            life = new_life(number, self.life_id, self.acks)
            answer = yield from self._answer(m.HistoryQuery, *tp, life)
            histories, c_stores = answer.histories, directory.c_stores
            replies = {
                store: each for store, each in histories.items() if each.promised[:2] == life[:2]
            }
            self.too_few = missing(replies, c_stores, self.acks, directory.stores)
            if self.too_few is None or self.ignore_missing:
                # C stores do not know lives, so the life of these records is unknown.
                held = heads.heads.get(tp)
                least = held.end if held and c_stores else 0
                self.history = continued_history(replies, life, least)
                return
            prior = max(prior, newest_life(histories))  # new stores may know a newer life
            self._due = self._now + timing.TAKEOVER_RETRY_S
            while self._now < self._due:
                yield []

    def _answer(
        self, kind: Callable[..., Query], *content: object, rounds: int = 1
    ) -> Generator[list[Outgoing], None, Question]:
        question, messages = self.directory.ask(self._now, kind, *content, rounds=rounds)
        yield messages
        while not question.answered:
            yield []
        self.directory.forget(question)
        return question


class Acknowledgements:
    """The stores' ACKs of one partition.

    Attributes:
        by_store: the end of each store's records on disk.
        unverified: likewise, of stores with more than was published.  Such an ACK is forged, or the
            store has an earlier producer's records: it was absent when this one asked where to
            continue.  It may have other records at these offsets, so its ACK does not count yet,
            and it will not send a smaller one.  With the next HEAD the producer fetches its last
            record from it, and compares.
    """

    def __init__(self) -> None:
        self.by_store: dict[str, int] = {}
        self.unverified: dict[str, int] = {}

    def add(self, store: str, end: int, published: int) -> None:
        """Note a store's ACK of all records before ``end``; ``published`` is the end of all."""
        ends = self.by_store if end <= published else self.unverified
        if ends is self.by_store:
            self.unverified.pop(store, None)
            end = max(end, ends.get(store, 0))
        if store in ends or len(ends) < MAX_ACKING_STORES:
            ends[store] = end

    def verify(self, end: int) -> None:
        """Count the unverified ACKs up to ``end``: their stores have the record before it."""
        unverified, self.unverified = self.unverified, {}
        for store, its_end in unverified.items():
            self.add(store, min(its_end, end), end)

    def reached_by(self, count: int) -> int:
        """Return the end that ``count`` stores have reached; 0 if fewer have acknowledged."""
        ends = sorted(self.by_store.values(), reverse=True)
        return ends[count - 1] if len(ends) >= count else 0


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
        self.topic, self.address = tp
        self.takeover: Takeover | None = None
        """The takeover from an earlier producer with this address, while it lasts."""
        if resume:
            self.takeover = Takeover(
                directory=StoreDirectory(self.address),
                tp=tp,
                life_id=life_id,
                acks=acks,
                least_number=least_number,
                ignore_missing=ignore_missing,
            )
        self.fenced_by: EpochId | None = None
        """A newer life of this partition's producer, if any: this life has ended."""
        self.next_offset = 0
        self.acknowledged = 0  # ``acks`` stores have all records before this offset on disk
        self.acknowledged_bytes = 0  # size of this life's records before it
        self.asked_for: int | None = None
        """A deleted record that stores have requested since the last ACK."""
        self.urgent = False  # the application waits for the acknowledgements
        self.acknowledgements = Acknowledgements()
        self.retained: list[RecordBatch] = []  # unacknowledged; the first one perhaps in part
        self._history: History = (Epoch.first(new_life(1, life_id, acks)),)
        self._acks = acks
        self._others = RecentNames[None](MAX_PEERS)  # nodes that are no stores
        self._urgent_heads = 0  # urgent HEADs since the last acknowledgement
        self._head_interval_s = head_interval_s
        self._head_due = 0.0

    @property
    def epoch(self) -> Epoch:
        """Return the epoch of its records."""
        return self._history[-1]

    @property
    def unacknowledged(self) -> int:
        """Return the number of unacknowledged records."""
        return self.next_offset - self.acknowledged

    def subscriptions(self) -> list[bytes]:
        """Return RFC 46's Producer Subscriptions, and GET-HEADS, which C producers ignore."""
        kinds = (m.EpochAck, m.Ack, m.Fetch, m.DirectRecord, m.DirectRecordBatch, m.HistoryReply)
        return [
            *(subscription(kind, self.address) for kind in kinds),
            subscription(m.GetHeads, self.topic),
            *(self.takeover.directory.subscriptions() if self.takeover else ()),
        ]

    def resume(self, history: History) -> None:
        """Continue where an earlier producer has ended; the last epoch of ``history`` begins."""
        assert not self.retained
        self._history = history
        self.next_offset = self.acknowledged = self.epoch.start
        self.takeover = None

    def publish(self, now: float, values: Values, times: int | Longs) -> list[Outgoing]:
        """Append records at one time, or at times as of a ``RecordBatch``.

        RFC 46: offsets begin at 0, and each is one more.
        """
        if isinstance(times, int):
            times = stamped_once(len(values), times)
        batch = RecordBatch(self.tp, self.next_offset, values, times=times, epoch=self.epoch)
        if not self._head_due:
            self._head_due = now + self._head_interval_s
        self.next_offset = batch.end
        self.retained.append(batch)
        return [] if self.fenced_by else [OutgoingBatch(batch)]

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process acknowledgements, requests, and answers about earlier lives."""
        match message:
            case m.EpochAck(tp=self.tp):
                # The life of records that came through C nodes is unknown, and so is that of their
                # ACKs.
                if message.life in (self.epoch.life, NO_LIFE):
                    self._on_ack(message.store, message.end)
                self._note_life(message.life)
            case m.Ack(tp=self.tp):
                self._on_ack(message.store or peer, message.end)
            case m.HistoryReply(tp=self.tp) if not self.takeover:
                return self._on_history(message)
            case m.Fetch(tp=self.tp):
                return self._answer(message)
            case m.GetHeads(topic=self.topic) if self.acknowledged:
                # RFC 46: a producer "SHALL send a DIRECT-HEAD".  It names the last acknowledged
                # record: requestors expect to be able to read it from now on, also without this
                # producer.  HEADs report the rest.
                return [m.DirectHead(message.requestor, *self.tp, self.acknowledged - 1)]
            case _ if self.takeover is not None:
                return self.takeover.directory.on_message(now, message)
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process its own last record, fetched from a store."""
        is_own = (requestor, batch.tp) == (self.address, self.tp)
        last = batch.end - 1
        # Only if it is this record, and not an earlier producer's at the same offset.
        if (
            is_own
            and batch.epoch in (None, self.epoch)
            and any(part.values == batch.values[-1:] for part in self._parts(last, batch.end))
        ):
            self.acknowledgements.verify(batch.end)
            # The sending store is unknown, so the record counts only if any store is enough.
            if self._acks == 1:
                self.acknowledgements.add("", batch.end, self.next_offset)
            self._release()
        return []

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Report the partition's end to a new subscriber, which may have missed records."""
        if self.takeover is not None:
            return self.takeover.directory.on_subscribed(now, kind, topic)
        # Not to a C node: it fetches its first records once, and stops if that FETCH does not reach
        # us yet.  It gets the next regular HEAD.
        if kind is m.RecordBatchMessage and self.topic.startswith(topic):
            return self._head()
        return []

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a store.  The records of a lost one stay acknowledged."""
        if news.is_store is False:
            self._others.keep(news.node, None)
        if self.takeover is not None:
            self.takeover.directory.on_peer(now, news)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Send "the HEAD command at regular a interval" (RFC 46) after the first record."""
        if self.takeover is not None:
            messages = self.takeover.on_tick(now)
            if self.takeover.history:
                self.resume(self.takeover.history)
            return messages
        if not self.next_offset or self.fenced_by:
            return []
        interval_s = self._head_interval_s
        self.urgent = self.urgent and self.unacknowledged > 0
        if self.urgent:
            interval_s = min(interval_s, timing.FLUSH_HEAD_INTERVAL_S)
        if now < self._head_due:
            self._head_due = min(self._head_due, now + interval_s)
            return []
        self._head_due = now + interval_s
        self._urgent_heads = self._urgent_heads + 1 if self.urgent else 0
        messages = self._head()
        verifies = self.acknowledgements.unverified and self.unacknowledged
        if verifies or self._urgent_heads == URGENT_HEADS_PER_FETCH:
            self._urgent_heads = 0
            last = self.next_offset - 1
            messages.append(m.Fetch(self.address, self.topic, self.address, last, 1))
        return messages

    def deadline(self, now: float) -> float:
        """Return the time of the next HEAD."""
        if self.takeover is not None:
            return self.takeover.deadline(now)
        return self._head_due if self.next_offset and not self.fenced_by else inf

    def _on_history(self, reply: m.HistoryReply) -> list[Outgoing]:
        newest = last_life(reply.history)
        self._note_life(max(newest, reply.promised))
        if newest >= self.epoch.life:
            return []
        if self.retained:
            # It has an older life's records at these offsets, and cannot know it by the offsets.
            start, count = self.retained[0].offset, min(self.unacknowledged, MAX_FETCH_COUNT)
            return self._answer(m.Fetch(reply.store, self.topic, self.address, start, count))
        # It has promised that this life continues the store's records, and accepts no other
        # history.  This life has continued another history, and only this producer can report it.
        start, life, mine = self.epoch.start, self.epoch.life, self._history
        has_begun, parts = self.next_offset > start, divergence(reply.history, mine)
        if has_begun or parts is None or parts >= reply.end or reply.promised[:2] != life[:2]:
            return []
        return [
            m.HistoryReply(reply.store, m.UNSOLICITED, self.address, *self.tp, start, life, mine)
        ]

    def _note_life(self, life: EpochId) -> None:
        """Note a life of this partition that a store knows; a newer one ends this producer."""
        if self.takeover is None and life > self.epoch.life:
            self.fenced_by = life

    def _head(self) -> list[Outgoing]:
        has_any = self.next_offset and not self.fenced_by
        return [m.Head(*self.tp, self.next_offset - 1)] if has_any else []

    def _on_ack(self, store: str, end: int) -> None:
        self.acknowledgements.add(store, end, self.next_offset)
        self._release()

    def _release(self) -> None:
        """Release the records that ``acks`` stores have: RFC 46 demands "at least one ACK"."""
        before, end = self.acknowledged, self.acknowledgements.reached_by(self._acks)
        if end <= before:
            return
        self.acknowledged = end
        self.asked_for = None
        self._urgent_heads = 0
        self.acknowledged_bytes += sum(part.values.size_bytes for part in self._parts(before, end))
        del self.retained[: bisect_right(self.retained, end, key=_END)]

    def _parts(self, start: int, end: int) -> Iterator[RecordBatch]:
        """Yield the retained records from ``start`` to ``end`` (exclusive)."""
        for batch in self.retained[bisect_right(self.retained, start, key=_END) :]:
            first, stop = max(batch.offset, start), min(batch.end, end)
            if first >= stop:
                return
            yield batch.between(first, stop)

    def _answer(self, fetch: m.Fetch) -> list[Outgoing]:
        """Return records, which "SHALL be send according to their offset in ascending order"."""
        first = self.retained[0].offset if self.retained else self.next_offset
        lacks_it = fetch.sequence < first or self.fenced_by is not None
        may_be_store = self.asked_for is None and fetch.requestor not in self._others
        if lacks_it and may_be_store and fetch.sequence < self.acknowledged:
            self.asked_for = fetch.sequence
        if self.fenced_by is not None:
            return []
        # Stores send the records before ``first``. Later ones may reach their disks after the
        # request, which its sender repeats only a second later.
        answer: list[Outgoing] = []
        room_bytes = MAX_ANSWER_BYTES
        parts = self._parts(max(fetch.sequence, first), fetch.end)
        for part in coalesce(parts, MAX_BATCH_COUNT, DIRECT_BATCH_BYTES):
            fitting = next(part.split(part.count, room_bytes))
            room_bytes -= fitting.values.size_bytes
            answer.append(OutgoingBatch(fitting, fetch.requestor))
            if fitting.end < part.end or room_bytes <= 0:
                break
        return answer
