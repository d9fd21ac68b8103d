"""Reads ranges of offsets on executors, as Arrow record batches of typed columns.

Values stay together from the store to Spark's batch: nothing here is done record by record in
Python, and what is the same in every batch is made once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from dafka_core.model.envelope_columns import HEADERS, KEY, VALUE, opened_columns
from dafka_core.model.names import escape
from dafka_core.model.records import UNKNOWN_US, RecordBatch
from dafka_core.model.values import Longs, Values
from dafka_core.model.where import TIMESTAMP, KeptRecords, Records, Where, kept
from dafka_spark.cluster import connections
from dafka_spark.cluster.worker_process import settle
from dafka_spark.errors import BadValueError
from dafka_spark.formats.codecs import Codec, Part, apart, joined
from dafka_spark.options import DROPMALFORMED, FAILFAST, SourceOptions
from dafka_spark.schema import CORRUPT, ERROR
from dafka_spark.source.offset_ranges import OffsetRange, SharedTask
from dafka_spark.source.record_sources import SharedFetch, incomplete

_LOG: Final = logging.getLogger(__name__)


class Typed(NamedTuple):
    """Columns by their names, and which rows to keep; None: all of them."""

    columns: dict[str, pa.Array]
    kept: pa.Array | None = None


class TypedValues:
    """Decodes the values of a query's batches."""

    def __init__(self, codec: Codec, value_format: str, mode: str) -> None:
        self._codec = codec
        self._arrow = to_arrow_type(codec.kind, timezone="UTC")
        self._format = value_format
        self._mode = mode

    @classmethod
    def of(cls, options: SourceOptions) -> Self | None:
        """What a query needs; None if its values are bytes."""
        codec = options.codec()
        return None if codec is None else cls(codec, options.value_format, options.mode)

    def needed(self, names: set[str]) -> bool:
        """Whether values must be decoded for columns of these names."""
        return self._mode == DROPMALFORMED or not names.isdisjoint({"value", ERROR, CORRUPT})

    def of_values(self, values: pa.Array, batches: Sequence[Records]) -> Typed:
        """The columns of values of binary, which are those of ``batches``.

        Raises:
            BadValueError: a value is bad, and ``mode`` is ``FAILFAST``.
        """
        parts: list[Part] = []
        for part in apart(values, self._codec.decode):
            if part.why and self._mode == FAILFAST:
                raise self._error(part, batches)
            parts.append(part)
        column = joined(parts, self._arrow)
        bad = [part for part in parts if part.why]
        if not bad:
            return Typed({"value": column})
        if self._mode == DROPMALFORMED:
            left_out = f"mode = DROPMALFORMED leaves out {len(bad)} of {len(values)} records: {{}}"
            _LOG.warning(left_out.format(self._error(bad[0], batches)))
        rows = np.array([part.start for part in bad])
        good = np.ones(len(values), np.bool_)
        good[rows] = False
        if self._mode == DROPMALFORMED:
            return Typed({"value": column}, pa.array(good))
        why = np.full(len(values), None, object)
        why[rows] = [part.why for part in bad]
        corrupt = np.where(good, -1, np.arange(len(values)))
        return Typed(
            {
                "value": column,
                ERROR: pa.array(why, pa.utf8()),
                CORRUPT: values.take(pa.array(corrupt, mask=good)),
            }
        )

    def _error(self, part: Part, batches: Sequence[Records]) -> BadValueError:
        row = part.start
        for batch in batches:
            if row < batch.count:
                break
            row -= batch.count
        return BadValueError(*batch.tp, batch.offset_of(row), self._format, part.why)


class QueryReader:
    """What every reader is made with: the query's columns and options, and a way to the mesh."""

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.lend,
    ) -> None:
        self._schema = schema
        self._options = options
        self._connect = connect
        self._planned_ns = time.time_ns()


class RangeReader(QueryReader):
    """What the readers of batch and of streaming queries share."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task's ranges, in order and complete, with the query's columns.

        Raises what ``RangeFetch.batches`` raises.
        """
        if isinstance(partition, SharedTask):
            ranges: Sequence[OffsetRange] = partition.ranges
        elif isinstance(partition, OffsetRange):
            ranges = (partition,)
        else:
            return  # Spark makes ``InputPartition(None)`` of a batch without ranges
        options = self._options
        arrow = ArrowBatches(self._schema, opens=options.opens, typed=TypedValues.of(options))
        where = options.where
        times = "timestamp" in arrow.fields or (where is not None and TIMESTAMP in where.columns)
        batches = SharedFetch(ranges, options, self._connect, times=times).batches()
        if where is not None:
            batches = _kept(batches, where, opens=options.opens)
        most = options.max_records_per_batch, options.max_bytes_per_batch
        alone = len(ranges) == 1 and where is None
        grouped = ([batch] for batch in batches) if alone else groups(batches, *most)
        for group in grouped:
            yield arrow.of(group)
        settle()


