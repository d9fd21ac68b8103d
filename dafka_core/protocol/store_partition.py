"""A partition in a store (docs/states.md), with or without a producer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, last_life, prefix
from dafka_core.model.log_entries import RestartPartition, SetAside
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import timing
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.messages import UNSOLICITED, Head, HistoryQuery, HistoryReply
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.role import Outgoing, OutgoingBatch


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
    winner: HistoryReply | None = None
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

    def is_superseded(self, reply: HistoryReply) -> bool:
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
                asked.append(HistoryQuery(self._known.store, UNSOLICITED, *tp))
        return asked

    def deadline(self) -> float:
        """Return the time of the next check."""
        return self._due if self._earliest else inf

    def on_history(
        self, now: float, partition: StorePartition, reply: HistoryReply
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
        self._hosted: dict[TopicPartition, tuple[float, Head | None]] = {}
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
        head = Head(*tp, end - 1)
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
