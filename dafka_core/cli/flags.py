"""Flags of commands, generated from option tables; ``--metrics``; parsers of arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.output import LogOptions
from dafka_core.config.node_options import TOWER_ENVIRONMENT
from dafka_core.config.options import DEFAULT_TOWER, MOST, OptionInfo, Options, option
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
        *("host", "sub_address", "pub_address", "acks", "flight_port"),
        *("metrics", "retain", "retain_until_read", "archive", "compress"),
    }
)
"""Options that ``--help`` lists first, with ``tower`` and ``Options.MAIN``."""

SETTINGS: Final[dict[str, type[Options]]] = {}
"""Settings that a file or the environment may contain, and the tables that declare them."""

_REPEATED: Final = {"tower": ",", "retain": " ", "compress": " "}
"""Options that may be given several times, and the separator that joins their values."""

_METAVARS: Final = {"int": "N", "float": "N", "str": "TEXT"}

Towers = Annotated[
    list[str] | None,
    typer.Option(
        "--tower",
        metavar="HOST[:SUB_PORT:PUB_PORT]",
        help=f"A tower to join through; may be given several times. Default: "
        f"{TOWER_ENVIRONMENT} from the environment, or {DEFAULT_TOWER}.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, parser=unescape)]
"""A topic's name, with bytes that are not printable escaped as lists show them."""
_DIRECTORY: Final = typer.Option("--dir", metavar="DIR", help="The store's directory.")
Directory = Annotated[str, _DIRECTORY]
MaybeDirectory = Annotated[str | None, _DIRECTORY]
"""Optional, as ``dafka store`` has subcommands that take a directory themselves."""
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object on each line.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout-s",
        min=0.01,
        max=MOST["s"],
        metavar="NUMBER",
        help="Time to wait for stores.",
    ),
]
Uris = Annotated[
    str,
    typer.Option(
        "--stores",
        metavar="URIS",
        help="Stores to query by Arrow Flight, without a tower: grpc://HOST:PORT,...",
        show_default=False,
    ),
]
MinStores = Annotated[
    str | None,
    typer.Option(
        "--min-stores",
        metavar="N|all",
        help="Fail unless N stores, or all known stores, respond.",
        show_default=False,
    ),
]
WithResult = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object.")]
ExitWithParent = Annotated[bool, typer.Option("--exit-with-parent", hidden=True)]
"""For programs that start nodes: the node stops when its standard input ends."""


@dataclass(frozen=True)
class CommandOptions(Options):
    """Options of commands that are settings, too, but not options of a node."""

    dir: str = option("", "a store's directory", kind="DIR")
    timeout_s: float = option(10.0, "time to wait for stores", unit="s", minimum=0.01)
    stores: str = option(
        "", "stores to query by Arrow Flight, without a tower", kind="grpc://HOST:PORT,..."
    )
    min_stores: str = option(
        "", "fail unless this number of stores, or each known store, responds", kind="N|all"
    )
    json: bool = option(False, "print a JSON object on each line")


SETTINGS.update({row.name: CommandOptions for row in CommandOptions.table()})


def add_settings(tables: Iterable[type[Options]]) -> None:
    """Let a file and the environment contain the options of tables that commands take."""
    found: list[type[Options]] = [*tables, LogOptions]
    for table in found:
        for row in table.table():
            SETTINGS.setdefault(row.name, table)


def with_options(
    *tables: type[Options], without: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Add the options of ``tables`` to the parameters that a command declares.

    The command gets them as ``**options``: only those that the user gave, as text. The node that
    takes them parses and checks them.
    """
    tables = (*tables, LogOptions)
    main = MAIN_OPTIONS.union(*(table.MAIN for table in tables))

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
    """Parse a partition's address, in any case and with or without hyphens."""
    word = (value or "").replace("-", "").upper()
    if value is not None and not re.fullmatch("[0-9A-F]{32}", word):
        why = "must be 32 hexadecimal digits; 'dafka heads TOPIC' lists the partitions"
        raise ConfigError("address", escape(value), why)
    return word or None


def needed(directory: str | None) -> str:
    """Return a store's directory, which a flag, the environment or a file must name."""
    if directory is None:
        raise typer.BadParameter("is required: the store's directory", param_hint="'--dir'")
    return directory


def of_table(table: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that ``table`` declares."""
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
    """The metrics endpoint of a command's nodes, if it has one."""

    def __init__(self, endpoint: MetricsEndpoint | None = None) -> None:
        self._endpoint = endpoint

    @property
    def facts(self) -> dict[str, str]:
        """Its facts for the READY line."""
        return {} if self._endpoint is None else {"metrics": self._endpoint.url}

    def add(self, *nodes: Node) -> None:
        """Serve the metrics of nodes that have started."""
        if self._endpoint is not None:
            self._endpoint.add(*nodes)


@contextmanager
def watching(what: str, options: Mapping[str, Any]) -> Iterator[Watch]:
    """Serve metrics at the address of ``--metrics``, also while the nodes start.

    Raises:
        ConfigError: the address cannot be used, or other metrics options lack ``--metrics``.
    """
    given = of_table(MetricsOptions, options)
    config = MetricsOptions.build(given)
    if config.metrics is None:
        for name, value in given.items():
            why = "requires --metrics: add an address, such as --metrics 9108"
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
        output.info(f"metrics at {endpoint.url}/metrics")
        yield Watch(endpoint)


def warn_no_metrics(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options; warn if they contain ``--metrics``, which a bulk read ignores."""
    if options.get("metrics") is not None:
        output.info("--metrics is ignored: a command that reads in bulk serves no metrics")
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
            "the last N records of each partition"
        )
    return Position({"": OFFSET, "+": EARLIEST, "-": LATEST}[match[1]], int(match[2]))
