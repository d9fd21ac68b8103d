"""The service's side of a get: a range of the log as a stream of batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from dafka_core.flight.columns import (
    PARTITION,
    TOPIC,
    batch_of,
    check_text,
    packed_metadata,
    schema_of,
)
from dafka_core.flight.flight_errors import refusing
from dafka_core.flight.held_range import check_held, check_history
from dafka_core.flight.requests import GetRequest
from dafka_core.flight.server_context import Caller, ServerContext
from dafka_core.flight.stream_watch import WatchedStream
from dafka_core.records import RecordBatch, coalesce
from dafka_core.storage.snapshot import Snapshot


def get(context: ServerContext, ticket: bytes, caller: Caller) -> flight.FlightDataStream:
    """The batches that a ticket asks for.

    Raises:
        InvalidRequestError: the ticket is none, or a name cannot be in a column.
        DataLossError: the range is not held, or not of the history that was asked for.
        UnavailableError: there are as many streams as there may be, and none ended in time.
    """
    request = context.parse(GetRequest, ticket)
    for name, text in ((TOPIC, request.topic), (PARTITION, request.partition)):
        if name in request.columns:
            check_text(name, text)
    what = f"get of topic {request.topic!r}, partition {request.partition}"
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
                batch = batch_of(part, schema)
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


def _check(snapshot: Snapshot, request: GetRequest, at: int) -> None:
    held, history = snapshot.held(request.tp)
    check_held(held, request.tp, at, request.end)
    check_history(history, request)
