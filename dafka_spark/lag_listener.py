"""A listener of Spark that collects the lag of streaming queries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

MAX_QUERIES: Final = 1_000  # queries kept, ended ones included; the oldest are dropped

_log = logging.getLogger("dafka_spark.lag")


class LagListener(StreamingQueryListener):
    """Logs and keeps the lag of the Dafka sources of each query.

    Add it by ``spark.streams.addListener(LagListener())``.  ``lags`` has, by query id, the last
    report of each Dafka source: ``query`` (the name, or the id), ``source``, and Kafka's metrics
    ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest`` (in records,
    over partitions) and ``estimatedTotalBytesBehindLatest`` (None if unknown).
    """

    def __init__(self) -> None:
        self.lags: dict[str, list[Mapping[str, Any]]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's names
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Keep and log the lag of a batch's sources."""
        progress = event.progress
        query = str(progress.id)
        name = progress.name or query
        lags = [lag for each in progress.sources if (lag := _lag(name, each.latestOffset))]
        if not lags:
            return
        self.lags.pop(query, None)  # the newest is the last one
        self.lags[query] = lags
        while len(self.lags) > MAX_QUERIES:
            del self.lags[next(iter(self.lags))]
        for lag in lags:
            _log.info(
                "query %(query)s, %(source)s: %(minOffsetsBehindLatest)s to "
                "%(maxOffsetsBehindLatest)s records behind in each partition, "
                "%(avgOffsetsBehindLatest).1f on average",
                lag,
            )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the last lag is kept."""


def _lag(query: str, latest_offset: str | None) -> Mapping[str, Any] | None:
    """Return the lag in the latest offset of a Dafka source; None for any other source."""
    try:
        report = json.loads(latest_offset or "")
        return {"query": query, "source": report["source"], **report["lag"]}
    except (ValueError, TypeError, KeyError):
        return None
