"""Flags of commands, made from the options that nodes declare, ``--metrics``, and positions."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.output import LogOptions
from dafka_core.config.node_options import TOWER_ENVIRONMENT
from dafka_core.config.options import DEFAULT_TOWER, OptionInfo, Options, option
from dafka_core.errors import ConfigError
from dafka_core.model.names import escape, unescape
from dafka_core.model.positions import EARLIEST, LATEST, OFFSET, Position
from dafka_core.ops.metrics_options import MetricsOptions

if TYPE_CHECKING:
    from dafka_core.nodes.node import Node
    from dafka_core.ops.endpoint import MetricsEndpoint


Command = Callable[..., None]

MAIN_OPTIONS: Final = frozenset(
    {
        *("host", "sub_address", "pub_address", "join", "acks", "flight_port"),
        *("metrics", "retain", "retain_until_read", "archive", "compress"),
    }
)
"""Listed first in ``--help``, with ``tower`` and ``Options.MAIN``; most users need no others."""

SETTINGS: Final[dict[str, type[Options]]] = {}
"""What a file and the environment may say of commands, by name, and the tables that declare it."""

_REPEATED: Final = {"tower": ",", "retain": " ", "compress": " "}
"""Options that may be given several times, and what is between two of their values."""

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
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, parser=unescape)]
"""As the lists show it: escapes stand for octets that cannot be written."""
_DIRECTORY: Final = typer.Option(
    "--dir", metavar="DIR", help="The directory in which records are kept."
)
Directory = Annotated[str, _DIRECTORY]
MaybeDirectory = Annotated[str | None, _DIRECTORY]
"""Of a command that also has commands of its own, which name their directory themselves."""
WithResult = Annotated[
    bool, typer.Option("--json", help="Print what was done as a JSON object at the end.")
]
ExitWithParent = Annotated[bool, typer.Option("--exit-with-parent", hidden=True)]
"""For programs that start nodes: the node stops when its standard input ends, as they do."""


@dataclass(frozen=True)
class CommandOptions(Options):
    """What commands take beside the options of their nodes, and a file may say as well."""

    dir: str = option("", "the directory in which a store keeps records", kind="DIR")
    timeout_s: float = option(10.0, "how long to wait for stores", unit="s", minimum=0.01)
    stores: str = option(
        "", "stores to ask by Arrow Flight instead of through towers", kind="grpc://HOST:PORT,..."
    )
    min_stores: str = option(
        "", "fail unless so many stores answer, or all that are known", kind="N|all"
    )
    json: bool = option(False, "print a JSON object on each line")


SETTINGS.update({row.name: CommandOptions for row in CommandOptions.table()})


def with_options(
    *tables: type[Options], without: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command the options of ``tables``, beside the parameters that it declares.

    The command takes them as ``**options``: only those that the user gave, as text.  The node that
    they are handed to parses and checks them, so what is right is said in one place.
    """
    tables = (*tables, LogOptions)
    main = MAIN_OPTIONS.union(*(table.MAIN for table in tables))
    for table in tables:
        for row in table.table():
            SETTINGS.setdefault(row.name, table)

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {parameter.name for parameter in own}
        rows = {row.name: row for table in tables for row in table.table()}
        made = [_parameter(row, main) for name, row in rows.items() if name not in without]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            logging = {row.name: values.pop(row.name, None) for row in LogOptions.table()}
            output.configure(LogOptions.build({k: v for k, v in logging.items() if v is not None}))
            for name, separator in _REPEATED.items():
                if values.get(name):
                    values[name] = separator.join(values[name])
            command(**{k: v for k, v in values.items() if k in names or v is not None})

        run.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        return run

    return decorate


def parse_address(value: str | None) -> str | None:
    """A partition's address, in any case and with or without hyphens."""
    word = (value or "").replace("-", "").upper()
    if value is not None and not re.fullmatch("[0-9A-F]{32}", word):
        why = "must be 32 hexadecimal digits, as 'dafka heads TOPIC' lists partitions"
        raise ConfigError("address", escape(value), why)
    return word or None


