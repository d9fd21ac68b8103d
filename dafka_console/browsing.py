"""Records of stores: read, searched, newest first, and as JSON.

Newest first, a merge of partitions reads only what it shows.  A record's place is the greatest time
up to it in its partition: the records of a partition stay in the order of their offsets.  A range
of times is a range of such places.
"""

from __future__ import annotations

import heapq
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_console.cluster_view import ANSWER_S
from dafka_console.decoding import decoded, preview
from dafka_console.snapshot import Snapshot
from dafka_core.cli.store_clients import Holder, read_range
from dafka_core.errors import DafkaError, InvalidRequestError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope_columns import opened_columns
from dafka_core.model.names import escape, printable, quoted, text_of
from dafka_core.model.opened_records import opened_records
from dafka_core.model.records import Record, RecordBatch, TopicPartition
from dafka_core.model.where import Where, matched

MOST_RECORDS: Final = 200  # records of one page
MOST_PAGE_BYTES: Final = 32 << 20  # size at which a page ends: records can be large
SEARCH_S: Final = 1.5  # time of one search; the next request continues it

SEARCH_RECORDS: Final = 20_000
SEARCH_BYTES: Final = 8 << 20
"""Records read at a time by a search."""

CHUNK: Final = 50
"""Records read at a time from a partition; four times as many after a chunk without a match."""

MOST_ASKED: Final = 500
"""Partitions up to which stores are asked for last times; beyond, the console's are used."""

RANGE_S: Final = 30.0  # time for finding a time in all partitions: 10,000 take seconds
MOST_VIEWS: Final = 64  # views that can be continued; they hold no records
MOST_AT_A_TIME: Final = 4  # pages made at a time: each may hold a large record

UNKNOWN: Final = "no store that answers has records of it"

turns: Final = threading.BoundedSemaphore(MOST_AT_A_TIME)  # held while a page is made


Matcher = Callable[[RecordBatch], Sequence[int]]  # returns the matching rows of a batch


def search(text: str = "", where: str = "") -> Matcher | None:
    """Return what matches a text in keys or values, and a condition; None if all records do.

    Raises:
        InvalidRequestError: the condition, which is as in option ``where``, is invalid.
    """
    if not text and not where:
        return None
    try:
        condition = Where.parse(where) if where else None
    except ValueError as error:
        raise InvalidRequestError("where", where[:100], str(error)) from None
    octets = text.encode("utf-8", "surrogateescape")

    def rows(batch: RecordBatch) -> Sequence[int]:
        found = np.ones(batch.count, bool)
        if octets:
            found &= _contains(batch, octets)
        if condition is not None:
            fits = np.zeros(batch.count, bool)
            fits[matched(batch, condition, opens=True).offsets - batch.offset] = True
            found &= fits
        return np.flatnonzero(found).tolist()

    return rows


def one(
    clients: Sequence[StoreClient], snapshot: Snapshot, tp: TopicPartition, offset: int
) -> Record:
    """Return one record."""
    earliest, end = bounds_of(snapshot, tp, offset)
    if not earliest <= offset < end:
        why = f"the partition has offsets {earliest} to {end - 1}"
        raise InvalidRequestError("offset", offset, why)
    with turns:
        (batch,) = batches(clients, snapshot, tp, offset, offset + 1)
        return next(iter(opened_records(batch)))


def row_of(record: Record) -> dict[str, Any]:
    """Return a record's summary as JSON: one line of its value, and its size."""
    value, key = preview(record.value), preview(record.key)
    return {
        "partition": escape(record.partition),
        "offset": record.offset,
        "time_us": record.timestamp_us,
        "key": key.text,
        "key_format": key.format,
        "value": value.text,
        "format": value.format,
        "media": value.media,
        "bytes": 0 if record.value is None else len(record.value),
        "headers": len(record.headers),
    }


def details_of(record: Record, wanted: str, schema: str) -> dict[str, Any]:
    """Return a whole record as JSON, with its value decoded as requested."""
    return {
        **row_of(record),
        "topic": escape(record.topic),
        "value": decoded(record.value, wanted, schema)._asdict(),
        "key": decoded(record.key)._asdict(),
        "headers": [
            {"name": _name(name), "value": decoded(value)._asdict()}
            for name, value in record.headers[:100]
        ],
    }


