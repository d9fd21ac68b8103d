"""``dafka checkpoint``: looks at the checkpoints of Spark's streaming queries, and changes them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import WithResult
from dafka_core.cli.list_commands import AsJson
from dafka_core.cli.positions import parse_time_us

if TYPE_CHECKING:
    from dafka_core.queries.checkpoint import Batch, Checkpoint

Path = Annotated[str, typer.Argument(metavar="PATH", show_default=False)]
"""The query's checkpointLocation."""
Target = Annotated[str, typer.Argument(metavar="TO", show_default=False)]
"""A directory that is not there yet."""
BatchNumber = Annotated[
    int | None, typer.Option("--batch", metavar="N", min=0, help="A batch.", show_default=False)
]

Stopped = Annotated[
    bool, typer.Option("--stopped", help="The query does not run: its checkpoint is just new.")
]

_BATCH_COLUMNS: tuple[str, ...] = ("batch", "state", "planned", "partitions", "records")
_RANGE_COLUMNS: tuple[str, ...] = ("batch", "state", "source", "topic", "partition", "start", "end")
_DIFF_COLUMNS = ("source", "topic", "partition", "a", "b", "difference")


def show(path: Path, *, batch: BatchNumber = None, as_json: AsJson = False) -> None:
    """List a checkpoint's batches, or what one of them has of each partition.

    A batch is committed, or unfinished: the query runs it again, with the same offsets, when it is
    started.
    """
    from dafka_core.queries.checkpoint import Checkpoint

    found = Checkpoint.read(path)
    rows: list[tuple[Any, ...]]
    if batch is None:
        columns, rows = _BATCH_COLUMNS, [_row(found, each) for each in found.batches()]
    else:
        columns, state = _RANGE_COLUMNS, _state(found.batch(batch))
        rows = [(batch, state, source, *each[:4]) for source, each in found.ranges(batch)]
    output.say(_told(found))
    output.table(columns, rows, as_json=as_json)


