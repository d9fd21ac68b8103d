"""Arrow batches with the columns of a query and typed values; no Python code runs per record."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from dafka_core.model.envelope_columns import HEADERS, KEY, VALUE, opened_columns
from dafka_core.model.names import escape
from dafka_core.model.records import UNKNOWN_US, MatchedRecords, Records
from dafka_core.model.values import Longs, Values
from dafka_spark.errors import BadValueError, IncompleteBatchError
from dafka_spark.formats.codecs import Codec, Part, concat_parts, decode_parts
from dafka_spark.options import DROPMALFORMED, FAILFAST, SourceOptions
from dafka_spark.schema import CORRUPT, ERROR

_log = logging.getLogger("dafka_spark")


class TypedValues:
    """Decodes values with the codec of option ``valueFormat``."""

    def __init__(self, codec: Codec, options: SourceOptions) -> None:
        self._codec = codec
        self._type = to_arrow_type(codec.kind, timezone="UTC")
        self._options = options

    def decode(
        self, values: pa.Array, batches: Sequence[Records]
    ) -> tuple[dict[str, pa.Array], pa.Array | None]:
        """Return the columns of the values of ``batches``, and a mask of the rows to keep."""
        parts: list[Part] = []
        for part in decode_parts(values, self._codec.decode):
            if part.why and self._options.mode == FAILFAST:
                raise self._error(part, batches)
            parts.append(part)
        column = concat_parts(parts, self._type)
        bad = [part for part in parts if part.why]
        if not bad:
            return {"value": column}, None
        rows = np.array([part.start for part in bad])
        good = np.ones(len(values), np.bool_)
        good[rows] = False
        if self._options.mode == DROPMALFORMED:
            text = "mode = DROPMALFORMED leaves out %d of %d records: %s"
            _log.warning(text, len(bad), len(values), self._error(bad[0], batches))
            return {"value": column}, pa.array(good)
        why = np.full(len(values), None, object)
        why[rows] = [part.why for part in bad]
        corrupt = values.take(pa.array(np.where(good, -1, np.arange(len(values))), mask=good))
        return {"value": column, ERROR: pa.array(why, pa.utf8()), CORRUPT: corrupt}, None

    def _error(self, part: Part, batches: Sequence[Records]) -> BadValueError:
        firsts = list(accumulate((batch.count for batch in batches), initial=0))
        index = bisect_right(firsts, part.start) - 1
        offset = int(batches[index].offsets[part.start - firsts[index]])
        return BadValueError(*batches[index].tp, offset, self._options.value_format, part.why)


class ArrowBatches:
    """Builds the columns of a query's schema, in the Arrow types that Spark requires."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self.fields = {each.name.lower(): each for each in self.schema}  # users write any case
        self._opens = options.opens_envelopes
        codec, names = options.codec(), self.fields.keys()
        is_typed = options.mode == DROPMALFORMED or not names.isdisjoint({VALUE, ERROR, CORRUPT})
        self._typed = TypedValues(codec, options) if codec and is_typed else None
        typed = {VALUE: pa.binary()} if self._typed else {}
        types = {name: field.type for name, field in self.fields.items()} | typed
        self._contents = {name: types[name] for name in (KEY, VALUE, HEADERS) if name in types}
        self._constants: dict[str, tuple[str | int | None, pa.Array]] = {}
        self._rising = np.arange(0, dtype=np.int64)

    def of(self, batches: Sequence[Records]) -> pa.RecordBatch:
        """Return the records of all ``batches``, of any partitions, as one Arrow batch."""
        counts = np.fromiter((batch.count for batch in batches), np.int64, len(batches))
        columns, mask = self._opened(batches), None
        if self._typed:
            typed, mask = self._typed.decode(columns[VALUE], batches)
            columns |= typed
        for name, field in self.fields.items():
            if name not in columns:
                columns[name] = self._column(name, field, batches, counts)
        arrays = [columns[name] for name in self.fields]
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if made.num_rows != (records := int(counts.sum())):
            start, end = batches[0].offset, batches[-1].end
            why = f"{made.num_rows} rows were made of {records} records"
            bounds = *batches[0].tp, start, end
            raise IncompleteBatchError(*bounds, expected=start, found=None, why=why)
        return made if mask is None else made.filter(mask)

    def _opened(self, batches: Sequence[Records]) -> dict[str, pa.Array]:
        """Return the columns that are in the contents of records, perhaps in envelopes."""
        if not self._contents:
            return {}
        values = Values.concat([batch.values for batch in batches])
        columns = opened_columns(values, list(self._contents)) if self._opens else None
        if columns is None:
            columns = {VALUE: values.to_arrow()} if VALUE in self._contents else {}
        return {name: array.cast(self._contents[name]) for name, array in columns.items()}

    def _column(
        self, name: str, field: pa.Field, batches: Sequence[Records], counts: Longs
    ) -> pa.Array:
        rows = int(counts.sum())
        match name:
            case "offset" if isinstance(batches[0], MatchedRecords):
                return pa.array(np.concatenate([batch.offsets for batch in batches]), field.type)
            case "offset":
                firsts = np.fromiter((batch.offset for batch in batches), np.int64, len(batches))
                return self._offsets(firsts, counts, field.type)
            case "timestamp":
                return self._timestamps(batches, field, rows)
            case "topic" | "partition":
                texts = [escape(getattr(batch.tp, name)) for batch in batches]
                if len(texts) == 1:
                    return self._constant(field, texts[0], rows)
                return pa.array(texts, field.type).take(np.repeat(np.arange(len(texts)), counts))
            case _:  # contents without envelopes, and timestampType, which stores do not keep
                return self._constant(field, None, rows)

    def _offsets(self, firsts: Longs, counts: Longs, kind: pa.DataType) -> pa.Array:
        rows = int(counts.sum())
        if rows > len(self._rising):
            self._rising = np.arange(rows, dtype=np.int64)
        shifts = firsts - (counts.cumsum() - counts)
        # Arrow reuses freed memory for the next batch; numpy would return it to the system.
        buffer = pa.allocate_buffer(rows * self._rising.itemsize)
        added = shifts if len(shifts) == 1 else np.repeat(shifts, counts)
        np.add(self._rising[:rows], added, out=np.frombuffer(buffer, np.int64))
        return pa.Array.from_buffers(kind, rows, [None, buffer], null_count=0)

    def _timestamps(self, batches: Sequence[Records], field: pa.Field, rows: int) -> pa.Array:
        runs = (
            np.array([[batch.count, UNKNOWN_US]]) if batch.times is None else batch.times
            for batch in batches
        )
        times = np.concatenate(list(runs))
        if len(times) == 1:
            # Records that a store wrote together share one time, often in many blocks.
            time_us = int(times[0, 1])
            return self._constant(field, None if time_us == UNKNOWN_US else time_us, rows)
        stamps = np.repeat(times[:, 1], times[:, 0])
        mask = stamps == UNKNOWN_US
        return pa.array(stamps, pa.int64(), mask=mask if mask.any() else None).view(field.type)

    def _constant(self, field: pa.Field, value: str | int | None, rows: int) -> pa.Array:
        known, array = self._constants.get(field.name, (None, None))
        if array is None or known != value or len(array) < rows:
            array = pa.repeat(pa.scalar(value, field.type), rows)
            self._constants[field.name] = value, array
        return array if len(array) == rows else array.slice(0, rows)


def groups(batches: Iterable[Records], max_records: int, max_bytes: int) -> Iterator[list[Records]]:
    """Group batches, in order, into lists within the limits of one Arrow batch."""
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
