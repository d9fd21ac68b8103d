"""The offsets of times: each store says which of its records were published then, or later.

A partition's timestamps never go back (docs/guarantees.md), so one offset parts what was published
before a time from all the rest.  Each store is asked once for all partitions of which it is the
best: some thousands are one request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dafka_core.errors import DafkaError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import connections
from dafka_spark.source.range_planner import HeldRange, Holders


class AskedTime(NamedTuple):
    """A time, in microseconds since the epoch UTC, or before now by the clock of who is asked."""

    us: int
    is_ago: bool = False


@dataclass
class TimeOffsets:
    """What the stores say.

    Attributes:
        found: of each partition that a store has told of, the first offset that was published at
            the time or later; None where no record is so new.
        failures: why stores have not answered, by partition.
        ahead_us: how far the clock of the store that is most ahead is ahead of this machine's.
    """

    found: dict[TopicPartition, int | None] = field(default_factory=dict)
    failures: dict[TopicPartition, DafkaError] = field(default_factory=dict)
    ahead_us: int | None = None


def offsets_of_times(
    asked: Mapping[TopicPartition, AskedTime],
    heads: Mapping[TopicPartition, PartitionInfo],
    holders: Holders,
    timeout_s: float,
) -> TimeOffsets:
    """The offsets of these times, each between the partition's earliest offset and its end.

    The best store of a partition is asked first, and others where it does not answer, or where they
    have earlier records than the first one it has.
    """
    answers = TimeOffsets()
    orders = {tp: ranked(holders.get(tp, ())) for tp in asked}
    for choice in range(max(map(len, orders.values()), default=0)):
        stores: dict[StoreLocation, list[tuple[TopicPartition, HeldRange]]] = {}
        for tp, order in orders.items():
            if choice < len(order) and _is_open(answers, tp, order[:choice], heads[tp]):
                stores.setdefault(order[choice].location, []).append((tp, order[choice]))
        for location, wanted in stores.items():
            try:
                with connections.lend_client(location) as client:
                    offsets = _ask(
                        client, answers, [asked[tp] for tp, _ in wanted], wanted, timeout_s
                    )
            except DafkaError as error:
                answers.failures |= dict.fromkeys((tp for tp, _ in wanted), error)
                continue
            for (tp, held), offset in zip(wanted, offsets, strict=True):
                _take(answers, tp, held, offset, heads[tp])
    return answers


def _ask(
    client: StoreClient,
    answers: TimeOffsets,
    asked: Iterable[AskedTime],
    wanted: Sequence[tuple[TopicPartition, HeldRange]],
    timeout_s: float,
) -> list[int | None]:
    own_us, clock_us = time.time_ns() // 1_000, client.clock_us(timeout_s=timeout_s)
    # A store of before does not tell its clock: then this machine's counts.
    now_us = own_us if clock_us is None else clock_us
    answers.ahead_us = max(
        now_us - own_us, now_us - own_us if answers.ahead_us is None else answers.ahead_us
    )
    times = [now_us - each.us if each.is_ago else each.us for each in asked]
    rows = [(*tp, time_us) for (tp, _), time_us in zip(wanted, times, strict=True)]
    return client.offset_for_times(rows, timeout_s=timeout_s)


def _is_open(
    answers: TimeOffsets, tp: TopicPartition, before: Sequence[HeldRange], head: PartitionInfo
) -> bool:
    """Whether the next store is to be asked, too: nobody has answered, or not for all records."""
    if tp not in answers.found:
        return True
    first = min(held.earliest for held in before)
    return answers.found[tp] == first > head.earliest


def _take(
    answers: TimeOffsets,
    tp: TopicPartition,
    held: HeldRange,
    offset: int | None,
    head: PartitionInfo,
) -> None:
    if offset is None and held.end < head.end:
        offset = held.end  # where all that the store has is older, what it has not may be newer
    if offset is not None:
        offset = min(max(offset, head.earliest), head.end)
    known = answers.found.get(tp)
    answers.found[tp] = offset if known is None or offset is None else min(known, offset)
    answers.failures.pop(tp, None)


def ranked(held: Sequence[HeldRange]) -> list[HeldRange]:
    """The stores of a partition, first those that have most of its newest history."""
    return sorted(held, key=lambda each: (each.life, each.end, -each.earliest), reverse=True)
