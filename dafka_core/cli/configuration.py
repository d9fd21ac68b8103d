"""Settings of commands from the environment and a file with profiles, and ``dafka config``."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from dafka_core.cli import output
from dafka_core.cli.flags import SETTINGS, AsJson
from dafka_core.config.options import Options, unknown
from dafka_core.errors import HIDDEN, ConfigError, is_secret
from dafka_core.model.name_limits import nearest_name, what_there_is
from dafka_core.model.names import escape
from dafka_core.ops.metrics_options import MetricsOptions
from dafka_core.ops.store_extension import store_extensions

# Precedence: a flag, then the environment (``DAFKA_ACKS`` for ``--acks``), then the file, then
# the default. In the file a profile overrides settings outside of profiles, and in both a
# command's own section overrides settings for all commands.


FILE: Final = "dafka.toml"
PREFIX: Final = "DAFKA_"
CONFIG: Final = f"{PREFIX}CONFIG"
PROFILE: Final = f"{PREFIX}PROFILE"

_PROFILE, _PROFILES, _COMMANDS = "profile", "profiles", "commands"
"""Reserved keys of a file; all others are settings."""

DEFAULT: Final = "default"
FLAG: Final = "flag"

Known = Mapping[str, Callable[[], frozenset[str]]]
"""Functions that return the settings of each command by its full name: ``checkpoint verify``."""


class Found(NamedTuple):
    """A setting's value and its origin, which errors and ``dafka config`` show."""

    value: Any
    origin: str


class _Section(NamedTuple):
    where: str
    command: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """Settings of the environment and the file when the command starts.

    Attributes:
        path: the file, if one was found.
        profile: the chosen profile, or empty.
        sections: the applicable sections of the file in order of precedence.
    """

    path: Path | None = None
    profile: str = ""
    sections: tuple[_Section, ...] = ()

    def find(self, name: str, command: str = "") -> Found | None:
        """Return the value of a setting for a command, or for all commands without one."""
        variable = PREFIX + name.upper()
        if value := os.environ.get(variable):
            return Found(_checked(name, value, variable, "environment variable"), variable)
        for section in self.sections:
            if section.command in ("", command) and name in section.values:
                return Found(section.values[name], section.where)
        return None

    def of_commands(self) -> Iterator[tuple[str, str, Found]]:
        """Yield the file's settings for single commands: command, setting and value."""
        for section in self.sections:
            if section.command:
                for name, value in section.values.items():
                    yield section.command, name, Found(value, section.where)


def read(config: str | None, profile: str | None, known: Known) -> Configuration:
    """Find, read and check the file.

    Args:
        config, profile: the values of these flags.

    Raises:
        ConfigError: the file is missing or not TOML, or contains an unknown name or an invalid
            value.
    """
    path = _path(config)
    content = {} if path is None else _content(path)
    chosen = profile or os.environ.get(PROFILE) or content.get(_PROFILE, "")
    profiles = _table(path, "", content, _PROFILES)
    sections = [*_sections(path, "", content, known)]
    for name in profiles:
        of_profile = _table(path, f"{_PROFILES}.", profiles, name)
        found = [*_sections(path, f"{_PROFILES}.{name}", of_profile, known)]
        if name == chosen:
            sections = [*found, *sections]
    if chosen and chosen not in profiles:
        near = what_there_is(str(chosen), {*map(str, profiles)}, "profiles")
        where = f"{path} does not define it" if path else "no configuration file was found"
        raise ConfigError("profile", chosen, f"{where}; {near}")
    return Configuration(path, str(chosen), tuple(sections))


def misspelt_variables() -> list[str]:
    """Return warnings about unknown environment variables that resemble a setting's."""
    known = {PREFIX + name.upper() for name in SETTINGS} | {CONFIG, PROFILE}
    return [
        f"environment variable {escape(name)} is not read; did you mean {near}?"
        for name in sorted({each for each in os.environ if each.startswith(PREFIX)} - known)
        if (near := nearest_name(name, known))
    ]


