"""Members of a request, taken one by one from JSON and checked.

Each check raises ConfigError, which names the member and says what would be right.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar, get_type_hints

from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.flight.limits import MAX_ACTION_BYTES, MAX_WAIT_S
from dafka_core.flight.store_location import short
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.validation import check_address, check_topic
from dafka_core.records import NO_VERSION, Transaction

VERSION: Final = 1

VALUE, OFFSET, TIMESTAMP, TOPIC, PARTITION = "value", "offset", "timestamp", "topic", "partition"
COLUMNS: Final = (VALUE, OFFSET, TIMESTAMP, TOPIC, PARTITION)
DEFAULT_COLUMNS: Final = (VALUE, OFFSET, TIMESTAMP)

MAX_OFFSET: Final = MAX_SEQUENCE + 1
"""The highest ``end`` there can be."""

_ATTEMPT: Final = re.compile("[0-9A-F]{32}")

T = TypeVar("T")


def check_names(topic: object, partition: object) -> None:
    """Raises ConfigError unless these can be the names of a partition."""
    checked_topic("topic", topic)
    checked_partition("partition", partition)


def check_range(start: int, end: int) -> None:
    """Raises ConfigError unless offsets from ``start`` up to ``end`` are a range."""
    for name, value in (("start", start), ("end", end)):
        whole(name, value, 0, MAX_OFFSET)
    if start > end:
        raise ConfigError("end", end, f"must not be below start, which is {start}")


class Request:
    """A request as JSON: what a dataclass declares its members to be.

    Each field's type is annotated with its check, a function of the member's name and value that
    gives what the field becomes.  A member that is its default is left out, and is the default
    when it is left out; null means the same where None is the default.

    A class may also say where its request travels, how long that may be, and whether no octets
    at all are the request with all defaults.
    """

    __slots__ = ()

    _what: ClassVar[str] = "body"
    _largest_bytes: ClassVar[int] = MAX_ACTION_BYTES
    _may_be_empty: ClassVar[bool] = False

    def packed(self) -> bytes:
        """The request as it travels."""
        said = {
            field.name: value
            for field in fields(self)  # type: ignore[arg-type]  # the classes below are some
            if (value := getattr(self, field.name)) != field.default
        }
        if not said and self._may_be_empty:
            return b""
        return json.dumps({"v": VERSION, **said}).encode("ascii")

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request that travelled.

        Raises:
            ConfigError: it is none; the member is named.
        """
        if not packed and cls._may_be_empty:
            return cls()
        found = _parse_object(cls._what, packed, cls._largest_bytes)
        version = found.pop("v", None)
        if type(version) is not int or version != VERSION:
            raise ConfigError("v", short(version), f"must be the request's version, {VERSION}")
        declared = fields(cls)  # type: ignore[arg-type]
        checks = _checks(cls)  # type: ignore[arg-type]  # a class is hashable
        taken: dict[str, Any] = {}
        for field in declared:
            name = field.name
            absent = name not in found or (field.default is None and found[name] is None)
            value = found.pop(name, None)
            if not absent or field.default is MISSING:
                taken[name] = checks[name](name, value)
        if found:
            known = ", ".join(["v", *(field.name for field in declared)])
            name = min(found)
            why = f"there is no such member; there are {known}"
            raise ConfigError(str(short(name)), short(found[name]), why)
        request = cls(**taken)
        request.check()
        return request

    def checked(self) -> Self:
        """The request as whoever parses it will have it.

        Raises:
            ConfigError: it would be refused.
        """
        return self.parse(self.packed())

    def check(self) -> None:
        """Raises ConfigError unless the members, each right in itself, are right together."""


