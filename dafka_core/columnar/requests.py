"""What a Flight client asks, as versioned JSON: tickets, descriptors, criteria and actions.

Every request is an object with a member ``v``, the version (1).  An unknown member is refused, so
that a misspelt one is not passed over.  Parsing raises one error, ConfigError, which names the
member and says what would be right.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from dafka_core.columnar.limits import (
    MAX_ACTION_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_NAMES,
    MAX_REQUEST_BYTES,
    MAX_TIMES,
    MAX_WAIT_S,
)
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

HEADS_ACTION: Final = "dafka.heads.v1"
OFFSETS_ACTION: Final = "dafka.offsets.v1"
WAIT_ACTION: Final = "dafka.wait.v1"
STORES_ACTION: Final = "dafka.stores.v1"
DESCRIBE_ACTION: Final = "dafka.describe.v1"

_MIN_TIME_US, _MAX_TIME_US = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class GetRequest:
    """A ticket: the records from ``start`` up to ``end`` (exclusive) of one partition.

    ``columns`` says which columns the batches have, ``times`` whether each batch's metadata says
    when its records were stored; ``max_records`` and ``max_bytes`` (of values) are a batch's
    largest size.  ``store`` is the store meant, if another one must not answer.
    """

    topic: str
    partition: str
    start: int
    end: int
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    times: bool = False
    max_records: int = MAX_BATCH_RECORDS
    max_bytes: int = MAX_BATCH_BYTES
    store: str = ""

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed(
            topic=self.topic,
            partition=self.partition,
            start=self.start,
            end=self.end,
            columns=self.columns,
            times=self.times,
            max_records=self.max_records,
            max_bytes=self.max_bytes,
            store=self.store,
        )

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in a ticket.

        Raises:
            ConfigError: see the module.
        """
        members = _Members.parse("ticket", packed, MAX_REQUEST_BYTES)
        request = cls(
            members.topic(),
            members.partition(),
            members.offset("start"),
            members.offset("end"),
            members.columns(),
            members.flag("times"),
            members.size("max_records", MAX_BATCH_RECORDS),
            members.size("max_bytes", MAX_BATCH_BYTES),
            members.store(),
        )
        members.finish()
        check_range(request.start, request.end)
        return request


@dataclass(frozen=True, slots=True)
class PutRequest:
    """The descriptor of a put: its first record becomes offset ``start`` of the partition."""

    topic: str
    partition: str
    start: int
    store: str = ""

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed(
            topic=self.topic, partition=self.partition, start=self.start, store=self.store
        )

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in a descriptor's command.

        Raises:
            ConfigError: see the module.
        """
        members = _Members.parse("command", packed, MAX_REQUEST_BYTES)
        request = cls(
            members.topic(), members.partition(), members.offset("start"), members.store()
        )
        members.finish()
        return request


@dataclass(frozen=True, slots=True)
class InfoRequest:
    """The descriptor of a topic, or of one of its partitions.

    The other members become those of the tickets that the answer contains.
    """

    topic: str
    partition: str | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    max_records: int = MAX_BATCH_RECORDS
    max_bytes: int = MAX_BATCH_BYTES

    def packed(self) -> bytes:
        """The request as it travels."""
        partition = {} if self.partition is None else {"partition": self.partition}
        return _packed(
            topic=self.topic,
            columns=self.columns,
            max_records=self.max_records,
            max_bytes=self.max_bytes,
            **partition,
        )

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in a descriptor's command.

        Raises:
            ConfigError: see the module.
        """
        members = _Members.parse("command", packed, MAX_REQUEST_BYTES)
        request = cls(
            members.topic(),
            members.partition() if members.has("partition") else None,
            members.columns(),
            members.size("max_records", MAX_BATCH_RECORDS),
            members.size("max_bytes", MAX_BATCH_BYTES),
        )
        members.finish()
        return request

    @classmethod
    def of_path(cls, path: Sequence[bytes]) -> Self:
        """The request in a descriptor's path: a topic, or a topic and a partition.

        Raises:
            ConfigError: see the module.
        """
        shown = [each.decode("utf-8", "replace") for each in path[:3]]
        if len(path) not in (1, 2):
            raise ConfigError("path", short(shown), "must be [topic] or [topic, partition]")
        names = [each.decode("utf-8", "surrogateescape") for each in path]
        topic = _checked_topic("path", names[0])
        return cls(topic, _checked_partition("path", names[1]) if len(names) == 2 else None)


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which partitions to list: all, or those of one topic."""

    topic: str | None = None

    def packed(self) -> bytes:
        """The request as it travels."""
        return b"" if self.topic is None else _packed(topic=self.topic)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in the criteria of a listing; none at all means everything.

        Raises:
            ConfigError: see the module.
        """
        if not packed:
            return cls()
        members = _Members.parse("criteria", packed, MAX_REQUEST_BYTES)
        request = cls(members.topic() if members.has("topic") else None)
        members.finish()
        return request


