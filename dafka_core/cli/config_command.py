"""``dafka config``: what commands are told, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from dafka_core.cli import configuration, output
from dafka_core.cli.configuration import DEFAULT, Found
from dafka_core.cli.flags import SETTINGS
from dafka_core.cli.list_commands import AsJson
from dafka_core.errors import HIDDEN, is_secret
from dafka_core.model.suggestions import what_there_is

_COLUMNS: Final = ("command", "option", "value", "from")


def config(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND [FLAGS]]",
            show_default=False,
            help="A command, to list its options alone, as they are with these flags.",
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show each option's value, and where it comes from: flag, environment, file or default.

    Without a command it lists what all commands are told, and then what the file says to some.
    """
    found = configuration.read_of(ctx)
    rows = [*_of_command(ctx, words)] if words else [*_of_all(found)]
    if found.path is not None:
        chosen = f", profile {found.profile}" if found.profile else ""
        output.say(f"configuration file {found.path}{chosen}")
    output.table(_COLUMNS, rows, as_json=as_json)


def _of_all(found: Any) -> Iterator[tuple[str, ...]]:
    for name, table in sorted(SETTINGS.items()):
        default = next(row.default for row in table.table() if row.name == name)
        yield _row("", name, found.find(name) or Found(default, DEFAULT))
    for command, name, each in found.of_commands():
        yield _row(command, name, each)


def _of_command(ctx: typer.Context, words: list[str]) -> Iterator[tuple[str, ...]]:
    commands = configuration.commands(ctx)
    count = max((n for n in range(1, len(words) + 1) if " ".join(words[:n]) in commands), default=0)
    if not count:
        near = what_there_is(words[0], {*commands}, "commands")
        raise typer.BadParameter(f"there is no command {words[0]!r} ({near})")
    name = " ".join(words[:count])
    command = commands[name]
    for parameter in command.params:
        parameter.required = False
    parent = ctx.find_root()
    of_command = command.make_context(name, words[count:], parent=parent)
    rows = {row.name: row for table in SETTINGS.values() for row in table.table()}
    for option, each in sorted(configuration.origins(of_command).items()):
        at = each._replace(value=rows[option].default) if each.origin == DEFAULT else each
        yield _row(name, option, at)


def _row(command: str, name: str, found: Found) -> tuple[str, ...]:
    value = found.value
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return command, name, HIDDEN if is_secret(name) else str(value), found.origin
