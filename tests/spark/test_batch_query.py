"""Batch reads by a real Spark from a real cluster."""

from __future__ import annotations

import datetime as dt

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from dafka_spark.source.batch_reader import SHARES_PLANS
from tests.spark.topics import Topics

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_every_column(topics: Topics, topic: str) -> None:
    before = dt.datetime.now()  # noqa: DTZ005 -- Spark returns local times, too
    address = topics.produce(topic, range(3))
    frame = topics.batch(topic)
    expected = topics.spark.createDataFrame(
        [(None, str(n).encode(), topic, address, n) for n in range(3)],
        "key binary, value binary, topic string, partition string, offset bigint",
    )
    assert_df_equality(frame.drop("timestamp", "timestampType"), expected)
    for row in frame.select("timestampType", "timestamp").collect():
        assert row["timestampType"] is None
        assert before <= row["timestamp"] <= dt.datetime.now()  # noqa: DTZ005
    chosen = frame.select("timestamp", "partition")
    reader = topics.spark.read.format("dafka").options(**topics.options, subscribe=topic)
    assert_df_equality(reader.schema(chosen.schema).load(), chosen)
    # Trap: Spark makes ``InputPartition(None)`` of a batch without partitions.
    assert topics.batch(f"{topic}-missing", failOnMissingTopic=False).count() == 0


def test_pushed_filters_narrow_the_ranges(topics: Topics, topic: str) -> None:
    """There is a task for each record, so that the number of tasks counts the records read."""
    topics.produce(topic, range(10))
    filters = {
        "offset >= 8": (2, 2),
        "offset in (1, 2) and value <> '1'": (1, 2),
        "timestamp < '2026-01-01T00:00:00Z'": (0, 1),  # Spark reads nothing with one task
        "timestamp > now() - INTERVAL 10 MINUTES and offset % 2 = 0": (5, 10),
        f"topic <> '{topic}' or offset = 3": (1, 10),
    }
    # Trap: planning fails for a reader that defines ``pushFilters`` while pushdown is off.
    assert topics.spark.conf.get(PUSHDOWN) == "false"
    assert topics.batch(topic).where("offset >= 8 and topic is not null").count() == 2
    with pytest.raises(PySparkException, match=PUSHDOWN):
        topics.batch(topic, pushFilters=True).where("offset >= 8").count()
    topics.spark.conf.set(PUSHDOWN, "true")
    try:
        for text, counts in filters.items():
            frame = topics.batch(topic, pushFilters=True, maxRecordsPerPartition=1).where(text)
            assert (frame.count(), frame.rdd.getNumPartitions()) == counts
        frame = topics.batch(topic, pushFilters=True)
        assert frame.where("offset >= 8").count() == 2
        # Trap: other queries of the DataFrame share this plan; the connector can only warn.
        assert (frame.count() != 10) == SHARES_PLANS
    finally:
        topics.spark.conf.unset(PUSHDOWN)


def test_where_selects_the_same_rows_as_spark(topics: Topics, topic: str) -> None:
    rows = [(None, b"plain"), ("a", b"one"), ("b", b"two\nlines"), ("b", None)]
    rows += [("é", "naïve, 100%".encode()), ("", b"\xff")]
    frame = topics.spark.createDataFrame(rows, "key string, value binary")
    topics.save(frame.coalesce(1), topic=topic)
    every = topics.batch(topic)
    for text in (
        "key = 'a' OR value = 'plain'",
        "NOT key = 'a'",
        "key <> 'b' AND offset >= 1",
        "key IN ('a', 'é')",
        "key NOT IN ('a', '')",
        "NOT (key IN ('a') OR value IS NULL)",
        "key IS NULL AND value IS NOT NULL",
        "key BETWEEN 'a' AND 'b'",
        "value LIKE '%ne%'",
        "value LIKE 'two%lines' OR value LIKE '%100%'",
        "value NOT LIKE '%n%'",
        "value LIKE 'na_ve%'",
        "value = X'ff'",
        "value > 'o'",
        "offset NOT BETWEEN 1 AND 3 OR offset = 2",
        "timestamp >= '2026-01-01T00:00:00Z' AND offset IN (0, 5)",
        "timestamp < TIMESTAMP '2026-01-01T00:00:00Z'",
        f"topic = '{topic}' AND partition LIKE '%'",
    ):
        wanted, found = (
            sorted(row["offset"] for row in frame.select("offset").collect())
            for frame in (every.where(text), topics.batch(topic, where=text))
        )
        assert found == wanted, text
