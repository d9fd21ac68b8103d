"""A get of the matching records of a range: the request, and the batches' metadata.

The store scans every record of the range and sends the matching ones, each with its offset.  A
batch's metadata are four signed 64-bit numbers in little endian order: 3 (the version); the scanned
range, start and end (exclusive); and the number of matching records, which are the batch.  The
ranges are adjacent, so the client knows that the whole range was scanned, also without matches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits
from dafka_core.flight.columns import (
    DEFAULT_COLUMNS,
    LONG,
    OFFSET,
    TIMESTAMP,
    VALUE,
    parse_longs,
    schema_of,
)
from dafka_core.flight.requests import MaxBytes, MaxRecords, RangeRequest
from dafka_core.flight.store_client import Chunks, StoreClient
from dafka_core.model.envelope import AUTO, ENVELOPE
from dafka_core.model.json_message import short
from dafka_core.model.records import MatchedRecords
from dafka_core.model.values import Longs, Values
from dafka_core.model.where import MAX_CHARACTERS, Where


class GetWhereRequest(RangeRequest, frozen=True, kw_only=True):
    """A ticket: the records of a range that match ``where``.

    ``envelope`` decides about the columns ``key`` and ``value``: ``auto`` opens envelopes, ``none``
    leaves contents unchanged.  The other members are those of ``GetRequest``.
    """

    what: ClassVar[str] = "ticket"
    json_version: ClassVar[int] = 3
    largest_bytes: ClassVar[int] = limits.MAX_WHERE_BYTES

    where: Annotated[str, Meta(max_length=MAX_CHARACTERS)]
    envelope: str = AUTO
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    max_records: MaxRecords = limits.MAX_BATCH_RECORDS
    max_bytes: MaxBytes = limits.MAX_BATCH_BYTES

    def check(self) -> None:
        """Check the condition."""
        super().check()
        if self.envelope not in ENVELOPE:
            why = f"must be one of {', '.join(ENVELOPE)}"
            raise InvalidRequestError("envelope", short(self.envelope), why)
        try:
            Where.parse(self.where)
        except ValueError as error:
            raise InvalidRequestError("where", short(self.where), str(error)) from error


def packed_scan(matched: MatchedRecords) -> bytes:
    """Encode the metadata of a batch with these records."""
    numbers = GetWhereRequest.json_version, matched.offset, matched.end, matched.count
    return np.array(numbers, LONG).tobytes()


def parse_scan(metadata: pa.Buffer | None, count: int) -> tuple[int, int]:
    """Decode the range scanned for ``count`` records; raise ValueError if it is invalid."""
    numbers = parse_longs(metadata, GetWhereRequest.json_version).tolist()
    if len(numbers) != 4:
        raise ValueError(f"a batch's metadata have {len(numbers)} numbers, not four")
    _, start, end, sent = numbers
    if sent != count:
        raise ValueError(f"a batch has {count} records instead of {sent}")
    return start, end


def read_where(
    client: StoreClient, request: GetWhereRequest, *, timeout_s: float
) -> Generator[MatchedRecords]:
    """Yield all matching records of a range in order, with the scanned ranges.

    Columns and the store are this function's; sizes, lives and errors are as those of
    ``StoreClient.read``.
    """
    wanted = replace(request, store=client.location.store).fitted()
    return client.get(wanted.packed(), partial(matched_records, wanted), timeout_s)


def matched_records(request: GetWhereRequest, received: Chunks) -> Iterator[MatchedRecords]:
    """Yield the records of batches; raise ValueError if they don't match the request.

    ``request`` asks for the values, the offsets, and perhaps the timestamps.
    """
    at, schema = request.start, schema_of(request.columns)
    for columns, metadata in received:
        if not columns.schema.equals(schema) or any(each.null_count for each in columns.columns):
            raise ValueError(f"a batch has {short(str(columns.schema))}, which was not requested")
        start, end = parse_scan(metadata, columns.num_rows)
        if start != at or not at < end <= request.end:
            raise ValueError(f"offsets {start} to {end} arrived instead of {at}")
        offsets: Longs = columns[OFFSET].to_numpy()
        bounds = np.concatenate(([start - 1], offsets, [end]))
        if not (bounds[1:] > bounds[:-1]).all():
            raise ValueError(f"records arrived outside of offsets {start} to {end}")
        times = _runs(columns[TIMESTAMP]) if TIMESTAMP in request.columns else None
        values = Values.from_arrow(columns[VALUE])
        yield MatchedRecords(request.tp, start, end, offsets, values, times)
        at = end
    if at != request.end:
        raise ValueError(f"the records end at {at}, not at {request.end}")


def _runs(stamps: Any) -> Longs:
    times = stamps.view(pa.int64()).to_numpy()
    firsts = np.flatnonzero(np.diff(times, prepend=times[:1] - 1))
    return np.column_stack((np.diff(firsts, append=len(times)), times[firsts]))
