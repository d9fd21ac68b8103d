"""The store's role: take every partition in order, acknowledge what is on disk, answer from it.

The role decides; the node has the log.  Records that are next, and what writers stage and commit,
come out of ``take_pending``, the node has the log do it, and ``on_stored`` then says whom to
acknowledge.  Requests to read come out of ``take_request``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from dafka_core.errors import DafkaError
from dafka_core.log_entries import Commit, Discard, LogEntry, SetTransaction, Stage
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.hosted_partitions import HostedPartitions
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    Fetch,
    GetHeads,
    Head,
    HeadsQuery,
    HeadsReply,
    Message,
    RecordBatchMessage,
    RecordMessage,
    StoreEndpoints,
    StoreHello,
    TimesQuery,
    TimesReply,
)
from dafka_core.protocol.partition_fetcher import (
    MAX_PARTITIONS,
    FetchScheduler,
    PartitionFetcher,
    ReorderBudget,
)
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import GREETING, MAX_STORES
from dafka_core.protocol.store_requests import AnnounceHeads, Work, joined, request_key
from dafka_core.protocol.transactions import PublishCommitted, continued
from dafka_core.records import RecordBatch, TopicPartition, Transaction

MAX_PENDING_REQUESTS: Final = 4_096
"""Requests waiting to be served.  Peers ask again, so the newest are dropped beyond this."""


@dataclass(slots=True)
class _Partition:
    catchup: PartitionFetcher
    durable: int
    """How far it is on disk for all to see: what there is of a unit in part is not."""
    shown: int
    """How far it is to be, when all that has come is on disk."""
    staged: Transaction | None = None
    """Of what comes from the mesh, the unit of which only a part has come."""
    commits: int = 0
    """On their way to the disk: only when one is there it is known how the partition goes on."""


class StoreRole:
    """Keeps up with every partition there is.

    Args:
        address: the store's own.
        end_of: the end (exclusive) of a partition on disk, 0 where there is none.
        sync_interval_s: how often other stores are asked for their heads.
    """

    def __init__(
        self, address: str, end_of: Callable[[TopicPartition], int], *, sync_interval_s: float
    ) -> None:
        self.address = address
        self.locations: tuple[str, ...] = ()
        """Where this store's records can be had in bulk; told to whoever asks stores anything."""
        self.endpoints: dict[str, tuple[str, ...]] = {}
        """The same of the other stores, by address."""
        self._hosting = HostedPartitions()
        self._end_of = end_of
        self._sync_interval_s = sync_interval_s
        self._sync_due = 0.0
        self._ahead = ReorderBudget()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._missing = FetchScheduler()
        self._acknowledge: dict[TopicPartition, _Partition] = {}
        self._pending: list[LogEntry] = []
        self.pending_bytes = 0
        """What waits for ``take_pending``: bytes of values, an octet for each record or entry."""
        self._requests: dict[tuple[object, ...], Work] = {}
        self._commit_s = 0.0  # when the last commit was taken

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Store Subscriptions; and as a consumer of other stores' heads."""
        return [
            subscription(RecordMessage),
            subscription(RecordBatchMessage),
            subscription(Head),
            subscription(DirectRecord, self.address),
            subscription(DirectRecordBatch, self.address),
            subscription(Fetch),
            subscription(GetHeads),
            subscription(ConsumerHello, self.address),
            subscription(StoreHello, self.address),
            subscription(DirectHead, self.address),
            subscription(HeadsQuery),
            subscription(TimesQuery),
            subscription(StoreEndpoints, self.address),
        ]

    def on_message(self, now: float, message: Message, peer: str) -> list[Outgoing]:
        """Takes heads, hellos and requests."""
        match message:
            case Head() | DirectHead():
                return self._on_head(now, message)
            case StoreEndpoints():
                if message.store in self.endpoints or len(self.endpoints) < MAX_STORES:
                    self.endpoints[message.store] = message.locations
            case StoreHello():
                # Another store: whatever it holds we want, too.
                return [GetHeads("", self.address)] if message.store != self.address else []
            case Fetch() | GetHeads() | ConsumerHello() | HeadsQuery() | TimesQuery():
                self._queue(message)
        return []

    def on_batch(self, now: float, requestor: str, batch: RecordBatch) -> list[Outgoing]:
        """Takes records; what is next of them is pending until ``take_pending``."""
        if requestor not in ("", self.address):
            return []
        partition = self._partition(batch.tp)
        if partition is None:
            return []
        if partition.commits:
            partition.catchup.lose(batch)
            return []
        taken = partition.catchup.take(now, batch)
        if taken:
            self._hosting.end(batch.tp)
            self._add_taken(partition, taken)
        elif batch.offset < partition.durable:
            # The sender has not heard our acknowledgement. C stores keep silent here, and
            # the producer then waits for ever.
            self._acknowledge[batch.tp] = partition
        return [*self._missing.ask(now, self.address, partition.catchup)]

    def host(self, now: float, batch: RecordBatch) -> bool:
        """Takes records that a writer puts here, if they are the partition's next."""
        partition = self._partition(batch.tp)
        if partition is None or partition.commits or batch.offset != partition.shown:
            return False
        self._give_up_staged(partition)
        self._hosting.begin(now, batch.tp)
        self._add_taken(partition, partition.catchup.take(now, batch))
        return True

    def stage(self, staged: Stage) -> bool:
        """Takes records that an attempt stages; False if its partition cannot be kept track of."""
        batch = staged.batch
        partition = self._partition(batch.tp)
        if partition is None:
            return False
        if batch.offset == partition.shown:
            self._give_up_staged(partition)
        self._add_pending(staged)
        return True

    def commit(self, now: float, commit: Commit) -> bool:
        """Takes a commit; False if these are more partitions than can be kept track of."""
        found = [self._partition(transaction.tp) for transaction in commit.transactions]
        partitions = [partition for partition in found if partition is not None]
        if len(partitions) < len(found):
            return False
        for partition in partitions:
            partition.commits += 1
        self._commit_s = now
        self._add_pending(commit)
        return True

    def write(self, entry: Discard | SetTransaction) -> None:
        """Takes what changes nothing that anybody can see."""
        self._add_pending(entry)

    def next_offset(self, tp: TopicPartition) -> int:
        """The offset of the record that a partition takes next; more than is on disk yet."""
        known = self._partitions.get(tp)
        return known.shown if known else self._end_of(tp)

    def on_subscribed(self, now: float, kind: type[Message], topic: str) -> list[Outgoing]:
        """RFC 46: a store that sees a hello subscription "SHALL send a STORE-HELLO"."""
        if kind is StoreHello and topic and topic != self.address:
            return [StoreHello(topic, self.address)]
        if kind is StoreEndpoints and topic and topic != self.address and self.locations:
            return [StoreEndpoints(topic, self.address, self.locations)]
        if kind is TimesReply and topic:
            # The last subscription of a requestor, in the order of their octets: it hears all.
            return [HeadsReply(topic, GREETING, self.address, 0, 1, ())]
        if kind is Head and not topic:
            # C stores ask nobody for heads, they wait until some are published.
            self._queue(AnnounceHeads())
        if kind is GetHeads and not topic:
            return [GetHeads("", self.address)]  # another store, which hears us now
        if kind is Fetch:
            self._missing.retry_unanswered(topic)
        if kind is Ack and topic:
            # A producer that can hear us now may have missed acknowledgements before.
            for key, partition in self._partitions.items():
                if key.partition == topic:
                    self._acknowledge[key] = partition
        return []

    def on_peer_lost(self, peer: str) -> None:
        """Others have its records, or it comes back, perhaps elsewhere."""
        self.endpoints.pop(peer, None)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks for what is missing, and other stores for their heads."""
        messages: list[Outgoing] = []
        if now >= self._sync_due:
            self._sync_due = now + self._sync_interval_s
            messages.append(GetHeads("", self.address))
        messages.extend(self._missing.ask_due(now, self.address))
        messages.extend(self._hosting.on_tick(now))
        messages.extend(self._take_acks())
        return messages

    def deadline(self, now: float) -> float | None:
        """When to ask again."""
        deadlines = (self._sync_due, self._missing.deadline(), self._hosting.deadline())
        return min(due for due in deadlines if due is not None)

    def take_pending(self) -> list[LogEntry]:
        """What the log is to do now, in order."""
        pending, self._pending = self._pending, []
        self.pending_bytes = 0
        return pending

    def on_stored(
        self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None] = ()
    ) -> list[Outgoing]:
        """The log has done this, synced, or not where an outcome says why.

        Returns the acknowledgements of what is there; what is hosted here is published.
        """
        published: list[Outgoing] = []
        for entry, error in zip_longest(entries, outcomes):
            if isinstance(entry, RecordBatch):
                published.extend(self._on_batch_stored(entry, error))
            elif isinstance(entry, Commit):
                published.extend(self._on_committed(entry, error))
        return [*self._take_acks(), *published]

    def on_published(self, publish: PublishCommitted) -> list[Outgoing]:
        """All that was committed is published; its head."""
        return self._hosting.published(publish.tp, publish.end)

    def has_requests(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._requests)

    def take_request(self) -> Work | None:
        """The request that has waited longest."""
        if not self._requests:
            return None
        return self._requests.pop(next(iter(self._requests)))

    def put_back(self, rest: Fetch | PublishCommitted) -> None:
        """What is left of something that was served in part; others are served before it."""
        newer = self._requests.pop(request_key(rest), None)
        self._requests[request_key(rest)] = rest if newer is None else joined(rest, newer)

    def _add_taken(self, partition: _Partition, batches: list[RecordBatch]) -> None:
        for taken in batches:
            batch, partition.staged = continued(taken, partition.staged)
            if partition.staged is None:
                partition.shown = batch.end
            self._add_pending(batch)

    def _add_pending(self, entry: LogEntry) -> None:
        self._pending.append(entry)
        batch = entry.batch if isinstance(entry, Stage) else entry
        size_bytes = (
            batch.values.size_bytes + len(batch.values) if isinstance(batch, RecordBatch) else 1
        )
        self.pending_bytes += size_bytes

    def _on_batch_stored(self, batch: RecordBatch, error: DafkaError | None) -> list[Outgoing]:
        partition = self._partitions[batch.tp]
        if error is not None:
            self._begin_anew(partition, self._end_of(batch.tp))
        elif batch.transaction is None or batch.end >= batch.transaction.end:
            partition.durable = batch.end
            self._acknowledge[batch.tp] = partition
            return self._hosting.stored(batch)
        return []

    def _on_committed(self, commit: Commit, error: DafkaError | None) -> list[Outgoing]:
        published: list[Outgoing] = []
        for staged in commit.transactions:
            tp, end = staged.tp, staged.end
            partition = self._partitions[tp]
            partition.commits -= 1
            if error is None and end > partition.durable:
                partition.durable = partition.shown = end
                self._acknowledge[tp] = partition
                self._hosting.begin(self._commit_s, tp)
                self._add_taken(partition, partition.catchup.advance(end))
                publish = PublishCommitted(tp, staged.start, end, (staged.transaction,))
                if not self._queue(publish):
                    published.extend(self.on_published(publish))
            self._missing.postpone(partition.catchup)
        return published

    def _give_up_staged(self, partition: _Partition) -> None:
        """A writer goes on where a unit came in part: whoever sent it may be gone for ever."""
        if partition.staged is not None:
            self._begin_anew(partition, partition.shown)

    def _begin_anew(self, partition: _Partition, end: int) -> None:
        """What was taken from ``end`` on is not in the log, or will not be: it is fetched again."""
        catchup = partition.catchup
        catchup.close()
        for entry in self.take_pending():
            taken = isinstance(entry, RecordBatch) and entry.tp == catchup.tp
            if not taken or entry.offset < end:  # type: ignore[union-attr]  # it is a run
                self._add_pending(entry)
        partition.catchup = PartitionFetcher(catchup.tp, end, self._ahead)
        partition.catchup.raise_head(catchup.head)
        partition.shown, partition.staged = end, None
        self._missing.postpone(partition.catchup)

    def _queue(self, request: Work) -> bool:
        key = request_key(request)
        older = self._requests.get(key)
        if older is None and len(self._requests) >= MAX_PENDING_REQUESTS:
            return False
        self._requests[key] = request if older is None else joined(older, request)
        return True

    def _on_head(self, now: float, head: Head | DirectHead) -> list[Outgoing]:
        partition = self._partition(head.tp)
        if partition is None:
            return []
        partition.catchup.raise_head(head.end)
        if partition.durable >= head.end:
            self._acknowledge[head.tp] = partition
        if isinstance(head, DirectHead):
            partition.catchup.retry_unanswered()  # its sender heard us, and we hear it
        return [*self._missing.ask(now, self.address, partition.catchup)]

    def _partition(self, tp: TopicPartition) -> _Partition | None:
        partition = self._partitions.get(tp)
        if partition is None and len(self._partitions) < MAX_PARTITIONS:
            end = self._end_of(tp)
            partition = _Partition(PartitionFetcher(tp, end, self._ahead), end, end)
            self._partitions[tp] = partition
        return partition

    def _take_acks(self) -> list[Outgoing]:
        acks: list[Outgoing] = [
            Ack(tp.partition, tp.topic, partition.durable - 1, self.address)
            for tp, partition in self._acknowledge.items()
            if partition.durable
        ]
        self._acknowledge.clear()
        return acks
