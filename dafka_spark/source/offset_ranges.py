"""How much of each partition a batch takes, and which task reads what.  Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from dafka_core.archive.manifest import ArchivedFile
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import TopicPartition
from dafka_spark.options import AUTO, MESH, RECORDS_PER_TASK, SourceOptions


class HeldRange(NamedTuple):
    """What one store has of a partition: offsets ``earliest`` up to, not including, ``end``.

    ``life`` is that of the newest producer whose records these are.
    """

    location: StoreLocation
    earliest: int
    end: int
    life: EpochId = NO_LIFE


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets ``start`` up to, not including, ``end`` of one partition: a task reads one or more.

    ``life`` is that of its newest producer when the end was planned, ``after`` when the start was,
    if the query has read the records before it.
    """

    topic: str
    partition: str
    start: int
    end: int
    held: tuple[HeldRange, ...] = field(default=(), compare=False)
    """The stores seen to have some of it, the best one first: hints that change no row."""
    life: EpochId = NO_LIFE
    after: EpochId = NO_LIFE
    archived: tuple[ArchivedFile, ...] = field(default=(), compare=False)
    """The files of the archive with some of it: hints, too."""

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    def part(self, start: int, end: int) -> OffsetRange:
        """A part of it; only the first one follows what the query has read."""
        after = self.after if start == self.start else NO_LIFE
        return replace(self, start=start, end=end, after=after)

    @property
    def size(self) -> int:
        """Records in the range."""
        return self.end - self.start


@dataclass(frozen=True)
class SharedTask(InputPartition):
    """What one task reads: several small ranges, one after the other."""

    ranges: tuple[OffsetRange, ...]


Task = OffsetRange | SharedTask

SHARED_RECORDS: Final = 20_000
"""What a task reads together at most.  With what a query usually does with them, these take about
as long as the 50 to 70 ms that a task costs Spark: to split them would not pay."""

SHARED_RANGES: Final = 500
"""What a task reads together at most, for the same reason: with one request for all of them
(``shared_fetch``) a range takes about 0.1 ms."""

LEAST_TASKS: Final = 16
"""So many tasks are left when ranges share them, unless ``minPartitions`` says how many: records
may cost a query far more than reading them, and there may be so many cores."""

Holders = Mapping[TopicPartition, Sequence[HeldRange]]
"""The stores that can be read in bulk, and what they have of each partition."""

Archived = Mapping[TopicPartition, Sequence[ArchivedFile]]
"""The files of an archive with some of each partition, in the order of their offsets."""

NOT_ARCHIVED: Final[Archived] = {}


