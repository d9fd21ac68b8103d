"""What commands are told beside their flags: by the environment, and by a file with profiles.

A flag counts most, then the environment (``DAFKA_ACKS`` for ``--acks``), then the file, then the
default.  In the file a profile counts more than what is outside of profiles, and in each of both a
command's own section more than what is for all commands.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dafka_core.cli.flags import SETTINGS
from dafka_core.errors import ConfigError
from dafka_core.names import escape
from dafka_core.near_names import nearest_name, what_there_is
from dafka_core.options import unknown

FILE: Final = "dafka.toml"
PREFIX: Final = "DAFKA_"
CONFIG: Final = f"{PREFIX}CONFIG"
PROFILE: Final = f"{PREFIX}PROFILE"

_PROFILE, _PROFILES, _COMMANDS = "profile", "profiles", "commands"
"""What a file has beside settings."""

DEFAULT: Final = "default"
FLAG: Final = "flag"

Known = Mapping[str, frozenset[str]]
"""The settings that each command takes, by its name: ``checkpoint verify``."""


class Found(NamedTuple):
    """A value, and who says it: the sentence's beginning if it is wrong, and for ``config``."""

    value: Any
    origin: str


class _Section(NamedTuple):
    where: str
    command: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """The environment and the file, as they are when the command begins.

    Attributes:
        path: the file; None where there is none.
        profile: the one that counts, or empty.
        sections: of the file, the ones that count, what counts most first.
    """

    path: Path | None = None
    profile: str = ""
    sections: tuple[_Section, ...] = ()

    def find(self, name: str, command: str = "") -> Found | None:
        """What is said of a setting, to one command or to all; None where nothing is."""
        variable = PREFIX + name.upper()
        if value := os.environ.get(variable):
            return Found(_checked(name, value, variable, "environment variable"), variable)
        for section in self.sections:
            if section.command in ("", command) and name in section.values:
                return Found(section.values[name], section.where)
        return None

    def of_commands(self) -> Iterator[tuple[str, str, Found]]:
        """What the file says to single commands: command, setting and value."""
        for section in self.sections:
            if section.command:
                for name, value in section.values.items():
                    yield section.command, name, Found(value, section.where)


def read(config: str | None, profile: str | None, known: Known) -> Configuration:
    """The file, found and checked.

    Args:
        config, profile: as flags say them.

    Raises:
        ConfigError: it is not there, is no TOML, names what is not there, or a value is wrong.
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
        raise ConfigError("profile", chosen, f"{path or 'no file'} has none of this name; {near}")
    return Configuration(path, str(chosen), tuple(sections))


def misspelt_variables() -> list[str]:
    """Sentences on variables that no command reads, and that look as if one should."""
    known = {PREFIX + name.upper() for name in SETTINGS} | {CONFIG, PROFILE}
    return [
        f"environment variable {escape(name)} is not read; did you mean {near}?"
        for name in sorted({each for each in os.environ if each.startswith(PREFIX)} - known)
        if (near := nearest_name(name, known))
    ]


def _path(config: str | None) -> Path | None:
    if named := config or os.environ.get(CONFIG):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    places = [Path(FILE), Path(base).expanduser() / "dafka" / FILE]
    return next((each for each in places if each.is_file()), None)


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
            raise ConfigError(name, "{...}", f"there is no such command; {near}", f"{path} section")
        at = f"{path} [{inside}{_COMMANDS}.{name}]"
        own = _table(path, f"{inside}{_COMMANDS}.", commands, name)
        yield _Section(at, name, _values(at, own, known[name]))
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
        parsed = SETTINGS[name].parsed(name, value)
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
