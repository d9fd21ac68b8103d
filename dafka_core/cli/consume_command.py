"""``dafka consume``: prints records, followed on the mesh or read in bulk from stores."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

import dafka_core
from dafka_core.cli import flags, output, store_clients
from dafka_core.cli.process import Stopped
from dafka_core.cli.store_clients import Holder, StoreFinder, read_range
from dafka_core.config.node_options import ConsumerOptions, MetricsOptions, ReaderOptions
from dafka_core.errors import (
    ClosedError,
    ConfigError,
    DataLossError,
    InvalidRequestError,
    NodeFailedError,
    NoStoreError,
    StoreUnreachableError,
)
from dafka_core.model.envelope import NONE, Headers
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import escape, octets_of, quoted, unescape
from dafka_core.model.opened_records import opened_lists, opened_records
from dafka_core.model.positions import EARLIEST, LATEST, OFFSET, Position
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    Record,
    RecordBatch,
    Records,
    TopicPartition,
    merge_heads,
    times_between,
)

if TYPE_CHECKING:
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.model.where import Where


_BATCH: Final[Mapping[str, Any]] = {"max_records": 50_000, "max_bytes": 8 << 20}


@dataclass(frozen=True)
class Range:
    """A range of a partition's offsets: ``start`` up to ``end`` (exclusive)."""

    info: PartitionInfo
    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of offsets."""
        return max(self.end - self.start, 0)


@dataclass
class StoredRecords:
    """Partitions and records of all stores."""

    clients: Sequence[StoreClient]  # of the stores that serve Arrow Flight
    # for stores that do not serve Flight, and records that no client has; None without a mesh
    reader: dafka_core.Reader | None
    timeout_s: float  # time limit of each request
    holders: dict[TopicPartition, list[Holder]] = field(default_factory=lambda: defaultdict(list))

    @property
    def stores(self) -> set[str]:
        """The addresses of the stores."""
        others = () if self.reader is None else self.reader.stores()
        return {*others, *(client.location.store for client in self.clients)}

    def partitions(self, topics: Collection[str] | None) -> list[PartitionInfo]:
        """Return the partitions of these topics, or of all topics, merged over the stores.

        Stores that do not respond are reported.

        Raises:
            StoreUnreachableError: no store responds.
        """
        self.holders.clear()
        failures: list[StoreUnreachableError] = []
        infos: list[PartitionInfo] = []
        for client in self.clients:
            try:
                found = client.heads(topics, timeout_s=self.timeout_s)
            except StoreUnreachableError as error:
                failures.append(error)
                continue
            for info in found:
                self.holders[info.tp].append(Holder(client, info.earliest, info.end))
            infos += found
        if failures and len(failures) == len(self.clients) and self.reader is None:
            raise failures[0]
        for failure in failures:
            output.error(f"{failure}: records that only this store has are missing")
        if self.reader is not None:
            infos += self.reader.partitions(topics, timeout_s=self.timeout_s)
        return [*merge_heads(infos).values()]

    def of_topic(self, topic: str, chosen: Collection[str] = ()) -> list[PartitionInfo]:
        """Return a topic's partitions, or the chosen ones; raise DafkaError if any is missing."""
        found = self.partitions([topic])
        return store_clients.chosen(found, topic, chosen, lambda: self.partitions(None))

    def offsets_at(self, infos: Iterable[PartitionInfo], time_us: int) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time for each partition, or the partition's end."""
        infos = [*infos]
        found: dict[TopicPartition, list[int]] = defaultdict(list)
        for client in self.clients:
            held = [i.tp for i in infos if any(h.client is client for h in self.holders[i.tp])]
            times = [(*tp, time_us) for tp in held]
            offsets = client.offset_for_times(times, timeout_s=self.timeout_s) if times else []
            for tp, offset in zip(held, offsets, strict=True):
                if offset is not None:
                    found[tp].append(offset)
        for info in infos:
            if self.reader is not None and not self.holders[info.tp]:
                tp, start, end = info.tp, info.earliest, info.end
                written = self.reader.times(tp, start, end, timeout_s=self.timeout_s)
                found[tp] += [offset for offset, at_us in written if at_us >= time_us][:1]
        return {each.tp: min(found[each.tp], default=each.end) for each in infos}

    def read(self, wanted: Range) -> Iterator[RecordBatch]:
        """Yield all records of a range in order, with their timestamps.

        Raises:
            DataLossError: no store has some of the records any more.
            StoreUnreachableError: the stores that have them do not respond.
        """
        tp, offset = wanted.info.tp, wanted.start
        life = None if wanted.info.life == NO_LIFE else wanted.info.life
        limits = {"life": life, "timeout_s": self.timeout_s, **_BATCH}
        try:
            for batch in read_range(tp, offset, wanted.end, self.holders[tp], **limits):
                offset = batch.end
                yield batch
        except (StoreUnreachableError, DataLossError, InvalidRequestError):
            if self.reader is None:
                raise
            yield from self._over_mesh(self.reader, tp, offset, wanted.end)

    def _over_mesh(
        self, reader: dafka_core.Reader, tp: TopicPartition, start: int, end: int
    ) -> Iterator[RecordBatch]:
        written = reader.times(tp, start, end, timeout_s=self.timeout_s)
        table = np.array([(0, UNKNOWN_US), *written], np.int64)
        counts = np.diff(table[:, 0].clip(start, end), append=end)
        times = np.column_stack((counts, table[:, 1]))
        for batch in reader.read(tp, start, end, timeout_s=self.timeout_s):
            of_batch = times_between(times, batch.offset - start, batch.end - start)
            yield replace(batch, times=of_batch)


