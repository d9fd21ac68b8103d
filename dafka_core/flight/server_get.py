"""The service's side of a get: a range of the log as a stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyarrow import flight

from dafka_core.flight import complete_range
from dafka_core.flight.columns import batch_of, check_text, packed_metadata, schema_of
from dafka_core.flight.flight_errors import refusing
from dafka_core.flight.request_members import PARTITION, TOPIC
from dafka_core.flight.requests import GetRequest
from dafka_core.flight.stream_limiter import StreamPermit
from dafka_core.records import RecordBatch, coalesce
from dafka_core.storage import Log


def stream(
    log: Log, request: GetRequest, slot: StreamPermit, check_open: Callable[[], None]
) -> flight.FlightDataStream:
    """The batches of a request; ``check_open`` raises when the service ends.

    Raises:
        ConfigError: the names cannot be columns.
        DataLossError: the range is not held.
    """
    for name, text in ((TOPIC, request.topic), (PARTITION, request.partition)):
        if name in request.columns:
            check_text(name, text)
    complete_range.check_held(log.info(request.tp), request.tp, request.start, request.end)
    batches = _batches(log, request, slot, check_open)
    return flight.GeneratorStream(schema_of(request.columns), batches)


def _batches(
    log: Log, request: GetRequest, slot: StreamPermit, check_open: Callable[[], None]
) -> Iterator[tuple[object, bytes]]:
    """Batches with their metadata.

    Between two of them nothing is held but a copy of the block they are cut from: whoever reads
    them may take as long as he likes.
    """
    schema = schema_of(request.columns)
    at = request.start
    try:
        while at < request.end:
            with refusing():
                check_open()
                block = _block_at(log, request, at)
            for part in block.split(request.max_records, request.max_bytes):
                batch = batch_of(part, schema)
                yield batch, packed_metadata(part.offset, part.times if request.times else None)
            at = block.end
    finally:
        slot.release()


def _block_at(log: Log, request: GetRequest, at: int) -> RecordBatch:
    with log.snapshot() as snapshot:
        batches = complete_range.batches(snapshot, request.tp, at, request.end, copy=True)
        return next(coalesce(batches, request.max_records, request.max_bytes))
