"""Which codec a format has."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import DataType

from dafka_spark.formats.arrow_values import ArrowCodec
from dafka_spark.formats.avro_values import AvroCodec
from dafka_spark.formats.codec import Codec, StringCodec
from dafka_spark.formats.json_values import JsonCodec
from dafka_spark.formats.protobuf_values import ProtobufCodec
from dafka_spark.formats.value_schema import parse_ddl

BYTES: Final = "bytes"
STRING: Final = "string"
JSON: Final = "json"
ARROW: Final = "arrow"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
FORMATS: Final = (BYTES, STRING, JSON, ARROW, AVRO, PROTOBUF)
TYPED: Final = (JSON, ARROW, AVRO, PROTOBUF)
"""Those that need a schema."""


def codec_of(value_format: str, schema: str | DataType, message_name: str = "") -> Codec | None:
    """The codec of a format and its schema, an option's text or a type; None for ``bytes``.

    Raises:
        ImportError: a package that the format needs is not installed here.
        ValueError: the schema is wrong.
    """
    if value_format == STRING:
        return StringCodec()
    if value_format not in TYPED:
        return None
    if value_format in (AVRO, PROTOBUF):
        if not isinstance(schema, str):
            what = "an Avro schema" if value_format == AVRO else "a descriptor set"
            raise ValueError(f"is written with {what}: name it with option valueSchema")
        return AvroCodec(schema) if value_format == AVRO else ProtobufCodec(schema, message_name)
    kind = parse_ddl(schema) if isinstance(schema, str) else schema
    return JsonCodec(kind) if value_format == JSON else ArrowCodec(kind)