@contextmanager
def open_stored_records(finder: StoreFinder) -> Iterator[StoredRecords]:
    """Open clients of the stores; raise as ``StoreFinder`` does."""
    with finder.clients_and_reader() as (clients, reader):
        yield StoredRecords(clients, reader, finder.timeout_s)


LETTERS: Final[dict[str, tuple[str, Callable[[Record], bytes]]]] = {
    "t": ("topic", lambda each: octets_of(escape(each.topic))),
    "p": ("partition", lambda each: octets_of(escape(each.partition))),
    "o": ("offset", lambda each: b"%d" % each.offset),
    "T": ("timestamp, in milliseconds since 1970 UTC", lambda each: _ms(each.timestamp_us)),
    "k": ("key", lambda each: each.key or b""),
    "v": ("value", lambda each: each.value or b""),
    "s": ("value, as %v", lambda each: each.value or b""),
    "K": ("length of the key; -1 without one", lambda each: _length(each.key)),
    "S": ("length of the value; -1 of null", lambda each: _length(each.value)),
    "h": ("headers, as NAME=VALUE,...", lambda each: _headers(each.headers)),
    "%": ("a percent sign", lambda _: b"%"),
}
"""The fields of a format by letter: those of kcat, and ``v``."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PARTS: Final = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|([^%\\]+)", re.DOTALL)


def lines(batch: Records, *, opens: bool = True) -> bytes:
    """Format a value per line; an empty line for null."""
    values, *_ = opened_lists(batch.values, opens=opens)
    return b"\n".join([*(value or b"" for value in values), b""])


def json_lines(batch: Records, *, opens: bool = True) -> bytes:
    """Format a JSON object per record and line."""
    made = []
    place = {"topic": escape(batch.tp.topic), "partition": escape(batch.tp.partition)}
    for record in opened_records(batch, opens=opens):
        fields: dict[str, Any] = {**place, "offset": record.offset}
        if record.timestamp is not None:
            fields["timestamp"] = record.timestamp.isoformat()
        if record.key is not None:
            fields |= _shown("key", record.key)
        fields |= _shown("value", record.value)
        if record.headers:
            fields["headers"] = [{"name": n, **_shown("value", of)} for n, of in record.headers]
        made.append(json.dumps(fields) + "\n")
    return "".join(made).encode()


def formatted(text: str) -> Callable[..., bytes]:
    r"""Compile a format such as ``%t %o %v``; add a newline unless it ends in an escape.

    Raises:
        ValueError: it contains an unknown letter or escape.
    """
    parts: list[bytes | Callable[[Record], bytes]] = []
    for match in _PARTS.finditer(text):
        letter, escaped, plain = match.groups()
        if plain is not None:
            parts.append(octets_of(plain))
        elif letter is not None:
            if letter not in LETTERS:
                known = ", ".join(f"%{each}" for each in LETTERS)
                raise ValueError(f"%{letter} is unknown; known are {known}")
            parts.append(LETTERS[letter][1])
        elif len(escaped) == 3:
            parts.append(bytes.fromhex(escaped[1:]))
        elif escaped in _ESCAPES:
            parts.append(_ESCAPES[escaped])
        else:
            raise ValueError(rf"\{escaped} is unknown; known are \n, \t, \r, \0, \\ and \xff")
    if not re.search(r"\\(x..|.)$", text):
        parts.append(b"\n")

    def made(batch: Records, *, opens: bool = True) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else part(record)
            for record in opened_records(batch, opens=opens)
            for part in parts
        )

    return made


def _ms(time_us: int | None) -> bytes:
    return b"-1" if time_us is None else b"%d" % (time_us // 1_000)


def _length(content: bytes | None) -> bytes:
    return b"-1" if content is None else b"%d" % len(content)


def _headers(headers: Headers) -> bytes:
    return b",".join(octets_of(name) + b"=" + (value or b"") for name, value in headers)


def _shown(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return UTF-8 text; for other bytes null, and the bytes in base64."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(content).decode()}


LOOKUP_S: Final = 10.0  # time limit for finding a store that has a topic

_JSON_HELP: Final = (
    "Print JSON objects with topic, partition, offset, timestamp and value, and key and headers "
    "if the record has any. A value that is not UTF-8 is null, and its bytes are in value_base64."
)
_FORMAT_HELP: Final = (
    "Print each record in this format: "
    + ", ".join(f"%{letter} {what}" for letter, (what, _) in LETTERS.items())
    + r"; \\n, \\t, \\0, \\x1f. A newline is added unless it ends in an escape."
)

_SELECTION: Final = (
    flags.option(
        "--offset",
        type=flags.Parsed(flags.parse_offset),
        metavar="earliest|latest|N|+N|-N",
        help="The first offset to read in each partition; -N: the last N records of each.",
    ),
    flags.option(
        "--since",
        type=flags.TIME,
        metavar="TIME",
        help="Start with records of this time: 2026-11-23T18:00:00Z, a date in UTC, or an age such "
        "as 15m.",
    ),
    flags.option(
        "--until",
        type=flags.TIME,
        metavar="TIME",
        help="End before records of this time, date or age.",
    ),
    flags.option(
        "--partition",
        multiple=True,
        type=unescape,
        metavar="NAME",
        help="Only this partition; may be given several times.",
    ),
)


def selects_records(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select records of a topic: the arguments of ``Selection.of``."""
    for each in _SELECTION[::-1]:
        function = each(function)
    return function


