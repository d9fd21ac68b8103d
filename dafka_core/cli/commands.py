"""Commands as rows of a table; a command's module is imported when it is called.

``dafka --help`` reads the first line of each command's docstring, and imports no command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from pkgutil import get_data
from typing import Any, Final

import click

from dafka_core.cli import output
from dafka_core.cli.configuration import SHARED, FileSettings
from dafka_core.cli.flags import AS_JSON, PREFIX, settings_of
from dafka_core.system.distribution import plugins

RUN: Final = "Run"
RECORDS: Final = "Records"
INSPECT: Final = "Inspect"
MAINTAIN: Final = "Maintain"
SPARK: Final = "Spark"
KAFKA: Final = "Kafka"
SECURITY: Final = "Security"
PROGRAM: Final = "This program"
SECTIONS: Final = (RUN, RECORDS, INSPECT, MAINTAIN, SPARK, KAFKA, SECURITY, PROGRAM)
"""Sections of ``dafka --help``, in this order."""

PLUGINS: Final = "dafka.commands"
"""The group of entry points of other packages; each names a sequence of ``Command``."""


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands."""

    # ``module:function``, with the command's own parameters, and its help as docstring
    function: str
    section: str = ""  # the section of ``dafka --help``
    commands: tuple[Command, ...] = ()  # the subcommands of a group
    runs: bool = False  # whether a group is a command itself, such as ``dafka store``
    settings: Mapping[str, Any] = field(default_factory=dict)  # further ones of its context
    epilog: str = ""  # the last paragraph of the help

    @property
    def name(self) -> str:
        """The name by which it is called."""
        return self.function.partition(":")[2].replace("_", "-")

    @property
    def summary(self) -> str:
        """The help's first line, from the source of the module, which is not imported."""
        module, _, function = self.function.partition(":")
        package, _, file = module.rpartition(".")
        source = (get_data(package, f"{file}.py") or b"").decode()
        line: str = re.findall(rf'^def {function}\((?s:.*?)"""([^"\n]+)', source, re.MULTILINE)[0]
        return line

    def load(self) -> click.Command:
        """Import the command's module and make the command."""
        module, _, function = self.function.partition(":")
        callback = getattr(import_module(module), function)
        command: dict[str, Any] = {
            "name": self.name,
            "callback": callback,
            "params": [*reversed(getattr(callback, "__click_params__", ())), *SHARED],
            "help": callback.__doc__,
            "epilog": self.epilog,
            "context_settings": {"show_default": True, **self.settings},
        }
        made = _Group(self, **command) if self.commands else _Command(**command)
        for name, each in settings_of(made).items():
            each.envvar = PREFIX + name.upper()
        return made

    def full_names(self) -> dict[str, Command]:
        """Return the commands of a group, and each group that is one, by full name."""
        found: dict[str, Command] = {}
        for each in self.commands:
            if each.runs or not each.commands:
                found[each.name] = each
            found |= {f"{each.name} {name}": one for name, one in each.full_names().items()}
        return found


def with_plugins(commands: Iterable[Command]) -> tuple[Command, ...]:
    """Return commands with those of installed packages, by section."""
    found = [*commands, *(each for rows in plugins(PLUGINS) for each in rows)]
    return tuple(sorted(found, key=lambda each: SECTIONS.index(each.section)))


class _Context(click.Context):
    """A context whose defaults are the settings of the configuration file."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        if self.parent is not None:
            self.default_map = FileSettings(self)


class _Command(click.Command):
    """A command with sections of options."""

    context_class = _Context

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command's function; its ``--json`` is a setting of the output."""
        output.settings.json = bool(ctx.params.pop(AS_JSON, False))
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by their sections, the main one first."""
        written: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                written.setdefault(getattr(each, "section", "Options"), []).append(record)
        for section in sorted(written, key=lambda each: each != "Options"):
            with formatter.section(section):
                formatter.write_dl(written[section])


class _Group(_Command, click.Group):
    """A group of commands, each of which is loaded when it is requested."""

    def __init__(self, row: Command, **more: Any) -> None:
        super().__init__(invoke_without_command=row.runs, no_args_is_help=not row.runs, **more)
        self.row = row
        self._rows = {each.name: each for each in row.commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._rows]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._rows and cmd_name not in self.commands:
            self.commands[cmd_name] = self._rows[cmd_name].load()
        return self.commands.get(cmd_name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        for section, each in groupby(self.row.commands, lambda row: row.section):
            with formatter.section(section or "Commands"):
                formatter.write_dl([(row.name, row.summary) for row in each])
