"""The lag of a query, in Spark and outside."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_core.testing import wait_until
from dafka_spark import LagListener
from tests.spark.topics import batch, produce, run, stream


def test_a_query_reports_its_lag_to_spark_a_listener_and_the_mesh(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    produce(cluster, topic, range(10))
    listener = LagListener()
    spark.streams.addListener(listener)
    try:
        with caplog.at_level(logging.INFO, "dafka_spark.lag"):
            name = f"of {topic}"
            frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4, queryName=name)
            query = run(frame, tmp_path, lambda rows: rows)
            wait_until(lambda: caplog.text.count(f"query {query.id}, dafka: {topic}") >= 3)
    finally:
        spark.streams.removeListener(listener)
    reports = [
        json.loads(source.latestOffset)
        for progress in query.recentProgress
        for source in progress.sources
        if progress.numInputRows
    ]
    assert [each["lag"]["maxOffsetsBehindLatest"] for each in reports] == [6, 2, 0]
    assert {each["source"] for each in reports} == {f"dafka: {topic} at {cluster.tower}"}
    assert reports[0]["lag"]["estimatedTotalBytesBehindLatest"] > 0
    (last,) = listener.lags[str(query.id)]
    assert last["avgOffsetsBehindLatest"] == 0
    (row,) = batch(spark, cluster, metadata="queries").where(f"query = '{name}'").collect()
    assert (row["records_behind"], row["state"]) == (0, "finished")  # Spark has ended its process
