"""``dafka produce`` and ``dafka consume``: records by hand, and in shell pipes."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from dafka_core.cli import output, streams
from dafka_core.cli.flags import Topic, parse_address
from dafka_core.cli.process import Stopped, handle_stop_signals, held_signals
from dafka_core.envelope import AUTO, NONE, Header, Headers
from dafka_core.errors import (
    ClosedError,
    ConfigError,
    DafkaError,
    NodeFailedError,
    NoStoreError,
    RecordTooLargeError,
)
from dafka_core.names import escape, octets_of, quoted
from dafka_core.near_names import what_there_is
from dafka_core.opened_records import opened_lists, opened_records
from dafka_core.options import check_argument
from dafka_core.protocol.validation import check_topic
from dafka_core.records import RecordBatch

if TYPE_CHECKING:
    from dafka_core import Consumer, Producer

LOOK_S: Final = 10.0
"""How long to look for a store that has a topic."""

INPUT_CHUNK_BYTES: Final = 1 << 20
"""The most that is read at once; whole lines are published as soon as they have come."""


def produce(
    topic: Topic,
    *,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="UUID",
            help="The partition to go on with, 32 hexadecimal digits. Without it, a new one.",
            callback=parse_address,
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The key of all records.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A header of all records; may be given several times.",
            show_default=False,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Publish a record for each line of standard input; end when all are acknowledged.

    A line's bytes are kept as they are, without the newline; with a key or headers they are the
    value of an envelope.
    """
    from dafka_core import Producer
    from dafka_core.nodes.published import content_of

    parts = None if key is None else octets_of(key), tuple(map(parse_header, header or ()))
    content_of(b"", *parts, options.get("envelope", AUTO))  # fails at once if they cannot be
    streams.read_input(0)  # fails at once if nothing can be read
    with Producer(topic, address=address, **options) as producer:
        first = producer.next_offset
        output.say(f"topic {escape(topic)}, partition {producer.address}, from offset {first}")
        lines = InputLines(producer, *parts)
        try:
            refusal = lines.publish()
            output.say("end of input; waiting for acknowledgements")
            producer.close()
        except Stopped as stopped:
            with suppress(DafkaError):
                producer.end(started_s=-inf)  # it waits no longer
            done = producer.acknowledged - first
            if done < lines.count or stopped.again:
                output.complain(
                    f"stopped before all of {lines.count} records were acknowledged: {done} are, "
                    "the others may not be stored"
                )
                raise
        output.say(f"{lines.count} records acknowledged")
        if refusal is not None:
            raise refusal


@dataclass(eq=False)
class LineTooLongError(DafkaError):
    """A line of the input that cannot be a record; the lines before it are published.

    ``node`` takes no more than ``limit_bytes``.
    """

    sentence = (
        "line {number} of the input is longer than the {limit_bytes} bytes that {node} takes at "
        "most (its option max_record_bytes); it and what follows it are not published"
    )
    number: int
    limit_bytes: int
    node: str


