"""What peers ask a store, in which order it answers, and the answers from what its log holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_REPLY_ENTRIES
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import HEADS
from dafka_core.protocol.transactions import PublishCommitted
from dafka_core.records import PartitionInfo

MAX_PENDING_REQUESTS: Final = 65_536
"""Requests that wait for an answer, some 30 MB.  One requestor may have all of them as long as
there is no other; beyond, each may have its share, so there are at most twice as many."""


@dataclass(frozen=True, slots=True)
class AnnounceHeads:
    """Publish the head of every partition: C stores do not ask for them (docs/wire.md)."""


Request = m.Fetch | m.GetHeads | m.ConsumerHello | m.HeadsQuery | m.TimesQuery
Work = Request | AnnounceHeads | PublishCommitted
_Queue = OrderedDict[tuple[type, object], Work]


class RequestQueue:
    """Requests that wait.  Requestors take turns; of each, what has waited longest is next.

    Of requests with the same key it keeps one: they are the same question.
    """

    def __init__(self) -> None:
        # By requestor.  A plain dict looks at all that has been removed before its first key.
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        self._size = 0
        self.refused_count = 0
        """Requests for which there was no room."""

    def __len__(self) -> int:
        return self._size

    def add(self, request: Work) -> bool:
        """Adds a request, to an older one with its key if there is one; False without room."""
        requestor, key = _requestor(request), _key(request)
        queue = self._queues.get(requestor, _Queue())
        older = queue.get(key)
        if older is None and self._size >= MAX_PENDING_REQUESTS:
            share = MAX_PENDING_REQUESTS // (len(self._queues) + (not queue))
            if len(queue) >= share:
                self.refused_count += 1
                return False
        self._put(requestor, key, request if older is None else _joined(older, request))
        return True

    def take(self) -> Work | None:
        """Removes the next request."""
        if not self._queues:
            return None
        requestor, queue = self._queues.popitem(last=False)
        _, request = queue.popitem(last=False)
        self._size -= 1
        if queue:
            self._queues[requestor] = queue
        return request

    def put_back(self, rest: m.Fetch | PublishCommitted) -> None:
        """Adds what is left of a request that was answered in part, behind its requestor's."""
        requestor, key = _requestor(rest), _key(rest)
        newer = self._queues.get(requestor, _Queue()).pop(key, None)
        self._size -= newer is not None
        self._put(requestor, key, rest if newer is None else _joined(rest, newer))

    def _put(self, requestor: str, key: tuple[type, object], request: Work) -> None:
        queue = self._queues.setdefault(requestor, _Queue())
        self._size += key not in queue
        queue[key] = request


def _requestor(request: Work) -> str:
    """Who asks; empty for the store's own work."""
    if isinstance(request, m.ConsumerHello):
        return request.consumer
    return "" if isinstance(request, AnnounceHeads | PublishCommitted) else request.requestor


_KEYS: Final[dict[type, Callable[[Any], object]]] = {
    m.Fetch: attrgetter("requestor", "tp"),
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
