"""Records, batches of records, and the facts that nodes exchange about a partition.

Offsets in Python are exclusive at their upper end, as Spark's are: ``end`` is the offset of the
next record.  On the wire they are inclusive (RFC 46, HEAD: "the offset of the last published
record"); only ``protocol/codec.py`` and the messages convert them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise, repeat
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

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
    """One record as an application receives it.

    ``timestamp_us`` is the time of publication in microseconds since 1970 UTC, or None if unknown.
    Stores don't record whether the producer or a store assigned it.
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
        """Return ``timestamp_us`` as a datetime; None if it is outside of the calendar."""
        with suppress(OverflowError):  # no store accepts such a time, but a peer may send it
            return None if self.timestamp_us is None else _EPOCH + self.timestamp_us * _MICROSECOND
        return None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

YEAR_1_US = -62_135_596_800_000_000  # the least valid timestamp, as in Python and Spark
UNKNOWN_US = -(2**63)  # timestamp of a record that no store has a time for
NO_VERSION = -1  # version of a transaction without one: the store forgets it after the commit


class Transaction(NamedTuple):
    """Records that become visible together: offsets ``start`` to ``end`` (exclusive).

    One transaction is one task's part of a micro-batch in one partition.  ``version`` is the
    batch's, which ascends in each partition, or ``NO_VERSION``.  Stores keep the last committed
    transaction of each partition, so a repeated batch is recognised.
    """

    version: int
    start: int
    end: int


class StagedTransaction(NamedTuple):
    """A transaction before its commit, staged by ``attempt``: 32 upper-case hex digits."""

    topic: str
    partition: str
    attempt: str
    start: int
    end: int
    version: int

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def transaction(self) -> Transaction:
        """Return the transaction without its attempt."""
        return Transaction(self.version, self.start, self.end)


class TransactionState(NamedTuple):
    """Progress of a partition's transactions at one store.

    Records from ``end`` to ``staged_end`` are staged by ``attempt``: on disk and invisible.  If the
    two ends are equal, ``attempt`` is the one committed last.  It is empty before the first commit,
    or if the staged records were copied from another store.  ``transaction`` was committed last.
    """

    end: int
    staged_end: int
    attempt: str
    transaction: Transaction | None


class StagedPartition(NamedTuple):
    """Staged records of one partition: ``start`` up to ``end`` (exclusive), invisible to readers.

    ``attempt`` is empty if they were copied from another store.  ``size_bytes`` is the size of
    their blocks, ``staged_at_us`` the store's time of the last addition, in microseconds since the
    epoch UTC.
    """

    topic: str
    partition: str
    attempt: str
    start: int
    end: int
    size_bytes: int
    staged_at_us: int

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


class KnownStore(NamedTuple):
    """One store's knowledge of another store.

    ``endpoint`` was announced last, ``seen_us`` is when the store was last seen (in microseconds
    since 1970 UTC), and ``here`` is false if it is certainly away.  Unknown fields are empty, or 0.
    """

    store: str
    endpoint: str = ""
    seen_us: int = 0
    here: bool = False


class Neighbour(NamedTuple):
    """A peer of a node.

    ``kind`` is ``store``, ``producer``, ``consumer`` or ``reader``, or empty if it implements RFC
    46 alone.  ``endpoint`` is as towers announce it, or empty; ``connected`` is true if it has
    connected to this node; ``topics`` are its subscriptions, the first ones if they are many.
    """

    node: str
    kind: str = ""
    endpoint: str = ""
    connected: bool = False
    topics: tuple[str, ...] = ()


class PartitionLives(NamedTuple):
    """A store's knowledge of a partition's producers.

    ``history`` covers records up to ``end`` (exclusive).  ``promised`` is the newest life for which
    the store acknowledges no older producer's records.  ``transaction`` was committed last.
    """

    end: int
    history: History
    promised: EpochId
    transaction: Transaction | None = None

    @property
    def newest(self) -> EpochId:
        """Return the newest life known to the store."""
        return max(last_life(self.history), self.promised)


