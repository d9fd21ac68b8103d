"""``dafka checkpoint``: show, change and verify checkpoints of streaming queries."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from dafka_core.cli import flags, output
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.errors import DafkaError
from dafka_core.queries import checkpoint as checkpoints
from dafka_core.queries.checkpoint import Batch, Checkpoint

if TYPE_CHECKING:
    from dafka_core.audit import Recompute, VerifiedBatch


path_argument: Final = flags.argument("path", metavar="PATH")
target_argument: Final = flags.argument("to", metavar="TO")
batch_number_option: Final = flags.option(
    "--batch", type=click.IntRange(0), metavar="N", help="The batch's number."
)

stopped_option: Final = flags.option(
    "--stopped",
    is_flag=True,
    help="The query is stopped, although its checkpoint changed recently.",
)


def checkpoint() -> None:
    """Show, copy, change or verify the checkpoint of one of Spark's streaming queries."""


@path_argument
@batch_number_option
@flags.json_option
def show(path: str, *, batch: int | None) -> None:
    """List a checkpoint's batches, or the offset ranges of one batch.

    A batch is committed or unfinished. A query that starts repeats an unfinished batch with the
    same offsets.
    """
    found = Checkpoint.read(path)
    rows: list[tuple[Any, ...]]
    columns: tuple[str, ...]
    if batch is None:
        columns = ("batch", "state", "planned", "partitions", "records")
        rows = [_row(found, found.batch(each)) for each in found.planned]
    else:
        columns = ("batch", "state", "source", "topic", "partition", "start", "end")
        state = _state(found.batch(batch))
        rows = [(batch, state, source, *each[:4]) for source, each in found.ranges(batch)]
    output.info(_text(found))
    output.table(columns, rows)


@path_argument
@flags.argument(
    "other", required=False, metavar="[OTHER]", help="Another checkpoint; default: PATH."
)
@batch_number_option
@flags.option("--other-batch", type=click.IntRange(0), metavar="N", help="A batch of OTHER.")
@flags.json_option
def diff(path: str, other: str | None, *, batch: int | None, other_batch: int | None) -> None:
    """List the partitions whose end offsets differ between two checkpoints or two batches.

    By default it compares the newest batches of two checkpoints, or the last two batches of one.
    """
    one = Checkpoint.read(path)
    two = one if other is None else Checkpoint.read(other)
    if other is None and batch is None and len(one.planned) > 1:
        batch = one.planned[-2]
    first, second = _ends(one, batch), _ends(two, other_batch)
    if other is not None:
        same = "the same query" if one.query_id == two.query_id else "two queries"
        output.info(f"{same}: {one.query_id} and {two.query_id}")
    rows = []
    for key in sorted(first.keys() | second.keys()):
        a, b = first.get(key), second.get(key)
        if a != b:
            rows.append((*key, a, b, None if a is None or b is None else b - a))
    if not rows:
        output.info("both end at the same offsets")
    output.table(("source", "topic", "partition", "a", "b", "difference"), rows)


@path_argument
@target_argument
@flags.result_option
def copy(path: str, to: str) -> None:
    """Copy a checkpoint unchanged, with the id of its query, as a backup or to move it.

    Run the query from only one of the two: a sink of format dafka refuses different rows under the
    same batch number. Use 'fork' for another query.
    """
    made = checkpoints.copied(Checkpoint.read(path), to)
    output.info(
        "run the query from only one of the two; for another query use 'dafka checkpoint fork'"
    )
    _done(made)


@path_argument
@target_argument
@flags.result_option
def fork(path: str, to: str) -> None:
    """Copy a checkpoint for another query, which continues from the same offsets.

    A sink of format dafka writes the fork's rows to new partitions. Write to another topic, or the
    topic contains the rows of both queries.
    """
    found = Checkpoint.read(path)
    made = checkpoints.copied(found, to, is_fork=True)
    what = f"from batch {made.next_batch} on, query {found.query_id} also writes these rows"
    output.info(f"{what}; write to another topic")
    _done(made)


@path_argument
@flags.option("--to-batch", type=click.IntRange(0), metavar="N", help="The last batch to keep.")
@flags.option(
    "--to-time",
    type=flags.TIME,
    metavar="TIME",
    help="Keep batches planned until then: 2026-11-23T18:00:00Z, or an age such as 15m.",
)
@stopped_option
@flags.result_option
def rewind(path: str, *, to_batch: int | None, to_time: int | None, stopped: bool) -> None:
    """Back up a checkpoint, then remove the batches after an earlier one.

    Rows that the query has written since are not removed. A sink of format dafka refuses different
    rows under the numbers of these batches: rewind a fork instead.
    """
    if (to_batch is None) == (to_time is None):
        raise click.BadParameter("or --to-time is required", param_hint="'--to-batch'")
    found = Checkpoint.read(path)
    if to_time is not None:
        to_batch = checkpoints.last_until(found, to_time / 1000)
    assert to_batch is not None
    last = found.last.number
    backup = checkpoints.rewind(found, to_batch, is_stopped=stopped)
    output.info(f"the batches up to {last} are in the backup, {backup}")
    output.info(
        "a sink of format dafka refuses different rows under the numbers of batches that it has "
        "written: for such a query rewind a fork, which writes to new partitions"
    )
    _done(Checkpoint.read(path), backup=str(backup))


@path_argument
@stopped_option
@flags.result_option
def reset(path: str, *, stopped: bool) -> None:
    """Reset a query: it restarts as a new query from its option startingOffsets.

    The checkpoint is moved to a backup. Rows that the query has written are not removed.
    """
    backup = checkpoints.reset(Checkpoint.read(path), is_stopped=stopped)
    text = f"{path} is empty: the query starts anew, with a new id. The backup is {backup}"
    output.done(text, checkpoint=str(path), backup=str(backup))


