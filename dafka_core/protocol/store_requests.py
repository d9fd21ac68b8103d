"""Requests of peers to a store: their order, the answers, and committed transactions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import (
    DIRECT_BATCH_BYTES,
    MAX_FETCH_COUNT,
    MAX_REPLY_ENTRIES,
    RECORD_OVERHEAD_BYTES,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch

# Transactions on the mesh: the transaction of each record, and the publication of committed ones.
#
# A store that has all records of a transaction makes them visible at once and keeps it as the
# partition's last transaction, so each packed message names the transaction of its records. A store
# knows it for records that were committed there, and for those of a partition's last transaction.
# It sends older ones as plain records (docs/wire.md, "Transactions").


# Unpublished transactions of one partition that are remembered: a client may commit faster than the
# mesh accepts.  The records of older ones are sent as plain records.
MAX_PUBLISHED_TRANSACTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class PublishCommitted:
    """Publish the records from ``start`` to ``end`` (exclusive), which were committed here.

    ``transactions`` ascend without overlap; records between them belong to none.
    """

    tp: TopicPartition
    start: int
    end: int
    transactions: tuple[Transaction, ...]

    def joined(self, newer: PublishCommitted) -> PublishCommitted:
        """Append a newer commit.

        If it does not follow, the records between came from another store, which published them; a
        consumer that misses the rest of the older commit fetches it.
        """
        if newer.start != self.end:
            return newer
        transactions = (self.transactions + newer.transactions)[-MAX_PUBLISHED_TRANSACTIONS:]
        return PublishCommitted(self.tp, self.start, newer.end, transactions)

    def rest(self, start: int) -> PublishCommitted:
        """Return the part from ``start`` on."""
        transactions = tuple(each for each in self.transactions if each.end > start)
        return PublishCommitted(self.tp, start, self.end, transactions)


def split_by_transaction(
    batch: RecordBatch, transactions: Sequence[Transaction]
) -> list[RecordBatch]:
    """Cut the batch where transactions (ascending, without overlap) begin and end."""
    parts: list[RecordBatch] = []
    start = batch.offset

    def cut(end: int, transaction: Transaction | None) -> None:
        nonlocal start
        if start < end:
            parts.append(replace(batch.between(start, end), transaction=transaction))
            start = end

    for transaction in transactions:
        cut(min(transaction.start, batch.end), None)
        cut(min(transaction.end, batch.end), transaction)
    cut(batch.end, None)
    return parts


def continued(
    batch: RecordBatch, staged: Transaction | None
) -> tuple[RecordBatch, Transaction | None]:
    """Return the next batch to store, and the transaction that it leaves incomplete.

    The first part of transaction ``staged`` is stored.  A batch that does not belong to it shows
    that the batch's sender has ``staged`` complete: it is stored without a transaction.
    """
    if staged is not None and batch.transaction != staged:
        batch = replace(batch, transaction=None)
    transaction = batch.transaction
    return batch, transaction if transaction is not None and batch.end < transaction.end else None


# Requests that wait for an answer, some 30 MB. A single peer may fill the queue; above the limit
# every other peer still has its share, so the queue has at most twice the limit.  A share that
# follows the number of peers suits one reader as well as a thousand: so this is no option.
MAX_PENDING_REQUESTS: Final = 65_536


@dataclass(frozen=True, slots=True)
class AnnounceHeads:
    """Publish the head of every partition: C stores do not ask for them (docs/wire.md)."""


@dataclass(frozen=True, slots=True)
class HeadsAfter:
    """The unsent rest of the answer to a GET-HEADS or CONSUMER-HELLO."""

    requestor: str
    topics: tuple[str, ...]  # an empty name means every topic
    after: TopicPartition | None = None  # the last partition sent of the first topic

    @classmethod
    def of(cls, request: m.GetHeads | m.ConsumerHello | HeadsAfter) -> HeadsAfter:
        """Return the work for a request."""
        if isinstance(request, m.GetHeads):
            return cls(request.requestor, (request.topic,))
        if isinstance(request, m.ConsumerHello):
            return cls(request.consumer, request.topics)
        return request

    @property
    def most(self) -> int:
        """Return the number of heads to send at once."""
        return MAX_REPLY_ENTRIES

    def rest(self, sent: Sequence[PartitionInfo]) -> HeadsAfter | None:
        """Return the rest after these were sent; None if they were fewer than ``most``."""
        if len(sent) >= self.most:
            return replace(self, after=sent[-1].tp)
        return HeadsAfter(self.requestor, self.topics[1:]) if self.topics[1:] else None


@dataclass(slots=True)
class FetchMany:
    """The unsent ranges of one requestor's FETCH-BATCHes, by partition."""

    requestor: str
    wanted: dict[tuple[str, str], PartitionInfo]

    @classmethod
    def of(cls, fetch: m.FetchBatch) -> FetchMany:
        """Return the work for a FETCH-BATCH."""
        return cls(fetch.requestor, {entry[:2]: entry for entry in fetch.entries})

    def take(self, count: int) -> list[PartitionInfo]:
        """Remove the first ranges."""
        taken = [*islice(self.wanted.values(), count)]
        for entry in taken:
            del self.wanted[entry[:2]]
        return taken

    def add(self, newer: Iterable[PartitionInfo]) -> None:
        """Add ranges; a range that continues another of its partition extends it."""
        for entry in newer:
            older = self.wanted.get(entry[:2], entry)
            joined = older._replace(end=entry.end) if older.end == entry.earliest else entry
            fits = joined.end - joined.earliest <= MAX_FETCH_COUNT
            self.wanted[entry[:2]] = joined if fits else entry