class PartitionInfo(NamedTuple):
    """A store's records ``earliest`` to ``end`` (exclusive), and their newest producer's life."""

    topic: str
    partition: str
    earliest: int
    end: int
    life: EpochId = NO_LIFE

    @property
    def tp(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)

    def merged(self, other: Self) -> Self:
        """Combine the records of two stores; a reader may use either.

        A newer producer may have continued without the last records of an older one, so ``end``
        comes from the stores that know the newer one.  C stores know no producers.
        """
        life = max(self.life, other.life)
        end = max(each.end for each in (self, other) if each.life in (life, NO_LIFE))
        return self._replace(earliest=min(self.earliest, other.earliest), end=end, life=life)


def merge_heads(infos: Iterable[PartitionInfo]) -> dict[TopicPartition, PartitionInfo]:
    """Combine the records of several stores, in the order of the partitions."""
    heads: dict[TopicPartition, PartitionInfo] = {}
    # The newest lives first: otherwise an older one could hide the records of a C store.
    newest = sorted(infos, key=attrgetter("life"), reverse=True)
    for info in sorted(newest, key=attrgetter("tp")):
        heads[info.tp] = heads[info.tp].merged(info) if info.tp in heads else info
    return heads


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of one partition, as all modules exchange them.

    Attributes:
        tp: the partition.
        offset: of the first record; ``values[i]`` is the record at ``offset + i``.
        values: at least one.
        transaction: the transaction that includes all the records, if any.
        epoch: the life of the producer that wrote the records, if known.
        times: the timestamps of the records, as runs of shape (n, 2): (record count,
            microseconds since the epoch UTC).  None if unknown or not requested.
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
        """Return a batch of bytes objects."""
        return cls(tp, offset, Values.of(values), transaction)

    @property
    def count(self) -> int:
        """Return the number of records."""
        return len(self.values)

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.offset + len(self.values)

    @property
    def offsets(self) -> Longs:
        """Return the offset of each record."""
        return np.arange(self.offset, self.end, dtype=np.int64)

    def between(self, start: int, end: int) -> RecordBatch:
        """Return records ``start`` to ``end`` (exclusive) of the batch, without a copy."""
        if start == self.offset and end == self.end:
            return self
        first, stop = start - self.offset, end - self.offset
        times = None if self.times is None else times_between(self.times, first, stop)
        return replace(self, offset=start, values=self.values[first:stop], times=times)

    def split(self, max_records: int, max_bytes: int) -> Iterator[RecordBatch]:
        """Split the batch over the same buffers; a single record may exceed ``max_bytes``."""
        start = self.offset
        while start < self.end:
            fitting = min(self.values.fitting(start - self.offset, max_bytes), max_records)
            end = min(start + max(fitting, 1), self.end)
            yield self.between(start, end)
            start = end

    def records(self) -> Iterator[Record]:
        """Yield the records in order, with envelopes unopened."""
        return records(self, self.values.to_list(), repeat(None), repeat(()))


@dataclass(frozen=True, slots=True)
class MatchedRecords:
    """The matching records of a completely searched range, ``offset`` to ``end`` (exclusive).

    They have ascending ``offsets``; ``times`` are as those of ``RecordBatch``.
    """

    tp: TopicPartition
    offset: int
    end: int
    offsets: Longs
    values: Values
    times: Longs | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """Return the number of matching records."""
        return len(self.offsets)


Records = RecordBatch | MatchedRecords


def records(
    batch: Records,
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None],
    headers: Iterable[Headers],
) -> Iterator[Record]:
    """Yield records of a batch from its opened contents, until ``values`` ends."""
    times: Iterable[int | None] = repeat(None)
    if batch.times is not None:
        times = np.repeat(batch.times[:, 1], batch.times[:, 0]).tolist()
    offsets = count(batch.offset) if isinstance(batch, RecordBatch) else batch.offsets.tolist()
    place = (*map(repeat, batch.tp), offsets)
    return map(Record._make, zip(*place, values, keys, headers, times, strict=False))


