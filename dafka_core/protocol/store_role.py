"""The store's role: accepts every partition in order, acknowledges durable records, serves them.

The role decides; the node has the log.  ``take_pending`` returns the log's next entries, and
``on_stored`` the messages to send after the log has processed them.  Requests to read wait in
``requests``.  docs/states.md has the states of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from dafka_core.config.node_options import MAX_RECORD_BYTES, StoreLimitError
from dafka_core.errors import DafkaError, RecordTooLargeError
from dafka_core.model.epochs import Epoch, before, epoch_at, last_life
from dafka_core.model.log_entries import (
    Commit,
    LogEntry,
    Promise,
    RestartPartition,
    SetAside,
    Stage,
    StoreSeen,
)
from dafka_core.model.records import PartitionInfo, PartitionLives, RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol import partition_states as states
from dafka_core.protocol import store_requests, timing
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.histories import Histories
from dafka_core.protocol.known_stores import KnownStores
from dafka_core.protocol.limits import RecentNames
from dafka_core.protocol.record_limits import error_of
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_limits import AdmittedPartitions, StoreLimits
from dafka_core.protocol.store_partition import HostedPartitions, StorePartition
from dafka_core.protocol.store_requests import PublishCommitted, continued


class TrimmedElsewhere:
    """Partitions of which this store lacks records that all other stores have deleted.

    A store that was away for longer than the others keep records, or a new one, continues where the
    others begin, as a consumer does (option ``on_data_loss``); its older records are set aside,
    since a partition has no holes.  Silence of the others proves nothing: a store must announce
    that it begins after the missing records, no peer may have sent them for a while, and the
    announcing store's history must be as new as this store's own.
    """

    def __init__(self, known: KnownStores) -> None:
        self._known = known
        self._earliest: dict[TopicPartition, dict[str, int]] = {}
        self._due = 0.0

    def on_held(self, partition: StorePartition, store: str, info: PartitionInfo) -> None:
        """Note another store's records of a partition."""
        next_offset, starts = partition.fetcher.next_offset, self._earliest.get(info.tp)
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
            next_offset = partition.fetcher.next_offset
            if next_offset >= max(starts.values(), default=0):
                del self._earliest[tp]
            elif self._waited(now, partition, ()):
                asked.append(m.HistoryQuery(self._known.store, m.UNSOLICITED, *tp))
        return asked

    def deadline(self) -> float | None:
        """Return the time of the next check."""
        return self._due if self._earliest else None

    def on_history(
        self, now: float, partition: StorePartition, reply: m.HistoryReply
    ) -> RestartPartition | None:
        """Return the entry that restarts the partition where the others begin; None to wait."""
        here = self._known.here
        starts = {name: at for name, at in self._earliest.get(reply.tp, {}).items() if name in here}
        if not starts or not self._waited(now, partition, reply.stores):
            return None
        start = min(starts.values())
        is_newer = last_life(reply.history) >= last_life(partition.history)
        if (
            starts.get(reply.store) != start
            or start <= partition.fetcher.next_offset
            or not is_newer
        ):
            return None
        del self._earliest[reply.tp]
        history = before(reply.history, start)
        partition.restart_at(start, history)
        last = reply.transaction
        return RestartPartition(
            reply.tp, start, history, last if last and last.end <= start else None
        )

    def _waited(self, now: float, partition: StorePartition, known: Collection[str]) -> bool:
        """Return True if no peer has sent the next record for long enough."""
        away = {*self._known.names, *known} - self._known.here - {self._known.store}
        wait_s = timing.ABSENT_STORE_S if away else timing.STORE_LOSS_S
        is_busy = partition.commits or partition.asides
        return not is_busy and partition.fetcher.unanswered_s(now) >= wait_s


