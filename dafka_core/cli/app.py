"""The commands of ``dafka``, with those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

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
        "cluster_commands": ("status", "doctor", "nodes"),
        "list_commands": ("topics", "partitions", "heads", "stores", "staged"),
        "perf_commands": ("perf",),
    },
    MAINTAIN: {
        "retention_commands": ("retain", "trim", "delete"),
        "archive_command": ("archive",),
        "bundle_command": ("bundle",),
    },
    SPARK: {
        "list_commands": ("lag",),
        "checkpoint_commands": ("checkpoint",),
        "job_commands": ("job", "notebooks"),
    },
    SECURITY: {"keys_command": ("keys",)},
    PROGRAM: {"configuration": ("config",), "version_command": ("completion",)},
}
"""The functions of commands by section and module."""

_SUBCOMMANDS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "node_commands:store": {
        "backup_commands": ("backup", "restore", "verify"),
        "node_commands": ("aside", "forget", "replace"),
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
    "dafka_core.cli.version_command:dafka",
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
