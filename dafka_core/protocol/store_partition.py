"""The partitions in a store (docs/states.md), with or without a producer, and their histories.

A history is the sequence of epochs that a store accepts:

    A store extends only its own history, or one that it has completely (``extend``).
    Of two that have diverged, the one with the newer last life wins: number first, then id
    (``wins_at``).  A store with the older one sets its records aside.
    A life begins when enough stores have promised to acknowledge no more records of older ones
    (``on_query``), and continues the newest history that they have.

Any two groups of stores that are large enough, one to acknowledge a record and one to promise, have
a store in common.  So a life that begins has every acknowledged record, and so does the newer
history.  It is the argument of Paxos and Raft, without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from dafka_core.model.epochs import (
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    digest,
    divergence,
    epoch_at,
    follows,
    last_life,
    prefix,
    with_epoch,
)
from dafka_core.model.log_entries import LogEntry, Promise, RestartPartition, SetAside
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_directory import KnownStores

# -- one partition ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, kw_only=True)
class StorePartition(PartitionFetcher):
    """A store's knowledge of one partition."""

    durable: int = field(init=False)  # readers see the records before this offset: they are on disk
    visible_end: int = field(init=False)
    """The value of ``durable`` after all queued writes except commits."""
    history: History = ()  # of all records in the log or its queue
    promised: EpochId = NO_LIFE
    """The newest life promised that no records of older ones are acknowledged."""
    staged: Transaction | None = None
    """Another store's transaction of which only the first part has arrived."""
    commits: int = 0  # commits in the log's queue
    pending_replacements: int = 0  # replacements by another history in the log's queue
    client_epoch: Epoch | None = None  # of records that clients write here, from the first on
    lost_to: EpochId = NO_LIFE  # the newest life whose records have replaced the store's
    winner: m.HistoryReply | None = None
    """The last answer of the store whose history has replaced this one's, until it is lost."""
    client: str = ""  # the last name written to the log for it
    too_large: int = -1  # the offset of the rejected record named by the last error
    losses: int = 0
    """How often records were dropped from its end, before or after they were written."""

    def __post_init__(self) -> None:
        PartitionFetcher.__post_init__(self)  # ``super()`` fails in a dataclass with slots
        self.durable = self.visible_end = self.next_offset

    @property
    def newest(self) -> EpochId:
        """Return the newest life known to the store."""
        return max(last_life(self.history), self.promised, self.lost_to)

    @property
    def leading(self) -> EpochId:
        """Return the last life of the store's history, or of the winner that it fetches."""
        return max(last_life(self.history), last_life(self.winner.history if self.winner else ()))

    def is_superseded(self, reply: m.HistoryReply) -> bool:
        """Return True if the winner's last answer counts no more: it has a newer one, or has lost.

        A producer that has won may end, and leave its records to no store.
        """
        if self.winner is None:
            return False
        is_newer = last_life(reply.history) > last_life(self.winner.history)
        return is_newer or reply.store == self.winner.store

    @property
    def is_committing(self) -> bool:
        """Return True while the next offset depends on entries in the log's queue."""
        return bool(self.commits or self.pending_replacements)

    def extend(self, batch: RecordBatch) -> RecordBatch:
        """Extend the partition by its next batch; return it as the log must store it.

        A batch that does not belong to the ``staged`` transaction shows that the batch's sender has
        that complete: it is stored without a transaction.
        """
        if self.staged is not None and batch.transaction != self.staged:
            batch = replace(batch, transaction=None)
        transaction = batch.transaction
        self.staged = transaction if transaction and batch.end < transaction.end else None
        if self.staged is None:
            self.visible_end = batch.end
        return batch

    def truncate(self, end: int) -> None:
        """Forget records from ``end`` on: the log does not have them, and will not."""
        self.losses += 1
        self.begin(end)
        self.history = prefix(self.history, end)
        self.visible_end, self.staged = end, None

    def replace_from(self, start: int, end: int, life: EpochId) -> None:
        """Drop the records from ``start`` on: a newer life replaces them, up to ``end``.

        Records that clients write here from now on belong to a new life, too: their last one wrote
        other records at these offsets.
        """
        self.lost_to = max(self.newest, life)
        self.winner = self.client_epoch = None
        self.head = start
        self.truncate(start)
        self.durable = min(self.durable, start)
        self.raise_head(end)

    def restart_at(self, start: int, history: History) -> None:
        """Continue at ``start``: no store has the records before it, which had this history."""
        self.pending_replacements += 1
        self.client_epoch = None
        self.truncate(start)
        self.history = history

    def on_replaced(self, entry: SetAside | RestartPartition) -> None:
        """Note that the log has set records aside."""
        self.pending_replacements -= 1
        if isinstance(entry, RestartPartition) and not self.pending_replacements:
            self.durable = entry.start


