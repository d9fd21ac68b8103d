"""The lag of a query, in Spark and outside."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dafka_core.testing import wait_until
from dafka_spark import LagListener
from tests.spark.topics import Topics, run


def test_a_query_reports_its_lag_to_spark_a_listener_and_the_mesh(
    topics: Topics, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.produce(topic, range(10))
    listener = LagListener()
    topics.spark.streams.addListener(listener)
    name = f"of {topic}"
    try:
        with caplog.at_level(logging.INFO, "dafka_spark.lag"):
            frame = topics.stream(topic, maxOffsetsPerTrigger=4, queryName=name)
            query = run(frame, tmp_path, len)
            wait_until(lambda: caplog.text.count(f"query {query.id}, dafka: {topic}") >= 3)
    finally:
        topics.spark.streams.removeListener(listener)
    reports = [
        json.loads(source.latestOffset)
        for progress in query.recentProgress
        for source in progress.sources
        if progress.numInputRows
    ]
    assert [each["lag"]["maxOffsetsBehindLatest"] for each in reports] == [6, 2, 0]
    assert {each["source"] for each in reports} == {f"dafka: {topic} at {topics.cluster.tower}"}
    assert reports[0]["lag"]["estimatedTotalBytesBehindLatest"] > 0
    (last,) = listener.lags[str(query.id)]
    assert last["avgOffsetsBehindLatest"] == 0
    (row,) = topics.batch(metadata="queries").where(f"query = '{name}'").collect()
    assert (row["records_behind"], row["state"]) == (0, "finished")  # Spark has ended its process
