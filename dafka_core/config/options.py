"""Options: declared once, as fields of a frozen dataclass, with default, unit and meaning.

Parsing, validation, the tables in the documentation and ``--help`` come from these declarations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.model.name_limits import nearest
from dafka_core.model.names import escape

DEFAULT_TOWER = "127.0.0.1:5556:5557"
DEFAULT_SUB_PORT = 5556
DEFAULT_PUB_PORT = 5557

# By unit: larger numbers overflow in the system.  Such a time is practically endless.
MOST: Final[Mapping[str, float]] = {"s": 10**9, "ms": 2 * 10**9, "h": 10**6, "messages": 2**31 - 1}

# Of numbers, by the last word of an option's name, unless it declares another unit.
UNITS: Final = {"ms": "ms", "s": "s", "hours": "h"} | {
    word: word for word in ("bytes", "records", "partitions", "topics")
}

T = TypeVar("T")


class OptionInfo(NamedTuple):
    """One row of an options table, its checks, and the name of its ``field`` in the dataclass."""

    name: str
    kind: str
    default: object
    unit: str
    meaning: str
    parse: Callable[[Any], Any] = str
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[str] = ()
    field: str = ""

    def checked(self, value: Any) -> Any:
        """Parse a value; raise ConfigError if it is invalid."""
        try:
            parsed = self.parse(value)
        except ConfigError:  # from the environment variable that replaces the option
            raise
        except (ValueError, TypeError) as error:
            raise ConfigError(self.name, value, str(error)) from None
        if self.choices and parsed not in self.choices:
            raise ConfigError(self.name, value, f"must be one of {', '.join(self.choices)}")
        if parsed is None or isinstance(parsed, (str, tuple)):
            return parsed
        if self.minimum is not None and parsed < self.minimum:
            raise ConfigError(self.name, value, f"must be at least {self.minimum}")
        if self.maximum is not None and parsed > self.maximum:
            raise ConfigError(self.name, value, f"must be at most {self.maximum}")
        return parsed


def option(
    default: T,
    meaning: str,
    *,
    kind: str = "",
    parse: Callable[[Any], T] | None = None,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
) -> T:
    """Declare one option as a dataclass field.

    ``parse`` takes the value as given (often a string) and raises ``ValueError`` with a sentence
    about valid values; without it the default's type decides.
    """
    kind = " or ".join(choices) or kind or type(default).__name__
    made = parse or _PARSERS[type(default)]
    info = OptionInfo("", kind, default, unit, meaning, made, minimum, maximum, choices)
    return dataclasses.field(default=default, metadata={"option": info})


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of every set of options: a frozen dataclass with fields made by ``option``."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(lambda name: name)
    """Converts a field's name to the users' name (Spark writes ``fetchTimeoutMs``)."""

    MAIN: ClassVar[frozenset[str]] = frozenset()
    """Options that ``--help`` lists first, beside those of ``cli.flags.MAIN_OPTIONS``."""

    @classmethod
    def build(cls, given: Mapping[str, Any]) -> Self:
        """Parse options by their users' names; raise ConfigError if one is unknown or invalid."""
        declared = cls.declared()
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in declared:
                raise ConfigError(name, value, unknown(name, declared))
            values[declared[name].field] = declared[name].checked(value)
        return cls(**values)

    @classmethod
    def declared(cls) -> Mapping[str, OptionInfo]:
        """Return the options by their users' names, in the order of their declaration."""
        found = {}
        for field in dataclasses.fields(cls):
            if info := field.metadata.get("option"):
                word = field.name.rpartition("_")[2] if info.kind in ("int", "float") else ""
                unit = info.unit or UNITS.get(word, "")
                maximum = MOST.get(unit) if info.maximum is None else info.maximum
                name = cls.RENAME(field.name)
                found[name] = info._replace(name=name, unit=unit, maximum=maximum, field=field.name)
        return found

    @classmethod
    def declared_in(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some options that ``table`` lists."""
        return {row.name: given[row.name] for row in cls.table() if row.name in given}

    @classmethod
    def table(cls) -> list[OptionInfo]:
        """Return the options that help and documentation list."""
        return list(cls.declared().values())


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the sentence for an unknown option: the nearest known one, or a list of all."""
    return f"unknown option; {nearest(name, sorted(known))}"


def check_argument(name: str, value: Any, check: Callable[[Any], None]) -> None:
    """Raise ConfigError with the argument's name if ``check`` refuses its value."""
    shown = escape(value) if isinstance(value, str) else value
    why = f"must not be of type {type(value).__name__}"
    is_broken = hasattr(value, "__int__") and not hasattr(value, "__index__")  # as a Decimal
    if is_broken or isinstance(value, bool):
        raise ConfigError(name, value, why)
    try:
        check(value)
    except ProtocolError as error:
        raise ConfigError(name, shown, error.reason) from None
    except (TypeError, AttributeError):
        raise ConfigError(name, value, why) from None


def parse_bool(value: Any) -> bool:
    """Parse ``true`` or ``false``, in any case, or a bool."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def parse_int(value: Any) -> int:
    """Parse a whole number."""
    if not isinstance(value, (bool, float)):
        with contextlib.suppress(ValueError, TypeError):
            return int(value)
    raise ValueError("must be a whole number")


def parse_float(value: Any) -> float:
    """Parse a finite number."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def parse_str(value: Any) -> str:
    """Parse a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string that is not empty")
    return value


_PARSERS: Final = {bool: parse_bool, int: parse_int, float: parse_float, str: parse_str}
