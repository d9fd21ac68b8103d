"""Requests of peers to a store: their order, the answers, and committed transactions.

A store that has all records of a transaction makes them visible at once and keeps it as the
partition's last transaction, so each packed message names the transaction of its records. A store
knows it for records that were committed there, and for those of a partition's last transaction. It
sends older ones as plain records (docs/wire.md, "Transactions").
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import (
    DIRECT_BATCH_BYTES,
    MAX_FETCH_COUNT,
    MAX_REPLY_ENTRIES,
    RECORD_OVERHEAD_BYTES,
    FairQueue,
)
from dafka_core.protocol.role import Outgoing, OutgoingBatch

# Unpublished transactions of one partition that are remembered: a client may commit faster than the
# mesh accepts.  The records of older ones are sent as plain records.
MAX_PUBLISHED_TRANSACTIONS: Final = 64
# Requests that wait for an answer, some 40 MB. A single peer may fill the queue; above the limit
# every other peer still has its share, so the queue has at most twice the limit.  A share that
# follows the number of peers suits one reader as well as a thousand: so this is no option.
MAX_PENDING_REQUESTS: Final = 65_536


@dataclass(frozen=True, slots=True)
class HeadsRequest:
    """The unsent heads of a GET-HEADS or CONSUMER-HELLO, or (without a requestor) for all peers."""

    requestor: str
    topics: tuple[str, ...]  # an empty name means every topic
    after: TopicPartition | None = None  # the last partition sent of the first topic

    def page(
        self,
        partitions_after: Callable[[str | None, TopicPartition | None, int], list[PartitionInfo]],
    ) -> tuple[list[PartitionInfo], HeadsRequest | None]:
        """Return the next partitions of the log, and the rest of the request, if any."""
        infos = partitions_after(self.topics[0] or None, self.after, MAX_REPLY_ENTRIES)
        if len(infos) >= MAX_REPLY_ENTRIES:
            return infos, replace(self, after=infos[-1].tp)
        others = self.topics[1:]
        return infos, HeadsRequest(self.requestor, others) if others else None


class RecordsRequest(NamedTuple):
    """The unsent records, ``start`` to ``end`` (exclusive), of a FETCH or of a commit.

    The answer to a FETCH-BATCH (``is_packed``) packs small batches of many partitions into one
    message.  Records that were committed here are published to all peers (without a requestor) with
    their ``transactions``, which ascend without overlap; records between them belong to none.
    """

    requestor: str
    tp: TopicPartition
    start: int
    end: int
    is_packed: bool = False
    transactions: tuple[Transaction, ...] = ()

    def joined(self, newer: RecordsRequest) -> RecordsRequest:
        """Extend the range by a newer one that continues it; otherwise return the newer one.

        Requestors fetch the next block while one is in flight, or have changed their mind.  If a
        commit does not follow, the records between came from another store, which published them;
        a consumer that misses the rest of the older commit fetches it.
        """
        is_too_long = self.requestor and newer.end - self.start > MAX_FETCH_COUNT
        if newer.start != self.end or is_too_long:
            return newer
        transactions = (self.transactions + newer.transactions)[-MAX_PUBLISHED_TRANSACTIONS:]
        return self._replace(end=newer.end, transactions=transactions)

    def rest(self, start: int) -> RecordsRequest:
        """Return the part from ``start`` on."""
        transactions = tuple(each for each in self.transactions if each.end > start)
        return self._replace(start=start, transactions=transactions)


Request = RecordsRequest | HeadsRequest | m.HeadsQuery | m.TimesQuery


def requests_of(
    message: m.Fetch | m.FetchBatch | m.GetHeads | m.ConsumerHello | m.HeadsQuery | m.TimesQuery,
) -> list[Request]:
    """Return the requests that wait in the queue after a peer's message."""
    match message:
        case m.Fetch():
            return [RecordsRequest(message.requestor, message.tp, message.sequence, message.end)]
        case m.FetchBatch():
            return [
                RecordsRequest(message.requestor, each.tp, each.earliest, each.end, is_packed=True)
                for each in message.entries
            ]
        case m.GetHeads():
            return [HeadsRequest(message.requestor, (message.topic,))]
        case m.ConsumerHello():
            return [HeadsRequest(message.consumer, message.topics)] if message.topics else []
    return [message]


def _key(request: Request) -> Hashable:
    """Return what a request has in common with newer ones that are joined to it or replace it."""
    if isinstance(request, RecordsRequest):
        return request.requestor, request.is_packed, request.tp
    return request


class RequestQueue(FairQueue[object, Request]):
    """The waiting requests of peers, which take turns.

    The queue distinguishes peers without an identified connection by the requestors' names, which
    may be forged.  It keeps one of the requests with the same key, which are equal questions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused_count = 0  # while the queue was full

    def add(self, request: Request, peer: str = "") -> bool:
        """Add a request from ``peer``, or merge it by key; return False if the queue is full."""
        peer, key = peer or request.requestor, _key(request)
        queue: dict[object, Request] = self._queues.get(peer, {})
        if (older := queue.get(key)) is not None:
            queue[key] = _joined(older, request)
            return True
        if self._size >= MAX_PENDING_REQUESTS:
            share = MAX_PENDING_REQUESTS // (len(self._queues) + (not queue))
            if len(queue) >= share:
                self.refused_count += 1
                return False
        self.put(peer, key, request)
        return True

    def take_packed(self, first: RecordsRequest, most: int) -> list[RecordsRequest]:
        """Remove the ranges that one message may answer with ``first``, which was taken last."""
        taken, queue = [first], self._queues.pop(self.taken_from, None)
        while queue and len(taken) < most:
            key, request = next(iter(queue.items()))
            if not isinstance(request, RecordsRequest) or not request.is_packed:
                break
            if request.requestor != first.requestor:
                break
            del queue[key]
            taken.append(request)
        if queue:
            self._queues[self.taken_from] = queue
        self._size -= len(taken) - 1
        return taken

    def put_back(self, rest: Request) -> None:
        """Add the rest of the request that was taken last, after others of its peer."""
        key = _key(rest)
        newer = self.remove(self.taken_from, key)
        self.put(self.taken_from, key, rest if newer is None else _joined(rest, newer))


def _joined(older: Request, newer: Request) -> Request:
    if isinstance(older, RecordsRequest) and isinstance(newer, RecordsRequest):
        return older.joined(newer)
    return newer


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
