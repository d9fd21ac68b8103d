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

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])")
_FORM: Final = "must be columns like 'id BIGINT, tags ARRAY<STRING>'"


def parse_ddl(text: str) -> types.StructType:
    """Parse a schema; all columns are nullable, as with ``from_json``.

    Raises:
        ValueError: the schema is invalid.
    """
    schema = _Parser(text).struct("")
    if not schema.fields:
        raise ValueError(f"{_FORM}: it is empty")
    return schema


class _Parser:
    """A recursive-descent parser; ``_tokens`` are the tokens ahead, the next one last."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._depth = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{_FORM}; unexpected {text[at:].strip()[:20]!r}")
            self._tokens.append(found[1])
            at = found.end()
        self._tokens.reverse()

    def struct(self, end: str) -> types.StructType:
        """Parse columns up to ``end``: a token, or empty for the end of the text."""
        fields: dict[str, types.StructField] = {}
        while self._next() != end:
            if fields:
                self._expect(",")
            name = self._name()
            if name.lower() in fields:
                raise ValueError(f"{_FORM}; duplicate column {name!r}")
            if self._next() == ":":
                self._take()
            fields[name.lower()] = types.StructField(name, self._type())
            if self._next().lower() == "not":
                self._take()
                self._expect("null")
        self._expect(end)
        return types.StructType(list(fields.values()))

    def _type(self) -> types.DataType:
        word = self._take()
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        self._depth += 1
        if name not in ("array", "map", "struct") or self._depth > _MAX_DEPTH:
            why = f"unknown type {word!r}" if word else "the last column has no type"
            raise ValueError(f"{_FORM}; {why}")
        self._expect("<")
        made: types.DataType
        if name == "struct":
            made = self.struct(">")
        else:
            first = self._type()
            if name == "array":
                made = types.ArrayType(first)
            else:
                self._expect(",")
                made = types.MapType(first, self._type())
            self._expect(">")
        self._depth -= 1
        return made

    def _decimal(self) -> types.DecimalType:
        if self._next() != "(":
            return types.DecimalType()
        self._take()
        precision, scale = self._number(), 0
        if self._next() == ",":
            self._take()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            why = f"DECIMAL has 1 to {_MAX_PRECISION} digits, and no larger scale"
            raise ValueError(f"{_FORM}; {why}")
        return types.DecimalType(precision, scale)

    def _number(self) -> int:
        word = self._take()
        if not (word.isascii() and word.isdigit()):
            raise ValueError(f"{_FORM}; {word!r} is not a number")
        return int(word)

    def _name(self) -> str:
        word = self._take()
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not word or word in "<>(),:":
            raise ValueError(f"{_FORM}; a column name is missing before {word!r}")
        return word

    def _next(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _take(self) -> str:
        return self._tokens.pop() if self._tokens else ""

    def _expect(self, wanted: str) -> None:
        found = self._take()
        if found.lower() != wanted:
            before = repr(found) if found else "the end"
            raise ValueError(f"{_FORM}; {wanted!r} is missing before {before}")
