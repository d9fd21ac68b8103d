"""The command line ``dafka``: run towers and stores, produce, consume and administer."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``dafka`` with the given arguments, by default the process's, and exit."""
    # While the commands are imported, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dafka_core.cli.process import run

    raise SystemExit(run(arguments, _load_app))


def _load_app() -> click.Command:
    from dafka_core.cli.app import app

    loaded: click.Command = app
    return loaded
