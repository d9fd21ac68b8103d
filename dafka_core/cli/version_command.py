"""``dafka --version`` and ``dafka completion``."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Annotated, Final, Literal

import typer

from dafka_core.cli import output
from dafka_core.cli.configuration import Config, NoHeadings, Profile

PACKAGE: Final = "dafka-spark"

_COMPLETE: Final = "_DAFKA_COMPLETE"

LIBRARIES: Final = ("pyzmq", "pyarrow", "lmdb", "numpy", "pyspark")
"""Libraries that ``--version`` lists, as their versions affect nodes."""


def versions() -> dict[str, str]:
    """Return the versions of this package, Python and the main libraries."""
    found = {PACKAGE: "not installed", "python": platform.python_version()}
    for name in (PACKAGE, *LIBRARIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # a zip for spark-submit has no metadata
    return found


def _print_version(is_requested: bool) -> None:
    if is_requested:
        own, *others = versions().items()
        beside = ", ".join(f"{name} {version}" for name, version in others)
        output.write(f"{' '.join(own)} ({beside})\n".encode())
        raise typer.Exit


def dafka(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print versions and exit.",
            callback=_print_version,
            is_eager=True,
            expose_value=False,
        ),
    ] = False,
    config: Config = None,
    profile: Profile = None,
    no_headings: NoHeadings = False,
) -> None:
    """Dafka: durable topics over ZeroMQ, without a broker."""


Shell = Annotated[
    Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", show_default=False)
]


def completion(shell: Shell) -> None:
    """Print a completion script for a shell.

    For this shell: source <(dafka completion bash). For all shells, install it:
    dafka completion bash > ~/.local/share/bash-completion/completions/dafka
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="dafka", complete_var=_COMPLETE, shell=shell)
    output.write(f"{script}\n".encode())


def prepare_completion() -> None:
    """Initialize typer's completion if a completion script runs this process."""
    if os.environ.get(_COMPLETE):
        from typer._completion_classes import completion_init

        completion_init()