class InputLines:
    """The lines of standard input, on their way to a producer."""

    def __init__(self, producer: Producer, key: bytes | None, headers: Headers) -> None:
        self.count = 0
        """How many were read, and can be published."""
        self._producer = producer
        self._key = key
        self._headers = headers
        self._first = producer.next_offset

    def publish(self) -> DafkaError | None:
        """Publishes lines to the end, to Ctrl-C, or to what cannot be read or published.

        Returns what that is.  A signal comes while it waits for input, never between reading a line
        and publishing it.
        """
        try:
            with held_signals() as signals, closing(self.read(signals.let_in)) as found:
                for lines in found:
                    self._publish(lines)
        except RecordTooLargeError as error:
            # A store has come just now: too late for a line that is published, or for one of these.
            fitting = lines[: max(error.offset - self._producer.next_offset, 0)]
            if fitting:
                self._publish(fitting)
            self.count = self._producer.next_offset - self._first
            return error
        except (LineTooLongError, streams.StreamError) as error:
            return error
        except Stopped as stopped:
            if stopped.again:
                raise
            # A second Ctrl-C does not wait, and says what is lost.
            handle_stop_signals({signal.SIGINT})
        return None

    def _publish(self, lines: list[bytes]) -> None:
        keys = None if self._key is None else [self._key] * len(lines)
        headers = [self._headers] * len(lines) if self._headers else None
        self._producer.publish_many(lines, keys, headers)

    def read(
        self, let_in: Callable[[Callable[[], None]], None]
    ) -> Generator[list[bytes], None, None]:
        """The lines, without their newlines, as many at a time as have come.

        Raises:
            LineTooLongError: a line is too long; it is not read to its end.
        """
        pieces: list[bytes] = []
        while chunk := streams.read_input(
            INPUT_CHUNK_BYTES, lambda: let_in(streams.wait_for_input)
        ):
            limit_bytes, node = self._producer.limit
            head, newline, rest = chunk.rpartition(b"\n")
            if newline:
                lines = head.split(b"\n")
                lines[0] = b"".join([*pieces, lines[0]])
                pieces = []
                fitting = lines
                if max(map(len, lines)) > limit_bytes:
                    fitting = lines[: [len(line) > limit_bytes for line in lines].index(True)]
                self.count += len(fitting)
                yield fitting
                if len(fitting) < len(lines):
                    raise LineTooLongError(self.count + 1, limit_bytes, node)
            pieces.append(rest)
            if sum(map(len, pieces)) > limit_bytes:
                raise LineTooLongError(self.count + 1, limit_bytes, node)
        if last := b"".join(pieces):
            self.count += 1
            yield [last]


def consume(
    topic: Topic,
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest records.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End after N records.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print objects with topic, partition, offset, timestamp and value, and with key "
            "and headers where there are some. A value that is not UTF-8 is null, and value_base64 "
            "has it.",
        ),
    ] = False,
    **options: Any,
) -> None:
    """Print the value of each record on a line, until Ctrl-C or --count."""
    from dafka_core import Consumer

    start: Literal["earliest", "latest"] = "earliest" if from_beginning else "latest"
    form = partial(json_lines if as_json else _lines, opens=options.get("envelope") != NONE)
    check_argument("topic", topic, check_topic)  # at once, not when a tower is found
    with Consumer(start=start, **options) as consumer:
        consumer.subscribe(topic)
        Thread(target=_say_if_missing, args=(consumer, topic), daemon=True).start()
        with suppress(Stopped) if count is None else nullcontext():  # its end, unless it lacks some
            output.say(f"topic {escape(topic)}, from {start}")
            for batch in _first(count, consumer.batches()):
                output.write(form(batch))


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


def _first(count: int | None, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    if count is None:
        yield from batches
        return
    for batch in batches:
        if batch.count >= count:
            yield batch.between(batch.offset, batch.offset + count)
            return
        yield batch
        count -= batch.count


def _lines(batch: RecordBatch, *, opens: bool) -> bytes:
    values, *_ = opened_lists(batch.values, opens=opens)
    return b"\n".join([*(value or b"" for value in values), b""])


def parse_header(text: str) -> Header:
    """A header from ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("header", text, "must be NAME=VALUE")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError("header", escape(text), "has a name that is not UTF-8") from None
    return name, octets_of(value)


def json_lines(batch: RecordBatch, *, opens: bool = True) -> bytes:
    """Objects with what is known of each record, one on a line."""
    lines = []
    place = {"topic": escape(batch.topic), "partition": escape(batch.partition)}
    for record in opened_records(batch, opens=opens):
        fields: dict[str, Any] = {**place, "offset": record.offset}
        if record.timestamp is not None:
            fields["timestamp"] = record.timestamp.isoformat()
        if record.key is not None:
            fields |= _shown("key", record.key)
        fields |= _shown("value", record.value)
        if record.headers:
            fields["headers"] = [{"name": n, **_shown("value", of)} for n, of in record.headers]
        lines.append(json.dumps(fields) + "\n")
    return "".join(lines).encode()


def _shown(name: str, octets: bytes | None) -> dict[str, str | None]:
    """Text; or null, and the octets in base64 where they are no text."""
    if octets is None:
        return {name: None}
    try:
        return {name: octets.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(octets).decode()}
