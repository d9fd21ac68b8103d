"""The nine commands of RFC 46 and our extensions, as frozen objects that cannot be invalid.

Sequences are as on the wire: inclusive, so ``Head.sequence`` is the last record's.  Their
exclusive counterpart, which everything else here uses, is ``end``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import (
    MAX_FETCH_COUNT,
    MAX_SEQUENCE,
)
from dafka_core.protocol.validation import (
    check_address,
    check_batch,
    check_end,
    check_locations,
    check_part,
    check_query,
    check_sequence,
    check_topic,
    check_topics,
    check_transaction,
    unpack_batch,
)
from dafka_core.records import Transaction


@dataclass(frozen=True, slots=True)
class RecordMessage:
    """RECORD, from a producer to stores and consumers: "Topic is the name of the topic"."""

    topic: str
    partition: str
    sequence: int
    value: bytes

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_address(self.partition)
        check_sequence(self.sequence)


@dataclass(frozen=True, slots=True)
class DirectRecord:
    """DIRECT-RECORD, the answer to a FETCH: "Topic is the address of the requestor"."""

    requestor: str
    topic: str
    partition: str
    sequence: int
    value: bytes

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_topic(self.topic)
        check_address(self.partition)
        check_sequence(self.sequence)


@dataclass(frozen=True, slots=True)
class Fetch:
    """FETCH, from who misses records: "Topic is the address of the producer (partition)"."""

    partition: str
    requestor: str
    topic: str
    sequence: int
    count: int

    def __post_init__(self) -> None:
        check_address(self.partition)
        check_address(self.requestor)
        check_topic(self.topic)
        check_sequence(self.sequence)
        if not 0 <= self.count <= MAX_FETCH_COUNT:
            raise ProtocolError(f"a count must lie in 0 to {MAX_FETCH_COUNT}")

    @property
    def end(self) -> int:
        """The offset after the last record asked for, or after the last one there can be."""
        return min(self.sequence + self.count, MAX_SEQUENCE + 1)


@dataclass(frozen=True, slots=True)
class Ack:
    """ACK, from a store to a producer.  Deployed nodes do not say which store (``store`` = "")."""

    partition: str
    topic: str
    sequence: int
    store: str = ""

    def __post_init__(self) -> None:
        check_address(self.partition)
        check_topic(self.topic)
        check_sequence(self.sequence)
        if self.store:
            check_address(self.store)

    @property
    def end(self) -> int:
        """The store has the partition on disk up to, not including, this offset."""
        return self.sequence + 1


@dataclass(frozen=True, slots=True)
class Head:
    """HEAD, from a producer at an interval: the last record it has published."""

    topic: str
    partition: str
    sequence: int

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_address(self.partition)
        check_sequence(self.sequence)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.sequence + 1


@dataclass(frozen=True, slots=True)
class DirectHead:
    """DIRECT-HEAD, the answer to a GET-HEADS or a CONSUMER-HELLO, to one requestor."""

    requestor: str
    topic: str
    partition: str
    sequence: int

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_topic(self.topic)
        check_address(self.partition)
        check_sequence(self.sequence)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.sequence + 1


@dataclass(frozen=True, slots=True)
class GetHeads:
    """GET-HEADS: asks for the heads of a topic's partitions.

    An empty topic asks for those of every topic: deployed stores compare by prefix and so
    answer it that way, and ours do.
    """

    topic: str
    requestor: str

    def __post_init__(self) -> None:
        if self.topic:
            check_topic(self.topic)
        check_address(self.requestor)


@dataclass(frozen=True, slots=True)
class ConsumerHello:
    """CONSUMER-HELLO, from a consumer to one store: the topics it is subscribed to.

    The store may be empty, as the consumer of a STORE-HELLO may: deployed nodes answer a hello
    that was sent to all.
    """

    store: str
    consumer: str
    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.store:
            check_address(self.store)
        check_address(self.consumer)
        check_topics(self.topics)


@dataclass(frozen=True, slots=True)
class StoreHello:
    """STORE-HELLO, from a store to one consumer.

    The consumer may be empty: a deployed store greets whoever subscribes to all of them.
    """

    consumer: str
    store: str

    def __post_init__(self) -> None:
        if self.consumer:
            check_address(self.consumer)
        check_address(self.store)


@dataclass(frozen=True, slots=True)
class RecordBatchMessage:
    """Extension: RECORDs of one partition in one message, for nodes that subscribe to it.

    ``value`` is the lengths of the records, four octets each and little endian, as columns are,
    and then the records themselves.  ``transaction`` is the one that all of them belong to, if any.
    """

    topic: str
    partition: str
    sequence: int
    count: int
    value: bytes
    transaction: Transaction | None = None

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_address(self.partition)
        check_batch(self.sequence, self.count)
        check_transaction(self.sequence, self.count, self.transaction)
        unpack_batch(self.count, self.value)


@dataclass(frozen=True, slots=True)
class DirectRecordBatch:
    """Extension: DIRECT-RECORDs of one partition in one message; the rest as in RecordBatchMessage."""

    requestor: str
    topic: str
    partition: str
    sequence: int
    count: int
    value: bytes
    transaction: Transaction | None = None

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_topic(self.topic)
        check_address(self.partition)
        check_batch(self.sequence, self.count)
        check_transaction(self.sequence, self.count, self.transaction)
        unpack_batch(self.count, self.value)


class HeadEntry(NamedTuple):
    """What a store holds of one partition: offsets ``earliest`` to ``end`` (exclusive)."""

    topic: str
    partition: str
    earliest: int
    end: int


class TimeEntry(NamedTuple):
    """From ``offset`` on, until the next entry, records were written at ``timestamp_us``."""

    offset: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class HeadsQuery:
    """Extension: asks stores for what they hold of some topics (all topics if there are none).

    Unlike GET-HEADS its answer names the store, says where a partition begins, and has an end,
    so a requestor knows when it has heard everything, also when that is nothing.
    """

    requestor: str
    query: int
    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_query(self.query)
        check_topics(self.topics)


@dataclass(frozen=True, slots=True)
class TimesQuery:
    """Extension: asks stores when they wrote the records ``[sequence, end)`` of a partition."""

    requestor: str
    query: int
    topic: str
    partition: str
    sequence: int
    end: int

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_query(self.query)
        check_topic(self.topic)
        check_address(self.partition)
        check_sequence(self.sequence)
        check_end(self.end)


@dataclass(frozen=True, slots=True)
class HeadsReply:
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a HEADS-QUERY."""

    requestor: str
    query: int
    store: str
    part: int
    parts: int
    entries: tuple[HeadEntry, ...]

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_query(self.query)
        check_address(self.store)
        check_part(self.part, self.parts, len(self.entries))
        for entry in self.entries:
            check_topic(entry.topic)
            check_address(entry.partition)
            check_end(entry.end)
            if not 0 <= entry.earliest <= entry.end:
                raise ProtocolError("a partition must not begin after its end")


@dataclass(frozen=True, slots=True)
class TimesReply:
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a TIMES-QUERY."""

    requestor: str
    query: int
    store: str
    part: int
    parts: int
    entries: tuple[TimeEntry, ...]

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_query(self.query)
        check_address(self.store)
        check_part(self.part, self.parts, len(self.entries))
        for entry in self.entries:
            check_sequence(entry.offset)
            check_sequence(entry.timestamp_us)


@dataclass(frozen=True, slots=True)
class StoreEndpoints:
    """Extension: tells one requestor where a store's records can be had in bulk (Arrow Flight).

    ``locations`` are URIs as Flight has them; a requestor takes the first that it can reach.
    """

    requestor: str
    store: str
    locations: tuple[str, ...]

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_address(self.store)
        check_locations(self.locations)


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
