"""A listener's lags, from the progress events of Spark."""

from __future__ import annotations

import json
import logging
import uuid

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

from dafka_spark import lag_listener
from dafka_spark.lag_listener import LagListener

LAG = {
    "minOffsetsBehindLatest": 1,
    "maxOffsetsBehindLatest": 3,
    "avgOffsetsBehindLatest": 2.0,
    "estimatedTotalBytesBehindLatest": None,
}
OFFSET = json.dumps({"topics": {"t": {"A": 1}}, "lag": LAG, "source": "dafka: t at h:1:2"})


def event(*latest: object, query: str = "", name: str | None = "q") -> QueryProgressEvent:
    """Return a progress report of a query with these sources."""
    progress = {
        **{name: {} for name in ("durationMs", "eventTime", "observedMetrics")},
        **dict.fromkeys(("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond"), 1),
    }
    source = {**progress, "description": "a class@1f", "startOffset": None, "endOffset": None}
    progress |= {
        "id": query or str(uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "name": name,
        "timestamp": "2026-01-01T00:00:00.000Z",
        **dict.fromkeys(("batchId", "batchDuration"), 1),
        "stateOperators": [],
        "sources": [{**source, "latestOffset": each} for each in latest],
        "sink": {"description": "s", "numOutputRows": 1},
    }
    return QueryProgressEvent.fromJson({"progress": progress})


def test_only_dafka_sources_count(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener()
    kafka = json.dumps({"topic": {"0": 5}})
    listener.onQueryProgress(event(kafka))
    listener.onQueryProgress(event())
    assert listener.lags == {}
    with caplog.at_level(logging.INFO, "dafka_spark.lag"):
        found = event(kafka, OFFSET, None, "no JSON", json.dumps([1]))
        listener.onQueryProgress(found)
    lag = {"query": "q", "source": "dafka: t at h:1:2", **LAG}
    assert listener.lags == {str(found.progress.id): [lag]}
    assert caplog.messages == [
        "query q, dafka: t at h:1:2: 1 to 3 records behind in each partition, 2.0 on average"
    ]


def test_the_newest_queries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_listener, "MAX_QUERIES", 3)
    listener = LagListener()
    queries = [str(uuid.uuid4()) for _ in range(5)]
    for query in (*queries, queries[2]):
        listener.onQueryProgress(event(OFFSET, query=query, name=None))
    assert [*listener.lags] == [queries[3], queries[4], queries[2]]
    assert listener.lags[queries[2]][0]["query"] == queries[2]
