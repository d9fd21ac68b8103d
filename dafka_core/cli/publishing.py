"""What ``dafka produce`` reads, on its way to a producer."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from dafka_core.cli import output, streams
from dafka_core.cli.process import Stopped, handle_stop_signals, held_signals
from dafka_core.cli.produce_input import BadInputError, Columns, Decoder, PartlyError
from dafka_core.envelope import Headers
from dafka_core.errors import ConfigError, DafkaError, RecordTooLargeError
from dafka_core.names import quoted

if TYPE_CHECKING:
    from dafka_core import Producer

INPUT_CHUNK_BYTES: Final = 1 << 20
"""The most that is read at once; whole lines are published as soon as they have come."""

STANDARD: Final = "-"
"""Standard input, among files."""

_TURNS_PER_S: Final = 20
"""How often records are published at a given rate, where it lets so many at a time."""

LetIn = Callable[[Callable[[], None]], None]
"""Waits, and lets signals come."""


@dataclass(eq=False)
class LineTooLongError(DafkaError):
    """A line of the input that cannot be a record; the lines before it are published.

    ``node`` takes no more than ``limit_bytes``.
    """

    sentence = (
        "line {number} of {source} is longer than the {limit_bytes} bytes that {node} takes at "
        "most (its option max_record_bytes); it and what follows it are not published"
    )
    source: str
    number: int
    limit_bytes: int
    node: str


class Source(NamedTuple):
    """A file, or standard input: its name for people, and its descriptor."""

    name: str
    number: int

    def chunks(self, let_in: LetIn) -> Iterator[bytes]:
        """Its octets, as they come."""
        if self.number == 0:
            read = partial(
                streams.read_input, INPUT_CHUNK_BYTES, lambda: let_in(streams.wait_for_input)
            )
        else:
            read = partial(self._read, let_in)
        while chunk := read():
            yield chunk

    def _read(self, let_in: LetIn) -> bytes:
        let_in(self._wait)
        return os.read(self.number, INPUT_CHUNK_BYTES)

    def _wait(self) -> None:
        select.select([self.number], [], [])


@contextmanager
def opened(names: Sequence[str]) -> Iterator[list[Source]]:
    """Files to read, all of them open.

    Raises:
        ConfigError: one of them cannot be read.
        StreamError: standard input cannot be.
    """
    with ExitStack() as stack:
        sources = []
        for name in names:
            if name == STANDARD:
                streams.read_input(0)
                sources.append(Source("the input", 0))
                continue
            try:
                number = os.open(name, os.O_RDONLY)
                stack.callback(os.close, number)
                os.read(number, 0)  # fails for a directory
            except OSError as error:
                raise ConfigError("file", name, f"cannot be read: {error.strerror}") from None
            sources.append(Source(quoted(name), number))
        yield sources


class Published:
    """The records of some sources, as they are published.

    Args:
        producer: takes them.
        rate: how many a second at most; None for as many as it takes.
    """

    def __init__(self, producer: Producer, rate: float | None = None) -> None:
        self.count = 0
        """How many were read, and can be published."""
        self.advance: Callable[[int], None] = lambda _: None
        """Is told of those that are published."""
        self._producer = producer
        self._rate = rate
        self._started_s = time.monotonic()
        self._waiting = 0
        self._let_in: LetIn = lambda wait: None

    def all_of(
        self,
        sources: Sequence[Source],
        decoders: Callable[[], Decoder] | None,
        key: bytes | None,
        headers: Headers,
    ) -> DafkaError | None:
        """Publishes sources to their end, to Ctrl-C, or to what cannot be read or published.

        Without ``decoders`` each of them is one record, with this key and headers.  Returns what
        cannot be published.  A signal comes while it waits for input, or for its rate, never
        between reading a line and publishing it.
        """
        try:
            with held_signals() as signals:
                self._let_in = signals.let_in
                for source in sources:
                    if decoders is None:
                        self._publish_file(source, key, headers)
                    else:
                        self._publish_lines(source, decoders())
        except (RecordTooLargeError, LineTooLongError, BadInputError, streams.StreamError) as error:
            return error
        except Stopped as stopped:
            if stopped.again:
                raise
            if self._waiting:
                output.say(f"{self._waiting} records that were read are not published")
            # A second Ctrl-C does not wait, and says what is lost.
            handle_stop_signals({signal.SIGINT})
        return None

    def _publish_file(self, source: Source, key: bytes | None, headers: Headers) -> None:
        pieces, size = [], 0
        for chunk in source.chunks(self._let_in):
            pieces.append(chunk)
            size += len(chunk)
            limit_bytes, node = self._producer.limit
            if size > limit_bytes:
                raise LineTooLongError(source.name, 1, limit_bytes, node)
        keys = None if key is None else [key]
        self._publish(Columns([b"".join(pieces)], keys, [headers] if headers else None))

    def _publish_lines(self, source: Source, decoder: Decoder) -> None:
        with closing(self.read(source)) as found:
            for lines in found:
                try:
                    columns = decoder.decode(lines)
                except PartlyError as error:
                    self._publish(error.before)
                    raise BadInputError(source.name, decoder.line, str(error)) from None
                self._publish(columns)
        try:
            decoder.end()
        except ValueError as error:
            raise BadInputError(source.name, decoder.line, str(error)) from None

    def _publish(self, columns: Columns) -> None:
        count = len(columns.values)
        if self._rate is None:
            self._publish_at_once(columns)
            return
        step = max(int(self._rate / _TURNS_PER_S), 1)
        for start in range(0, count, step):
            self._waiting = count - start
            due_s = self._started_s + self.count / self._rate
            self._let_in(partial(time.sleep, max(due_s - time.monotonic(), 0.0)))
            self._publish_at_once(columns.part(start, start + step))
        self._waiting = 0

    def _publish_at_once(self, columns: Columns) -> None:
        if not columns.values:
            return
        self.count += len(columns.values)
        try:
            self._producer.publish_many(*columns)
            self.advance(len(columns.values))
        except RecordTooLargeError as error:
            # A store has come just now: too late for a line that is published, or for one of these.
            self.count -= len(columns.values)
            self._publish_at_once(
                columns.part(0, max(error.offset - self._producer.next_offset, 0))
            )
            raise

    def read(self, source: Source) -> Generator[list[bytes], None, None]:
        """The lines, without their newlines, as many at a time as have come.

        Raises:
            LineTooLongError: a line is too long; it is not read to its end.
        """
        pieces: list[bytes] = []
        number = 1
        for chunk in source.chunks(self._let_in):
            limit_bytes, node = self._producer.limit
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
                    raise LineTooLongError(source.name, number, limit_bytes, node)
            pieces.append(rest)
            if sum(map(len, pieces)) > limit_bytes:
                raise LineTooLongError(source.name, number, limit_bytes, node)
        if last := b"".join(pieces):
            yield [last]