@dataclass(frozen=True)
class Selection:
    """The records of a topic that a user requests."""

    start: Position  # the first one, unless ``since_us`` is given
    since_us: int | None
    until_us: int | None  # exclusive
    partitions: tuple[str, ...]  # only these; empty for all
    ends: bool  # end with the last record that exists now

    @classmethod
    def of(
        cls,
        offset: Position | None,
        since_us: int | None,
        until_us: int | None,
        partitions: Iterable[str],
        *,
        ends: bool,
        default: str = EARLIEST,
    ) -> Selection:
        """Combine flags; raise BadParameter for invalid combinations."""
        if offset is not None and since_us is not None:
            raise click.BadParameter("cannot be combined with --offset", param_hint="'--since'")
        if since_us is not None and until_us is not None and since_us >= until_us:
            raise click.BadParameter("must be later than --since", param_hint="'--until'")
        if until_us is not None and until_us > time.time() * 1e6:
            why = "is in the future; --exit-at-end ends with the last record that exists now"
            raise click.BadParameter(why, param_hint="'--until'")
        ends = ends or until_us is not None
        start = offset or Position(EARLIEST if ends else default)
        return cls(start, since_us, until_us, tuple(partitions), ends)

    @property
    def is_simple(self) -> bool:
        """True if a consumer can start without requesting offsets from stores."""
        return (
            self.start.number == 0
            and self.start.base != OFFSET
            and not (self.partitions or self.since_us is not None)
        )

    def ranges(
        self, stored: StoredRecords, topic: str, on_gap: Callable[[str], None] = output.info
    ) -> list[Range]:
        """Return the range of each partition; raise DafkaError if the topic or one is missing.

        ``on_gap`` gets a sentence for each partition that begins after the requested offset.
        """
        infos = stored.of_topic(topic, self.partitions)
        starts = {each.tp: self.start.offset_in(each) for each in infos}
        for each in infos if self.since_us is None else ():
            start = starts[each.tp]
            if start < each.earliest:
                gap = f"no store has offsets {start} to {each.earliest} (exclusive)"
                on_gap(f"{each.tp} begins at {each.earliest}: {gap}")
            if start > each.end:
                output.info(f"{each.tp} ends at {each.end}, before offset {start}")
        ends = {each.tp: each.end for each in infos}
        if self.since_us is not None:
            starts = stored.offsets_at(infos, self.since_us)
        if self.until_us is not None:
            ends = stored.offsets_at(infos, self.until_us)
        return [Range(each, max(starts[each.tp], each.earliest), ends[each.tp]) for each in infos]


