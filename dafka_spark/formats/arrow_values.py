"""Values that are streams in Arrow's IPC format: each one is a table of any number of rows.

A column of tables is a list of structs: opening a stream costs the same for any number of rows,
and the rows are decoded by column.

A stream can open to far more than its own size: by compression, dictionaries, views, or columns of
nulls, which take no bytes.  So each value is measured by the headers of its messages before it is
opened, and again before a column is cast.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from dafka_spark.errors import BatchTooLargeError
from dafka_spark.formats import check_names

MAX_OPENED: Final = 64 << 20
"""The bytes that one value may open to: far more than a useful table needs."""

MAX_BATCH: Final = 1 << 30  # bytes that the values of one batch may open to together

_CELL: Final = 16
"""Bytes counted for each cell, as a cast or a column of nulls may need: those of a decimal."""


class ArrowCodec:
    """One stream in each value, decoded into a list of structs."""

    def __init__(self, kind: types.DataType) -> None:
        """``kind`` is the list, or the struct of its rows."""
        rows = kind.elementType if isinstance(kind, types.ArrayType) else kind
        if not isinstance(rows, types.StructType):
            why = "a stream is made of a list of structs, array(struct(...))"
            raise ValueError(f"is {kind.simpleString()}; {why}")
        check_names(rows)
        self.kind: types.DataType = types.ArrayType(rows)
        self._fields = rows.fields
        self._arrow = to_arrow_type(self.kind, timezone="UTC")
        self._row_bytes = _CELL * _leaves(self._arrow.value_type)
        # The schema of the last stream and the index of each column in it: most streams share one.
        self._last: tuple[pa.Schema, list[int | None]] = pa.schema([]), [None] * len(rows)

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``; columns that the schema lacks are ignored."""
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        streams = [value.as_buffer() for value in values if value.is_valid]
        try:
            opened = sum(map(self._measure, streams))
            if opened > MAX_BATCH:
                raise BatchTooLargeError(len(values), opened, MAX_BATCH)
            tables = list(map(self._rows, streams))
        except (pa.ArrowException, OSError, EOFError, struct.error) as error:
            raise ValueError(f"it is not an Arrow stream: {error}") from None
        counts = np.zeros(len(values), np.int64)
        counts[valid] = [len(rows) for rows in tables]
        rows = pa.concat_arrays(tables) if tables else pa.array([], self._arrow.value_type)
        ends = pa.array(np.append(0, counts.cumsum()), pa.int32())
        mask = None if valid.all() else pa.array(~valid)
        return pa.ListArray.from_arrays(ends, rows, self._arrow, mask=mask)

    def _measure(self, stream: pa.Buffer) -> int:
        """Return the bytes that the stream opens to, with the columns of the query."""
        opened = 0
        for message in pa.ipc.MessageReader.open_stream(stream):
            opened += _opened_bytes(message, self._row_bytes)
            _check_opened(opened)
        return opened

    def _rows(self, stream: pa.Buffer) -> pa.StructArray:
        """Return the rows of one stream, with the query's columns."""
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        table.validate(full=True)
        schema, places = self._last
        if not table.schema.equals(schema):
            places = self._places(table.schema)
            self._last = table.schema, places
        columns, text_bytes = [], 0
        for at, field in zip(places, self._arrow.value_type, strict=True):
            if at is None:
                columns.append(pa.nulls(len(table), field.type))
                continue
            column = table.column(at).combine_chunks()
            if column.type != field.type:
                text_bytes += _text_bytes(column)
                _check_opened(text_bytes)
                if pa.types.is_dictionary(column.type):  # pyarrow takes no views
                    column = column.dictionary.cast(field.type).take(column.indices)
                else:
                    column = column.cast(field.type)
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._arrow.value_type))

    def _places(self, schema: pa.Schema) -> list[int | None]:
        """Return the index of each of the query's columns in the schema; None if it is missing."""
        places: list[int | None] = []
        for field in self._fields:
            at, *others = schema.get_all_field_indices(field.name) or [None]
            if others:
                raise ValueError(f"duplicate column {field.name!r}")
            wanted = field.dataType.simpleString()
            if at is not None and _spark_type(schema.types[at]) != wanted:
                raise ValueError(f"column {field.name!r} is {schema.types[at]}, not {wanted}")
            places.append(at)
        return places

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``; each value is a stream with one batch."""
        ends = column.offsets.to_numpy()
        whole = pa.RecordBatch.from_struct_array(column.values)
        values: list[bytes | None] = []
        for at, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                values.append(None)
                continue
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, whole.schema) as writer:
                writer.write_batch(whole.slice(ends[at], ends[at + 1] - ends[at]))
            values.append(sink.getvalue().to_pybytes())
        return pa.array(values, pa.binary())


def _check_opened(opened: int) -> None:
    if opened > MAX_OPENED:
        raise ValueError(
            f"it opens to more than {MAX_OPENED >> 20} MiB; write fewer rows in each value"
        )


def _leaves(kind: pa.DataType) -> int:
    return 1 + sum(_leaves(kind.field(at).type) for at in range(kind.num_fields))


def _spark_type(kind: pa.DataType) -> str:
    """Return the type that Spark reads an Arrow type as.

    Spark reads strings of any layout as strings, and times of any unit as timestamps.
    """
    try:
        return from_arrow_type(_without_views(kind)).simpleString()
    except Exception as error:  # noqa: BLE001 -- Spark's own, of several classes
        raise ValueError(f"Spark has no type for {kind}: {error}") from None


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Replace views, which Polars writes and Spark 4.3 does not know."""
    if pa.types.is_string_view(kind):
        return pa.utf8()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return _without_views(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_views(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without_views(kind.value_type))
    return kind


def _text_bytes(column: pa.Array) -> int:
    """Return the bytes that a cast copies of texts which several cells share."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        lengths = _lengths(column.dictionary)
        return int(lengths[column.indices.drop_null().to_numpy()].sum())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return int(_lengths(column)[column.is_valid().to_numpy(zero_copy_only=False)].sum())
    if pa.types.is_struct(kind):
        return sum(map(_text_bytes, column.flatten()))
    if pa.types.is_map(kind):
        return _text_bytes(column.keys) + _text_bytes(column.items)
    return _text_bytes(column.flatten()) if pa.types.is_nested(kind) else 0


def _lengths(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, 4)
        return views[column.offset : column.offset + len(column), 0].astype(np.int64)
    if not pa.types.is_primitive(kind) and not pa.types.is_decimal(kind):
        return np.asarray(pc.binary_length(column).fill_null(0), np.int64)
    return np.full(len(column), kind.bit_width // 8, np.int64)


def _opened_bytes(message: pa.ipc.Message, row_bytes: int) -> int:
    """Return the bytes that a message's rows take when its buffers are decompressed.

    pyarrow does not expose the header.  Numbers of fields are those of Arrow's ``Message.fbs``.
    """
    if message.type not in ("record batch", "dictionary"):
        return 0
    header = _Table(message.metadata.to_pybytes(), 0).table(2)
    if message.type == "dictionary":
        header = header.table(1)
    row_count = header.position(0)
    rows = 0 if row_count is None else _LONG(header.data, row_count)[0]
    cells = sum(header.longs(1)[::2])
    if min(rows, cells) < 0:
        raise ValueError("it is not an Arrow stream: it has a negative number of rows")
    body = message.body
    buffers: int = body.size
    if header.position(3) is not None:
        bounds = header.longs(2)
        for offset, length in zip(bounds[::2], bounds[1::2], strict=True):
            # A compressed buffer begins with its length when it is opened, or -1.
            buffers += max(0, _LONG(body, offset)[0]) if length else 0
    return buffers + _CELL * cells + row_bytes * rows


_LONG: Final = struct.Struct("<q").unpack_from
_INT: Final = struct.Struct("<i").unpack_from
_SHORT: Final = struct.Struct("<H").unpack_from


class _Table:
    """A table of FlatBuffers; ``at`` is the position of the offset that refers to it."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self._start = at + _INT(data, at)[0]
        self._fields = self._start - _INT(data, self._start)[0]
        self._size = _SHORT(data, self._fields)[0]

    def position(self, number: int) -> int | None:
        """Return the position of a field; None if it has its default."""
        at = 4 + 2 * number
        if at >= self._size:
            return None
        offset = _SHORT(self.data, self._fields + at)[0]
        return self._start + offset if offset else None

    def table(self, number: int) -> _Table:
        """Return a field that is a table."""
        if (at := self.position(number)) is None:
            raise ValueError("it is not an Arrow stream: a header is incomplete")
        return _Table(self.data, at)

    def longs(self, number: int) -> tuple[int, ...]:
        """Return the integers of a field that is a vector of pairs of 64-bit integers."""
        if (at := self.position(number)) is None:
            return ()
        start = at + _INT(self.data, at)[0]
        count = _INT(self.data, start)[0]
        return struct.unpack_from(f"<{2 * count}q", self.data, start + 4)
