"""``dafka consume``: records of the mesh and of stores, in bulk or as they come, as text."""

from __future__ import annotations

import base64
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from dafka_core.cli import output, store_clients
from dafka_core.cli.flags import Topic, of_table, parse_offset, unwatched, watching
from dafka_core.cli.list_commands import Timeout, Uris
from dafka_core.cli.process import Stopped
from dafka_core.config.node_options import ConsumerOptions, ReaderOptions
from dafka_core.config.options import check_argument
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
from dafka_core.model.name_limits import check_topic, what_there_is
from dafka_core.model.names import escape, octets_of, quoted, unescape
from dafka_core.model.opened_records import opened_lists
from dafka_core.model.positions import EARLIEST, LATEST, OFFSET, Position, parse_time_us
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    Record,
    RecordBatch,
    TopicPartition,
    merge_heads,
    times_between,
)

if TYPE_CHECKING:
    from dafka_core import Consumer, Reader
    from dafka_core.flight.store_client import StoreClient
    from dafka_core.model.where import Records


_BATCH: Final[Mapping[str, Any]] = {"max_records": 50_000, "max_bytes": 8 << 20}


class _Holder(NamedTuple):
    client: StoreClient
    info: PartitionInfo


@dataclass(frozen=True)
class Range:
    """Records of a partition to be read: offsets ``start`` up to ``end`` (exclusive)."""

    info: PartitionInfo
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many there are."""
        return max(self.end - self.start, 0)


class StoredRecords:
    """What stores have, and the records of it.

    Args:
        clients: of the stores that serve Arrow Flight.
        reader: for stores that do not, and where no client has the records; None without a mesh.
        timeout_s: how long to wait for each answer.
    """

    def __init__(
        self, clients: Sequence[StoreClient], reader: Reader | None, timeout_s: float
    ) -> None:
        self._clients = clients
        self._reader = reader
        self._timeout_s = timeout_s
        self._holders: dict[TopicPartition, list[_Holder]] = defaultdict(list)

    @property
    def stores(self) -> set[str]:
        """The addresses of the stores."""
        others = () if self._reader is None else self._reader.stores()
        return {*others, *(client.location.store for client in self._clients)}

    def partitions(self, topics: Collection[str] | None) -> list[PartitionInfo]:
        """What the stores have of these topics, or of all, together.

        Raises:
            StoreUnreachableError: none answers; others that do not are named.
        """
        self._holders.clear()
        failures: list[StoreUnreachableError] = []
        for client in self._clients:
            try:
                found = client.heads(topics, timeout_s=self._timeout_s)
            except StoreUnreachableError as error:
                failures.append(error)
                continue
            for info in found:
                self._holders[info.tp].append(_Holder(client, info))
        if failures and len(failures) == len(self._clients) and self._reader is None:
            raise failures[0]
        for failure in failures:
            output.complain(f"{failure}: what only it has is missing")
        infos = [holder.info for each in self._holders.values() for holder in each]
        if self._reader is not None:
            infos += self._reader.partitions(topics, timeout_s=self._timeout_s)
        return [*merge_heads(infos).values()]

    def of_topic(self, topic: str, chosen: Collection[str] = ()) -> list[PartitionInfo]:
        """A topic's partitions, or those that are chosen.

        Raises:
            DafkaError: no store has the topic, or one of these; says which there are.
        """
        found = self.partitions([topic])
        return store_clients.chosen(found, topic, chosen, lambda: self.partitions(None))

    def offsets_at(self, infos: Iterable[PartitionInfo], time_us: int) -> dict[TopicPartition, int]:
        """Of each partition the first offset of that time or later; its end if there is none."""
        infos = [*infos]
        found: dict[TopicPartition, list[int]] = defaultdict(list)
        for client in self._clients:
            asked = [i.tp for i in infos if any(h.client is client for h in self._holders[i.tp])]
            times = [(*tp, time_us) for tp in asked]
            offsets = client.offset_for_times(times, timeout_s=self._timeout_s) if times else []
            for tp, offset in zip(asked, offsets, strict=True):
                if offset is not None:
                    found[tp].append(offset)
        for info in infos:
            if self._reader is not None and not self._holders[info.tp]:
                tp, start, end = info.tp, info.earliest, info.end
                written = self._reader.times(tp, start, end, timeout_s=self._timeout_s)
                found[tp] += [offset for offset, at_us in written if at_us >= time_us][:1]
        return {each.tp: min(found[each.tp], default=each.end) for each in infos}

    def read(self, wanted: Range) -> Iterator[RecordBatch]:
        """The records of a range, in order and complete, with their timestamps.

        Raises:
            DataLossError: stores have not got all of them any more.
            StoreUnreachableError: the stores that have them do not answer.
        """
        tp, offset, failure = wanted.info.tp, wanted.start, None
        life = None if wanted.info.life == NO_LIFE else wanted.info.life
        left = sorted(self._holders[tp], key=lambda each: -each.info.end)
        while offset < wanted.end:
            fitting = (each for each in left if each.info.earliest <= offset < each.info.end)
            if (holder := next(fitting, None)) is None:
                break
            left.remove(holder)
            client, info = holder
            end = min(info.end, wanted.end)
            try:
                for batch in client.read(
                    tp, offset, end, life=life, times=True, timeout_s=self._timeout_s, **_BATCH
                ):
                    offset = batch.end
                    yield batch
            except (StoreUnreachableError, DataLossError, InvalidRequestError) as error:
                failure = error
        if offset < wanted.end and self._reader is not None:
            yield from self._over_mesh(self._reader, tp, offset, wanted.end)
        elif offset < wanted.end:
            why = f"no store has all up to {wanted.end}"
            raise failure or DataLossError(*tp, offset, None, why)

    def _over_mesh(
        self, reader: Reader, tp: TopicPartition, start: int, end: int
    ) -> Iterator[RecordBatch]:
        written = reader.times(tp, start, end, timeout_s=self._timeout_s)
        table = np.array([(0, UNKNOWN_US), *written], np.int64)
        counts = np.diff(table[:, 0].clip(start, end), append=end)
        times = np.column_stack((counts, table[:, 1]))
        for batch in reader.read(tp, start, end, timeout_s=self._timeout_s):
            of_batch = times_between(times, batch.offset - start, batch.end - start)
            yield replace(batch, times=of_batch)


@contextmanager
def open_stored_records(
    timeout_s: float, uris: str, options: Mapping[str, Any]
) -> Iterator[StoredRecords]:
    """The stores' records, as long as the context lasts; raises as ``store_clients.clients``."""
    with ExitStack() as stack:
        reader: Reader | None = None
        if uris:
            clients = store_clients.clients(timeout_s, uris, options)
        else:
            from dafka_core import Reader

            reader = stack.enter_context(Reader(**of_table(ReaderOptions, options)))
            clients, reader = store_clients.clients_of(reader, timeout_s)
        for client in clients:
            stack.enter_context(client)
        yield StoredRecords(clients, reader, timeout_s)


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
"""What stands for what in a format; the letters are kcat's, and v beside them."""

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PARTS: Final = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|([^%\\]+)", re.DOTALL)