def _parse_where(text: str) -> Where:
    from dafka_core.model.where import Where

    return Where.parse(text)


@flags.topic_argument
@flags.option("--from-beginning", is_flag=True, help="Start with the earliest records.")
@selects_records
@flags.option("--exit-at-end", is_flag=True, help="Exit after the last record that exists now.")
@flags.option("--count", type=click.IntRange(1), metavar="N", help="Exit after N records.")
@flags.option(
    "--grep",
    metavar="PATTERN",
    help="Only records with a value that contains a match of this regular expression (RE2).",
)
@flags.option(
    "--where",
    type=flags.Parsed(_parse_where),
    metavar="CONDITION",
    help="Only records that match: \"key = 'X'\", \"value LIKE '%late%' AND offset > 9\" "
    "(docs/spark.md).",
)
@flags.option("--format", "form", type=flags.Parsed(formatted), metavar="TEXT", help=_FORMAT_HELP)
@flags.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
@flags.timeout_option
@flags.stores_option
@flags.table_options(ConsumerOptions, MetricsOptions)
def consume(
    topic: str,
    *,
    from_beginning: bool,
    offset: Position | None,
    since: int | None,
    until: int | None,
    partition: Sequence[str],
    exit_at_end: bool,
    count: int | None,
    grep: str | None,
    where: Where | None,
    form: Callable[..., bytes] | None,
    as_json: bool,
    timeout_s: float,
    uris: str,
    **options: Any,
) -> None:
    """Print the value of each record on a line, until Ctrl-C or --count.

    With --exit-at-end or --until it reads from stores in bulk, partition after partition, by
    default from the earliest record, and exits.
    """
    opens = options.get("envelope") != NONE
    if form and as_json and flags.is_given("as_json"):
        raise click.BadParameter("cannot be combined with --json", param_hint="'--format'")
    text = partial(form or (json_lines if as_json else lines), opens=opens)
    matches = _matcher(grep, where, opens=opens)
    if from_beginning:
        if offset is not None or since is not None:
            why = "cannot be combined with --offset or --since"
            raise click.BadParameter(why, param_hint="'--from-beginning'")
        offset = Position(EARLIEST)
    wanted = Selection.of(offset, since, until, partition, ends=exit_at_end, default=LATEST)
    if uris and not wanted.ends:
        why = "requires --exit-at-end or --until: new records need a tower"
        raise click.BadParameter(why, param_hint="'--stores'")
    finder = StoreFinder(uris, timeout_s, ReaderOptions.declared_in(options))
    if wanted.ends:
        if options.get("metrics") is not None:
            output.info("--metrics is ignored: a command that reads in bulk serves no metrics")
        with open_stored_records(finder) as stored:
            ranges = wanted.ranges(stored, topic)
            total = sum(each.count for each in ranges)
            with output.progress(total, "records", is_shown=not sys.stdout.isatty()) as advance:
                batches = (batch for each in ranges for batch in stored.read(each))
                for records in _limited(count, _matched(batches, matches, advance)):
                    output.write(text(records))
        return
    _follow(topic, wanted, options, finder, count, matches, text)