def _name(name: str | bytes) -> str:
    return printable(text_of(name) if isinstance(name, bytes) else name)


def bounds_of(snapshot: Snapshot, tp: TopicPartition, start: int | None = None) -> tuple[int, int]:
    """Return the bounds of the readable records; ``start`` must be readable if it exists."""
    columns = snapshot.partitions
    row = columns.row_of(tp)
    if row is None:
        name = f"{escape(tp.topic)}/{escape(tp.partition)}"[:300]
        raise InvalidRequestError("partition", name, UNKNOWN)
    earliest, end = int(columns.earliest[row]), int(columns.end[row])
    readable = max(earliest, int(columns.readable[row]))
    is_beyond = start is not None and readable <= start < end
    if readable < end and (is_beyond or readable == earliest):
        raise DafkaError(f"{tp}: no store that has offsets {readable} to {end - 1} answers")
    return earliest, min(end, readable)


def matching(batch: RecordBatch, matcher: Matcher | None) -> Iterator[Record]:
    """Yield a batch's matching records; all without a matcher."""
    if matcher is None:
        yield from opened_records(batch)
    else:
        for row in matcher(batch):
            offset = batch.offset + row
            yield from opened_records(batch.between(offset, offset + 1))


def batches(
    clients: Sequence[StoreClient], snapshot: Snapshot, tp: TopicPartition, start: int, end: int
) -> Iterator[RecordBatch]:
    """Yield the records of a range, from the stores that have them."""
    row, stores = snapshot.partitions.row_of(tp), snapshot.partitions.stores
    assert row is not None, "as bounds_of has checked"
    held = [(client, stores.get(client.location.store)) for client in clients]
    holders = [Holder(client, 0, int(ends[row])) for client, ends in held if ends is not None]
    limits = {"max_records": SEARCH_RECORDS, "max_bytes": SEARCH_BYTES, "timeout_s": ANSWER_S}
    return read_range(tp, start, end, holders, **limits)


def _contains(batch: RecordBatch, octets: bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    opened = opened_columns(batch.values, ("key", "value"))
    columns = [batch.values.to_arrow()] if opened is None else [opened["key"], opened["value"]]
    found = np.zeros(batch.count, bool)
    for column in columns:
        octet_column = column.cast(pa.large_binary())
        mask = pc.match_substring(octet_column, octets, ignore_case=octets.isascii())
        found |= mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found


class Part(NamedTuple):
    """The records of a partition that were not shown yet."""

    latest_us: float  # no place is later; infinite if unknown
    tp: TopicPartition
    start: int
    stop: int  # exclusive
    chunk: int = CHUNK  # the number of records to read next


class View(NamedTuple):
    """A search of a topic, as far as it got."""

    matcher: Matcher | None  # what matches; None for all records
    parts: tuple[Part, ...]  # the partitions with records that remain
    total: int  # the number of records at its beginning
    away: int  # the partitions that have records which no answering store has

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
    matcher: Matcher | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    partition: str = "",
    before: int | None = None,
) -> View:
    """Return a view of a topic's records from ``since_us`` on, and before ``until_us``.

    With ``partition`` only its records, and those below offset ``before``.

    Raises:
        InvalidRequestError: topic or partition do not exist.
        DafkaError: no store that has records answers, or one does not tell offsets.
    """
    columns = snapshot.partitions
    if topic not in columns.topics:
        raise InvalidRequestError("topic", escape(topic)[:100], UNKNOWN)
    is_own = (columns.topic == columns.topics.index(topic)) & (columns.end > columns.earliest)
    if partition:
        bounds_of(snapshot, tp := TopicPartition(topic, partition))
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
    return View(
        matcher, tuple(parts), total, int((is_own & (columns.end > columns.readable)).sum())
    )


