"""Commands of typer that take what no flag says from the environment and from a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from dafka_core.cli import configuration, output
from dafka_core.cli.configuration import DEFAULT, FLAG, Found, Known
from dafka_core.cli.flags import SETTINGS
from dafka_core.metrics.options import MetricsOptions
from dafka_core.nodes.store_extension import store_extensions
from dafka_core.options import Options

_META: Final = "dafka."
"""How what commands note in their contexts is called."""


def _note(name: str) -> Callable[[typer.Context, str | None], str | None]:
    def note(ctx: typer.Context, value: str | None) -> str | None:
        if value is not None:
            ctx.meta[_META + name] = value
        return value

    return note


Config = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Settings of commands; without it DAFKA_CONFIG, dafka.toml here, or "
        "~/.config/dafka/dafka.toml.",
        callback=_note("config"),
        expose_value=False,
        rich_help_panel="Configuration",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A profile of that file; without it DAFKA_PROFILE, or the file's own choice.",
        callback=_note("profile"),
        expose_value=False,
        rich_help_panel="Configuration",
    ),
]

SHARED: Final = frozenset({"config", "profile"})
"""Options of ``dafka`` itself that all commands take as well, in their place."""


class _Configured:
    """Before typer's own class: its options are also settings."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its own parameters, and those that all commands take."""
        return _with_shared(ctx, super().get_params(ctx))  # type: ignore[misc]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses flags, and fills in what they do not say."""
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        _fill(ctx)
        return rest


class ConfiguredCommand(_Configured, TyperCommand):
    """A command whose options are also settings."""


class ConfiguredGroup(_Configured, TyperGroup):
    """A group of commands that is a command itself, as ``dafka store``."""


class ConfiguredTyper(typer.Typer):
    """Commands and groups of them whose options are also settings."""

    def __init__(self, **settings: Any) -> None:
        # cli/process.py suggests names, and only those that are near.
        super().__init__(cls=ConfiguredGroup, suggest_commands=False, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """As typer's."""
        return super().command(name, cls=ConfiguredCommand, **settings)


def name_of(ctx: Any) -> str:
    """A command's name, without that of the program."""
    return " ".join(ctx.command_path.split()[1:])


def commands(ctx: Any) -> dict[str, Any]:
    """All commands, and groups that are commands, by their names."""
    found: dict[str, Any] = {}

    def walk(group: Any, prefix: str) -> None:
        for name, each in group.commands.items():
            if not isinstance(each, TyperGroup) or each.invoke_without_command:
                found[prefix + name] = each
            if isinstance(each, TyperGroup):
                walk(each, f"{prefix}{name} ")

    walk(ctx.find_root().command, "")
    return found


def settings_of(command: Any) -> dict[str, Any]:
    """The parameters of a command that are settings, by the settings' names."""
    named = {each.opts[0].lstrip("-").replace("-", "_"): each for each in command.params}
    return {name: each for name, each in named.items() if name in SETTINGS}


def read(ctx: Any) -> configuration.Configuration:
    """The environment and the file; see ``configuration.read`` for what it raises."""
    known: Known = {name: frozenset(settings_of(each)) for name, each in commands(ctx).items()}
    return configuration.read(
        ctx.meta.get(f"{_META}config"), ctx.meta.get(f"{_META}profile"), known
    )


def origins(ctx: Any) -> dict[str, Found]:
    """The settings of a command whose arguments are parsed: their values, and who says them."""
    told: dict[str, str] = ctx.meta.get(_META + ctx.command_path, {})
    return {
        name: Found(ctx.params.get(each.name), told[name])
        for name, each in settings_of(ctx.command).items()
    }


def _with_shared(ctx: Any, own: list[Any]) -> list[Any]:
    root = ctx.find_root()
    if root is ctx:
        return own
    return [*own, *(each for each in root.command.params if each.name in SHARED)]


def _fill(ctx: Any) -> None:
    if ctx.resilient_parsing or ctx.parent is None:
        return
    found = read(ctx)
    told = ctx.meta[_META + ctx.command_path] = {}
    for name, parameter in settings_of(ctx.command).items():
        told[name] = FLAG
        if ctx.get_parameter_source(parameter.name).name != "COMMANDLINE":
            told[name] = DEFAULT
            if said := found.find(name, name_of(ctx)):
                told[name] = said.origin
                ctx.params[parameter.name] = _given(said.value, is_list=parameter.multiple)
    _drop_unused(ctx, told)
    if not ctx.meta.get(f"{_META}warned"):
        ctx.meta[f"{_META}warned"] = True
        for sentence in configuration.misspelt_variables():
            output.say(sentence)


def _given(value: Any, *, is_list: bool) -> Any:
    if is_list:
        return value if isinstance(value, list) else [value]
    return ",".join(value) if isinstance(value, list) else value


def _drop_unused(ctx: Any, told: dict[str, str]) -> None:
    """Ignore settings of an extension that is off, and of ``--metrics``; flags are refused."""
    tables: dict[str, type[Options]] = {each.switch: each.options for each in store_extensions()}
    tables["metrics"] = MetricsOptions
    for switch, table in tables.items():
        if switch not in told or ctx.params.get(switch):
            continue
        for row in table.table():
            if told.get(row.name, FLAG) not in (FLAG, DEFAULT):
                ctx.params[row.name], told[row.name] = None, DEFAULT
