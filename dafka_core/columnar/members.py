"""Members of a request, taken one by one from JSON and checked.

Each check raises ConfigError, which names the member and says what would be right.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable
from typing import Any, Final, Self

from dafka_core.columnar.places import short
from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.protocol.checks import check_address, check_topic
from dafka_core.protocol.limits import MAX_SEQUENCE

VERSION: Final = 1

VALUE, OFFSET, TIMESTAMP, TOPIC, PARTITION = "value", "offset", "timestamp", "topic", "partition"
COLUMNS: Final = (VALUE, OFFSET, TIMESTAMP, TOPIC, PARTITION)
DEFAULT_COLUMNS: Final = (VALUE, OFFSET, TIMESTAMP)

MAX_OFFSET: Final = MAX_SEQUENCE + 1
"""The highest ``end`` there can be."""


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


def packed_members(**members: object) -> bytes:
    """A request as it travels; a member ``store`` that is empty is left out."""
    if not members.get("store", True):
        del members["store"]
    return json.dumps({"v": VERSION, **members}).encode("ascii")


class Members:
    """The members of a request, each taken once; what is left over is not known."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self._asked: list[str] = []

    @classmethod
    def parse(cls, what: str, packed: bytes, max_bytes: int) -> Self:
        """The members of a JSON object, which must have the member ``v``."""
        if len(packed) > max_bytes:
            raise ConfigError(what, f"{len(packed)} bytes", f"must have at most {max_bytes} bytes")
        try:
            found = json.loads(packed)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ConfigError(what, short(packed), "must be a JSON object (docs/flight.md)")
        members = cls(found)
        version = members._take("v")
        if type(version) is not int or version != VERSION:
            raise ConfigError("v", short(version), f"must be the request's version, {VERSION}")
        return members

    def _take(self, name: str, default: object = None) -> Any:
        self._asked.append(name)
        return self._found.pop(name, default)

    def has(self, name: str) -> bool:
        """Whether the member is there and not null."""
        if self._found.get(name) is not None:
            return True
        self._take(name)
        return False

    def topic(self) -> str:
        """Member ``topic``."""
        return checked_topic("topic", self._take("topic"))

    def partition(self) -> str:
        """Member ``partition``."""
        return checked_partition("partition", self._take("partition"))

    def offset(self, name: str) -> int:
        """An offset."""
        return whole(name, self._take(name), 0, MAX_OFFSET)

    def size(self, name: str, most: int) -> int:
        """A number from 1 to ``most``; that when it is not there."""
        return whole(name, self._take(name, most), 1, most)

    def flag(self, name: str) -> bool:
        """Whether the member is true; false when it is not there."""
        value = self._take(name, False)
        if not isinstance(value, bool):
            raise ConfigError(name, short(value), "must be true or false")
        return value

    def seconds(self, name: str, most: float) -> float:
        """A number of seconds from 0 to ``most``."""
        value = self._take(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= most:
            raise ConfigError(name, short(value), f"must be a number from 0 to {most}, in seconds")
        return float(value)

    def store(self) -> str:
        """Member ``store``; empty when it is not there."""
        value = self._take("store", "")
        if not isinstance(value, str):
            raise ConfigError("store", short(value), "must be the address of a store")
        return value

    def columns(self) -> tuple[str, ...]:
        """Member ``columns``; the default ones when it is not there."""
        value = self._take("columns", list(DEFAULT_COLUMNS))
        if not isinstance(value, list):
            raise ConfigError("columns", short(value), "must be a list of names")
        return check_columns(value)

    def rows(self, name: str, most: int) -> list[Any]:
        """A list of at most ``most``."""
        value = self._take(name)
        if not isinstance(value, list) or len(value) > most:
            raise ConfigError(name, short(value), f"must be a list of at most {most}")
        return value

    def finish(self) -> None:
        """Refuses what is left."""
        if self._found:
            name = min(self._found)
            why = f"there is no such member; there are {', '.join(self._asked)}"
            raise ConfigError(str(short(name)), short(self._found[name]), why)


def check_columns(names: Iterable[object]) -> tuple[str, ...]:
    """The names, if they are columns, none twice.

    Raises:
        ConfigError: they are not.
    """
    checked: list[str] = []
    for name in names:
        if not isinstance(name, str) or name not in COLUMNS:
            near = difflib.get_close_matches(str(name)[:100], COLUMNS, 1)
            why = f"did you mean {near[0]}?" if near else f"must be of {', '.join(COLUMNS)}"
            raise ConfigError("columns", short(name), why)
        if name in checked:
            raise ConfigError("columns", name, "is there twice")
        checked.append(name)
    if not checked:
        raise ConfigError("columns", [], f"must name some of {', '.join(COLUMNS)}")
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