def needed(directory: str | None) -> str:
    """The directory of a store, which a flag, the environment or a file must name."""
    if directory is None:
        why = "must name the directory in which records are kept"
        raise typer.BadParameter(why, param_hint="'--dir'")
    return directory


def of_table(table: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that ``table`` declares."""
    return {row.name: options[row.name] for row in table.table() if row.name in options}


def _parameter(row: OptionInfo, main: Collection[str]) -> inspect.Parameter:
    annotation = Towers if row.name == "tower" else _annotation(row, main)
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _annotation(row: OptionInfo, main: Collection[str]) -> object:
    is_switch = isinstance(row.default, bool)
    flag = row.name.replace("_", "-")
    option = typer.Option(
        f"--{flag}/--no-{flag}" if row.default is True else f"--{flag}",
        help=_help(row),
        metavar="" if is_switch else _METAVARS.get(row.kind, row.kind.replace(" or ", "|")),
        rich_help_panel=None if row.name in main else "Tuning",
        show_default=False,
    )
    if row.name in _REPEATED:
        return Annotated[list[str] | None, option]
    return Annotated[bool | None if is_switch else str | None, option]


def _help(row: OptionInfo) -> str:
    text = row.meaning[:1].upper() + row.meaning[1:]
    if row.default in (None, (), "") or isinstance(row.default, bool):
        return f"{text}."
    return f"{text} (default {row.default}{' ' if row.unit else ''}{row.unit})."


class Watch:
    """What tells of a command's nodes, if anything does."""

    def __init__(self, endpoint: MetricsEndpoint | None = None) -> None:
        self._endpoint = endpoint

    @property
    def facts(self) -> dict[str, str]:
        """What READY says of it."""
        return {} if self._endpoint is None else {"metrics": self._endpoint.url}

    def add(self, *nodes: Node) -> None:
        """Has it tell of nodes, which are there now."""
        if self._endpoint is not None:
            self._endpoint.add(*nodes)


@contextmanager
def watching(what: str, options: Mapping[str, Any]) -> Iterator[Watch]:
    """Serves numbers of nodes where ``--metrics`` says so, also while they are being made.

    Raises:
        ConfigError: it cannot; or another option of it is given, and it is not.
    """
    given = of_table(MetricsOptions, options)
    config = MetricsOptions.build(given)
    if config.metrics is None:
        for name, value in given.items():
            why = "is of what is served with --metrics: say where, as --metrics 9108"
            raise ConfigError(name, value, why)
        yield Watch()
        return
    from dafka_core.ops.endpoint import MetricsEndpoint

    with MetricsEndpoint(
        config.metrics,
        topics=config.metrics_topics,
        token_file=config.metrics_token_file,
        insecure=bool(options.get("insecure")),
    ) as endpoint:
        endpoint.expect(what)
        output.say(f"metrics at {endpoint.url}/metrics")
        yield Watch(endpoint)


def unwatched(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same options; says that a command serves no numbers where ``--metrics`` asks for them."""
    if options.get("metrics") is not None:
        output.say("no metrics are served: this reads in bulk, and ends")
    return options


_WORDS: Final = {"beginning": EARLIEST, "start": EARLIEST, "end": LATEST}
_OFFSET: Final = re.compile(r"([+-]?)(\d{1,19})", re.ASCII)


def parse_offset(text: str) -> Position:
    """Parse an offset, a word, or a number of records counted from either end (``+N``, ``-N``)."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST, *_WORDS):
        return Position(_WORDS.get(word, word))
    match = _OFFSET.fullmatch(word)
    if match is None:
        raise ValueError(
            "must be earliest, latest, an offset, +N for N records after the earliest, or -N for "
            "the last N of each partition"
        )
    return Position({"": OFFSET, "+": EARLIEST, "-": LATEST}[match[1]], int(match[2]))
