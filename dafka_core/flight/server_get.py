"""The server side of a get: ranges of the log, with or without a condition, backups and checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import CHANGED, DataLossError, HistoryChangedError
from dafka_core.flight import limits
from dafka_core.flight.backup_requests import (
    SCHEMA,
    BackupRequest,
    CheckRequest,
    FoundLinks,
    LinksRequest,
    LogChecked,
    batches,
)
from dafka_core.flight.columns import batch_of, packed_metadata, schema_of
from dafka_core.flight.flight_errors import BEHIND, IDLE, UnavailableError, refusing
from dafka_core.flight.requests import (
    AskedRange,
    GetManyRequest,
    GetRequest,
    Part,
    RangeRequest,
    packed_parts,
    ticket_version,
)
from dafka_core.flight.server_context import ServerContext, WatchedStream
from dafka_core.flight.server_keys import Caller, administers, reads
from dafka_core.flight.where_get import GetWhereRequest, packed_scan
from dafka_core.model.envelope import AUTO
from dafka_core.model.epochs import EpochId, History, known_until
from dafka_core.model.records import (
    MatchedRecords,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    coalesce,
)
from dafka_core.model.where import Where, concat_matched, matched
from dafka_core.storage.backup import Known, entries
from dafka_core.storage.log_check import Checked, check_partition, check_rest, check_saved, links_of
from dafka_core.storage.snapshot import Snapshot
from dafka_core.storage.storage_errors import translated
from dafka_core.storage.tables import Tables
from dafka_core.system.closing import Closing
from dafka_core.system.distribution import this_version

Batches = Iterator[tuple[pa.RecordBatch, bytes]]
"""Batches with their metadata."""


def check_log(
    context: ServerContext, request: CheckRequest, caller: Caller
) -> Iterator[LogChecked]:
    """Yield the damage of some partitions, or of data beside records."""
    open_tables = partial(_open_tables, context)
    done = Checked()
    with context.backups.take(caller.is_gone):
        parts = [check_partition(open_tables, tp) for tp in request.partitions]
        if request.saved:
            parts = [(check_saved(open_tables, each) for each in request.saved)]
        for part in parts or [check_rest(open_tables)]:
            for each in part:
                if caller.is_gone():
                    return
                done = done.plus(each)
    yield LogChecked(*done)


def links(context: ServerContext, request: LinksRequest, caller: Caller) -> Iterator[FoundLinks]:
    """Yield the links of some partitions."""
    open_tables = partial(_open_tables, context)
    for tp in request.partitions:
        found = links_of(open_tables, tp, newest=request.newest)
        for part in limits.parts(found, limits.HEADS_PER_RESULT):
            if caller.is_gone():
                return
            yield FoundLinks(part)
    yield FoundLinks(())  # the end, also without links


def _open_tables(context: ServerContext) -> AbstractContextManager[Tables]:
    context.check_open()
    return context.log.snapshot()


def _backup_batches(
    context: ServerContext, request: BackupRequest, stream: WatchedStream
) -> Iterator[pa.RecordBatch]:
    reading = translated(context.log.directory)
    with stream, refusing(), reading, _Moment(context, request) as moment:
        stream.hold(moment)
        stream.idle_s = limits.BACKUP_IDLE_S
        while (batch := moment.batch()) is not None:
            context.check_open()
            stream.wait()
            yield batch
            stream.go_on()


class _Moment(Closing):
    """A consistent view of the log, which the watch's thread ends if a client is stalled.

    The handler's thread waits inside gRPC then, perhaps for ever, and LMDB would reuse no page.
    """

    def __init__(self, context: ServerContext, request: BackupRequest) -> None:
        known = {each[0]: Known(*each) for each in request.known}
        self._lock, self._reading = threading.Lock(), ExitStack()
        snapshot = self._reading.enter_context(context.log.snapshot())
        found = batches(entries(snapshot, known, {"dafka": this_version()}))
        self._batches: Iterator[pa.RecordBatch] | None = found

    def batch(self) -> pa.RecordBatch | None:
        """Return the next entries; None at the end, also after ``close``."""
        with self._lock:
            return None if self._batches is None else next(self._batches, None)

    def close(self) -> None:
        with self._lock:
            self._batches = None
            self._reading.close()


def check_held(held: PartitionInfo | None, tp: TopicPartition, start: int, end: int) -> None:
    """Raise DataLossError unless the records from ``start`` to ``end`` are held.

    Its ``available`` is the first offset held if the range begins before it, else None; its
    ``wanted`` is the first offset of the range that is not held.
    """
    if held is None:
        held = PartitionInfo(*tp, 0, 0)
    if start < held.earliest and start < end:
        why = "the store has no records before it"
        raise DataLossError(*tp, start, held.earliest, why)
    if end > held.end:
        why = f"the store has the records from {held.earliest} up to {held.end} (exclusive)"
        raise DataLossError(*tp, max(start, held.end), None, why)


def check_history(history: History, request: RangeRequest | AskedRange) -> None:
    """Raise an error unless a log's records are of the history known to the caller."""
    for life, end in ((request.after, request.start), (request.life, request.end)):
        if life is None:
            continue
        known = known_until(history, EpochId(*life))
        if known is None:
            why = f"the store has no records of life {life[0]} of the partition's producer yet"
            raise UnavailableError(BEHIND, f"{why}; use another store, or retry later")
        if known < end:
            raise HistoryChangedError(*request.tp, known, None, CHANGED, end)


