"""The nine commands of RFC 46 and our extensions, as frozen objects that cannot be invalid.

Sequences are as on the wire: inclusive, so ``Head.sequence`` is the last record's.  Their
exclusive counterpart, which everything else here uses, is ``end``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import (
    MAX_ADDRESS_BYTES,
    MAX_FETCH_COUNT,
    MAX_HELLO_BYTES,
    MAX_REPLY_ENTRIES,
    MAX_RUN_COUNT,
    MAX_SEQUENCE,
    MAX_TOPIC_BYTES,
)


def text_size_bytes(text: str) -> int:
    """How long a topic or address is on the wire.

    Raises:
        ProtocolError: there are no octets that are read as this text.
    """
    if text.isascii():
        return len(text)
    try:
        octets = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ProtocolError("a topic or address must not contain surrogates") from None
    # Escaped octets that together are UTF-8 would arrive as another text.
    if octets.decode("utf-8", "surrogateescape") != text:
        raise ProtocolError("a topic or address must not escape octets that are UTF-8")
    return len(octets)


def check_topic(topic: str) -> None:
    """Raises ProtocolError unless ``topic`` has 1 to 255 octets and no NUL (the delimiter)."""
    if not topic or text_size_bytes(topic) > MAX_TOPIC_BYTES:
        raise ProtocolError(f"a topic must have 1 to {MAX_TOPIC_BYTES} bytes")
    if "\0" in topic:
        raise ProtocolError("a topic must not contain a NUL byte")


def check_address(address: str) -> None:
    """Raises ProtocolError unless ``address`` has 1 to 255 octets and no NUL."""
    if not address or text_size_bytes(address) > MAX_ADDRESS_BYTES:
        raise ProtocolError(f"an address must have 1 to {MAX_ADDRESS_BYTES} bytes")
    if "\0" in address:
        raise ProtocolError("an address must not contain a NUL byte")


def check_sequence(sequence: int) -> None:
    """Raises ProtocolError unless ``sequence`` fits a signed 64-bit offset."""
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise ProtocolError(f"a sequence must lie in 0 to {MAX_SEQUENCE}")


def check_end(end: int) -> None:
    """Raises ProtocolError unless ``end`` is 0 or can come after a sequence."""
    if not 0 <= end <= MAX_SEQUENCE + 1:
        raise ProtocolError(f"an end must lie in 0 to {MAX_SEQUENCE + 1}")


def _check_topics(topics: tuple[str, ...]) -> None:
    for topic in topics:
        check_topic(topic)
    if sum(4 + text_size_bytes(topic) for topic in topics) > MAX_HELLO_BYTES // 2:
        raise ProtocolError(f"a message's topics have at most {MAX_HELLO_BYTES // 2} bytes")


def _check_query(query: int) -> None:
    if not 0 <= query < 2**64:
        raise ProtocolError("a query must be an unsigned 64-bit number")


def _check_part(part: int, parts: int, entry_count: int) -> None:
    if not 0 <= part < parts < 2**32:
        raise ProtocolError("a part must be below the number of parts, an unsigned 32-bit number")
    if entry_count > MAX_REPLY_ENTRIES:
        raise ProtocolError(f"a reply has at most {MAX_REPLY_ENTRIES} entries")


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
        _check_topics(self.topics)


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
class RecordRun:
    """Extension: RECORDs of one partition in one message, for nodes that subscribe to it.

    ``value`` is the lengths of the records, four octets each and little endian, as columns are,
    and then the records themselves.
    """

    topic: str
    partition: str
    sequence: int
    count: int
    value: bytes

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_address(self.partition)
        check_run(self.sequence, self.count)
        unpack_run(self.count, self.value)


@dataclass(frozen=True, slots=True)
class DirectRun:
    """Extension: DIRECT-RECORDs of one partition in one message; ``value`` as in RecordRun."""

    requestor: str
    topic: str
    partition: str
    sequence: int
    count: int
    value: bytes

    def __post_init__(self) -> None:
        check_address(self.requestor)
        check_topic(self.topic)
        check_address(self.partition)
        check_run(self.sequence, self.count)
        unpack_run(self.count, self.value)


def check_run(sequence: int, count: int) -> None:
    """Raises ProtocolError unless records can have these sequences."""
    if not 1 <= count <= MAX_RUN_COUNT:
        raise ProtocolError(f"a run has 1 to {MAX_RUN_COUNT} records")
    check_sequence(sequence)
    check_sequence(sequence + count - 1)


def unpack_run(count: int, value: bytes) -> tuple[npt.NDArray[np.uint32], memoryview]:
    """The lengths and the records of a run.

    Raises:
        ProtocolError: the lengths do not add up.
    """
    if len(value) < 4 * count:
        raise ProtocolError("a run is shorter than its lengths")
    lengths = np.frombuffer(value, "<u4", count)
    records = memoryview(value)[4 * count :]
    if int(lengths.sum(dtype=np.uint64)) != len(records):
        raise ProtocolError("the lengths of a run do not add up to its records")
    return lengths, records


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
        _check_query(self.query)
        _check_topics(self.topics)


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
        _check_query(self.query)
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
        _check_query(self.query)
        check_address(self.store)
        _check_part(self.part, self.parts, len(self.entries))
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
        _check_query(self.query)
        check_address(self.store)
        _check_part(self.part, self.parts, len(self.entries))
        for entry in self.entries:
            check_sequence(entry.offset)
            check_sequence(entry.timestamp_us)


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
    | RecordRun
    | DirectRun
    | HeadsQuery
    | TimesQuery
    | HeadsReply
    | TimesReply
)
