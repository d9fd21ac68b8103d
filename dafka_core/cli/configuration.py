"""Settings of commands from the environment and a file with profiles, and ``dafka config``."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from dafka_core.cli import output
from dafka_core.cli.flags import (
    PREFIX,
    SETTINGS,
    Option,
    argument,
    file_errors,
    json_option,
    settings_of,
)
from dafka_core.config.options import unknown
from dafka_core.errors import HIDDEN, ConfigError, is_secret
from dafka_core.model.name_limits import nearest_name, what_there_is
from dafka_core.model.names import escape

# Click's precedence: a flag, then the environment (``DAFKA_ACKS`` for ``--acks``), then the file,
# then the default. In the file a profile overrides settings outside of profiles, and in both a
# command's own section overrides settings for all commands.


FILE: Final = "dafka.toml"
CONFIG: Final = f"{PREFIX}CONFIG"
PROFILE: Final = f"{PREFIX}PROFILE"

_PROFILE, _PROFILES, _COMMANDS = "profile", "profiles", "commands"
"""Reserved keys of a file; all others are settings."""

DEFAULT: Final = "default"
FLAG: Final = "flag"

Known = Mapping[str, Callable[[], click.Command]]
"""Functions that load each command by its full name, such as ``checkpoint verify``."""


class Found(NamedTuple):
    """A setting's value and its origin, which errors and ``dafka config`` show."""

    value: Any
    origin: str


_Setting = tuple[str, str, Found]
"""A command, or empty for all commands; the setting's name, and its value."""


@dataclass(frozen=True)
class Configuration:
    """Settings of the environment and the file when the command starts."""

    path: Path | None = None  # the file, if one was found
    profile: str = ""  # the chosen profile, or empty
    settings: tuple[_Setting, ...] = ()  # of the sections that apply, in order of precedence

    def find(self, name: str, command: str = "") -> Found | None:
        """Return the file's value for a command, or for all commands without one."""
        found = (each for of, own, each in self.settings if own == name and of in ("", command))
        return next(found, None)


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
    chosen = profile or os.environ.get(PROFILE) or str(content.get(_PROFILE, ""))
    profiles = _table(path, "", content, _PROFILES)
    settings = [*_settings(path, "", content, known)]
    for name in profiles:
        of_profile = _table(path, f"{_PROFILES}.", profiles, name)
        found = [*_settings(path, f"{_PROFILES}.{name}", of_profile, known)]
        if name == chosen:
            settings = [*found, *settings]
    if chosen and chosen not in profiles:
        near = what_there_is(chosen, {*profiles}, "profiles")
        where = f"{path} does not define it" if path else "no configuration file was found"
        raise ConfigError("profile", chosen, f"{where}; {near}")
    return Configuration(path, chosen, tuple(settings))


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
    import tomllib

    with file_errors("config", path, "read"):
        content = path.read_bytes()
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:  # also of what is not UTF-8
        raise ConfigError("config", str(path), f"is not TOML: {error}") from None


def _settings(
    path: Path | None, where: str, content: Mapping[str, Any], known: Known
) -> Iterator[_Setting]:
    inside = f"{where}." if where else ""
    commands = _table(path, inside, content, _COMMANDS)
    for name in commands:
        if name not in known:
            near = what_there_is(name, {*known}, "commands")
            raise ConfigError(name, "{...}", f"is not a command; {near}", f"{path} section")
        at = f"{path} [{inside}{_COMMANDS}.{name}]"
        own = _table(path, f"{inside}{_COMMANDS}.", commands, name)
        yield from _checked_all(at, name, own, settings_of(known[name]()))
    at = f"{path} [{where}]" if where else f"{path}"
    reserved = {_COMMANDS} if where else {_COMMANDS, _PROFILE, _PROFILES}
    general = {name: value for name, value in content.items() if name not in reserved}
    yield from _checked_all(at, "", general, [*SETTINGS, *reserved])


def _checked_all(
    where: str, command: str, given: Mapping[str, Any], names: Collection[str]
) -> Iterator[_Setting]:
    for name, value in given.items():
        if name not in names:
            raise ConfigError(name, value, unknown(name, names), f"{where} setting")
        yield command, name, Found(_checked(name, value, name, f"{where} setting"), where)


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
"""Prefix of the keys in the ``meta`` of contexts, which a command shares with its group."""


