"""What ``dafka`` does without a cluster: says its version, and how shells complete its words."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Annotated, Final, Literal

import typer

from dafka_core.cli import output
from dafka_core.cli.configuration import Config, Profile

PACKAGE: Final = "dafka-spark"

_COMPLETE: Final = "_DAFKA_COMPLETE"

LIBRARIES: Final = ("pyzmq", "pyarrow", "lmdb", "numpy", "pyspark")
"""Whose versions say how a node behaves."""


def versions() -> dict[str, str]:
    """The package's version, Python's, and those of what it is built on."""
    found = {PACKAGE: "not installed", "python": platform.python_version()}
    for name in (PACKAGE, *LIBRARIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # a zip given to spark-submit knows none of its own
    return found


def _print_version(is_asked: bool) -> None:
    if is_asked:
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
) -> None:
    """Dafka: durable topics over ZeroMQ, without a broker."""


Shell = Annotated[
    Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", show_default=False)
]


def completion(shell: Shell) -> None:
    """Print a script that has a shell complete commands and options.

    For this shell: source <(dafka completion bash). For all, put it where the shell looks:
    dafka completion bash > ~/.local/share/bash-completion/completions/dafka
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="dafka", complete_var=_COMPLETE, shell=shell)
    output.write(f"{script}\n".encode())


def prepare_completion() -> None:
    """Has typer know how shells ask, where one does: with a variable that its script sets."""
    if os.environ.get(_COMPLETE):
        from typer._completion_classes import completion_init

        completion_init()