MAX_SCANNED_BYTES: Final = 64 << 20
"""Bytes scanned for one batch: a client receives something every tenth of a second or so, also if
nothing matches."""

PIECE_BYTES: Final = 8 << 20
"""Bytes scanned between two checks that the client still waits: some milliseconds' work, and some
seconds' for the slowest conditions.  Pieces of 1 MiB would double the time of a scan."""

MAX_SCANNED_BLOCKS: Final = 64
"""Small blocks cost more than their size."""


def _matched_batches(
    context: ServerContext, request: GetWhereRequest, schema: pa.Schema, caller: Caller
) -> Batches:
    at, where = request.start, Where.parse(request.where)
    while at < request.end:
        found = _matched_from(context, request, where, at, caller)
        yield batch_of([found], schema), packed_scan(found)
        at = found.end


def _matched_from(
    context: ServerContext, request: GetWhereRequest, where: Where, at: int, caller: Caller
) -> MatchedRecords:
    """Return the matching records of the range from there on, for one batch."""
    parts: list[MatchedRecords] = []
    records = size_bytes = scanned_bytes = blocks = 0
    opens = request.envelope == AUTO
    with context.log.snapshot() as snapshot:
        _check(snapshot, request, at)
        found = snapshot.read(request.tp, at, request.end)
        for block in coalesce(found, request.max_records, request.max_bytes):
            for piece in block.split(request.max_records, min(request.max_bytes, PIECE_BYTES)):
                context.check_open()
                if caller.is_gone():
                    raise UnavailableError(IDLE, f"the client of a get of {request.tp} has gone")
                part = matched(piece, where, opens=opens)
                records += part.count
                size_bytes += part.values.size_bytes
                too_large = records > request.max_records or size_bytes > request.max_bytes
                if parts and too_large:
                    return concat_matched(parts)
                parts.append(part)
            scanned_bytes += block.values.size_bytes
            blocks += 1
            if scanned_bytes >= MAX_SCANNED_BYTES or blocks >= MAX_SCANNED_BLOCKS:
                break
    return concat_matched(parts)