@cache
def _checks(kind: type[Request]) -> dict[str, Callable[[str, Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in fields(kind)}  # type: ignore[arg-type]


def _parse_object(what: str, packed: bytes, max_bytes: int) -> dict[str, Any]:
    if len(packed) > max_bytes:
        raise ConfigError(what, f"{len(packed)} bytes", f"must have at most {max_bytes} bytes")
    try:
        found = json.loads(packed)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(what, short(packed), "must be a JSON object (docs/flight.md)")
    return found


def checked_columns(member: str, names: object) -> tuple[str, ...]:
    """The names, if they are columns, none twice."""
    if not isinstance(names, list | tuple):
        raise ConfigError(member, short(names), "must be a list of names")
    checked: list[str] = []
    for name in names:
        if not isinstance(name, str) or name not in COLUMNS:
            near = difflib.get_close_matches(str(name)[:100], COLUMNS, 1)
            why = f"did you mean {near[0]}?" if near else f"must be of {', '.join(COLUMNS)}"
            raise ConfigError(member, short(name), why)
        if name in checked:
            raise ConfigError(member, name, "is there twice")
        checked.append(name)
    if not checked:
        raise ConfigError(member, [], f"must name some of {', '.join(COLUMNS)}")
    return tuple(checked)


def checked_topic(member: str, name: object) -> str:
    """The name, if it can be a topic's."""
    if not isinstance(name, str):
        raise ConfigError(member, short(name), "must be a topic's name")
    try:
        check_topic(name)
    except ProtocolError as error:
        raise ConfigError(member, short(name), error.reason) from error
    return name


def checked_partition(member: str, name: object) -> str:
    """The name, if it can be a partition's."""
    if not isinstance(name, str):
        raise ConfigError(member, short(name), "must be a partition's name")
    try:
        check_address(name)
    except ProtocolError as error:
        raise ConfigError(member, short(name), error.reason) from error
    return name


def checked_store(member: str, name: object) -> str:
    """The name, if it can be a store's; empty for any store."""
    if not isinstance(name, str):
        raise ConfigError(member, short(name), "must be the address of a store")
    return name


def checked_flag(member: str, value: object) -> bool:
    """The value, if it is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(member, short(value), "must be true or false")
    return value


def checked_offset(member: str, value: object) -> int:
    """The value, if it can be an offset, or an end."""
    return whole(member, value, 0, MAX_OFFSET)


def checked_seconds(member: str, value: object) -> float:
    """The value, if it is as many seconds as an action may wait."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_WAIT_S:  # type: ignore[operator]
        why = f"must be a number from 0 to {MAX_WAIT_S}, in seconds"
        raise ConfigError(member, short(value), why)
    return float(value)  # type: ignore[arg-type]  # it is a number


def checked_attempt(member: str, value: object) -> str:
    """The value, if it can be an attempt: 32 upper-case hexadecimal digits, not all zero."""
    if not isinstance(value, str) or not _ATTEMPT.fullmatch(value) or not value.strip("0"):
        why = "must be 32 upper-case hexadecimal digits, not all zero"
        raise ConfigError(member, short(value), why)
    return value


def checked_version(member: str, value: object) -> int:
    """The value, if it can be a unit's number, or ``NO_VERSION``."""
    return whole(member, value, NO_VERSION, MAX_SEQUENCE)


def checked_transaction(member: str, value: object) -> Transaction:
    """The unit that a row of number, start and end is."""
    number, start, end = checked_row(member, value, "number, start, end")
    number = whole(member, number, 0, MAX_SEQUENCE)
    start, end = checked_offset(member, start), checked_offset(member, end)
    if start >= end:
        raise ConfigError(member, short(value), "must have records: start below end")
    return Transaction(number, start, end)


def up_to(most: int) -> Callable[[str, object], int]:
    """The check of a number from 1 to ``most``."""
    return lambda member, value: whole(member, value, 1, most)


def rows_of(check: Callable[[str, object], T], most: int) -> Callable[[str, object], tuple[T, ...]]:
    """The check of a list of at most ``most`` that ``check`` takes."""

    def checked(member: str, value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple) or len(value) > most:
            raise ConfigError(member, short(value), f"must be a list of at most {most}")
        return tuple(check(member, row) for row in value)

    return checked


def checked_row(member: str, value: object, names: str) -> Sequence[Any]:
    """The value, if it is a row of as many as ``names`` says."""
    if not isinstance(value, list | tuple) or len(value) != names.count(",") + 1:
        raise ConfigError(member, short(value), f"must be lists of {names}")
    return value


def checked_size(name: str, value: object, most: int) -> int:
    """A size that a caller wants at most, or ``most`` where that is less."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(name, value, "must be a whole number, at least 1")
    return min(value, most)


def whole(member: str, value: object, least: int, most: int) -> int:
    """The value, if it is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(member, short(value), f"must be a whole number from {least} to {most}")
    return value
