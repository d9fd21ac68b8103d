"""The nine commands of RFC 46 and our extensions, as frozen objects that cannot be invalid.

A class declares its message: ``command`` has the identifier and the order of a frame, annotations
have the kinds of the fields.  ``codec`` encodes and decodes by this declaration.

Sequences are as on the wire: inclusive, so ``Head.sequence`` is the last record's.  ``end`` is the
offset after it, exclusive as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self, TypeVar, dataclass_transform, get_type_hints

import numpy as np
import numpy.typing as npt

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import (
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    joined_times,
    times_between,
)
from dafka_core.model.values import Longs, Values
from dafka_core.protocol import fields as f
from dafka_core.protocol import limits
from dafka_core.protocol.fields import check_batch

# Reserved query number: of a history without a question, and of the empty HEADS-REPLY with which
# our stores greet.
UNSOLICITED: Final = 0
HEADS: Final = 2**64 - 1  # reserved query number of replies to GET-HEADS and CONSUMER-HELLO
_ONE_RUN: Final = Struct("<qI")

# Fields in the order of frames.
_RECORD: Final = "partition topic sequence"
_BATCH: Final = _RECORD + " count transaction epoch runs"
# Each entry has two names, two offsets and an epoch.
_MAX_RANGES_BYTES: Final = limits.MAX_HEADER_BYTES + limits.MAX_FETCH_PARTITIONS * 560


class PackedRecords(NamedTuple):
    """A packed message's records: lengths, ``times`` of a ``RecordBatch``, concatenated values."""

    lengths: npt.NDArray[np.uint32]
    records: memoryview
    times: Longs | None


def unpack_batch(count: int, value: bytes | memoryview, runs: int = 0) -> PackedRecords:
    """Decode the content of a packed message: ``count`` records and ``runs`` of timestamps."""
    lengths_at = limits.RUN_BYTES * runs
    records_at = lengths_at + limits.LENGTH_BYTES * count
    if len(value) < records_at:
        raise ProtocolError("a batch is shorter than its lengths")
    lengths = np.frombuffer(value, "<u4", count, lengths_at)
    records = memoryview(value)[records_at:]
    if int(lengths.sum(dtype=np.uint64)) != len(records):
        raise ProtocolError("the lengths of a batch do not add up to its records")
    return PackedRecords(lengths, records, _unpack_times(count, value, runs) if runs else None)


def _unpack_times(count: int, value: bytes | memoryview, runs: int) -> Longs:
    if runs == 1:  # the most frequent case
        stamp, stamped_count = _ONE_RUN.unpack_from(value)
        if stamped_count == count:
            return np.array([[count, stamp]], np.int64)
    stamps = np.frombuffer(value, "<i8", runs)
    counts = np.frombuffer(value, "<u4", runs, stamps.nbytes)
    if not counts.all() or int(counts.sum(dtype=np.uint64)) != count:
        raise ProtocolError("the timestamps of a batch are not those of its records")
    return np.column_stack((counts, stamps))


def pack_times(times: Longs | None, start: int, stop: int) -> bytes:
    """Encode the timestamps of records ``start`` to ``stop``, ``limits.RUN_BYTES`` for each run."""
    if times is None:
        return b""
    if len(times) == 1:
        return _ONE_RUN.pack(times.item(1), stop - start)
    times = times_between(times, start, stop)
    return times[:, 1].astype("<i8").tobytes() + times[:, 0].astype("<u4").tobytes()


class Command(NamedTuple):
    """The wire format of a message class."""

    id: bytes
    topic: str
    fields: dict[str, list[tuple[str, f.FieldKind]]]  # in the order of a frame, by layout
    content: str  # the field that is a frame of its own, if it has one
    max_bytes: int


COMMANDS: Final[dict[int, type[Message]]] = {}  # the message classes by their identifiers
_AnyMessage = TypeVar("_AnyMessage", bound="Message")


