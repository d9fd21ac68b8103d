"""Limits of a micro-batch: records, bytes, and the wait for ``minOffsetsPerTrigger``."""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from dafka_core.errors import DafkaError
from dafka_core.flight.limits import MAX_RANGES
from dafka_core.flight.requests import RecordRange
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_spark.cluster import connections, timing
from dafka_spark.option_types import UNLIMITED_BYTES
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import Holders, rate_limit

UNASKED_BYTES: Final = 1 << 20
"""If records of this size would all fit into the limit, no store is asked for their size: a small
batch costs no request."""

ASSUMED_BYTES: Final = 1_024  # the size of a record where no store knows it: C stores

_LIMITED_BY_DEFAULT: Final = (
    "the next micro-batch takes %d of the %d waiting records, later ones take the others: as "
    "neither maxBytesPerTrigger nor maxOffsetsPerTrigger is set, maxBytesPerTrigger is %d "
    "('unlimited' takes all)"
)

Waiting = Mapping[TopicPartition, int]
Sizes = Mapping[TopicPartition, Sequence[float]]
"""The mean bytes of a record in each of some equal parts of the waiting records."""

_log = logging.getLogger("dafka_spark")


def records_within(limit_bytes: int, waiting: Waiting, sizes: Sizes) -> int:
    """Return how many records have that many bytes if each partition gives the same share.

    At least one.  Partitions without sizes have the mean of the others.  A pure function.
    """
    total = sum(waiting.values())
    sampled = {tp: sizes[tp] for tp in waiting if sizes.get(tp)}
    known = sum(waiting[tp] for tp in sampled) or 1
    parts = max(map(len, sampled.values()), default=1)
    taken, left = 0.0, float(limit_bytes)
    for part in range(parts):
        part_bytes = sum(
            waiting[tp] * each[part * len(each) // parts] for tp, each in sampled.items()
        )
        size = (part_bytes / known if sampled else ASSUMED_BYTES) * total / parts
        if size > left:
            taken += total * left / size / parts
            break
        taken, left = taken + total / parts, left - size
    # Sums of fractions may be a little below the number that they stand for.
    return max(min(math.floor(taken + 1e-6), total), 1)


class BatchLimit:
    """The records that the micro-batches of one query take."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._last_s = -math.inf
        self._is_delayed = False
        self._has_warned = False

    @property
    def default(self) -> ReadLimit:
        """The limit for Spark, which hands it back; ``taken`` applies the others as well."""
        rows, size = self._options.max_offsets_per_trigger, self._options.max_trigger_bytes
        if rows is not None:
            return ReadMaxRows(rows)
        if size == UNLIMITED_BYTES and self._options.min_offsets_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxBytes(size)

    def is_delayed(self, limit: ReadLimit, waiting: Waiting) -> bool:
        """Return whether the next batch waits for ``minOffsetsPerTrigger``."""
        least, total = self._options.min_offsets_per_trigger or 0, sum(waiting.values())
        is_limited = not isinstance(limit, ReadAllAvailable)
        self._is_delayed = is_limited and 0 < total < least and not self._is_time
        if total and not self._is_delayed:
            self._last_s = time.monotonic()
        return self._is_delayed

    @property
    def is_due(self) -> bool:
        """A delayed batch has waited for ``maxTriggerDelay``."""
        return self._is_delayed and self._is_time

    @property
    def _is_time(self) -> bool:
        return time.monotonic() - self._last_s >= self._options.max_trigger_delay / 1000

    def taken(
        self,
        limit: ReadLimit,
        waiting: Waiting,
        firsts: Mapping[TopicPartition, int],
        holders: Holders,
        *,
        turn: int,
    ) -> dict[TopicPartition, int]:
        """Return how many records to take of each partition, from offsets ``firsts`` on."""
        if isinstance(limit, ReadAllAvailable):
            return rate_limit(waiting, None)
        most = total = sum(waiting.values())
        size = self._options.max_trigger_bytes
        if isinstance(limit, ReadMaxRows):
            most = min(total, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        else:
            raise TypeError(f"a limit of {type(limit).__name__} is not one this source declared")
        if most * UNASKED_BYTES > size:
            within = records_within(size, waiting, self.sizes(waiting, firsts, holders))
            if within < total and self._options.is_limited_by_default and not self._has_warned:
                self._has_warned = True
                _log.warning(_LIMITED_BY_DEFAULT, within, total, size)
            most = min(most, within)
        return rate_limit(waiting, most, turn=turn)

    def sizes(
        self, waiting: Waiting, firsts: Mapping[TopicPartition, int], holders: Holders
    ) -> Sizes:
        """Return the stores' samples for the partitions with most records; some may be missing."""
        found: dict[TopicPartition, Sequence[float]] = {}
        stores: dict[StoreLocation, list[RecordRange]] = {}
        for tp in heapq.nlargest(MAX_RANGES, waiting, key=waiting.__getitem__):
            if held := holders(tp):
                best = max(held, key=lambda each: (each.life, each.end, -each.earliest))
                wanted = RecordRange(*tp, firsts[tp], firsts[tp] + waiting[tp])
                stores.setdefault(best.location, []).append(wanted)
        timeout_s = min(self._options.fetch_timeout_s, timing.REQUEST_TIMEOUT_S)
        for location, ranges in stores.items():
            try:
                with connections.borrow_client(location, self._options.keys) as client:
                    sizes = client.record_sizes(ranges, timeout_s=timeout_s).sizes
            except DafkaError as error:
                _log.debug("the size of records is unknown: %s", error)
                continue
            for wanted, size in zip(ranges, sizes, strict=False):
                found[wanted.tp] = size or ()
        return found