Matcher = Callable[[RecordBatch], "Records"]


def _follow(
    topic: str,
    wanted: Selection,
    options: Mapping[str, Any],
    finder: StoreFinder,
    count: int | None,
    matches: Matcher,
    text: Callable[[Records], bytes],
) -> None:
    start: Any = wanted.start.base
    if not wanted.is_simple:
        with open_stored_records(finder) as stored:
            ranges = wanted.ranges(stored, topic)
            others = [] if not wanted.partitions else stored.of_topic(topic)
        start = {each.partition: each.end for each in others}
        start = {topic: start | {each.info.partition: each.start for each in ranges}}
    with (
        flags.watching("consumer", options) as watch,
        dafka_core.Consumer(start=start, **ConsumerOptions.declared_in(options)) as consumer,
    ):
        watch.add(consumer)
        consumer.subscribe(topic)
        Thread(target=_warn_if_missing, args=(consumer, topic), daemon=True).start()
        # Without --count a signal is the normal end; with it, records are missing.
        with suppress(Stopped) if count is None else nullcontext():
            where = start if isinstance(start, str) else "the requested offsets"
            output.info(f"topic {escape(topic)}, from {where}")
            batches = (
                each
                for each in consumer.batches()
                if not wanted.partitions or each.tp.partition in wanted.partitions
            )
            for records in _limited(count, _matched(batches, matches)):
                output.write(text(records))


def _matcher(pattern: str | None, where: Where | None, *, opens: bool) -> Matcher:
    """Return a function from a batch to its matching records; all match without a filter."""
    if where is not None:
        if pattern is not None:
            why = "cannot be combined with --grep; write value LIKE '%text%'"
            raise click.BadParameter(why, param_hint="'--where'")
        from dafka_core.model.where import matched

        return partial(matched, where=where, opens=opens)
    if pattern is None:
        return lambda batch: batch
    import pyarrow as pa
    import pyarrow.compute as pc

    from dafka_core.model.envelope_columns import VALUE, opened_columns
    from dafka_core.model.where import matched_by

    try:
        pc.match_substring_regex(pa.array([b""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise ConfigError("grep", pattern, str(error)) from None

    def matching(batch: RecordBatch) -> Records:
        opened = opened_columns(batch.values, [VALUE]) if opens else None
        values = batch.values.to_arrow() if opened is None else opened[VALUE]
        return matched_by(batch, pc.match_substring_regex(values, pattern=pattern))

    return matching


def _matched(
    batches: Iterable[RecordBatch],
    matches: Matcher,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Records]:
    for batch in batches:
        if (records := matches(batch)).count:
            yield records
        advance(batch.count)


def _limited(count: int | None, batches: Iterator[Records]) -> Iterator[Records]:
    if count is None:
        yield from batches
        return
    for batch in batches:
        if batch.count >= count:
            yield _head(batch, count)
            return
        yield batch
        count -= batch.count


def _head(batch: Records, count: int) -> Records:
    if isinstance(batch, RecordBatch):
        return batch.between(batch.offset, batch.offset + count)
    times = None if batch.times is None else times_between(batch.times, 0, count)
    values = batch.values[:count]
    return replace(batch, offsets=batch.offsets[:count], values=values, times=times)


def _warn_if_missing(consumer: dafka_core.Consumer, topic: str) -> None:
    """Warn if no store has the topic: it may be misspelt, or published later."""
    is_reported = False
    with suppress(ClosedError, NodeFailedError):  # the consumer has ended
        while True:
            try:
                if consumer.held_topics(topic, timeout_s=LOOKUP_S):
                    return
                held = consumer.held_topics(timeout_s=LOOKUP_S)
                if topic not in held:  # it may have come in between
                    near = what_there_is(topic, held, "topics")
                    output.info(f"no store has topic {quoted(topic)} ({near}); waiting for it")
                return
            except NoStoreError as error:
                if not is_reported:
                    output.info(f"{error}; waiting for one")
                is_reported = True
