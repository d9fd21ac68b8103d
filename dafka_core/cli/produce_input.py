"""What ``dafka produce`` reads, as records: lines, JSON objects, rows of CSV, or whole files."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from dafka_core.envelope import Headers
from dafka_core.errors import DafkaError
from dafka_core.names import octets_of, quoted, text_of
from dafka_core.near_names import what_there_is

LINES, JSON, CSV, FILE = INPUTS = ("lines", "json", "csv", "file")

MAX_ROW_BYTES: Final = 128 << 20
"""Of CSV; a longer one is rather a quotation mark that nothing closes."""

_QUOTE: Final = b'"'


@dataclass(eq=False)
class BadInputError(DafkaError):
    """A line of an input that is no record; the lines before it are published."""

    sentence = (
        "line {number} of {source} is no record: {why}; it and what follows it are not published"
    )
    source: str
    number: int
    why: str


class Columns(NamedTuple):
    """Records to be published: as many keys and headers as values, or None of all."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None

    def part(self, start: int, stop: int) -> Columns:
        """The records from one to another (exclusive), counted from 0."""
        keys = None if self.keys is None else self.keys[start:stop]
        return Columns(
            self.values[start:stop],
            keys,
            None if self.headers is None else self.headers[start:stop],
        )


class Record(NamedTuple):
    """One of them."""

    value: bytes | None
    key: bytes | None
    headers: Headers


class Decoder(Protocol):
    """Makes records of lines, as they come."""

    @property
    def line(self) -> int:
        """The number of the line that was looked at last, from 1."""

    def decode(self, lines: list[bytes]) -> Columns:
        """The records that are complete; PartlyError for a line that is none."""

    def end(self) -> None:
        """Raises ValueError if the last one is not complete."""


class LineRecords:
    """Each line is a value; with a ``separator`` what is before the first one is its key."""

    def __init__(self, key: bytes | None, headers: Headers, separator: bytes = b"") -> None:
        self._key = key
        self._headers = headers
        self._separator = separator
        self.line = 0

    def decode(self, lines: list[bytes]) -> Columns:
        """See ``Decoder``."""
        self.line += len(lines)
        headers = [self._headers] * len(lines) if self._headers else None
        if self._separator:
            pairs = [line.partition(self._separator) for line in lines]
            keys = [key if found else self._key for key, found, _ in pairs]
            values = [value if found else line for line, found, value in pairs]
            return Columns(values, keys, headers)
        return Columns(lines, None if self._key is None else [self._key] * len(lines), headers)

    def end(self) -> None:
        """See ``Decoder``."""


class _Parsed:
    """What decoders of single records share: where one is wrong, those before it still count."""

    def __init__(self, key: bytes | None, headers: Headers) -> None:
        self.line = 0
        self._key = key
        self._headers = headers

    def _columns(self, records: Iterable[Record]) -> Columns:
        values, keys, headers = [], [], []
        try:
            for value, key, pairs in records:
                values.append(value)
                keys.append(self._key if key is None else key)
                headers.append((*self._headers, *pairs))
        except ValueError as error:
            raise PartlyError(Columns(values, keys, headers), str(error)) from None
        return Columns(values, keys, headers)


class PartlyError(ValueError):
    """A line that is no record; ``before`` has those of the same call that are."""

    def __init__(self, before: Columns, why: str) -> None:
        super().__init__(why)
        self.before = before


class JsonRecords(_Parsed):
    """Each line is an object, as ``dafka consume --json`` prints them."""

    def decode(self, lines: list[bytes]) -> Columns:
        """See ``Decoder``."""
        return self._columns(self._records(lines))

    def end(self) -> None:
        """See ``Decoder``."""

    def _records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in lines:
            self.line += 1
            yield _of_json(line)


class CsvRecords(_Parsed):
    """The first line has the columns' names, and each row is a record.

    Column ``value`` is its value and ``key`` its key; a row without a column ``value`` is a JSON
    object of its columns.  ``key_column`` is the one that has keys.
    """

    def __init__(self, key: bytes | None, headers: Headers, key_column: str | None) -> None:
        super().__init__(key, headers)
        self._key_column = key_column
        self._names: list[str] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._is_open = False
        csv.field_size_limit(MAX_ROW_BYTES)

    def decode(self, lines: list[bytes]) -> Columns:
        """See ``Decoder``."""
        return self._columns(self._records(lines))

    def end(self) -> None:
        """See ``Decoder``."""
        if self._pending:
            raise ValueError("a quotation mark is not closed")

    def _records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in lines:
            self.line += 1
            self._pending.append(line)
            self._pending_bytes += len(line)
            self._is_open ^= line.count(_QUOTE) % 2 == 1  # a quoted text may have newlines in it
            if not self._is_open:
                row = text_of(b"\n".join(self._pending))
                self._pending, self._pending_bytes = [], 0
                yield from self._of_row(row)
            elif self._pending_bytes > MAX_ROW_BYTES:
                self.end()

    def _of_row(self, text: str) -> Iterator[Record]:
        try:
            row = next(csv.reader([text.removesuffix("\r")], strict=True), [])
        except csv.Error as error:
            raise ValueError(str(error)) from None
        if not row:
            return
        if not self._names:
            self._begin([each.removeprefix("\ufeff") for each in row])
            return
        if len(row) != len(self._names):
            raise ValueError(f"it has {len(row)} columns, and there are {len(self._names)}")
        fields = dict(zip(self._names, row, strict=True))
        key = fields.get(self._key_column or ("key" if "value" in fields else ""))
        value = fields.get("value")
        if value is None:
            value = json.dumps(fields, ensure_ascii=False)
        yield Record(octets_of(value), None if key is None else octets_of(key), ())

    def _begin(self, names: list[str]) -> None:
        if self._key_column is not None and self._key_column not in names:
            near = what_there_is(self._key_column, names, "columns")
            raise ValueError(f"there is no column {quoted(self._key_column)} ({near})")
        self._names = names


_HEADERS: Final = "headers must be a list of objects with name and value"


def _of_json(line: bytes) -> Record:
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError("it has neither value nor value_base64")
    pairs = fields.get("headers") or []
    if isinstance(pairs, dict):
        pairs = [{"name": name, "value": value} for name, value in pairs.items()]
    if not isinstance(pairs, list):
        raise ValueError(_HEADERS)
    headers = tuple(_header(each) for each in pairs)
    return Record(_octets(fields, "value"), _octets(fields, "key"), headers)


def _header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, dict) or not isinstance(pair.get("name"), str):
        raise ValueError(_HEADERS)
    return pair["name"], _octets(pair, "value")


def _octets(fields: dict[str, Any], name: str) -> bytes | None:
    value, encoded = fields.get(name), fields.get(f"{name}_base64")
    if value is None and isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return msgspec.json.encode(value)


def decoder(
    kind: str, key: bytes | None, headers: Headers, separator: bytes, key_column: str | None
) -> Callable[[], Decoder]:
    """What makes a decoder for each input; ``kind`` is one of ``INPUTS``, but ``file``."""
    if kind == JSON:
        return lambda: JsonRecords(key, headers)
    if kind == CSV:
        return lambda: CsvRecords(key, headers, key_column)
    return lambda: LineRecords(key, headers, separator)
