"""``dafka copy``: copy a topic or a file to another topic, cluster or file."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq

import dafka_core
from dafka_core.archive.archive import SCHEMA, columns_of, timestamps_of
from dafka_core.cli import consume_command, flags, output
from dafka_core.cli.consume_command import Range, Selection, StoredRecords, json_lines
from dafka_core.cli.process import Stopped
from dafka_core.cli.produce_command import Publisher, decoder, open_sources
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.config.node_options import ProducerOptions, ReaderOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.name_limits import nearest_name, what_there_is
from dafka_core.model.names import escape, quoted, text_of
from dafka_core.model.opened_records import opened_records
from dafka_core.model.positions import Position
from dafka_core.model.records import RecordBatch
from dafka_core.system.files import open_new

PARQUET, JSON, CSV = "parquet", "json", "csv"

_SUFFIXES: Final = {
    ".parquet": PARQUET,
    ".jsonl": JSON,
    ".json": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
}


_OF_FILES: Final = (
    *(".arrow", ".avro", ".feather", ".html", ".orc", ".tsv", ".txt", ".xls", ".xlsx", ".xml"),
    *(".bz2", ".gz", ".tar", ".xz", ".yaml", ".zip", ".zst"),
)
"""Suffixes of files that cannot be copied; a topic's name may contain dots, too."""


class Place(NamedTuple):
    """A source or target: a file of a ``kind``, or a topic if the kind is empty."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse ``file:PATH``, ``topic:NAME``, a path with a known suffix, or else a topic.

        Raises:
            ConfigError: it looks like a file of an unknown format.
        """
        prefix, colon, rest = text.partition(":")
        if colon and prefix == "topic":
            return cls("", rest)
        is_file = colon and prefix == "file"
        name = rest if is_file else text
        kind = _SUFFIXES.get(Path(name).suffix.lower(), "")
        if not kind and is_file:
            near = what_there_is(Path(name).suffix, _SUFFIXES, "suffixes")
            raise ConfigError("file", escape(name), f"its suffix is unknown; {near}")
        suffix = Path(name).suffix.lower()
        seems_file = name == "-" or "/" in name or suffix in _OF_FILES
        if not kind and (seems_file or nearest_name(suffix, _SUFFIXES)):
            why = f"looks like a file, but its suffix is not one of {', '.join(_SUFFIXES)}"
            why += "; for a topic use topic:NAME"
            raise ConfigError("place", escape(text), why, "argument")
        return cls(kind, name)


_QUOTE: Final = '"'
_SPECIAL: Final = re.compile('[",\r\n]')  # texts with these are in quotation marks in CSV

CSV_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")

_SCHEMA: Final = pa.schema([pa.field("topic", pa.string(), nullable=False), *SCHEMA])
_BATCH_ROWS: Final = 50_000

Write = Callable[[RecordBatch], object]


@contextmanager
def new_file(place: Place, *, overwrite: bool) -> Iterator[Write]:
    """Yield a function that writes to a new file; raise ConfigError if that is impossible."""
    path = Path(place.name)
    with flags.file_errors("file", path, "written"):
        try:
            with open_new(path, replaces=overwrite) as file, _WRITERS[place.kind](file) as write:
                yield write
        except FileExistsError:
            why = "already exists: choose another name, or add --overwrite"
            raise ConfigError("file", escape(place.name), why) from None


