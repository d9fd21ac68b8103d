"""``dafka consume``: records on the screen, and in shell pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dafka_core.cli import output, record_text, stored_records
from dafka_core.cli.flags import Topic, of_table, unwatched, watching
from dafka_core.cli.list_commands import Timeout, Uris
from dafka_core.cli.positions import EARLIEST, LATEST, Position, parse_time_us
from dafka_core.cli.process import Stopped
from dafka_core.cli.stored_records import Range, StoredRecords
from dafka_core.config.node_options import ConsumerOptions
from dafka_core.config.options import check_argument
from dafka_core.errors import ClosedError, ConfigError, NodeFailedError, NoStoreError
from dafka_core.model.envelope import NONE
from dafka_core.model.name_limits import check_topic
from dafka_core.model.names import escape, quoted, unescape
from dafka_core.model.records import RecordBatch, times_between
from dafka_core.model.suggestions import what_there_is

if TYPE_CHECKING:
    from dafka_core import Consumer
    from dafka_core.model.matched_records import Records

LOOK_S: Final = 10.0
"""How long to look for a store that has a topic."""

_JSON_HELP: Final = (
    "Print objects with topic, partition, offset, timestamp and value, and with key and headers "
    "where there are some. A value that is not UTF-8 is null, and value_base64 has it."
)
_FORMAT_HELP: Final = (
    "What to print of each record: "
    + ", ".join(f"%{letter} {what}" for letter, (what, _) in record_text.LETTERS.items())
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
        found = parsed("--offset", Position.parse, offset)
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
            and bool(self.start.base)
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
        with stored_records.opened(timeout_s, uris, unwatched(options)) as stored:
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
        with stored_records.opened(timeout_s, "", options) as stored:
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
                if not wanted.partitions or each.partition in wanted.partitions
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
        return record_text.json_lines if as_json else record_text.lines
    if as_json:
        raise typer.BadParameter("is given with --json", param_hint="'--format'")
    made: Callable[..., bytes] = parsed("--format", record_text.formatted, form)
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
    from dafka_core.model.matched_records import kept_by

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
