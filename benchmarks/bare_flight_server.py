"""The floor of Arrow Flight: a server of precomputed batches, and its reader.

It has no log; only values travel, and the reader adds precomputed columns. A store can't be faster
over Flight. Optionally the server copies and hashes what it sends, as a store must: its log can't
be held by slow readers, and damaged data must not leave it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import flight
from pyspark.sql.datasource import InputPartition

from benchmarks.processes import started
from benchmarks.stub_source import Rows, StubReader, prebuilt, taken

OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", 16_777_215),
    ("grpc.http2.lookahead_bytes", 16 << 20),
]
"""gRPC's defaults are slower, and use a proxy."""


CHECKED = b" checked"  # suffix of a ticket that requests copying and hashing
PIECE_BYTES = 256 << 10  # bytes copied and then hashed at a time, which fit into a core's cache


class FlightReader(StubReader):
    """Reads values from the server at option ``location``, with precomputed other columns.

    With ``checked`` the server copies and hashes them.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._location = options["location"]
        self._end = CHECKED if "checked" in options else b""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows."""
        assert isinstance(partition, Rows)
        like = prebuilt(self._shape[0], 1)[0]
        at = like.schema.get_field_index("value")
        with flight.connect(self._location, generic_options=OPTIONS) as client:
            ticket = flight.Ticket(str(partition.count).encode() + self._end)
            for chunk in client.do_get(ticket):
                columns = like.slice(0, len(chunk.data)).columns
                columns[at] = chunk.data.column(0)
                yield pa.RecordBatch.from_arrays(columns, schema=like.schema)


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Answer a ticket, a number of rows and perhaps ``CHECKED``, with that many rows."""

    def __init__(self, location: str, rows: int, size_bytes: int) -> None:
        super().__init__(location)
        self._batches = tuple(batch.select(["value"]) for batch in prebuilt(rows, size_bytes))

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Return a stream that needs no Python while it runs, unless it is checked."""
        batches = taken(self._batches, int(ticket.ticket.removesuffix(CHECKED)))
        schema = self._batches[0].schema
        if ticket.ticket.endswith(CHECKED):
            return flight.GeneratorStream(schema, map(copied_and_checked, batches))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, list(batches)))


def copied_and_checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values, copied and hashed.

    Written anew rather than shared with the store, so that the limit does not move with it.
    """
    (values,) = batch.columns
    _, ends, data = values.buffers()
    source = np.frombuffer(data, np.uint8)
    copy = np.empty_like(source)
    checksum = xxhash.xxh3_64()
    for at in range(0, len(source), PIECE_BYTES):
        piece = copy[at : at + PIECE_BYTES]
        piece[:] = source[at : at + PIECE_BYTES]
        checksum.update(piece.data)
    checksum.intdigest()
    buffers = [None, ends, pa.py_buffer(copy)]
    copied = pa.Array.from_buffers(
        values.type, len(values), buffers, null_count=0, offset=values.offset
    )
    return pa.RecordBatch.from_arrays([copied], schema=batch.schema)


@contextlib.contextmanager
def serving(directory: Path, rows: int, size_bytes: int) -> Iterator[str]:
    """Start a server in its own process; yield its location."""
    location = f"grpc+unix://{directory / 'bare.sock'}"
    command = [sys.executable, "-m", "benchmarks.bare_flight_server", location]
    command += [str(rows), str(size_bytes)]
    with started(command) as (_, line):
        assert line == "ready\n"
        yield location


if __name__ == "__main__":
    server = Server(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print("ready", flush=True)
    server.serve()
