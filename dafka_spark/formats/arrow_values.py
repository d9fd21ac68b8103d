"""Values that are streams of Arrow's IPC format: each one is a table of any number of rows.

A column of tables is a list of structs: what it costs to open a stream is paid once for all of its
rows, and the rows themselves are decoded by column.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

MAX_ROWS: Final = 1_000_000
"""Of one value.  A column of nulls takes no octets: 200 of them may say 2,000,000,000 rows."""


class ArrowCodec:
    """One stream in each value, and a list of structs made of it."""

    def __init__(self, kind: types.DataType) -> None:
        """``kind`` is the list, or the struct of its rows.

        Raises:
            ValueError: it is something else.
        """
        rows = kind.elementType if isinstance(kind, types.ArrayType) else kind
        if not isinstance(rows, types.StructType):
            why = "a stream is made of a list of structs, array(struct(...))"
            raise ValueError(f"is {kind.simpleString()}; {why}")
        self.kind: types.DataType = types.ArrayType(rows)
        self._fields = [(field.name, field.dataType) for field in rows]
        self._arrow = to_arrow_type(self.kind, timezone="UTC")
        # Of the last stream: most have one schema.
        no_places: list[int | None] = [None] * len(rows)
        self._last = pa.schema([]), no_places

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``; columns that the schema does not have are passed over."""
        tables = [self._rows(value.as_buffer()) for value in values if value.is_valid]
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        counts = np.zeros(len(values), np.int64)
        counts[valid] = [len(rows) for rows in tables]
        rows = pa.concat_arrays(tables) if tables else pa.array([], self._arrow.value_type)
        ends = pa.array(np.append(0, counts.cumsum()), pa.int32())
        mask = None if valid.all() else pa.array(~valid)
        return pa.ListArray.from_arrays(ends, rows, self._arrow, mask=mask)

    def _rows(self, stream: pa.Buffer) -> pa.StructArray:
        """The rows of one stream, with the query's columns.

        Raises:
            ValueError: it is none, or a column has another type.
        """
        try:
            with pa.ipc.open_stream(stream) as reader:
                table = reader.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise ValueError(f"it is no stream of Arrow's: {error}") from None
        if len(table) > MAX_ROWS:
            raise ValueError(f"it has {len(table)} rows, at most {MAX_ROWS} are taken")
        schema, places = self._last
        if not table.schema.equals(schema):
            places = self._found(table.schema)
            self._last = table.schema, places
        columns = []
        for at, field in zip(places, self._arrow.value_type, strict=True):
            if at is None:
                columns.append(pa.nulls(len(table), field.type))
                continue
            column = table.column(at).combine_chunks()
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.StructArray.from_arrays(columns, fields=list(self._arrow.value_type))

    def _found(self, schema: pa.Schema) -> list[int | None]:
        """Where the query's columns are in streams with this schema; None: they are not.

        Raises:
            ValueError: a column has another type, or is there twice.
        """
        places: list[int | None] = []
        for name, kind in self._fields:
            found = schema.get_all_field_indices(name)
            if len(found) > 1:
                raise ValueError(f"column {name!r} is there twice")
            if found and _spark_type(schema.types[found[0]]) != kind.simpleString():
                is_ = f"is {schema.types[found[0]]}, not {kind.simpleString()}"
                raise ValueError(f"column {name!r} {is_}")
            places.append(found[0] if found else None)
        return places

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``; each value is a stream with one batch."""
        rows = column.values
        ends = column.offsets.to_numpy()
        whole = pa.RecordBatch.from_struct_array(rows)
        values: list[pa.Buffer | None] = []
        for at, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                values.append(None)
                continue
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, whole.schema) as writer:
                writer.write_batch(whole.slice(ends[at], ends[at + 1] - ends[at]))
            values.append(sink.getvalue().to_pybytes())
        return pa.array(values, pa.binary())


def _spark_type(kind: pa.DataType) -> str:
    """What Spark takes a type for: strings of any layout are strings, times of any unit are times.

    Raises:
        ValueError: Spark has no such type.
    """
    if pa.types.is_string_view(kind):  # as Polars writes them, and Spark 4.3 does not know
        kind = pa.utf8()
    try:
        return from_arrow_type(kind).simpleString()
    except Exception as error:  # noqa: BLE001 -- Spark's own, of several classes
        raise ValueError(f"Spark has no type for {kind}: {error}") from None
