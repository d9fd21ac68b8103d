"""The program ``dafka``: its version and completion, its commands and those of other packages."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from dafka_core.cli import flags, output
from dafka_core.cli.commands import (
    INSPECT,
    MAINTAIN,
    PROGRAM,
    RECORDS,
    RUN,
    SECURITY,
    SPARK,
    Command,
    with_plugins,
)
from dafka_core.cli.flags import add_settings
from dafka_core.config.node_options import (
    ConsumerOptions,
    MetricsOptions,
    ProducerOptions,
    ReaderOptions,
    StoreOptions,
    TowerOptions,
)
from dafka_core.ops.store_extension import store_extensions

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


add_settings(
    StoreOptions,
    *(each.options for each in store_extensions()),
    MetricsOptions,
    TowerOptions,
    ProducerOptions,
    ConsumerOptions,
    ReaderOptions,
)

_COMMANDS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    RUN: {"node_commands": ("up", "tower", "store")},
    RECORDS: {
        "produce_command": ("produce",),
        "consume_command": ("consume",),
        "copy_command": ("copy",),
    },
    INSPECT: {
        "inspect_commands": (
            *("status", "doctor", "nodes"),
            *("topics", "partitions", "heads", "stores", "staged"),
        ),
        "perf_commands": ("perf",),
    },
    MAINTAIN: {
        "retention_commands": ("retain", "trim", "delete"),
        "archive_command": ("archive",),
        "bundle_command": ("bundle",),
    },
    SPARK: {
        "inspect_commands": ("lag",),
        "checkpoint_commands": ("checkpoint",),
        "job_commands": ("job", "notebooks"),
    },
    SECURITY: {"keys_command": ("keys",)},
    PROGRAM: {"configuration": ("config",), "app": ("completion",)},
}
"""The functions of commands by section and module."""

_SUBCOMMANDS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "node_commands:store": {
        "node_commands": ("backup", "restore", "verify", "aside", "forget", "replace"),
    },
    "perf_commands:perf": {"perf_commands": ("produce", "consume", "store")},
    "checkpoint_commands:checkpoint": {
        "checkpoint_commands": ("show", "diff", "copy", "fork", "rewind", "reset", "verify"),
    },
    "keys_command:keys": {"keys_command": ("new", "renew", "show", "token")},
}
"""The functions of the commands of some of them."""

_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "job_commands:job": {"allow_interspersed_args": False},
    "configuration:config": {"ignore_unknown_options": True},
}


def _commands(functions: Mapping[str, Sequence[str]], section: str = "") -> Iterator[Command]:
    for function in (f"{module}:{name}" for module, names in functions.items() for name in names):
        yield Command(
            f"dafka_core.cli.{function}",
            section,
            commands=tuple(_commands(_SUBCOMMANDS.get(function, {}))),
            settings=_SETTINGS.get(function, {}),
            runs=function == "node_commands:store",
        )


_dafka: Final = Command(
    "dafka_core.cli.app:dafka",
    commands=with_plugins(
        each for section, found in _COMMANDS.items() for each in _commands(found, section)
    ),
    settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'dafka up'; then 'dafka produce TOPIC' and 'dafka consume TOPIC'. "
    "Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, "
    "130 or 143 stopped by a signal before it was done.",
)
app: Final[Any] = _dafka.load()
"""The group of all commands."""
