"""The store's role: take every partition in order, acknowledge what is on disk, answer from it.

The role decides; the node has the log.  Records that are next come out of ``take_pending``, the
node appends and syncs them, and ``on_stored`` then says whom to acknowledge.  Requests to read
come out of ``take_request``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dafka_core.protocol.asking import GREETING, MAX_STORES
from dafka_core.protocol.fetching import MAX_PARTITIONS, Ahead, Catchup, Missing
from dafka_core.protocol.hosting import Hosting
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_REPLY_ENTRIES
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRun,
    Fetch,
    GetHeads,
    Head,
    HeadEntry,
    HeadsQuery,
    HeadsReply,
    Message,
    RecordMessage,
    RecordRun,
    StoreEndpoints,
    StoreHello,
    TimeEntry,
    TimesQuery,
    TimesReply,
)
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.wire import subscription
from dafka_core.records import PartitionInfo, Run

MAX_PENDING_REQUESTS: Final = 4_096
"""Requests waiting to be served.  Peers ask again, so the newest are dropped beyond this."""

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Announce:
    """Publish the head of every partition: a store has come that knows no other way to ask."""


Request = Fetch | GetHeads | ConsumerHello | HeadsQuery | TimesQuery
Work = Request | Announce


@dataclass(slots=True)
class _Partition:
    catchup: Catchup
    durable: int


class StoreRole:
    """Keeps up with every partition there is.

    Args:
        address: the store's own.
        end_of: the end (exclusive) of a partition on disk, 0 where there is none.
        sync_interval_s: how often other stores are asked for their heads.
    """

    def __init__(
        self, address: str, end_of: Callable[[str, str], int], *, sync_interval_s: float
    ) -> None:
        self.address = address
        self.locations: tuple[str, ...] = ()
        """Where this store's records can be had in bulk; told to whoever asks stores anything."""
        self.endpoints: dict[str, tuple[str, ...]] = {}
        """The same of the other stores, by address."""
        self._hosting = Hosting()
        self._end_of = end_of
        self._sync_interval_s = sync_interval_s
        self._sync_due = 0.0
        self._ahead = Ahead()
        self._partitions: dict[tuple[str, str], _Partition] = {}
        self._missing = Missing()
        self._acknowledge: dict[tuple[str, str], _Partition] = {}
        self._pending: list[Run] = []
        self.pending_bytes = 0
        """How much waits for ``take_pending``, in bytes of values and an octet for each record."""
        self._requests: dict[tuple[object, ...], Work] = {}

    def subscriptions(self) -> list[bytes]:
        """RFC 46, Store Subscriptions; and as a consumer of other stores' heads."""
        return [
            subscription(RecordMessage),
            subscription(RecordRun),
            subscription(Head),
            subscription(DirectRecord, self.address),
            subscription(DirectRun, self.address),
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

    def on_run(self, now: float, requestor: str, run: Run) -> list[Outgoing]:
        """Takes records; what is next of them is pending until ``take_pending``."""
        if requestor not in ("", self.address):
            return []
        partition = self._partition(run.topic, run.partition)
        if partition is None:
            return []
        taken = partition.catchup.take(now, run)
        if taken:
            self._hosting.end(run.topic, run.partition)
            self._add_pending(taken)
        elif run.offset < partition.durable:
            # The sender has not heard our acknowledgement. Deployed stores keep silent here, and
            # the producer then waits for ever.
            self._acknowledge[run.topic, run.partition] = partition
        return [*self._missing.ask(now, self.address, partition.catchup)]

    def host(self, now: float, run: Run) -> bool:
        """Takes records that a writer puts here, if they are the partition's next."""
        partition = self._partition(run.topic, run.partition)
        if partition is None or run.offset != partition.catchup.next_offset:
            return False
        self._hosting.begin(now, run.topic, run.partition)
        self._add_pending(partition.catchup.take(now, run))
        return True

    def next_offset(self, topic: str, partition: str) -> int:
        """The offset of the record that a partition takes next; more than is on disk yet."""
        known = self._partitions.get((topic, partition))
        return known.catchup.next_offset if known else self._end_of(topic, partition)

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
            # Deployed stores ask nobody for heads, they wait until some are published.
            self._queue(Announce())
        if kind is GetHeads and not topic:
            return [GetHeads("", self.address)]  # another store, which hears us now
        if kind is Fetch:
            self._missing.heard_anew(topic)
        if kind is Ack and topic:
            # A producer that can hear us now may have missed acknowledgements before.
            for key, partition in self._partitions.items():
                if key[1] == topic:
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

    def take_pending(self) -> list[Run]:
        """Records to append to the log now, in order per partition."""
        pending, self._pending = self._pending, []
        self.pending_bytes = 0
        return pending

    def on_stored(self, runs: Iterable[Run]) -> list[Outgoing]:
        """The runs are on disk, synced: their acknowledgements; hosted ones are published."""
        published: list[Outgoing] = []
        for run in runs:
            partition = self._partitions[run.topic, run.partition]
            partition.durable = run.end
            self._acknowledge[run.topic, run.partition] = partition
            published.extend(self._hosting.stored(run))
        return [*self._take_acks(), *published]

    def has_requests(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._requests)

    def take_request(self) -> Work | None:
        """The request that has waited longest."""
        if not self._requests:
            return None
        return self._requests.pop(next(iter(self._requests)))

    def put_back(self, rest: Fetch) -> None:
        """What is left of a FETCH that was served in part; others are served before it."""
        newer = self._requests.pop(_request_key(rest), None)
        if isinstance(newer, Fetch):
            rest = _joined(rest, newer)
        self._requests[_request_key(rest)] = rest

    def _add_pending(self, runs: list[Run]) -> None:
        self._pending.extend(runs)
        self.pending_bytes += sum(run.values.size_bytes + len(run.values) for run in runs)

    def _queue(self, request: Work) -> None:
        key = _request_key(request)
        older = self._requests.get(key)
        if isinstance(request, Fetch) and isinstance(older, Fetch):
            self._requests[key] = _joined(older, request)
        elif older is not None or len(self._requests) < MAX_PENDING_REQUESTS:
            self._requests[key] = request

    def _on_head(self, now: float, head: Head | DirectHead) -> list[Outgoing]:
        partition = self._partition(head.topic, head.partition)
        if partition is None:
            return []
        partition.catchup.note_head(head.end)
        if partition.durable >= head.end:
            self._acknowledge[head.topic, head.partition] = partition
        if isinstance(head, DirectHead):
            partition.catchup.heard_anew()  # its sender heard us, and we hear it
        return [*self._missing.ask(now, self.address, partition.catchup)]

    def _partition(self, topic: str, name: str) -> _Partition | None:
        partition = self._partitions.get((topic, name))
        if partition is None and len(self._partitions) < MAX_PARTITIONS:
            end = self._end_of(topic, name)
            partition = _Partition(Catchup(topic, name, end, self._ahead), end)
            self._partitions[topic, name] = partition
        return partition

    def _take_acks(self) -> list[Outgoing]:
        acks: list[Outgoing] = [
            Ack(name, topic, partition.durable - 1, self.address)
            for (topic, name), partition in self._acknowledge.items()
            if partition.durable
        ]
        self._acknowledge.clear()
        return acks


def _request_key(request: Work) -> tuple[object, ...]:
    """Requests with one key are the same question: the newer one replaces the older."""
    match request:
        case Fetch():
            return (Fetch, request.requestor, request.topic, request.partition)
        case GetHeads():
            return (GetHeads, request.requestor, request.topic)
        case ConsumerHello():
            return (ConsumerHello, request.consumer)
        case HeadsQuery() | TimesQuery():
            return (type(request), request.requestor, request.query)
        case Announce():
            return (Announce,)


def _joined(older: Fetch, newer: Fetch) -> Fetch:
    """What one requestor wants of one partition: the newer block, after the older if it goes on.

    Requestors ask for the next block while one is under way; else they have changed their mind.
    """
    count = older.count + newer.count
    if newer.sequence != older.end or count > MAX_FETCH_COUNT:
        return newer
    return Fetch(older.partition, older.requestor, older.topic, older.sequence, count)


def announcement(infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The HEAD of each partition."""
    return [Head(info.topic, info.partition, info.end - 1) for info in infos if info.end]


def goes_on(fetch: Fetch, end: int) -> list[Outgoing]:
    """What follows the answer to a FETCH if the partition goes on after it.

    Deployed nodes ask for 100,000 records at the most, and for the next ones only when they hear
    of a head again: from a partition whose producer is gone, never.
    """
    if end <= fetch.end:
        return []
    head = Head(fetch.topic, fetch.partition, end - 1)
    return [DirectHead(fetch.requestor, fetch.topic, fetch.partition, end - 1), head]


def head_messages(requestor: str, infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The answer to GET-HEADS: "one DIRECT-HEAD command for each partition"."""
    return [DirectHead(requestor, i.topic, i.partition, i.end - 1) for i in infos if i.end]


def heads_reply(query: HeadsQuery, store: str, infos: Sequence[PartitionInfo]) -> list[Outgoing]:
    """The answer to a HEADS-QUERY: at least one part, as nothing is an answer, too."""
    entries = [HeadEntry(*info) for info in infos if info.end]
    parts = _parts(entries)
    return [
        HeadsReply(query.requestor, query.query, store, i, len(parts), tuple(part))
        for i, part in enumerate(parts)
    ]


def times_reply(query: TimesQuery, store: str, times: Sequence[tuple[int, int]]) -> list[Outgoing]:
    """The answer to a TIMES-QUERY, in parts as a HEADS-REPLY."""
    parts = _parts([TimeEntry(*time) for time in times])
    return [
        TimesReply(query.requestor, query.query, store, i, len(parts), tuple(part))
        for i, part in enumerate(parts)
    ]


def _parts(entries: Sequence[E]) -> list[Sequence[E]]:
    starts = range(0, max(len(entries), 1), MAX_REPLY_ENTRIES)
    return [entries[i : i + MAX_REPLY_ENTRIES] for i in starts]
