"""Batch reads by a real Spark from a real cluster; one ``load()`` and several queries."""

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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


def actions(topics: Topics, topic: str) -> Iterator[int]:
    """Several actions on one frame, of several tasks, and through a view."""
    frame = topics.batch(topic, minPartitions=4)
    yield frame.count()
    yield len(frame.collect())
    frame.createOrReplaceTempView(topic.replace("-", "_"))
    yield topics.spark.table(topic.replace("-", "_")).count()


def load_in_each_query(topics: Topics, topic: str) -> Iterator[int]:
    """A frame is read twice and in stages; a table loads its topic in each query."""
    frame = topics.batch(topic, minPartitions=4)
    yield frame.repartition(3).join(frame, ["partition", "offset"]).count()
    name = f"table_{topic.replace('-', '_')}"
    options = f"tower '{topics.options['tower']}', subscribe '{topic}'"
    topics.spark.sql(f"CREATE TABLE {name} USING dafka OPTIONS ({options})")
    for _ in range(2):
        yield topics.spark.table(name).count()
    topics.spark.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize(
    ("queries", "counts", "warnings"),
    [(actions, [8, 8, 8], 1), (load_in_each_query, [8, 9, 10], 0)],
)
def test_a_plan_that_later_queries_execute_is_reported_once(
    topics: Topics, worker_log: Path, topic: str, queries: Any, counts: list[int], warnings: int
) -> None:
    """The workers of these tests treat each reused plan as an old one."""
    topics.produce(topic, range(8))
    found = []
    for count in queries(topics, topic):
        found.append(count)
        topics.produce(topic, ["more"])
    assert found == counts
    logged = worker_log.read_text() if worker_log.exists() else ""
    warned = rf"dafka: {topic} at \S+: this query reads .*call load\(\) again"
    assert len(re.findall(warned, logged)) == warnings