def _path(config: str | None) -> Path | None:
    if named := config or os.environ.get(CONFIG):
        return Path(named)
    places = [Path(FILE)]
    with suppress(RuntimeError):  # without HOME, for a user without an entry in passwd
        base = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
        places.append(base.expanduser() / "dafka" / FILE)
    found = next((each for each in places if each.is_file()), None)
    if found is not None:
        status = found.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH:
            why = "belongs to another user, or others may write it: name it to use it"
            raise ConfigError("config", str(found), why)
    return found


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # also of what is not UTF-8
        raise ConfigError("config", str(path), f"is not TOML: {error}") from None


def _sections(
    path: Path | None, where: str, content: Mapping[str, Any], known: Known
) -> Iterator[_Section]:
    inside = f"{where}." if where else ""
    commands = _table(path, inside, content, _COMMANDS)
    for name in commands:
        if name not in known:
            near = what_there_is(name, {*known}, "commands")
            raise ConfigError(name, "{...}", f"is not a command; {near}", f"{path} section")
        at = f"{path} [{inside}{_COMMANDS}.{name}]"
        own = _table(path, f"{inside}{_COMMANDS}.", commands, name)
        yield _Section(at, name, _values(at, own, known[name]()))
    at = f"{path} [{where}]" if where else f"{path}"
    reserved = {_COMMANDS} if where else {_COMMANDS, _PROFILE, _PROFILES}
    general = {name: value for name, value in content.items() if name not in reserved}
    yield _Section(at, "", _values(at, general, frozenset(SETTINGS)))


def _values(where: str, given: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    for name, value in given.items():
        if name not in names:
            raise ConfigError(name, value, unknown(name, names), f"{where} setting")
    return {name: _checked(name, value, name, f"{where} setting") for name, value in given.items()}


def _checked(name: str, value: Any, shown: str, kind: str) -> Any:
    try:
        parsed = SETTINGS[name].declared()[name].checked(value)
    except ConfigError as error:
        raise ConfigError(shown, value, error.why, kind) from None
    if isinstance(value, list):
        return [*map(str, value)]
    return parsed if isinstance(parsed, bool | float) else str(value)


def _table(path: Path | None, where: str, content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}{name}", found, "must be a section", f"{path} setting")
    return found


_META: Final = "dafka."
"""Prefix of the keys in a context's ``meta``."""


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
        help="The configuration file; default: DAFKA_CONFIG, dafka.toml in the current "
        "directory, or ~/.config/dafka/dafka.toml.",
        callback=_note("config"),
        expose_value=False,
        rich_help_panel="Configuration",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A profile of that file; default: DAFKA_PROFILE, or the file's own setting.",
        callback=_note("profile"),
        expose_value=False,
        rich_help_panel="Configuration",
    ),
]


def _hide_headings(_: typer.Context, hidden: bool) -> bool:
    if hidden:
        output.settings.headings = False
    return hidden


NoHeadings = Annotated[
    bool,
    typer.Option(
        "--no-headings",
        help="Print lists without a line of headings.",
        callback=_hide_headings,
        expose_value=False,
        rich_help_panel="Configuration",
    ),
]

SHARED: Final = frozenset({"config", "profile", "no_headings"})
"""Options of ``dafka`` that each command takes as well."""


def name_of(ctx: Any) -> str:
    """Return a command's name without the program's."""
    return " ".join(ctx.command_path.split()[1:])


def commands(ctx: Any) -> Mapping[str, Callable[[], Any]]:
    """Return functions that load each command, and each group that is one, by its full name."""
    found: Mapping[str, Callable[[], Any]] = ctx.find_root().command.commands.full_names()
    return found


def settings_of(command: Any) -> dict[str, Any]:
    """Return the parameters of a command that are settings, by setting name."""
    named = {each.opts[0].lstrip("-").replace("-", "_"): each for each in command.params}
    return {name: each for name, each in named.items() if name in SETTINGS}


def read_of(ctx: Any) -> Configuration:
    """Read the configuration that a context's flags name; raise as ``read`` does."""
    config, profile = ctx.meta.get(f"{_META}config"), ctx.meta.get(f"{_META}profile")
    return read(config, profile, {k: _settings(load) for k, load in commands(ctx).items()})


def _settings(load: Callable[[], Any]) -> Callable[[], frozenset[str]]:
    return lambda: frozenset(settings_of(load()))


