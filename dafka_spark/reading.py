"""What runs on executors: a range of offsets in, Arrow record batches out.

Values stay together from the store's reply to Spark's batch: nothing here is done record by record
in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dafka_core.errors import DataLossError
from dafka_core.records import Run, Values
from dafka_spark.connections import Connect, Source
from dafka_spark.dataloss import DataLossPolicy
from dafka_spark.options import SourceOptions
from dafka_spark.planning import OffsetRange


def read_range(
    wanted: OffsetRange, schema: StructType, options: SourceOptions, connect: Connect
) -> Iterator[pa.RecordBatch]:
    """The records of one range, in order and complete, with ``schema``'s columns.

    Raises:
        DataLossError: records are gone, and option ``failOnDataLoss`` is true.
        FetchTimeoutError: nobody sent them for ``fetchTimeoutMs``.
    """
    with connect(options.via) as source:
        columns = Columns(wanted, schema, _times(source, wanted, schema, options))
        policy = DataLossPolicy(options.fail_on_data_loss)
        runs = complete(source, wanted, options.fetch_timeout_s, policy)
        for chunk in chunks(runs, options.max_records_per_batch, options.max_bytes_per_batch):
            yield columns.batch(chunk)


def complete(
    source: Source, wanted: OffsetRange, timeout_s: float, policy: DataLossPolicy
) -> Iterator[Run]:
    """The runs of a range, each offset seen to be there, or its loss met by ``policy``."""
    at = wanted.start
    while at < wanted.end:
        try:
            for run in source.read(
                wanted.topic, wanted.partition, at, wanted.end, timeout_s=timeout_s
            ):
                if run.offset != at:
                    raise _gap(wanted, at, run.offset)
                at = run.end
                yield run
            if at < wanted.end:
                raise _gap(wanted, at, None)
        except DataLossError as loss:
            policy.meet(loss)
            if loss.available is None or loss.available <= at:
                return
            at = loss.available


def _gap(wanted: OffsetRange, at: int, found: int | None) -> DataLossError:
    why = "the reply does not go on where the one before it ended"
    return DataLossError(wanted.topic, wanted.partition, at, found, why)


@dataclass(slots=True)
class Chunk:
    """Consecutive records that make one batch: their values in pieces, as they came."""

    offset: int
    pieces: list[Values] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offset + self.rows

    def add(self, piece: Values, size_bytes: int) -> None:
        """Appends what comes next."""
        self.pieces.append(piece)
        self.rows += len(piece)
        self.size_bytes += size_bytes


def chunks(runs: Iterator[Run], max_records: int, max_bytes: int) -> Iterator[Chunk]:
    """The same records in pieces of the right size for a batch: joined, or cut.

    None has more than ``max_records`` values, nor more than ``max_bytes`` bytes of them unless it
    is a single one.
    """
    held = Chunk(0)
    for run in runs:
        ends, _ = run.values.columns()
        at = 0
        while at < len(run.values):
            if held.rows and held.end != run.offset + at:
                yield held
                held = Chunk(0)
            if not held.rows:
                held = Chunk(run.offset + at)
            limit = int(ends[at]) + max_bytes - held.size_bytes
            fitting = int(np.searchsorted(ends, limit, side="right")) - 1 - at
            take = min(max_records - held.rows, fitting)
            if take <= 0 and held.rows:
                yield held
                held = Chunk(0)
                continue
            stop = at + max(take, 1)
            held.add(run.values[at:stop], int(ends[stop] - ends[at]))
            at = stop
    if held.rows:
        yield held


def _times(
    source: Source, wanted: OffsetRange, schema: StructType, options: SourceOptions
) -> list[tuple[int, int]]:
    if "timestamp" not in schema.fieldNames():
        return []
    return source.times(
        wanted.topic,
        wanted.partition,
        wanted.start,
        wanted.end,
        timeout_s=options.fetch_timeout_s,
    )


class Columns:
    """Makes the columns that were asked for, and no others.

    The Arrow schema is Spark's own: Spark takes a batch as it is only if their schemas are equal.
    """

    def __init__(
        self, wanted: OffsetRange, schema: StructType, times: list[tuple[int, int]]
    ) -> None:
        self.wanted = wanted
        self.schema = to_arrow_schema(schema, timezone="UTC")
        table: NDArray[np.int64] = np.array(times, dtype=np.int64).reshape(-1, 2)
        self.first_offsets, self.timestamps = table[:, 0], table[:, 1]

    def batch(self, chunk: Chunk) -> pa.RecordBatch:
        """One record batch of a chunk."""
        columns = [self._column(field, chunk) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, field: pa.Field, chunk: Chunk) -> pa.Array:
        match field.name:
            case "key":
                return pa.nulls(chunk.rows, field.type)
            case "value":
                values = pa.concat_arrays([piece.to_arrow() for piece in chunk.pieces])
                return values.cast(field.type)
            case "topic":
                return pa.repeat(pa.scalar(self.wanted.topic, field.type), chunk.rows)
            case "partition":
                return pa.repeat(pa.scalar(self.wanted.partition, field.type), chunk.rows)
            case "offset":
                return pa.array(np.arange(chunk.offset, chunk.end), field.type)
            case _:
                return self._timestamp(chunk, field.type)

    def _timestamp(self, chunk: Chunk, kind: pa.DataType) -> pa.Array:
        if not len(self.first_offsets):
            return pa.nulls(chunk.rows, kind)
        offsets = np.arange(chunk.offset, chunk.end)
        entries = np.searchsorted(self.first_offsets, offsets, side="right") - 1
        known = self.timestamps[np.maximum(entries, 0)]
        return pa.array(known, pa.int64(), mask=entries < 0).cast(kind)
