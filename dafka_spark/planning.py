"""How much of each partition a batch takes, and into which tasks it is cut.  Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from dafka_spark.offsets import TopicPartition


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: offsets ``start`` up to, not including, ``end`` of one partition."""

    topic: str
    partition: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """Records in the range."""
        return self.end - self.start


def rate_limit(
    waiting: Mapping[TopicPartition, int], limit: int, *, turn: int = 0
) -> dict[TopicPartition, int]:
    """How many records to take of each partition, ``limit`` of them at the most.

    Each partition gets one, the rest is shared in proportion to what is waiting.  When there are
    more partitions than ``limit``, as many take one each, beginning at the partition that
    ``turn`` points to; the caller advances it by the number taken, so that all have their turn.
    """
    sizes = {key: waiting[key] for key in sorted(waiting) if waiting[key] > 0}
    keys = list(sizes)
    total = sum(sizes.values())
    if total <= limit:
        return sizes
    if limit <= len(keys):
        first = turn % len(keys)
        return {keys[(first + step) % len(keys)]: 1 for step in range(limit)}
    spare, rest = limit - len(keys), total - len(keys)
    shares = {key: 1 + spare * (size - 1) // rest for key, size in sizes.items()}
    remainders = {key: spare * (size - 1) % rest for key, size in sizes.items()}
    left = limit - sum(shares.values())
    for key in sorted(keys, key=lambda key: (-remainders[key], key))[:left]:
        shares[key] += 1
    return shares


def split(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Ranges cut as Spark's Kafka source cuts them (``KafkaOffsetRangeCalculator``).

    First so that none has more than ``max_records``; if there are still fewer than
    ``min_partitions``, then by size until there are about as many.  Empty ranges are left out.
    """
    whole = [item for item in ranges if item.size > 0]
    cut = whole
    if max_records is not None:
        cut = [part for item in whole for part in _divide(item, -(-item.size // max_records))]
    if min_partitions is None or len(cut) >= min_partitions:
        return cut
    total = sum(item.size for item in cut)
    small = [item for item in cut if _parts(item.size, total, min_partitions) == 1]
    large_total = total - sum(item.size for item in small)
    large_parts = max(min_partitions - len(small), 1)
    kept = set(small)
    return [
        part
        for item in cut
        for part in (
            [item] if item in kept else _divide(item, _parts(item.size, large_total, large_parts))
        )
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max((2 * size * wanted + total) // (2 * total), 1)


def _divide(item: OffsetRange, parts: int) -> Sequence[OffsetRange]:
    parts = min(parts, item.size)
    cuts = [item.start + item.size * part // parts for part in range(parts + 1)]
    return [replace(item, start=start, end=end) for start, end in pairwise(cuts)]
