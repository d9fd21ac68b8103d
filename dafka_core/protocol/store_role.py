"""The store's role: takes every partition in order, acknowledges what is on disk, answers from it.

The role decides; the node has the log.  ``take_pending`` returns what the log is to do next, and
``on_stored`` what to send when the log has done it.  Requests to read wait in ``requests``.
docs/states.md has the states of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from dafka_core.errors import DafkaError, RecordTooLargeError
from dafka_core.log_entries import Commit, LogEntry, Stage
from dafka_core.protocol import messages as m
from dafka_core.protocol import partition_states as states
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.fetch_scheduler import MAX_PARTITIONS, FetchScheduler
from dafka_core.protocol.hosted_partitions import HostedPartitions
from dafka_core.protocol.limits import MAX_RECORD_BYTES
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.partition_states import StoreState
from dafka_core.protocol.record_limits import error_of
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import GREETING, MAX_STORES
from dafka_core.protocol.store_requests import AnnounceHeads, FetchMany, RequestQueue
from dafka_core.protocol.transactions import PublishCommitted, continued
from dafka_core.records import RecordBatch, TopicPartition, Transaction

MAX_REQUESTORS: Final = 10_000
"""Requestors remembered, by the names they choose; the others get a message for each head."""


@dataclass(slots=True)
class StorePartition:
    """One partition as a store keeps it."""

    fetcher: PartitionFetcher
    durable: int
    """Readers see the records before this offset: they are on disk."""
    visible_end: int
    """What ``durable`` will be when the log has done all that it was given, but for commits."""
    staged: Transaction | None = None  # another store's, of which only the first part has come
    commits: int = 0  # on their way to the disk
    too_large: int = -1
    """The offset of the record that it cannot take, as the last error said."""

    @property
    def state(self) -> StoreState:
        """The partition's state (docs/states.md)."""
        if self.commits:
            return StoreState.COMMITTING
        if self.staged is not None:
            return StoreState.IN_PART
        if self.fetcher.next_offset < self.fetcher.head:
            return StoreState.BEHIND
        return StoreState.FOLLOWING

    def action(self, event: str) -> str:
        """What the store does at an event."""
        return states.STORE_TABLE[self.state][event].action


