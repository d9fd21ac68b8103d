"""``dafka produce``: records by hand, and from shell pipes."""

from __future__ import annotations

import os
from contextlib import suppress
from math import inf
from typing import Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import Topic, WithResult, of_table, parse_address, watching
from dafka_core.cli.process import Stopped
from dafka_core.cli.produce_input import (
    CSV,
    FILE,
    INPUTS,
    LINES,
    STANDARD,
    Published,
    decoder,
    opened,
)
from dafka_core.config.node_options import ProducerOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.envelope import AUTO, Header
from dafka_core.model.names import escape, octets_of
from dafka_core.model.suggestions import what_there_is

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...", show_default=False, help="Standard input without any, and for -."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="UUID",
        help="The partition to go on with, 32 hexadecimal digits. Without it, a new one.",
        callback=parse_address,
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The key of all records.", show_default=False),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A header of all records; may be given several times.",
        show_default=False,
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="|".join(INPUTS),
        help="What is a record: a line; an object on a line, as consume --json prints them; a "
        "row of CSV, of which the first has names (columns value and key, or all of them as an "
        "object); a whole file.",
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        metavar="TEXT",
        help="What is before it in a line is the record's key.",
        show_default=False,
    ),
]
KeyColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The column of CSV with the keys.", show_default=False),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="N", min=0.001, help="Publish N records a second at most.", show_default=False
    ),
]


def produce(
    topic: Topic,
    files: Files = None,
    *,
    address: Address = None,
    key: Key = None,
    header: Headers = None,
    kind: Kind = LINES,
    separator: Separator = None,
    key_column: KeyColumn = None,
    rate: Rate = None,
    as_json: WithResult = False,
    **options: Any,
) -> None:
    """Publish a record for each line of files, or of standard input; end when all are acknowledged.

    A line's bytes are kept as they are, without the newline; with a key or headers they are the
    value of an envelope.
    """
    from dafka_core import Producer
    from dafka_core.nodes.published import content_of

    parts = None if key is None else octets_of(key), tuple(map(parse_header, header or ()))
    # What cannot be done fails at once.
    content_of(b"", *parts, options.get("envelope", AUTO))
    _check_kind(kind, separator, key_column)
    decoders = decoder(kind, *parts, octets_of(separator or ""), key_column)
    with (
        opened(files or [STANDARD]) as sources,
        watching("producer", options) as watch,
        Producer(topic, address=address, **of_table(ProducerOptions, options)) as producer,
    ):
        watch.add(producer)
        first = producer.next_offset
        output.say(f"topic {escape(topic)}, partition {producer.address}, from offset {first}")
        published = Published(producer, rate)
        is_typed = STANDARD in (files or [STANDARD]) and os.isatty(0)
        try:
            with output.progress(None, "records", is_shown=not is_typed) as published.advance:
                refusal = published.all_of(sources, None if kind == FILE else decoders, *parts)
            output.say("end of input; waiting for acknowledgements")
            producer.close()
        except Stopped as stopped:
            with suppress(DafkaError):
                producer.end(started_s=-inf)  # it waits no longer
            done = producer.acknowledged - first
            if done < published.count or stopped.again:
                output.complain(
                    f"stopped before all of {published.count} records were acknowledged: {done} "
                    "are, the others may not be stored"
                )
                raise
        facts = {"topic": escape(topic), "partition": producer.address, "first_offset": first}
        said = f"{published.count} records acknowledged"
        output.done(said, as_json=as_json, **facts, records=published.count)
        if refusal is not None:
            raise refusal


def _check_kind(kind: str, separator: str | None, key_column: str | None) -> None:
    for flag, given, of in (
        ("--key-separator", separator, LINES),
        ("--key-column", key_column, CSV),
    ):
        if given is not None and kind != of:
            raise typer.BadParameter(f"is for --input {of}", param_hint=f"'{flag}'")
    if kind not in INPUTS:
        near = what_there_is(kind, INPUTS, "kinds")
        raise typer.BadParameter(f"{escape(kind)!r} is none; {near}", param_hint="'--input'")


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