def page(
    clients: Sequence[StoreClient], snapshot: Snapshot, view: View, most: int
) -> tuple[list[Record], View]:
    """Return the next records of a view, and the rest of it.

    The page ends early after ``SEARCH_S`` seconds, perhaps without a record.
    """
    most, parts = max(1, min(most, MOST_RECORDS)), [*view.parts]
    # Of each part, the records that are read and not shown yet, with their times, oldest first.
    unshown: list[list[tuple[float, Record]]] = [[] for _ in parts]
    found: list[Record] = []
    size = held = reads = 0

    def left(number: int) -> Part:
        """Return what remains of a part, with the records that are not shown."""
        if not unshown[number]:
            return parts[number]
        place_us, record = unshown[number][-1]
        return parts[number]._replace(latest_us=place_us, stop=record.offset + 1)

    with turns:
        deadline = time.monotonic() + SEARCH_S
        newest = [(-part.latest_us, number) for number, part in enumerate(parts)]
        heapq.heapify(newest)
        while newest and len(found) < most and size < MOST_PAGE_BYTES:
            _, number = newest[0]
            if unshown[number]:
                _, record = unshown[number].pop()
                found.append(record)
                size, held = size + _size(record), held - _size(record)
            elif reads and time.monotonic() >= deadline:
                break
            else:
                reads += 1
                places, rest = _read(clients, snapshot, parts[number], view.matcher)
                if places and held + sum(_size(each) for _, each in places) > MOST_PAGE_BYTES:
                    places = places[-1:]  # the others are read again
                    rest = parts[number]._replace(latest_us=places[0][0], stop=places[0][1].offset)
                held += sum(_size(each) for _, each in places)
                parts[number], unshown[number] = rest, places
            part = left(number)
            if part.start < part.stop:
                heapq.heapreplace(newest, (-part.latest_us, number))
            else:
                heapq.heappop(newest)
    remaining = tuple(left(number) for _, number in sorted(newest, key=itemgetter(1)))
    return found, view._replace(parts=remaining)


def last(
    clients: Sequence[StoreClient], snapshot: Snapshot, tp: TopicPartition, most: int
) -> list[Record]:
    """Return the last records of a partition, oldest first."""
    view = opened(clients, snapshot, tp.topic, partition=tp.partition)
    return page(clients, snapshot, view, most)[0][::-1]


def _read(
    clients: Sequence[StoreClient], snapshot: Snapshot, part: Part, matcher: Matcher | None
) -> tuple[list[tuple[float, Record]], Part]:
    """Read the end of a part; if it is too large, the last records of it that fit.

    Returns the matching records, each with its place, and what remains without them.
    """
    earliest, _ = bounds_of(snapshot, part.tp, part.stop - 1)
    first = max(part.start, earliest)
    if first >= part.stop:  # deleted since
        return [], part._replace(stop=part.start)
    columns = snapshot.partitions
    row = columns.row_of(part.tp)
    mean = int(columns.bytes[row]) // max(1, int(columns.end[row] - columns.earliest[row]))
    start = max(first, part.stop - max(1, min(part.chunk, SEARCH_BYTES // max(1, mean))))
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
            if size >= MOST_PAGE_BYTES:
                break
        is_cut = at < part.stop
        start = part.stop - (at - start) if is_cut else start
    # A record follows the previous one even with an earlier time, or none.
    places = accumulate((each.timestamp_us or 0 for each in found), max)
    following = CHUNK if found else min(4 * part.chunk, SEARCH_RECORDS)
    rest = part._replace(latest_us=below_us or math.inf, stop=start, chunk=following)
    return [*zip(places, found, strict=True)], rest


def _offsets(
    clients: Sequence[StoreClient], tps: Sequence[TopicPartition], time_us: int | None
) -> list[int | None]:
    """Return each partition's first offset with a time or a later one; None without one."""
    times = [] if time_us is None else [(*tp, time_us) for tp in tps]
    answers = [client.offset_for_times(times, timeout_s=RANGE_S) for client in clients if times]
    known = ([each for each in column if each is not None] for column in zip(*answers, strict=True))
    return [min(each, default=None) for each in known] if answers else [None] * len(tps)


def _size(record: Record) -> int:
    headers = (len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + sum(headers)
