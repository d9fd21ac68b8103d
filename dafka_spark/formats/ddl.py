"""A parser of Spark's DDL schemas, such as ``id BIGINT, tags ARRAY<STRING>``.

Spark's own parser runs in the JVM (``StructType.fromDDL`` needs a session).  The process in which
Spark asks a Python source for its schema has no JVM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import types

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
    """Parse a schema; all columns are nullable, as with ``from_json``.

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
