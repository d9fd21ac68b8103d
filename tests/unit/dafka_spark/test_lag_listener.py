"""A listener's lags, from the progress events of Spark."""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

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
OURS = {"topics": {"t": {"A": 1}}, "version": 1, "lag": LAG, "source": "dafka: t at h:1:2"}


def event(*latest: object, query: str | None = None, name: str | None = "q") -> QueryProgressEvent:
    """Return a progress report of a query with these sources."""
    source: dict[str, Any] = {
        "description": "a class@1f",
        "startOffset": None,
        "endOffset": None,
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }
    progress = {
        "id": query or str(uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "name": name,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 1,
        "batchDuration": 1,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [{**source, "latestOffset": each} for each in latest],
        "sink": {"description": "s", "numOutputRows": 1},
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return QueryProgressEvent.fromJson({"progress": progress})


def test_only_dafka_sources_count(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener()
    listener.onQueryProgress(event(json.dumps({"topic": {"0": 5}})))
    listener.onQueryProgress(event())
    assert listener.lags == {}
    kafka = {"topic": {"0": 5}}
    with caplog.at_level(logging.INFO, "dafka_spark.lag"):
        found = event(json.dumps(kafka), json.dumps(OURS), None, "no JSON", json.dumps([1]))
        listener.onQueryProgress(found)
    lag = {"query": "q", "source": "dafka: t at h:1:2", **LAG}
    assert listener.lags == {str(found.progress.id): [lag]}
    text = "query q, dafka: t at h:1:2: 1 to 3 records behind in each partition, 2.0 on average"
    assert text in caplog.text


def test_the_newest_queries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_listener, "MAX_QUERIES", 3)
    listener = LagListener()
    queries = [str(uuid.uuid4()) for _ in range(5)]
    for query in (*queries, queries[2]):
        listener.onQueryProgress(event(json.dumps(OURS), query=query, name=None))
    assert [*listener.lags] == [queries[3], queries[4], queries[2]]
    assert listener.lags[queries[2]][0]["query"] == queries[2]
