"""What runs on executors: a range of offsets in, Arrow record batches out.

Values stay together from the store to Spark's batch: nothing here is done record by record in
Python, and what is the same in every batch is made once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dafka_core.records import RecordBatch
from dafka_core.values import Longs
from dafka_spark.cluster import connections
from dafka_spark.cluster.worker_process import settle
from dafka_spark.options import SourceOptions
from dafka_spark.source.completeness import CompletenessCheck
from dafka_spark.source.range_fetch import RangeFetch
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.record_sources import UNKNOWN_US, open_sources


class RangeReader:
    """What the readers of batch and of streaming queries share."""

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.lend,
    ) -> None:
        self._schema = schema
        self._options = options
        self._connect = connect

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, in order and complete, with the query's columns.

        Raises what ``RangeFetch.batches`` raises.
        """
        if not isinstance(partition, OffsetRange):
            return  # Spark makes ``InputPartition(None)`` of a batch without ranges
        arrow = ArrowBatches(partition, self._schema)
        times = "timestamp" in arrow.schema.names
        sources = open_sources(partition.held, self._options, self._connect, times=times)
        fetch = RangeFetch(partition, self._options, sources)
        completeness = CompletenessCheck(partition, fetch.lost)
        for batch in fetch.batches():
            rows = arrow.of(batch)
            completeness.take(batch.offset, rows.num_rows)
            yield rows
        completeness.finish()
        settle()


class ArrowBatches:
    """Makes the columns that were asked for, and no others.

    The Arrow schema is Spark's own: Spark takes a batch as it is only if their schemas are equal.
    """

    def __init__(self, wanted: OffsetRange, schema: StructType) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._texts = {"topic": wanted.topic, "partition": wanted.partition}
        self._constants: dict[str, tuple[str | int | None, pa.Array]] = {}
        self._rising = np.arange(0, dtype=np.int64)

    def of(self, batch: RecordBatch) -> pa.RecordBatch:
        """One record batch."""
        arrays = [self._column(field, batch) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, field: pa.Field, batch: RecordBatch) -> pa.Array:
        times = batch.times
        match field.name:
            case "value":
                values = batch.values.to_arrow()
                return values if values.type == field.type else values.cast(field.type)
            case "offset":
                return self._offsets(batch, field.type)
            case "timestamp" if times is not None:
                if len(times) != 1 or times[0, 1] == UNKNOWN_US:
                    return _timestamps(times, field.type)
                # What a store wrote at once has one time, often in block after block.
                return self._constant(field, int(times[0, 1]), batch.count)
            case name:  # a key is always null, and a timestamp where no times are known
                return self._constant(field, self._texts.get(name), batch.count)

    def _offsets(self, batch: RecordBatch, kind: pa.DataType) -> pa.Array:
        rows = batch.count
        if rows > len(self._rising):
            self._rising = np.arange(rows, dtype=np.int64)
        # Arrow keeps freed memory for the next batch; numpy would ask the system for it again.
        buffer = pa.allocate_buffer(rows * self._rising.itemsize)
        np.add(self._rising[:rows], batch.offset, out=np.frombuffer(buffer, np.int64))
        return pa.Array.from_buffers(kind, rows, [None, buffer], null_count=0)

    def _constant(self, field: pa.Field, value: str | int | None, rows: int) -> pa.Array:
        """A column with one value: a slice of the longest one made so far."""
        made_of, made = self._constants.get(field.name, (None, None))
        if made is None or made_of != value or len(made) < rows:
            made = pa.repeat(pa.scalar(value, field.type), rows)
            self._constants[field.name] = value, made
        return made if len(made) == rows else made.slice(0, rows)


def _timestamps(times: Longs, kind: pa.DataType) -> pa.Array:
    stamps = np.repeat(times[:, 1], times[:, 0])
    unknown = stamps == UNKNOWN_US
    return pa.array(stamps, pa.int64(), mask=unknown if unknown.any() else None).view(kind)