def origins(ctx: Any) -> dict[str, Found]:
    """Return the settings of a parsed command with their values and origins."""
    known: dict[str, str] = ctx.meta.get(_META + ctx.command_path, {})
    return {
        name: Found(ctx.params.get(each.name), known[name])
        for name, each in settings_of(ctx.command).items()
    }


def with_shared(ctx: Any, own: list[Any]) -> list[Any]:
    """Return a command's own parameters, and those of ``dafka`` that each command takes."""
    root = ctx.find_root()
    if root is ctx:
        return own
    return [*own, *(each for each in root.command.params if each.name in SHARED)]


def fill(ctx: Any) -> None:
    """Set the options that are not given as flags from the environment and the file."""
    if ctx.resilient_parsing or ctx.parent is None:
        return
    found = read_of(ctx)
    origin_of = ctx.meta[_META + ctx.command_path] = {}
    for name, parameter in settings_of(ctx.command).items():
        origin_of[name] = FLAG
        if ctx.get_parameter_source(parameter.name).name != "COMMANDLINE":
            origin_of[name] = DEFAULT
            if setting := found.find(name, name_of(ctx)):
                origin_of[name] = setting.origin
                ctx.params[parameter.name] = _given(setting.value, is_list=parameter.multiple)
    _drop_unused(ctx, origin_of)
    if not ctx.meta.get(f"{_META}warned"):
        ctx.meta[f"{_META}warned"] = True
        for sentence in misspelt_variables():
            output.info(sentence)


def _given(value: Any, *, is_list: bool) -> Any:
    if is_list:
        return value if isinstance(value, list) else [value]
    return ",".join(value) if isinstance(value, list) else value


def _drop_unused(ctx: Any, origin_of: dict[str, str]) -> None:
    """Ignore settings of an extension, or of ``--metrics``, that is off; such flags are errors."""
    tables: dict[str, type[Options]] = {each.switch: each.options for each in store_extensions()}
    tables["metrics"] = MetricsOptions
    for switch, table in tables.items():
        if switch not in origin_of or ctx.params.get(switch):
            continue
        for row in table.table():
            if origin_of.get(row.name, FLAG) not in (FLAG, DEFAULT):
                ctx.params[row.name], origin_of[row.name] = None, DEFAULT


_COLUMNS: Final = ("command", "option", "value", "from")


def config(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND [FLAGS]]",
            show_default=False,
            help="A command, to list only its options, with these flags applied.",
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the value of each option and its origin: flag, environment, file or default.

    Without a command it lists the settings for all commands, then the file's settings for single
    commands.
    """
    found = read_of(ctx)
    rows = [*_of_command(ctx, words)] if words else [*_of_all(found)]
    if found.path is not None:
        chosen = f", profile {found.profile}" if found.profile else ""
        output.info(f"configuration file {found.path}{chosen}")
    output.table(_COLUMNS, rows, as_json=as_json)


def _of_all(found: Any) -> Iterator[tuple[str, ...]]:
    for name, table in sorted(SETTINGS.items()):
        default = next(row.default for row in table.table() if row.name == name)
        yield _row("", name, found.find(name) or Found(default, DEFAULT))
    for command, name, each in found.of_commands():
        yield _row(command, name, each)


def _of_command(ctx: typer.Context, words: list[str]) -> Iterator[tuple[str, ...]]:
    known = commands(ctx)
    count = max((n for n in range(1, len(words) + 1) if " ".join(words[:n]) in known), default=0)
    if not count:
        near = what_there_is(words[0], {*known}, "commands")
        raise typer.BadParameter(f"unknown command {words[0]!r} ({near})")
    name = " ".join(words[:count])
    command = known[name]()
    for parameter in command.params:
        parameter.required = False
    parent = ctx.find_root()
    of_command = command.make_context(name, words[count:], parent=parent)
    rows = {row.name: row for table in SETTINGS.values() for row in table.table()}
    for option, each in sorted(origins(of_command).items()):
        at = each._replace(value=rows[option].default) if each.origin == DEFAULT else each
        yield _row(name, option, at)


def _row(command: str, name: str, found: Found) -> tuple[str, ...]:
    value = found.value
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return command, name, HIDDEN if is_secret(name) else str(value), found.origin
