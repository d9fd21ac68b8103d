"""Conditions on records, as text: a small part of SQL, with the meaning that Spark gives it.

    condition   = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation    = NOT negation | "(" condition ")" | comparison
    comparison  = column ( "=" | "<>" | "<" | "<=" | ">" | ">=" ) value
                | column [ NOT ] IN "(" value { "," value } ")"
                | column [ NOT ] BETWEEN value AND value
                | column [ NOT ] LIKE text
                | column IS [ NOT ] NULL

Columns are ``key`` and ``value`` (binary), ``topic`` and ``partition`` (text, escaped as Spark's
columns), ``offset`` and ``timestamp``.  A text is in single quotes, and ``''`` in it means one
quote; compared with binary it means its UTF-8 bytes.  ``X'00ff'`` is binary, and a timestamp is a
text with a zone.  As in SQL, a comparison with null is neither true nor false.  Stores read such
texts from the network, so every size is bounded; Arrow evaluates them for whole batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.model.envelope_columns import opened_columns
from dafka_core.model.name_limits import nearest
from dafka_core.model.names import escape
from dafka_core.model.positions import parse_moment_us
from dafka_core.model.records import UNKNOWN_US, MatchedRecords, RecordBatch
from dafka_core.model.values import Values

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.utf8(),
    "partition": pa.utf8(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
COLUMNS: Final = tuple(TYPES)
KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP = COLUMNS

MAX_CHARACTERS: Final = 4_096
MAX_COMPARISONS: Final = 64  # each is evaluated for every record
MAX_DEPTH: Final = 32
MAX_WILDCARDS: Final = 32
"""In the texts of all LIKE, besides % at the ends: a text of thousands takes RE2 two seconds for a
record of 64 KiB."""

IN, LIKE, IS_NULL = "IN", "LIKE", "IS NULL"
EQUAL, UNEQUAL, LESS, AT_MOST, GREATER, AT_LEAST = "=", "<>", "<", "<=", ">", ">="

_SIGNS: Final = {
    EQUAL: "equal",
    UNEQUAL: "not_equal",
    LESS: "less",
    AT_MOST: "less_equal",
    GREATER: "greater",
    AT_LEAST: "greater_equal",
}
_SYNONYMS: Final = {"==": EQUAL, "!=": UNEQUAL}

_SIGN: Final = "<=|>=|<>|!=|==|[=<>]"
_NAME: Final = r"`\w+`|[a-z_]\w*"
_NUMBER: Final = r"-?\d+(?![\w.])"
_BINARY: Final = "x'[^']*'"
_TEXT: Final = "'(?:[^']|'')*'"
_ANY: Final = rf"{_BINARY}|{_TEXT}|[\w`.-]+|\S"  # for errors

# A UTF-8 character in binary data, or a byte outside of any.
_CHARACTER: Final = r"(?:[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*|[\x80-\xbf])"

T = TypeVar("T")
Column = Callable[[str], pa.Array]  # returns a batch's column of a name, of the type in `TYPES`
Mask = Callable[[Column], pa.BooleanArray]  # whether each record of a batch matches; null: unknown


class Comparison(NamedTuple):
    """A comparison of a column with a value of its type, or for ``IN`` with a list of them."""

    column: str
    operator: str
    value: Any

    def mask(self, column: Column) -> pa.BooleanArray:
        """Return whether each record matches; null if unknown."""
        array, kind = column(self.column), TYPES[self.column]
        if self.operator == IS_NULL:
            return pc.is_null(array)
        if self.operator == LIKE:
            return _like(array, self.value)
        if self.operator != IN:
            return getattr(pc, _SIGNS[self.operator])(array, pa.scalar(self.value, kind))
        mask = pc.is_in(array, value_set=pa.array(self.value, kind))
        return mask if not array.null_count else pc.if_else(pc.is_valid(array), mask, None)


def _like(array: pa.Array, pattern: str) -> pa.BooleanArray:
    inner = pattern[1:-1]
    if "_" in pattern and array.type == pa.binary():
        # Arrow matches ``_`` with one byte.
        wild = {"%": ".*", "_": _CHARACTER}
        regex = "".join(wild.get(each) or _quoted(each) for each in pattern)
        return pc.match_substring_regex(array, f"(?s)^{regex}$")
    if inner and pattern[0] + pattern[-1] == "%%" and {"%", "_"}.isdisjoint(inner):
        # Arrow would compare byte by byte; RE2 takes half the time, much less if few match.
        return pc.match_substring_regex(array, "".join(map(_quoted, inner)))
    return pc.match_like(array, pattern)


def _quoted(character: str) -> str:
    plain = character.isalnum() or not character.isascii()
    return character if plain else f"\\x{ord(character):02x}"


class _Condition(NamedTuple):
    """A part of a condition, and the comparisons that every record matching it meets."""

    mask: Mask
    needed: tuple[Comparison, ...] = ()


def _of(column: str, operator: str, value: Any = None) -> _Condition:
    comparison = Comparison(column, operator, value)
    return _Condition(comparison.mask, (comparison,))


def _not(part: _Condition) -> _Condition:
    return _Condition(lambda column: pc.invert(part.mask(column)))


def _joined(parts: Sequence[_Condition], *, is_and: bool) -> _Condition:
    if len(parts) == 1:
        return parts[0]
    join = pc.and_kleene if is_and else pc.or_kleene

    def mask(column: Column) -> pa.BooleanArray:
        found = parts[0].mask(column)
        for each in parts[1:]:
            if found.null_count or (found.true_count if is_and else found.false_count):
                found = join(found, each.mask(column))  # else it is known for all records
        return found

    needed = [comparison for each in parts for comparison in each.needed]
    return _Condition(mask, tuple(needed) if is_and else ())


@dataclass(frozen=True)
class Where:
    """A condition on records: its text, the mask that it means, and the columns that it uses.

    ``needed`` are comparisons that every matching record meets.
    """

    text: str
    mask: Mask = field(compare=False, repr=False)
    needed: tuple[Comparison, ...] = field(compare=False, repr=False)
    columns: frozenset[str] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Where:
        """Parse a condition; raise ValueError with a sentence if it is invalid."""
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"must have at most {MAX_CHARACTERS} characters, it has {len(text)}")
        parser = _Parser(text)
        return cls(text, *parser.whole(), frozenset(parser.columns))

    def __reduce__(self) -> tuple[object, ...]:
        return (Where.parse, (self.text,))


class _Parser:
    """A recursive descent parser."""

    def __init__(self, text: str) -> None:
        self.columns: list[str] = []
        self._text = text
        self._at = 0
        self._depth = 0
        self._wildcards = 0

    def whole(self) -> _Condition:
        if not self._text.strip():
            raise ValueError("must be a condition like key = 'a' AND offset >= 5; it is empty")
        condition = self._condition()
        if self._text[self._at :].strip():
            raise self._expected("AND, OR or the end")
        return condition

    def _condition(self) -> _Condition:
        def conjunction() -> _Condition:
            return _joined(self._list(r"AND\b", self._negation), is_and=True)

        return _joined(self._list(r"OR\b", conjunction), is_and=False)

    def _negation(self) -> _Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"must have at most {MAX_DEPTH} conditions within each other")
        if self._accept(r"NOT\b"):
            condition = _not(self._negation())
        elif self._accept(r"\("):
            condition = self._condition()
            self._expect(r"\)", ")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> _Condition:
        column = self._column()
        if sign := self._accept(_SIGN):
            return _of(column, _SYNONYMS.get(sign, sign), self._value(column))
        is_null = self._accept(r"IS\b")
        is_negated = self._accept(r"NOT\b")
        if is_null:
            self._expect(r"NULL\b", "NULL")
            found = _of(column, IS_NULL)
        elif self._accept(r"IN\b"):
            self._expect(r"\(", "(")
            found = _of(column, IN, self._list(",", lambda: self._value(column)))
            self._expect(r"\)", ")")
        elif self._accept(r"BETWEEN\b"):
            least = _of(column, AT_LEAST, self._value(column))
            self._expect(r"AND\b", "AND")
            found = _joined([least, _of(column, AT_MOST, self._value(column))], is_and=True)
        elif self._accept(r"LIKE\b"):
            if column in (OFFSET, TIMESTAMP):
                raise ValueError(f"LIKE is for {', '.join(COLUMNS[:4])}, not for {column}")
            found = _of(column, LIKE, self._pattern())
        else:
            raise self._expected(f"{' '.join(_SIGNS)} IN BETWEEN LIKE or IS")
        return _not(found) if is_negated else found

    def _column(self) -> str:
        word = self._expect(_NAME, f"a column, one of {', '.join(COLUMNS)}")
        name = word.strip("`").lower()
        if name not in COLUMNS:
            raise ValueError(f"has no column {word!r}: {nearest(name, COLUMNS)}")
        self.columns.append(name)
        if len(self.columns) > MAX_COMPARISONS:
            raise ValueError(f"must have at most {MAX_COMPARISONS} comparisons")
        return name

    def _value(self, column: str) -> Any:
        if column == OFFSET:
            number = int(self._expect(_NUMBER, "a whole number"))
            if not -(2**63) <= number < 2**63:
                raise ValueError(f"{number} is no offset")
            return number
        if column == TIMESTAMP:
            self._accept(r"TIMESTAMP\b")
            return parse_moment_us(self._string())
        if TYPES[column] != pa.binary():
            return self._string()
        if binary := self._accept(_BINARY):
            try:
                return bytes.fromhex(binary[2:-1])
            except ValueError:
                why = f"must have pairs of hexadecimal digits in {binary[:20]}"
                raise ValueError(why) from None
        return self._string().encode()

    def _pattern(self) -> str:
        text = self._string()
        self._wildcards += sum(text.strip("%").count(each) for each in "%_")
        if self._wildcards > MAX_WILDCARDS:
            raise ValueError(f"must have at most {MAX_WILDCARDS} of % and _ within texts of LIKE")
        return text

    def _string(self) -> str:
        text = self._expect(_TEXT, "a text in single quotes")[1:-1].replace("''", "'")
        if "\\" in text:
            raise ValueError(r"has a backslash in a text, which SQL reads in two ways: write X'5c'")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("has a character that is not Unicode in a text") from None
        return text

    def _list(self, separator: str, part: Callable[[], T]) -> list[T]:
        parts = [part()]
        while self._accept(separator):
            parts.append(part())
        return parts

    def _accept(self, pattern: str) -> str:
        """Return the next token if it matches, and pass over it; else an empty text."""
        match = self._next(pattern)
        if match is not None:
            self._at = match.end()
        return "" if match is None else match[1]

    def _next(self, pattern: str) -> re.Match[str] | None:
        regex = re.compile(rf"\s*({pattern})", re.ASCII | re.IGNORECASE)
        return regex.match(self._text, self._at)

    def _expect(self, pattern: str, what: str) -> str:
        if token := self._accept(pattern):
            return token
        raise self._expected(what)

    def _expected(self, what: str) -> ValueError:
        match = self._next(_ANY)
        at = len(self._text.rstrip()) if match is None else match.start(1)
        found = "it ends" if match is None else f"it has {match[1][:50]!r}"
        return ValueError(f"must have {what} at character {at + 1}, but {found}")


def matched(batch: RecordBatch, where: Where, *, opens: bool) -> MatchedRecords:
    """Return the matching records of a batch; ``opens`` if keys and values are in envelopes."""
    made: dict[str, pa.Array] = {}

    def column(name: str) -> pa.Array:
        if name not in made:
            made.update(_made(batch, name, opens=opens))
        return made[name]

    return matched_by(batch, where.mask(column))


def matched_by(batch: RecordBatch, mask: pa.BooleanArray) -> MatchedRecords:
    """Return the records of a batch for which a mask is true, and not null."""
    rows = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    values = batch.values
    if len(rows) < batch.count:
        values = Values.from_arrow(values.to_arrow().take(pa.array(rows)))
    times = batch.times
    if times is not None:
        counts = np.diff(rows.searchsorted(times[:, 0].cumsum()), prepend=0)
        times = np.column_stack((counts, times[:, 1]))[counts > 0]
    return MatchedRecords(batch.tp, batch.offset, batch.end, rows + batch.offset, values, times)


def _made(batch: RecordBatch, name: str, *, opens: bool) -> dict[str, pa.Array]:
    """Return the column of a name, and others that are made with it."""
    kind, count = TYPES[name], batch.count
    match name:
        case "key" | "value":
            opened = opened_columns(batch.values, (KEY, VALUE)) if opens else None
            return opened or {VALUE: batch.values.to_arrow(), KEY: pa.nulls(count, kind)}
        case "offset":
            array = pa.array(batch.offsets)
        case "timestamp" if (times := batch.times) is not None:
            stamps = np.repeat(times[:, 1], times[:, 0])
            array = pa.array(stamps, pa.int64(), mask=stamps == UNKNOWN_US).view(kind)
        case "timestamp":
            array = pa.nulls(count, kind)
        case _:
            array = pa.repeat(pa.scalar(escape(getattr(batch.tp, name)), kind), count)
    return {name: array}