Request = m.Fetch | m.GetHeads | m.ConsumerHello | m.HeadsQuery | m.TimesQuery
Work = Request | HeadsAfter | FetchMany | AnnounceHeads | PublishCommitted


class _Queue(OrderedDict[tuple[type, object], Work]):
    """The requests of one peer."""

    size = 0  # the number of requests; each range of a FETCH-BATCH is one


class RequestQueue:
    """A queue of waiting requests.  Peers take turns; the oldest request of each is next.

    The queue distinguishes peers without an identified connection by the requestors' names, which
    may be forged.  It keeps one of the requests with the same key, which are equal questions.
    """

    def __init__(self) -> None:
        # By peer.  A plain dict skips all removed keys before its first one.
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        self._size = 0
        self._taken = ("", "")  # the last request taken: its requestor and its peer
        self.refused_count = 0  # requests rejected because the queue was full

    def __len__(self) -> int:
        return self._size

    def add(self, request: Work, peer: str = "") -> bool:
        """Add a request, merged with an older one with its key; return False if the queue is full.

        ``peer`` is its sender, if known.
        """
        peer, key = peer or _requestor(request), _key(request)
        queue = self._queues.get(peer, _Queue())
        older = queue.get(key)
        if older is None or isinstance(request, FetchMany):
            share = MAX_PENDING_REQUESTS // (len(self._queues) + (not queue))
            room = max(MAX_PENDING_REQUESTS - self._size, share - queue.size, 0)
            refused = max(_size(request) - room, 0)
            self.refused_count += refused
            if refused and isinstance(request, FetchMany) and room:
                request = FetchMany(request.requestor, dict(islice(request.wanted.items(), room)))
            elif refused:
                return False
        self._put(peer, key, request)
        return True

    def take(self) -> Work | None:
        """Remove the next request."""
        if not self._queues:
            return None
        peer, queue = self._queues.popitem(last=False)
        _, request = queue.popitem(last=False)
        self._taken = _requestor(request), peer
        self._size -= _size(request)
        queue.size -= _size(request)
        if queue:
            self._queues[peer] = queue
        return request

    def put_back(self, rest: m.Fetch | HeadsAfter | FetchMany | PublishCommitted) -> None:
        """Add the rest of the request that was taken last, after others of its peer."""
        requestor, key = _requestor(rest), _key(rest)
        peer = self._taken[1] if self._taken[0] == requestor else requestor
        newer = self._queues.get(peer, _Queue()).pop(key, None)
        if newer is not None:
            self._count(self._queues[peer], -_size(newer))
        self._put(peer, key, rest)
        if newer is not None:
            self._put(peer, key, newer)

    def _put(self, peer: str, key: tuple[type, object], request: Work) -> None:
        queue = self._queues.setdefault(peer, _Queue())
        older = queue.get(key)
        if older is not None:
            self._count(queue, -_size(older))
            request = _joined(older, request)
        queue[key] = request
        self._count(queue, _size(request))

    def _count(self, queue: _Queue, size: int) -> None:
        self._size += size
        queue.size += size


