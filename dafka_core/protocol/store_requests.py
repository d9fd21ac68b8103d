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
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.limits import (
    DIRECT_BATCH_BYTES,
    MAX_FETCH_COUNT,
    MAX_REPLY_ENTRIES,
    RECORD_OVERHEAD_BYTES,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_directory import HEADS

# Transactions on the mesh: which records belong to one, and publishing committed ones.
#
# A store that has all of a transaction makes it visible at once and keeps it as the partition's
# last transaction, so each packed message says which transaction its records belong to. A store
# knows that of records that are committed there, and of those of a partition's last transaction.
# It sends older ones as records like any other (docs/wire.md, "Transactions").


MAX_PUBLISHED_TRANSACTIONS: Final = 64
"""Transactions of one partition that wait to be published and are still told apart: a client may
commit faster than the mesh takes them.  The records of older ones are sent without."""


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
        """What to publish when something newer has been committed.

        If that does not follow, the records between came from another store, which published
        them; a consumer that misses the rest of this one fetches it.
        """
        if newer.start != self.end:
            return newer
        transactions = (self.transactions + newer.transactions)[-MAX_PUBLISHED_TRANSACTIONS:]
        return PublishCommitted(self.tp, self.start, newer.end, transactions)

    def rest(self, start: int) -> PublishCommitted:
        """What is left to publish from ``start`` on."""
        transactions = tuple(each for each in self.transactions if each.end > start)
        return PublishCommitted(self.tp, start, self.end, transactions)


def split_by_transaction(
    batch: RecordBatch, transactions: Sequence[Transaction]
) -> list[RecordBatch]:
    """The batch, cut where transactions (ascending, without overlap) begin and end."""
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
    """The next batch of a partition as a store keeps it, and the transaction it leaves in part.

    ``staged`` is the transaction of which the store has the first part.  A batch of another one,
    or of none, shows that its sender has ``staged`` complete: it is stored without a transaction.
    """
    if staged is not None and batch.transaction != staged:
        batch = replace(batch, transaction=None)
    transaction = batch.transaction
    return batch, transaction if transaction is not None and batch.end < transaction.end else None


MAX_PENDING_REQUESTS: Final = 65_536
"""Requests that wait for an answer, some 30 MB.  One peer may have all of them as long as there is
no other; beyond, each may have its share, so there are at most twice as many.  A share that follows
how many there are is right for one reader as for a thousand: so this is no option."""


def subscriptions(store: str) -> list[bytes]:
    """What a store subscribes to at its peers."""
    of_all = (m.RecordMessage, m.RecordBatchMessage, m.Head, m.Fetch, m.GetHeads)
    queries = (m.HeadsQuery, m.TimesQuery, m.HistoryQuery)
    replies = (m.HeadsReply, m.HistoryReply, m.TimesReply)
    own = (m.DirectRecord, m.DirectRecordBatch, m.RecordTooLarge, m.DirectHead, m.FetchBatch)
    hellos = (m.StoreEndpoints, m.ConsumerHello, m.StoreHello, *replies)
    return [
        *(subscription(kind) for kind in (*of_all, *queries)),
        *(subscription(kind, store) for kind in (*own, *hellos)),
    ]


@dataclass(frozen=True, slots=True)
class AnnounceHeads:
    """Publish the head of every partition: C stores do not ask for them (docs/wire.md)."""


@dataclass(frozen=True, slots=True)
class HeadsAfter:
    """What is left of the answer to a GET-HEADS or CONSUMER-HELLO."""

    requestor: str
    topics: tuple[str, ...]
    """One that is empty stands for every topic."""
    after: TopicPartition | None = None
    """In the first of them: what has been sent last."""

    @classmethod
    def of(cls, request: m.GetHeads | m.ConsumerHello | HeadsAfter) -> HeadsAfter:
        """What to answer to a request."""
        if isinstance(request, m.GetHeads):
            return cls(request.requestor, (request.topic,))
        if isinstance(request, m.ConsumerHello):
            return cls(request.consumer, request.topics)
        return request

    @property
    def most(self) -> int:
        """How many are sent at once."""
        return MAX_REPLY_ENTRIES

    def rest(self, sent: Sequence[PartitionInfo]) -> HeadsAfter | None:
        """What is left when these have been sent, as many as are sent at once if there are more."""
        if len(sent) >= self.most:
            return replace(self, after=sent[-1].tp)
        return HeadsAfter(self.requestor, self.topics[1:]) if self.topics[1:] else None


@dataclass(slots=True)
class FetchMany:
    """What is left of the FETCH-BATCHes of one requestor, by partition."""

    requestor: str
    wanted: dict[tuple[str, str], PartitionInfo]

    @classmethod
    def of(cls, fetch: m.FetchBatch) -> FetchMany:
        """A FETCH-BATCH as work."""
        return cls(fetch.requestor, {entry[:2]: entry for entry in fetch.entries})

    def take(self, count: int) -> list[PartitionInfo]:
        """Removes the first ranges."""
        taken = [*islice(self.wanted.values(), count)]
        for entry in taken:
            del self.wanted[entry[:2]]
        return taken

    def add(self, newer: Iterable[PartitionInfo]) -> None:
        """Adds ranges; one that continues what is wanted of its partition is joined to it."""
        for entry in newer:
            older = self.wanted.get(entry[:2], entry)
            joined = older._replace(end=entry.end) if older.end == entry.earliest else entry
            fits = joined.end - joined.earliest <= MAX_FETCH_COUNT
            self.wanted[entry[:2]] = joined if fits else entry


Request = m.Fetch | m.GetHeads | m.ConsumerHello | m.HeadsQuery | m.TimesQuery
Work = Request | HeadsAfter | FetchMany | AnnounceHeads | PublishCommitted


class _Queue(OrderedDict[tuple[type, object], Work]):
    """The requests of one peer."""

    size = 0
    """How many there are; each range of a FETCH-BATCH is one."""


class RequestQueue:
    """Requests that wait.  Peers take turns; of each, what has waited longest is next.

    Who cannot be told apart by connections is by the requestors' names, which a peer may make up.
    Of requests with the same key it keeps one: they are the same question.
    """

    def __init__(self) -> None:
        # By peer.  A plain dict looks at all that has been removed before its first key.
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        self._size = 0
        self._taken = ("", "")  # whose request was taken last: the requestor, and the peer
        self.refused_count = 0
        """Requests for which there was no room."""

    def __len__(self) -> int:
        return self._size

    def add(self, request: Work, peer: str = "") -> bool:
        """Adds a request, to an older one with its key if there is one; False without room.

        ``peer`` is who has sent it, if that is known.
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
        """Removes the next request."""
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
        """Adds what is left of the request that was taken last, behind others of its peer."""
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
    """Who asks; empty for the store's own work."""
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
    """The newer request, after the older one if it continues that.

    Requestors fetch the next block while one is under way.  Otherwise they have changed their
    mind.
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


def announcement(infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The HEAD of each partition."""
    return [m.Head(*info.tp, info.end - 1) for info in infos if info.end]


def goes_on(fetch: m.Fetch, end: int) -> list[Outgoing]:
    """What follows the answer to a FETCH if the partition goes on after it.

    C nodes ask for 100,000 records at most, and for the next ones only when they receive a head
    again (docs/wire.md, "For C nodes").
    """
    if end <= fetch.end:
        return []
    return [m.DirectHead(fetch.requestor, *fetch.tp, end - 1), m.Head(*fetch.tp, end - 1)]


def fetched_batches(requestor: str, batches: Iterable[RecordBatch]) -> list[Outgoing]:
    """The answer to a FETCH-BATCH: small batches of many partitions in one message."""
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


def head_messages(requestor: str, infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The answer to GET-HEADS; RFC 46: "one DIRECT-HEAD command for each partition"."""
    return [m.DirectHead(requestor, *info.tp, info.end - 1) for info in infos if info.end]


def packed_heads(requestor: str, store: str, infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The same for who understands HEADS-REPLY: no message for each partition."""
    return heads_reply(m.HeadsQuery(requestor, HEADS, ()), store, infos)


def heads_reply(query: m.HeadsQuery, store: str, infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The answer to a HEADS-QUERY: at least one part, also when there is nothing to say."""
    return _in_parts(m.HeadsReply, query, store, [info for info in infos if info.end])


def times_reply(
    query: m.TimesQuery, store: str, times: Sequence[tuple[int, int]]
) -> list[Outgoing]:
    """The answer to a TIMES-QUERY, in parts as a HEADS-REPLY."""
    return _in_parts(m.TimesReply, query, store, times)


def _in_parts(
    kind: Callable[..., Outgoing],
    query: m.HeadsQuery | m.TimesQuery,
    store: str,
    entries: Sequence[object],
) -> list[Outgoing]:
    starts = range(0, max(len(entries), 1), MAX_REPLY_ENTRIES)
    parts = [tuple(entries[start : start + MAX_REPLY_ENTRIES]) for start in starts]
    return [
        kind(query.requestor, query.query, store, number, len(parts), part)
        for number, part in enumerate(parts)
    ]
