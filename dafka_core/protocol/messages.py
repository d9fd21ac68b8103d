"""The nine commands of RFC 46 and our extensions, as frozen objects that cannot be invalid.

Sequences are as on the wire: inclusive, so ``Head.sequence`` is the last record's.  ``end`` is the
offset after it, exclusive as everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, get_type_hints

import numpy as np
import numpy.typing as npt

from dafka_core.errors import ProtocolError
from dafka_core.protocol import fields as f
from dafka_core.protocol.limits import MAX_BATCH_COUNT, MAX_SEQUENCE
from dafka_core.protocol.validation import check_batch, unpack_batch
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition, Transaction
from dafka_core.values import Values


@dataclass(frozen=True, slots=True)
class Message:
    """A message is checked when it is made, field by field and as a whole."""

    kinds: ClassVar[dict[str, f.FieldKind]]
    """The kind of each field by its name; content has none."""

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.kinds = {
            name: hint.__metadata__[0]
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            kind.check(getattr(self, name))
        self.check()

    def check(self) -> None:
        """Raises ProtocolError unless the fields, each valid in itself, are valid together."""


class _OfPartition(Message):
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


class _Packed(_OfPartition):
    """Extension: consecutive records in one message, which all belong to ``transaction``, if any.

    ``value`` is the lengths of the records, four octets each and little endian, as columns are,
    and then the records themselves.
    """

    __slots__ = ()
    sequence: int
    count: int
    value: bytes
    transaction: Transaction | None

    def check(self) -> None:
        """Raises ProtocolError unless these are records of one transaction."""
        check_batch(self.sequence, self.count, self.transaction)
        unpack_batch(self.count, self.value)


@dataclass(frozen=True, slots=True)
class _Reply(Message):
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a query."""

    requestor: f.Address
    query: f.QueryId
    store: f.Address
    part: f.Number
    parts: f.Number

    def check(self) -> None:
        """Raises ProtocolError unless the part is one of the parts."""
        if not 0 <= self.part < self.parts < 2**32:
            raise ProtocolError("a part must be below the number of parts, which has 32 bits")


@dataclass(frozen=True, slots=True)
class RecordMessage(_OfPartition):
    """RECORD, from a producer to stores and consumers: "Topic is the name of the topic"."""

    requestor: ClassVar[str] = ""
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class DirectRecord(_OfPartition):
    """DIRECT-RECORD, the answer to a FETCH: "Topic is the address of the requestor"."""

    requestor: f.Address
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class Fetch(_OfPartition):
    """FETCH, asks for missed records: "Topic is the address of the producer (partition)"."""

    partition: f.Address
    requestor: f.Address
    topic: f.Topic
    sequence: f.Offset
    count: f.FetchCount

    @property
    def end(self) -> int:
        """The offset after the last record asked for, or after the last one there can be."""
        return min(self.sequence + self.count, MAX_SEQUENCE + 1)


@dataclass(frozen=True, slots=True)
class Ack(_UpTo):
    """ACK, from a store to a producer.  C nodes do not say which store (``store`` = "")."""

    partition: f.Address
    topic: f.Topic
    sequence: f.Offset
    store: f.AnyAddress = ""


@dataclass(frozen=True, slots=True)
class Head(_UpTo):
    """HEAD, from a producer: "the offset of the last published record"."""

    topic: f.Topic
    partition: f.Address
    sequence: f.Offset


@dataclass(frozen=True, slots=True)
class DirectHead(_UpTo):
    """DIRECT-HEAD, to one requestor: the answer to a GET-HEADS or a CONSUMER-HELLO."""

    requestor: f.Address
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset


@dataclass(frozen=True, slots=True)
class GetHeads(Message):
    """GET-HEADS: asks for the heads of a topic's partitions.

    An empty topic asks for those of every topic, as C stores compare topics by prefix.
    """

    topic: f.AnyTopic
    requestor: f.Address


@dataclass(frozen=True, slots=True)
class ConsumerHello(Message):
    """CONSUMER-HELLO, from a consumer to one store: "all topic the consumer is subscribed to".

    The store is empty in what C nodes send to all stores.
    """

    store: f.AnyAddress
    consumer: f.Address
    topics: f.Topics


@dataclass(frozen=True, slots=True)
class StoreHello(Message):
    """STORE-HELLO, from a store to one consumer; to all of them, if it is empty, from C stores."""

    consumer: f.AnyAddress
    store: f.Address


