"""``dafka --version`` and ``dafka completion``."""

from __future__ import annotations

import platform
from typing import Final

import click

from dafka_core.cli import flags, output

PACKAGE: Final = "dafka-spark"

LIBRARIES: Final = ("pyzmq", "pyarrow", "lmdb", "numpy", "pyspark")
"""Libraries that ``--version`` lists, as their versions affect nodes."""


def versions() -> dict[str, str]:
    """Return the versions of this package, Python and the main libraries."""
    from importlib import metadata

    found = {PACKAGE: "not installed", "python": platform.python_version()}
    for name in (PACKAGE, *LIBRARIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # a zip for spark-submit has no metadata
    return found


def _print_version(ctx: click.Context, parameter: click.Parameter, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        own, *others = versions().items()
        beside = ", ".join(f"{name} {version}" for name, version in others)
        output.write(f"{' '.join(own)} ({beside})\n".encode())
        ctx.exit()


@flags.option(
    "--version",
    is_flag=True,
    help="Print versions and exit.",
    callback=_print_version,
    is_eager=True,
    expose_value=False,
)
def dafka() -> None:
    """Dafka: durable topics over ZeroMQ, without a broker."""


@click.pass_context
@flags.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    For this shell: source <(dafka completion bash). For all shells, install it:
    dafka completion bash > ~/.local/share/bash-completion/completions/dafka
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(ctx.find_root().command, {}, "dafka", "_DAFKA_COMPLETE")
    script = made.source_template % made.source_vars()
    output.write(f"{script}\n".encode())
