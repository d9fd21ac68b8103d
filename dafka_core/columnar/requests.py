"""What a Flight client asks, as versioned JSON: tickets, descriptors, criteria and actions.

Every request is an object with a member ``v``, the version (1).  An unknown member is refused, so
that a misspelt one is not passed over.  Parsing raises one error, ConfigError, which names the
member and says what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from dafka_core.columnar.limits import (
    MAX_ACTION_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_NAMES,
    MAX_REQUEST_BYTES,
    MAX_TIMES,
    MAX_WAIT_S,
)
from dafka_core.columnar.members import (
    DEFAULT_COLUMNS,
    Members,
    check_range,
    checked_partition,
    checked_topic,
    packed_members,
    whole,
)
from dafka_core.columnar.places import short
from dafka_core.errors import ConfigError

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
        return packed_members(
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
        members = Members.parse("ticket", packed, MAX_REQUEST_BYTES)
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
        return packed_members(
            topic=self.topic, partition=self.partition, start=self.start, store=self.store
        )

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in a descriptor's command.

        Raises:
            ConfigError: see the module.
        """
        members = Members.parse("command", packed, MAX_REQUEST_BYTES)
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
        return packed_members(
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
        members = Members.parse("command", packed, MAX_REQUEST_BYTES)
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
        topic = checked_topic("path", names[0])
        return cls(topic, checked_partition("path", names[1]) if len(names) == 2 else None)


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which partitions to list: all, or those of one topic."""

    topic: str | None = None

    def packed(self) -> bytes:
        """The request as it travels."""
        return b"" if self.topic is None else packed_members(topic=self.topic)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in the criteria of a listing; none at all means everything.

        Raises:
            ConfigError: see the module.
        """
        if not packed:
            return cls()
        members = Members.parse("criteria", packed, MAX_REQUEST_BYTES)
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
        return packed_members(store=self.store, **topics)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        members = Members.parse("body", packed, MAX_ACTION_BYTES)
        topics = None
        if members.has("topics"):
            names = members.rows("topics", MAX_NAMES)
            topics = tuple(checked_topic("topics", name) for name in names)
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
        return packed_members(times=self.moments, store=self.store)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        members = Members.parse("body", packed, MAX_ACTION_BYTES)
        request = cls(tuple(map(checked_moment, members.rows("times", MAX_TIMES))), members.store())
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
        return packed_members(
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
        members = Members.parse("body", packed, MAX_ACTION_BYTES)
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
        return packed_members(store=self.store)

    @classmethod
    def parse(cls, packed: bytes) -> Self:
        """The request in an action's body.

        Raises:
            ConfigError: see the module.
        """
        if not packed:
            return cls()
        members = Members.parse("body", packed, MAX_ACTION_BYTES)
        request = cls(members.store())
        members.finish()
        return request


def checked_moment(row: object) -> Moment:
    """The moment that a row of three is.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(row, list | tuple) or len(row) != 3:
        raise ConfigError("times", short(row), "must be lists of topic, partition, microseconds")
    topic = checked_topic("times", row[0])
    partition = checked_partition("times", row[1])
    return Moment(topic, partition, whole("times", row[2], _MIN_TIME_US, _MAX_TIME_US))