@dataclass_transform(frozen_default=True)
def command(
    id_: bytes,
    topic: str = "",
    frame: str = "",
    *,
    rfc46: str = "",
    max_bytes: int = limits.MAX_HEADER_BYTES,
) -> Callable[[type[_AnyMessage]], type[_AnyMessage]]:
    """Declare a message: a frozen dataclass whose annotations are the kinds of its fields.

    Args:
        id_: its identifier.
        topic: the field that is the topic of its frame, if it has one.
        frame: the fields after the topic, if not all others in the order of the class.
        rfc46: the same in the layout of RFC 46, if it differs.
        max_bytes: the limit of a frame other than the content, which is field ``value``.
    """

    def declare(cls: type[_AnyMessage]) -> type[_AnyMessage]:
        made = dataclass(frozen=True, slots=True)(cls)
        hints = get_type_hints(made, include_extras=True)
        names = [each.name for each in fields(made)]
        content = "value" if "value" in names else ""
        made.kinds = {name: hints[name].__metadata__[0] for name in names if name != content}
        names = frame.split() or [name for name in made.kinds if name != topic]
        layouts = {
            layout: [(name, made.kinds[name]) for name in each]
            for layout, each in ((C_LAYOUT, names), (RFC46, rfc46.split() or names))
        }
        made.command = Command(id_, topic, layouts, content, max_bytes)
        COMMANDS[id_[0]] = made
        return made

    return declare


@dataclass(frozen=True, slots=True)
class Message:
    """A message, validated at its creation, field by field and as a whole."""

    command: ClassVar[Command]
    kinds: ClassVar[dict[str, f.FieldKind]]  # the kind of each field by its name; content has none

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            kind.check(getattr(self, name))
        self.check()

    def check(self) -> None:
        """Raise ProtocolError if the fields, each valid alone, contradict each other."""


# The bases below have the fields that several messages share.  In constructors the fields of later
# bases are first; ``command`` has the order in a frame.  Slots are made by ``command``.


@dataclass(frozen=True)
class ToRequestor(Message):
    """A message of, or to, the node that requests something."""

    __slots__ = ()
    requestor: f.Address


@dataclass(frozen=True)
class OfPartition(Message):
    """A message about one partition."""

    __slots__ = ()
    topic: f.Topic
    partition: f.Address

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class AtSequence(OfPartition):
    """A message about one record of a partition."""

    __slots__ = ()
    sequence: f.Offset


class UpTo(AtSequence):
    """A message with the end of a partition: ``sequence`` is the last record's, inclusive."""

    __slots__ = ()

    @property
    def end(self) -> int:
        """Return the offset of the next record."""
        return self.sequence + 1


@dataclass(frozen=True)
class Packed(AtSequence):
    """Extension: consecutive records in one message, all of one ``epoch`` and ``transaction``.

    ``value`` begins with ``runs`` runs of timestamps, none if they are unknown: the timestamps,
    eight bytes each, then the count of each one's records, four bytes each.  Then come the lengths
    of the records, four bytes each, and the records.  Numbers are little endian, as in columns.
    """

    __slots__ = ()
    count: f.Number
    value: bytes
    transaction: f.MaybeTransaction = None
    epoch: f.MaybeEpoch = None
    runs: f.Number = 0

    def check(self) -> None:
        """Raise ProtocolError unless these are records of one transaction and epoch."""
        check_batch(self.sequence, self.count, self.transaction, self.epoch)
        unpack_batch(self.count, self.value, self.runs)


@dataclass(frozen=True)
class OfQuery(ToRequestor):
    """Extension: a question of a requestor to stores, or a store's answer."""

    __slots__ = ()
    query: f.QueryId


@dataclass(frozen=True)
class OfStore(ToRequestor):
    """Extension: a message of a store to a requestor."""

    __slots__ = ()
    store: f.Address


@dataclass(frozen=True)
class Reply(OfStore, OfQuery):
    """Extension: part ``part`` of ``parts``, from 0 on, of a store's answer to a query."""

    __slots__ = ()
    part: f.Number
    parts: f.Number

    def check(self) -> None:
        """Raise ProtocolError unless the part is one of the parts."""
        if not 0 <= self.part < self.parts < 2**32:
            raise ProtocolError("a part must be below the number of parts, which has 32 bits")


@command(b"M", "topic", _RECORD)
class RecordMessage(AtSequence):
    """RECORD, from a producer to stores and consumers: "Topic is the name of the topic"."""

    requestor: ClassVar[str] = ""
    value: bytes


@command(b"D", "requestor", _RECORD)
class DirectRecord(AtSequence, ToRequestor):
    """DIRECT-RECORD, the answer to a FETCH: "Topic is the address of the requestor"."""

    value: bytes