def _done(made: Checkpoint, **facts: Any) -> None:
    facts = {"checkpoint": str(made.path), "query": made.query_id, **facts}
    facts["next_batch"] = made.next_batch
    output.done(f"{made.path}: {_text(made)}", **facts)


def _text(found: Checkpoint) -> str:
    if not found.planned:
        return f"query {found.query_id}: no batch yet"
    batches = f"batches {found.planned[0]} to {found.planned[-1]}"
    if found.is_unfinished:
        then = f"batch {found.next_batch} is unfinished and will be repeated with the same offsets"
    else:
        then = f"the next batch is {found.next_batch}"
    return f"query {found.query_id}: {batches}; {then}"


def _state(batch: Batch) -> str:
    return "committed" if batch.is_committed else "unfinished"


def _row(found: Checkpoint, batch: Batch) -> tuple[Any, ...]:
    partitions = sum(len(end.positions) for end in batch.own_ends.values())
    records = None
    if found.before(batch.number) is not None:
        records = sum(each.end - each.start for _, each in found.ranges(batch.number))
    planned = None
    if batch.time_ms:
        planned = datetime.fromtimestamp(batch.time_ms / 1000, UTC).isoformat(timespec="seconds")
    return batch.number, _state(batch), planned, partitions, records


def _ends(found: Checkpoint, number: int | None) -> dict[tuple[str, str, str], int]:
    batch = found.last if number is None else found.batch(number)
    return {
        (source, *tp): position
        for source, end in batch.own_ends.items()
        for tp, position in end.positions.items()
    }


@path_argument
@flags.option(
    "--pass-through",
    is_flag=True,
    help="The query copies its source: compare its rows with the source.",
)
@flags.option(
    "--query",
    metavar="MODULE:FUNCTION",
    help="The function that derives the query's DataFrame from the source's: recompute the "
    "rows with Spark and compare them.",
)
@flags.option(
    "--source-option", multiple=True, metavar="NAME=VALUE", help="For --query: a source option."
)
@flags.option(
    "--sink-option", multiple=True, metavar="NAME=VALUE", help="For --query: a sink option."
)
@flags.option(
    "--from-batch", type=click.IntRange(0), default=0, metavar="N", help="The first batch to read."
)
@flags.option(
    "--partition",
    metavar="ADDRESS",
    help="The partition of the query's audit records, if several keys have written any.",
)
@flags.reads_stores
def verify(
    path: str,
    *,
    pass_through: bool,
    query: str | None,
    source_option: Sequence[str],
    sink_option: Sequence[str],
    from_batch: int,
    partition: str | None,
    finder: StoreFinder,
) -> None:
    """Verify that stores have the rows that a query wrote, or report the first wrong batch.

    The query's sink must have format dafka and option audit. Nothing is changed.
    """
    from dafka_core.audit import passed_through, verified

    found = Checkpoint.read(path)
    if pass_through and query:
        raise click.BadParameter("cannot be combined with --pass-through", param_hint="'--query'")
    recompute = None
    if query:
        cluster = {n: str(each) for n, each in finder.options.items() if n in ("tower", "host")}
        uris = {"stores": finder.uris} if finder.uris else {}
        source = cluster | uris | _named(source_option)
        recompute = _recompute_by(query, found, source, _named(sink_option))
    timeout_s = finder.timeout_s
    with finder.clients() as clients:
        if pass_through:
            recompute = passed_through(clients, found, timeout_s=timeout_s)
        rows = []
        with output.progress(None, "batches") as advance:
            for row in verified(
                clients,
                found,
                recompute,
                from_batch=from_batch,
                partition=partition or "",
                timeout_s=timeout_s,
            ):
                rows.append(row)
                advance(1)
    output.table(("batch", "state", "rows", "source", "recomputed", "why"), rows)
    output.info(f"query {found.query_id}: {_verification_text(found, rows, from_batch)}")


def _verification_text(found: Checkpoint, rows: Sequence[VerifiedBatch], from_batch: int) -> str:
    """Return a summary; raise DafkaError if a batch is wrong or missing."""
    from dafka_core.audit import PROVED, WRONG

    if not rows:
        raise DafkaError(f"query {found.query_id} has written no batch from {from_batch} on")
    if rows[-1].state == WRONG:
        batch, *_, why = rows[-1]
        raise DafkaError(f"batch {batch} of query {found.query_id} is wrong: {why}")
    states = Counter(each.state for each in rows)
    total = sum(each.rows for each in rows if each.state == PROVED)
    proved = f"{total} rows of {states.pop(PROVED, 0)} batches are unchanged"
    return ", ".join([proved, *(f"{count} {state}" for state, count in sorted(states.items()))])


def _recompute_by(
    query: str, found: Checkpoint, source: Mapping[str, str], sink: Mapping[str, str]
) -> Recompute:
    sys.path.insert(0, str(pathlib.Path.cwd()))
    module, _, name = query.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        why = f"must be MODULE:FUNCTION, importable from the current directory: {error}"
        raise click.BadParameter(why, param_hint="'--query'") from None
    try:
        spark = importlib.import_module("pyspark.sql").SparkSession.builder.getOrCreate()
        made: Recompute = importlib.import_module("dafka_spark.recompute").recomputed(
            spark, found, function, source, sink
        )
    except ImportError as error:
        why = f"--query needs Spark to recompute the rows, which cannot be imported: {error}"
        raise DafkaError(why) from None
    return made


def _named(given: Sequence[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise click.BadParameter(f"must be NAME=VALUE, not {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}
