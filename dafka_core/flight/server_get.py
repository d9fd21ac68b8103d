"""The service's side of a get: a range of the log, or many, as a stream of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyarrow import flight

from dafka_core.errors import DataLossError
from dafka_core.flight.backup_requests import BackupRequest
from dafka_core.flight.columns import batch_of, packed_metadata, schema_of
from dafka_core.flight.flight_errors import UnavailableError, refusing
from dafka_core.flight.held_range import check_held, check_history
from dafka_core.flight.many_ranges import (
    AskedRange,
    GetManyRequest,
    Part,
    packed_parts,
    ticket_version,
)
from dafka_core.flight.requests import GetRequest
from dafka_core.flight.server_backup import back_up
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.flight.server_where import get_where
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.flight.where_get import GetWhereRequest
from dafka_core.records import RecordBatch, coalesce
from dafka_core.storage.snapshot import Snapshot


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
