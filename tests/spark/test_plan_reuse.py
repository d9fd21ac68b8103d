"""One ``load()`` and several queries: Spark executes one plan, and a warning is logged once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from threading import Semaphore
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.spark.topics import TIMEOUT_S, Topics


def actions(topics: Topics, topic: str) -> Iterator[int]:
    """Several actions on one frame, of several tasks, and one action twice."""
    frame = topics.batch(topic, minPartitions=4)
    yield frame.count()
    yield frame.count()
    yield len(frame.collect())
    yield len(frame.collect())
    yield frame.where("offset >= 0").count()


def view(topics: Topics, topic: str) -> Iterator[int]:
    """A temporary view and its replacement."""
    name = topic.replace("-", "_")
    topics.batch(topic).createOrReplaceTempView(name)
    yield topics.spark.sql(f"SELECT * FROM {name}").count()
    yield topics.spark.table(name).count()
    topics.batch(topic).createOrReplaceTempView(name)
    yield topics.spark.sql(f"SELECT * FROM {name}").count()


def metadata(topics: Topics, topic: str) -> Iterator[int]:
    frame = topics.batch(topic, metadata="topics")
    yield frame.collect()[0]["records"]
    yield frame.collect()[0]["records"]


def static_side_of_a_join(topics: Topics, topic: str) -> Iterator[int]:
    static = topics.batch(topic).groupBy().count()
    yield from in_batches(
        topics, lambda rows: rows.crossJoin(static), lambda rows: rows.collect()[0]["count"]
    )


def table(topics: Topics, topic: str) -> Iterator[int]:
    """A table is loaded in each query."""
    name = f"table_{topic.replace('-', '_')}"
    options = f"tower '{topics.options['tower']}', subscribe '{topic}'"
    topics.spark.sql(f"CREATE TABLE {name} USING dafka OPTIONS ({options})")
    yield topics.spark.table(name).count()
    yield topics.spark.table(name).count()
    yield topics.spark.sql(f"SELECT * FROM {name}").count()
    topics.spark.sql(f"DROP TABLE {name}")


def load_in_each_query(topics: Topics, topic: str) -> Iterator[int]:
    """Each frame is read twice and in stages, and in ``foreachBatch``."""
    for _ in range(2):
        frame = topics.batch(topic, minPartitions=4)
        yield frame.repartition(3).join(frame, ["partition", "offset"]).count()
    yield from in_batches(
        topics,
        lambda rows: rows,
        lambda rows: rows.limit(1).crossJoin(topics.batch(topic)).count(),
    )


def in_batches(
    topics: Topics,
    transform: Callable[[DataFrame], DataFrame],
    count: Callable[[DataFrame], int],
) -> Iterator[int]:
    """Yield the counts in two micro-batches; the second waits until the caller requests it."""
    rows = topics.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    requests = Semaphore(0)
    found: Queue[int] = Queue()

    def take(batch: DataFrame, _: int) -> None:
        requests.acquire()
        found.put(count(batch))

    query = transform(rows).writeStream.foreachBatch(take).start()
    try:
        for _ in range(2):
            requests.release()
            yield found.get(timeout=TIMEOUT_S)
    finally:
        requests.release(1_000)  # else a later batch waits while the query stops
        query.stop()


@pytest.mark.parametrize(
    ("queries", "counts", "warnings"),
    [
        (actions, [8, 8, 8, 8, 8], 1),
        (view, [8, 8, 10], 1),
        (metadata, [8, 8], 1),
        (static_side_of_a_join, [8, 8], 1),
        (table, [8, 9, 10], 0),
        (load_in_each_query, [8, 9, 10, 11], 0),
    ],
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
