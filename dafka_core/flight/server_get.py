"""The server side of a get: ranges of the log as a stream, with or without a condition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import CHANGED, DataLossError, HistoryChangedError
from dafka_core.flight.backup_requests import BackupRequest
from dafka_core.flight.columns import batch_of, packed_metadata, schema_of
from dafka_core.flight.flight_errors import BEHIND, UnavailableError, refusing
from dafka_core.flight.requests import (
    AskedRange,
    GetManyRequest,
    GetRequest,
    Part,
    RangeRequest,
    packed_parts,
    ticket_version,
)
from dafka_core.flight.server_backup import back_up
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.flight.where_get import GetWhereRequest, packed_scan
from dafka_core.model.envelope import AUTO
from dafka_core.model.epochs import EpochId, History, known_until
from dafka_core.model.matched_records import KeptRecords, concat_kept, kept
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, coalesce
from dafka_core.model.where import Where
from dafka_core.storage.snapshot import Snapshot


def check_held(held: PartitionInfo | None, tp: TopicPartition, start: int, end: int) -> None:
    """Raises DataLossError unless the records from ``start`` up to ``end`` are held.

    Its ``available`` is the first offset held where the range begins before it, else None; its
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
    """Sees that a log's records are of the history that the caller has heard of.

    Raises:
        HistoryChangedError: a newer producer has taken over from the one heard of.
        UnavailableError: the log has no records of that one yet.
    """
    for life, end in ((request.after, request.start), (request.life, request.end)):
        if life is None:
            continue
        known = known_until(history, EpochId(*life))
        if known is None:
            why = f"the store has no records of life {life[0]} of the partition's producer yet"
            raise UnavailableError(BEHIND, f"{why}; ask another store, or later")
        if known < end:
            raise HistoryChangedError(*request.tp, known, None, CHANGED, end)


MAX_SCANNED_BYTES: Final = 64 << 20
"""What is looked at for one batch: a client hears of the store every tenth of a second or so, also
where nothing fits."""

MAX_SCANNED_BLOCKS: Final = 64
"""Each costs more than its size says where it is small."""


