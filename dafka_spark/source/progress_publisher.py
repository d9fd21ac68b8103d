"""Progress reports of a streaming query: to a topic of the mesh, and to Spark."""

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
"""The least interval between two reports."""

IDLE_S: Final = 60.0
"""The largest interval between two reports: they show that the query runs."""

BYTES_PER_S: Final = 1_000
"""Rate of reports, which stores keep: those of very many partitions come less often."""

SIZES_S: Final = 10.0
"""Age at which the mean size of records is asked for again; not at each trigger."""

SHOWN_TOPICS: Final = 5
"""Topics named in a description."""

News = tuple[Mapping[str, Any], bool]
"""An offset, and whether the query ends there."""

_log = logging.getLogger("dafka_spark")


class ProgressPublisher:
    """Publishes a query's positions from a thread of its own; nothing for a query without a name.

    The query never fails because of it, and waits for the report of its end only: Spark ends the
    process then.  The thread starts with the first positions, and ends with ``close``.
    """

    def __init__(self, options: SourceOptions, connect: Connect) -> None:
        self._options = options
        self._connect = connect
        selection = options.selection
        topics = tuple(sorted(selection.topics))
        self._has_pattern = bool(selection.pattern)
        self._report = QueryProgress(options.query_name, uuid.uuid4().hex.upper(), IDLE_S, topics)
        self._newest: News = {}, False
        self._tried: News = self._newest
        self._has_failed = False
        self._changed = threading.Condition()
        self._is_started = False
        self._is_closed = False

    def moved(self, offset: Mapping[str, Any], *, is_last: bool = False) -> None:
        """Note that the query has read everything before an offset.

        With ``is_last`` the query ends by itself at this offset.  That is reported at once, and
        this waits for up to ``REQUEST_TIMEOUT_S`` until a store has the report.
        """
        news: News = offset, is_last
        if not self._report.query or self._newest in (news, (offset, True)):
            return
        with self._changed:
            self._newest = news
            self._changed.notify_all()
            if not self._is_started and not self._is_closed:
                self._is_started = True
                threading.Thread(target=self._run, name="dafka-progress", daemon=True).start()
            if is_last:
                self._changed.wait_for(lambda: self._tried == news, timing.REQUEST_TIMEOUT_S)

    def close(self) -> None:
        """End the reports."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        every_s = EVERY_S
        while True:
            began = time.monotonic()
            with self._changed:
                newest = self._newest
            try:
                every_s = max(EVERY_S, self._publish(*newest) / BYTES_PER_S)
                self._has_failed = False
            except Exception as error:  # noqa: BLE001 -- the query continues after any error
                self._log_once(error)
            with self._changed:
                self._tried = newest
                self._changed.notify_all()
            if self._is_over(newest, began + every_s, began + max(IDLE_S, every_s)):
                return

    def _is_over(self, tried: News, least: float, most: float) -> bool:
        """Wait until ``least``, then for news until ``most``; return whether it was closed.

        The report of the query's end does not wait.
        """

        def is_new() -> bool:
            return self._is_closed or self._newest != tried

        def is_urgent() -> bool:
            return is_new() and (self._is_closed or self._newest[1])

        with self._changed:
            self._changed.wait_for(is_urgent, max(0.0, least - time.monotonic()))
            self._changed.wait_for(is_new, max(0.0, most - time.monotonic()))
            return self._is_closed

    def _publish(self, offset: Mapping[str, Any], is_last: bool) -> int:
        positions = SourceOffset.parse(offset).positions
        report = replace(self._report.at(positions), finished=is_last)
        if self._has_pattern:  # so that readers of reports need not match patterns of strangers
            report = replace(report, topics=tuple(sorted({tp.topic for tp in positions})))
        size = len(report.packed())
        if size > IDLE_S * BYTES_PER_S:
            report = replace(report, every_s=size / BYTES_PER_S)
        found = OffsetReader(self._options, self._connect).query_stores(lambda client: None)
        if not found:
            raise NoStoreError((self._options.mesh_address.name,), 0)
        with ExitStack() as lent:
            borrow, keys = connections.borrow_client, self._options.keys
            clients = [lent.enter_context(borrow(each, keys)) for each, _ in found]
            publish(
                clients, self._options.progress_topic, report, timeout_s=timing.REQUEST_TIMEOUT_S
            )
        return size

    def _log_once(self, error: Exception) -> None:
        """Log why a report failed; as a warning only after a success."""
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        text = "the progress of query '%s' cannot be reported; the query continues: %s"
        why = str(error) if isinstance(error, DafkaError) else f"{type(error).__name__}: {error}"
        _log.log(level, text, self._report.query, why)


def described(options: SourceOptions) -> str:
    """Describe for people what a source reads, and from where.

    Spark 4.3 offers a Python source no other place for it than the latest offset of its report.
    """
    selection = options.selection
    names = sorted(selection.topics or {tp.topic for tp in selection.partitions})
    shown = ", ".join(map(escape, names[:SHOWN_TOPICS])) or f"pattern {selection.pattern}"
    more = f" and {len(names) - SHOWN_TOPICS} more" if len(names) > SHOWN_TOPICS else ""
    return f"dafka: {shown}{more} at {options.mesh_address.name}"


class ReportedLag:
    """A query's lag behind the latest offsets, with the metric names of Spark's Kafka source."""

    def __init__(self) -> None:
        self._mean_bytes: float | None = None
        self._asked_at = -math.inf

    def of(self, waiting: Waiting, sizes: Callable[[Waiting], Sizes]) -> dict[str, Any]:
        """Return the metrics for the number of unread records of each partition.

        ``sizes`` asks the stores for the sizes of records.
        """
        counts = waiting.values()
        total = sum(counts)
        if total and time.monotonic() >= self._asked_at + SIZES_S:
            self._asked_at = time.monotonic()
            unread = {tp: count for tp, count in waiting.items() if count}
            self._mean_bytes = _mean_bytes(unread, sizes(unread))
        size = 0 if not total else self._mean_bytes and int(total * self._mean_bytes)
        return {
            "minOffsetsBehindLatest": min(counts, default=0),
            "maxOffsetsBehindLatest": max(counts, default=0),
            "avgOffsetsBehindLatest": total / len(counts) if counts else 0.0,
            "estimatedTotalBytesBehindLatest": size,
        }


def _mean_bytes(waiting: Waiting, sizes: Sizes) -> float | None:
    known = {tp: each for tp, each in sizes.items() if each}
    count = sum(waiting[tp] for tp in known)
    if not count:
        return None
    return sum(waiting[tp] * sum(each) / len(each) for tp, each in known.items()) / count
