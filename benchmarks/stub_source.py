"""A source of precomputed batches, and sinks that only count.

They are the floor of any Python source or sink. Spark's workers import this module, so it imports
little.
"""

# ruff: noqa: N802 -- the names are Spark's

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_spark.schema import full

FORM = "bench-stub"

HEADERS = [("trace", b"0123456789abcdef"), ("source", b"sensor-7"), ("kind", b"reading")]
"""Headers of each row, if any."""

PREBUILT = 4  # distinct batches in turn: a single one would stay in the CPU's cache


@dataclass(frozen=True)
class Rows(InputPartition):
    """The rows of one task."""

    count: int


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    """The count of one task."""

    rows: int


class StubSource(DataSource):
    """Options: ``rows`` in all, ``batch`` rows in a batch, ``size`` of a value in bytes, ``tasks``.

    Streams also take ``limit``: rows in a micro-batch. With ``keyed`` there are keys and headers.
    With ``file`` or ``location`` batch queries read values from there.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORM

    def schema(self) -> StructType:
        """The columns of format ``dafka``."""
        return full(headers="keyed" in self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        if "file" in self.options:
            from benchmarks.bare_file import FileReader

            return FileReader(self.options)
        if "location" in self.options:
            from benchmarks.bare_flight_server import FlightReader

            return FlightReader(self.options)
        return StubReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return StubStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch query."""
        return CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a streaming query."""
        return CountingStreamWriter()


class PrebuiltReader:
    """Returns precomputed batches, in batch and streaming queries."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"])
        self._shape = int(options["batch"]), int(options["size"]), "keyed" in options
        self._tasks = int(options["tasks"])
        self._limit = int(options.get("limit", self._rows))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows."""
        assert isinstance(partition, Rows)
        return taken(prebuilt(*self._shape), partition.count)


class StubReader(PrebuiltReader, DataSourceReader):
    """Returns all rows at once."""

    def partitions(self) -> list[InputPartition]:
        """Divide the rows into equal parts."""
        return list(shares(self._rows, self._tasks))


class StubStreamReader(PrebuiltReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Returns them in micro-batches; its offset is the number of rows."""

    def initialOffset(self) -> dict[str, int]:
        """Nothing is read yet."""
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return option ``limit``."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """All rows exist from the beginning."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Advance by one micro-batch."""
        return {"rows": min(start["rows"] + self._limit, self._rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Rows]:
        """Divide a micro-batch's rows into equal parts."""
        return shares(end["rows"] - start["rows"], self._tasks)


class Counter:
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Return a task's number of rows."""
        return Counted(sum(batch.num_rows for batch in iterator))


class CountingWriter(Counter, DataSourceArrowWriter):
    """Counts the rows of a batch query."""


class CountingStreamWriter(Counter, DataSourceStreamArrowWriter):
    """Counts the rows of micro-batches."""


def shares(rows: int, tasks: int) -> list[Rows]:
    """Divide ``rows`` by the number of tasks."""
    cuts = [rows * task // tasks for task in range(tasks + 1)]
    return [Rows(end - start) for start, end in pairwise(cuts)]


def taken(batches: tuple[pa.RecordBatch, ...], rows: int) -> Iterator[pa.RecordBatch]:
    """Repeat the batches up to ``rows`` rows."""
    for batch in cycle(batches):
        if rows <= batch.num_rows:
            break
        rows -= batch.num_rows
        yield batch
    if rows:
        yield batches[0].slice(0, rows)


def keys_and_headers(rows: int) -> tuple[pa.Array, pa.Array]:
    """Return a key for each row, and constant headers."""
    keys = pa.array([b"key-%016d" % number for number in range(rows)], pa.binary())
    return keys, pa.array([HEADERS] * rows, HEADERS_TYPE)


@lru_cache(maxsize=2)
def prebuilt(rows: int, size_bytes: int, keyed: bool = False) -> tuple[pa.RecordBatch, ...]:
    """Return batches of all columns, made once in a worker, during the warm-up."""
    schema = to_arrow_schema(full(headers=keyed), timezone="UTC")
    keys, headers = keys_and_headers(rows) if keyed else (pa.nulls(rows, pa.binary()), None)
    ends = pa.array(np.arange(0, (rows + 1) * size_bytes, size_bytes, dtype=np.int32))
    made = []
    for number in range(PREBUILT):
        data = pa.py_buffer(np.random.default_rng(number).bytes(rows * size_bytes))
        values = pa.Array.from_buffers(pa.binary(), rows, [None, ends.buffers()[1], data])
        columns = {
            "key": keys,
            "headers": headers,
            "value": values,
            "topic": pa.repeat("bench", rows),
            "partition": pa.repeat("A" * 32, rows),
            "offset": pa.array(np.arange(number * rows, (number + 1) * rows)),
            "timestamp": pa.array(np.full(rows, 1_700_000_000_000_000)),
            "timestampType": pa.nulls(rows, pa.int32()),
        }
        arrays = [columns[field.name].cast(field.type) for field in schema]
        made.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return tuple(made)
