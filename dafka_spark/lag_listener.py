"""A listener of Spark that collects the lag of streaming queries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

MAX_QUERIES: Final = 1_000
"""Queries kept, ended ones included; the oldest are dropped."""

_log = logging.getLogger("dafka_spark.lag")


class LagListener(StreamingQueryListener):
    """Logs and keeps the lag of the Dafka sources of each query.

    ``spark.streams.addListener(LagListener())``: Spark calls it in this process, from a thread of
    its own.

    Attributes:
        lags: by query id, the last report of each Dafka source of the query: ``query`` (the name,
            or the id), ``source``, and Kafka's ``minOffsetsBehindLatest``,
            ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest`` (in records, over partitions)
            and ``estimatedTotalBytesBehindLatest`` (None if unknown).
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
        found = [_lag(name, source.latestOffset) for source in progress.sources]
        lags = [each for each in found if each is not None]
        if not lags:
            return
        self.lags.pop(query, None)  # the newest is the last one
        self.lags[query] = lags
        while len(self.lags) > MAX_QUERIES:
            del self.lags[next(iter(self.lags))]
        for each in lags:
            _log.info(
                "query %s, %s: %s to %s records behind in each partition, %.1f on average",
                name,
                each["source"],
                each["minOffsetsBehindLatest"],
                each["maxOffsetsBehindLatest"],
                each["avgOffsetsBehindLatest"],
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
