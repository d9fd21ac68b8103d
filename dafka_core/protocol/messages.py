"""The nine commands of RFC 46 and our extensions, as frozen objects that cannot be invalid.

Sequences are as on the wire: inclusive, so ``Head.sequence`` is the last record's.  ``end`` is the
offset after it, exclusive as everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self, get_type_hints

import numpy as np
import numpy.typing as npt

from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import (
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    Transaction,
    joined_times,
    times_between,
)
from dafka_core.model.values import Longs, Values
from dafka_core.protocol import fields as f
from dafka_core.protocol.fields import check_batch
from dafka_core.protocol.limits import LENGTH_BYTES, MAX_BATCH_COUNT, MAX_SEQUENCE, RUN_BYTES

_ONE_RUN: Final = Struct("<qI")


class PackedRecords(NamedTuple):
    """A packed message's records: how long each is, and all one after the other.

    ``times`` are their timestamps, as a ``RecordBatch`` has them.
    """

    lengths: npt.NDArray[np.uint32]
    records: memoryview
    times: Longs | None


def unpack_batch(count: int, value: bytes | memoryview, runs: int = 0) -> PackedRecords:
    """What the content of a packed message has: ``count`` records and ``runs`` of timestamps.

    Raises:
        ProtocolError: the lengths do not add up, or the runs do not.
    """
    lengths_at = RUN_BYTES * runs
    records_at = lengths_at + LENGTH_BYTES * count
    if len(value) < records_at:
        raise ProtocolError("a batch is shorter than its lengths")
    lengths = np.frombuffer(value, "<u4", count, lengths_at)
    records = memoryview(value)[records_at:]
    if int(lengths.sum(dtype=np.uint64)) != len(records):
        raise ProtocolError("the lengths of a batch do not add up to its records")
    return PackedRecords(lengths, records, _unpack_times(count, value, runs) if runs else None)


def _unpack_times(count: int, value: bytes | memoryview, runs: int) -> Longs:
    if runs == 1:  # as most messages have
        stamp, of = _ONE_RUN.unpack_from(value)
        if of == count and stamp >= 0:
            return np.array([[count, stamp]], np.int64)
    stamps = np.frombuffer(value, "<i8", runs)
    counts = np.frombuffer(value, "<u4", runs, stamps.nbytes)
    if not counts.all() or int(counts.sum(dtype=np.uint64)) != count:
        raise ProtocolError("the timestamps of a batch are not those of its records")
    if stamps.min() < 0:
        raise ProtocolError("a timestamp is after the epoch")
    return np.column_stack((counts, stamps))


def pack_times(times: Longs | None, start: int, stop: int) -> bytes:
    """The timestamps of records ``start`` to ``stop``, as in the content of a packed message.

    Each run has ``limits.RUN_BYTES``.
    """
    if times is None:
        return b""
    if len(times) == 1:
        return _ONE_RUN.pack(times.item(1), stop - start)
    times = times_between(times, start, stop)
    return times[:, 1].astype("<i8").tobytes() + times[:, 0].astype("<u4").tobytes()


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


class OfPartition(Message):
    """A message about one partition."""

    __slots__ = ()
    topic: str
    partition: str

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class UpTo(OfPartition):
    """A message that says how far a partition goes: up to ``sequence``, inclusive."""

    __slots__ = ()
    sequence: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.sequence + 1


class Packed(OfPartition):
    """Extension: consecutive records in one message, all of one ``epoch`` and ``transaction``.

    ``value`` is the timestamps of the records as ``runs`` runs, none if they are not known: first
    the timestamps, eight octets each, then the count of each one's records, four octets each.
    Then come the lengths of the records, four octets each, and the records themselves.  All is
    little endian, as columns are.
    """

    __slots__ = ()
    sequence: int
    count: int
    value: bytes
    transaction: Transaction | None
    epoch: Epoch | None
    runs: int

    def check(self) -> None:
        """Raises ProtocolError unless these are records of one transaction and epoch."""
        check_batch(self.sequence, self.count, self.transaction, self.epoch)
        unpack_batch(self.count, self.value, self.runs)


@dataclass(frozen=True, slots=True)
class Reply(Message):
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
class RecordMessage(OfPartition):
    """RECORD, from a producer to stores and consumers: "Topic is the name of the topic"."""

    requestor: ClassVar[str] = ""
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class DirectRecord(OfPartition):
    """DIRECT-RECORD, the answer to a FETCH: "Topic is the address of the requestor"."""

    requestor: f.Address
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    value: bytes


@dataclass(frozen=True, slots=True)
class Fetch(OfPartition):
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
class Ack(UpTo):
    """ACK, from a store to a producer.  C nodes do not say which store (``store`` = "")."""

    partition: f.Address
    topic: f.Topic
    sequence: f.Offset
    store: f.AnyAddress = ""


@dataclass(frozen=True, slots=True)
class EpochAck(UpTo):
    """Extension: an ACK that says whose records they are: ``life`` has written the last one."""

    partition: f.Address
    topic: f.Topic
    sequence: f.Offset
    store: f.Address
    life: f.Life

    @property
    def plain(self) -> Ack:
        """The same for producers that do not know epochs."""
        return Ack(self.partition, self.topic, self.sequence, self.store)


@dataclass(frozen=True, slots=True)
class Head(UpTo):
    """HEAD, from a producer: "the offset of the last published record"."""

    topic: f.Topic
    partition: f.Address
    sequence: f.Offset


@dataclass(frozen=True, slots=True)
class DirectHead(UpTo):
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
class RecordBatchMessage(Packed):
    """Extension: RECORDs of one partition in one message, for nodes that subscribe to it."""

    requestor: ClassVar[str] = ""
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    count: f.Number
    value: bytes
    transaction: f.MaybeTransaction = None
    epoch: f.MaybeEpoch = None
    runs: f.Number = 0


@dataclass(frozen=True, slots=True)
class DirectRecordBatch(Packed):
    """Extension: DIRECT-RECORDs of one partition in one message."""

    requestor: f.Address
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    count: f.Number
    value: bytes
    transaction: f.MaybeTransaction = None
    epoch: f.MaybeEpoch = None
    runs: f.Number = 0


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
    No run of timestamps has records of two entries.
    """

    requestor: f.Address
    entries: f.Ranges
    epochs: f.EntryEpochs
    """Of the records of each entry, one for each."""
    runs: f.Number
    value: bytes

    @classmethod
    def of(cls, requestor: str, batches: Sequence[RecordBatch]) -> Self:
        """Record batches as a message; it does not say which transaction they are of."""
        lengths, values, entries, epochs = [], [], [], []
        for batch in batches:
            ends, data = batch.values.columns()
            lengths.append(ends[1:] - ends[:-1])
            values.append(data)
            entries.append(PartitionInfo(*batch.tp, batch.offset, batch.end))
            epochs.append(batch.epoch)
        packed = np.concatenate(lengths).astype("<u4").tobytes()
        times = joined_times([batch.times for batch in batches])
        stamps = pack_times(times, 0, len(packed) // LENGTH_BYTES)
        content = b"".join([stamps, packed, *values])
        runs = len(stamps) // RUN_BYTES
        return cls(requestor, tuple(entries), tuple(epochs), runs, content)

    def check(self) -> None:
        """Raises ProtocolError unless these are the records that the entries name."""
        if len(self.epochs) != len(self.entries):
            raise ProtocolError("there is one epoch for each entry")
        for entry, epoch in zip(self.entries, self.epochs, strict=True):
            if epoch is not None and epoch.start > entry.earliest:
                raise ProtocolError("a batch must lie within its epoch")
        self._columns()

    def batches(self) -> Iterator[RecordBatch]:
        """The records, each partition's in memory of its own: one that is kept keeps no other."""
        (lengths, records, times), run_ends = self._columns()
        ends = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=ends[1:], dtype=np.int64)
        start = run = 0
        facts = zip(self.entries, self.epochs, run_ends, strict=True)
        for (topic, partition, first, end, _), epoch, run_end in facts:
            stop = start + end - first
            low, high = int(ends[start]), int(ends[stop])
            values = Values.from_columns(ends[start : stop + 1] - low, bytes(records[low:high]))
            own = None if times is None else times[run:run_end].copy()
            tp = TopicPartition(topic, partition)
            yield RecordBatch(tp, first, values, times=own, epoch=epoch)
            start, run = stop, run_end

    def _columns(self) -> tuple[PackedRecords, list[int]]:
        ends = np.cumsum([entry.end - entry.earliest for entry in self.entries])
        if not len(ends) or not 1 <= ends[-1] <= MAX_BATCH_COUNT:
            raise ProtocolError(f"a message has 1 to {MAX_BATCH_COUNT} records")
        packed = unpack_batch(int(ends[-1]), self.value, self.runs)
        if packed.times is None:
            return packed, [0] * len(ends)
        stops = packed.times[:, 0].cumsum()
        run_ends = stops.searchsorted(ends)
        if (stops[run_ends] != ends).any():
            raise ProtocolError("a run of timestamps has records of one partition")
        return packed, (run_ends + 1).tolist()


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
class TimesQuery(OfPartition):
    """Extension: asks stores when the records ``[sequence, end)`` of a partition were published."""

    requestor: f.Address
    query: f.QueryId
    topic: f.Topic
    partition: f.Address
    sequence: f.Offset
    end: f.End


