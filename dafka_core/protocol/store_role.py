"""The store's role: accepts every partition in order, acknowledges durable records, serves them.

The role decides; the node has the log.  A record passes::

    on_batch       from a producer or another store: the partition's next records become pending
    host           the same for records of a client in the store's process
    take_pending   the node passes the pending entries to the log, one group at a time
    on_stored      the group is on disk, synced: returns an EpochAck for each of its partitions

A producer counts the stores that have acknowledged a record (``ProducerRole.acknowledged``).  A
store repeats its EpochAck when it receives a durable record or a head again, and when the producer
subscribes to acknowledgements.

Requests to read wait in ``requests``.  docs/states.md has the states of a partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import filterfalse, zip_longest
from typing import TypeGuard

from dafka_core.config.node_options import MAX_RECORD_BYTES, StoreLimitError
from dafka_core.errors import DafkaError, OffsetConflictError
from dafka_core.model.epochs import NO_LIFE, Epoch, epoch_at, last_life
from dafka_core.model.log_entries import (
    Commit,
    LogEntry,
    NameClient,
    Promise,
    RestartPartition,
    SetAside,
    Stage,
    StoreSeen,
    records_of,
)
from dafka_core.model.records import PartitionLives, RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.limits import RecentNames
from dafka_core.protocol.record_limits import error_of
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import KnownStores
from dafka_core.protocol.store_limits import StoreLimits, Usage
from dafka_core.protocol.store_partition import (
    Histories,
    HostedPartitions,
    StorePartition,
    TrimmedGaps,
)
from dafka_core.protocol.store_requests import (
    HeadsRequest,
    RecordsRequest,
    RequestQueue,
    requests_of,
)

_log = logging.getLogger("dafka.store")


class StoreRole:
    """Replicates every partition of the mesh.

    Args:
        address: the store's own.
        lives_of: returns the end and history of a partition on disk.
        hosting_id: random id of the epochs of clients' records in this store.
        least_number: of these epochs; the time in seconds, as for producers (``Takeover``).
        known: all stores ever discovered.
        wall_us: the time, microseconds since 1970 UTC.
        sync_interval_s: interval of asking other stores for their heads.
        limit_bytes: the largest record that can arrive.
        limits: those of its contents.
    """

    def __init__(
        self,
        address: str,
        lives_of: Callable[[TopicPartition], PartitionLives],
        *,
        sync_interval_s: float,
        limit_bytes: int = MAX_RECORD_BYTES,
        hosting_id: int = 0,
        least_number: int = 1,
        known: Iterable[StoreSeen] = (),
        wall_us: Callable[[], int] = lambda: 0,
        limits: StoreLimits | None = None,
    ) -> None:
        self.address = address
        self.limits = limits or StoreLimits()
        # All partitions in the log, and new ones below the limits.
        self.partitions: dict[TopicPartition, StorePartition] = {}
        self._topics: dict[str, None] = {}  # theirs; usually much fewer
        self._replaced: dict[TopicPartition, StorePartition] = {}  # those with a winner
        self.pending: list[LogEntry] = []  # the log's next entries
        self.pending_bytes = 0  # size of their values, and one for each record or other entry
        self.requests = RequestQueue()
        # Requestors that support HEADS-REPLY; the others get a message for each head.
        self.packing = RecentNames[None](MAX_PEERS)
        self.too_large_count = 0  # records rejected because they exceed the store's limit
        self._is_full = False  # the disk
        # Receives accepted records that never reach the log.
        self.on_dropped: Callable[[list[RecordBatch]], object] = lambda batches: None
        self.scheduler = FetchScheduler(address)
        self.known = KnownStores(address, known, wall_us, self.write)
        self.histories = Histories(self.known, hosting_id, least_number, self.write)
        self._trimmed = TrimmedGaps(self.known)
        self.hosted = HostedPartitions()  # partitions that clients write here
        self._lives_of = lives_of
        self._limit_bytes = limit_bytes
        self._sync_interval_s = sync_interval_s
        self._sync_due = 0.0
        self._acknowledge: dict[TopicPartition, StorePartition] = {}
        self._clients = RecentNames[str](MAX_PEERS)  # the names of producers that have connected
        self._committed_at = 0.0  # when the last commit was accepted

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Store Subscriptions; and those of a requestor that asks other stores."""
        of_all = (m.RecordMessage, m.RecordBatchMessage, m.Head, m.Fetch, m.GetHeads)
        queries = (m.HeadsQuery, m.TimesQuery, m.HistoryQuery)
        replies = (m.HeadsReply, m.HistoryReply, m.TimesReply)
        own = (m.DirectRecord, m.DirectRecordBatch, m.RecordTooLarge, m.DirectHead, m.FetchBatch)
        hellos = (m.StoreEndpoints, m.ConsumerHello, m.StoreHello, *replies)
        return [
            *(subscription(kind) for kind in (*of_all, *queries)),
            *(subscription(kind, self.address) for kind in (*own, *hellos)),
        ]

    # -- partitions and their limits -------------------------------------------------------------

    def _admit(self, tp: TopicPartition) -> StorePartition | StoreLimitError:
        """Return a partition, new ones included, or the error that refuses it."""
        partition = self.partitions.get(tp)
        if partition is None:
            partition = self._loaded(tp)
            if not partition.durable:
                if (error := self.limits.check(tp, is_new=True)) is not None:
                    return error
                self.limits.add(tp)
            self.partitions[tp] = partition
            self._topics[tp.topic] = None
        return partition

    def _loaded(self, tp: TopicPartition) -> StorePartition:
        """Return a partition as it is on disk, perhaps without records."""
        end, history, promised, _ = self._lives_of(tp)
        return StorePartition(tp, end, self.scheduler.budget, history=history, promised=promised)

    def _find(self, tp: TopicPartition) -> StorePartition | None:
        found = self._admit(tp)
        return None if isinstance(found, StoreLimitError) else found

    def _asked_for(self, query: m.HistoryQuery) -> StorePartition | None:
        """Return the partition of a question; a new one is kept only for a promise.

        Nodes may ask for the history of any partition, but take over only their own.
        """
        if query.life != NO_LIFE:
            return self._find(query.tp)
        return self.partitions.get(query.tp) or self._loaded(query.tp)

    def _admit_client(self, tp: TopicPartition) -> StorePartition | StoreLimitError:
        found = self._admit(tp)
        if isinstance(found, StoreLimitError):
            return found
        return self.limits.check(tp, is_new=False) or found

    def _is_refused(self, partition: StorePartition, end: int) -> bool:
        """Return True if records up to ``end`` are neither accepted nor fetched at present."""
        if end <= partition.next_offset:
            return False
        if not self._is_full and self.limits.check(partition.tp, is_new=False) is None:
            return False
        partition.raise_head(end)
        self.scheduler.forget(partition.tp)
        return True

    def on_scan(self, usage: Usage) -> None:
        """Apply a scan of the log: refused partitions continue if they have room again."""
        self._on_limits_crossed(self.limits.apply(usage))

    def on_room(self, *, is_full: bool) -> None:
        """Accept and fetch no records while the disk is full; continue when it has room."""
        self._is_full = is_full
        self._on_limits_crossed(set(map(self.limits.owner, self.partitions)))

    def _on_limits_crossed(self, owners: set[str]) -> None:
        for tp, partition in self.partitions.items() if owners else ():
            if (owner := self.limits.owner(tp)) not in owners:
                continue
            if self._is_full or owner in self.limits.over:
                self.scheduler.forget(tp)
            elif partition.next_offset < partition.head:
                partition.retry_unanswered()
                self.scheduler.enqueue(partition)

    # -- messages --------------------------------------------------------------------------------

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process heads, hellos and requests."""
        match message:
            case m.Head() | m.DirectHead():
                direct = isinstance(message, m.DirectHead)
                return self._on_head(now, message.tp, message.end, direct=direct)
            case m.StoreEndpoints():
                self.known.on_endpoints(message)
            case m.RecordTooLarge(requestor=self.address):
                self._on_too_large(message)
            case m.HeadsReply(requestor=self.address):
                return self._on_heads(now, message)
            case m.HistoryQuery() if message.requestor != self.address:
                if partition := self._asked_for(message):
                    last = self._lives_of(message.tp).transaction
                    return self.histories.on_query(partition, message, last)
            case m.HistoryReply(requestor=self.address):
                self._on_history(now, message)
            case m.StoreHello() if message.store != self.address:
                self.known.add(message.store)
                return [m.GetHeads("", self.address)]  # this store wants all records of the other
            case (
                m.GetHeads()
                | m.ConsumerHello()
                | m.Fetch()
                | m.FetchBatch(store=self.address)
                | m.HeadsQuery()
                | m.TimesQuery()
            ):
                for request in requests_of(message):
                    self.requests.add(request, peer)
                if isinstance(message, m.HeadsQuery):
                    changes = self.known.changes_for(message.requestor)
                    return [changes] if changes else []
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process records; the next ones become pending."""
        partition = self._find(batch.tp) if requestor in ("", self.address) else None
        if partition is None:
            return []
        if self._is_refused(partition, batch.end) or partition.is_committing:
            partition.give_back(batch)
            return []
        if not self.histories.admits(partition, batch):
            start = self.histories.taken_over_at(partition, batch.epoch)
            self._set_aside(partition, start, batch.end, batch.epoch)
            return []
        taken = partition.take(now, batch)
        if taken:
            self.hosted.end(batch.tp)
            self._write_taken(partition, taken)
        elif batch.offset < partition.durable:
            # Its sender has not received our ACK.  Without a second one, as from C stores, it would
            # wait for ever.
            self._acknowledge[batch.tp] = partition
        return self.scheduler.fetch(now, partition)

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Greet requestors, and send peers what they may have missed."""
        if (greeting := self.known.greeting(kind, topic)) is not None:
            return [greeting]
        if kind is m.TimesReply and topic:
            # A requestor's last subscription, in the order of their bytes: from now on it receives
            # everything.  Permanently: a peer that is only late does not subscribe again.
            self.packing.keep(topic, None)
            return [m.HeadsReply(topic, m.UNSOLICITED, self.address, 0, 1, ())]
        if kind is m.GetHeads and not topic:
            return [m.GetHeads("", self.address)]  # another store, which receives it now
        if kind is m.Head and not topic:
            self.requests.add(HeadsRequest("", ("",)))  # C stores do not ask (docs/wire.md)
        if kind is m.Fetch:
            self.scheduler.retry_unanswered(topic)
        if kind is m.Ack and topic:
            # A producer may have missed our ACKs before, and its records may have come before its
            # name.
            for tp in (TopicPartition(each, topic) for each in self._topics):
                if (partition := self.partitions.get(tp)) is not None:
                    self._acknowledge[tp] = partition
                    self.name_client(tp, self._clients.get(topic, ""))
        return []

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a known store, or its loss."""
        if news.endpoint and news.node != self.address:
            self.known.on_announced(news.node, news.endpoint)
        if news.client:
            self._clients.keep(news.node, news.client)
        if news.is_lost:
            self.known.on_peer_lost(news.node)
            for tp, each in [*self._replaced.items()]:
                if each.winner is None or each.winner.store == news.node:
                    each.winner = None
                    del self._replaced[tp]

    def sync(self) -> None:
        """Ask other stores for their heads soon, instead of at the next interval."""
        self._sync_due = 0.0

    def on_tick(self, now: float) -> list[Outgoing]:
        """Request missing records, and other stores' heads."""
        self.known.on_tick(now)
        self.limits.report(now)
        messages = [*self.scheduler.fetch_due(now), *self.hosted.on_tick(now), *self._take_acks()]
        if now >= self._sync_due:
            self._sync_due = now + self._sync_interval_s
            messages.append(m.GetHeads("", self.address))
        gone = self._trimmed.on_tick(now, self.partitions)
        return [*messages, *self.histories.on_tick(now), *gone]

    def deadline(self, now: float) -> float:
        """Return the time of the next request."""
        asked = (self.scheduler, self.hosted, self.histories, self.known, self._trimmed)
        return min(self._sync_due, *(each.deadline() for each in asked))

    def name_client(self, tp: TopicPartition, client: str) -> None:
        """Keep the name of the client that writes a partition, if it is new."""
        partition = self.partitions.get(tp)
        if client and partition is not None and partition.client != client:
            partition.client = client
            self.write(NameClient(tp, client))

    # -- clients in the store's process ----------------------------------------------------------

    def next_offset(self, tp: TopicPartition) -> int:
        """Return the next offset that a partition accepts, which may be ahead of the disk."""
        return known.visible_end if (known := self.partitions.get(tp)) else self._lives_of(tp).end

    def losses(self, tp: TopicPartition) -> int:
        """Return how often records were dropped from the partition's end."""
        return known.losses if (known := self.partitions.get(tp)) else 0

    def host(self, now: float, batch: RecordBatch) -> RecordBatch | DafkaError:
        """Accept a client's records if they are the partition's next; return the log's entry.

        A batch with an epoch begins or continues its life, for which the client has made sure that
        the store's records before it are the partition's: the others are set aside first.
        """
        partition = self._admit_client(batch.tp)
        if isinstance(partition, StoreLimitError):
            return partition
        epoch, last = batch.epoch, partition.history[-1:]
        if epoch is not None and last and last[0].life == epoch.life:
            epoch = last[0]
        elif epoch is not None and not partition.is_committing:
            epoch = self.histories.next_epoch(partition, epoch)
            if epoch is None:
                return OffsetConflictError(*batch.tp, batch.offset, partition.visible_end)
            if batch.offset < partition.visible_end:
                self._set_aside(partition, epoch.start, epoch.start, epoch)
                self.histories.begin(partition, epoch)
        if batch.offset != partition.visible_end or partition.is_committing:
            return OffsetConflictError(*batch.tp, batch.offset, partition.visible_end)
        self._give_up_part(partition)
        self.hosted.begin(now, batch.tp)
        if epoch is None:
            epoch = self.histories.client_epoch(partition, batch.offset)
        entry = replace(batch, epoch=epoch)
        self._write_taken(partition, partition.take(now, entry))
        return entry

    def stage(self, stage: Stage) -> Stage | StoreLimitError:
        """Accept records to stage, if the limits admit them."""
        partition = self._admit_client(stage.batch.tp)
        if isinstance(partition, StoreLimitError):
            return partition
        # Records at the partition's end replace staged ones; see ``log_entries``.
        if stage.batch.offset == partition.visible_end:
            self._give_up_part(partition)
        self.write(stage)
        return stage

    def commit(self, now: float, commit: Commit) -> Commit | StoreLimitError:
        """Accept a commit if its partitions are admitted; return it with epochs, or the error."""
        partitions = []
        for staged in commit.transactions:
            if isinstance(found := self._admit(staged.tp), StoreLimitError):
                return found
            partitions.append(found)
        epochs = []
        for partition, staged in zip(partitions, commit.transactions, strict=True):
            partition.commits += 1
            epochs.append(self.histories.client_epoch(partition, staged.start))
        self._committed_at = now
        self.write(commit := commit._replace(epochs=tuple(epochs)))
        return commit

    def _give_up_part(self, partition: StorePartition) -> None:
        # A client writes where a transaction is incomplete: its sender may be gone for ever.
        if partition.staged is not None:
            self._truncate(partition, partition.visible_end)

    # -- the log ---------------------------------------------------------------------------------

    def write(self, entry: LogEntry) -> None:
        """Append an entry to the log's queue."""
        self.pending.append(entry)
        self.pending_bytes += _size(entry)
        if self.limits.counts_bytes:
            self._on_limits_crossed(self.limits.on_queued(entry))

    def take_pending(self) -> list[LogEntry]:
        """Remove the log's next entries."""
        pending, self.pending, self.pending_bytes = self.pending, [], 0
        return pending

    def on_stored(
        self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None] = ()
    ) -> list[Outgoing]:
        """Process durable and failed entries; return ACKs, and hosted records to publish."""
        published: list[Outgoing] = []
        for entry, error in zip_longest(entries, outcomes):
            if self.limits.counts_bytes:
                self.limits.on_written(entry)
            match entry:
                case RecordBatch():
                    published += self._on_batch_stored(entry, error)
                case Commit():
                    published += self._on_committed(entry, error)
                case SetAside() | RestartPartition():
                    self.partitions[entry.tp].on_replaced(entry)
                    self.scheduler.enqueue(self.partitions[entry.tp])
                case Promise():
                    published += self.histories.on_promised(self.partitions[entry.tp], entry.life)
        return [*self._take_acks(), *published]

    def _write_taken(self, partition: StorePartition, taken: list[RecordBatch]) -> None:
        for batch in taken:
            if not self.histories.extend(partition, batch):
                self._truncate(partition, batch.offset)
                return
            self.write(partition.extend(batch))
            self.name_client(batch.tp, self._clients.get(batch.tp.partition, ""))

    def _on_batch_stored(self, batch: RecordBatch, error: DafkaError | None) -> list[Outgoing]:
        partition = self.partitions[batch.tp]
        if partition.pending_replacements:
            return []  # it may be among the next records set aside
        if error is not None:
            lives = self._lives_of(batch.tp)
            partition.history = lives.history
            self._truncate(partition, lives.end)
        elif batch.transaction is None or batch.end >= batch.transaction.end:
            partition.durable = batch.end
            self._acknowledge[batch.tp] = partition
            return self.hosted.stored(batch)
        return []

    def _on_committed(self, commit: Commit, error: DafkaError | None) -> list[Outgoing]:
        published: list[Outgoing] = []
        for staged, epoch in zip_longest(commit.transactions, commit.epochs):
            tp, end = staged.tp, staged.end
            partition = self.partitions[tp]
            partition.commits -= 1
            if error is None and end > partition.durable and not partition.pending_replacements:
                self.histories.begin(partition, epoch)
                partition.durable = partition.visible_end = end
                self._acknowledge[tp] = partition
                self.hosted.begin(self._committed_at, tp)
                self._write_taken(partition, partition.advance(end))
                transactions = (staged.transaction,)
                publish = RecordsRequest("", tp, staged.start, end, transactions=transactions)
                if not self.requests.add(publish):
                    published += self.hosted.published(tp, end)
            self.scheduler.enqueue(partition)
        return published

    def _truncate(self, partition: StorePartition, end: int) -> None:
        """Drop pending records from ``end`` on, and fetch the partition from there."""
        tp = partition.tp

        def is_dropped(entry: LogEntry) -> TypeGuard[RecordBatch]:
            return isinstance(entry, RecordBatch) and entry.tp == tp and entry.offset >= end

        dropped = [*filter(is_dropped, self.pending)]
        self.pending = [*filterfalse(is_dropped, self.pending)]
        self.pending_bytes = sum(map(_size, self.pending))
        for each in dropped if self.limits.counts_bytes else ():
            self.limits.on_written(each)  # counted as written, until the next scan corrects it
        partition.truncate(end)
        self.scheduler.enqueue(partition)
        self.on_dropped(dropped)

    def _take_acks(self) -> list[Outgoing]:
        acks = [ack for each in self._acknowledge.values() for ack in self.histories.ack(each)]
        self._acknowledge.clear()
        return acks

    # -- heads and histories of other nodes ------------------------------------------------------

    def _on_too_large(self, record: m.RecordTooLarge) -> None:
        partition, offset = self.partitions.get(record.tp), record.sequence
        # For a smaller record the report is wrong: another node may still send it.
        if partition is None or record.size_bytes <= self._limit_bytes:
            return
        if partition.too_large != offset == partition.next_offset:
            partition.too_large = offset
            self.too_large_count += 1
            error = error_of(record, self._limit_bytes, f"store {self.address}")
            text = "%s. Until then nothing after it in this partition is stored here"
            _log.error(text, error, extra={"event": "record_too_large"})

    def _on_head(self, now: float, tp: TopicPartition, end: int, *, direct: bool) -> list[Outgoing]:
        partition = self._find(tp)
        if partition is None:
            return []
        if partition.durable >= end:
            self._acknowledge[tp] = partition
        refused = self._is_refused(partition, end)
        return [] if refused else self.scheduler.on_head(now, partition, end, direct=direct)

    def _on_heads(self, now: float, heads: m.HeadsReply) -> list[Outgoing]:
        messages: list[Outgoing] = []
        for info in heads.entries:
            partition = self._find(info.tp)
            if partition is not None and info.end:
                self._trimmed.note_records(partition, heads.store, info)
                messages += self._on_head(now, info.tp, info.end, direct=True)
                if partition.history and info.life > last_life(partition.history):
                    self.histories.differs(partition, info.life)
        return messages

    def _on_history(self, now: float, reply: m.HistoryReply) -> None:
        if partition := self.partitions.get(reply.tp):
            start = self.histories.wins_at(partition, reply)
            self._set_aside(partition, start, reply.end, epoch_at(reply.history, reply.end))
            if start is not None or partition.is_superseded(reply):
                partition.winner = reply
                self._replaced[reply.tp] = partition
            if entry := self._trimmed.on_history(now, partition, reply):
                self.write(entry)

    def _set_aside(
        self, partition: StorePartition, start: int | None, end: int, winner: Epoch | None
    ) -> None:
        """Yield the records from ``start`` on to the history of ``winner``, up to ``end``."""
        if start is not None and winner is not None:
            if partition.staged is not None:  # the log drops the whole part
                start = min(start, partition.visible_end)
            # After all queued entries: those are set aside, too.
            self.write(SetAside(partition.tp, start))
            partition.pending_replacements += 1
            partition.replace_from(start, end, winner.life)


def _size(entry: LogEntry) -> int:
    batch = records_of(entry)
    return 1 if batch is None else batch.values.size_bytes + batch.count
