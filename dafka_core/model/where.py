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
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.model.envelope_columns import opened_columns
from dafka_core.model.name_limits import nearest_name
from dafka_core.model.names import escape
from dafka_core.model.positions import parse_moment
from dafka_core.model.records import UNKNOWN_US, RecordBatch, TopicPartition
from dafka_core.model.values import Longs, Values

KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP = COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
)
TYPES: Final[dict[str, pa.DataType]] = {
    KEY: pa.binary(),
    VALUE: pa.binary(),
    TOPIC: pa.utf8(),
    PARTITION: pa.utf8(),
    OFFSET: pa.int64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
}

MAX_CHARACTERS: Final = 4_096
MAX_COMPARISONS: Final = 64
"""Each is evaluated for every record."""
MAX_DEPTH: Final = 32
MAX_WILDCARDS: Final = 32
"""In the texts of all LIKE, besides % at the ends: a text of thousands takes RE2 two seconds for a
record of 64 KiB."""

AND, OR, IN, LIKE, IS_NULL = "AND", "OR", "IN", "LIKE", "IS NULL"
EQUAL, UNEQUAL, LESS, AT_MOST, GREATER, AT_LEAST = "=", "<>", "<", "<=", ">", ">="

_SIGNS: Final = {
    EQUAL: pc.equal,
    UNEQUAL: pc.not_equal,
    LESS: pc.less,
    AT_MOST: pc.less_equal,
    GREATER: pc.greater,
    AT_LEAST: pc.greater_equal,
}
_SAME: Final = {"==": EQUAL, "!=": UNEQUAL}

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<hex>[xX]'[^']*')|(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?![\w.]))"
    r"|(?P<word>[A-Za-z_]\w*|`\w+`)|(?P<sign><=|>=|<>|!=|==|[=<>(),]))",
    re.ASCII,
)

_CHARACTER: Final = r"(?:[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*|[\x80-\xbf])"
"""A regular expression for a UTF-8 character in binary data, or for a byte outside of any."""

Column = Callable[[str], pa.Array]
"""Gives the column of a name, of one batch; of the type in ``TYPES``."""


class Comparison(NamedTuple):
    """A column and what it has to be: of ``TYPES``' type, a list with ``IN``."""

    column: str
    operator: str
    value: Any

    def mask(self, column: Column) -> pa.BooleanArray:
        """For each record whether it fits; null where that is not known."""
        array = column(self.column)
        if self.operator == IS_NULL:
            return pc.is_null(array)
        kind = TYPES[self.column]
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
    """A character as RE2 takes it for itself."""
    plain = character.isalnum() or not character.isascii()
    return character if plain else f"\\x{ord(character):02x}"


@dataclass(frozen=True)
class Negated:
    """The negation of a condition."""

    part: Condition

    def mask(self, column: Column) -> pa.BooleanArray:
        """See ``Comparison``."""
        return pc.invert(self.part.mask(column))


@dataclass(frozen=True)
class Joined:
    """Conditions all of which, or one of which, has to be met."""

    operator: str
    parts: tuple[Condition, ...]

    def mask(self, column: Column) -> pa.BooleanArray:
        """See ``Comparison``; looks no further where a part has decided for all records."""
        join, decided = (pc.and_kleene, False) if self.operator == AND else (pc.or_kleene, True)

        def joined(mask: pa.BooleanArray, part: Condition) -> pa.BooleanArray:
            others = mask.true_count if not decided else mask.false_count
            is_decided = not (others or mask.null_count)
            return mask if is_decided else join(mask, part.mask(column))

        return reduce(joined, self.parts[1:], self.parts[0].mask(column))


Condition = Comparison | Negated | Joined