def opened_rows(batch: Records, *, opens: bool = True) -> Iterator[Record]:
    """The records, in order; without ``opens`` their contents are values as they are."""
    values, keys, headers = opened_lists(batch.values, opens=opens)
    times: Any = repeat(None)
    if batch.times is not None:
        stamps = np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist()
        times = (None if each == UNKNOWN_US else each for each in stamps)
    offsets = map(batch.offset_of, range(batch.count))
    place = (*map(repeat, batch.tp), offsets)
    return map(Record._make, zip(*place, values, keys, headers, times, strict=False))


def lines(batch: Records, *, opens: bool = True) -> bytes:
    """Values, each with a newline behind it; of null it is the newline alone."""
    values, *_ = opened_lists(batch.values, opens=opens)
    return b"\n".join([*(value or b"" for value in values), b""])


def json_lines(batch: Records, *, opens: bool = True) -> bytes:
    """Objects with what is known of each record, one on a line."""
    made = []
    place = {"topic": escape(batch.tp.topic), "partition": escape(batch.tp.partition)}
    for record in opened_rows(batch, opens=opens):
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
    r"""What makes text by a format: ``%t %o %v``; a newline is added if it ends in no escape.

    Raises:
        ValueError: a letter, or an escape, is none.
    """
    parts: list[bytes | Callable[[Record], bytes]] = []
    for match in _PARTS.finditer(text):
        letter, escaped, plain = match.groups()
        if plain is not None:
            parts.append(octets_of(plain))
        elif letter is not None:
            if letter not in LETTERS:
                raise ValueError(
                    f"%{letter} is none of {', '.join(f'%{each}' for each in LETTERS)}"
                )
            parts.append(LETTERS[letter][1])
        elif len(escaped) == 3:
            parts.append(bytes.fromhex(escaped[1:]))
        elif escaped in _ESCAPES:
            parts.append(_ESCAPES[escaped])
        else:
            raise ValueError(rf"\{escaped} is none of \n, \t, \r, \0, \\ and \xff")
    if not re.search(r"\\(x..|.)$", text):
        parts.append(b"\n")

    def made(batch: Records, *, opens: bool = True) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else part(record)
            for record in opened_rows(batch, opens=opens)
            for part in parts
        )

    return made


