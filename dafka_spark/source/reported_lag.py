"""What a query's progress report says of its source: what it is, and how far behind.

Spark 4.3 gives a Python source no place of its own in the report: ``sources[].metrics`` stays empty
and ``sources[].description`` is a class and a hash.  What it says of the latest offset is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

from dafka_core.names import escape
from dafka_spark.options import SourceOptions
from dafka_spark.source.batch_limit import Sizes, Waiting

SIZES_S: Final = 10.0
"""How long to believe what records take: no request for it at each trigger."""

SHOWN_TOPICS: Final = 5
"""In a description."""


def described(options: SourceOptions) -> str:
    """What is read, and where: for people."""
    selection = options.selection
    names = sorted(selection.topics or {tp.topic for tp in selection.partitions})
    shown = ", ".join(map(escape, names[:SHOWN_TOPICS])) or f"pattern {selection.pattern}"
    more = f" and {len(names) - SHOWN_TOPICS} more" if len(names) > SHOWN_TOPICS else ""
    return f"dafka: {shown}{more} at {options.mesh_address.name}"


class ReportedLag:
    """How far behind the latest offsets a query is, with the names of Spark's Kafka source."""

    def __init__(self) -> None:
        self._mean_bytes: float | None = None
        self._asked_at = -math.inf

    def of(self, waiting: Waiting, sizes: Callable[[Waiting], Sizes]) -> dict[str, Any]:
        """The metrics of a query that has so many records of each partition to read.

        ``sizes`` asks stores how large they are.
        """
        counts = waiting.values()
        total = sum(counts)
        if total and time.monotonic() >= self._asked_at + SIZES_S:
            self._asked_at = time.monotonic()
            some = {tp: count for tp, count in waiting.items() if count}
            self._mean_bytes = _mean(some, sizes(some))
        size = 0 if not total else self._mean_bytes and int(total * self._mean_bytes)
        return {
            "minOffsetsBehindLatest": min(counts, default=0),
            "maxOffsetsBehindLatest": max(counts, default=0),
            "avgOffsetsBehindLatest": total / len(counts) if counts else 0.0,
            "estimatedTotalBytesBehindLatest": size,
        }


def _mean(waiting: Waiting, sizes: Sizes) -> float | None:
    known = {tp: each for tp, each in sizes.items() if each}
    count = sum(waiting[tp] for tp in known)
    if not count:
        return None
    return sum(waiting[tp] * sum(each) / len(each) for tp, each in known.items()) / count
