"""The least that Arrow Flight costs: a server of batches that are there already, and its reader.

There is no log behind it, no check and no copy of ours; only values travel, and the reader adds
columns made before.  What a store reaches over Flight cannot be more.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import flight
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.stubs import Rows, prebuilt, shares, taken
from dafka_spark.schema import full

FORM = "bench-flight"

OPTIONS = [("grpc.http2.max_frame_size", 16_777_215), ("grpc.http2.lookahead_bytes", 16 << 20)]
"""With gRPC's own settings it is slower."""


class FlightSource(DataSource):
    """Options: those of the stub source, and ``location`` of the server."""

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return FORM

    def schema(self) -> StructType:
        """The columns of format ``dafka``."""
        return full()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        return FlightReader(self.options)


class FlightReader(DataSourceReader):
    """Takes the values from the server and the other columns from what was made before."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"])
        self._shape = int(options["batch"]), int(options["size"])
        self._tasks = int(options["tasks"])
        self._location = options["location"]

    def partitions(self) -> list[InputPartition]:
        """The rows in equal parts."""
        return list(shares(self._rows, self._tasks))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As many rows as the partition says."""
        assert isinstance(partition, Rows)
        like = prebuilt(self._shape[0], 1)[0]
        at = like.schema.get_field_index("value")
        with flight.connect(self._location, generic_options=OPTIONS) as client:
            for chunk in client.do_get(flight.Ticket(str(partition.count))):
                columns = like.slice(0, len(chunk.data)).columns
                columns[at] = chunk.data.column(0)
                yield pa.RecordBatch.from_arrays(columns, schema=like.schema)


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Answers a ticket, a number of rows, with as many."""

    def __init__(self, location: str, rows: int, size_bytes: int) -> None:
        super().__init__(location)
        self._batches = tuple(batch.select(["value"]) for batch in prebuilt(rows, size_bytes))

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """A stream that needs no Python while it goes on."""
        batches = taken(self._batches, int(ticket.ticket))
        reader = pa.RecordBatchReader.from_batches(self._batches[0].schema, list(batches))
        return flight.RecordBatchStream(reader)


@contextlib.contextmanager
def serving(directory: Path, rows: int, size_bytes: int) -> Iterator[str]:
    """A server in a process of its own; where it is."""
    location = f"grpc+unix://{directory / 'bare.sock'}"
    command = [sys.executable, "-m", "benchmarks.flights", location, str(rows), str(size_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield location
        finally:
            process.terminate()


if __name__ == "__main__":
    server = Server(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print("ready", flush=True)
    server.serve()
