"""Commands as rows of a table; a command's module is imported when it is called.

``dafka --help`` shows the rows alone, and imports no command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from dafka_core.cli.configuration import fill, with_shared
from dafka_core.cli.flags import add_settings, with_options
from dafka_core.cli.process import EXIT_USAGE
from dafka_core.config.options import Options
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
    """A command, or a group of commands.

    Attributes:
        function: ``module:function``; the function's parameters are the command's own, and its
            docstring is the help.
        summary: the help's first sentence.
        section: the section of ``dafka --help``.
        tables: tables of options that the command takes, too, except those in ``without``.
        commands: the subcommands of a group. A group without ``tables`` needs a subcommand.
        settings: further settings of the command's context.
        epilog: the last paragraph of the help.
    """

    function: str
    summary: str
    section: str = ""
    tables: tuple[type[Options], ...] = ()
    without: Collection[str] = ()
    commands: tuple[Command, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    epilog: str = ""

    @property
    def name(self) -> str:
        """The name by which it is called."""
        return self.function.partition(":")[2].replace("_", "-")

    def load(self) -> TyperCommand | TyperGroup:
        """Import the command's module and make the command."""
        module, _, function = self.function.partition(":")
        callback = getattr(import_module(module), function)
        if self.tables:
            callback = with_options(*self.tables, without=self.without)(callback)
        maker = typer.Typer(add_completion=False, rich_markup_mode=None)
        maker.command(self.name, cls=_Command, context_settings={**self.settings})(callback)
        made: TyperCommand = typer.main.get_command(maker)  # type: ignore[assignment]
        if not self.commands:
            return made
        return _Group(
            name=self.name,
            commands=_Rows(self.commands),  # type: ignore[arg-type] # it is only read
            callback=made.callback,
            params=made.params,
            help=made.help,
            epilog=self.epilog,
            context_settings=made.context_settings,
            invoke_without_command=bool(self.tables),
            no_args_is_help=not self.tables,
            suggest_commands=False,  # process.py suggests names itself
            rich_markup_mode=None,
        )


def with_plugins(commands: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return commands with those of installed packages, by section, and register their settings."""
    found = [*commands, *(each for rows in plugins(PLUGINS) for each in rows)]
    for each in _all(found):
        if each.tables:
            add_settings(each.tables)
    return tuple(sorted(found, key=lambda each: SECTIONS.index(each.section)))


def _all(commands: Collection[Command]) -> Iterator[Command]:
    for each in commands:
        yield each
        yield from _all(each.commands)


class _Rows(Mapping[str, Any]):
    """The commands of a group by name; each is loaded when it is requested."""

    def __init__(self, rows: tuple[Command, ...]) -> None:
        self.rows = {each.name: each for each in rows}
        self._loaded: dict[str, TyperCommand | TyperGroup] = {}

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if name not in self._loaded:
            self._loaded[name] = self.rows[name].load()
        return self._loaded[name]

    def full_names(self) -> dict[str, Callable[[], Any]]:
        """Return functions that load each command, and each group that is one, by full name."""
        found: dict[str, Callable[[], Any]] = {}
        for name, row in self.rows.items():
            if row.tables or not row.commands:
                found[name] = partial(self.__getitem__, name)
            inner = _Rows(row.commands).full_names()
            found.update({f"{name} {each}": load for each, load in inner.items()})
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class _Configured:
    """A mixin for typer's commands that reads their options from settings, too."""

    def get_params(self, ctx: Any) -> list[Any]:
        return with_shared(ctx, super().get_params(ctx))  # type: ignore[misc]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        fill(ctx)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options by their sections."""
        written: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                plain = "Arguments" if each.param_type_name == "argument" else "Options"
                section = getattr(each, "rich_help_panel", None) or plain
                written.setdefault(section, []).append(record)
        for section, records in written.items():
            with formatter.section(section):
                formatter.write_dl(records)


class _Command(_Configured, TyperCommand):
    """A command that reads its options from settings, too."""


class _Group(_Configured, TyperGroup):
    """A group of commands, which may be a command itself, such as ``dafka store``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(EXIT_USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        rows = self.commands.rows.values()  # type: ignore[attr-defined]
        for section, each in groupby(rows, lambda row: row.section):
            with formatter.section(section or "Commands"):
                formatter.write_dl([(row.name, row.summary) for row in each])