# -- histories of all partitions -------------------------------------------------------------------

MAX_PROMISING: Final = 1_000  # promises in the disk's queue; requestors retry
HOSTING_ACKS: Final = 1  # a client's records are acknowledged when the hosting store has them


@dataclass
class Histories:
    """The histories of a store's partitions."""

    known: KnownStores
    hosting_id: int
    least_number: int
    write: Callable[[LogEntry], None]

    def __post_init__(self) -> None:
        self._promising: dict[tuple[TopicPartition, EpochId], m.HistoryQuery] = {}
        self._to_compare: dict[TopicPartition, None] = {}  # others may have another history
        self._to_fence: dict[TopicPartition, StorePartition] = {}  # an older life continues
        self._due = 0.0

    # -- records ---------------------------------------------------------------------------------

    def admits(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Return True if records may extend the store's own history, as far as it is known."""
        epoch, history = batch.epoch, partition.history
        winner = partition.winner.history if partition.winner else ()
        # The winner has replaced an older epoch from its own next one on.  Other losers still send
        # these records: two could fetch them from each other again, in turns and for ever.
        is_older = epoch is not None and epoch.life < last_life(winner)
        if is_older and epoch_at(winner, batch.end - 1) != epoch:
            self._to_compare[batch.tp] = None  # the winner may have lost its records since
            return False
        if epoch is None or not history or epoch == history[-1]:
            return True
        end = partition.next_offset
        known = epoch_at(history, batch.offset) if batch.offset < end else history[-1]
        if epoch == known or (known is not None and epoch.life > known.life and epoch.start >= end):
            return True
        self.differs(partition, epoch.life)
        return False

    def extend(self, partition: StorePartition, batch: RecordBatch) -> bool:
        """Add the epoch of the partition's next records; return False for another history's."""
        epoch = batch.epoch
        if epoch is None:
            return True
        # A life that has begun here, without a record yet, gives way to a newer one.
        if not follows(prefix(partition.history, batch.offset), epoch, batch.offset):
            self.differs(partition, epoch.life)
            return False
        self.begin(partition, epoch)
        return True

    def begin(self, partition: StorePartition, epoch: Epoch | None) -> None:
        """Continue the partition with an epoch."""
        if epoch is not None and epoch not in partition.history[-1:]:
            partition.history = with_epoch(prefix(partition.history, epoch.start), epoch)

    def next_epoch(self, partition: StorePartition, given: Epoch) -> Epoch | None:
        """Return the epoch that begins a client's life at an offset; None if a newer one has."""
        if partition.newest > given.life:
            return None
        return given._replace(parent=digest(prefix(partition.history, given.start)))

    def client_epoch(self, partition: StorePartition, offset: int) -> Epoch:
        """Return the epoch of clients' records from ``offset`` on, in this store's own life."""
        newest, history = partition.newest, prefix(partition.history, offset)
        known = partition.client_epoch
        # An unfinished one may belong to a refused commit: a later commit begins elsewhere.
        if known is None or newest > known.life or known not in history[-1:]:
            number = max(newest.number + 1, self.least_number)
            life = EpochId(number, self.hosting_id, HOSTING_ACKS)
            known = partition.client_epoch = Epoch(*life, offset, digest(history))
        return known

    def ack(self, partition: StorePartition) -> list[Outgoing]:
        """Return the acknowledgement of durable records; empty if a newer life has taken over."""
        if not partition.durable:
            return []
        last = epoch_at(partition.history, partition.durable - 1)
        life = last.life if last else last_life(())
        topic, address = partition.tp
        if last is not None and life < partition.promised:
            self._to_fence[partition.tp] = partition
            return []
        return [m.EpochAck(topic, address, partition.durable - 1, self.known.store, life)]

    # -- other histories -------------------------------------------------------------------------

    def differs(self, partition: StorePartition, life: EpochId) -> None:
        """Note that a node has another history of a partition, whose last life is ``life``."""
        if life < last_life(partition.history):
            self._to_fence[partition.tp] = partition
        else:
            self._to_compare[partition.tp] = None

    def taken_over_at(self, partition: StorePartition, epoch: Epoch | None) -> int | None:
        """Return the offset from which a newer life replaces the store's records, if known."""
        history = partition.history
        if epoch is None or epoch.life <= partition.leading or epoch.life < partition.promised:
            return None
        parts = epoch.start < partition.next_offset
        return epoch.start if parts and epoch.continues(prefix(history, epoch.start)) else None

    def wins_at(self, partition: StorePartition, reply: m.HistoryReply) -> int | None:
        """Return the offset from which another store's history wins; None if it does not."""
        # A life with a promise continues the records that the store had then.
        life = last_life(reply.history)
        if life <= partition.leading or life < partition.promised:
            return None
        start = divergence(partition.history, reply.history)
        return start if start is not None and start < partition.next_offset else None

    def reply(
        self,
        partition: StorePartition,
        requestor: str,
        query: int = m.UNSOLICITED,
        last: Transaction | None = None,
    ) -> m.HistoryReply:
        """Return this store's durable history of a partition, and its last transaction."""
        end = partition.durable
        return m.HistoryReply(
            requestor,
            query,
            self.known.store,
            *partition.tp,
            end,
            partition.promised,
            prefix(partition.history, end),
            self.known.names,
            last if last and last.end <= end else None,  # the log may be ahead
        )

    def on_query(
        self, partition: StorePartition, query: m.HistoryQuery, last: Transaction | None
    ) -> list[Outgoing]:
        """Answer a question; one that asks for a promise when that is on disk."""
        asked = query.life
        if asked[:2] > partition.newest[:2] and len(self._promising) < MAX_PROMISING:
            # Holders of earlier promises may have written elsewhere, and needed fewer acks.
            acks = asked.acks
            if partition.promised > last_life(prefix(partition.history, partition.durable)):
                acks = min(acks, partition.promised.acks)
            partition.promised = asked._replace(acks=acks)
            self._promising[partition.tp, partition.promised] = query
            self.write(Promise(partition.tp, partition.promised))
        promised = partition.promised
        if promised[:2] == asked[:2] and (partition.tp, promised) in self._promising:
            return []
        return [self.reply(partition, query.requestor, query.query, last)]

    def on_promised(self, partition: StorePartition, life: EpochId) -> list[Outgoing]:
        """Answer the requestors of a promise that is on disk."""
        query = self._promising.pop((partition.tp, life), None)
        return [] if query is None else [self.reply(partition, query.requestor, query.query)]

    def on_tick(self, now: float) -> list[Outgoing]:
        """Ask other stores for histories, and notify producers of older lives."""
        if now < self._due or not (self._to_compare or self._to_fence):
            return []
        self._due = now + timing.HISTORY_INTERVAL_S
        messages: list[Outgoing] = [
            *(m.HistoryQuery(self.known.store, m.UNSOLICITED, *tp) for tp in self._to_compare),
            *(self.reply(each, tp.partition) for tp, each in self._to_fence.items()),
        ]
        self._to_compare.clear()
        self._to_fence.clear()
        return messages

    def deadline(self) -> float:
        """Return the time of the next question or notification."""
        return self._due if self._to_compare or self._to_fence else inf


# -- records that others have trimmed, or that clients write here ----------------------------------


class TrimmedGaps:
    """Partitions of which this store lacks records that all other stores have deleted.

    A store that was away for longer than the others keep records, or a new one, continues where the
    others begin, as a consumer does (option ``on_data_loss``); its older records are set aside,
    since a partition has no holes.  Silence of the others proves nothing: a store must announce
    that it begins after the missing records, no peer may have sent them for a while, and the
    announcing store's history must be as new as this store's own.
    """

    def __init__(self, known: KnownStores) -> None:
        self._known = known
        self._earliest: dict[TopicPartition, dict[str, int]] = {}  # offsets, by store
        self._due = 0.0

    def note_records(self, partition: StorePartition, store: str, info: PartitionInfo) -> None:
        """Note another store's records of a partition."""
        next_offset, starts = partition.next_offset, self._earliest.get(info.tp)
        if next_offset < info.earliest:
            self._earliest.setdefault(info.tp, {})[store] = info.earliest
        elif starts is not None and next_offset < info.end:
            starts[store] = info.earliest  # it has the next record
        elif starts is not None:
            starts.pop(store, None)

    def on_tick(
        self, now: float, partitions: Mapping[TopicPartition, StorePartition]
    ) -> list[Outgoing]:
        """Ask for the history of partitions that have waited long enough."""
        if not self._earliest or now < self._due:
            return []
        self._due = now + timing.STORE_LOSS_CHECK_S
        asked: list[Outgoing] = []
        for tp, starts in [*self._earliest.items()]:
            partition = partitions[tp]
            if partition.next_offset >= max(starts.values(), default=0):
                del self._earliest[tp]
            elif self._waited(now, partition, ()):
                asked.append(m.HistoryQuery(self._known.store, m.UNSOLICITED, *tp))
        return asked

    def deadline(self) -> float:
        """Return the time of the next check."""
        return self._due if self._earliest else inf

    def on_history(
        self, now: float, partition: StorePartition, reply: m.HistoryReply
    ) -> RestartPartition | None:
        """Return the entry that restarts the partition where the others begin; None to wait."""
        noted, here = self._earliest.get(reply.tp, {}), self._known.here
        if reply.end < noted.get(reply.store, 0):
            del noted[reply.store]  # it has set these records aside since
        starts = {name: at for name, at in noted.items() if name in here}
        start = min(starts.values(), default=-1)
        if (
            starts.get(reply.store) != start
            or start <= partition.next_offset
            or last_life(reply.history) < last_life(partition.history)
            or not self._waited(now, partition, reply.stores)
        ):
            return None
        del self._earliest[reply.tp]
        history, last = prefix(reply.history, start), reply.transaction
        partition.restart_at(start, history)
        last = last if last and last.end <= start else None
        return RestartPartition(reply.tp, start, history, last)

    def _waited(self, now: float, partition: StorePartition, known: Collection[str]) -> bool:
        """Return True if no peer has sent the next record for long enough."""
        away = {*self._known.names, *known} - self._known.here - {self._known.store}
        wait_s = timing.ABSENT_STORE_S if away else timing.STORE_LOSS_S
        return not partition.is_committing and partition.unanswered_s(now) >= wait_s


# Partitions announced at one time: this number of HEADs a second is cheap.  Beyond it the store no
# longer announces the one with the oldest write.
MAX_HOSTED: Final = 10_000


class HostedPartitions:
    """The partitions whose records clients write straight to this store, without a producer.

    For them the store acts as the producer: it publishes RECORD and HEAD, so that consumers and
    other stores, also C nodes, receive everything as if a producer had sent it.  It answers FETCH
    for every partition anyway.
    """

    def __init__(self) -> None:
        # Until when each is announced, and its head; the oldest write is first.
        self._hosted: dict[TopicPartition, tuple[float, m.Head | None]] = {}
        self._due = 0.0

    def begin(self, now: float, tp: TopicPartition) -> None:
        """Start to host a partition that a client writes to."""
        _, head = self._hosted.pop(tp, (0.0, None))
        self._hosted[tp] = now + timing.HOSTED_HEADS_S, head
        if len(self._hosted) > MAX_HOSTED:
            self.end(next(iter(self._hosted)))

    def end(self, tp: TopicPartition) -> None:
        """Stop: another node hosts the partition, or a producer writes it."""
        self._hosted.pop(tp, None)

    def stored(self, batch: RecordBatch) -> list[Outgoing]:
        """Return the records to publish after they are on disk; empty unless hosted."""
        head = self.published(batch.tp, batch.end)
        return [OutgoingBatch(batch), *head] if head else []

    def published(self, tp: TopicPartition, end: int) -> list[Outgoing]:
        """Return the head to publish after the records up to ``end``; empty unless hosted."""
        if tp not in self._hosted:
            return []
        head = m.Head(*tp, end - 1)
        self._hosted[tp] = self._hosted[tp][0], head
        return [head]

    def on_tick(self, now: float) -> list[Outgoing]:
        """Return the heads that are due."""
        if not self._hosted or now < self._due:
            return []
        self._due = now + timing.HOSTED_HEAD_INTERVAL_S
        self._hosted = {tp: each for tp, each in self._hosted.items() if each[0] >= now}
        return [head for _, head in self._hosted.values() if head is not None]

    def deadline(self) -> float:
        """Return when heads are due next."""
        return self._due if self._hosted else inf
