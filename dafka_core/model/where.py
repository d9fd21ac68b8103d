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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.model.envelope_columns import opened_columns
from dafka_core.model.name_limits import nearest
from dafka_core.model.names import escape
from dafka_core.model.positions import parse_moment
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition, joined_times
from dafka_core.model.values import Longs, Values

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
    EQUAL: pc.equal,
    UNEQUAL: pc.not_equal,
    LESS: pc.less,
    AT_MOST: pc.less_equal,
    GREATER: pc.greater,
    AT_LEAST: pc.greater_equal,
}
_SYNONYMS: Final = {"==": EQUAL, "!=": UNEQUAL}

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<hex>[xX]'[^']*')|(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?![\w.]))"
    r"|(?P<word>[A-Za-z_]\w*|`\w+`)|(?P<sign><=|>=|<>|!=|==|[=<>(),])|(?P<end>$))",
    re.ASCII,
)

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
            return _SIGNS[self.operator](array, pa.scalar(self.value, kind))
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
    """A condition on records.

    Attributes:
        text: as written.
        mask: its meaning.
        needed: comparisons that every matching record meets.
        columns: those that it uses.
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
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0
        self._wildcards = 0

    def whole(self) -> _Condition:
        if len(self._tokens) == 1:
            raise ValueError("must be a condition like key = 'a' AND offset >= 5; it is empty")
        condition = self._condition()
        if self._kind != "end":
            raise self._expected("AND, OR or the end")
        return condition

    def _condition(self) -> _Condition:
        def conjunction() -> _Condition:
            return _joined(self._list("AND", self._negation), is_and=True)

        return _joined(self._list("OR", conjunction), is_and=False)

    def _negation(self) -> _Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"must have at most {MAX_DEPTH} conditions within each other")
        if self._accept("NOT"):
            condition = _not(self._negation())
        elif self._accept("("):
            condition = self._condition()
            self._expect(")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> _Condition:
        column = self._column()
        sign = _SYNONYMS.get(self._word, self._word)
        if sign in _SIGNS:
            self._at += 1
            return _of(column, sign, self._value(column))
        is_null = self._accept("IS")
        negated = self._accept("NOT")
        if is_null:
            self._expect("NULL")
            found = _of(column, IS_NULL)
        elif self._accept(IN):
            self._expect("(")
            found = _of(column, IN, self._list(",", lambda: self._value(column)))
            self._expect(")")
        elif self._accept("BETWEEN"):
            least = _of(column, AT_LEAST, self._value(column))
            self._expect("AND")
            found = _joined([least, _of(column, AT_MOST, self._value(column))], is_and=True)
        elif self._accept(LIKE):
            if column in (OFFSET, TIMESTAMP):
                raise ValueError(f"LIKE is for {', '.join(COLUMNS[:4])}, not for {column}")
            found = _of(column, LIKE, self._pattern())
        else:
            raise self._expected(f"{' '.join(_SIGNS)} IN BETWEEN LIKE or IS")
        return _not(found) if negated else found

    def _column(self) -> str:
        word = self._take("word", f"a column, one of {', '.join(COLUMNS)}")
        name = word.strip("`").lower()
        if name not in COLUMNS:
            raise ValueError(f"has no column {word!r}: {nearest(name, COLUMNS)}")
        self.columns.append(name)
        if len(self.columns) > MAX_COMPARISONS:
            raise ValueError(f"must have at most {MAX_COMPARISONS} comparisons")
        return name

    def _value(self, column: str) -> Any:
        is_binary = column in (KEY, VALUE)
        if column == OFFSET:
            number = int(self._take("number", "a whole number"))
            if not -(2**63) <= number < 2**63:
                raise ValueError(f"{number} is no offset")
            return number
        if is_binary and self._kind == "hex":
            return _from_hex(self._take("hex", ""))
        if column == TIMESTAMP:
            self._accept("TIMESTAMP")
            return parse_moment(self._text("a text in single quotes"))
        text = self._text("a text in single quotes")
        return text.encode() if is_binary else text

    def _pattern(self) -> str:
        text = self._text("a text in quotes")
        self._wildcards += sum(text.strip("%").count(each) for each in "%_")
        if self._wildcards > MAX_WILDCARDS:
            raise ValueError(f"must have at most {MAX_WILDCARDS} of % and _ within texts of LIKE")
        return text

    def _text(self, what: str) -> str:
        text = self._take("text", what)[1:-1].replace("''", "'")
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

    @property
    def _kind(self) -> str:
        return self._tokens[self._at].lastgroup or ""

    @property
    def _word(self) -> str:
        """The next token in upper case, if it is a word or a sign."""
        token = self._tokens[self._at]
        return token[self._kind].upper() if self._kind in ("word", "sign") else ""

    def _accept(self, word: str) -> bool:
        found = self._word == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._expected(word)

    def _take(self, kind: str, what: str) -> str:
        if self._kind != kind:
            raise self._expected(what)
        self._at += 1
        return self._tokens[self._at - 1][kind]

    def _expected(self, what: str) -> ValueError:
        token, kind = self._tokens[self._at], self._kind
        found = "it ends" if kind == "end" else f"it has {token[kind]!r}"
        return ValueError(f"must have {what} at character {token.start(kind) + 1}, but {found}")


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at, text = 0, text.rstrip()
    while match := _TOKEN.match(text, at):
        yield match
        if match.lastgroup == "end":
            return
        at = match.end()
    raise ValueError(f"cannot be read from {text[at:].lstrip()[:20]!r} on")


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text[2:-1])
    except ValueError:
        raise ValueError(f"must have pairs of hexadecimal digits in {text[:20]}") from None


@dataclass(frozen=True, slots=True)
class MatchedRecords:
    """The matching records of a completely searched range.

    Attributes:
        tp: the partition.
        offset, end: the range (exclusive).
        offsets: those of the matching records, ascending.
        values: their contents.
        times: their timestamps, as those of ``RecordBatch``.
    """

    tp: TopicPartition
    offset: int
    end: int
    offsets: Longs
    values: Values
    times: Longs | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """Return the number of matching records."""
        return len(self.offsets)

    def offset_of(self, row: int) -> int:
        """Return the offset of a matching record."""
        return int(self.offsets[row])


Records = RecordBatch | MatchedRecords


def kept(batch: RecordBatch, where: Where, *, opens: bool) -> MatchedRecords:
    """Return the matching records of a batch; ``opens`` if keys and values are in envelopes."""
    made: dict[str, pa.Array] = {}

    def column(name: str) -> pa.Array:
        if name not in made:
            made.update(_made(batch, name, opens=opens))
        return made[name]

    return kept_by(batch, where.mask(column))


def kept_by(batch: RecordBatch, mask: pa.BooleanArray) -> MatchedRecords:
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


def concat_kept(parts: Sequence[MatchedRecords]) -> MatchedRecords:
    """Return the matching records of neighbouring ranges as those of one range."""
    first = parts[0]
    if len(parts) == 1:
        return first
    offsets = np.concatenate([each.offsets for each in parts])
    values = Values.concat([each.values for each in parts])
    times = joined_times([each.times for each in parts])
    return MatchedRecords(first.tp, first.offset, parts[-1].end, offsets, values, times)


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