@dataclass(frozen=True)
class Where:
    """A condition on records.

    Attributes:
        text: as it was written.
        condition: the parsed text.
        columns: those that the condition uses.
    """

    text: str
    condition: Condition
    columns: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Where:
        """Parse a condition.

        Raises:
            ValueError: the text is invalid; the error's sentence explains why.
        """
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"must have at most {MAX_CHARACTERS} characters, it has {len(text)}")
        parser = _Parser(text)
        condition = parser.whole()
        return cls(text, condition, frozenset(parser.columns))

    @property
    def needed(self) -> list[Comparison]:
        """Return comparisons that every matching record meets."""
        condition = self.condition
        parts = condition.parts if isinstance(condition, Joined) else (condition,)
        if isinstance(condition, Joined) and condition.operator == OR:
            return []
        return [each for each in parts if isinstance(each, Comparison)]


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, text: str) -> None:
        self.columns: list[str] = []
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0
        self._wildcards = 0

    def whole(self) -> Condition:
        if len(self._tokens) == 1:
            raise ValueError("must be a condition like key = 'a' AND offset >= 5; it is empty")
        found = self._condition()
        if self._next.kind != "end":
            raise self._expected("AND, OR or the end")
        return found

    def _condition(self) -> Condition:
        return self._joined(OR, lambda: self._joined(AND, self._negation))

    def _joined(self, operator: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._takes(operator):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        # a AND (b AND c) is a AND b AND c
        flat = [
            inner
            for each in parts
            for inner in (
                each.parts if isinstance(each, Joined) and each.operator == operator else (each,)
            )
        ]
        return Joined(operator, tuple(flat))

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"must have at most {MAX_DEPTH} conditions within each other")
        try:
            if self._takes("NOT"):
                return Negated(self._negation())
            if self._takes("("):
                found = self._condition()
                self._take(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        column = self._column()
        if self._takes("IS"):
            negated = self._takes("NOT")
            self._take("NULL")
            found: Condition = Comparison(column, IS_NULL, None)
            return Negated(found) if negated else found
        token = self._next
        sign = _SAME.get(token.text, token.text)
        if token.kind == "sign" and sign in _SIGNS:
            self._at += 1
            return Comparison(column, sign, self._value(column))
        negated = self._takes("NOT")
        if self._takes(IN):
            found = Comparison(column, IN, self._values(column))
        elif self._takes("BETWEEN"):
            least = self._value(column)
            self._take(AND)
            most = self._value(column)
            bounds = Comparison(column, AT_LEAST, least), Comparison(column, AT_MOST, most)
            found = Joined(AND, bounds)
        elif self._takes(LIKE):
            if column in (OFFSET, TIMESTAMP):
                raise ValueError(f"LIKE is for {', '.join(COLUMNS[:4])}, not for {column}")
            found = Comparison(column, LIKE, self._pattern())
        else:
            raise self._expected(f"{' '.join(_SIGNS)} IN BETWEEN LIKE or IS")
        return Negated(found) if negated else found

    def _column(self) -> str:
        token = self._taken("word", f"a column, one of {', '.join(COLUMNS)}")
        name = token.text.strip("`").lower()
        if name not in COLUMNS:
            near = nearest_name(name, COLUMNS)
            why = f"did you mean {near!r}?" if near else f"there are {', '.join(COLUMNS)}"
            raise ValueError(f"has no column {token.text!r}: {why}")
        self.columns.append(name)
        if len(self.columns) > MAX_COMPARISONS:
            raise ValueError(f"must have at most {MAX_COMPARISONS} comparisons")
        return name

    def _values(self, column: str) -> list[Any]:
        self._take("(")
        values = [self._value(column)]
        while self._takes(","):
            values.append(self._value(column))
        self._take(")")
        return values

    def _value(self, column: str) -> Any:
        kind = TYPES[column]
        if kind == pa.int64():
            number = int(self._taken("number", "a whole number").text)
            if not -(2**63) <= number < 2**63:
                raise ValueError(f"{number} is no offset")
            return number
        if kind == pa.binary() and self._next.kind == "hex":
            return _octets(self._taken("hex", ""))
        if column == TIMESTAMP:
            self._takes("TIMESTAMP")
        text = _text(self._taken("text", "a text in single quotes"))
        if column == TIMESTAMP:
            return parse_moment(text)
        return text.encode() if kind == pa.binary() else text

    def _pattern(self) -> str:
        text = _text(self._taken("text", "a text in quotes"))
        self._wildcards += sum(text.strip("%").count(each) for each in "%_")
        if self._wildcards > MAX_WILDCARDS:
            raise ValueError(f"must have at most {MAX_WILDCARDS} of % and _ within texts of LIKE")
        return text

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _takes(self, word: str) -> bool:
        token = self._next
        found = token.kind in ("word", "sign") and token.text.upper() == word
        self._at += found
        return found

    def _take(self, word: str) -> None:
        if not self._takes(word):
            raise self._expected(word)

    def _taken(self, kind: str, what: str) -> _Token:
        token = self._next
        if token.kind != kind:
            raise self._expected(what)
        self._at += 1
        return token

    def _expected(self, what: str) -> ValueError:
        token = self._next
        found = "it ends" if token.kind == "end" else f"there is {token.text!r}"
        return ValueError(f"must have {what} at character {token.at + 1}, where {found}")


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            rest = text[at:end].lstrip()
            raise ValueError(f"cannot be read from {rest[:20]!r} on")
        kind = match.lastgroup
        yield _Token(kind, match[kind], match.start(kind))
        at = match.end()
    yield _Token("end", "", end)


def _text(token: _Token) -> str:
    text = token.text[1:-1].replace("''", "'")
    if "\\" in text:
        raise ValueError(r"has a backslash in a text, which SQL reads in two ways: write X'5c'")
    return _encodable(text)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("has a character that is not Unicode in a text") from None
    return text


def _octets(token: _Token) -> bytes:
    try:
        return bytes.fromhex(token.text[2:-1])
    except ValueError:
        raise ValueError(f"must have pairs of hexadecimal digits in {token.text[:20]}") from None


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """The matching records of the range from ``offset`` to ``end``, which was searched completely.

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
    def topic(self) -> str:
        """The partition's topic."""
        return self.tp.topic

    @property
    def partition(self) -> str:
        """The partition's address within its topic."""
        return self.tp.partition

    @property
    def count(self) -> int:
        """Return the number of matching records."""
        return len(self.offsets)

    def offset_of(self, row: int) -> int:
        """The offset of one that was kept."""
        return int(self.offsets[row])


Records = RecordBatch | KeptRecords


def kept(batch: RecordBatch, where: Where, *, opens: bool) -> KeptRecords:
    """Return the matching records of a batch; ``opens`` if keys and values are in envelopes."""
    return kept_by(batch, where.condition.mask(_Columns(batch, opens=opens).column))


def kept_by(batch: RecordBatch, mask: pa.BooleanArray) -> KeptRecords:
    """The records of a batch for which a mask is true, and not null."""
    rows = np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    values = batch.values
    if len(rows) < batch.count:
        values = Values.from_arrow(values.to_arrow().take(pa.array(rows)))
    times = None if batch.times is None else _runs_of(batch.times, rows)
    return KeptRecords(batch.tp, batch.offset, batch.end, rows + batch.offset, values, times)


def concat_kept(parts: Sequence[KeptRecords]) -> KeptRecords:
    """Return the matching records of neighbouring ranges as those of one range."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    times = [each.times for each in parts if each.times is not None]
    return KeptRecords(
        first.tp,
        first.offset,
        last.end,
        np.concatenate([each.offsets for each in parts]),
        Values.concat([each.values for each in parts]),
        np.concatenate(times) if len(times) == len(parts) else None,
    )


class _Columns:
    """The columns of a batch, each made when it is asked for, once."""

    def __init__(self, batch: RecordBatch, *, opens: bool) -> None:
        self._batch = batch
        self._opens = opens
        self._made: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        if name not in self._made:
            if name in (KEY, VALUE):
                self._open()
            else:
                self._made[name] = self._other(name)
        return self._made[name]

    def _open(self) -> None:
        values = self._batch.values
        opened = opened_columns(values, (KEY, VALUE)) if self._opens else None
        bare = {VALUE: values.to_arrow(), KEY: pa.nulls(len(values), TYPES[KEY])}
        self._made |= bare if opened is None else opened

    def _other(self, name: str) -> pa.Array:
        batch, kind = self._batch, TYPES[name]
        if name == OFFSET:
            return pa.array(np.arange(batch.offset, batch.end, dtype=np.int64))
        if name in (TOPIC, PARTITION):
            return pa.repeat(pa.scalar(escape(getattr(batch, name)), kind), batch.count)
        assert name == TIMESTAMP
        if batch.times is None:
            return pa.nulls(batch.count, kind)
        stamps = np.repeat(batch.times[:, 1], batch.times[:, 0])
        return pa.array(stamps, pa.int64(), mask=stamps == UNKNOWN_US).view(kind)


def _runs_of(times: Longs, rows: Longs) -> Longs:
    ends = times[:, 0].cumsum()
    counts = np.diff(rows.searchsorted(ends), prepend=0)
    return np.column_stack((counts, times[:, 1]))[counts > 0]
