"""Schemas: their text in Spark's DDL, the columns of a topic, and the check of a query's columns.

Spark's own parser runs in the JVM (``StructType.fromDDL`` needs a session).  The process in which
Spark asks a Python source for its schema has no JVM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Final

from pyspark.sql import types

from dafka_core.config.options import unknown
from dafka_spark.errors import ColumnError

# -- Spark's DDL -----------------------------------------------------------------------------------

_SIMPLE: Final[Mapping[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    **dict.fromkeys(("byte", "tinyint"), types.ByteType()),
    **dict.fromkeys(("short", "smallint"), types.ShortType()),
    **dict.fromkeys(("int", "integer"), types.IntegerType()),
    **dict.fromkeys(("long", "bigint"), types.LongType()),
    **dict.fromkeys(("float", "real"), types.FloatType()),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), types.TimestampType()),
    "timestamp_ntz": types.TimestampNTZType(),
}
_MAX_PRECISION: Final = 38
_MAX_DEPTH: Final = 100

_NAME: Final = r"`((?:[^`]|``)+)`|(\w+)"
_DECIMAL: Final = r"(?:decimal|dec|numeric)\b(?:\s*\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\))?"
_FORM: Final = "must be columns like 'id BIGINT, tags ARRAY<STRING>'"


def parse_ddl(text: str) -> types.StructType:
    """Parse a schema, as ``id BIGINT, tags ARRAY<STRING>``.

    All columns are nullable, as with ``from_json``.

    Raises:
        ValueError: the schema is invalid.
    """
    schema = _Parser(text.strip()).struct(r"\Z", 0)
    if not schema.fields:
        raise ValueError(f"{_FORM}: it is empty")
    return schema


class _Parser:
    """A recursive-descent parser; ``_at`` is the position of the next token in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def struct(self, end: str, depth: int) -> types.StructType:
        """Parse columns up to a match of ``end``."""
        fields: dict[str, types.StructField] = {}
        while not self._take(end):
            if fields:
                self._expect(",")
            found = self._take(_NAME)
            if found is None:
                raise self._missing("a column name")
            name = found[2] or found[1].replace("``", "`")
            if name.lower() in fields:
                raise ValueError(f"{_FORM}; duplicate column {name!r}")
            self._take(":")
            fields[name.lower()] = types.StructField(name, self._type(depth))
            self._take(r"not\s+null\b")
        return types.StructType(list(fields.values()))

    def _type(self, depth: int) -> types.DataType:
        if found := self._take(_DECIMAL):
            precision, scale = int(found[1] or 10), int(found[2] or 0)
            if not 1 <= precision <= _MAX_PRECISION or scale > precision:
                why = f"DECIMAL has 1 to {_MAX_PRECISION} digits, and no larger scale"
                raise ValueError(f"{_FORM}; {why}")
            return types.DecimalType(precision, scale)
        if depth == _MAX_DEPTH:
            raise ValueError(f"{_FORM}; types are nested more than {_MAX_DEPTH} deep")
        if self._take(r"array\b"):
            self._expect("<")
            element = self._type(depth + 1)
            self._expect(">")
            return types.ArrayType(element)
        if self._take(r"map\b"):
            self._expect("<")
            key = self._type(depth + 1)
            self._expect(",")
            value = self._type(depth + 1)
            self._expect(">")
            return types.MapType(key, value)
        if self._take(r"struct\b"):
            self._expect("<")
            return self.struct(">", depth + 1)
        found = self._take(r"(\w+)")
        if found is None:
            raise self._missing("a type")
        if found[1].lower() not in _SIMPLE:
            raise ValueError(f"{_FORM}; unknown type {found[1]!r}")
        return _SIMPLE[found[1].lower()]

    def _take(self, pattern: str) -> re.Match[str] | None:
        """Return the match of a pattern at the next token, and move behind it; None without one."""
        found = re.compile(rf"(?:{pattern})\s*", re.IGNORECASE).match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._missing(repr(token))

    def _missing(self, what: str) -> ValueError:
        rest = self._text[self._at : self._at + 20]
        return ValueError(f"{_FORM}; {what} is missing before {repr(rest) if rest else 'the end'}")


# -- the columns of a topic ------------------------------------------------------------------------


def columns(ddl: str) -> dict[str, types.DataType]:
    """Return the types of columns by their names."""
    return {field.name: field.dataType for field in parse_ddl(ddl)}


