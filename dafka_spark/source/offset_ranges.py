"""Offset ranges of a batch: rate limit, input partitions and their stores; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from dafka_core.archive.manifest import ArchivedFile
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import TopicPartition
from dafka_spark.options import AUTO, MESH, RECORDS_PER_TASK, SourceOptions


class StoreRange(NamedTuple):
    """Offsets of a partition in a store, and the newest life of the producer that it knows."""

    location: StoreLocation
    earliest: int
    end: int
    life: EpochId = NO_LIFE


@dataclass(frozen=True)
class OffsetRange:
    """Offsets ``start`` up to ``end`` (exclusive) of one partition.

    Attributes:
        stores: stores that reported some of the range, best first; a hint that changes no row.
        life: the newest life of the partition's producer when ``end`` was planned.
        after: the newest life when the previous batch was planned; NO_LIFE if there was none.
        archived: files of the archive with some of the range; a hint, too.
    """

    topic: str
    partition: str
    start: int
    end: int
    stores: tuple[StoreRange, ...] = field(default=(), compare=False)
    life: EpochId = NO_LIFE
    after: EpochId = NO_LIFE
    archived: tuple[ArchivedFile, ...] = field(default=(), compare=False)

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The number of records."""
        return self.end - self.start

    def between(self, start: int, end: int) -> OffsetRange:
        """Return these offsets of the range; ``after`` applies only to those at its start."""
        after = self.after if start == self.start else NO_LIFE
        return replace(self, start=start, end=end, after=after)

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether the range has any of these offsets."""
        return start < self.end and self.start < end


@dataclass(frozen=True)
class DafkaInputPartition(InputPartition):
    """The ranges that one task reads, at most one of each partition."""

    ranges: tuple[OffsetRange, ...]


MAX_JOINED_RECORDS: Final = 20_000
"""A query reads and processes them in about the 50 to 70 ms that Spark needs for each task."""

MAX_JOINED_RANGES: Final = 500  # the same: a range in a request for many takes 0.1 ms

MIN_TASKS: Final = 16
"""Joining leaves at least this many tasks, to keep as many cores busy, unless ``minPartitions`` is
set: a query may need far more time to process records than to read them."""

Holders = Callable[[TopicPartition], Sequence[StoreRange]]
"""Returns the ranges of a partition that stores with Arrow Flight hold."""

Archived = Mapping[TopicPartition, Sequence[ArchivedFile]]
"""The archive's files of each partition, ordered by offset."""

NOT_ARCHIVED: Final[Archived] = {}

Waiting = Mapping[TopicPartition, int]  # the number of unread records

Sizes = Mapping[TopicPartition, Sequence[float]]
"""The mean bytes of a record in each of some equal parts of the waiting records."""


