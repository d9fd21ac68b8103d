"""One ``load()`` and several queries: Spark executes one plan, and a warning is logged once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.topics import Topics


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