@dataclass(frozen=True, slots=True)
class HistoryQuery(OfPartition):
    """Extension: asks stores for the history of a partition.

    With a ``life`` a producer asks them to promise, too, that they acknowledge nothing more to
    older ones: it is about to begin.
    """

    requestor: f.Address
    query: f.QueryId
    topic: f.Topic
    partition: f.Address
    life: f.Life = NO_LIFE


@dataclass(frozen=True, slots=True)
class HistoryReply(OfPartition):
    """Extension: a store's answer; also said to a producer that a newer life has taken over.

    ``promised`` is the newest life that the store has promised something, ``stores`` are the
    others that it has ever met.  ``transaction`` is the partition's last one.
    """

    requestor: f.Address
    query: f.QueryId
    store: f.Address
    topic: f.Topic
    partition: f.Address
    end: f.End
    promised: f.Life
    history: f.Epochs
    stores: f.Stores = ()
    transaction: f.MaybeTransaction = None

    def check(self) -> None:
        """Raises ProtocolError unless it is a transaction of records that the store has."""
        last = self.transaction
        if last is not None:
            check_batch(last.start, 1, last, None)  # its first record lies within it
            if last.end > self.end:
                raise ProtocolError("a partition's last transaction ends where it does, or before")


@dataclass(frozen=True, slots=True)
class HeadsReply(Reply):
    """Extension: the answer to a HEADS-QUERY."""

    entries: f.Heads


@dataclass(frozen=True, slots=True)
class TimesReply(Reply):
    """Extension: the answer to a TIMES-QUERY."""

    entries: f.Times


@dataclass(frozen=True, slots=True)
class RecordTooLarge(OfPartition):
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


@dataclass(frozen=True, slots=True)
class StoresKnown(Message):
    """Extension: tells one requestor which other stores a store knows, also those that are away."""

    requestor: f.Address
    store: f.Address
    entries: f.KnownStores


AnyRecord = RecordMessage | DirectRecord | RecordBatchMessage | DirectRecordBatch