def _ms(time_us: int | None) -> bytes:
    return b"-1" if time_us is None else b"%d" % (time_us // 1_000)


def _length(octets: bytes | None) -> bytes:
    return b"-1" if octets is None else b"%d" % len(octets)


def _headers(headers: Headers) -> bytes:
    return b",".join(octets_of(name) + b"=" + (value or b"") for name, value in headers)


def _shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Text; or null, and the octets in base64 where they are no text."""
    if octets is None:
        return {name: None}
    try:
        return {name: octets.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(octets).decode()}


LOOK_S: Final = 10.0
"""How long to look for a store that has a topic."""

_JSON_HELP: Final = (
    "Print objects with topic, partition, offset, timestamp and value, and with key and headers "
    "where there are some. A value that is not UTF-8 is null, and value_base64 has it."
)
_FORMAT_HELP: Final = (
    "What to print of each record: "
    + ", ".join(f"%{letter} {what}" for letter, (what, _) in LETTERS.items())
    + r"; \\n, \\t, \\0, \\x1f. A newline is added unless it ends in an escape."
)

Offset = Annotated[
    str | None,
    typer.Option(
        metavar="earliest|latest|N|+N|-N",
        help="Where to begin in each partition; -N is the last N of each.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Begin with records of this time, 2026-11-23T18:00:00Z, or of so long ago, 15m.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="End before records of this time, or of so long ago.",
        show_default=False,
    ),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="NAME",
        parser=unescape,
        help="Only this partition; may be given several times.",
        show_default=False,
    ),
]
ExitAtEnd = Annotated[
    bool, typer.Option("--exit-at-end", help="End with the last record that there is now.")
]


@dataclass(frozen=True)
class Wanted:
    """Which of a topic's records; what is wrong is refused when it is made.

    Attributes:
        start: where to begin, if no time says it.
        since_us, until_us: from when and up to when, in microseconds since 1970 UTC.
        partitions: only these, if there are any.
        ends: whether it ends with what there is.
    """

    start: Position = field(default_factory=lambda: Position(EARLIEST))
    since_us: int | None = None
    until_us: int | None = None
    partitions: tuple[str, ...] = ()
    ends: bool = True

    @classmethod
    def of(
        cls,
        offset: str | None,
        since: str | None,
        until: str | None,
        partitions: Iterable[str] | None,
        *,
        ends: bool,
        default: str = EARLIEST,
    ) -> Wanted:
        """What a user asks for; raises BadParameter."""
        if offset is not None and since is not None:
            raise typer.BadParameter("is given with --offset", param_hint="'--since'")
        found = parsed("--offset", parse_offset, offset)
        since_us, until_us = (
            parsed(flag, parse_time_us, text)
            for flag, text in (("--since", since), ("--until", until))
        )
        if since_us is not None and until_us is not None and since_us >= until_us:
            raise typer.BadParameter("must be later than --since", param_hint="'--until'")
        if until_us is not None and until_us > time.time() * 1e6:
            why = "has not come yet; --exit-at-end ends with the last record that there is now"
            raise typer.BadParameter(why, param_hint="'--until'")
        ends = ends or until is not None
        start = found or Position(EARLIEST if ends else default)
        return cls(start, since_us, until_us, tuple(partitions or ()), ends)

    @property
    def is_simple(self) -> bool:
        """Whether a consumer can begin without asking stores where."""
        return (
            self.start.number == 0
            and self.start.base != OFFSET
            and not (self.partitions or self.since_us is not None)
        )

    def ranges(
        self,
        stored: StoredRecords,
        topic: str,
        lacks: Callable[[str], None] = output.say,
    ) -> list[Range]:
        """The offsets of each partition; DafkaError if it, or the topic, is not there.

        ``lacks`` is told of each that begins later than it was asked for.
        """
        infos = stored.of_topic(topic, self.partitions)
        starts = {each.tp: self.start.offset_in(each) for each in infos}
        for each in infos if self.since_us is None else ():
            start = starts[each.tp]
            if start < each.earliest:
                gap = f"no store has offsets {start} to {each.earliest} (exclusive)"
                lacks(f"{each.tp} begins at {each.earliest}: {gap}")
            if start > each.end:
                output.say(f"{each.tp} ends at {each.end}, before offset {start}")
        ends = {each.tp: each.end for each in infos}
        if self.since_us is not None:
            starts = stored.offsets_at(infos, self.since_us)
        if self.until_us is not None:
            ends = stored.offsets_at(infos, self.until_us)
        return [Range(each, max(starts[each.tp], each.earliest), ends[each.tp]) for each in infos]


def consume(
    topic: Topic,
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest records.")
    ] = False,
    offset: Offset = None,
    since: Since = None,
    until: Until = None,
    partition: Partitions = None,
    exit_at_end: ExitAtEnd = False,
    count: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End after N records.", show_default=False),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only records whose value this regular expression (RE2) is found in.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", help=_FORMAT_HELP, show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON_HELP)] = False,
    timeout_s: Timeout = 10.0,
    uris: Uris = "",
    **options: Any,
) -> None:
    """Print the value of each record on a line, until Ctrl-C or --count.

    With --exit-at-end or --until it ends by itself: it reads what stores have in bulk, partition
    after partition, from the beginning if nothing else is said.
    """
    opens = options.get("envelope") != NONE
    text = partial(_text(form, as_json), opens=opens)
    keeps = None if grep is None else partial(_kept, _checked(grep), opens=opens)
    if from_beginning:
        if offset is not None or since is not None:
            why = "is given with --offset or --since"
            raise typer.BadParameter(why, param_hint="'--from-beginning'")
        offset = EARLIEST
    wanted = Wanted.of(offset, since, until, partition, ends=exit_at_end, default=LATEST)
    if uris and not wanted.ends:
        why = "is for --exit-at-end and --until: what comes later comes through a tower"
        raise typer.BadParameter(why, param_hint="'--stores'")
    check_argument("topic", topic, check_topic)  # at once, not when a tower is found
    if wanted.ends:
        with open_stored_records(timeout_s, uris, unwatched(options)) as stored:
            ranges = wanted.ranges(stored, topic)
            total = sum(each.count for each in ranges)
            with output.progress(total, "records", is_shown=not output.is_screen()) as advance:
                batches = (batch for each in ranges for batch in stored.read(each))
                for records in _first(count, _sifted(batches, keeps, advance)):
                    output.write(text(records))
        return
    _follow(topic, wanted, options, timeout_s, count, keeps, text)


Keeps = Callable[[RecordBatch], "Records"]


def _follow(
    topic: str,
    wanted: Wanted,
    options: Mapping[str, Any],
    timeout_s: float,
    count: int | None,
    keeps: Keeps | None,
    text: Callable[[Records], bytes],
) -> None:
    from dafka_core import Consumer

    start: Any = wanted.start.base
    if not wanted.is_simple:
        with open_stored_records(timeout_s, "", options) as stored:
            ranges = wanted.ranges(stored, topic)
            others = [] if not wanted.partitions else stored.of_topic(topic)
        start = {each.partition: each.end for each in others}
        start = {topic: start | {each.info.partition: each.start for each in ranges}}
    with (
        watching("consumer", options) as watch,
        Consumer(start=start, **of_table(ConsumerOptions, options)) as consumer,
    ):
        watch.add(consumer)
        consumer.subscribe(topic)
        Thread(target=_say_if_missing, args=(consumer, topic), daemon=True).start()
        with suppress(Stopped) if count is None else nullcontext():  # its end, unless it lacks some
            said = start if isinstance(start, str) else "the offsets asked for"
            output.say(f"topic {escape(topic)}, from {said}")
            batches = (
                each
                for each in consumer.batches()
                if not wanted.partitions or each.tp.partition in wanted.partitions
            )
            for records in _first(count, _sifted(batches, keeps)):
                output.write(text(records))


def parsed(flag: str, parse: Callable[[str], Any], text: str | None) -> Any:
    """What a flag's text says, None without one; raises BadParameter with the sentence of why."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{escape(text)!r}: {error}", param_hint=f"'{flag}'") from None


def _text(form: str | None, as_json: bool) -> Callable[..., bytes]:
    if form is None:
        return json_lines if as_json else lines
    if as_json:
        raise typer.BadParameter("is given with --json", param_hint="'--format'")
    made: Callable[..., bytes] = parsed("--format", formatted, form)
    return made


def _checked(pattern: str) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([b""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise ConfigError("grep", pattern, str(error)) from None
    return pattern


def _kept(pattern: str, batch: RecordBatch, *, opens: bool) -> Records:
    import pyarrow.compute as pc

    from dafka_core.model.envelope_columns import VALUE, opened_columns
    from dafka_core.model.where import kept_by

    opened = opened_columns(batch.values, [VALUE]) if opens else None
    values = batch.values.to_arrow() if opened is None else opened[VALUE]
    return kept_by(batch, pc.match_substring_regex(values, pattern=pattern))


def _sifted(
    batches: Iterable[RecordBatch],
    keeps: Keeps | None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Records]:
    for batch in batches:
        records = batch if keeps is None else keeps(batch)
        if records.count:
            yield records
        advance(batch.count)


def _first(count: int | None, batches: Iterator[Records]) -> Iterator[Records]:
    if count is None:
        yield from batches
        return
    for batch in batches:
        if batch.count >= count:
            yield _begin_of(batch, count)
            return
        yield batch
        count -= batch.count


def _begin_of(batch: Records, count: int) -> Records:
    if isinstance(batch, RecordBatch):
        return batch.between(batch.offset, batch.offset + count)
    times = None if batch.times is None else times_between(batch.times, 0, count)
    values = batch.values[:count]
    return replace(batch, offsets=batch.offsets[:count], values=values, times=times)


def _say_if_missing(consumer: Consumer, topic: str) -> None:
    """Says that no store has the topic, beside the consuming: it may be misspelt, or come later."""
    is_said = False
    with suppress(ClosedError, NodeFailedError):  # the consumer has ended
        while True:
            try:
                if not consumer.held_topics(topic, timeout_s=LOOK_S):
                    near = what_there_is(topic, consumer.held_topics(timeout_s=LOOK_S), "topics")
                    output.say(f"no store has topic {quoted(topic)} ({near}); waiting for it")
                return
            except NoStoreError as error:
                if not is_said:
                    output.say(f"{error}; waiting for one")
                is_said = True