def get(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """Stream the batches for a ticket."""
    version = ticket_version(ticket)
    if version == BackupRequest.json_version:
        backup = context.parse(BackupRequest, administers, ticket, caller)
        stream = context.stream(context.backups, caller, "backup")
        return flight.GeneratorStream(SCHEMA, _backup_batches(context, backup, stream))
    kind, batches = _GETS.get(version, _GETS[GetRequest.json_version])
    request = context.parse(kind, reads, ticket, caller)
    is_many = isinstance(request, GetManyRequest)
    what = f"{len(request.ranges)} ranges" if is_many else str(request.tp)
    stream = context.stream(context.gets, caller, f"get of {what}")
    if not is_many:
        with context.log.snapshot() as snapshot:
            _check(snapshot, request, request.start)
    schema = schema_of(request.columns)
    found = batches(context, request, schema, caller)
    return flight.GeneratorStream(schema, _streamed(context, stream, found))


def _streamed(context: ServerContext, stream: WatchedStream, batches: Batches) -> Batches:
    """Yield batches with their metadata.

    Between two of them the store keeps only a copy of the block they are cut from: a client may
    read slowly.  A stalled one is given up.
    """
    with stream:
        while True:
            with refusing():
                context.check_open()
                found = next(batches, None)
            if found is None:
                return
            size_bytes = found[0].nbytes
            context.gets.add_sent(size_bytes)
            stream.wait(size_bytes)
            yield found
            with refusing():
                stream.go_on()


def _range_batches(
    context: ServerContext, request: GetRequest, schema: pa.Schema, caller: Caller
) -> Batches:
    at = request.start
    while at < request.end:
        block = _block_at(context, request, at)
        for part in block.split(request.max_records, request.max_bytes):
            times = part.times if request.times else None
            yield batch_of([part], schema), packed_metadata(part.offset, times)
        at = block.end


def _block_at(context: ServerContext, request: GetRequest, at: int) -> RecordBatch:
    with context.log.snapshot() as snapshot:
        _check(snapshot, request, at)
        batches = snapshot.read(request.tp, at, request.end)
        return next(coalesce(batches, request.max_records, request.max_bytes))


def _many_batches(
    context: ServerContext, request: GetManyRequest, schema: pa.Schema, caller: Caller
) -> Batches:
    place = _Place(0, request.ranges[0].start)
    while place.number < len(request.ranges):
        context.check_open()
        parts, place = _parts_at(context, request, place)
        if parts:
            batch = batch_of([part.batch for part in parts], schema)
            yield batch, packed_parts(parts, times=request.times)


class _Place(NamedTuple):
    """The progress of a get of many ranges: an offset of the range with this number."""

    number: int
    at: int


def _parts_at(
    context: ServerContext, request: GetManyRequest, place: _Place
) -> tuple[list[Part], _Place]:
    parts: list[Part] = []
    records, size_bytes = request.max_records, request.max_bytes
    with context.log.snapshot() as snapshot:
        for index in range(place.number, len(request.ranges)):
            requested = request.ranges[index]
            at = place.at if index == place.number else requested.start
            for block in _held_blocks(snapshot, requested, at):
                part = next(block.split(max(records, 1), size_bytes))
                # The first one may be larger: a record is not cut.
                if parts and (records < 1 or part.values.size_bytes > size_bytes):
                    return parts, _Place(index, at)
                parts.append(Part(index, part))
                records, size_bytes = records - part.count, size_bytes - part.values.size_bytes
                at = part.end
                if at < block.end:
                    return parts, _Place(index, at)
    return parts, _Place(len(request.ranges), 0)


def _held_blocks(snapshot: Snapshot, requested: AskedRange, at: int) -> Iterator[RecordBatch]:
    """Yield the blocks of a range from ``at`` on; none if it is not held or of another history.

    The client requests such a range again, alone or from another store, and gets the reason then.
    """
    try:
        _check(snapshot, requested, at)
    except (DataLossError, UnavailableError):
        return
    yield from snapshot.read(requested.tp, at, requested.end)


def _check(snapshot: Snapshot, request: RangeRequest | AskedRange, at: int) -> None:
    held, history = snapshot.held(request.tp)
    check_held(held, request.tp, at, request.end)
    check_history(history, request)


_GETS: Final[dict[int | None, tuple[type[Any], Callable[..., Batches]]]] = {
    kind.json_version: (kind, batches)
    for kind, batches in (
        (GetRequest, _range_batches),
        (GetManyRequest, _many_batches),
        (GetWhereRequest, _matched_batches),
    )
}
"""The requests of records, and their batches, by the ticket's version."""
