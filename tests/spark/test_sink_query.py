"""Writes by a real Spark to a real cluster, and their visibility."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window

from tests.spark.faults import Gate, changed
from tests.spark.topics import Topics, finish


def text_rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id AS string) AS value").repartition(3)


def test_rows_of_a_batch_are_written_to_their_topics(topics: Topics, topic: str) -> None:
    topics.save(text_rows(topics.spark, 0), topic=topic)
    assert topics.numbers(topic) == []
    rows = text_rows(topics.spark, 1000)
    topics.save(rows, topic=topic)
    assert topics.numbers(topic) == [*range(1000)]
    assert topics.batch(topic).select("partition").distinct().count() == 3
    topics.save(rows.selectExpr("value", f"concat('{topic}-', int(value) % 2) AS topic"))
    for rest in (0, 1):
        assert topics.numbers(f"{topic}-{rest}") == [*range(rest, 1000, 2)]


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


def test_columns_are_checked_before_any_row_is_written(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.produce(topic, range(3))
    sink = f"{topic}-out"
    with pytest.raises(PySparkException, match=r"column 'partition': cannot be chosen"):
        topics.send(topics.stream(topic), tmp_path, topic=sink)
    with pytest.raises(PySparkException, match=r"column 'value': is bigint"):
        topics.save(topics.spark.range(10).selectExpr("id AS value"), topic=sink)
    assert topics.numbers(sink) == []


def test_output_modes_complete_and_append(topics: Topics, topic: str, tmp_path: Path) -> None:
    """The first appends each result to the topic, the second what the watermark has passed."""
    topics.produce(topic, (0, 5, 10, 40))
    rows = topics.stream(topic, maxOffsetsPerTrigger=2)
    counts = rows.groupBy().count().selectExpr("string(count) AS value")
    finish(
        topics.writer(counts, topic=f"{topic}-complete").outputMode("complete"),
        tmp_path / "complete",
    )
    assert topics.numbers(f"{topic}-complete") == [2, 4]
    times = rows.selectExpr("timestamp_seconds(int(string(value))) AS time")
    counts = times.withWatermark("time", "1 second").groupBy(window("time", "10 seconds")).count()
    values = counts.selectExpr("string(count) AS value")
    topics.send(values, tmp_path / "append", topic=f"{topic}-append")
    assert topics.numbers(f"{topic}-append") == [1, 2]


def test_output_mode_update_is_refused_by_spark_and_open_to_foreach_batch(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Spark 4.3 has no such sink in Python, whether the query aggregates or not."""
    topics.produce(topic, range(6))
    sink = f"{topic}-out"
    frame = topics.stream(topic, maxOffsetsPerTrigger=2)
    counts = frame.groupBy().count().selectExpr("string(count) AS value")
    for number, rows in enumerate([frame.select("value"), counts]):
        with pytest.raises(PySparkException, match="dafka does not support Update mode"):
            finish(topics.writer(rows, topic=sink).outputMode("update"), tmp_path / str(number))
    assert topics.numbers(sink) == []
    updates = counts.writeStream.outputMode("update")
    finish(updates.foreachBatch(lambda rows, _: topics.save(rows, topic=sink)), tmp_path / "each")
    assert topics.numbers(sink) == [2, 4, 6]
    assert topics.batch(sink).select("partition").distinct().count() == 1


def test_rows_of_a_batch_appear_at_once(topics: Topics, topic: str, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    visible: list[int] = []

    def count_and_open() -> None:
        gate.wait_reached()
        visible.extend(topics.visible(topic))
        gate.open()

    thread = threading.Thread(target=count_and_open)
    thread.start()
    topics.save(changed(text_rows(topics.spark, 20_000), gate), topic=topic)
    thread.join()
    assert visible == [0]
    assert topics.visible(topic) == [20_000]


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
    topics.save(text_rows(topics.spark, 100), topic=topic, txnAppId="nightly", txnVersion=1)
    for tasks in (1, 5):
        rows = text_rows(topics.spark, 100).repartition(tasks)
        topics.save(rows, topic=topic, txnAppId="nightly", txnVersion=1)
    assert topics.numbers(topic) == [*range(100)]

    def write(rows: DataFrame, batch_id: int) -> None:
        once = {"topic": f"{topic}-out", "txnAppId": "split", "txnVersion": batch_id}
        for condition in ("int(value) < 4", "int(value) >= 4"):
            topics.save(rows.selectExpr("string(value) AS value").where(condition), **once)

    with pytest.raises(StreamingQueryException, match="4 rows of it are committed"):
        finish(topics.stream(topic).writeStream.foreachBatch(write), tmp_path)
    other = topics.batch(topic).where("int(string(value)) >= 96").select("value")
    with pytest.raises(PySparkException, match="it has 4 others now"):
        topics.save(other, topic=f"{topic}-out", txnAppId="split", txnVersion=0)
    assert topics.numbers(f"{topic}-out") == [0, 1, 2, 3]