def diff(
    path: Path,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="[OTHER]", show_default=False, help="Another checkpoint; without it the same."
        ),
    ] = None,
    *,
    batch: BatchNumber = None,
    other_batch: Annotated[
        int | None,
        typer.Option(
            "--other-batch", metavar="N", min=0, help="A batch of OTHER.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the partitions where two checkpoints, or two batches of one, end at other offsets.

    Without --batch and --other-batch the newest batches of two checkpoints, or the last two batches
    of one, are compared.
    """
    from dafka_core.queries.checkpoint import Checkpoint

    one = Checkpoint.read(path)
    two = one if other is None else Checkpoint.read(other)
    if other is None and batch is None and len(one.planned) > 1:
        batch = one.planned[-2]
    ends = [_ends(each, number) for each, number in ((one, batch), (two, other_batch))]
    if other is not None:
        same = "the same query" if one.query_id == two.query_id else "two queries"
        output.say(f"{same}: {one.query_id} and {two.query_id}")
    first, second = ends
    rows = []
    for key in sorted(first.keys() | second.keys()):
        a, b = first.get(key), second.get(key)
        if a != b:
            rows.append((*key, a, b, None if a is None or b is None else b - a))
    if not rows:
        output.say("both end at the same offsets")
    output.table(_DIFF_COLUMNS, rows, as_json=as_json)


def copy(path: Path, to: Target, *, as_json: WithResult = False) -> None:
    """Copy a checkpoint as it is: the copy is the same query's, to be kept, or moved.

    Only one of the two may go on: a sink of format dafka refuses what the other one writes under
    the same numbers. 'fork' makes a query of its own.
    """
    from dafka_core.queries.checkpoint import Checkpoint
    from dafka_core.queries.checkpoint_copies import copied

    made = copied(Checkpoint.read(path), to)
    output.say("let only one of the two go on; 'dafka checkpoint fork' makes another query")
    _done(made, as_json=as_json)


def fork(path: Path, to: Target, *, as_json: WithResult = False) -> None:
    """Copy a checkpoint for a query of its own, which goes on from there beside the first.

    A sink of format dafka writes its rows to partitions of its own: let it write to another topic,
    or rows are there twice.
    """
    from dafka_core.queries import checkpoint_copies
    from dafka_core.queries.checkpoint import Checkpoint

    found = Checkpoint.read(path)
    made = checkpoint_copies.fork(found, to)
    what = f"what it writes is written by the first query, {found.query_id}, too"
    output.say(f"{what}: from batch {made.next_batch} on; let it write to another topic")
    _done(made, as_json=as_json)


def rewind(
    path: Path,
    *,
    to_batch: Annotated[
        int | None,
        typer.Option(
            "--to-batch", metavar="N", min=0, help="The last batch to keep.", show_default=False
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="Keep batches planned until then: 2026-11-23T18:00:00Z, or how long ago, as 15m.",
            show_default=False,
        ),
    ] = None,
    stopped: Stopped = False,
    as_json: WithResult = False,
) -> None:
    """Have a query go on behind an earlier batch; a backup of the checkpoint is made first.

    What the query has written since stays where it is. A sink of format dafka takes no other rows
    under the numbers of batches it has: for that, rewind a fork.
    """
    from dafka_core.queries import checkpoint_changes
    from dafka_core.queries.checkpoint import Checkpoint

    if (to_batch is None) == (to_time is None):
        raise typer.BadParameter("must be given, or --to-time", param_hint="'--to-batch'")
    found = Checkpoint.read(path)
    if to_time is not None:
        to_batch = checkpoint_changes.last_until(found, _time_ms(to_time))
    assert to_batch is not None
    last = found.last.number
    backup = checkpoint_changes.rewind(found, to_batch, is_stopped=stopped)
    output.say(f"it went on to batch {last} before: all of that is in {backup}")
    output.say(
        "a sink of format dafka refuses other rows under the numbers of batches that it has: "
        "for one, rewind a fork of the checkpoint instead, which writes to partitions of its own"
    )
    _done(Checkpoint.read(path), as_json=as_json, backup=str(backup))


def reset(path: Path, *, stopped: Stopped = False, as_json: WithResult = False) -> None:
    """Have a query begin again, from its option startingOffsets, as a new one.

    All there was is moved to a backup. What the query has written stays where it is.
    """
    from dafka_core.queries import checkpoint_changes
    from dafka_core.queries.checkpoint import Checkpoint

    backup = checkpoint_changes.reset(Checkpoint.read(path), is_stopped=stopped)
    said = f"{path} is empty: a query begins anew there, under a new id; before: {backup}"
    output.done(said, as_json=as_json, checkpoint=str(path), backup=str(backup))


def _time_ms(text: str) -> float:
    try:
        return parse_time_us(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--to-time'") from None


def _done(made: Checkpoint, *, as_json: bool, **facts: Any) -> None:
    facts = {"checkpoint": str(made.path), "query": made.query_id, **facts}
    facts["next_batch"] = made.next_batch
    output.done(f"{made.path}: {_told(made)}", as_json=as_json, **facts)


def _told(found: Checkpoint) -> str:
    if not found.planned:
        return f"query {found.query_id}: no batch yet"
    there = f"batches {found.planned[0]} to {found.planned[-1]}"
    if found.is_unfinished:
        then = f"batch {found.next_batch} is unfinished, and run again with the same offsets"
    else:
        then = f"the next one is {found.next_batch}"
    return f"query {found.query_id}: {there}; {then}"


def _state(batch: Batch) -> str:
    return "committed" if batch.is_committed else "unfinished"


def _row(found: Checkpoint, batch: Batch) -> tuple[Any, ...]:
    partitions = sum(len(end.positions) for end in batch.own_ends.values())
    records = None
    if found.before(batch.number) is not None:
        records = sum(each.end - each.start for _, each in found.ranges(batch.number))
    planned = datetime.fromtimestamp(batch.time_ms / 1000, UTC).isoformat(timespec="seconds")
    return batch.number, _state(batch), planned, partitions, records


def _ends(found: Checkpoint, number: int | None) -> dict[tuple[str, str, str], int]:
    batch = found.last if number is None else found.batch(number)
    return dict(_positions(batch))


def _positions(batch: Batch) -> Iterator[tuple[tuple[str, str, str], int]]:
    for source, end in batch.own_ends.items():
        yield from (((source, *tp), position) for tp, position in end.positions.items())