def _note(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[f"{_META}{parameter.name}"] = value


def _hide_headings(ctx: click.Context, parameter: click.Parameter, is_hidden: bool) -> None:
    if is_hidden:
        output.settings.headings = False


SHARED: Final = (
    Option(
        ["--config"],
        "Configuration",
        metavar="FILE",
        help="The configuration file; default: DAFKA_CONFIG, dafka.toml in the current "
        "directory, or ~/.config/dafka/dafka.toml.",
        callback=_note,
        is_eager=True,
        expose_value=False,
    ),
    Option(
        ["--profile"],
        "Configuration",
        metavar="NAME",
        help="A profile of that file; default: DAFKA_PROFILE, or the file's own setting.",
        callback=_note,
        is_eager=True,
        expose_value=False,
    ),
    Option(
        ["--no-headings"],
        "Configuration",
        is_flag=True,
        help="Print lists without a line of headings.",
        callback=_hide_headings,
        expose_value=False,
    ),
)
"""Options of ``dafka`` and of each command."""


def commands(ctx: click.Context) -> Known:
    """Return all commands, and each group that is one."""
    root: Any = ctx.find_root().command
    return {name: each.load for name, each in root.row.full_names().items()}


def read_of(ctx: click.Context) -> Configuration:
    """Read the configuration that a context's flags name, once; raise as ``read`` does."""
    key = ctx.meta.get(f"{_META}config"), ctx.meta.get(f"{_META}profile")
    files = ctx.meta.setdefault(f"{_META}files", {})
    if key not in files:
        if not files:
            for sentence in misspelt_variables():
                output.info(sentence)
        files[key] = read(*key, commands(ctx))
    found: Configuration = files[key]
    return found


class FileSettings(dict[str, Any]):
    """The file's settings of a command by parameter, read when the first one is needed."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__()
        self._ctx = ctx
        self._options = {each.name: each for each in settings_of(ctx.command).values()}

    def find(self, setting: str) -> Found | None:
        """Return the value of a setting, and its origin."""
        name = " ".join(self._ctx.command_path.split()[1:])
        return read_of(self._ctx).find(setting, name)

    def __contains__(self, name: object) -> bool:
        return self[str(name)] is not None

    def __missing__(self, name: str) -> Any:
        option = self._options.get(name)
        if option is None or self._ctx.resilient_parsing:
            return None
        found = self.find(option.setting)
        value = None if found is None else found.value
        if option.multiple and value is not None:
            return value if isinstance(value, list) else [value]
        return ",".join(value) if isinstance(value, list) else value


@click.pass_context
@argument(
    "words",
    nargs=-1,
    metavar="[COMMAND [FLAGS]]",
    help="A command, to list only its options, with these flags applied.",
)
@json_option
def config(ctx: click.Context, words: Sequence[str]) -> None:
    """Show the value of each option and its origin: flag, environment, file or default.

    Without a command it lists the settings for all commands, then the file's settings for single
    commands.
    """
    found = read_of(ctx)
    rows = [*_of_command(ctx, words)] if words else [*_of_all(found)]
    if found.path is not None:
        chosen = f", profile {found.profile}" if found.profile else ""
        output.info(f"configuration file {found.path}{chosen}")
    output.table(("command", "option", "value", "from"), rows)


def _of_all(found: Configuration) -> Iterator[tuple[str, ...]]:
    for name, table in sorted(SETTINGS.items()):
        row = next(row for row in table.table() if row.name == name)
        if value := os.environ.get(PREFIX + name.upper()):
            checked = _checked(name, value, PREFIX + name.upper(), "environment variable")
            yield _row("", name, Found(checked, PREFIX + name.upper()))
        else:
            yield _row("", name, found.find(name) or Found(row.default, DEFAULT))
    yield from (_row(*each) for each in found.settings if each[0])


def _of_command(ctx: click.Context, words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    known = commands(ctx)
    count = max((n for n in range(1, len(words) + 1) if " ".join(words[:n]) in known), default=0)
    if not count:
        near = what_there_is(words[0], {*known}, "commands")
        raise click.BadParameter(f"unknown command {words[0]!r} ({near})")
    name = " ".join(words[:count])
    command = known[name]()
    for parameter in command.params:
        parameter.required = False
    of_command = command.make_context(name, [*words[count:]], parent=ctx.find_root())
    rows = {row.name: row for table in SETTINGS.values() for row in table.table()}
    for setting, option in sorted(settings_of(command).items()):
        value = of_command.params.get(option.name or "")
        match of_command.get_parameter_source(option.name or ""):
            case ParameterSource.COMMANDLINE:
                found = Found(value, FLAG)
            case ParameterSource.ENVIRONMENT:
                found = Found(value, PREFIX + setting.upper())
            case ParameterSource.DEFAULT_MAP:
                found = FileSettings(of_command).find(setting) or Found(value, DEFAULT)
            case _:
                found = Found(rows[setting].default, DEFAULT)
        yield _row(name, setting, found)


def _row(command: str, name: str, found: Found) -> tuple[str, ...]:
    value = found.value
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return command, name, HIDDEN if is_secret(name) else str(value), found.origin
