"""Column ``value`` of rows to be written, by option ``valueFormat``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType

from dafka_spark.errors import ColumnError
from dafka_spark.formats.codec import Codec
from dafka_spark.formats.codecs import BYTES, STRING, codec_of
from dafka_spark.options import SinkOptions


def row_codec(kind: DataType, options: SinkOptions) -> Codec | None:
    """What makes values of a column of this type; None where they are values already.

    Raises:
        ColumnError: the column is of another type than the options say, or cannot be written so.
    """
    found = kind.simpleString()
    if options.value_format == BYTES:
        if not isinstance(kind, (BinaryType, StringType)):
            cure = "name a format with option valueFormat, or make one of it with to_json(value)"
            raise ColumnError("value", f"is {found}, must be binary or string; {cure}")
        return None
    if options.value_format == STRING:
        if not isinstance(kind, StringType):
            raise ColumnError("value", f"is {found}, must be string with valueFormat = string")
        return None
    codec = options.codec()
    if codec is None:
        try:
            return codec_of(options.value_format, kind)
        except ValueError as error:
            raise ColumnError("value", str(error)) from None
    if found != (wanted := codec.kind.simpleString()):
        raise ColumnError("value", f"is {found}, and option valueSchema says {wanted}")
    return codec


def encoded(batches: Iterator[pa.RecordBatch], codec: Codec | None) -> Iterator[pa.RecordBatch]:
    """The batches with values in place of the column.

    Raises:
        ColumnError: a row cannot be written so.
    """
    for batch in batches:
        at = [name.lower() for name in batch.schema.names].index("value")
        if codec is None:
            yield batch
            continue
        try:
            values = codec.encode(batch.column(at))
        except ValueError as error:
            raise ColumnError("value", str(error)) from None
        yield batch.set_column(at, batch.schema.names[at], values)
