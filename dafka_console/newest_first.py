"""Records of a topic or a partition, newest first: a merge that reads only what it shows.

A record's place is the greatest time up to it in its partition: the records of a partition
stay in the order of their offsets. A range of times is a range of such places.
"""

from __future__ import annotations

import heapq
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from dafka_console import browsing
from dafka_console.browsing import Matcher, Search, batches, matching
from dafka_console.cluster_view import ANSWER_S
from dafka_console.snapshot import Snapshot
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import escape, quoted
from dafka_core.model.opened_records import opened_records
from dafka_core.model.records import Record, TopicPartition

CHUNK: Final = 50
"""Records read at a time from a partition; four times as many after a chunk without a match."""

MOST_ASKED: Final = 500
"""Partitions up to which stores are asked for last times; beyond, the console's are used."""

RANGE_S: Final = 30.0
"""Time for finding a time in all partitions: 10,000 take seconds."""

MOST_VIEWS: Final = 64
"""Views that can be continued; they hold no records."""


class Part(NamedTuple):
    """The records of a partition that were not shown yet.

    Attributes:
        latest_us: no place is later; infinite if unknown.
        tp: the partition.
        start, stop: the offsets, ``stop`` exclusive.
        chunk: the number of records to read next.
    """

    latest_us: float
    tp: TopicPartition
    start: int
    stop: int
    chunk: int = CHUNK


class View(NamedTuple):
    """A search of a topic, as far as it got.

    Attributes:
        search: what matches.
        parts: the partitions with records that remain.
        total: the number of records at its beginning.
        away: the partitions that have records which no answering store has.
    """

    search: Search
    parts: tuple[Part, ...]
    total: int
    away: int

    @property
    def scanned(self) -> int:
        """The number of records searched."""
        return self.total - sum(part.stop - part.start for part in self.parts)


class Views:
    """The last views, to be continued.  Thread-safe."""

    def __init__(self) -> None:
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, view: View) -> str:
        """Return the name by which the view continues; empty at its end."""
        if not view.parts:
            return ""
        name = secrets.token_hex(8)
        with self._lock:
            self._views[name] = view
            if len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
        return name

    def named(self, name: str) -> View:
        """Return a view."""
        with self._lock:
            found = self._views.get(name)
            if found is None:
                raise InvalidRequestError("more", name[:100], "it was too long ago: search again")
            self._views.move_to_end(name)
            return found


def opened(
    clients: Sequence[StoreClient],
    snapshot: Snapshot,
    topic: str,
    search: Search = Search(),  # noqa: B008 -- it is a constant
    since_us: int | None = None,
    until_us: int | None = None,
    partition: str = "",
    before: int | None = None,
) -> View:
    """Return a view of a topic's records from ``since_us`` on, and before ``until_us``.

    With ``partition`` only its records, and those below offset ``before``.

    Raises:
        InvalidRequestError: topic or partition do not exist, or the condition is invalid.
        DafkaError: no store that has records answers, or one does not tell offsets.
    """
    search.matcher()
    columns = snapshot.partitions
    if topic not in columns.topics:
        raise InvalidRequestError("topic", escape(topic)[:100], browsing.UNKNOWN)
    is_own = (columns.topic == columns.topics.index(topic)) & (columns.end > columns.earliest)
    if partition:
        browsing.bounds_of(snapshot, tp := TopicPartition(topic, partition))
        is_own &= np.arange(len(columns.tps)) == columns.row_of(tp)
    own = np.flatnonzero(is_own & (columns.readable > columns.earliest)).tolist()
    if not own and is_own.any():
        raise DafkaError(f"no store that has records of topic {quoted(topic)} answers")
    tps = [columns.tps[row] for row in own]
    latest = dict(zip(tps, columns.last_us[own].tolist(), strict=True))
    if 1 < len(own) <= MOST_ASKED:  # one partition needs no order
        latest = {}
        for client in clients:
            with suppress(DafkaError):  # its partitions are read first
                for each in client.facts(topic, timeout_s=ANSWER_S):
                    latest[each.tp] = max(latest.get(each.tp, 0), each.last_time_us or 0)
    begins, ends = (_offsets(clients, tps, time_us) for time_us in (since_us, until_us))
    parts = []
    for row, tp, begin, end in zip(own, tps, begins, ends, strict=True):
        stop = min(int(columns.end[row]), int(columns.readable[row]))
        latest_us = latest.get(tp) or math.inf
        if until_us is not None and end is not None and end < stop:
            stop, latest_us = end, min(latest_us, until_us)
        if before is not None:
            stop = min(stop, before)
        start = int(columns.earliest[row])
        if since_us is not None:
            start = stop if begin is None else max(start, begin)
        if start < stop:
            parts.append(Part(latest_us, tp, start, stop))
    total = sum(part.stop - part.start for part in parts)
    return View(search, tuple(parts), total, int((is_own & (columns.end > columns.readable)).sum()))


