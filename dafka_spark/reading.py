"""What runs on executors: a range of offsets in, Arrow record batches out.

Values stay together from the store to Spark's batch: nothing here is done record by record in
Python, and what is the same in every batch is made once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dafka_core.columnar.columns import RecordColumns
from dafka_spark.completeness import Completeness
from dafka_spark.connections import Connect
from dafka_spark.fetching import Fetch
from dafka_spark.joining import UNKNOWN_US
from dafka_spark.options import SourceOptions
from dafka_spark.planning import OffsetRange
from dafka_spark.ways import ways
from dafka_spark.workers import settle


def read_range(
    wanted: OffsetRange, schema: StructType, options: SourceOptions, connect: Connect
) -> Iterator[pa.RecordBatch]:
    """The records of one range, in order and complete, with ``schema``'s columns.

    Raises:
        SourceLossError: records are gone, and option ``failOnDataLoss`` is true.
        IncompleteBatchError: the rows are not all those of the range.
        FetchError: no place that option ``fetch`` allows gave them for ``fetchTimeoutMs``.
        FetchTimeoutError: nobody in the mesh sent them for ``fetchTimeoutMs``.
    """
    batches = Batches(wanted, schema)
    open_ways = ways(wanted.held, options, connect)
    fetch = Fetch(wanted, options, open_ways, times="timestamp" in batches.schema.names)
    completeness = Completeness(wanted, fetch.lost)
    for columns in fetch.columns():
        batch = batches.of(columns)
        completeness.take(columns.offset, batch.num_rows)
        yield batch
    completeness.finish()
    settle()


class Batches:
    """Makes the columns that were asked for, and no others.

    The Arrow schema is Spark's own: Spark takes a batch as it is only if their schemas are equal.
    """

    def __init__(self, wanted: OffsetRange, schema: StructType) -> None:
        self.wanted = wanted
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._constants: dict[str, pa.Array] = {}
        self._stamped_us: int | None = None
        self._rising = np.arange(0, dtype=np.int64)

    def of(self, columns: RecordColumns) -> pa.RecordBatch:
        """One record batch."""
        arrays = [self._column(field, columns) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, field: pa.Field, columns: RecordColumns) -> pa.Array:
        match field.name:
            case "value":
                values = columns.values
                return values if values.type == field.type else values.cast(field.type)
            case "offset":
                return self._offsets(columns, field.type)
            case "timestamp":
                return self._timestamps(columns, field)
            case _:
                return self._constant(field, len(columns.values))

    def _offsets(self, columns: RecordColumns, kind: pa.DataType) -> pa.Array:
        rows = len(columns.values)
        if rows > len(self._rising):
            self._rising = np.arange(rows, dtype=np.int64)
        # Arrow keeps the memory for the next batch, where numpy has the system make it anew.
        buffer = pa.allocate_buffer(rows * self._rising.itemsize)
        np.add(self._rising[:rows], columns.offset, out=np.frombuffer(buffer, np.int64))
        return pa.Array.from_buffers(kind, rows, [None, buffer], null_count=0)

    def _timestamps(self, columns: RecordColumns, field: pa.Field) -> pa.Array:
        runs = columns.times
        if runs is None or len(runs) != 1 or runs[0, 1] == UNKNOWN_US:
            return _timestamps(columns, field.type)
        # What a store wrote at once has one time: the same in block after block.
        time_us = int(runs[0, 1])
        if time_us != self._stamped_us:
            self._constants.pop(field.name, None)
            self._stamped_us = time_us
        return self._constant(field, len(columns.values))

    def _constant(self, field: pa.Field, rows: int) -> pa.Array:
        """A column with one value, cut from the longest one made so far."""
        made = self._constants.get(field.name)
        if made is None or len(made) < rows:
            made = self._constants[field.name] = self._repeated(field, rows)
        return made if len(made) == rows else made.slice(0, rows)

    def _repeated(self, field: pa.Field, rows: int) -> pa.Array:
        if field.name == "key":
            return pa.nulls(rows, field.type)
        if field.name == "timestamp":
            return pa.repeat(pa.scalar(self._stamped_us, field.type), rows)
        name = self.wanted.topic if field.name == "topic" else self.wanted.partition
        return pa.repeat(pa.scalar(name, field.type), rows)


def _timestamps(columns: RecordColumns, kind: pa.DataType) -> pa.Array:
    runs = columns.times
    if runs is None:
        return pa.nulls(len(columns.values), kind)
    times = np.repeat(runs[:, 1], runs[:, 0])
    unknown = runs[:, 1] == UNKNOWN_US
    mask = np.repeat(unknown, runs[:, 0]) if unknown.any() else None
    return pa.array(times, pa.int64(), mask=mask).view(kind)