@contextmanager
def _parquet(file: BinaryIO) -> Iterator[Write]:
    """Write columns as in Spark's rows and the files of ``dafka archive``."""
    with pq.ParquetWriter(file, _SCHEMA, compression="zstd", compression_level=1) as writer:

        def write(batch: RecordBatch) -> None:
            topic = pa.repeat(pa.scalar(escape(batch.tp.topic)), batch.count)
            columns = [topic, *columns_of(batch).columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

        yield write


@contextmanager
def _json(file: BinaryIO) -> Iterator[Write]:
    """Write objects as printed by ``dafka consume --json``."""
    yield lambda batch: file.write(json_lines(batch))


@contextmanager
def _csv(file: BinaryIO) -> Iterator[Write]:
    """Write column names, then rows; keys and values are raw bytes, headers are omitted."""
    text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")
    text.write(_row(CSV_COLUMNS))

    def write(batch: RecordBatch) -> None:
        topic, partition = escape(batch.tp.topic), escape(batch.tp.partition)
        for each in opened_records(batch):
            at = each.timestamp.isoformat() if each.timestamp else ""
            content = text_of(each.key or b""), text_of(each.value or b"")
            text.write(_row((topic, partition, str(each.offset), at, *content)))

    yield write
    text.detach()  # after a flush


def _row(texts: Iterable[str]) -> str:
    # Not by ``csv.writer``, which leaves a carriage return without quotation marks.
    cells = (
        f'"{each.replace(_QUOTE, _QUOTE * 2)}"' if _SPECIAL.search(each) else each for each in texts
    )
    return ",".join(cells) + "\n"


_WRITERS: Final = {PARQUET: _parquet, JSON: _json, CSV: _csv}


class ParquetRecords:
    """The records of a Parquet file with column ``value`` and optional ``key`` and ``headers``.

    Raises:
        ConfigError: the file cannot be read, or lacks a column.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        try:
            self._file = pq.ParquetFile(name)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(
                "file", escape(name), f"cannot be read: {_first_line(error)}"
            ) from None
        names = self._file.schema_arrow.names
        if "value" not in names:
            near = what_there_is("value", names, "columns")
            raise ConfigError("file", escape(name), f"has no column value ({near})")
        self._columns = [each for each in ("value", "key", "headers") if each in names]
        for column in self._columns:
            if names.count(column) > 1:
                raise ConfigError("file", escape(name), f"has several columns {column}")
        for column in ("value", "key"):
            kind = self._file.schema_arrow.field(column).type if column in names else pa.binary()
            if str(kind) not in ("binary", "string", "large_binary", "large_string"):
                why = f"its column {column} must be binary or string, and is {kind}"
                raise ConfigError("file", escape(name), why)
        if "headers" in names:
            kind = self._file.schema_arrow.field("headers").type
            try:
                pa.nulls(0, kind).cast(HEADERS_TYPE)
            except pa.ArrowException:
                why = f"its column headers must be a list of pairs (key, value), and is {kind}"
                raise ConfigError("file", escape(name), why) from None
        self.count: int = self._file.metadata.num_rows

    def batches(self) -> Iterator[tuple[pa.Array, pa.Array | None, pa.Array | None]]:
        """Yield values, keys and headers, as columns of up to ``_BATCH_ROWS`` records."""
        for batch in self._file.iter_batches(_BATCH_ROWS, columns=self._columns):
            key = batch["key"] if "key" in self._columns else None
            headers = batch["headers"] if "headers" in self._columns else None
            yield batch["value"], key, None if headers is None else headers.cast(HEADERS_TYPE)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


POLL_S: Final = 1.0  # interval at which ``--follow`` checks for new records

_PLACE: Final = "a topic (topic:NAME), or a file (file:PATH) with suffix .parquet, .jsonl or .csv."


@flags.argument("source", metavar="FROM", help=f"The source: {_PLACE}")
@flags.argument("target", metavar="TO", help=f"The target: {_PLACE}")
@consume_command.selects_records
@flags.option(
    "--resume",
    is_flag=True,
    help="Topic to topic: keep the partitions' names and offsets, and continue at the end of "
    "the target.",
)
@flags.option("--follow", is_flag=True, help="As --resume, then copy new records until Ctrl-C.")
@flags.option(
    "--to-tower",
    multiple=True,
    metavar="HOST[:SUB_PORT:PUB_PORT]",
    help="A tower of the target's cluster, if it differs from the source's.",
)
@flags.option("--overwrite", is_flag=True, help="Replace an existing file.")
@flags.result_option
@flags.timeout_option
@flags.stores_option
@flags.table_options(ReaderOptions, ProducerOptions, without=("envelope",))
def copy(
    source: str,
    target: str,
    *,
    offset: Position | None,
    since: int | None,
    until: int | None,
    partition: Sequence[str],
    resume: bool,
    follow: bool,
    to_tower: Sequence[str],
    overwrite: bool,
    timeout_s: float,
    uris: str,
    **options: Any,
) -> None:
    """Copy a topic to another topic, to another cluster, or to a file; or a file to a topic.

    Keys, headers and null values are preserved, and timestamps except from a file. A file appears
    once it is complete.
    """
    origin, destination = Place.parse(source), Place.parse(target)
    topics = [flags.parse_topic(each.name) for each in (origin, destination) if not each.kind]
    keeps_offsets = resume or follow
    chosen = any(each is not None for each in (offset, since, until))
    if not topics:
        raise click.BadParameter("FROM or TO must be a topic")
    if keeps_offsets and (len(topics) < 2 or chosen):
        why = "copies all records of a topic to a topic: omit --offset, --since and --until"
        raise click.BadParameter(why, param_hint="'--follow'" if follow else "'--resume'")
    if len(topics) == 2 and topics[0] == topics[1] and not to_tower:
        why = "is the same topic: name another topic, or another cluster (--to-tower)"
        raise click.BadParameter(why, param_hint="'TO'")
    given = {**ProducerOptions.declared_in(options)}
    if to_tower:
        given["tower"] = ",".join(to_tower)
    if origin.kind:
        _file_to_topic(origin, topics[0], given)
        return
    wanted = Selection.of(offset, since, until, partition, ends=True)
    finder = StoreFinder(uris, timeout_s, ReaderOptions.declared_in(options))
    with consume_command.open_stored_records(finder) as stored:
        if destination.kind:
            _topic_to_file(stored, wanted, topics[0], destination, overwrite=overwrite)
            return
        if topics[0] == topics[1]:
            _check_other_cluster(stored, ReaderOptions.declared_in(given), timeout_s)
        given["envelope"] = "none"  # contents are copied as they are
        mirror = _Mirror(stored, topics[0], topics[1], given, keeps_offsets)
        try:
            # With --follow a signal is the normal end.
            with suppress(Stopped) if follow else nullcontext():
                mirror.copy(wanted)
                while follow:
                    time.sleep(POLL_S)
                    mirror.copy(wanted)
        finally:
            mirror.close()
        _report(mirror.count, f"topic {quoted(topics[1])}")


def _report(count: int, target: str) -> None:
    output.done(f"{count} records copied to {target}", records=count)


def _check_other_cluster(
    stored: StoredRecords, options: Mapping[str, Any], timeout_s: float
) -> None:
    with dafka_core.Reader(**options) as reader:
        reader.wait_for_stores(timeout_s=timeout_s)
        both = stored.stores.intersection(reader.stores())
    if both:
        why = f"leads to the same topic: store {min(both)} is in both clusters; name another topic"
        raise click.BadParameter(why, param_hint="'--to-tower'")


def _topic_to_file(
    stored: StoredRecords, wanted: Selection, topic: str, place: Place, *, overwrite: bool
) -> None:
    ranges = wanted.ranges(stored, topic, _refuse_gap)
    total = sum(each.count for each in ranges)
    with (
        new_file(place, overwrite=overwrite) as write,
        output.progress(total, "records") as advance,
    ):
        for each in ranges:
            for batch in stored.read(each):
                write(batch)
                advance(batch.count)
    _report(total, escape(place.name))


def _file_to_topic(place: Place, topic: str, options: Mapping[str, Any]) -> None:
    if place.kind == PARQUET:
        _parquet_to_topic(place, topic, options)
        return
    kind = JSON if place.kind == JSON else CSV
    with open_sources([place.name]) as sources, dafka_core.Producer(topic, **options) as producer:
        publisher = Publisher(producer)
        with output.progress(None, "records") as publisher.advance:
            error = publisher.publish(sources, decoder(kind, None, (), b"", None), None, ())
        producer.close()
    _report(publisher.count, f"topic {quoted(topic)}")
    if failure := error or publisher.stopped:
        raise failure


def _parquet_to_topic(place: Place, topic: str, options: Mapping[str, Any]) -> None:
    records = ParquetRecords(place.name)
    count, failure = 0, None
    with dafka_core.Producer(topic, **options) as producer:
        with output.progress(records.count, "records") as advance:
            try:
                for columns in records.batches():
                    producer.publish_many(*columns)
                    count += len(columns[0])
                    advance(len(columns[0]))
            except (OSError, ValueError, pa.ArrowException) as error:
                why = f"cannot be read from record {count} on: {_first_line(error)}"
                own = isinstance(error, DafkaError)  # such as RecordTooLargeError
                failure = error if own else DafkaError(f"file {quoted(place.name)} {why}")
        producer.close()  # also after a failure: what was published is kept
    _report(count, f"topic {quoted(topic)}")
    if failure is not None:
        raise failure


def _refuse_gap(gap: str) -> None:
    # A copy that starts later than requested would look complete.
    raise DafkaError(f"{gap}; --offset earliest copies all records that exist")


@dataclass
class _Mirror:
    """Copies the partitions of a topic to partitions of another, with a producer for each."""

    stored: StoredRecords
    source: str
    target: str
    options: Mapping[str, Any]
    keeps_offsets: bool
    count: int = 0
    producers: dict[str, Any] = field(default_factory=dict)

    def copy(self, wanted: Selection) -> None:
        """Copy the records that are not copied yet, and wait for their acknowledgements."""
        ranges = [
            self._remaining(each) for each in wanted.ranges(self.stored, self.source, _refuse_gap)
        ]
        with output.progress(sum(each.count for each in ranges), "records") as advance:
            for each in ranges:
                if each.count:
                    self._copy(each, advance)

    def close(self) -> None:
        for producer in self.producers.values():
            producer.close()

    def _remaining(self, found: Range) -> Range:
        if not self.keeps_offsets:
            return found
        info = found.info
        at = self._producer(info.partition).next_offset
        if at < info.earliest:
            raise DafkaError(
                f"{info.tp} begins at {info.earliest}, and its copy ends at {at}: a copy with the "
                "same offsets would have a gap; copy without --resume, to another topic"
            )
        if at > info.end:
            raise DafkaError(
                f"{info.tp} ends at {info.end}, and its copy at {at}: another producer has "
                "written to the copy"
            )
        return Range(info, at, info.end)

    def _copy(self, remaining: Range, advance: Callable[[int], None]) -> None:
        producer = self._producer(remaining.info.partition)
        for batch in self.stored.read(remaining):
            producer.publish_many(batch.values.to_arrow(), timestamp=timestamps_of(batch))
            self.count += batch.count
            advance(batch.count)
        producer.flush(60.0)
        if not self.keeps_offsets:  # else it may be needed again, or has looked up its end
            self.producers.pop(remaining.info.partition).close()

    def _producer(self, partition: str) -> Any:
        if partition not in self.producers:
            if self.keeps_offsets and not re.fullmatch("[0-9A-F]{32}", partition):
                raise DafkaError(
                    f"partition {quoted(partition)} is of a C producer, and its name cannot be "
                    "kept; copy without --resume"
                )
            address = partition if self.keeps_offsets else None
            self.producers[partition] = dafka_core.Producer(
                self.target, address=address, **self.options
            )
        return self.producers[partition]