class ArrowBatches:
    """Makes the columns that were asked for, and no others.

    The Arrow schema is Spark's own: Spark takes a batch as it is only if their schemas are equal.
    ``opens`` says whether keys, headers and null values are looked for in envelopes, and ``typed``
    decodes values.
    """

    def __init__(
        self, schema: StructType, *, opens: bool = True, typed: TypedValues | None = None
    ) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._opens = opens
        # Users name columns in any case.
        self.fields = {each.name.lower(): each for each in self.schema}
        self._typed = typed if typed and typed.needed(set(self.fields)) else None
        self._constants: dict[str, tuple[str | int | None, pa.Array]] = {}
        self._rising = np.arange(0, dtype=np.int64)

    def of(self, batches: Sequence[Records]) -> pa.RecordBatch:
        """One record batch, of those of one partition or more."""
        columns, kept = self._opened(batches), None
        if self._typed:
            typed = self._typed.of_values(columns["value"], batches)
            columns, kept = columns | typed.columns, typed.kept
        for name, field in self.fields.items():
            if name not in columns:
                columns[name] = self._column(name, field, batches)
        arrays = [columns[name] for name in self.fields]
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        wanted = sum(batch.count for batch in batches)
        if made.num_rows != wanted:
            first, why = batches[0], f"{made.num_rows} rows were made of {wanted} records"
            raise incomplete(
                OffsetRange(*first.tp, first.offset, first.end), first.offset, None, why
            )
        return made if kept is None else made.filter(kept)

    def _opened(self, batches: Sequence[Records]) -> dict[str, pa.Array]:
        wanted = [
            name
            for name in (KEY, VALUE, HEADERS)
            if name in self.fields or (self._typed and name == VALUE)
        ]
        if not wanted:
            return {}
        values = Values.concat([batch.values for batch in batches])
        columns = opened_columns(values, wanted) if self._opens else None
        if columns is None:
            columns = {VALUE: values.to_arrow()} if VALUE in wanted else {}
        kinds = {name: self.fields[name].type for name in columns if name in self.fields}
        if self._typed:
            kinds[VALUE] = pa.binary()
        return {
            name: array if array.type == kinds[name] else array.cast(kinds[name])
            for name, array in columns.items()
        }

    def _column(self, name: str, field: pa.Field, batches: Sequence[Records]) -> pa.Array:
        counts = np.fromiter((batch.count for batch in batches), np.int64, len(batches))
        rows = int(counts.sum())
        match name:
            case "offset" if isinstance(batches[0], KeptRecords):
                return pa.array(np.concatenate([batch.offsets for batch in batches]), field.type)
            case "offset":
                firsts = np.fromiter((batch.offset for batch in batches), np.int64, len(batches))
                return self._offsets(firsts, counts, field.type)
            case "timestamp":
                times = np.concatenate(
                    [
                        np.array([[batch.count, UNKNOWN_US]])
                        if batch.times is None
                        else batch.times
                        for batch in batches
                    ]
                )
                if len(times) != 1:
                    return _timestamps(times, field.type)
                # What a store wrote at once has one time, often in block after block.
                time_us = int(times[0, 1])
                return self._constant(field, None if time_us == UNKNOWN_US else time_us, rows)
            case "topic" | "partition":
                texts = [escape(getattr(batch, name)) for batch in batches]
                if len(texts) == 1:
                    return self._constant(field, texts[0], rows)
                return pa.array(texts, field.type).take(np.repeat(np.arange(len(texts)), counts))
            case _:  # no keys and headers; and stores do not keep the type of times
                return self._constant(field, None, rows)

    def _offsets(self, firsts: Longs, counts: Longs, kind: pa.DataType) -> pa.Array:
        rows = int(counts.sum())
        if rows > len(self._rising):
            self._rising = np.arange(rows, dtype=np.int64)
        shifts = firsts - (counts.cumsum() - counts)
        # Arrow keeps freed memory for the next batch; numpy would ask the system for it again.
        buffer = pa.allocate_buffer(rows * self._rising.itemsize)
        added = shifts if len(shifts) == 1 else np.repeat(shifts, counts)
        np.add(self._rising[:rows], added, out=np.frombuffer(buffer, np.int64))
        return pa.Array.from_buffers(kind, rows, [None, buffer], null_count=0)

    def _constant(self, field: pa.Field, value: str | int | None, rows: int) -> pa.Array:
        made_of, made = self._constants.get(field.name, (None, None))
        if made is None or made_of != value or len(made) < rows:
            made = pa.repeat(pa.scalar(value, field.type), rows)
            self._constants[field.name] = value, made
        return made if len(made) == rows else made.slice(0, rows)


def _kept(batches: Iterable[Records], where: Where, *, opens: bool) -> Iterator[Records]:
    """What fits; of those that a store has not looked at it is found out here."""
    for batch in batches:
        found = kept(batch, where, opens=opens) if isinstance(batch, RecordBatch) else batch
        if found.count:
            yield found


def groups(batches: Iterable[Records], max_records: int, max_bytes: int) -> Iterator[list[Records]]:
    """Batches of any partitions, in order, by what goes into one Arrow batch of these sizes."""
    group: list[Records] = []
    records = size_bytes = 0
    for batch in batches:
        records, size_bytes = records + batch.count, size_bytes + batch.values.size_bytes
        if group and (records > max_records or size_bytes > max_bytes):
            yield group
            group, records, size_bytes = [], batch.count, batch.values.size_bytes
        group.append(batch)
    if group:
        yield group


def _timestamps(times: Longs, kind: pa.DataType) -> pa.Array:
    stamps = np.repeat(times[:, 1], times[:, 0])
    unknown = stamps == UNKNOWN_US
    return pa.array(stamps, pa.int64(), mask=unknown if unknown.any() else None).view(kind)