class StoreRole:
    """Replicates every partition of the mesh.

    Args:
        address: the store's own.
        lives_of: returns the end and history of a partition on disk.
        hosting_id: random id of the epochs of clients' records in this store.
        least_number: of these epochs; the time in seconds, as for producers (``Takeover``).
        met: all stores ever discovered.
        wall_us: the time, microseconds since 1970 UTC.
        sync_interval_s: interval of asking other stores for their heads.
        limit_bytes: the largest record that can arrive.
        limits: on its contents.
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
        met: Iterable[StoreSeen] = (),
        wall_us: Callable[[], int] = lambda: 0,
        limits: StoreLimits | None = None,
    ) -> None:
        self.address = address
        self.too_large: list[RecordTooLargeError] = []
        """Errors of partitions that are blocked by a record, each once; drained by the node."""
        self.on_dropped: Callable[[list[RecordBatch]], object] = lambda batches: None
        """Receives accepted records that never reach the log."""
        self.requests = store_requests.RequestQueue()
        self.packing = RecentNames[None](MAX_PEERS)
        """Requestors that support HEADS-REPLY; the others get a message for each head."""
        self.scheduler = FetchScheduler(address)
        self.admitted = AdmittedPartitions(self.scheduler, lives_of, limits or StoreLimits())
        self.partitions = self.admitted.by_name
        self._partition = self.admitted.find
        self.pending: list[LogEntry] = []  # the log's next entries
        self.pending_bytes = 0  # of values, and one for each record or entry
        self.known = KnownStores(address, met, wall_us, self.write)
        self.histories = Histories(self.known, hosting_id, least_number)
        self._trimmed = TrimmedElsewhere(self.known)
        self._lives_of = lives_of
        self._limit_bytes = limit_bytes
        self._sync_interval_s = sync_interval_s
        self._sync_due = 0.0
        self._hosted = HostedPartitions()
        self._acknowledge: dict[TopicPartition, StorePartition] = {}
        self._commit_s = 0.0  # when the last commit was accepted

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

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Process heads, hellos and requests."""
        match message:
            case m.Head() | m.DirectHead():
                direct = isinstance(message, m.DirectHead)
                return self._on_head(now, message.tp, message.end, direct=direct)
            case m.StoreEndpoints():
                self.known.on_endpoints(message)
            case m.RecordTooLarge(requestor=self.address):
                self._note_too_large(message)
            case m.HeadsReply(requestor=self.address):
                return self._on_heads(now, message)
            case m.HistoryQuery():
                return self._on_history_query(message)
            case m.HistoryReply(requestor=self.address):
                self._on_history(now, message)
            case m.StoreHello() if message.store != self.address:
                self.known.meet(message.store)
                return [m.GetHeads("", self.address)]  # this store wants all records of the other
            case m.Fetch() | m.GetHeads() | m.ConsumerHello() | m.TimesQuery():
                self.requests.add(message, peer)
            case m.HeadsQuery():
                self.requests.add(message, peer)
                return [news] if (news := self.known.news(message.requestor)) else []
            case m.FetchBatch() if message.store == self.address:
                self.requests.add(store_requests.FetchMany.of(message), peer)
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Process records; the next ones become pending."""
        partition = self._partition(batch.tp) if requestor in ("", self.address) else None
        if partition is None:
            return []
        refused = self.admitted.refuses(partition, batch.end)
        if refused or partition.action(states.RECORDS) == states.LEAVE:
            partition.fetcher.give_back(batch)
            return []
        if not self.histories.admits(partition, batch):
            start = self.histories.taken_over_at(partition, batch.epoch)
            self._set_aside(partition, start, batch.end, batch.epoch)
            return []
        taken = partition.fetcher.take(now, batch)
        if taken:
            self._hosted.end(batch.tp)
            self._write_taken(partition, taken)
        elif batch.offset < partition.durable:
            # Its sender has not received our ACK.  C stores send none: it would wait for ever.
            self._acknowledge[batch.tp] = partition
        return self.scheduler.ask(now, partition.fetcher)

    def host(self, now: float, batch: RecordBatch) -> RecordBatch | None:
        """Accept a client's records if they are the partition's next; return the log's entry."""
        partition = self._partition(batch.tp)
        if partition is None or batch.offset != partition.visible_end:
            return None
        action = partition.action(states.PUT)
        if action == states.REFUSE:
            return None
        if action == states.TAKE_OVER:
            self._give_up_part(partition)
        self._hosted.begin(now, batch.tp)
        hosted = replace(batch, epoch=self.histories.hosted(partition, batch.offset))
        self._write_taken(partition, partition.fetcher.take(now, hosted))
        return hosted

    def stage(self, stage: Stage) -> Stage | None:
        """Accept records to stage, if their partition is admitted."""
        partition = self._partition(stage.batch.tp)
        if partition is None:
            return None
        # Records at the partition's end replace staged ones; see ``log_entries``.
        at_end = stage.batch.offset == partition.visible_end
        if at_end and partition.action(states.STAGE) == states.TAKE_OVER:
            self._give_up_part(partition)
        self.admitted.on_taken(stage.batch)
        self.write(stage)
        return stage

    def commit(self, now: float, commit: Commit) -> Commit | StoreLimitError:
        """Accept a commit if its partitions are admitted; return it with epochs, or the error."""
        epochs, partitions = [], []
        for staged in commit.transactions:
            if isinstance(found := self.admitted.admit(staged.tp), StoreLimitError):
                return found
            partitions.append(found)
        for partition, staged in zip(partitions, commit.transactions, strict=True):
            partition.commits += 1
            epochs.append(self.histories.hosted(partition, staged.start))
        self._commit_s = now
        self.write(commit := commit._replace(epochs=tuple(epochs)))
        return commit

    def write(self, entry: LogEntry) -> None:
        """Append an entry to the log's queue."""
        self.pending.append(entry)
        batch = entry.batch if isinstance(entry, Stage) else entry
        size = batch.values.size_bytes + len(batch.values) if isinstance(batch, RecordBatch) else 1
        self.pending_bytes += size

    def next_offset(self, tp: TopicPartition) -> int:
        """Return the next offset that a partition accepts, which may be ahead of the disk."""
        return known.visible_end if (known := self.partitions.get(tp)) else self._lives_of(tp).end

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
            self.requests.add(store_requests.AnnounceHeads())
        if kind is m.Fetch:
            self.scheduler.retry_unanswered(topic)
        if kind is m.Ack and topic:
            # A producer may have missed our ACKs before.
            for tp, partition in self.partitions.items():
                if tp.partition == topic:
                    self._acknowledge[tp] = partition
        return []

    def on_peer(self, now: float, news: PeerNews) -> None:
        """Note a peer that may be a known store."""
        if news.endpoint and news.node != self.address:
            self.known.on_announced(news.node, news.endpoint)

    def on_peer_lost(self, peer: str) -> None:
        """Note the loss: other peers have its records, or it returns."""
        self.known.on_peer_lost(peer)
        for each in self.partitions.values():
            if each.winner and each.winner.store == peer:
                each.winner = None

    def on_tick(self, now: float) -> list[Outgoing]:
        """Request missing records, and other stores' heads."""
        self.known.on_tick(now)
        messages = [*self.scheduler.ask_due(now), *self._hosted.on_tick(now), *self._take_acks()]
        if now >= self._sync_due:
            self._sync_due = now + self._sync_interval_s
            messages.append(m.GetHeads("", self.address))
        gone = self._trimmed.on_tick(now, self.partitions)
        return [*messages, *self.histories.on_tick(now), *gone]

    def deadline(self, now: float) -> float | None:
        """Return the time of the next request."""
        asked = (self.scheduler, self._hosted, self.histories, self.known, self._trimmed)
        deadlines = [self._sync_due, *(each.deadline() for each in asked)]
        return min(due for due in deadlines if due is not None)

    def take_pending(self) -> list[LogEntry]:
        """Remove the log's next entries."""
        pending, self.pending, self.pending_bytes = self.pending, [], 0
        return pending

    def on_stored(
        self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None] = ()
    ) -> list[Outgoing]:
        """Process the log's outcomes: entries are durable, or failed with an error.

        Returns the acknowledgements, and hosted records to publish.
        """
        published: list[Outgoing] = []
        self.admitted.on_stored(entries)
        for entry, error in zip_longest(entries, outcomes):
            if isinstance(entry, RecordBatch):
                published.extend(self._on_batch_stored(entry, error))
            elif isinstance(entry, Commit):
                published.extend(self._on_committed(entry, error))
            elif isinstance(entry, SetAside | RestartPartition):
                self.partitions[entry.tp].on_begun(entry)
                self.scheduler.visit_soon(self.partitions[entry.tp].fetcher)
            elif isinstance(entry, Promise):
                published.extend(self.histories.on_promised(self.partitions[entry.tp], entry.life))
        return [*self._take_acks(), *published]

    def on_room(self, *, is_full: bool) -> None:
        """Accept no records while the disk is full."""
        self.admitted.on_room(is_full=is_full)

    def on_published(self, publish: PublishCommitted) -> list[Outgoing]:
        """Return the head after all of the committed records are published."""
        return self._hosted.published(publish.tp, publish.end)

    def _write_taken(self, partition: StorePartition, taken: list[RecordBatch]) -> None:
        for each in taken:
            if not self.histories.extend(partition, each):
                self._begin_anew(partition, each.offset)
                return
            batch, partition.staged = continued(each, partition.staged)
            if partition.staged is None:
                partition.visible_end = batch.end
            self.admitted.on_taken(batch)
            self.write(batch)

    def _on_batch_stored(self, batch: RecordBatch, error: DafkaError | None) -> list[Outgoing]:
        partition = self.partitions[batch.tp]
        if partition.asides:
            return []  # it may be among the next records set aside
        if error is not None:
            lives = self._lives_of(batch.tp)
            partition.history = lives.history
            self._begin_anew(partition, lives.end)
        elif batch.transaction is None or batch.end >= batch.transaction.end:
            partition.durable = batch.end
            self._acknowledge[batch.tp] = partition
            return self._hosted.stored(batch)
        return []

    def _on_committed(self, commit: Commit, error: DafkaError | None) -> list[Outgoing]:
        published: list[Outgoing] = []
        for staged, epoch in zip_longest(commit.transactions, commit.epochs):
            tp, end = staged.tp, staged.end
            partition = self.partitions[tp]
            partition.commits -= 1
            if error is None and end > partition.durable and not partition.asides:
                self.histories.begin(partition, epoch)
                partition.durable = partition.visible_end = end
                self._acknowledge[tp] = partition
                self._hosted.begin(self._commit_s, tp)
                self._write_taken(partition, partition.fetcher.advance(end))
                publish = PublishCommitted(tp, staged.start, end, (staged.transaction,))
                if not self.requests.add(publish):
                    published.extend(self.on_published(publish))
            self.scheduler.visit_soon(partition.fetcher)
        return published

    def _give_up_part(self, partition: StorePartition) -> None:
        # A client writes where a transaction is incomplete: its sender may be gone for ever.
        if partition.staged is not None:
            self._begin_anew(partition, partition.visible_end)

    def _begin_anew(self, partition: StorePartition, end: int) -> None:
        """Forget records from ``end`` on: the log does not have them, and will not."""
        fetcher, dropped = partition.fetcher, list[RecordBatch]()
        for entry in self.take_pending():
            if isinstance(entry, RecordBatch) and entry.tp == fetcher.tp and entry.offset >= end:
                dropped.append(entry)
            else:
                self.write(entry)
        fetcher.begin(end)
        partition.history = before(partition.history, end)
        partition.visible_end, partition.staged = end, None
        self.scheduler.visit_soon(fetcher)
        self.admitted.on_stored(dropped)  # in fact dropped
        self.on_dropped(dropped)

    def _note_too_large(self, record: m.RecordTooLarge) -> None:
        partition, offset = self.partitions.get(record.tp), record.sequence
        # For a smaller record the report is wrong: another node may still send it.
        if partition is None or record.size_bytes <= self._limit_bytes:
            return
        if partition.too_large != offset == partition.fetcher.next_offset:
            partition.too_large = offset
            self.too_large.append(error_of(record, self._limit_bytes, f"store {self.address}"))

    def _on_head(self, now: float, tp: TopicPartition, end: int, *, direct: bool) -> list[Outgoing]:
        partition = self._partition(tp)
        if partition is None:
            return []
        if partition.durable >= end:
            self._acknowledge[tp] = partition
        refused = self.admitted.refuses(partition, end)
        return [] if refused else self.scheduler.on_head(now, partition.fetcher, end, direct=direct)

    def _on_heads(self, now: float, heads: m.HeadsReply) -> list[Outgoing]:
        messages: list[Outgoing] = []
        for info in heads.entries:
            partition = self._partition(info.tp)
            if partition is not None and info.end:
                self._trimmed.on_held(partition, heads.store, info)
                messages += self._on_head(now, info.tp, info.end, direct=True)
                if partition.history and info.life > last_life(partition.history):
                    self.histories.differs(partition, info.life)
        return messages

    def _on_history_query(self, query: m.HistoryQuery) -> list[Outgoing]:
        partition = self._partition(query.tp) if query.requestor != self.address else None
        if partition is not None and self.histories.on_query(partition, query):
            self.write(Promise(query.tp, partition.promised))
        if partition is None or self.histories.waits(partition, query):
            return []
        last = self._lives_of(query.tp).transaction
        return [self.histories.reply(partition, query.requestor, query.query, last)]

    def _on_history(self, now: float, reply: m.HistoryReply) -> None:
        if partition := self.partitions.get(reply.tp):
            start = self.histories.wins_at(partition, reply)
            self._set_aside(partition, start, reply.end, epoch_at(reply.history, reply.end))
            if start is not None or (partition.winner and reply.store == partition.winner.store):
                partition.winner = reply
            if entry := self._trimmed.on_history(now, partition, reply):
                self.write(entry)

    def _set_aside(
        self, partition: StorePartition, start: int | None, end: int, winner: Epoch | None
    ) -> None:
        """Yield the records from ``start`` on to the history of ``winner``, up to ``end``."""
        if start is not None and winner is not None:
            # After all queued entries: those are set aside, too.
            self.write(SetAside(partition.fetcher.tp, start))
            partition.asides += 1
            partition.give_up(start, end, winner.life)

    def _take_acks(self) -> list[Outgoing]:
        acks = [ack for each in self._acknowledge.values() for ack in self.histories.ack(each)]
        self._acknowledge.clear()
        return acks