@command(b"F", "partition")
class Fetch(AtSequence, ToRequestor):
    """FETCH, requests missed records: "Topic is the address of the producer (partition)"."""

    count: f.FetchCount

    @classmethod
    def of(cls, requestor: str, tp: TopicPartition, start: int, end: int) -> Self:
        """Request the records from ``start`` to ``end`` (exclusive)."""
        return cls(requestor, *tp, start, end - start)

    @property
    def end(self) -> int:
        """Return the offset after the last requested record, or the greatest one."""
        return min(self.sequence + self.count, limits.MAX_SEQUENCE + 1)


# RFC 46 gives ACK an address, C nodes send none.  There it can name the store.
@command(b"K", "partition", "topic sequence", rfc46="store topic sequence")
class Ack(UpTo):
    """ACK, from a store to a producer.  C nodes do not name the store (``store`` = "")."""

    store: f.AnyAddress = ""


@command(b"I", "partition")
class EpochAck(UpTo):
    """Extension: an ACK with the producer's ``life``, which has written the last record."""

    store: f.Address
    life: f.Life

    @property
    def plain(self) -> Ack:
        """Return the message for producers that do not know epochs."""
        return Ack(*self.tp, self.sequence, self.store)


@command(b"H", "topic", _RECORD)
class Head(UpTo):
    """HEAD, from a producer: "the offset of the last published record"."""


@command(b"E", "requestor", _RECORD)
class DirectHead(UpTo, ToRequestor):
    """DIRECT-HEAD, to one requestor: the answer to a GET-HEADS or a CONSUMER-HELLO."""


@command(b"G", "topic")
class GetHeads(Message):
    """GET-HEADS: asks for the heads of a topic; empty: of all, as C stores compare prefixes."""

    topic: f.AnyTopic
    requestor: f.Address


@command(b"W", "store", max_bytes=limits.MAX_HELLO_BYTES)
class ConsumerHello(Message):
    """CONSUMER-HELLO, from a consumer to one store: "all topic the consumer is subscribed to".

    C nodes send it to all stores: the store is empty then.
    """

    store: f.AnyAddress
    consumer: f.Address
    topics: f.Topics


@command(b"L", "consumer")
class StoreHello(Message):
    """STORE-HELLO, from a store to one consumer; C stores may send it to all, then it is empty."""

    consumer: f.AnyAddress
    store: f.Address


@command(b"r", "topic", _BATCH)
class RecordBatchMessage(Packed):
    """Extension: RECORDs of one partition in one message, for nodes that subscribe to it."""

    requestor: ClassVar[str] = ""


@command(b"p", "requestor", _BATCH)
class DirectRecordBatch(Packed, ToRequestor):
    """Extension: DIRECT-RECORDs of one partition in one message."""


@command(b"B", "store", max_bytes=_MAX_RANGES_BYTES)
class FetchBatch(Message):
    """Extension: FETCHes of many partitions, to a store that has announced the records."""

    store: f.Address
    requestor: f.Address
    entries: f.Ranges

    def check(self) -> None:
        """Raise ProtocolError if it requests nothing."""
        if not self.entries:
            raise ProtocolError("a FETCH-BATCH asks for one partition at least")


