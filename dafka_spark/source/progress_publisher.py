"""Progress reports of a streaming query: to a topic of the mesh, and to Spark."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from msgspec.structs import replace

from dafka_core.errors import DafkaError
from dafka_core.model.names import escape
from dafka_core.queries.query_progress import QueryProgress, publish
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.security.permissions import Permissions
from dafka_spark.cluster import timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.options import SourceOptions
from dafka_spark.source.offset_ranges import Sizes, Waiting
from dafka_spark.source.offset_reader import OffsetReader

EVERY_S: Final = 10.0  # the least interval between two reports
IDLE_S: Final = 60.0  # the largest interval between two reports: they show that the query runs

BYTES_PER_S: Final = 1_000
"""Rate of reports, which stores keep: those of very many partitions come less often."""

SIZES_S: Final = 10.0
"""Age at which the mean size of records is asked for again; not at each trigger."""

SHOWN_TOPICS: Final = 5  # topics named in a description

_log = logging.getLogger("dafka_spark")


class ProgressPublisher:
    """Publishes a query's positions from a thread of its own; nothing for a query without a name.

    The query never fails because of it, and waits for the report of its end only: Spark ends the
    process then.
    """

    def __init__(self, options: SourceOptions, connect: Connect) -> None:
        self._options = options
        self._offsets = OffsetReader(options, connect)
        topics = tuple(sorted(options.selection.topics))
        self._report = QueryProgress(options.query_name, uuid.uuid4().hex.upper(), IDLE_S, topics)
        self._newest: tuple[Mapping[str, Any], bool] = {}, False
        """The offset, and whether the query ends there."""
        self._publishing = threading.Lock()
        self._has_failed = False
        self._is_new = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dafka-progress", daemon=True)

    def moved(self, offset: Mapping[str, Any], *, is_last: bool = False) -> None:
        """Note that the query has read everything before an offset.

        With ``is_last`` the query ends by itself at this offset, which is reported at once.
        """
        news = offset, is_last
        if not self._report.query or self._newest in (news, (offset, True)):
            return
        self._newest = news
        self._is_new.set()
        if is_last:
            self._publish()
        if self._thread.ident is None and not self._is_closed.is_set():
            self._thread.start()

    def close(self) -> None:
        """End the reports."""
        self._is_closed.set()
        self._is_new.set()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self._is_new.clear()
            every_s = self._publish()
            self._is_closed.wait(every_s)
            self._is_new.wait(max(0.0, IDLE_S - every_s))

    @cached_property
    def _owner(self) -> Permissions:
        return self._options.mesh_address.owner

    def _publish(self) -> float:
        """Publish a report; return the least interval to the next one."""
        with self._publishing:  # the last report must be the newest
            offset, is_last = self._newest
            positions = SourceOffset.parse(offset).positions
            report = replace(self._report.at(positions), finished=is_last)
            if self._options.selection.pattern:  # readers of reports need not match patterns
                report = replace(report, topics=tuple(sorted({tp.topic for tp in positions})))
            every_s = max(EVERY_S, len(report.packed()) / BYTES_PER_S)
            report = replace(report, every_s=max(IDLE_S, every_s))
            topic, timeout_s = self._options.progress_topic, timing.REQUEST_TIMEOUT_S
            try:
                with self._offsets.clients() as clients:
                    publish(clients, topic, report, owner=self._owner, timeout_s=timeout_s)
                self._has_failed = False
            except Exception as error:  # noqa: BLE001 -- the query continues after any error
                level = logging.DEBUG if self._has_failed else logging.WARNING
                self._has_failed = True
                why = str(error) if isinstance(error, DafkaError) else repr(error)
                text = "the progress of query '%s' cannot be reported; the query continues: %s"
                _log.log(level, text, report.query, why)
            return every_s


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
        self._measured_at = -math.inf

    def of(self, waiting: Waiting, sizes: Callable[[Waiting], Sizes]) -> dict[str, Any]:
        """Return the metrics for the number of unread records of each partition.

        ``sizes`` asks the stores for the sizes of records.
        """
        counts = waiting.values()
        total = sum(counts)
        if total and time.monotonic() >= self._measured_at + SIZES_S:
            self._measured_at = time.monotonic()
            unread = {tp: count for tp, count in waiting.items() if count}
            known = {tp: each for tp, each in sizes(unread).items() if each}
            total_bytes = sum(unread[tp] * sum(each) / len(each) for tp, each in known.items())
            records = sum(unread[tp] for tp in known)
            self._mean_bytes = total_bytes / records if records else None
        size = 0 if not total else self._mean_bytes and int(total * self._mean_bytes)
        return {
            "minOffsetsBehindLatest": min(counts, default=0),
            "maxOffsetsBehindLatest": max(counts, default=0),
            "avgOffsetsBehindLatest": total / len(counts) if counts else 0.0,
            "estimatedTotalBytesBehindLatest": size,
        }