def get_where(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """The batches that a ticket with a condition asks for; see ``server_get.get``."""
    request = context.parse(GetWhereRequest, ticket, caller)
    stream = context.stream(context.gets, caller, f"get of {request.tp}")
    with context.log.snapshot() as snapshot:
        _check_condition(snapshot, request, request.start)
    schema = schema_of(request.columns)
    return flight.GeneratorStream(schema, _matched_batches(context, request, schema, stream))


def _matched_batches(
    context: ServerContext, request: GetWhereRequest, schema: pa.Schema, stream: WatchedStream
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Batches with their metadata; between two of them the store keeps no block."""
    at, where = request.start, Where.parse(request.where)
    with stream:
        while at < request.end:
            with refusing():
                context.check_open()
                found = _kept_from(context, request, where, at)
            batch = batch_of([found], schema)
            context.gets.add_sent(batch.nbytes)
            stream.wait(batch.nbytes)
            yield batch, packed_scan(found)
            with refusing():
                stream.go_on()
            at = found.end


def _kept_from(
    context: ServerContext, request: GetWhereRequest, where: Where, at: int
) -> KeptRecords:
    """What is kept of the range from there on, as much as goes into one batch."""
    parts: list[KeptRecords] = []
    records = size_bytes = scanned_bytes = blocks = 0
    opens = request.envelope == AUTO
    with context.log.snapshot() as snapshot:
        _check_condition(snapshot, request, at)
        found = snapshot.read(request.tp, at, request.end)
        for block in coalesce(found, request.max_records, request.max_bytes):
            for piece in block.split(request.max_records, request.max_bytes):
                part = kept(piece, where, opens=opens)
                records += part.count
                size_bytes += part.values.size_bytes
                too_large = records > request.max_records or size_bytes > request.max_bytes
                if parts and too_large:
                    return concat_kept(parts)
                parts.append(part)
            scanned_bytes += block.values.size_bytes
            blocks += 1
            if scanned_bytes >= MAX_SCANNED_BYTES or blocks >= MAX_SCANNED_BLOCKS:
                break
    return concat_kept(parts)


def _check_condition(snapshot: Snapshot, request: GetWhereRequest, at: int) -> None:
    held, history = snapshot.held(request.tp)
    check_held(held, request.tp, at, request.end)
    check_history(history, request)


def get(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """The batches that a ticket asks for.

    Raises:
        InvalidRequestError: the ticket is none.
        DataLossError: the range is not held, or not of the history that was asked for.
        UnavailableError: there are as many streams as there may be, and none ended in time.
    """
    match ticket_version(ticket):
        case GetManyRequest.json_version:
            return get_many(context, ticket, caller)
        case GetWhereRequest.json_version:
            return get_where(context, ticket, caller)
        case BackupRequest.json_version:
            return back_up(context, ticket, caller)
    request = context.parse(GetRequest, ticket, caller)
    what = f"get of {request.tp}"
    stream = context.stream(context.gets, caller, what)
    with context.log.snapshot() as snapshot:
        _check(snapshot, request, request.start)
    schema = schema_of(request.columns)
    return flight.GeneratorStream(schema, _batches(context, request, schema, stream))


def _batches(
    context: ServerContext, request: GetRequest, schema: pa.Schema, stream: WatchedStream
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Batches with their metadata.

    Between two of them the store keeps nothing but a copy of the block they are cut from: a
    client may read slowly.  One that does not read at all is given up.
    """
    at = request.start
    with stream:
        while at < request.end:
            with refusing():
                context.check_open()
                block = _block_at(context, request, at)
            for part in block.split(request.max_records, request.max_bytes):
                times = part.times if request.times else None
                batch = batch_of([part], schema)
                context.gets.add_sent(batch.nbytes)
                stream.wait(batch.nbytes)
                yield batch, packed_metadata(part.offset, times)
                with refusing():
                    stream.go_on()
            at = block.end


def _block_at(context: ServerContext, request: GetRequest, at: int) -> RecordBatch:
    with context.log.snapshot() as snapshot:
        _check(snapshot, request, at)
        batches = snapshot.read(request.tp, at, request.end)
        return next(coalesce(batches, request.max_records, request.max_bytes))


def get_many(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """The batches that a ticket of many ranges asks for; see ``get``."""
    request = context.parse(GetManyRequest, ticket, caller)
    stream = context.stream(context.gets, caller, f"get of {len(request.ranges)} ranges")
    schema = schema_of(request.columns)
    return flight.GeneratorStream(schema, _many_batches(context, request, schema, stream))


def _many_batches(
    context: ServerContext, request: GetManyRequest, schema: pa.Schema, stream: WatchedStream
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    place = _Place(0, request.ranges[0].start)
    with stream:
        while place.number < len(request.ranges):
            with refusing():
                context.check_open()
                parts, place = _parts_at(context, request, place)
            if not parts:
                continue
            batch = batch_of([part.batch for part in parts], schema)
            context.gets.add_sent(batch.nbytes)
            stream.wait(batch.nbytes)
            yield batch, packed_parts(parts, times=request.times)
            with refusing():
                stream.go_on()


class _Place(NamedTuple):
    """Where a get of many ranges is: at an offset of the range with this number."""

    number: int
    at: int


def _parts_at(
    context: ServerContext, request: GetManyRequest, place: _Place
) -> tuple[list[Part], _Place]:
    parts: list[Part] = []
    records, size_bytes = request.max_records, request.max_bytes
    with context.log.snapshot() as snapshot:
        for index in range(place.number, len(request.ranges)):
            asked = request.ranges[index]
            at = place.at if index == place.number else asked.start
            for block in _held_blocks(snapshot, asked, at):
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


def _held_blocks(snapshot: Snapshot, asked: AskedRange, at: int) -> Iterator[RecordBatch]:
    """The blocks of a range from ``at`` on; none where it is not held as it is meant.

    Who asks for many ranges asks for such a one again, alone or elsewhere, and is told why then.
    """
    try:
        _check(snapshot, asked, at)
    except (DataLossError, UnavailableError):
        return
    yield from snapshot.read(asked.tp, at, asked.end)


def _check(snapshot: Snapshot, request: GetRequest | AskedRange, at: int) -> None:
    held, history = snapshot.held(request.tp)
    check_held(held, request.tp, at, request.end)
    check_history(history, request)