class StoreRole:
    """Keeps up with every partition there is.

    Args:
        address: the store's own.
        end_of: the end (exclusive) of a partition on disk, 0 if there is none.
        sync_interval_s: how often to ask other stores for their heads.
        limit_bytes: the largest record that reaches it.
    """

    def __init__(
        self,
        address: str,
        end_of: Callable[[TopicPartition], int],
        *,
        sync_interval_s: float,
        limit_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.address = address
        self.too_large: list[RecordTooLargeError] = []
        """Records for which partitions cannot go on here, each once; the node empties it."""
        self.locations: tuple[str, ...] = ()
        """Where this store's records can be read in bulk; told to requestors."""
        self.endpoints: dict[str, tuple[str, ...]] = {}
        """The same of the other stores, by address."""
        self.requests = RequestQueue()
        self.packing: dict[str, None] = {}
        """Requestors that understand HEADS-REPLY."""
        self.scheduler = FetchScheduler(address)
        self.partitions: dict[TopicPartition, StorePartition] = {}
        self.pending: list[LogEntry] = []  # what the log is to do next
        self.pending_bytes = 0
        """How much is pending: bytes of values, and one for each record or entry."""
        self._end_of = end_of
        self._limit_bytes = limit_bytes
        self._sync_interval_s = sync_interval_s
        self._sync_due = 0.0
        self._hosted = HostedPartitions()
        self._acknowledge: dict[TopicPartition, StorePartition] = {}
        self._commit_s = 0.0  # when the last commit was taken

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Store Subscriptions; and those of a requestor that asks other stores."""
        of_all = (m.RecordMessage, m.RecordBatchMessage, m.Head, m.Fetch, m.GetHeads)
        queries = (m.HeadsQuery, m.TimesQuery)
        own = (m.DirectRecord, m.DirectRecordBatch, m.RecordTooLarge, m.DirectHead, m.FetchBatch)
        hellos = (m.StoreEndpoints, m.ConsumerHello, m.StoreHello)
        return [
            *(subscription(kind) for kind in (*of_all, *queries)),
            *(subscription(kind, self.address) for kind in (*own, *hellos)),
        ]

    def on_message(self, now: float, message: m.Message, peer: str) -> list[Outgoing]:
        """Takes heads, hellos and requests."""
        match message:
            case m.Head() | m.DirectHead():
                return self._on_head(now, message)
            case m.StoreEndpoints():
                if message.store in self.endpoints or len(self.endpoints) < MAX_STORES:
                    self.endpoints[message.store] = message.locations
            case m.RecordTooLarge(requestor=self.address):
                self._note_too_large(message)
            case m.StoreHello() if message.store != self.address:
                return [m.GetHeads("", self.address)]  # this store wants all that another has
            # RFC 46: a store "SHALL check if it has stored the requested record(s)"; its node does.
            case m.Fetch() | m.GetHeads() | m.ConsumerHello() | m.HeadsQuery() | m.TimesQuery():
                self.requests.add(message)
            case m.FetchBatch() if message.store == self.address:
                self.requests.add(FetchMany.of(message))
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes records; those that are next become pending."""
        partition = self._partition(batch.tp) if requestor in ("", self.address) else None
        if partition is None:
            return []
        if partition.action(states.RECORDS) == states.LEAVE:
            partition.fetcher.lose(batch)
            return []
        taken = partition.fetcher.take(now, batch)
        if taken:
            self._hosted.end(batch.tp)
            self._write_taken(partition, taken)
        elif batch.offset < partition.durable:
            # The sender has not received our ACK.  C stores keep silent here, and the producer
            # then waits for ever.
            self._acknowledge[batch.tp] = partition
        return self.scheduler.ask(now, partition.fetcher)

    def host(self, now: float, batch: RecordBatch) -> bool:
        """Takes records that a client writes here; False unless they are the partition's next."""
        partition = self._partition(batch.tp)
        if partition is None or batch.offset != partition.visible_end:
            return False
        action = partition.action(states.PUT)
        if action == states.REFUSE:
            return False
        if action == states.TAKE_OVER:
            self._give_up_part(partition)
        self._hosted.begin(now, batch.tp)
        self._write_taken(partition, partition.fetcher.take(now, batch))
        return True

    def stage(self, stage: Stage) -> bool:
        """Takes records to stage; False if the store cannot keep track of their partition."""
        partition = self._partition(stage.batch.tp)
        if partition is None:
            return False
        # What begins at the partition's end replaces what is staged there; see ``log_entries``.
        at_end = stage.batch.offset == partition.visible_end
        if at_end and partition.action(states.STAGE) == states.TAKE_OVER:
            self._give_up_part(partition)
        self.write(stage)
        return True

    def commit(self, now: float, commit: Commit) -> bool:
        """Takes a commit; False if these are more partitions than it can keep track of."""
        found = [self._partition(staged.tp) for staged in commit.transactions]
        partitions = [partition for partition in found if partition is not None]
        if len(partitions) < len(found):
            return False
        for partition in partitions:
            partition.commits += 1
        self._commit_s = now
        self.write(commit)
        return True

    def write(self, entry: LogEntry) -> None:
        """Hands an entry to the log, after those that wait for it."""
        self.pending.append(entry)
        batch = entry.batch if isinstance(entry, Stage) else entry
        size = batch.values.size_bytes + len(batch.values) if isinstance(batch, RecordBatch) else 1
        self.pending_bytes += size

    def next_offset(self, tp: TopicPartition) -> int:
        """The offset of the record that a partition takes next; more than is on disk yet."""
        known = self.partitions.get(tp)
        return known.visible_end if known else self._end_of(tp)

    def on_subscribed(self, now: float, kind: type[m.Message], topic: str) -> list[Outgoing]:
        """Greets requestors, and tells peers what they may have missed."""
        if kind is m.StoreHello and topic and topic != self.address:
            # RFC 46: a store "SHALL send a STORE-HELLO command to the subscriber".
            return [m.StoreHello(topic, self.address)]
        if kind is m.StoreEndpoints and topic and topic != self.address and self.locations:
            return [m.StoreEndpoints(topic, self.address, self.locations)]
        if kind is m.TimesReply and topic:
            # A requestor's last subscription, as a SUB socket sends them in the order of their
            # octets: from now on it receives everything.
            # For good: who is only late does not subscribe anew.
            self.packing.pop(topic, None)
            self.packing[topic] = None
            if len(self.packing) > MAX_REQUESTORS:
                del self.packing[next(iter(self.packing))]
            return [m.HeadsReply(topic, GREETING, self.address, 0, 1, ())]
        if kind is m.GetHeads and not topic:
            return [m.GetHeads("", self.address)]  # another store, which receives it now
        if kind is m.Head and not topic:
            self.requests.add(AnnounceHeads())
        if kind is m.Fetch:
            self.scheduler.retry_unanswered(topic)
        if kind is m.Ack and topic:
            # A producer may have missed our ACKs before.
            for tp, partition in self.partitions.items():
                if tp.partition == topic:
                    self._acknowledge[tp] = partition
        return []

    def on_peer_lost(self, peer: str) -> None:
        """Other peers have its records, or it comes back, perhaps with other endpoints."""
        self.endpoints.pop(peer, None)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks for what is missing, and other stores for their heads."""
        messages: list[Outgoing] = []
        if now >= self._sync_due:
            self._sync_due = now + self._sync_interval_s
            messages.append(m.GetHeads("", self.address))
        messages.extend(self.scheduler.ask_due(now))
        messages.extend(self._hosted.on_tick(now))
        messages.extend(self._take_acks())
        return messages

    def deadline(self, now: float) -> float | None:
        """When to ask again."""
        deadlines = (self._sync_due, self.scheduler.deadline(), self._hosted.deadline())
        return min(due for due in deadlines if due is not None)

    def take_pending(self) -> list[LogEntry]:
        """Removes what the log is to do next."""
        pending, self.pending = self.pending, []
        self.pending_bytes = 0
        return pending

    def on_stored(
        self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None] = ()
    ) -> list[Outgoing]:
        """The log has done this, synced, or not where an outcome says why.

        Returns the acknowledgements of what is there, and what is hosted here, to be published.
        """
        published: list[Outgoing] = []
        for entry, error in zip_longest(entries, outcomes):
            if isinstance(entry, RecordBatch):
                published.extend(self._on_batch_stored(entry, error))
            elif isinstance(entry, Commit):
                published.extend(self._on_committed(entry, error))
        return [*self._take_acks(), *published]

    def on_published(self, publish: PublishCommitted) -> list[Outgoing]:
        """The node has published all of the committed records; returns their head."""
        return self._hosted.published(publish.tp, publish.end)

    def _write_taken(self, partition: StorePartition, taken: list[RecordBatch]) -> None:
        for each in taken:
            batch, partition.staged = continued(each, partition.staged)
            if partition.staged is None:
                partition.visible_end = batch.end
            self.write(batch)

    def _on_batch_stored(self, batch: RecordBatch, error: DafkaError | None) -> list[Outgoing]:
        partition = self.partitions[batch.tp]
        if error is not None:
            self._begin_anew(partition, self._end_of(batch.tp))
        elif batch.transaction is None or batch.end >= batch.transaction.end:
            partition.durable = batch.end
            self._acknowledge[batch.tp] = partition
            return self._hosted.stored(batch)
        return []

    def _on_committed(self, commit: Commit, error: DafkaError | None) -> list[Outgoing]:
        published: list[Outgoing] = []
        for staged in commit.transactions:
            tp, end = staged.tp, staged.end
            partition = self.partitions[tp]
            partition.commits -= 1
            if error is None and end > partition.durable:
                partition.durable = partition.visible_end = end
                self._acknowledge[tp] = partition
                self._hosted.begin(self._commit_s, tp)
                self._write_taken(partition, partition.fetcher.advance(end))
                publish = PublishCommitted(tp, staged.start, end, (staged.transaction,))
                if not self.requests.add(publish):
                    published.extend(self.on_published(publish))
            self.scheduler.postpone(partition.fetcher)
        return published

    def _give_up_part(self, partition: StorePartition) -> None:
        # A client writes where a transaction came in part: its sender may be gone for ever.
        if partition.staged is not None:
            self._begin_anew(partition, partition.visible_end)

    def _begin_anew(self, partition: StorePartition, end: int) -> None:
        """Forgets what was taken from ``end`` on: the log does not have it, or will not."""
        fetcher = partition.fetcher
        for entry in self.take_pending():
            void = isinstance(entry, RecordBatch) and entry.tp == fetcher.tp and entry.offset >= end
            if not void:
                self.write(entry)
        fetcher.begin(end)
        partition.visible_end, partition.staged = end, None
        self.scheduler.postpone(fetcher)

    def _note_too_large(self, record: m.RecordTooLarge) -> None:
        partition = self.partitions.get(record.tp)
        if partition is None or record.size_bytes <= self._limit_bytes:
            return
        if partition.too_large != record.sequence == partition.fetcher.next_offset:
            partition.too_large = record.sequence
            self.too_large.append(error_of(record, self._limit_bytes, f"store {self.address}"))

    def _on_head(self, now: float, head: m.Head | m.DirectHead) -> list[Outgoing]:
        partition = self._partition(head.tp)
        if partition is None:
            return []
        if partition.durable >= head.end:
            self._acknowledge[head.tp] = partition
        return self.scheduler.on_head(now, partition.fetcher, head)

    def _partition(self, tp: TopicPartition) -> StorePartition | None:
        partition = self.partitions.get(tp)
        if partition is None and len(self.partitions) < MAX_PARTITIONS:
            end = self._end_of(tp)
            fetcher = self.scheduler.fetcher(tp, end)
            partition = self.partitions[tp] = StorePartition(fetcher, end, end)
        return partition

    def _take_acks(self) -> list[Outgoing]:
        acks: list[Outgoing] = [
            m.Ack(tp.partition, tp.topic, partition.durable - 1, self.address)
            for tp, partition in self._acknowledge.items()
            if partition.durable
        ]
        self._acknowledge.clear()
        return acks