@dataclass(frozen=True, slots=True)
class HeadsRequest:
    """What the store holds: of these topics, or of all (None)."""

    topics: tuple[str, ...] | None = None
    store: str = ""

    def packed(self) -> bytes:
        """The request as it travels."""
        topics = {} if self.topics is None else {"topics": self.topics}
        return _packed(store=self.store, **topics)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        members = _Members.parse("body", packed, MAX_ACTION_BYTES)
        topics = None
        if members.has("topics"):
            names = members.rows("topics", MAX_NAMES)
            topics = tuple(_checked_topic("topics", name) for name in names)
        request = cls(topics, members.store())
        members.finish()
        return request


class Moment(NamedTuple):
    """A time of a partition, in microseconds since the epoch UTC."""

    topic: str
    partition: str
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """The first offsets that were stored at these times or later."""

    moments: tuple[Moment, ...]
    store: str = ""

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed(times=self.moments, store=self.store)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        members = _Members.parse("body", packed, MAX_ACTION_BYTES)
        request = cls(tuple(map(_moment, members.rows("times", MAX_TIMES))), members.store())
        members.finish()
        return request


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Wait until the partition has its records up to ``end`` on disk, but ``timeout_s``."""

    topic: str
    partition: str
    end: int
    timeout_s: float
    store: str = ""

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed(
            topic=self.topic,
            partition=self.partition,
            end=self.end,
            timeout_s=self.timeout_s,
            store=self.store,
        )

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        members = _Members.parse("body", packed, MAX_ACTION_BYTES)
        request = cls(
            members.topic(),
            members.partition(),
            members.offset("end"),
            members.seconds("timeout_s", MAX_WAIT_S),
            members.store(),
        )
        members.finish()
        return request


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """An action that takes nothing; its body may be empty."""

    store: str = ""

    def packed(self) -> bytes:
        """The request as it travels."""
        return _packed(store=self.store)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        if not packed:
            return cls()
        members = _Members.parse("body", packed, MAX_ACTION_BYTES)
        request = cls(members.store())
        members.finish()
        return request


def check_names(topic: object, partition: object) -> None:
    """Raises ConfigError unless these can be the names of a partition."""
    _checked_topic("topic", topic)
    _checked_partition("partition", partition)


def check_range(start: int, end: int) -> None:
    """Raises ConfigError unless offsets from ``start`` up to ``end`` are a range."""
    for name, value in (("start", start), ("end", end)):
        _whole(name, value, 0, MAX_OFFSET)
    if start > end:
        raise ConfigError("end", end, f"must not be below start, which is {start}")


def _packed(**members: object) -> bytes:
    if not members.get("store", True):
        del members["store"]
    return json.dumps({"v": VERSION, **members}).encode("ascii")


class _Members:
    """The members of a request, each taken once; what is left over is not known."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found
        self._asked: list[str] = []

    @classmethod
    def parse(cls, what: str, packed: bytes, max_bytes: int) -> Self:
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
        if self._found.get(name) is not None:
            return True
        self._take(name)
        return False

    def topic(self) -> str:
        return _checked_topic("topic", self._take("topic"))

    def partition(self) -> str:
        return _checked_partition("partition", self._take("partition"))

    def offset(self, name: str) -> int:
        return _whole(name, self._take(name), 0, MAX_OFFSET)

    def size(self, name: str, most: int) -> int:
        return _whole(name, self._take(name, most), 1, most)

    def flag(self, name: str) -> bool:
        value = self._take(name, False)
        if not isinstance(value, bool):
            raise ConfigError(name, short(value), "must be true or false")
        return value

    def seconds(self, name: str, most: float) -> float:
        value = self._take(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= most:
            raise ConfigError(name, short(value), f"must be a number from 0 to {most}, in seconds")
        return float(value)

    def store(self) -> str:
        value = self._take("store", "")
        if not isinstance(value, str):
            raise ConfigError("store", short(value), "must be the address of a store")
        return value

    def columns(self) -> tuple[str, ...]:
        value = self._take("columns", list(DEFAULT_COLUMNS))
        if not isinstance(value, list):
            raise ConfigError("columns", short(value), "must be a list of names")
        return check_columns(value)

    def rows(self, name: str, most: int) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > most:
            raise ConfigError(name, short(value), f"must be a list of at most {most}")
        return value

    def finish(self) -> None:
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


def _moment(row: object) -> Moment:
    if not isinstance(row, list) or len(row) != 3:
        raise ConfigError("times", short(row), "must be lists of topic, partition, microseconds")
    topic = _checked_topic("times", row[0])
    partition = _checked_partition("times", row[1])
    return Moment(topic, partition, _whole("times", row[2], _MIN_TIME_US, _MAX_TIME_US))


def _checked_topic(member: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(member, short(name), "must be a topic's name")
    try:
        check_topic(name)
    except ProtocolError as error:
        raise ConfigError(member, short(name), error.reason) from error
    return name


def _checked_partition(member: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(member, short(name), "must be a partition's name")
    try:
        check_address(name)
    except ProtocolError as error:
        raise ConfigError(member, short(name), error.reason) from error
    return name


def _whole(member: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(member, short(value), f"must be a whole number from {least} to {most}")
    return value
