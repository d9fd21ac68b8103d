"""What a Flight client asks, as versioned JSON: tickets, descriptors, criteria and actions.

Every request is an object with a member ``v``, the version (1).  An unknown member is refused, so
that a misspelt one is not passed over.  A class below declares each member with its check, in
the order in which they are looked at; ``members.py`` packs and parses by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, NamedTuple, Self

from dafka_core.errors import ConfigError
from dafka_core.flight.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_NAMES,
    MAX_REQUEST_BYTES,
    MAX_TIMES,
    MAX_TRANSACTIONS,
    MAX_TRANSACTIONS_BYTES,
)
from dafka_core.flight.request_members import (
    DEFAULT_COLUMNS,
    Request,
    check_range,
    checked_attempt,
    checked_columns,
    checked_flag,
    checked_offset,
    checked_partition,
    checked_row,
    checked_seconds,
    checked_store,
    checked_topic,
    checked_transaction,
    checked_version,
    rows_of,
    up_to,
    whole,
)
from dafka_core.flight.store_location import short
from dafka_core.records import NO_VERSION, StagedTransaction, TopicPartition, Transaction

HEADS_ACTION: Final = "dafka.heads.v1"
OFFSETS_ACTION: Final = "dafka.offsets.v1"
WAIT_ACTION: Final = "dafka.wait.v1"
TRANSACTIONS_ACTION: Final = "dafka.transactions.v1"
COMMIT_ACTION: Final = "dafka.commit.v1"
DISCARD_ACTION: Final = "dafka.discard.v1"
STORES_ACTION: Final = "dafka.stores.v1"
DESCRIBE_ACTION: Final = "dafka.describe.v1"

_MIN_TIME_US, _MAX_TIME_US = -(2**63), 2**63 - 1


class PartitionTime(NamedTuple):
    """A time of a partition, in microseconds since the epoch UTC."""

    topic: str
    partition: str
    timestamp_us: int

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class StagedAttempt(NamedTuple):
    """What an attempt has staged in a partition."""

    topic: str
    partition: str
    attempt: str

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def checked_moment(member: str, row: object) -> PartitionTime:
    """The moment that a row of three is.

    Raises:
        ConfigError: it is none.
    """
    topic, partition, time_us = checked_row(member, row, "topic, partition, microseconds")
    return PartitionTime(
        checked_topic(member, topic),
        checked_partition(member, partition),
        whole(member, time_us, _MIN_TIME_US, _MAX_TIME_US),
    )


def checked_names(member: str, row: object) -> TopicPartition:
    """The names of a partition that a row of two is.

    Raises:
        ConfigError: it is none.
    """
    topic, partition = checked_row(member, row, "topic, partition")
    return TopicPartition(checked_topic(member, topic), checked_partition(member, partition))


def checked_stage(member: str, row: object) -> StagedAttempt:
    """The stage that a row of three is.

    Raises:
        ConfigError: it is none.
    """
    topic, partition, attempt = checked_row(member, row, "topic, partition, attempt")
    return StagedAttempt(
        checked_topic(member, topic),
        checked_partition(member, partition),
        checked_attempt(member, attempt),
    )


def checked_commit(member: str, row: object) -> StagedTransaction:
    """The unit to be committed that a row of six is.

    Raises:
        ConfigError: it is none.
    """
    names = "topic, partition, attempt, start, end, number"
    topic, partition, attempt, start, end, version = checked_row(member, row, names)
    stage = checked_stage(member, (topic, partition, attempt))
    start, end = checked_offset(member, start), checked_offset(member, end)
    if start >= end:
        raise ConfigError(member, short(row), "must have records: start below end")
    return StagedTransaction(*stage, start, end, checked_version(member, version))


class _OfPartition:
    """A request about one partition."""

    __slots__ = ()
    topic: str
    partition: str

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


Topic = Annotated[str, checked_topic]
Partition = Annotated[str, checked_partition]
Offset = Annotated[int, checked_offset]
Columns = Annotated[tuple[str, ...], checked_columns]
Records = Annotated[int, up_to(MAX_BATCH_RECORDS)]
Bytes = Annotated[int, up_to(MAX_BATCH_BYTES)]
Store = Annotated[str, checked_store]


@dataclass(frozen=True, slots=True)
class GetRequest(_OfPartition, Request):
    """A ticket: the records from ``start`` up to ``end`` (exclusive) of one partition.

    ``columns`` says which columns the batches have, ``times`` whether each batch's metadata says
    when its records were stored; ``max_records`` and ``max_bytes`` (of values) are a batch's
    largest size.  ``store`` is the store meant, if another one must not answer.
    """

    _what: ClassVar = "ticket"
    _largest_bytes: ClassVar = MAX_REQUEST_BYTES

    topic: Topic
    partition: Partition
    start: Offset
    end: Offset
    columns: Columns = DEFAULT_COLUMNS
    times: Annotated[bool, checked_flag] = False
    max_records: Records = MAX_BATCH_RECORDS
    max_bytes: Bytes = MAX_BATCH_BYTES
    store: Store = ""

    def check(self) -> None:
        """The range is one."""
        check_range(self.start, self.end)


@dataclass(frozen=True, slots=True)
class PutRequest(_OfPartition, Request):
    """The descriptor of a put: its first record becomes offset ``start`` of the partition.

    With an ``attempt`` the records are staged, for the unit of that number if it has one.
    """

    _what: ClassVar = "command"
    _largest_bytes: ClassVar = MAX_REQUEST_BYTES

    topic: Topic
    partition: Partition
    start: Offset
    attempt: Annotated[str, checked_attempt] = ""
    version: Annotated[int, checked_version] = NO_VERSION
    store: Store = ""

    def check(self) -> None:
        """A unit is what an attempt stages."""
        if self.version != NO_VERSION and not self.attempt:
            raise ConfigError("version", self.version, "is staged: name the 'attempt', too")


@dataclass(frozen=True, slots=True)
class InfoRequest(Request):
    """The descriptor of a topic, or of one of its partitions.

    The other members become those of the tickets that the answer contains.
    """

    _what: ClassVar = "command"
    _largest_bytes: ClassVar = MAX_REQUEST_BYTES

    topic: Topic
    partition: Annotated[str | None, checked_partition] = None
    columns: Columns = DEFAULT_COLUMNS
    max_records: Records = MAX_BATCH_RECORDS
    max_bytes: Bytes = MAX_BATCH_BYTES

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
class Criteria(Request):
    """Which partitions to list: all, or those of one topic."""

    _what: ClassVar = "criteria"
    _largest_bytes: ClassVar = MAX_REQUEST_BYTES
    _may_be_empty: ClassVar = True

    topic: Annotated[str | None, checked_topic] = None


@dataclass(frozen=True, slots=True)
class HeadsRequest(Request):
    """What the store holds: of these topics, or of all (None)."""

    topics: Annotated[tuple[str, ...] | None, rows_of(checked_topic, MAX_NAMES)] = None
    store: Store = ""


@dataclass(frozen=True, slots=True)
class OffsetsRequest(Request):
    """The first offsets that were stored at these times or later."""

    times: Annotated[tuple[PartitionTime, ...], rows_of(checked_moment, MAX_TIMES)]
    store: Store = ""


@dataclass(frozen=True, slots=True)
class WaitRequest(_OfPartition, Request):
    """Wait until the partition has its records up to ``end`` on disk, but ``timeout_s``.

    With a ``transaction`` also until the marker says that it has that one, or a newer one.
    """

    topic: Topic
    partition: Partition
    end: Offset
    timeout_s: Annotated[float, checked_seconds]
    transaction: Annotated[Transaction | None, checked_transaction] = None
    store: Store = ""

    def check(self) -> None:
        """A unit is among the records that are waited for."""
        if self.transaction is not None and self.transaction.end > self.end:
            raise ConfigError(
                "transaction", list(self.transaction), f"must not end above end, {self.end}"
            )


@dataclass(frozen=True, slots=True)
class TransactionsRequest(Request):
    """How far the units of these partitions are."""

    _largest_bytes: ClassVar = MAX_TRANSACTIONS_BYTES

    partitions: Annotated[tuple[TopicPartition, ...], rows_of(checked_names, MAX_TRANSACTIONS)]
    store: Store = ""


@dataclass(frozen=True, slots=True)
class CommitRequest(Request):
    """Make what was staged visible, all of it or nothing."""

    _largest_bytes: ClassVar = MAX_TRANSACTIONS_BYTES

    transactions: Annotated[
        tuple[StagedTransaction, ...], rows_of(checked_commit, MAX_TRANSACTIONS)
    ]
    store: Store = ""

    def check(self) -> None:
        """A partition has one unit at a time."""
        seen: set[tuple[str, str]] = set()
        for transaction in self.transactions:
            if transaction[:2] in seen:
                raise ConfigError(
                    "transactions", short(list(transaction)), "names a partition twice"
                )
            seen.add(transaction[:2])


@dataclass(frozen=True, slots=True)
class DiscardRequest(Request):
    """Give up what was staged."""

    _largest_bytes: ClassVar = MAX_TRANSACTIONS_BYTES

    stages: Annotated[tuple[StagedAttempt, ...], rows_of(checked_stage, MAX_TRANSACTIONS)]
    store: Store = ""


@dataclass(frozen=True, slots=True)
class PlainRequest(Request):
    """An action that takes nothing; its body may be empty."""

    _may_be_empty: ClassVar = True

    store: Store = ""
