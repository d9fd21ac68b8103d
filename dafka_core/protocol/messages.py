"""The nine commands of RFC 46 and our extensions, as frozen objects that cannot be invalid.

Sequences are as on the wire: inclusive, so ``Head.sequence`` is the last record's.  Their
exclusive counterpart, which everything else here uses, is ``end``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dafka_core.protocol.fields import (
    Address,
    AnyAddress,
    AnyTopic,
    End,
    FetchCount,
    HeadEntry,
    Heads,
    Locations,
    MaybeTransaction,
    Number,
    Offset,
    QueryId,
    TimeEntry,
    Times,
    Topic,
    Topics,
    kinds_of,
)
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.validation import (
    check_batch,
    check_part,
    check_transaction,
    unpack_batch,
)
from dafka_core.records import TopicPartition

__all__ = ["HeadEntry", "TimeEntry"]


class _Checked:
    """A message that has been checked once it is made, field by field and as a whole."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            kind.check(getattr(self, name))
        self.check()

    def check(self) -> None:
        """Raises ProtocolError unless the fields, each right in itself, are right together."""


class _OfPartition(_Checked):
    """A message about one partition."""

    __slots__ = ()
    topic: str
    partition: str

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class _UpTo(_OfPartition):
    """A message that says how far a partition goes: up to ``sequence``, inclusive."""

    __slots__ = ()
    sequence: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.sequence + 1


@dataclass(frozen=True, slots=True)
class RecordMessage(_OfPartition):
    """RECORD, from a producer to stores and consumers: "Topic is the name of the topic"."""

    topic: Topic
    partition: Address
    sequence: Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class DirectRecord(_OfPartition):
    """DIRECT-RECORD, the answer to a FETCH: "Topic is the address of the requestor"."""

    requestor: Address
    topic: Topic
    partition: Address
    sequence: Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class Fetch(_OfPartition):
    """FETCH, from who misses records: "Topic is the address of the producer (partition)"."""

    partition: Address
    requestor: Address
    topic: Topic
    sequence: Offset
    count: FetchCount

    @property
    def end(self) -> int:
        """The offset after the last record asked for, or after the last one there can be."""
        return min(self.sequence + self.count, MAX_SEQUENCE + 1)


@dataclass(frozen=True, slots=True)
class Ack(_UpTo):
    """ACK, from a store to a producer.  C nodes do not say which store (``store`` = "")."""

    partition: Address
    topic: Topic
    sequence: Offset
    store: AnyAddress = ""


@dataclass(frozen=True, slots=True)
class Head(_UpTo):
    """HEAD, from a producer at an interval: the last record it has published."""

    topic: Topic
    partition: Address
    sequence: Offset


@dataclass(frozen=True, slots=True)
class DirectHead(_UpTo):
    """DIRECT-HEAD, the answer to a GET-HEADS or a CONSUMER-HELLO, to one requestor."""

    requestor: Address
    topic: Topic
    partition: Address
    sequence: Offset


@dataclass(frozen=True, slots=True)
class GetHeads(_Checked):
    """GET-HEADS: asks for the heads of a topic's partitions.

    An empty topic asks for those of every topic: C stores compare by prefix and so
    answer it that way, and ours do.
    """

    topic: AnyTopic
    requestor: Address


@dataclass(frozen=True, slots=True)
class ConsumerHello(_Checked):
    """CONSUMER-HELLO, from a consumer to one store: the topics it is subscribed to.

    The store may be empty, as the consumer of a STORE-HELLO may: C nodes answer a hello
    that was sent to all.
    """

    store: AnyAddress
    consumer: Address
    topics: Topics


@dataclass(frozen=True, slots=True)
class StoreHello(_Checked):
    """STORE-HELLO, from a store to one consumer.

    The consumer may be empty: a C store greets whoever subscribes to all of them.
    """

    consumer: AnyAddress
    store: Address


@dataclass(frozen=True, slots=True)
class RecordBatchMessage(_OfPartition):
    """Extension: RECORDs of one partition in one message, for nodes that subscribe to it.

    ``value`` is the lengths of the records, four octets each and little endian, as columns are,
    and then the records themselves.  ``transaction`` is the one that all of them belong to, if any.
    """

    topic: Topic
    partition: Address
    sequence: Offset
    count: Number
    value: bytes
    transaction: MaybeTransaction = None

    def check(self) -> None:
        """The batch is one."""
        _check_packed(self)


@dataclass(frozen=True, slots=True)
class DirectRecordBatch(_OfPartition):
    """Extension: DIRECT-RECORDs of one partition in one message; the rest as in RecordBatchMessage."""

    requestor: Address
    topic: Topic
    partition: Address
    sequence: Offset
    count: Number
    value: bytes
    transaction: MaybeTransaction = None

    def check(self) -> None:
        """The batch is one."""
        _check_packed(self)


@dataclass(frozen=True, slots=True)
class HeadsQuery(_Checked):
    """Extension: asks stores for what they hold of some topics (all topics if there are none).

    Unlike GET-HEADS its answer names the store, says where a partition begins, and has an end,
    so a requestor knows when it has heard everything, also when that is nothing.
    """

    requestor: Address
    query: QueryId
    topics: Topics


@dataclass(frozen=True, slots=True)
class TimesQuery(_OfPartition):
    """Extension: asks stores when they wrote the records ``[sequence, end)`` of a partition."""

    requestor: Address
    query: QueryId
    topic: Topic
    partition: Address
    sequence: Offset
    end: End


@dataclass(frozen=True, slots=True)
class HeadsReply(_Checked):
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a HEADS-QUERY."""

    requestor: Address
    query: QueryId
    store: Address
    part: Number
    parts: Number
    entries: Heads

    def check(self) -> None:
        """The part is one."""
        check_part(self.part, self.parts, len(self.entries))


@dataclass(frozen=True, slots=True)
class TimesReply(_Checked):
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a TIMES-QUERY."""

    requestor: Address
    query: QueryId
    store: Address
    part: Number
    parts: Number
    entries: Times

    def check(self) -> None:
        """The part is one."""
        check_part(self.part, self.parts, len(self.entries))


@dataclass(frozen=True, slots=True)
class StoreEndpoints(_Checked):
    """Extension: tells one requestor where a store's records can be had in bulk (Arrow Flight).

    ``locations`` are URIs as Flight has them; a requestor takes the first that it can reach.
    """

    requestor: Address
    store: Address
    locations: Locations


Message = (
    RecordMessage
    | DirectRecord
    | Fetch
    | Ack
    | Head
    | DirectHead
    | GetHeads
    | ConsumerHello
    | StoreHello
    | RecordBatchMessage
    | DirectRecordBatch
    | HeadsQuery
    | TimesQuery
    | HeadsReply
    | TimesReply
    | StoreEndpoints
)


def _check_packed(message: RecordBatchMessage | DirectRecordBatch) -> None:
    check_batch(message.sequence, message.count)
    check_transaction(message.sequence, message.count, message.transaction)
    unpack_batch(message.count, message.value)