def _size(request: Work) -> int:
    return len(request.wanted) if isinstance(request, FetchMany) else 1


def _requestor(request: Work) -> str:
    """Return the requestor; empty for the store's own work."""
    if isinstance(request, m.ConsumerHello):
        return request.consumer
    return "" if isinstance(request, AnnounceHeads | PublishCommitted) else request.requestor


_KEYS: Final[dict[type, Callable[[Any], object]]] = {
    m.Fetch: attrgetter("requestor", "tp"),
    HeadsAfter: attrgetter("requestor", "topics", "after"),
    FetchMany: attrgetter("requestor"),
    m.GetHeads: attrgetter("requestor", "topic"),
    m.ConsumerHello: attrgetter("consumer"),
    m.HeadsQuery: attrgetter("requestor", "query"),
    m.TimesQuery: attrgetter("requestor", "query"),
    PublishCommitted: attrgetter("tp"),
    AnnounceHeads: type,
}


def _key(request: Work) -> tuple[type, object]:
    kind = type(request)
    return kind, _KEYS[kind](request)


def _joined(older: Work, newer: Work) -> Work:
    """Merge a newer request into an older one if it continues that, or replace it.

    Requestors fetch the next block while one is in flight.  Otherwise they have changed their mind.
    """
    if isinstance(older, PublishCommitted) and isinstance(newer, PublishCommitted):
        return older.joined(newer)
    if isinstance(older, FetchMany) and isinstance(newer, FetchMany):
        older.add(newer.wanted.values())
        return older
    if not isinstance(older, m.Fetch) or not isinstance(newer, m.Fetch):
        return newer
    count = older.count + newer.count
    if newer.sequence != older.end or count > MAX_FETCH_COUNT:
        return newer
    return replace(older, count=count)


def heads(infos: Iterable[PartitionInfo], requestor: str = "") -> list[Outgoing]:
    """Return the HEAD of each partition with records; DIRECT-HEADs to a requestor.

    RFC 46, GET-HEADS: "one DIRECT-HEAD command for each partition".
    """
    ends = [(*info.tp, info.end - 1) for info in infos if info.end]
    if requestor:
        return [m.DirectHead(requestor, *each) for each in ends]
    return [m.Head(*each) for each in ends]


def replies(
    query: m.HeadsQuery | m.TimesQuery, store: str, entries: Iterable[Any]
) -> list[Outgoing]:
    """Return the answer to a query: at least one part, even if it is empty."""
    kind = m.REPLIES[type(query)]
    if isinstance(query, m.HeadsQuery):
        entries = (info for info in entries if info.end)
    rest = iter(entries)
    parts = [tuple(islice(rest, MAX_REPLY_ENTRIES))]
    while part := tuple(islice(rest, MAX_REPLY_ENTRIES)):
        parts.append(part)
    return [
        kind(query.requestor, query.query, store, number, len(parts), part)
        for number, part in enumerate(parts)
    ]


def next_heads(fetch: m.Fetch, end: int) -> list[Outgoing]:
    """Return the message after a FETCH's answer if the partition continues.

    C nodes request 100,000 records at most, and the next ones only when they receive a head again
    (docs/wire.md, "For C nodes").
    """
    if end <= fetch.end:
        return []
    return [m.DirectHead(fetch.requestor, *fetch.tp, end - 1), m.Head(*fetch.tp, end - 1)]


def fetched_batches(requestor: str, batches: Iterable[RecordBatch]) -> list[Outgoing]:
    """Return the answer to a FETCH-BATCH: small batches of many partitions in one message."""
    messages: list[Outgoing] = []
    small: list[RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        own_bytes = batch.values.size_bytes + RECORD_OVERHEAD_BYTES * batch.count
        if own_bytes > DIRECT_BATCH_BYTES:
            messages.append(OutgoingBatch(batch, requestor))
            continue
        if small and size_bytes + own_bytes > DIRECT_BATCH_BYTES:
            messages.append(m.DirectRecordBatches.of(requestor, small))
            small, size_bytes = [], 0
        small.append(batch)
        size_bytes += own_bytes
    if small:
        messages.append(m.DirectRecordBatches.of(requestor, small))
    return messages
