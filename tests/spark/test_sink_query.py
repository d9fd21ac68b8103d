"""Writes by a real Spark to a real cluster, and their visibility."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.testing import PATIENCE_S, wait_until
from tests.spark.topics import Topics, finish


def text_rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id AS string) AS value").repartition(3)


def test_keys_headers_and_null_values_survive(topics: Topics, topic: str, tmp_path: Path) -> None:
    rows = [
        (b"k", b"v", [("trace", b"1"), ("trace", None)]),
        (None, b"bare", None),
        (b"gone", None, None),
        (b"", b"\xc1DFK", [("", b"")]),
    ]
    schema = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    expected = topics.spark.createDataFrame(rows, schema)
    topics.save(expected, topic=topic)
    copied = topics.stream(topic, includeHeaders=True).select("headers", "VALUE", "key")
    topics.send(copied, tmp_path, topic=f"{topic}-out")
    for each in (topic, f"{topic}-out"):
        written = topics.batch(each, includeHeaders=True)
        chosen = written.select("key", "value", "headers")
        assert sorted(map(repr, chosen.collect())) == sorted(map(repr, expected.collect()))
        assert chosen.schema.simpleString() == expected.schema.simpleString()
        assert written.where("key = X'676f6e65'").count() == 1


def test_partitions_have_the_names_of_application_query_and_task(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    copies = f"{topic}-out"
    topics.save(text_rows(topics.spark, 9), topic=topic)
    writer = topics.writer(topics.stream(topic).select("value"), topic=copies)
    finish(writer.queryName("copy"), tmp_path)
    cluster, name = topics.cluster, topics.spark.sparkContext.appName

    def clients(wanted: str) -> set[str]:
        found = set()
        for index, store in enumerate(cluster.stores):
            with StoreClient(StoreLocation(store, cluster.locations(index))) as client:
                found |= {each.client for each in client.facts(wanted, timeout_s=PATIENCE_S)}
        return found - {""}

    wait_until(lambda: clients(topic) == {f"{name}, task {n}" for n in range(3)})
    wait_until(lambda: clients(copies) == {f"{name}, copy, task {n}" for n in range(3)})


def test_output_mode_update_is_refused_by_spark(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Spark 4.3 has no such sink in Python; docs/spark.md has an example with ``foreachBatch``."""
    updates = topics.stream(subscribePattern=topic).groupBy().count().selectExpr("'' AS value")
    with pytest.raises(PySparkException, match="dafka does not support Update mode"):
        finish(topics.writer(updates, topic=topic).outputMode("update"), tmp_path)
    assert topics.numbers(topic) == []


def test_a_job_that_fails_leaves_no_rows(topics: Topics, topic: str) -> None:
    frame = topics.spark.range(0, 100, 1, 4).selectExpr(
        "cast(if(id = 99, assert_true(id <> 99, 'not this one'), id) AS string) AS value"
    )
    with pytest.raises(PySparkException, match="not this one"):
        topics.save(frame, topic=topic)
    assert topics.numbers(topic) == []
    topics.save(text_rows(topics.spark, 10), topic=topic)
    assert topics.numbers(topic) == [*range(10)]


def test_a_version_of_an_application_is_written_once(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """The two writes of the query have other rows, below and above a limit, and one version."""
    for tasks in (3, 1, 5):
        rows = text_rows(topics.spark, 100).repartition(tasks)
        topics.save(rows, topic=topic, txnAppId="nightly", txnVersion=1)
    assert topics.numbers(topic) == [*range(100)]

    def write(rows: DataFrame, batch_id: int) -> None:
        once = {"topic": f"{topic}-out", "txnAppId": "split", "txnVersion": batch_id}
        for condition in ("int(value) < 4", "int(value) >= 4"):
            topics.save(rows.selectExpr("string(value) AS value").where(condition), **once)

    with pytest.raises(StreamingQueryException, match="4 rows of it are committed"):
        finish(topics.stream(topic).writeStream.foreachBatch(write), tmp_path)
    assert topics.numbers(f"{topic}-out") == [0, 1, 2, 3]
