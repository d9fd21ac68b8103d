"""What a command logs: one line an event on standard error, for people or for programs.

Only commands have a handler.  In an application that uses the library, logging is the
application's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dafka_core.config.options import Options, option
from dafka_core.model.names import printable

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
        """Writes one."""
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


def say(level: int, text: str) -> bool:
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
