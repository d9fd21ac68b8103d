"""Output of ``dafka``: results on standard output, messages and logs on standard error."""

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

ROOT: Final = "dafka"  # the parent of this project's loggers; those of libraries log warnings only
COMMAND: Final = "dafka.cli"  # the logger of a command's own messages, which are never suppressed

REPEAT_S: Final = 60.0
MAX_KEPT: Final = 1_000
"""Messages of which the last time is kept."""

TEXT: Final = "text"
JSON: Final = "json"

LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class LogOptions(Options):
    """Logging options of every command that runs nodes."""

    log_level: str = option(
        "warning",
        "the lowest level that is logged; `info` logs each node that joins or leaves",
        choices=LEVELS,
    )
    log_format: str = option(
        TEXT,
        "a line of text per event, or a JSON object; with JSON, standard error contains nothing "
        "else",
        choices=(TEXT, JSON),
    )


class Repeats:
    """Limits a message to once a minute, and counts the suppressed repetitions."""

    def __init__(self) -> None:
        self._logged: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def count(self, now: float, name: str, message: str) -> int | None:
        """Return the repetitions suppressed since the message was logged; None to suppress it."""
        logged_at, suppressed = self._logged.get((name, message), (-math.inf, 0))
        if now - logged_at < REPEAT_S:
            self._logged[name, message] = logged_at, suppressed + 1
            return None
        self._logged[name, message] = now, 0
        self._logged.move_to_end((name, message))
        while len(self._logged) > MAX_KEPT:
            self._logged.popitem(last=False)
        return suppressed


class _Handler(logging.Handler):
    """Writes to ``sys.stderr``, which ``process.settle`` replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.as_json = False
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            suppressed = self._repeats.count(time.monotonic(), record.name, message)
            if suppressed is None and record.name != COMMAND:
                return
            line = (json_line if self.as_json else text_line)(record, suppressed or 0)
        except Exception:  # noqa: BLE001 -- a defect in a log message must not end the program
            self.handleError(record)
            return
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


_handler: Final = _Handler()


@dataclass
class _Settings:
    headings: bool = True  # of lists
    json: bool = False  # lists and results


settings: Final = _Settings()  # settings of the output that ``dafka`` changes by flags


def begin() -> None:
    """Install the log handler; applications that use the library configure their own."""
    logging.getLogger().addHandler(_handler)
    configure(LogOptions())


def configure(options: LogOptions) -> None:
    """Apply the options, unless a command is called in an application."""
    if _handler in logging.getLogger().handlers:
        _handler.as_json = options.log_format == JSON
        logging.getLogger(ROOT).setLevel(options.log_level.upper())


def log_message(level: int, text: str) -> bool:
    """Log a command's own message as JSON; return False if the format is text."""
    if not _handler.as_json:
        return False
    _handler.handle(logging.LogRecord(COMMAND, level, "", 0, "%s", (text,), None))
    return True


def text_line(record: logging.LogRecord, suppressed: int = 0) -> str:
    """Format an event as time, level, logger and message."""
    line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}"
    if suppressed:
        line += f" (and {suppressed} suppressed repetitions)"
    return printable(f"{line} | {_trace(record)}" if record.exc_info else line)


def json_line(record: logging.LogRecord, suppressed: int = 0) -> str:
    """Format an event as JSON; ``facts`` are the arguments of its message."""
    fields: dict[str, Any] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": getattr(record, "event", record.module or "said"),
        "message": record.getMessage(),
    }
    if suppressed:
        fields["repeated"] = suppressed
    if isinstance(record.args, Mapping):
        fields["facts"] = dict(record.args)
    if record.exc_info:
        fields["exception"] = _trace(record)
    return json.dumps(fields, default=str)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    assert record.exc_info
    return logging.Formatter().formatException(record.exc_info)


_NOTEBOOK: Final = "JPY_PARENT_PID"
"""Set in the environment of processes that a Jupyter kernel starts."""


def write(data: bytes) -> None:
    """Write to standard output and flush."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def ready(**facts: Any) -> None:
    """Report to the parent process that a node serves, with its addresses."""
    write(f"READY {json.dumps(facts)}\n".encode())


def info(text: str) -> None:
    """Print a message for people, or log it in JSON format."""
    if not log_message(logging.INFO, text):
        _print_message(printable(text), "dim")


def done(text: str, **facts: Any) -> None:
    """Print a final message, and with ``--json`` the facts as a JSON object."""
    info(text)
    if settings.json:
        write(f"{json.dumps(facts)}\n".encode())


def error(text: str) -> None:
    """Print an error for people, or log it in JSON format."""
    if not log_message(logging.ERROR, text):
        _print_message(f"dafka: {printable(text)}", "red")


@contextmanager
def progress(
    total: int | None, unit: str, *, is_shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal; yield a function that advances it.

    ``total`` is None if unknown. A notebook would keep each update of the bar, so it gets none.
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
    names: Sequence[str], rows: Iterable[Sequence[object]], *, wrapped: Collection[str] = ()
) -> None:
    """Print rows in columns with headings, or as JSON lines.

    Strings are names and escaped, except in ``wrapped`` columns, which contain sentences and are
    wrapped on a terminal.
    """
    shown = [printable if name in wrapped else escape for name in names]
    rows = [
        [
            show(each) if isinstance(each, str) else each
            for show, each in zip(shown, row, strict=True)
        ]
        for row in rows
    ]
    if settings.json:
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    elif sys.stdout.isatty():
        _print_table(names, rows, wrapped)
        return
    else:
        lines = _aligned(names, rows)
    if lines:
        write("".join(f"{line}\n" for line in lines).encode())


def _aligned(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return []
    cells = [[*map(_cell, row)] for row in rows]
    if settings.headings:
        cells = [[*names], *cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([each.ljust(n) for each, n in zip(row, widths, strict=True)] for row in cells)
    return ["  ".join(row).rstrip() for row in padded]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


_GAP: Final = 2  # spaces between two columns
_WRAPPED: Final = 20  # least width of a column of sentences, if they are longer


def _print_table(
    names: Sequence[str], rows: Sequence[Sequence[object]], wrapped: Collection[str]
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    # A name may contain markup.
    console = Console(markup=False, emoji=False)
    grid = Table(box=None, header_style="bold", pad_edge=False, show_header=settings.headings)
    cells = [[*map(_cell, row)] for row in rows]
    least = -_GAP
    for name, column in zip(names, zip(names, *cells, strict=True), strict=True):
        grid.add_column(name, no_wrap=name not in wrapped, overflow="fold")
        width = max(map(cell_len, column))
        least += _GAP + (min(width, _WRAPPED) if name in wrapped else width)
    for row in cells:
        grid.add_row(*row)
    # No name or number is cut: the terminal continues longer lines below.
    console.width = max(console.width, least)
    console.print(grid)


def _print_message(text: str, style: str) -> None:
    if not sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        return
    from rich.console import Console

    # One line, without markup: the text may quote user input.
    console = Console(stderr=True)
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
