"""A listener's lags, from the reports of Spark's queries."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_spark import lag_listener
from dafka_spark.lag_listener import LagListener

LAG = {"minOffsetsBehindLatest": 1, "maxOffsetsBehindLatest": 3, "avgOffsetsBehindLatest": 2.0}
OFFSET = json.dumps({"topics": {"t": {"A": 1}}, "lag": LAG, "source": "dafka: t at h:1:2"})


def event(*latest: object, query: str = "q1", name: str | None = "q") -> Any:
    """Return a progress report of a query with these sources."""
    sources = [SimpleNamespace(latestOffset=each) for each in latest]
    return SimpleNamespace(progress=SimpleNamespace(id=query, name=name, sources=sources))


def test_only_dafka_sources_count(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener()
    kafka = json.dumps({"topic": {"0": 5}})
    for none in event(kafka), event():
        listener.onQueryProgress(none)
    assert listener.lags == {}
    with caplog.at_level(logging.INFO, "dafka_spark.lag"):
        listener.onQueryProgress(event(kafka, OFFSET, None, "no JSON", json.dumps([1])))
    assert listener.lags == {"q1": [{"query": "q", "source": "dafka: t at h:1:2", **LAG}]}
    assert caplog.messages == [
        "query q, dafka: t at h:1:2: 1 to 3 records behind in each partition, 2.0 on average"
    ]


def test_the_newest_queries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_listener, "MAX_QUERIES", 3)
    listener = LagListener()
    for query in "abcdec":
        listener.onQueryProgress(event(OFFSET, query=query, name=None))
    assert [*listener.lags] == ["d", "e", "c"]
    assert listener.lags["c"][0]["query"] == "c"
