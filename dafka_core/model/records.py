"""What travels: records, runs of records, and what is known of a partition.

Offsets in Python are exclusive at their upper end, as Spark's are: ``end`` is the offset of the
next record.  Only the wire counts inclusively (RFC 46, HEAD: "the offset of the last published
record"), and only ``protocol/codec.py`` and the messages know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise, repeat
from typing import NamedTuple, Self

import numpy as np

from dafka_core.model.envelope import Headers
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, epoch_at, last_life
from dafka_core.model.names import shown_partition
from dafka_core.model.values import Longs, Values


class TopicPartition(NamedTuple):
    """One partition: a topic, and the address of the producer that writes it."""

    topic: str
    partition: str

    def __str__(self) -> str:
        return shown_partition(*self)


class Record(NamedTuple):
    """One record as an application sees it.

    ``timestamp_us`` is when it was published, in microseconds since 1970 UTC, if that is known.  It
    is not known whether its producer or a store has given it: stores do not keep that.
    """

    topic: str
    partition: str
    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_us: int | None = None

    @property
    def timestamp(self) -> datetime | None:
        """``timestamp_us`` as a time."""
        return None if self.timestamp_us is None else _EPOCH + self.timestamp_us * _MICROSECOND


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


UNKNOWN_US = -(2**63)
"""The time of a record of which no store knows when it was written."""

NO_VERSION = -1
"""The version of a transaction that has none: nothing is left of it once it is committed."""


class Transaction(NamedTuple):
    """Records that are there as a whole or not at all: offsets ``start`` to ``end`` (exclusive).

    What one task of one micro-batch writes to one partition.  ``version`` is the batch's, which
    ascends in each partition, or ``NO_VERSION``.  A partition's last committed transaction is kept
    with it: it says what has been written, to whoever tries to write it again.
    """

    version: int
    start: int
    end: int


class StagedTransaction(NamedTuple):
    """A transaction that is to become visible: what ``attempt`` staged from ``start`` to ``end``.

    ``attempt`` is 32 upper-case hex digits, new for each attempt of a task.
    """

    topic: str
    partition: str
    attempt: str
    start: int
    end: int
    version: int

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def transaction(self) -> Transaction:
        """What it is when it is committed."""
        return Transaction(self.version, self.start, self.end)


class TransactionState(NamedTuple):
    """How far a partition's transactions are at a store.

    Records from ``end`` to ``staged_end`` are staged: on disk and seen by no reader.  They are
    ``attempt``'s.  When there are none (the two ends are the same), ``attempt`` is the one that
    was committed here last.  It is empty when there was none, and when what is staged comes from
    another store.  ``transaction`` is the one committed last.
    """

    end: int
    staged_end: int
    attempt: str
    transaction: Transaction | None


class StagedPartition(NamedTuple):
    """What is staged in one partition: records ``start`` up to ``end`` (exclusive), seen by nobody.

    ``attempt`` is empty when they come from another store.  ``size_bytes`` is that of their blocks.
    ``last_time_us`` is the last one's timestamp, in microseconds since the epoch UTC.
    """

    topic: str
    partition: str
    attempt: str
    start: int
    end: int
    size_bytes: int
    last_time_us: int

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class Contacts(NamedTuple):
    """The nodes that a reader hears of.

    Attributes:
        endpoint: where others are told to connect to it.
        unmet: stores that have not done so, and hear nothing that it asks.
        c_stores: stores that know RFC 46 alone.
        node_count: how many nodes the towers tell of.
    """

    endpoint: str = ""
    unmet: frozenset[str] = frozenset()
    c_stores: frozenset[str] = frozenset()
    node_count: int = 0


class KnownStore(NamedTuple):
    """What one store knows of another one.

    ``endpoint`` is where it was announced last, ``heard_us`` when it was heard last (microseconds
    since 1970 UTC), and ``here`` whether it may be there now.  What is not known is empty, or 0.
    """

    store: str
    endpoint: str = ""
    heard_us: int = 0
    here: bool = False


class Neighbour(NamedTuple):
    """A peer of a node.

    Attributes:
        node: its address.
        kind: ``store``, ``producer``, ``consumer`` or ``reader``; empty if it has not said so, as
            nodes that know RFC 46 alone.
        endpoint: where towers say it is; empty if none tells of it.
        connected: whether it has connected to this node.
        topics: those that it follows, some of them where they are many.
    """

    node: str
    kind: str = ""
    endpoint: str = ""
    connected: bool = False
    topics: tuple[str, ...] = ()


class PartitionLives(NamedTuple):
    """What a store knows of a partition's lives.

    The ``history`` of its records, which go up to ``end`` (exclusive), the newest life that the
    store has ``promised`` to acknowledge nothing more to older ones, and the last transaction.
    """

    end: int
    history: History
    promised: EpochId
    transaction: Transaction | None = None

    @property
    def newest(self) -> EpochId:
        """The newest life that the store has heard of."""
        return max(last_life(self.history), self.promised)


class PartitionInfo(NamedTuple):
    """What a store holds of one partition: offsets ``earliest`` up to, not including, ``end``.

    ``life`` is that of the newest producer whose records these are.
    """

    topic: str
    partition: str
    earliest: int
    end: int
    life: EpochId = NO_LIFE

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def merged(self, other: Self) -> Self:
        """What two stores have of the partition together: any of them may be read from.

        It ends where it does for those that have heard of its newest producer, which may have gone
        on without the last records that others have.  C stores know no producers.
        """
        life = max(self.life, other.life)
        end = max(each.end for each in (self, other) if each.life in (life, NO_LIFE))
        return self._replace(earliest=min(self.earliest, other.earliest), end=end, life=life)


def merge_heads(infos: Iterable[PartitionInfo]) -> dict[TopicPartition, PartitionInfo]:
    """What several stores have together, in the order of the partitions."""
    heads: dict[TopicPartition, PartitionInfo] = {}
    for info in sorted(infos):
        known = heads.get(info.tp)
        heads[info.tp] = info if known is None else known.merged(info)
    return heads


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of one partition: the form in which records are handled everywhere.

    Attributes:
        tp: the partition.
        offset: of the first record; ``values[i]`` is the record at ``offset + i``.
        values: at least one.
        transaction: the one that all of the records belong to, if any.
        epoch: the life of the producer that has written them, where that is known.
        times: the timestamps of the records, as runs of shape (n, 2): (record count,
            microseconds since the epoch UTC).  None where they are not known or not asked for.
    """

    tp: TopicPartition
    offset: int
    values: Values
    transaction: Transaction | None = None
    times: Longs | None = field(default=None, compare=False)
    epoch: Epoch | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        tp: TopicPartition,
        offset: int,
        values: Iterable[bytes],
        transaction: Transaction | None = None,
    ) -> Self:
        """A batch of values that are objects."""
        return cls(tp, offset, Values.of(values), transaction)

    @property
    def topic(self) -> str:
        """The partition's topic."""
        return self.tp.topic

    @property
    def partition(self) -> str:
        """The partition's address within its topic."""
        return self.tp.partition

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self.values)

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offset + len(self.values)

    @property
    def offsets(self) -> Longs:
        """The offset of each record."""
        return np.arange(self.offset, self.end, dtype=np.int64)

    def offset_of(self, row: int) -> int:
        """The offset of one of the records, counted from 0."""
        return self.offset + row

    def between(self, start: int, end: int) -> RecordBatch:
        """The records from offset ``start`` up to ``end`` (exclusive), without a copy.

        Both must lie within the batch.
        """
        if start == self.offset and end == self.end:
            return self
        first, stop = start - self.offset, end - self.offset
        times = None if self.times is None else times_between(self.times, first, stop)
        return replace(self, offset=start, values=self.values[first:stop], times=times)

    def split(self, max_records: int, max_bytes: int) -> Iterator[RecordBatch]:
        """The same records in parts over the same buffers.

        A part has at most ``max_records``, and at most ``max_bytes`` of values unless it is one
        record.
        """
        start = self.offset
        while start < self.end:
            fitting = min(self.values.fitting(start - self.offset, max_bytes), max_records)
            end = min(start + max(fitting, 1), self.end)
            yield self.between(start, end)
            start = end

    def records(self) -> Iterator[Record]:
        """The batch's records, one by one and in order, their contents as they are."""
        return records(self, self.values.to_list())


