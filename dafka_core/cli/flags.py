"""Options of commands, declared once or generated from option tables; ``--metrics``; parsers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from dafka_core.cli import output
from dafka_core.cli.output import LogOptions
from dafka_core.cli.store_clients import StoreFinder
from dafka_core.config.node_options import TOWER_ENVIRONMENT, MetricsOptions, ReaderOptions
from dafka_core.config.options import DEFAULT_TOWER, MOST, OptionInfo, Options, check_argument
from dafka_core.config.options import option as declared
from dafka_core.errors import ConfigError
from dafka_core.model.name_limits import check_topic
from dafka_core.model.names import escape, unescape
from dafka_core.model.positions import EARLIEST, LATEST, OFFSET, Position, parse_time_us
from dafka_core.ops.store_extension import store_extensions

AS_JSON: Final = "lists_json"
"""The parameter that becomes the setting ``json`` of the output when a command is called."""

PREFIX: Final = "DAFKA_"  # prefix of environment variables: ``DAFKA_ACKS`` for ``--acks``

MAIN_OPTIONS: Final = frozenset(
    {
        *("host", "sub_address", "pub_address", "acks", "flight_port"),
        *("metrics", "retain", "retain_until_read", "archive", "compress"),
    }
)
"""Options that ``--help`` lists first, with ``tower`` and ``Options.MAIN``."""

_REPEATED: Final = {"tower": ",", "retain": " ", "compress": " "}
"""Options that may be given several times, and the separator that joins their values."""

_METAVARS: Final = {"int": "N", "float": "N", "str": "TEXT"}

_WORDS: Final = {"beginning": EARLIEST, "start": EARLIEST, "end": LATEST}
_OFFSET: Final = re.compile(r"([+-]?)(\d{1,19})", re.ASCII)


@dataclass(frozen=True)
class CommandOptions(Options):
    """Options of commands that are settings, too, but not options of a node."""

    dir: str = declared("", "a store's directory", kind="DIR")
    timeout_s: float = declared(10.0, "time to wait for stores", unit="s", minimum=0.01)
    stores: str = declared(
        "", "stores to query by Arrow Flight, without a tower", kind="grpc://HOST:PORT,..."
    )
    min_stores: str = declared(
        "", "fail unless this number of stores, or each known store, responds", kind="N|all"
    )
    json: bool = declared(False, "print a JSON object on each line")


SETTINGS: Final[dict[str, type[Options]]] = {}
"""Settings that a file or the environment may contain, and the tables that declare them."""


def settings_of(command: click.Command) -> dict[str, Option]:
    """Return the options of a command that are settings, by setting name."""
    options = (each for each in command.params if isinstance(each, Option))
    return {each.setting: each for each in options if each.setting in SETTINGS}


def add_settings(*tables: type[Options]) -> None:
    """Let a file and the environment contain the options of tables that commands take."""
    for table in tables:
        for row in table.table():
            SETTINGS.setdefault(row.name, table)


add_settings(CommandOptions, LogOptions)


class Option(click.Option):
    """An option in a section of the help, and its name in a file as ``setting``, if it has one."""

    def __init__(
        self,
        names: Collection[str],
        section: str = "Options",
        *,
        is_setting: bool = True,
        **more: Any,
    ) -> None:
        super().__init__([*names], **more)
        self.section = section
        self.setting = self.opts[0].lstrip("-").replace("-", "_") if is_setting else ""


def option(*names: str, **more: Any) -> Callable[[Any], Any]:
    """Add an option to a command's function."""
    return click.option(*names, cls=Option, **more)


argument: Final = click.argument


class Parsed(click.ParamType[Any]):
    """The type of a value that a function parses; its ValueError tells what is valid."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed text, or fail with the reason."""
        try:
            return self._parse(value)
        except ConfigError:
            raise
        except ValueError as error:
            self.fail(f"{escape(value)!r}: {error}", param, ctx)


class Number(click.FloatRange):
    """The type of a finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail with the reason."""
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


def parse_topic(text: str) -> str:
    """Parse a topic's name, with bytes that are not printable escaped as lists show them."""
    topic = unescape(text)
    check_argument("topic", topic, check_topic)
    return topic


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


TOPIC: Final = Parsed(parse_topic)
TIME: Final = Parsed(parse_time_us)
"""A time, a date or an age, in microseconds since 1970 UTC."""

topic_argument: Final = argument("topic", type=TOPIC, metavar="TOPIC")

directory_option: Final = partial(
    option, "--dir", "directory", metavar="DIR", help="The store's directory."
)
json_option: Final = option(
    "--json", AS_JSON, is_flag=True, help="Print a JSON object on each line."
)
result_option: Final = option(
    "--json", AS_JSON, is_flag=True, help="Print the result as a JSON object."
)
timeout_option: Final = option(
    "--timeout-s",
    type=Number(0.01, MOST["s"]),
    default=10.0,
    metavar="NUMBER",
    help="Time to wait for stores.",
)
stores_option: Final = option(
    "--stores",
    "uris",
    default="",
    show_default=False,
    metavar="URIS",
    help="Stores to query by Arrow Flight, without a tower: grpc://HOST:PORT,...",
)
min_stores_option: Final = option(
    "--min-stores", metavar="N|all", help="Fail unless N stores, or all known stores, respond."
)


def _exit_with_parent(ctx: click.Context, parameter: click.Parameter, is_set: bool) -> None:
    from dafka_core.cli.process import stop_when_input_ends

    if is_set:
        stop_when_input_ends()


exit_with_parent_option: Final = option(
    "--exit-with-parent",
    is_flag=True,
    hidden=True,
    callback=_exit_with_parent,
    expose_value=False,
)
"""For programs that start nodes: the node stops when its standard input ends."""


