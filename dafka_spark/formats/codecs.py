"""Codecs: their interface, the codec of each ``valueFormat``, and the search for bad values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType, StringType

from dafka_spark.formats.arrow_values import ArrowCodec
from dafka_spark.formats.avro_values import AvroCodec
from dafka_spark.formats.json_values import JsonCodec
from dafka_spark.formats.protobuf_values import ProtobufCodec
from dafka_spark.schema import parse_ddl

BYTES: Final = "bytes"
STRING: Final = "string"
JSON: Final = "json"
ARROW: Final = "arrow"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
TYPED: Final = (JSON, ARROW, AVRO, PROTOBUF)
"""The formats that need a schema."""
FORMATS: Final = (BYTES, STRING, *TYPED)

_MAX_WHY: Final = 300


class Codec(Protocol):
    """Decodes values into a column of type ``kind`` and encodes a column; nulls remain null."""

    kind: DataType

    def decode(self, values: pa.Array) -> pa.Array:
        """Return the column of binary values; raise ``ValueError`` if one is invalid."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column's values, binary or string; raise ``ValueError`` if a row is invalid."""


class StringCodec:
    """Text in UTF-8."""

    kind: DataType = StringType()

    def decode(self, values: pa.Array) -> pa.Array:
        """See ``Codec``."""
        try:
            return values.cast(pa.utf8())
        except pa.ArrowInvalid:
            raise ValueError("it is not UTF-8") from None

    def encode(self, column: pa.Array) -> pa.Array:
        """See ``Codec``."""
        return column


def codec_of(value_format: str, schema: str | DataType, message_name: str = "") -> Codec | None:
    """Return the codec of a format; None for ``bytes``.

    ``schema`` is option ``valueSchema`` or the type of the column.  Raises ``ImportError`` if a
    package is missing, and ``ValueError`` if the schema is invalid.
    """
    if value_format == BYTES:
        return None
    if value_format == STRING:
        return StringCodec()
    if value_format in (JSON, ARROW):
        kind = parse_ddl(schema) if isinstance(schema, str) else schema
        return JsonCodec(kind) if value_format == JSON else ArrowCodec(kind)
    if not isinstance(schema, str):
        what = "an Avro schema" if value_format == AVRO else "a descriptor set"
        raise ValueError(f"is written with {what}: name it with option valueSchema")
    return AvroCodec(schema) if value_format == AVRO else ProtobufCodec(schema, message_name)


class Part(NamedTuple):
    """Rows of a column from ``start`` on; with ``why``, one bad value, which is null."""

    start: int
    column: pa.Array
    why: str = ""


def decode_parts(values: pa.Array, decode: Callable[[pa.Array], pa.Array]) -> Iterator[Part]:
    """Decode values together, and find the bad ones by bisection.

    Yields all rows in order: runs of good values, and each bad value on its own.
    """
    pending = [(0, len(values))]
    while pending:
        start, count = pending.pop()
        try:
            column = decode(values.slice(start, count))
            if len(column) != count:
                raise ValueError("it is more than one value")
        except ValueError as error:
            if count > 1:
                half = count // 2
                pending += [(start + half, count - half), (start, half)]
                continue
            why = " ".join(str(error).split()).removesuffix(" in row 0")
            yield Part(start, pa.nulls(1), why[:_MAX_WHY])
        else:
            yield Part(start, column)


def concat_parts(parts: list[Part], kind: pa.DataType) -> pa.Array:
    """Concatenate the columns of all parts."""
    columns = [pa.nulls(1, kind) if part.why else part.column for part in parts]
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