@command(b"C", "requestor", max_bytes=_MAX_RANGES_BYTES)
class DirectRecordBatches(ToRequestor):
    """Extension: the answer to a FETCH-BATCH, records of many partitions in one message.

    ``value`` is that of a DIRECT-RECORD-BATCH with the records of all entries, in their order.  No
    run of timestamps has records of two entries.
    """

    entries: f.Ranges
    epochs: f.EntryEpochs  # one epoch for the records of each entry
    runs: f.Number
    value: bytes

    @classmethod
    def of(cls, requestor: str, batches: Sequence[RecordBatch]) -> Self:
        """Encode record batches, without their transactions."""
        columns = [batch.values.columns() for batch in batches]
        lengths = np.concatenate([ends[1:] - ends[:-1] for ends, _ in columns])
        times = joined_times([batch.times for batch in batches])
        stamps = pack_times(times, 0, len(lengths))
        values = (data for _, data in columns)
        content = b"".join([stamps, lengths.astype("<u4").tobytes(), *values])
        entries = tuple(PartitionInfo(*batch.tp, batch.offset, batch.end) for batch in batches)
        epochs = tuple(batch.epoch for batch in batches)
        return cls(requestor, entries, epochs, len(stamps) // limits.RUN_BYTES, content)

    def check(self) -> None:
        """Raise ProtocolError unless the content has the records of the entries."""
        if len(self.epochs) != len(self.entries):
            raise ProtocolError("each entry has one epoch")
        for entry, epoch in zip(self.entries, self.epochs, strict=True):
            if epoch is not None and epoch.start > entry.earliest:
                raise ProtocolError("a batch must be within its epoch")
        self._columns()

    def batches(self) -> Iterator[RecordBatch]:
        """Yield each partition's records in an own buffer: a kept one would retain the others."""
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
        if not len(ends) or not 1 <= ends[-1] <= limits.MAX_BATCH_COUNT:
            raise ProtocolError(f"a message has 1 to {limits.MAX_BATCH_COUNT} records")
        packed = unpack_batch(int(ends[-1]), self.value, self.runs)
        if packed.times is None:
            return packed, [0] * len(ends)
        stops = packed.times[:, 0].cumsum()
        run_ends = stops.searchsorted(ends)
        if (stops[run_ends] != ends).any():
            raise ProtocolError("a run of timestamps has records of one partition")
        return packed, (run_ends + 1).tolist()


@command(b"Q", max_bytes=limits.MAX_HELLO_BYTES)
class HeadsQuery(OfQuery):
    """Extension: asks stores for their partitions of some topics (all topics if empty).

    Unlike the answer to GET-HEADS, its answer names the store, has the beginning of each partition,
    and has an end: a requestor knows when it is complete, also if it is empty.
    """

    topics: f.Topics


@command(b"T")
class TimesQuery(AtSequence, OfQuery):
    """Extension: asks stores for the timestamps of records ``[sequence, end)`` of a partition."""

    end: f.End


@command(b"V")
class HistoryQuery(OfPartition, OfQuery):
    """Extension: asks stores for the history of a partition.

    With a ``life`` a producer that is about to begin also asks them for a promise to acknowledge no
    more records of older ones.
    """

    life: f.Life = NO_LIFE


@command(b"J", "requestor", max_bytes=limits.MAX_HELLO_BYTES)
class HistoryReply(OfPartition, OfStore, OfQuery):
    """Extension: a store's answer; also sent to a producer that a newer life has replaced.

    ``promised`` is the newest life with a promise of this store, ``stores`` are all others that it
    knows, ``transaction`` is the partition's last one.
    """

    end: f.End
    promised: f.Life
    history: f.Epochs
    stores: f.Stores = ()
    transaction: f.MaybeTransaction = None

    def check(self) -> None:
        """Raise ProtocolError unless the transaction's records are among the store's."""
        last = self.transaction
        if last is not None:
            check_batch(last.start, 1, last, None)  # its first record is within it
            if last.end > self.end:
                raise ProtocolError("a partition's last transaction ends where it does, or before")


@command(b"s", "requestor", max_bytes=limits.MAX_REPLY_BYTES)
class HeadsReply(Reply):
    """Extension: the answer to a HEADS-QUERY."""

    entries: f.Heads


@command(b"u", "requestor", max_bytes=limits.MAX_REPLY_BYTES)
class TimesReply(Reply):
    """Extension: the answer to a TIMES-QUERY."""

    entries: f.Times


@command(b"O", "requestor", _RECORD + " size_bytes")
class RecordTooLarge(AtSequence, ToRequestor):
    """Extension: in a FETCH's answer, in place of a record above the requestor's own limit."""

    size_bytes: f.RecordSize


@command(b"N", "requestor")
class StoreEndpoints(OfStore):
    """Extension: sends one requestor the bulk endpoints of a store (Arrow Flight).

    ``locations`` are Flight URIs; a requestor uses the first that it can reach.
    """

    locations: f.Locations


@command(b"X", "requestor", max_bytes=limits.MAX_HELLO_BYTES)
class StoresKnown(OfStore):
    """Extension: sends one requestor the list of all stores known to a store, also absent ones."""

    entries: f.KnownStores


AnyRecord = RecordMessage | DirectRecord | RecordBatchMessage | DirectRecordBatch

# The replies to queries that are sent in parts.
REPLIES: Final = {HeadsQuery: HeadsReply, TimesQuery: TimesReply}
