"""``dafka produce`` and ``dafka consume``: records by hand, and in shell pipes."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from dafka_core.cli import output, streams
from dafka_core.cli.flags import Topic
from dafka_core.cli.process import Stopped, handle_stop_signals
from dafka_core.errors import DafkaError
from dafka_core.node_options import ProducerOptions
from dafka_core.records import RecordBatch

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
            show_default=False,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Publish a record for each line of standard input; end when all are acknowledged.

    A line's bytes are kept as they are, without the newline.
    """
    from dafka_core import Producer

    limit_bytes = ProducerOptions.build(options).max_record_bytes
    streams.read_input(0)  # fails at once if nothing can be read
    with Producer(topic, address=address, **options) as producer:
        first = producer.next_offset
        output.say(f"topic {topic}, partition {producer.address}, from offset {first}")
        try:
            refusal = publish_input(producer, limit_bytes)
            output.say("end of input; waiting for acknowledgements")
            producer.close()
        except Stopped:
            with suppress(DafkaError):
                producer.end(started_s=-inf)  # it waits no longer
            count, done = producer.next_offset - first, producer.acknowledged - first
            if done < count:
                output.complain(
                    f"stopped before all of {count} records were acknowledged: {done} are, the "
                    "others may not be stored"
                )
                raise
        output.say(f"{producer.next_offset - first} records acknowledged")
        if refusal is not None:
            raise refusal


def publish_input(producer: Producer, limit_bytes: int) -> DafkaError | None:
    """Publishes standard input to its end, to Ctrl-C, or to what cannot be read or published.

    Returns what that is.
    """
    try:
        for lines in lines_of_input(limit_bytes):
            producer.publish_many(lines)
    except (LineTooLongError, streams.StreamError) as error:
        return error
    except Stopped:
        handle_stop_signals({signal.SIGINT})  # a second Ctrl-C does not wait, and says what is lost
    return None


@dataclass(eq=False)
class LineTooLongError(DafkaError):
    """A line of the input that cannot be a record; the lines before it are published."""

    sentence = (
        "line {number} of the input is longer than max_record_bytes = {limit_bytes}; it and what "
        "follows it are not published"
    )
    number: int
    limit_bytes: int


def lines_of_input(limit_bytes: int) -> Iterator[list[bytes]]:
    """The lines of standard input, without their newlines, as many at a time as have come.

    Raises:
        LineTooLongError: a line is longer than ``limit_bytes``; it is not read to its end.
    """
    count = 0
    pieces: list[bytes] = []
    for chunk in iter(lambda: streams.read_input(INPUT_CHUNK_BYTES), b""):
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            lines = b"".join([*pieces, head]).split(b"\n")
            if max(map(len, lines)) > limit_bytes:
                fitting = [*takewhile(lambda line: len(line) <= limit_bytes, lines)]
                yield fitting
                raise LineTooLongError(count + len(fitting) + 1, limit_bytes)
            yield lines
            count += len(lines)
            pieces = []
        pieces.append(rest)
        if sum(map(len, pieces)) > limit_bytes:
            raise LineTooLongError(count + 1, limit_bytes)
    last = b"".join(pieces)
    if last:
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
            help="Print objects with topic, partition, offset and value. A value that is not "
            "UTF-8 is null, and value_base64 has it.",
        ),
    ] = False,
    **options: Any,
) -> None:
    """Print the value of each record on a line, until Ctrl-C or --count."""
    from dafka_core import Consumer

    start: Literal["earliest", "latest"] = "earliest" if from_beginning else "latest"
    form = json_lines if as_json else _lines
    with Consumer(start=start, **options) as consumer:
        consumer.subscribe(topic)
        with suppress(Stopped) if count is None else nullcontext():  # its end, unless it lacks some
            output.say(f"topic {topic}, from {start}")
            for batch in _first(count, consumer.batches()):
                output.write(form(batch))


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


def _lines(batch: RecordBatch) -> bytes:
    return b"\n".join([*batch.values, b""])


def json_lines(batch: RecordBatch) -> bytes:
    """Objects with topic, partition, offset and value, one on a line."""
    lines = []
    for record in batch.records():
        fields: dict[str, Any] = record._asdict()
        try:
            fields["value"] = record.value.decode()
        except UnicodeDecodeError:
            fields["value"] = None
            fields["value_base64"] = base64.b64encode(record.value).decode()
        lines.append(json.dumps(fields) + "\n")
    return "".join(lines).encode()
