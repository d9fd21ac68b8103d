"""Which codec a format has."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import DataType

from dafka_spark.formats.arrow_values import ArrowCodec
from dafka_spark.formats.avro_values import AvroCodec
from dafka_spark.formats.codec import Codec, StringCodec
from dafka_spark.formats.json_values import JsonCodec
from dafka_spark.formats.value_schema import parse_ddl

BYTES: Final = "bytes"
STRING: Final = "string"
JSON: Final = "json"
ARROW: Final = "arrow"
AVRO: Final = "avro"
FORMATS: Final = (BYTES, STRING, JSON, ARROW, AVRO)
TYPED: Final = (JSON, ARROW, AVRO)
"""Those that need a schema."""


def codec_of(value_format: str, schema: str | DataType) -> Codec | None:
    """The codec of a format and its schema, an option's text or a type; None for ``bytes``.

    Raises:
        ValueError: the schema is wrong.
    """
    if value_format == STRING:
        return StringCodec()
    if value_format not in TYPED:
        return None
    if value_format == AVRO:
        if not isinstance(schema, str):
            raise ValueError("is written with an Avro schema: name it with option valueSchema")
        return AvroCodec(schema)
    kind = parse_ddl(schema) if isinstance(schema, str) else schema
    return JsonCodec(kind) if value_format == JSON else ArrowCodec(kind)
