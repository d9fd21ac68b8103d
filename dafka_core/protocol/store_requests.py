"""What stores are asked, and what they say to it, from what their log holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_REPLY_ENTRIES
from dafka_core.protocol.messages import (
    ConsumerHello,
    DirectHead,
    Fetch,
    GetHeads,
    Head,
    HeadEntry,
    HeadsQuery,
    HeadsReply,
    TimeEntry,
    TimesQuery,
    TimesReply,
)
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.transactions import PublishCommitted
from dafka_core.records import PartitionInfo

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class AnnounceHeads:
    """Publish the head of every partition: a store has come that knows no other way to ask."""


Request = Fetch | GetHeads | ConsumerHello | HeadsQuery | TimesQuery
Work = Request | AnnounceHeads | PublishCommitted


def request_key(request: Work) -> tuple[object, ...]:
    """Requests with one key are the same question: the newer one replaces the older."""
    match request:
        case Fetch():
            return (Fetch, request.requestor, request.tp)
        case GetHeads():
            return (GetHeads, request.requestor, request.topic)
        case ConsumerHello():
            return (ConsumerHello, request.consumer)
        case HeadsQuery() | TimesQuery():
            return (type(request), request.requestor, request.query)
        case AnnounceHeads():
            return (AnnounceHeads,)
        case PublishCommitted():
            return (PublishCommitted, request.tp)


def joined(older: Work, newer: Work) -> Work:
    """What is asked by two requests of one key: the newer, after the older if it goes on.

    Requestors ask for the next block while one is under way; else they have changed their mind.
    """
    if isinstance(older, PublishCommitted) and isinstance(newer, PublishCommitted):
        return older.joined(newer)
    if not isinstance(older, Fetch) or not isinstance(newer, Fetch):
        return newer
    count = older.count + newer.count
    if newer.sequence != older.end or count > MAX_FETCH_COUNT:
        return newer
    return Fetch(older.partition, older.requestor, older.topic, older.sequence, count)


def announcement(infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The HEAD of each partition."""
    return [Head(*info.tp, info.end - 1) for info in infos if info.end]


def goes_on(fetch: Fetch, end: int) -> list[Outgoing]:
    """What follows the answer to a FETCH if the partition goes on after it.

    C nodes ask for 100,000 records at the most, and for the next ones only when they hear
    of a head again: from a partition whose producer is gone, never.
    """
    if end <= fetch.end:
        return []
    head = Head(*fetch.tp, end - 1)
    return [DirectHead(fetch.requestor, *fetch.tp, end - 1), head]


def head_messages(requestor: str, infos: Iterable[PartitionInfo]) -> list[Outgoing]:
    """The answer to GET-HEADS: "one DIRECT-HEAD command for each partition"."""
    return [DirectHead(requestor, *info.tp, info.end - 1) for info in infos if info.end]


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
