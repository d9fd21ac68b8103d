"""The service's side of a get with a condition: all of a range is looked at, what fits is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyarrow import flight

from dafka_core.envelope import AUTO
from dafka_core.flight.columns import batch_of, schema_of
from dafka_core.flight.flight_errors import refusing
from dafka_core.flight.held_range import check_held, check_history
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.flight.where_get import GetWhereRequest, packed_scan
from dafka_core.kept_records import KeptRecords, concat_kept, kept
from dafka_core.records import coalesce
from dafka_core.storage.snapshot import Snapshot
from dafka_core.where import Where

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
        _check(snapshot, request, request.start)
    schema = schema_of(request.columns)
    return flight.GeneratorStream(schema, _batches(context, request, schema, stream))


def _batches(
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
        _check(snapshot, request, at)
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


def _check(snapshot: Snapshot, request: GetWhereRequest, at: int) -> None:
    held, history = snapshot.held(request.tp)
    check_held(held, request.tp, at, request.end)
    check_history(history, request)