class _Text(click.ParamType[Any]):
    """The text of an option in a table; its node parses it, and names the flag in errors."""

    name = "text"

    def __init__(self, row: OptionInfo) -> None:
        self._row = row

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        assert ctx is not None
        if ctx.get_parameter_source(self._row.name) is ParameterSource.ENVIRONMENT:
            try:
                self._row.checked(value)
            except ConfigError as error:
                name = PREFIX + self._row.name.upper()
                raise ConfigError(name, value, error.why, "environment variable") from None
        return value


def options_of(*tables: type[Options], without: Collection[str] = ()) -> list[Option]:
    """Return an option for each row of tables."""
    main = MAIN_OPTIONS.union({"tower"}, *(table.MAIN for table in tables))
    rows = {row.name: row for table in tables for row in table.table()}
    return [_option(row, main) for name, row in rows.items() if name not in without]


def table_options(
    *tables: type[Options], without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of tables to a command's function.

    It gets them as ``**options``: only those that the user gave, as text. The node that takes them
    parses and checks them.
    """
    made = options_of(*tables, LogOptions, without=without)
    names = {each.name for each in made}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(*context: click.Context, **values: Any) -> None:
            if ctx := click.get_current_context(silent=True):
                _drop_unused(ctx, values)
            given = {k: v for k, v in values.items() if k not in names or v not in (None, ())}
            logging = {row.name: given.pop(row.name, None) for row in LogOptions.table()}
            output.configure(LogOptions.build({k: v for k, v in logging.items() if v is not None}))
            for name, separator in _REPEATED.items():
                if isinstance(given.get(name), tuple):
                    given[name] = separator.join(given[name])
            function(*context, **given)

        vars(run)["__click_params__"] = made[::-1]
        return run

    return decorate


def reads_stores(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that asks stores; it gets them as a ``StoreFinder``."""

    @wraps(function)
    def run(*, uris: str, timeout_s: float, min_stores: str | None = None, **values: Any) -> None:
        options = ReaderOptions.declared_in(values)
        others = {name: value for name, value in values.items() if name not in options}
        function(finder=StoreFinder(uris, timeout_s, options, min_stores), **others)

    command = table_options(ReaderOptions)(run)
    for each in (stores_option, timeout_option, json_option):
        command = each(command)
    return command


def is_given(parameter: str) -> bool:
    """Return whether a flag of the command, not a file or the environment, has a value."""
    ctx = click.get_current_context(silent=True)
    return ctx is None or ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def _drop_unused(ctx: click.Context, values: dict[str, Any]) -> None:
    """Ignore settings of an extension, or of ``--metrics``, that is off; such flags are errors."""
    tables: dict[str, type[Options]] = {each.switch: each.options for each in store_extensions()}
    tables["metrics"] = MetricsOptions
    for switch, table in tables.items():
        if switch in values and not values[switch]:
            for name in {row.name for row in table.table()} & values.keys():
                if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                    values[name] = None


def _option(row: OptionInfo, main: Collection[str]) -> Option:
    flag = f"--{row.name.replace('_', '-')}"
    text = row.meaning[:1].upper() + row.meaning[1:]
    is_switch = isinstance(row.default, bool)
    if row.default not in (None, (), "") and not is_switch:
        text += f" (default {row.default}{' ' if row.unit else ''}{row.unit})"
    metavar = _METAVARS.get(row.kind, row.kind.replace(" or ", "|"))
    if row.name == "tower":
        metavar = "HOST[:SUB_PORT:PUB_PORT]"
        text = "A tower to join through; may be given several times. Default: "
        text += f"{TOWER_ENVIRONMENT} from the environment, or {DEFAULT_TOWER}"
    kind: dict[str, Any] = {"is_flag": True, "default": None}
    if not is_switch:
        kind = {"type": _Text(row), "metavar": metavar, "multiple": row.name in _REPEATED}
    names = (f"{flag}/--no-{flag[2:]}" if row.default is True else flag, row.name)
    section = "Options" if row.name in main else "Tuning"
    return Option(names, section, help=f"{text}.", **kind)


def parse_address(text: str) -> str:
    """Parse a partition's address, in any case and with or without hyphens."""
    word = text.replace("-", "").upper()
    if not re.fullmatch("[0-9A-F]{32}", word):
        why = "must be 32 hexadecimal digits; 'dafka heads TOPIC' lists the partitions"
        raise ConfigError("address", escape(text), why)
    return word


@contextmanager
def file_errors(name: str, path: str | Path, use: str, kind: str = "option") -> Iterator[None]:
    """Report an OSError as an error in an option or argument: its path cannot be ``use``."""
    try:
        yield
    except OSError as error:
        why = f"cannot be {use}: {error.strerror}"
        raise ConfigError(name, escape(str(path)), why, kind) from None


def needed(directory: str | None) -> str:
    """Return a store's directory, which a flag, the environment or a file must name."""
    if directory is None:
        raise click.BadParameter("is required: the store's directory", param_hint="'--dir'")
    return directory


class Watch(NamedTuple):
    """How a command's nodes are watched: not at all, unless ``--metrics`` names an address."""

    add: Callable[..., object] = lambda *nodes: None
    """Serves the metrics of nodes that have started."""
    facts: Mapping[str, str] = {}  # for the READY line


@contextmanager
def watching(what: str, options: Mapping[str, Any]) -> Iterator[Watch]:
    """Serve metrics at the address of ``--metrics``, also while the nodes start.

    Raises:
        ConfigError: the address cannot be used, or other metrics options lack ``--metrics``.
    """
    given = MetricsOptions.declared_in(options)
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
        yield Watch(endpoint.add, {"metrics": endpoint.url})