def rate_limit(waiting: Waiting, limit: int | None, *, turn: int = 0) -> dict[TopicPartition, int]:
    """Return the number of records to take of each partition, in total at most ``limit``.

    Each partition gives one record, and the rest in proportion to its waiting records. If the
    limit is below the number of partitions, ``limit`` of them give one record each, beginning at
    index ``turn``, which the caller advances by the records taken: each partition gets its turn.
    """
    sizes = {tp: waiting[tp] for tp in sorted(waiting) if waiting[tp] > 0}
    tps = list(sizes)
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return sizes
    if limit <= len(tps):
        first = turn % len(tps)
        return {tps[(first + step) % len(tps)]: 1 for step in range(limit)}
    spare, rest = limit - len(tps), total - len(tps)
    ends = list(accumulate((size - 1 for size in sizes.values()), initial=0))
    shares = [1 + spare * end // rest - spare * start // rest for start, end in pairwise(ends)]
    return dict(zip(sizes, shares, strict=True))


def plan_input_partitions(
    ranges: Iterable[OffsetRange],
    holders: Holders,
    options: SourceOptions,
    *,
    archived: Archived = NOT_ARCHIVED,
) -> list[DafkaInputPartition]:
    """Split and join ranges into tasks, and add to each range where it can be read.

    The ranges and options alone determine the tasks and their rows. When Spark repeats a batch, a
    sink therefore receives the same rows from the task with the same number.
    """
    ordered = sorted(ranges, key=lambda item: (item.topic, item.partition, item.start))
    no_mesh = options.fetch not in (AUTO, MESH)
    tasks = []
    for number, group in enumerate(join(split(ordered, options), options)):
        found = (add_sources(each, holders, archived, number, no_mesh=no_mesh) for each in group)
        tasks.append(DafkaInputPartition(tuple(found)))
    return tasks


def split(ranges: Iterable[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    """Split ranges as Spark's ``KafkaOffsetRangeCalculator`` does; empty ranges are dropped.

    First no range keeps more than ``maxRecordsPerPartition``, or ``RECORDS_PER_TASK`` without that
    and ``minPartitions``. Then large ranges are split until there are about ``minPartitions``.
    """
    min_partitions, max_records = options.min_partitions, options.max_records_per_partition
    if min_partitions is None and max_records is None:
        max_records = RECORDS_PER_TASK
    pieces = [item for item in ranges if item.size > 0]
    if max_records is not None:
        pieces = [each for item in pieces for each in _divide(item, -(-item.size // max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(item.size for item in pieces)
    small = {item for item in pieces if _share(item.size, total, min_partitions) == 1}
    total -= sum(item.size for item in small)
    count = max(min_partitions - len(small), 1)
    return [
        each
        for item in pieces
        for each in _divide(item, 1 if item in small else _share(item.size, total, count))
    ]


def _share(size: int, total: int, count: int) -> int:
    """Return the rounded share of ``count`` that ``size`` of ``total`` gets, at least 1."""
    return max((2 * size * count + total) // (2 * total), 1)


def _divide(item: OffsetRange, count: int) -> list[OffsetRange]:
    if (count := min(count, item.size)) == 1:
        return [item]
    bounds = [item.start + item.size * index // count for index in range(count + 1)]
    return [item.between(start, end) for start, end in pairwise(bounds)]


def join(ranges: Sequence[OffsetRange], options: SourceOptions) -> Iterator[list[OffsetRange]]:
    """Group small neighbours, in order, into the ranges of one task.

    A group of several ranges has at most ``MAX_JOINED_RECORDS`` and ``maxRecordsPerPartition``
    records. At least ``minPartitions`` or ``MIN_TASKS`` groups remain, unless the ranges are fewer.
    """
    max_records = min(MAX_JOINED_RECORDS, options.max_records_per_partition or MAX_JOINED_RECORDS)
    max_ranges = min(MAX_JOINED_RANGES, len(ranges) // (options.min_partitions or MIN_TASKS))
    group: list[OffsetRange] = []
    records = 0
    for item in ranges:
        if group and (len(group) >= max_ranges or records + item.size > max_records):
            yield group
            group, records = [], 0
        group.append(item)
        records += item.size
    if group:
        yield group


def add_sources(
    item: OffsetRange, holders: Holders, archived: Archived, number: int, *, no_mesh: bool
) -> OffsetRange:
    """Add to a range of task ``number`` its stores, best first, and its files in the archive.

    Stores with all of the range come first, then stores with some of it, then stores that do not
    know the newest producer yet and so cannot tell whether their records remain. Tasks rotate each
    of the three groups, so that stores share the tasks. With ``no_mesh``, if no store has any of
    the range, all stores of the partition are named, to report their offsets.
    """
    known = holders(item.tp)
    some = [each for each in known if item.overlaps(each.earliest, each.end)]
    newest = max([item.life, *(each.life for each in some)])
    current = [each for each in some if each.life in (newest, NO_LIFE)]
    whole = [each for each in current if each.earliest <= item.start and item.end <= each.end]
    partial = [each for each in current if each not in whole]
    behind = [each for each in some if each not in current]
    stores = [each for group in (whole, partial, behind) for each in _rotated(group, number)]
    files = [each for each in archived.get(item.tp, ()) if item.overlaps(each.start, each.end)]
    if not stores and no_mesh:
        stores = list(known)
    return replace(item, stores=tuple(stores), archived=tuple(files))


def _rotated(stores: list[StoreRange], steps: int) -> list[StoreRange]:
    first = steps % len(stores) if stores else 0
    return stores[first:] + stores[:first]
