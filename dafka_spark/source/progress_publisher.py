"""Progress reports of a streaming query, to a topic and to Spark.

It does so beside the query, which never fails because of it, and waits for one report at the most:
the last one of a query that ends by itself, since Spark ends the process then.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from msgspec.structs import replace

from dafka_core.errors import DafkaError, NoStoreError
from dafka_core.model.names import escape
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_reader import OffsetReader
from dafka_spark.source.read_limit import Sizes, Waiting

EVERY_S: Final = 10.0
"""Between two reports at least."""

IDLE_S: Final = 60.0
"""Between two reports at most: stores tell by them that the query runs."""

BYTES_PER_S: Final = 1_000
"""Stores keep reports: those of very many partitions come less often."""

_log = logging.getLogger("dafka_spark")


class ProgressPublisher:
    """Reports a query's positions while it runs; does nothing for one without a name.

    Its thread begins with the first positions.  It ends with ``close``, or with the process, which
    Spark ends with the query.
    """

    def __init__(self, options: SourceOptions, connect: Connect) -> None:
        self._options = options
        self._connect = connect
        selection = options.selection
        topics = tuple(sorted(selection.topics))
        self._has_pattern = bool(selection.pattern)
        self._report = QueryProgress(options.query_name, uuid.uuid4().hex.upper(), IDLE_S, topics)
        self._newest: Mapping[str, Any] | None = None
        self._tried: Mapping[str, Any] | None = None
        self._is_last = False
        self._has_failed = False
        self._changed = threading.Condition()
        self._is_started = False
        self._is_closed = False

    def moved(self, offset: Mapping[str, Any], *, is_last: bool = False) -> None:
        """The query has read everything before an offset, as Spark hands it on.

        Where that ``is_last`` to be read it is reported at once, before this returns if a store
        answers in time.
        """
        if not self._report.query or (offset == self._newest and not is_last):
            return
        with self._changed:
            self._newest, self._is_last = offset, is_last
            self._changed.notify_all()
            if not self._is_started and not self._is_closed:
                self._is_started = True
                threading.Thread(target=self._run, name="dafka-progress", daemon=True).start()
            if is_last:
                self._changed.wait_for(lambda: self._tried == offset, timing.ANSWER_S)

    def close(self) -> None:
        """Ends the reports."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        every_s = EVERY_S
        while True:
            began = time.monotonic()
            with self._changed:
                newest = self._newest
            assert newest is not None  # the thread begins with it
            try:
                every_s = max(EVERY_S, self._publish(newest) / BYTES_PER_S)
                self._has_failed = False
            except Exception as error:  # noqa: BLE001 -- the query goes on whatever it is
                self._say(error)
            with self._changed:
                self._tried = newest
                self._changed.notify_all()
            if self._is_over(newest, began + every_s, began + max(IDLE_S, every_s)):
                return

    def _is_over(self, told: Mapping[str, Any], least: float, most: float) -> bool:
        """Waits until ``least``, and until ``most`` for news; whether it was closed meanwhile.

        The last news of all do not wait.
        """

        def is_new() -> bool:
            return self._is_closed or self._newest != told

        with self._changed:
            left_s = max(0.0, least - time.monotonic())
            self._changed.wait_for(lambda: is_new() and (self._is_closed or self._is_last), left_s)
            self._changed.wait_for(is_new, max(0.0, most - time.monotonic()))
            return self._is_closed

    def _publish(self, offset: Mapping[str, Any]) -> int:
        positions = SourceOffset.parse(offset).positions
        report = self._report.at(positions)
        if self._has_pattern:  # who reads reports would have to match what anybody has written
            report = replace(report, topics=tuple(sorted({tp.topic for tp in positions})))
        size = len(report.packed())
        if size > IDLE_S * BYTES_PER_S:
            report = replace(report, every_s=size / BYTES_PER_S)
        found = OffsetReader(self._options, self._connect).query_stores(lambda client: None)
        if not found:
            raise NoStoreError((self._options.mesh_address.name,), 0)
        with ExitStack() as lent:
            lend, keys = connections.lend_client, self._options.keys
            clients = [lent.enter_context(lend(each, keys)) for each, _ in found]
            publish(clients, self._options.progress_topic, report, timeout_s=timing.ANSWER_S)
        return size

    def _say(self, error: Exception) -> None:
        """Says once why nobody hears how far the query is, until it works again."""
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        text = "how far query '%s' is cannot be reported, it goes on all the same: %s"
        why = str(error) if isinstance(error, DafkaError) else f"{type(error).__name__}: {error}"
        _log.log(level, text, self._report.query, why)


# What a query's progress report says of its source: what it is, and how far behind.
#
# Spark 4.3 gives a Python source no place of its own in the report: ``sources[].metrics`` stays
# empty and ``sources[].description`` is a class and a hash. What it says of the latest offset is
# there.


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
