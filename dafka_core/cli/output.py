"""What ``dafka`` prints: results on standard output, messages and logs on standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dafka_core.config.options import Options, option
from dafka_core.model.names import escape, printable

# What a command logs: one line an event on standard error, for people or for programs.
#
# Only commands have a handler.  In an application that uses the library, logging is the
# application's.


ROOT: Final = "dafka"
"""The logger above all of ours; those of libraries tell of warnings only."""

COMMAND: Final = "dafka.cli"
"""What a command says itself, which is never left out."""

REPEAT_S: Final = 60.0
MAX_KEPT: Final = 1_000
"""Sentences of which it is known when they were said."""

TEXT: Final = "text"
JSON: Final = "json"

LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class LogOptions(Options):
    """What every command takes that nodes run in."""

    log_level: str = option(
        "warning",
        "what is logged: from this level on. `info` tells of each node that comes or goes",
        choices=LEVELS,
    )
    log_format: str = option(
        TEXT,
        "how: a line of text for each event, or a JSON object, which then is all that comes on "
        "standard error",
        choices=(TEXT, JSON),
    )


class Repeats:
    """The same sentence is said at most once a minute, and then how often it was not."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def count(self, now: float, name: str, message: str) -> int | None:
        """How often it was left out since it was said last; None to leave it out now."""
        said_at, left_out = self._said.get((name, message), (-math.inf, 0))
        if now - said_at < REPEAT_S:
            self._said[name, message] = said_at, left_out + 1
            return None
        self._said[name, message] = now, 0
        self._said.move_to_end((name, message))
        while len(self._said) > MAX_KEPT:
            self._said.popitem(last=False)
        return left_out


class _Handler(logging.Handler):
    """Writes lines to what is standard error at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.as_json = False
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            left_out = self._repeats.count(time.monotonic(), record.name, message)
            if left_out is None and record.name != COMMAND:
                return
            line = (json_line if self.as_json else text_line)(record, left_out or 0)
        except Exception:  # noqa: BLE001 -- a defect in what is told ends nothing
            self.handleError(record)
            return
        with contextlib.suppress(OSError, ValueError):  # nobody takes it: the exit code tells
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


_handler: Final = _Handler()


def begin() -> None:
    """Has this process, which is a command's, log from now on."""
    logging.getLogger().addHandler(_handler)
    configure(LogOptions())


def configure(options: LogOptions) -> None:
    """Has it log as the options say; nothing where a command is called in an application."""
    if _handler in logging.getLogger().handlers:
        _handler.as_json = options.log_format == JSON
        logging.getLogger(ROOT).setLevel(options.log_level.upper())


def log_message(level: int, text: str) -> bool:
    """Says a command's own words to programs; False where people are to be told otherwise."""
    if not _handler.as_json:
        return False
    _handler.handle(logging.LogRecord(COMMAND, level, "", 0, "%s", (text,), None))
    return True


def text_line(record: logging.LogRecord, left_out: int = 0) -> str:
    """An event for people: when, how bad, of what part, and a sentence."""
    line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}"
    if left_out:
        line += f" (and {left_out} times before, since it was said last)"
    return printable(f"{line} | {_trace(record)}" if record.exc_info else line)


def json_line(record: logging.LogRecord, left_out: int = 0) -> str:
    """An event for programs; ``facts`` are what its sentence is made with."""
    told: dict[str, Any] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": getattr(record, "event", record.module or "said"),
        "message": record.getMessage(),
    }
    if left_out:
        told["repeated"] = left_out
    if isinstance(record.args, Mapping):
        told["facts"] = dict(record.args)
    if record.exc_info:
        told["exception"] = _trace(record)
    return json.dumps(told, default=str)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    assert record.exc_info
    return logging.Formatter().formatException(record.exc_info)


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
    if not log_message(logging.INFO, text):
        _print_aside(printable(text), "dim")


def done(text: str, *, as_json: bool, **facts: Any) -> None:
    """Tells people that all is done, and programs what, as a JSON object, where it is asked for."""
    say(text)
    if as_json:
        write(f"{json.dumps(facts)}\n".encode())


def complain(text: str) -> None:
    """Tells people what went wrong."""
    if not log_message(logging.ERROR, text):
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
