"""Batch reads by a real Spark from a real cluster."""

from __future__ import annotations

import datetime as dt

from chispa import assert_df_equality

from tests.spark.topics import Topics


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
