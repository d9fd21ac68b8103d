"""``dafka produce``: records by hand, and from shell pipes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dafka_core.cli import output, streams
from dafka_core.cli.flags import Topic, parse_address
from dafka_core.cli.process import Stopped, handle_stop_signals, held_signals
from dafka_core.envelope import AUTO, Header, Headers
from dafka_core.errors import (
    ConfigError,
    DafkaError,
    RecordTooLargeError,
)
from dafka_core.names import escape, octets_of

if TYPE_CHECKING:
    from dafka_core import Producer

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
