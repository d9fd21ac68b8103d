"""What ``dafka`` prints: records and results on standard output, everything else on error."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dafka_core.cli import logs
from dafka_core.model.names import escape, printable

_NOTEBOOK: Final = "JPY_PARENT_PID"
"""Is in the environment of what a notebook's kernel starts."""


def write(data: bytes) -> None:
    """Writes to standard output, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def ready(**facts: Any) -> None:
    """Tells a program that started this node that it serves, and where."""
    write(f"READY {json.dumps(facts)}\n".encode())


def say(text: str) -> None:
    """Tells people what happens."""
    if not logs.say(logging.INFO, text):
        _print_aside(printable(text), "dim")


def done(text: str, *, as_json: bool, **facts: Any) -> None:
    """Tells people that all is done, and programs what, as a JSON object, where it is asked for."""
    say(text)
    if as_json:
        write(f"{json.dumps(facts)}\n".encode())


def complain(text: str) -> None:
    """Tells people what went wrong."""
    if not logs.say(logging.ERROR, text):
        _print_aside(f"dafka: {printable(text)}", "red")


def is_screen() -> bool:
    """Whether somebody looks at standard output."""
    return sys.stdout.isatty()


@contextmanager
def progress(
    total: int | None, unit: str, *, is_shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if somebody looks at it; gives what moves it on by so many.

    ``total`` is None where it is not known.  A notebook keeps each move of a bar, so it gets none.
    """
    if not is_shown or not sys.stderr.isatty() or _NOTEBOOK in os.environ:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(unit, total=total)
        yield lambda count: bar.advance(task, count)


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    as_json: bool,
    wrapped: Collection[str] = (),
) -> None:
    """Prints rows: a table for people, tabs between the columns for programs, or JSON lines.

    Texts among them are names, and escaped; those of columns that are ``wrapped`` are sentences.
    """
    shown = [printable if name in wrapped else escape for name in names]
    rows = [
        [
            show(each) if isinstance(each, str) else each
            for show, each in zip(shown, row, strict=True)
        ]
        for row in rows
    ]
    if as_json:
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    elif sys.stdout.isatty():
        _print_table(names, rows, wrapped)
        return
    else:
        lines = ["\t".join(map(_cell, row)) for row in rows]
    if lines:
        write("".join(f"{line}\n" for line in lines).encode())


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _print_table(
    names: Sequence[str], rows: Iterable[Sequence[object]], wrapped: Collection[str]
) -> None:
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        grid.add_column(name, no_wrap=name not in wrapped)
    for row in rows:
        grid.add_row(*map(_cell, row))
    # A name may look like markup.
    Console(markup=False, emoji=False).print(grid)


def _print_aside(text: str, style: str) -> None:
    if not sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        return
    from rich.console import Console

    # A sentence stays one line, and nothing in it is markup: it may quote users' words.
    console = Console(stderr=True)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
