"""``dafka produce``: publishes lines, JSON, CSV or files."""

from __future__ import annotations

import base64
import csv
import json
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

import click
import msgspec

import dafka_core
from dafka_core.cli import flags, output, process
from dafka_core.cli.process import Stopped, signals
from dafka_core.config.node_options import MetricsOptions, ProducerOptions
from dafka_core.errors import ConfigError, DafkaError, RecordTooLargeError
from dafka_core.model.envelope import AUTO, Header, Headers, closed
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, octets_of, quoted, text_of

LINES, JSON, CSV, FILE = INPUTS = ("lines", "json", "csv", "file")

MAX_ROW_BYTES: Final = 128 << 20
"""Limit of a CSV row, so that an unclosed quotation mark does not read the whole file."""

_QUOTE: Final = b'"'

FEW_HEADERS: Final = 1_000  # they always fit into an envelope


@dataclass(eq=False)
class BadInputError(DafkaError):
    """An invalid line of an input; the lines before it are published."""

    sentence = "line {number} of {source} {why}; this and the following lines are not published"
    source: str
    number: int
    why: str


class Columns(NamedTuple):
    """Records to publish, as columns of equal length; None for a column without content."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None

    def part(self, start: int, stop: int) -> Columns:
        """Return the records from ``start`` to ``stop`` (exclusive)."""
        keys, headers = self.keys, self.headers
        return Columns(
            self.values[start:stop], keys and keys[start:stop], headers and headers[start:stop]
        )


class Record(NamedTuple):
    """A record to publish."""

    value: bytes | None
    key: bytes | None
    headers: Headers


@dataclass
class Decoder(ABC):
    """Decodes the lines of an input incrementally."""

    key: bytes | None  # of records without one
    headers: Headers  # of all records, before their own
    line: int = field(default=0, init=False)  # the number of the line decoded last, from 1

    @abstractmethod
    def decode(self, lines: list[bytes]) -> tuple[Columns, str]:
        """Return the complete records before an invalid line, and why it is invalid."""

    def end(self) -> str:
        """Return why the last record is incomplete; empty if it is complete."""
        return ""


@dataclass
class LineRecords(Decoder):
    """Each line is a value; with a ``separator``, a key, the separator and a value."""

    separator: bytes = b""

    def decode(self, lines: list[bytes]) -> tuple[Columns, str]:
        """Return all lines: none is invalid."""
        self.line += len(lines)
        headers = [self.headers] * len(lines) if self.headers else None
        if self.separator:
            pairs = [line.partition(self.separator) for line in lines]
            keys = [key if found else self.key for key, found, _ in pairs]
            values = [value if found else line for line, found, value in pairs]
            return Columns(values, keys, headers), ""
        same = None if self.key is None else [self.key] * len(lines)
        return Columns(lines, same, headers), ""


class _Parsed(Decoder):
    """Base of decoders of single records."""

    def decode(self, lines: list[bytes]) -> tuple[Columns, str]:
        """See ``Decoder``: an invalid record does not drop those before it."""
        values, keys, headers = [], [], []
        why = ""
        try:
            for line in lines:
                self.line += 1
                for value, own_key, own_headers in self._records(line):
                    key = self.key if own_key is None else own_key
                    pairs = (*self.headers, *own_headers)
                    if len(pairs) > FEW_HEADERS:
                        closed(value, key, pairs)
                    values.append(value)
                    keys.append(key)
                    headers.append(pairs)
        except ValueError as error:
            why = str(error)
        return Columns(values, keys, headers), why

    @abstractmethod
    def _records(self, line: bytes) -> Iterable[Record]:
        """Return the record that a line completes; raise ValueError if it is invalid."""


class JsonRecords(_Parsed):
    """Each line is an object as printed by ``dafka consume --json``."""

    def _records(self, line: bytes) -> Iterable[Record]:
        yield _of_json(line)


@dataclass
class CsvRecords(_Parsed):
    """The first line contains column names; each further row is a record.

    Columns ``value`` and ``key`` are its value and key. Without column ``value``, the value is a
    JSON object of all columns. ``key_column`` names another column for keys.
    """

    key_column: str | None = None
    names: list[str] = field(default_factory=list)
    pending: list[bytes] = field(default_factory=list)
    pending_bytes: int = 0
    is_open: bool = False

    def __post_init__(self) -> None:
        csv.field_size_limit(MAX_ROW_BYTES)

    def end(self) -> str:
        """See ``Decoder``."""
        return "a quotation mark is not closed" if self.pending else ""

    def _records(self, line: bytes) -> Iterable[Record]:
        self.pending.append(line)
        self.pending_bytes += len(line)
        self.is_open ^= line.count(_QUOTE) % 2 == 1  # quoted text may contain newlines
        if not self.is_open:
            row = text_of(b"\n".join(self.pending))
            self.pending, self.pending_bytes = [], 0
            yield from self._of_row(row)
        elif self.pending_bytes > MAX_ROW_BYTES:
            raise ValueError(self.end())

    def _of_row(self, text: str) -> Iterator[Record]:
        try:
            row = next(csv.reader([text.removesuffix("\r")], strict=True), [])
        except csv.Error as error:
            raise ValueError(str(error)) from None
        if not row:
            return
        if not self.names:
            self._begin([each.removeprefix("\ufeff") for each in row])
            return
        if len(row) != len(self.names):
            raise ValueError(f"it has {len(row)} columns instead of {len(self.names)}")
        fields = dict(zip(self.names, row, strict=True))
        key = fields.get(self.key_column or ("key" if "value" in fields else ""))
        value = fields.get("value")
        if value is None:
            value = json.dumps(fields, ensure_ascii=False)
        yield Record(octets_of(value), None if key is None else octets_of(key), ())

    def _begin(self, names: list[str]) -> None:
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"there are several columns {quoted(twice[0])}")
        if self.key_column is not None and self.key_column not in names:
            near = what_there_is(self.key_column, names, "columns")
            raise ValueError(f"column {quoted(self.key_column)} is missing ({near})")
        self.names = names


_HEADERS: Final = "headers must be a list of objects with name and value"


def _of_json(line: bytes) -> Record:
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError("it has neither value nor value_base64")
    pairs = fields.get("headers") or []
    if isinstance(pairs, dict):
        pairs = [{"name": name, "value": value} for name, value in pairs.items()]
    if not isinstance(pairs, list):
        raise ValueError(_HEADERS)
    headers = tuple(_header(each) for each in pairs)
    return Record(_bytes(fields, "value"), _bytes(fields, "key"), headers)


def _header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, dict) or not isinstance(pair.get("name"), str):
        raise ValueError(_HEADERS)
    return pair["name"], _bytes(pair, "value")


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    value, encoded = fields.get(name), fields.get(f"{name}_base64")
    if value is None and isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return msgspec.json.encode(value)


def decoder(
    kind: str, key: bytes | None, headers: Headers, separator: bytes, key_column: str | None
) -> Callable[[], Decoder]:
    """Return a factory of decoders for inputs of a ``kind``: one of ``INPUTS`` except ``file``."""
    if kind == JSON:
        return lambda: JsonRecords(key, headers)
    if kind == CSV:
        return lambda: CsvRecords(key, headers, key_column)
    return lambda: LineRecords(key, headers, separator)


INPUT_CHUNK_BYTES: Final = 1 << 20  # limit of a read; complete lines are published at once
STANDARD: Final = "-"  # names standard input in a list of files

_BATCHES_PER_S: Final = 20
"""With ``--rate``, records are published in about this number of batches per second."""

LetIn = Callable[[Callable[[], object]], None]
"""Calls a function that waits, which signals may interrupt."""


class Source(NamedTuple):
    """A file or standard input: its name for messages, and its descriptor."""

    name: str
    number: int

    def chunks(self, let_in: LetIn) -> Iterator[bytes]:
        """Yield the input in pieces as they arrive."""

        def wait() -> None:
            let_in(partial(select.select, [self.number], [], []))

        def read() -> bytes:
            if self.number == 0:
                return process.read_input(INPUT_CHUNK_BYTES, wait)
            wait()
            return os.read(self.number, INPUT_CHUNK_BYTES)

        yield from iter(read, b"")


@contextmanager
def open_sources(names: Sequence[str]) -> Iterator[list[Source]]:
    """Open all files for reading; raise ConfigError or StreamError if one cannot be read."""
    with ExitStack() as stack:
        sources = []
        for name in names:
            if name == STANDARD:
                process.read_input(0)
                sources.append(Source("the input", 0))
                continue
            with flags.file_errors("file", name, "read"):
                number = os.open(name, os.O_RDONLY)
                stack.callback(os.close, number)
                os.read(number, 0)  # fails for a directory
            sources.append(Source(quoted(name), number))
        yield sources


@dataclass
class Publisher:
    """Publishes the records of sources, and counts them."""

    producer: dafka_core.Producer
    rate: float | None = None  # maximum number of records per second
    count: int = 0  # number of valid records that were read
    advance: Callable[[int], None] = lambda _: None  # gets the number of records just published
    stopped: Stopped | None = None  # the signal that ended the input early
    due_s: float = 0.0  # with a rate, when the next record may be published (monotonic)
    waiting: int = 0
    let_in: LetIn = lambda wait: None

    def publish(
        self,
        sources: Sequence[Source],
        decoders: Callable[[], Decoder] | None,
        key: bytes | None,
        headers: Headers,
    ) -> DafkaError | None:
        """Publish sources until their end, Ctrl-C or an error, which is returned.

        Without ``decoders`` each source is one record, with this key and headers. Signals
        interrupt waiting for input or for the rate only, so that no line that was read is lost.
        """
        try:
            with signals:
                self.let_in = signals.let_in
                for source in sources:
                    if decoders is None:
                        self._publish_file(source, key, headers)
                    else:
                        self._publish_lines(source, decoders())
        except (RecordTooLargeError, BadInputError, process.StreamError) as error:
            return error
        except Stopped as stopped:
            if stopped.again:
                raise
            if self.waiting:
                output.info(f"{self.waiting} records were read but are not published")
            self.stopped = stopped
            # A second Ctrl-C stops waiting for acknowledgements and reports what is lost.
            signals.handle({signal.SIGINT})
        return None

    def _publish_file(self, source: Source, key: bytes | None, headers: Headers) -> None:
        pieces, size = [], 0
        for chunk in source.chunks(self.let_in):
            pieces.append(chunk)
            size += len(chunk)
            if size > self.producer.limit[0]:
                raise self._too_long(source, 1)
        keys = None if key is None else [key]
        self._publish(Columns([b"".join(pieces)], keys, [headers] if headers else None))

    def _publish_lines(self, source: Source, decoder: Decoder) -> None:
        with closing(self.read(source)) as found:
            for lines in found:
                columns, why = decoder.decode(lines)
                self._publish(columns)
                if why:
                    raise BadInputError(source.name, decoder.line, f"is invalid: {why}")
        if why := decoder.end():
            raise BadInputError(source.name, decoder.line, f"is invalid: {why}")

    def _too_long(self, source: Source, number: int) -> BadInputError:
        limit_bytes, node = self.producer.limit
        limit = f"{limit_bytes} bytes, the limit of {node} (option max_record_bytes)"
        return BadInputError(source.name, number, f"is longer than {limit}")

    def _publish(self, columns: Columns) -> None:
        count = len(columns.values)
        if self.rate is None:
            self._publish_at_once(columns)
            return
        step = max(int(self.rate / _BATCHES_PER_S), 1)
        for start in range(0, count, step):
            self.waiting = count - start
            # Time without input does not count, but for that of one batch.
            self.due_s = max(self.due_s, time.monotonic() - 1 / _BATCHES_PER_S)
            self.let_in(partial(time.sleep, max(self.due_s - time.monotonic(), 0.0)))
            part = columns.part(start, start + step)
            self.due_s += len(part.values) / self.rate
            self._publish_at_once(part)
        self.waiting = 0

    def _publish_at_once(self, columns: Columns) -> None:
        if not columns.values:
            return
        self.count += len(columns.values)
        try:
            self.producer.publish_many(*columns)
            self.advance(len(columns.values))
        except RecordTooLargeError as error:
            # A store with a lower limit has just joined: publish the records before the large one.
            self.count -= len(columns.values)
            self._publish_at_once(columns.part(0, max(error.offset - self.producer.next_offset, 0)))
            raise

    def read(self, source: Source) -> Generator[list[bytes], None, None]:
        """Yield lines without their newlines, in lists of all that have arrived.

        Raises:
            BadInputError: a line is too long; it is not read to its end.
        """
        pieces: list[bytes] = []
        number = 1
        for chunk in source.chunks(self.let_in):
            limit_bytes, _ = self.producer.limit
            head, newline, rest = chunk.rpartition(b"\n")
            if newline:
                lines = head.split(b"\n")
                lines[0] = b"".join([*pieces, lines[0]])
                pieces = []
                fitting = lines
                if max(map(len, lines)) > limit_bytes:
                    fitting = lines[: [len(line) > limit_bytes for line in lines].index(True)]
                number += len(fitting)
                yield fitting
                if len(fitting) < len(lines):
                    raise self._too_long(source, number)
            pieces.append(rest)
            if sum(map(len, pieces)) > limit_bytes:
                raise self._too_long(source, number)
        if last := b"".join(pieces):
            yield [last]


@flags.topic_argument
@flags.argument("files", nargs=-1, metavar="[FILE]...", help="Files; - or none is standard input.")
@flags.option(
    "--address",
    type=flags.Parsed(flags.parse_address),
    metavar="UUID",
    help="The partition to continue, 32 hexadecimal digits. Default: a new partition.",
)
@flags.option("--key", metavar="TEXT", help="The key of all records.")
@flags.option(
    "--header",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of all records; may be given several times.",
)
@flags.option(
    "--input",
    "kind",
    default=LINES,
    metavar="|".join(INPUTS),
    help="The input format. A record is a line (lines), an object on a line as printed by "
    "consume --json (json), a row of CSV after one with column names: value and key, or all "
    "columns as an object (csv), or a whole file (file).",
)
@flags.option(
    "--key-separator",
    "separator",
    metavar="TEXT",
    help="Separates the key from the value in a line.",
)
@flags.option("--key-column", metavar="NAME", help="The CSV column with the keys.")
@flags.option(
    "--rate",
    type=flags.Number(0.001),
    metavar="N",
    help="Publish at most N records per second.",
)
@flags.result_option
@flags.table_options(ProducerOptions, MetricsOptions)
def produce(
    topic: str,
    files: Sequence[str],
    *,
    address: str | None,
    key: str | None,
    header: Sequence[str],
    kind: str,
    separator: str | None,
    key_column: str | None,
    rate: float | None,
    **options: Any,
) -> None:
    """Publish each line of files or of standard input as a record; exit once all are acknowledged.

    A value is a line's bytes without the newline. With a key or headers, it is published in an
    envelope.
    """
    from dafka_core.nodes.producer import content_of

    parts = None if key is None else octets_of(key), tuple(map(parse_header, header))
    content_of(b"", *parts, options.get("envelope", AUTO))  # check before connecting
    _check_kind(kind, separator, key_column)
    decoders = decoder(kind, *parts, octets_of(separator or ""), key_column)
    of_producer = ProducerOptions.declared_in(options)
    with (
        open_sources(files or [STANDARD]) as sources,
        flags.watching("producer", options) as watch,
        dafka_core.Producer(topic, address=address, **of_producer) as producer,
    ):
        watch.add(producer)
        first = producer.next_offset
        output.info(f"topic {escape(topic)}, partition {producer.address}, from offset {first}")
        publisher = Publisher(producer, rate)
        is_typed = STANDARD in (files or [STANDARD]) and os.isatty(0)
        try:
            with output.progress(None, "records", is_shown=not is_typed) as publisher.advance:
                error = publisher.publish(sources, None if kind == FILE else decoders, *parts)
            ended = "stopped reading" if publisher.stopped else "end of input"
            output.info(f"{ended}; waiting for acknowledgements")
            producer.close()
        except Stopped as stopped:
            with suppress(DafkaError):
                producer.end(started_s=-inf)  # without waiting
            done = producer.acknowledged - first
            if done < publisher.count or stopped.again:
                output.error(
                    f"stopped after {done} of {publisher.count} records were acknowledged; the "
                    "others may be lost"
                )
                raise
        output.done(
            f"{publisher.count} records acknowledged",
            topic=escape(topic),
            partition=producer.address,
            first_offset=first,
            records=publisher.count,
        )
        if error is not None:
            raise error


def _check_kind(kind: str, separator: str | None, key_column: str | None) -> None:
    for flag, given, of in (
        ("--key-separator", separator, LINES),
        ("--key-column", key_column, CSV),
    ):
        if given is not None and kind != of:
            raise click.BadParameter(f"requires --input {of}", param_hint=f"'{flag}'")
    if kind not in INPUTS:
        near = what_there_is(kind, INPUTS, "kinds")
        raise click.BadParameter(f"{escape(kind)!r} is unknown; {near}", param_hint="'--input'")


def parse_header(text: str) -> Header:
    """Parse a header from ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("header", text, "must be NAME=VALUE")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError("header", escape(text), "has a name that is not UTF-8") from None
    return name, octets_of(value)
