"""``dafka checkpoint verify``: proves that stores have what a query has written."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dafka_core.cli import output, store_clients
from dafka_core.cli.checkpoint_commands import Path
from dafka_core.cli.list_commands import AsJson, Timeout, Uris
from dafka_core.errors import DafkaError

if TYPE_CHECKING:
    from dafka_core.queries.checkpoint import Checkpoint
    from dafka_core.queries.verification import Recompute, VerifiedBatch

_COLUMNS = ("batch", "state", "rows", "source", "recomputed", "why")

PassThrough = Annotated[
    bool,
    typer.Option(
        "--pass-through", help="The query writes what it reads: compare with its source, too."
    ),
]
Query = Annotated[
    str,
    typer.Option(
        "--query",
        metavar="MODULE:FUNCTION",
        help="What makes the query's rows of its source's, both DataFrames: Spark makes them anew, "
        "and they are compared, too.",
        show_default=False,
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--source-option", metavar="NAME=VALUE", help="For --query, of its source."),
]
SinkOption = Annotated[
    list[str] | None,
    typer.Option("--sink-option", metavar="NAME=VALUE", help="For --query, of its sink."),
]
FromBatch = Annotated[
    int, typer.Option("--from-batch", metavar="N", min=0, help="The first batch to read.")
]


def verify(
    path: Path,
    *,
    pass_through: PassThrough = False,
    query: Query = "",
    source_option: SourceOption = None,
    sink_option: SinkOption = None,
    from_batch: FromBatch = 0,
    as_json: AsJson = False,
    timeout_s: Timeout = 10.0,
    uris: Uris = "",
    **options: Any,
) -> None:
    """Prove that stores have what a query has written, batch by batch, or say where not.

    The query's sink has format dafka and option audit. Nothing is changed.
    """
    from dafka_core.queries.checkpoint import Checkpoint
    from dafka_core.queries.verification import passed_through, verified

    found = Checkpoint.read(path)
    if pass_through and query:
        raise typer.BadParameter("is given with --pass-through", param_hint="'--query'")
    recompute = None
    if query:
        at = {name: str(each) for name, each in options.items() if name in ("tower", "host")}
        source = at | ({"stores": uris} if uris else {}) | _named(source_option)
        recompute = _made_by(query, found, source, _named(sink_option))
    with store_clients.opened(timeout_s, uris, options) as clients:
        if pass_through:
            recompute = passed_through(clients, found, timeout_s=timeout_s)
        rows = []
        with output.progress(None, "batches") as advance:
            for row in verified(
                clients, found, recompute, from_batch=from_batch, timeout_s=timeout_s
            ):
                rows.append(row)
                advance(1)
    output.table(_COLUMNS, rows, as_json=as_json)
    output.say(f"query {found.query_id}: {_told(found, rows, from_batch)}")


def _told(found: Checkpoint, rows: Sequence[VerifiedBatch], from_batch: int) -> str:
    """What is proved; raises ``DafkaError`` where something is wrong, or nothing was found."""
    from dafka_core.queries.verification import TRIMMED, WRONG

    if not rows:
        raise DafkaError(f"query {found.query_id} has written no batch from {from_batch} on")
    if rows[-1].state == WRONG:
        batch, *_, why = rows[-1]
        raise DafkaError(f"batch {batch} of query {found.query_id} is wrong: {why}")
    trimmed = sum(each.state == TRIMMED for each in rows)
    total = sum(each.rows for each in rows if each.state != TRIMMED)
    text = f"{total} rows of {len(rows) - trimmed} batches are as they were written"
    return f"{text}, {trimmed} batches are trimmed" if trimmed else text


def _made_by(
    query: str, found: Checkpoint, source: Mapping[str, str], sink: Mapping[str, str]
) -> Recompute:
    sys.path.insert(0, str(pathlib.Path.cwd()))
    module, _, name = query.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        why = f"must be MODULE:FUNCTION, where Python finds it from here: {error}"
        raise typer.BadParameter(why, param_hint="'--query'") from None
    try:
        spark = importlib.import_module("pyspark.sql").SparkSession.builder.getOrCreate()
        made: Recompute = importlib.import_module("dafka_spark.recompute").recomputed(
            spark, found, function, source, sink
        )
    except ImportError as error:
        why = f"Spark makes the rows anew, and cannot be imported: {error}"
        raise DafkaError(why) from None
    return made


def _named(given: Sequence[str] | None) -> dict[str, str]:
    for each in given or ():
        if "=" not in each:
            raise typer.BadParameter(f"must be NAME=VALUE, and is {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given or ())}