def rate_limit(
    waiting: Mapping[TopicPartition, int], limit: int | None, *, turn: int = 0
) -> dict[TopicPartition, int]:
    """How many records to take of each partition, ``limit`` of them at the most; None: all.

    Each partition gives one, the rest is shared in proportion to what is waiting.  When there are
    more partitions than ``limit``, so many give one each, beginning at the partition that ``turn``
    points to; the caller advances it by the number taken, so that all have their turn.
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


def plan_tasks(
    ranges: Iterable[OffsetRange],
    holders: Holders,
    options: SourceOptions,
    *,
    archived: Archived = NOT_ARCHIVED,
) -> list[Task]:
    """The tasks of a batch: ranges cut, joined and in order, each with where it may be read.

    Which tasks there are, and which one reads what, follows from the ranges and the options
    alone: a sink that knows its tasks by number is given the same rows by the same task when a
    batch is run again, whatever has become of stores and archive.  They decide only where a task
    reads.
    """
    parts = split(
        sorted(ranges, key=lambda item: (item.topic, item.partition, item.start)),
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    alone = options.fetch not in (AUTO, MESH)
    tasks: list[Task] = []
    for turn, joined in enumerate(join(parts, options)):
        assigned = [assign_stores(each, holders, turn, alone=alone) for each in joined]
        if archived:
            assigned = [_with_files(each, archived.get(each.tp, ())) for each in assigned]
        tasks.append(assigned[0] if len(assigned) == 1 else SharedTask(tuple(assigned)))
    return tasks


def join(ranges: Sequence[OffsetRange], options: SourceOptions) -> Iterator[list[OffsetRange]]:
    """Neighbours of few records put together, in order.

    Together they have at most ``SHARED_RECORDS`` and ``maxRecordsPerPartition``, and so few ranges
    that ``minPartitions`` tasks remain, or ``LEAST_TASKS``, if there are as many ranges.
    """
    most_records = min(SHARED_RECORDS, options.max_records_per_partition or SHARED_RECORDS)
    most = min(SHARED_RANGES, len(ranges) // (options.min_partitions or LEAST_TASKS))
    joined: list[OffsetRange] = []
    records = 0
    for item in ranges:
        if joined and (len(joined) >= most or records + item.size > most_records):
            yield joined
            joined, records = [], 0
        joined.append(item)
        records += item.size
    if joined:
        yield joined


def assign_stores(
    item: OffsetRange, holders: Holders, turn: int = 0, *, alone: bool
) -> OffsetRange:
    """The range with the stores that have it, in the order in which they are to be asked.

    First those that have all of it, then those that have some, and last those that have not heard
    of the newest producer yet, which cannot say whether their records remain.  Each kind in turns:
    each store is the first choice for its share of the tasks.  Stores that have none of it are
    named where no other store has any and the mesh is not asked (``alone``): they at least can say
    what they have.
    """
    held = holders.get(item.tp, ())
    some = [each for each in held if each.earliest < item.end and item.start < each.end]
    newest = max([item.life, *(each.life for each in some)])
    heard = [each for each in some if each.life in (newest, NO_LIFE)]
    whole = [each for each in heard if each.earliest <= item.start and item.end <= each.end]
    part = [each for each in heard if each not in whole]
    behind = [each for each in some if each not in heard]
    found = tuple(each for kind in (whole, part, behind) for each in _rotated(kind, turn))
    return replace(item, held=found or (tuple(held) if alone else ()))


def _with_files(item: OffsetRange, files: Sequence[ArchivedFile]) -> OffsetRange:
    some = tuple(each for each in files if each.start < item.end and item.start < each.end)
    return replace(item, archived=some) if some else item


def _rotated(held: list[HeldRange], steps: int) -> list[HeldRange]:
    first = steps % len(held) if held else 0
    return held[first:] + held[:first]


def split(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Ranges cut as Spark's Kafka source cuts them (``KafkaOffsetRangeCalculator``).

    First so that none has more than ``max_records``; if there are still fewer than
    ``min_partitions``, then by size until there are about as many.  Empty ranges are left out.
    With neither, none has more than ``RECORDS_PER_TASK``.
    """
    if min_partitions is None and max_records is None:
        max_records = RECORDS_PER_TASK
    cut = [item for item in ranges if item.size > 0]
    if max_records is not None:
        cut = [part for item in cut for part in _divide(item, -(-item.size // max_records))]
    if min_partitions is None or len(cut) >= min_partitions:
        return cut
    total = sum(item.size for item in cut)
    small = {item for item in cut if _parts(item.size, total, min_partitions) == 1}
    large_total = total - sum(item.size for item in small)
    large_parts = max(min_partitions - len(small), 1)
    parts: list[OffsetRange] = []
    for item in cut:
        count = 1 if item in small else _parts(item.size, large_total, large_parts)
        parts += _divide(item, count)
    return parts


def _parts(size: int, total: int, wanted: int) -> int:
    return max((2 * size * wanted + total) // (2 * total), 1)


def _divide(item: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(parts, item.size)
    cuts = [item.start + item.size * part // parts for part in range(parts + 1)]
    return [item.part(start, end) for start, end in pairwise(cuts)]