R = TypeVar("R", RecordBatch, MatchedRecords, Records)


def concat(batches: Sequence[R]) -> R:
    """Concatenate adjacent batches of one partition."""
    first, last = batches[0], batches[-1]
    if first is last:
        return first
    values = Values.concat([batch.values for batch in batches])
    times = joined_times([batch.times for batch in batches])
    if isinstance(first, RecordBatch):
        epochs = {getattr(batch, "epoch", None) for batch in batches}
        epoch = first.epoch if len(epochs) == 1 else None
        return replace(first, epoch=epoch, values=values, times=times)
    offsets = np.concatenate([batch.offsets for batch in batches])
    return replace(first, end=last.end, offsets=offsets, values=values, times=times)


# Batches below both limits are merged: a copy costs less than the overhead of a batch.
SMALL_RECORDS = 4_096
SMALL_BYTES = 512 << 10


def is_large(batch: Records) -> bool:
    """Return True if a batch is not worth merging."""
    return batch.count >= SMALL_RECORDS or batch.values.size_bytes >= SMALL_BYTES


def coalesce(
    batches: Iterable[RecordBatch], max_records: int, max_bytes: int
) -> Iterator[RecordBatch]:
    """Merge small neighbours; large batches pass unchanged, all in order.

    Merged batches have at most ``max_records`` and ``max_bytes``; ``split`` cuts larger ones.
    """
    held: list[RecordBatch] = []
    records = size_bytes = 0
    for batch in batches:
        size = batch.values.size_bytes
        small = not is_large(batch)
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
    """Cut the batch where epochs begin; each part has its epoch."""
    later = [epoch.start for epoch in history if batch.offset < epoch.start < batch.end]
    bounds = [batch.offset, *later, batch.end]
    return [
        replace(batch.between(start, end), epoch=epoch_at(history, start))
        for start, end in pairwise(bounds)
    ]


def joined_times(parts: Sequence[Longs | None]) -> Longs | None:
    """Concatenate the runs; None if any are unknown."""
    known = [times for times in parts if times is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def times_between(times: Longs, start: int, stop: int) -> Longs:
    """Return the runs of records ``start`` to ``stop`` (exclusive)."""
    if len(times) == 1:  # most batches have one timestamp
        return np.array([[stop - start, times[0, 1]]], np.int64)
    ends = times[:, 0].cumsum()
    counts = np.diff(ends.clip(start, stop), prepend=start)
    return np.column_stack((counts, times[:, 1]))[counts > 0]


def as_runs(times_us: Longs) -> Longs:
    """Return the times of at least one record, given for each, as runs."""
    starts = np.flatnonzero(np.diff(times_us, prepend=~times_us[:1]))  # no time equals its inverse
    return np.column_stack((np.diff(starts, append=len(times_us)), times_us[starts]))


def stamped_once(count: int, time_us: int) -> Longs:
    """Return the times of ``count`` records with one timestamp."""
    return np.array([[count, time_us]], np.int64)


def kept_times(times: Longs | None, count: int, now_us: int, latest_us: int) -> Longs:
    """Return the times under which a store keeps ``count`` records.

    Records without a time, or with one before ``YEAR_1_US`` or after ``latest_us``, get the
    store's time ``now_us``.
    """
    if times is None:
        return stamped_once(count, now_us)
    valid = (times[:, 1] >= YEAR_1_US) & (times[:, 1] <= latest_us)
    if valid.all():
        return times
    return np.column_stack((times[:, 0], np.where(valid, times[:, 1], now_us)))


def lateness_us(times: Longs, newest_us: int) -> int:
    """Return the most by which one of the times is below an earlier one, or ``newest_us``."""
    stamps = times[:, 1]
    greatest = np.maximum.accumulate(np.maximum(stamps, newest_us))
    return int((greatest - stamps).max())
