"""The client's side of a get: what a store sends is what was asked for, or an error.

Functions take batches as they come, and raise ValueError, with a sentence, for those that are not
what the request asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from dafka_core.flight.columns import parse_metadata
from dafka_core.flight.grpc_workarounds import CallDeadline
from dafka_core.flight.requests import GetManyRequest, GetRequest, Part, parse_parts
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values

Chunks = Iterator[tuple[pa.RecordBatch, pa.Buffer | None]]
"""Each batch, of which column ``value`` is the first one, and its metadata."""

T = TypeVar("T")
Records = Callable[[Chunks], Iterator[T]]
"""What makes records of them."""


def chunks(stream: Any, call: CallDeadline) -> Chunks:
    """The batches of a stream of pyarrow's client."""
    while True:
        call.wait()
        try:
            columns, metadata = stream.read_chunk()
        except StopIteration:
            return
        call.go_on()
        # Bytes from the network must not lead outside of the buffers they came in.
        columns.validate(full=True)
        yield columns, metadata


def range_records(request: GetRequest, received: Chunks) -> Iterator[RecordBatch]:
    """The records of one range, complete."""
    at = request.start
    for columns, metadata in received:
        values = columns.column(0)
        offset, times = parse_metadata(metadata, len(values), times=request.times)
        if offset != at:
            raise ValueError(f"offset {offset} came where {at} was to come")
        yield RecordBatch(request.tp, offset, Values.from_arrow(values), times=times)
        at += len(values)
    if at != request.end:
        raise ValueError(f"the records end at {at}, not at {request.end}")


def many_records(request: GetManyRequest, received: Chunks) -> Iterator[list[Part]]:
    """The records of many ranges, the parts of each batch together.

    Each range's come in order and without a hole from its start on, after those of the ranges
    before it, but perhaps not all of them.
    """
    current, at = -1, 0
    for columns, metadata in received:
        values = columns.column(0)
        rows, times = parse_parts(metadata, len(values), times=request.times)
        whole, first, parts = Values.from_arrow(values), 0, []
        for number, (index, offset, count, _) in enumerate(rows.tolist()):
            if not max(current, 0) <= index < len(request.ranges):
                raise ValueError(f"range {index} came after range {current}")
            asked = request.ranges[index]
            if index > current:
                current, at = index, asked.start
            if offset != at or at + count > asked.end:
                raise ValueError(f"{count} records from offset {offset} came where {at} was next")
            at += count
            part = whole[first : first + count]
            first += count
            batch = RecordBatch(
                asked.tp, offset, part, times=None if times is None else times[number]
            )
            parts.append(Part(index, batch))
        yield parts
