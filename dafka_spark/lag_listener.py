"""How far behind queries are, for a program that runs them: a listener of Spark's."""

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

MOST_QUERIES: Final = 1_000
"""Of which the lag is kept, also when they have ended."""

_log = logging.getLogger("dafka_spark.lag")


class LagListener(StreamingQueryListener):
    """Logs, and keeps, how far behind the Dafka sources of each query are.

    ``spark.streams.addListener(LagListener())``: Spark calls it in this process, in a thread of its
    own.

    Attributes:
        lags: for each query, by its id as text, and each of its Dafka sources what it has said of
            itself last: ``query`` (the name, or the id), ``source``, and Kafka's
            ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest``, ``avgOffsetsBehindLatest`` (in
            records, over partitions) and ``estimatedTotalBytesBehindLatest`` (None: not known).
    """

    def __init__(self) -> None:
        self.lags: dict[str, list[Mapping[str, Any]]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 -- Spark's names
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Takes what the sources of a batch have said."""
        progress = event.progress
        query = str(progress.id)
        name = progress.name or query
        found = [_lag(name, source.latestOffset) for source in progress.sources]
        told = [each for each in found if each is not None]
        if not told:
            return
        self.lags.pop(query, None)
        self.lags[query] = told
        while len(self.lags) > MOST_QUERIES:
            del self.lags[next(iter(self.lags))]
        for each in told:
            _log.info(
                "query %s, %s: %s to %s records behind in each partition, %.1f on average",
                name,
                each["source"],
                each["minOffsetsBehindLatest"],
                each["maxOffsetsBehindLatest"],
                each["avgOffsetsBehindLatest"],
            )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """What was known last is kept."""


def _lag(query: str, latest_offset: str | None) -> Mapping[str, Any] | None:
    """What a Dafka source has said with its latest offset; None of any other source."""
    try:
        told = json.loads(latest_offset or "")
        return {"query": query, "source": told["source"], **told["lag"]}
    except (ValueError, TypeError, KeyError):
        return None
