"""The codec of each format, and schemas as Spark's users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import types
from pyspark.sql.types import DataType

from dafka_spark.formats.arrow_values import ArrowCodec
from dafka_spark.formats.avro_values import AvroCodec
from dafka_spark.formats.codec import Codec, StringCodec
from dafka_spark.formats.json_values import JsonCodec
from dafka_spark.formats.protobuf_values import ProtobufCodec

# Schemas as Spark's users write them, ``id BIGINT, tags ARRAY<STRING>``, read without a session.
#
# Spark asks a source in Python for its columns in a process that has no JVM, where Spark's own
# parser is not there.


_SIMPLE: Final[Mapping[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    "byte": types.ByteType(),
    "tinyint": types.ByteType(),
    "short": types.ShortType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "integer": types.IntegerType(),
    "long": types.LongType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "real": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ltz": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_MAX_PRECISION: Final = 38
_MAX_DEPTH: Final = 100

_TOKEN: Final = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<mark>[<>(),:]))")


def parse_ddl(text: str) -> types.StructType:
    """The columns of a schema in Spark's DDL; all of them may be null, as ``from_json`` has them.

    Raises:
        ValueError: it is no such schema.
    """
    reader = _Reader(text)
    found = reader.struct("")
    if not found.fields:
        raise ValueError(f"{_FORM}: it is empty")
    return found


_FORM: Final = "must be columns like 'id BIGINT, tags ARRAY<STRING>'"


class _Reader:
    """Reads a schema from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._depth = 0
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{_FORM}; {text[at:].strip()[:20]!r} has no meaning there")
            self._tokens.append(found[0].strip())
            at = found.end()
        self._tokens.reverse()

    def struct(self, end: str) -> types.StructType:
        """Columns up to ``end``, a mark or the end of the text."""
        fields: list[types.StructField] = []
        names: set[str] = set()
        while self._next() != end:
            if fields:
                self._expect(",")
            name = self._name()
            if name.lower() in names:
                raise ValueError(f"{_FORM}; column {name!r} is there twice")
            names.add(name.lower())
            if self._next() == ":":
                self._expect(":")
            fields.append(types.StructField(name, self._type()))
            if self._next().lower() == "not":
                self._expect("not")
                self._expect("null")
        self._expect(end)
        return types.StructType(fields)

    def _type(self) -> types.DataType:
        word = self._take()
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in _DECIMALS:
            return self._decimal()
        self._depth += 1
        if name not in ("array", "map", "struct") or self._depth > _MAX_DEPTH:
            why = f"there is no type {word!r}" if word else "a type is missing at its end"
            raise ValueError(f"{_FORM}; {why}")
        self._expect("<")
        made: types.DataType
        if name == "struct":
            made = self.struct(">")
        else:
            made = self._collection(name)
            self._expect(">")
        self._depth -= 1
        return made

    def _collection(self, name: str) -> types.DataType:
        first = self._type()
        if name == "array":
            return types.ArrayType(first)
        self._expect(",")
        return types.MapType(first, self._type())

    def _decimal(self) -> types.DecimalType:
        if self._next() != "(":
            return types.DecimalType()
        self._expect("(")
        precision, scale = self._number(), 0
        if self._next() == ",":
            self._expect(",")
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            why = f"DECIMAL has 1 to {_MAX_PRECISION} digits, and no more after the point"
            raise ValueError(f"{_FORM}; {why}")
        return types.DecimalType(precision, scale)

    def _number(self) -> int:
        word = self._take()
        if not (word.isascii() and word.isdigit()):
            raise ValueError(f"{_FORM}; {word!r} is no number")
        return int(word)

    def _name(self) -> str:
        word = self._take()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not word or not (word[0].isalnum() or word[0] == "_"):
            raise ValueError(f"{_FORM}; the name of a column is missing before {word!r}")
        return word

    def _next(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _take(self) -> str:
        return self._tokens.pop() if self._tokens else ""

    def _expect(self, wanted: str) -> None:
        found = self._take()
        if found.lower() != wanted:
            seen = repr(found) if found else "its end"
            raise ValueError(f"{_FORM}; {wanted!r} is missing before {seen}")


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
