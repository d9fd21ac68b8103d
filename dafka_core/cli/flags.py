"""Options of the commands, made from the tables in which the nodes declare theirs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dafka_core.node_options import TOWER_ENVIRONMENT
from dafka_core.options import DEFAULT_TOWER, OptionInfo, Options

Command = Callable[..., None]

MAIN_OPTIONS: Final = frozenset({"host", "sub_address", "pub_address", "acks", "flight_port"})
"""Listed first in ``--help``; all others are for tuning, and most users need none."""

TUNING_PANEL: Final = "Tuning"

_METAVARS: Final = {"int": "N", "float": "N", "str": "TEXT"}

Towers = Annotated[
    list[str] | None,
    typer.Option(
        "--tower",
        metavar="HOST[:SUB_PORT:PUB_PORT]",
        help=f"A tower to join through; may be given several times. Without it, the environment's "
        f"{TOWER_ENVIRONMENT}, or else {DEFAULT_TOWER}.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The directory in which records are kept.")
]
ExitWithParent = Annotated[bool, typer.Option("--exit-with-parent", hidden=True)]
"""For programs that start nodes: the node stops when its standard input ends."""


def with_options(*tables: type[Options]) -> Callable[[Command], Command]:
    """Gives a command the options of ``tables``, except those it declares itself.

    The command takes them as ``**options``: only those the user gave, as text.  The node they are
    handed to parses and checks them, so there is one place that says what is right.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {parameter.name for parameter in own}
        rows = {row.name: row for table in tables for row in table.table()}
        # Commands declare --tower themselves, as an option that may be given several times.
        made = [_parameter(row) for name, row in rows.items() if name not in {*names, "tower"}]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{k: v for k, v in values.items() if k in names or v is not None})

        run.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        return run

    return decorate


def of_table(table: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that ``table`` declares."""
    return {row.name: options[row.name] for row in table.table() if row.name in options}


def joined(towers: list[str] | None) -> str | None:
    """The towers as one string; None, when none is given, leaves it to the environment."""
    return ",".join(towers) if towers else None


def _parameter(row: OptionInfo) -> inspect.Parameter:
    flag = "--" + row.name.replace("_", "-")
    is_switch = isinstance(row.default, bool)
    if row.default is True:
        flag = f"{flag}/--no-{flag[2:]}"
    option = typer.Option(
        flag,
        help=_help(row),
        metavar="" if is_switch else _metavar(row),
        rich_help_panel=None if row.name in MAIN_OPTIONS else TUNING_PANEL,
        show_default=False,
    )
    kind = bool if is_switch else str
    return inspect.Parameter(
        row.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _metavar(row: OptionInfo) -> str:
    return _METAVARS.get(row.kind, row.kind.replace(" or ", "|"))


def _help(row: OptionInfo) -> str:
    text = row.meaning[:1].upper() + row.meaning[1:]
    if row.default is None or isinstance(row.default, bool):
        return f"{text}."
    return f"{text} (default {row.default}{' ' if row.unit else ''}{row.unit})."
