"""The commands of ``dafka``, with those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
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
    ProducerOptions,
    ReaderOptions,
    StoreOptions,
    TowerOptions,
)
from dafka_core.ops.metrics_options import MetricsOptions
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

_COMMANDS: Final = {
    RUN: ("node_commands:up", "node_commands:tower", "node_commands:store"),
    RECORDS: ("produce_command:produce", "consume_command:consume", "copy_command:copy"),
    INSPECT: (
        *("cluster_commands:status", "cluster_commands:doctor", "cluster_commands:nodes"),
        *("list_commands:topics", "list_commands:partitions", "list_commands:heads"),
        *("list_commands:stores", "list_commands:staged", "perf_commands:perf"),
    ),
    MAINTAIN: (
        *("retention_commands:retain", "retention_commands:trim", "retention_commands:delete"),
        *("archive_command:archive", "bundle_command:bundle"),
    ),
    SPARK: (
        *("list_commands:lag", "checkpoint_commands:checkpoint"),
        *("job_commands:job", "job_commands:notebooks"),
    ),
    SECURITY: ("keys_command:keys",),
    PROGRAM: ("configuration:config", "version_command:completion"),
}
"""The functions of commands by section."""

_SUBCOMMANDS: Final = {
    "node_commands:store": (
        *("backup_commands:backup", "backup_commands:restore", "backup_commands:verify"),
        *("node_commands:aside", "node_commands:forget", "node_commands:replace"),
    ),
    "perf_commands:perf": ("perf_commands:produce", "perf_commands:consume", "perf_commands:store"),
    "checkpoint_commands:checkpoint": (
        *("checkpoint_commands:show", "checkpoint_commands:diff", "checkpoint_commands:copy"),
        *("checkpoint_commands:fork", "checkpoint_commands:rewind", "checkpoint_commands:reset"),
        "checkpoint_commands:verify",
    ),
    "keys_command:keys": (
        *("keys_command:new", "keys_command:renew", "keys_command:show", "keys_command:token"),
    ),
}
"""The commands of groups."""

_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "job_commands:job": {"allow_interspersed_args": False},
    "configuration:config": {"ignore_unknown_options": True},
}


def _command(function: str, section: str = "") -> Command:
    return Command(
        f"dafka_core.cli.{function}",
        section,
        commands=tuple(map(_command, _SUBCOMMANDS.get(function, ()))),
        settings=_SETTINGS.get(function, {}),
        runs=function == "node_commands:store",
    )


_dafka: Final = Command(
    "dafka_core.cli.version_command:dafka",
    commands=with_plugins(
        _command(each, section) for section, names in _COMMANDS.items() for each in names
    ),
    settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'dafka up'; then 'dafka produce TOPIC' and 'dafka consume TOPIC'. "
    "Exit codes: 0 done, 1 failed, 2 invalid arguments or settings, "
    "130 or 143 stopped by a signal before it was done.",
)
app: Final[Any] = _dafka.load()
"""The group of all commands."""
