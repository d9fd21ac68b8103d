"""What peers ask a store, in which order it answers, and the answers from what its log holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_REPLY_ENTRIES
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.transactions import PublishCommitted
from dafka_core.records import PartitionInfo

MAX_PENDING_REQUESTS: Final = 4_096
"""Requests that wait for an answer.  Peers ask again, so a store drops the newest beyond this."""


@dataclass(frozen=True, slots=True)
class AnnounceHeads:
    """Publish the head of every partition: C stores do not ask for them (docs/wire.md)."""


Request = m.Fetch | m.GetHeads | m.ConsumerHello | m.HeadsQuery | m.TimesQuery
Work = Request | AnnounceHeads | PublishCommitted


class RequestQueue:
    """Requests that wait; the one that has waited longest is next.

    Of requests with the same key it keeps one: they are the same question.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[object, ...], Work] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Work) -> bool:
        """Adds a request, to an older one with its key if there is one; False without room."""
        key = _key(request)
        older = self._requests.get(key)
        if older is None and len(self._requests) >= MAX_PENDING_REQUESTS:
            return False
        self._requests[key] = request if older is None else _joined(older, request)
        return True

    def take(self) -> Work | None:
        """Removes the next request."""
        return self._requests.pop(next(iter(self._requests))) if self._requests else None

    def put_back(self, rest: m.Fetch | PublishCommitted) -> None:
        """Adds what is left of a request that was answered in part, behind all others."""
        newer = self._requests.pop(_key(rest), None)
        self._requests[_key(rest)] = rest if newer is None else _joined(rest, newer)


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