@dataclass(frozen=True, slots=True)
class RecordBatchMessage(_Packed):
    """Extension: RECORDs of one partition in one message, for nodes that subscribe to it."""

    requestor: ClassVar[str] = ""
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    count: f.Number
    value: bytes
    transaction: f.MaybeTransaction = None


@dataclass(frozen=True, slots=True)
class DirectRecordBatch(_Packed):
    """Extension: DIRECT-RECORDs of one partition in one message."""

    requestor: f.Address
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    count: f.Number
    value: bytes
    transaction: f.MaybeTransaction = None


@dataclass(frozen=True, slots=True)
class FetchBatch(Message):
    """Extension: FETCHes of many partitions, to the store that has said that it has the records."""

    store: f.Address
    requestor: f.Address
    entries: f.Ranges

    def check(self) -> None:
        """Raises ProtocolError unless it asks for something."""
        if not self.entries:
            raise ProtocolError("a FETCH-BATCH asks for one partition at least")


@dataclass(frozen=True, slots=True)
class DirectRecordBatches(Message):
    """Extension: the answer to a FETCH-BATCH, records of many partitions in one message.

    ``value`` is as that of a DIRECT-RECORD-BATCH with the records of all entries, in their order.
    """

    requestor: f.Address
    entries: f.Ranges
    value: bytes

    @classmethod
    def of(cls, requestor: str, batches: Sequence[RecordBatch]) -> Self:
        """Record batches as a message; it does not say which transaction they are of."""
        lengths, values, entries = [], [], []
        for batch in batches:
            ends, data = batch.values.columns()
            lengths.append(ends[1:] - ends[:-1])
            values.append(data)
            entries.append(PartitionInfo(*batch.tp, batch.offset, batch.end))
        packed = np.concatenate(lengths).astype("<u4").tobytes()
        return cls(requestor, tuple(entries), b"".join([packed, *values]))

    def check(self) -> None:
        """Raises ProtocolError unless these are the records that the entries name."""
        self._columns()

    def batches(self) -> Iterator[RecordBatch]:
        """The records, each partition's in memory of its own: one that is kept keeps no other."""
        lengths, records = self._columns()
        ends = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=ends[1:], dtype=np.int64)
        start = 0
        for topic, partition, first, end in self.entries:
            stop = start + end - first
            low, high = int(ends[start]), int(ends[stop])
            values = Values.from_columns(ends[start : stop + 1] - low, bytes(records[low:high]))
            yield RecordBatch(TopicPartition(topic, partition), first, values)
            start = stop

    def _columns(self) -> tuple[npt.NDArray[np.uint32], memoryview]:
        count = sum([entry.end - entry.earliest for entry in self.entries])
        if not 1 <= count <= MAX_BATCH_COUNT:
            raise ProtocolError(f"a message has 1 to {MAX_BATCH_COUNT} records")
        return unpack_batch(count, self.value)


@dataclass(frozen=True, slots=True)
class HeadsQuery(Message):
    """Extension: asks stores for what they hold of some topics (all topics if there are none).

    Other than with GET-HEADS, the answer names the store, says where a partition begins, and
    has an end: a requestor knows when it has the whole answer, also when that is nothing.
    """

    requestor: f.Address
    query: f.QueryId
    topics: f.Topics


@dataclass(frozen=True, slots=True)
class TimesQuery(_OfPartition):
    """Extension: asks stores when they wrote the records ``[sequence, end)`` of a partition."""

    requestor: f.Address
    query: f.QueryId
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    end: f.End


@dataclass(frozen=True, slots=True)
class HeadsReply(_Reply):
    """Extension: the answer to a HEADS-QUERY."""

    entries: f.Heads


@dataclass(frozen=True, slots=True)
class TimesReply(_Reply):
    """Extension: the answer to a TIMES-QUERY."""

    entries: f.Times


@dataclass(frozen=True, slots=True)
class RecordTooLarge(_OfPartition):
    """Extension: in a FETCH's answer, in place of a record above the requestor's own limit."""

    requestor: f.Address
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    size_bytes: f.RecordSize


@dataclass(frozen=True, slots=True)
class StoreEndpoints(Message):
    """Extension: tells one requestor where a store's records can be read in bulk (Arrow Flight).

    ``locations`` are URIs as Flight has them; a requestor takes the first that it can reach.
    """

    requestor: f.Address
    store: f.Address
    locations: f.Locations


AnyRecord = RecordMessage | DirectRecord | RecordBatchMessage | DirectRecordBatch
