"""The command line ``dafka``: towers, stores, and records in and out by hand."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``dafka`` with the process's arguments, or those given, and ends the process."""
    # Until there is something to close, Ctrl-C ends the process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Nothing is imported before it is needed: programs import dafka_core without the command line.
    from dafka_core.cli.process import run

    raise SystemExit(run(arguments, _load_app))


def _load_app() -> typer.Typer:
    from dafka_core.cli.app import app

    return app