def records(
    batch: RecordBatch,
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] = repeat(None),
    headers: Iterable[Headers] = repeat(()),
) -> Iterator[Record]:
    """The records of a batch, one by one, from what is in them; as long as there are values."""
    times: Iterable[int | None] = repeat(None)
    if batch.times is not None:
        times = np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist()
    place = (repeat(batch.topic), repeat(batch.partition), count(batch.offset))
    return map(Record._make, zip(*place, values, keys, headers, times, strict=False))


def concat(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Batches of one partition, each of which begins where the one before it ends, as one."""
    first = batches[0]
    if len(batches) == 1:
        return first
    return replace(
        first,
        epoch=first.epoch if len({batch.epoch for batch in batches}) == 1 else None,
        values=Values.concat([batch.values for batch in batches]),
        times=joined_times([batch.times for batch in batches]),
    )


SMALL_RECORDS = 4_096
SMALL_BYTES = 512 << 10
"""A batch below both is joined with its neighbours: copying it costs less than what a batch costs
its reader."""


def coalesce(
    batches: Iterable[RecordBatch], max_records: int, max_bytes: int
) -> Iterator[RecordBatch]:
    """The same records, in order: large batches as they are, small neighbours joined.

    What is joined has at most ``max_records`` and ``max_bytes`` of values; a batch that is larger
    by itself stays as it is (``RecordBatch.split`` cuts it).
    """
    held: list[RecordBatch] = []
    records = size_bytes = 0
    for batch in batches:
        size = batch.values.size_bytes
        small = batch.count < SMALL_RECORDS and size < SMALL_BYTES
        fits = records + batch.count <= max_records and size_bytes + size <= max_bytes
        if held and not (small and fits and batch.offset == held[-1].end):
            yield concat(held)
            held, records, size_bytes = [], 0, 0
        if small:
            held.append(batch)
            records, size_bytes = records + batch.count, size_bytes + size
        else:
            yield batch
    if held:
        yield concat(held)


def split_by_epoch(batch: RecordBatch, history: History) -> list[RecordBatch]:
    """The batch, cut where epochs begin, with what epoch each part is of."""
    later = [epoch.start for epoch in history if batch.offset < epoch.start < batch.end]
    bounds = [batch.offset, *later, batch.end]
    return [
        replace(batch.between(start, end), epoch=epoch_at(history, start))
        for start, end in pairwise(bounds)
    ]


def joined_times(parts: Sequence[Longs | None]) -> Longs | None:
    """The runs of all parts, in order; None if those of any are not known."""
    known = [times for times in parts if times is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def times_between(times: Longs, start: int, stop: int) -> Longs:
    """The runs of records ``start`` to ``stop`` (exclusive) of those that the runs tell of."""
    if len(times) == 1:  # most batches are published at once
        return np.array([[stop - start, times[0, 1]]], np.int64)
    ends = times[:, 0].cumsum()
    counts = np.diff(ends.clip(start, stop), prepend=start)
    return np.column_stack((counts, times[:, 1]))[counts > 0]