COLUMNS: Final[Mapping[str, types.DataType]] = columns(
    "key BINARY, value BINARY, topic STRING, partition STRING, offset BIGINT, "
    "timestamp TIMESTAMP, timestampType INT, headers ARRAY<STRUCT<key STRING, value BINARY>>"
)
"""The columns of Spark's Kafka connector, except that a partition is the name of a producer."""

HEADERS: Final = "headers"  # the column that only option ``includeHeaders`` adds

ERROR: Final = "_error"
CORRUPT: Final = "_corrupt_record"
ERRORS: Final = (ERROR, CORRUPT)
"""The columns that only option ``mode`` = ``PERMISSIVE`` adds: why a value is bad, and the value.
Both are null for good values."""

_ADDED: Final = {
    HEADERS: "includeHeaders = true",
    ERROR: "mode = PERMISSIVE",
    CORRUPT: "mode = PERMISSIVE",
}
"""The option that adds a column."""

NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})

TABLE_OPTIONS: Final = "dafka.options"
"""Metadata of column ``value``: a SQL table's options.

Spark 4.3 stores the options of ``CREATE TABLE ... USING dafka OPTIONS (...)`` but gives a Python
source that reads the table only its schema.
"""


def full(
    table: Mapping[str, str] | None = None,
    *,
    headers: bool = False,
    value: types.DataType = COLUMNS["value"],
    errors: bool = False,
) -> types.StructType:
    """Return the schema of a topic, with the columns of headers and of errors on request.

    ``table`` has the options to store in a SQL table's schema, and ``value`` is the type of that
    column.
    """
    found = {**COLUMNS, "value": value}
    if not headers:
        del found[HEADERS]
    if errors:
        found |= {ERROR: types.StringType(), CORRUPT: types.BinaryType()}
    return struct(found, table)


def struct(
    fields: Mapping[str, types.DataType], table: Mapping[str, str] | None = None
) -> types.StructType:
    """Return a schema of nullable columns that stores the options of a SQL table, if any."""
    schema = types.StructType([types.StructField(*field) for field in fields.items()])
    if table:
        keeper = schema["value" if "value" in fields else schema.names[0]]
        keeper.metadata = {TABLE_OPTIONS: dict(table)}
    return schema


def table_options(schema: types.StructType) -> dict[str, str]:
    """Return the options that the schema of a SQL table has, if any."""
    kept = [field.metadata[TABLE_OPTIONS] for field in schema if TABLE_OPTIONS in field.metadata]
    return kept[0] if kept else {}


def is_table(schema: types.StructType) -> bool:
    """Return whether rows with this schema are inserted into a SQL table, which Spark gives it."""
    names = [name for name in schema.names if name not in ERRORS]
    return names in (full().names, full(headers=True).names) and bool(table_options(schema))


def plain_strings(kind: types.DataType) -> types.DataType:
    """Return the type with ``STRING`` for each ``CHAR(n)``, ``VARCHAR(n)`` and collated string.

    Spark passes each of these as plain strings.
    """
    match kind:
        case types.StringType() | types.CharType() | types.VarcharType():
            return types.StringType()
        case types.ArrayType():
            return types.ArrayType(plain_strings(kind.elementType), kind.containsNull)
        case types.MapType():
            key, value = plain_strings(kind.keyType), plain_strings(kind.valueType)
            return types.MapType(key, value, kind.valueContainsNull)
        case types.StructType():
            plain = [(each.name, plain_strings(each.dataType), each.nullable) for each in kind]
            return types.StructType([types.StructField(*each) for each in plain])
    return kind


def check(schema: types.StructType, whole: types.StructType, never_null: Set[str]) -> None:
    """Check that the columns of a query are in the whole schema, in any case, with their types.

    Raises:
        ColumnError: a column is unknown, has another type, or is ``NOT NULL`` but has nulls.
    """
    known = {field.name.lower(): field for field in whole}
    for field in schema:
        name = field.name.lower()
        if name not in known:
            why = unknown(field.name, whole.names).replace("option", "column")
            if name in _ADDED:
                why = f"exists with option {_ADDED[name]} only"
            raise ColumnError(field.name, why)
        wanted, found = known[name].dataType, field.dataType
        if found != wanted:
            why = f"is {wanted.simpleString()}, not {found.simpleString()}"
            raise ColumnError(field.name, why)
        if not field.nullable and name not in never_null:
            raise ColumnError(field.name, "has nulls, it cannot be NOT NULL")