def page(
    clients: Sequence[StoreClient], snapshot: Snapshot, view: View, most: int
) -> tuple[list[Record], View]:
    """Return the next records of a view, and the rest of it.

    The page ends early after ``SEARCH_S`` seconds, perhaps without a record.
    """
    most, matcher = max(1, min(most, browsing.MOST_RECORDS)), view.search.matcher()
    parts, chunks = [*view.parts], dict[int, _Chunk]()
    heap = [(-part.latest_us, number) for number, part in enumerate(parts)]
    heapq.heapify(heap)
    found: list[Record] = []
    size = held = reads = 0
    with browsing.turns:
        deadline = time.monotonic() + browsing.SEARCH_S
        while heap and len(found) < most and size < browsing.MOST_PAGE_BYTES:
            number = heap[0][1]
            if (chunk := chunks.get(number)) is not None:
                _, record = chunk.places.pop()
                found.append(record)
                size += _size(record)
                held -= _size(record)
            elif reads and time.monotonic() >= deadline:
                break
            else:
                reads += 1
                chunk = _read(clients, snapshot, parts[number], matcher)
                held += sum(_size(record) for _, record in chunk.places)
                if held > browsing.MOST_PAGE_BYTES and chunk.places:
                    chunk = chunk.cut()
            parts[number] = part = chunk.rest()
            if chunk.places:
                chunks[number] = chunk
            else:
                chunks.pop(number, None)
            if part.start < part.stop:
                heapq.heapreplace(heap, (-part.latest_us, number))
            else:
                heapq.heappop(heap)
    return found, view._replace(parts=tuple(part for part in parts if part.start < part.stop))


def last(
    clients: Sequence[StoreClient], snapshot: Snapshot, tp: TopicPartition, most: int
) -> list[Record]:
    """Return the last records of a partition, oldest first."""
    view = opened(clients, snapshot, tp.topic, partition=tp.partition)
    return page(clients, snapshot, view, most)[0][::-1]


class _Chunk(NamedTuple):
    """Records read from the end of a part, of which the last are shown first.

    Attributes:
        part: the part from which they were read.
        start: the first offset that was read.
        below_us: no place of an earlier record is later.
        following: the number of records to read next.
        places: the matching records, each with its place.
    """

    part: Part
    start: int
    below_us: float
    following: int
    places: list[tuple[float, Record]]

    def rest(self) -> Part:
        """Return what remains of the part."""
        if not self.places:
            return self.part._replace(
                latest_us=self.below_us, stop=self.start, chunk=self.following
            )
        place_us, record = self.places[-1]
        return self.part._replace(latest_us=place_us, stop=record.offset + 1)

    def cut(self) -> _Chunk:
        """Return the newest record alone; the others are read again."""
        place_us, record = self.places[-1]
        return self._replace(start=record.offset, below_us=place_us, places=self.places[-1:])


def _read(
    clients: Sequence[StoreClient], snapshot: Snapshot, part: Part, matcher: Matcher | None
) -> _Chunk:
    """Read the end of a part; if it is too large, the last records of it that fit."""
    earliest, _ = browsing.bounds_of(snapshot, part.tp, part.stop - 1)
    first = max(part.start, earliest)
    if first >= part.stop:  # deleted since
        return _Chunk(part, part.start, 0, CHUNK, [])
    columns = snapshot.partitions
    row = columns.row_of(part.tp)
    mean = int(columns.bytes[row]) // max(1, int(columns.end[row] - columns.earliest[row]))
    start = max(first, part.stop - max(1, min(part.chunk, browsing.SEARCH_BYTES // max(1, mean))))
    is_cut = True
    while is_cut:
        found, size, at = list[Record](), 0, start
        below_us: float | None = None
        for batch in batches(clients, snapshot, part.tp, start, part.stop):
            if below_us is None:
                (oldest,) = opened_records(batch.between(batch.offset, batch.offset + 1))
                below_us = oldest.timestamp_us or math.inf
            records = [*matching(batch, matcher)]
            found += records
            size += sum(map(_size, records))
            at = batch.end
            if size >= browsing.MOST_PAGE_BYTES:
                break
        is_cut = at < part.stop
        start = part.stop - (at - start) if is_cut else start
    # A record follows the previous one even with an earlier time, or none.
    places = accumulate((each.timestamp_us or 0 for each in found), max)
    following = CHUNK if found else min(4 * part.chunk, browsing.SEARCH_RECORDS)
    return _Chunk(part, start, below_us or math.inf, following, [*zip(places, found, strict=True)])


def _offsets(
    clients: Sequence[StoreClient], tps: Sequence[TopicPartition], time_us: int | None
) -> list[int | None]:
    """Return each partition's first offset with a time or a later one; None without one."""
    times = [] if time_us is None else [(*tp, time_us) for tp in tps]
    answers = [client.offset_for_times(times, timeout_s=RANGE_S) for client in clients if times]
    known = ([each for each in column if each is not None] for column in zip(*answers, strict=True))
    return [min(each, default=None) for each in known] if answers else [None] * len(tps)


def _size(record: Record) -> int:
    return len(record.value or b"")
