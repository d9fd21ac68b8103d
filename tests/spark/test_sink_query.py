"""Writing by a real Spark to a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window

from dafka_core import EmbeddedCluster
from tests.spark.topics import batch, finish, produce, send, stream, texts


def save(frame: DataFrame, cluster: EmbeddedCluster, mode: str = "append", **options: Any) -> None:
    frame.write.format("dafka").mode(mode).options(tower=cluster.tower, **options).save()


def test_a_frame_is_written_whole(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    frame = spark.range(1000).selectExpr("cast(id AS string) AS value").repartition(3)
    save(frame, cluster, topic=topic)
    written = batch(spark, cluster, subscribe=topic)
    assert texts(written.collect()) == sorted(map(str, range(1000)))
    assert written.select("partition").distinct().count() == 3


def test_rows_name_their_topics(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    frame = spark.range(10).selectExpr(
        "cast(cast(id AS string) AS binary) AS value", f"concat('{topic}-', id % 2) AS topic"
    )
    save(frame, cluster)
    assert texts(batch(spark, cluster, subscribe=topic + "-0").collect()) == list("02468")
    assert texts(batch(spark, cluster, subscribe=topic + "-1").collect()) == list("13579")


KEYED = "key binary, value binary, headers array<struct<key: string, value: binary>>"


def test_keys_headers_and_null_values_go_there_and_back(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    rows = [
        (b"k", b"v", [("trace", b"1"), ("trace", None)]),
        (None, b"bare", None),
        (b"gone", None, None),
        (b"", b"\xc1DFK", [("", b"")]),
    ]
    expected = spark.createDataFrame(rows, KEYED)
    save(expected, cluster, topic=topic)
    out = topic + "-out"
    found = stream(spark, cluster, subscribe=topic, includeHeaders="true")
    send(found.select("headers", "VALUE", "key"), cluster, tmp_path, topic=out)
    for each in (topic, out):
        written = batch(spark, cluster, subscribe=each, includeHeaders="true")
        chosen = written.select("key", "value", "headers")
        assert sorted(map(repr, chosen.collect())) == sorted(map(repr, expected.collect()))
        assert chosen.schema.simpleString() == expected.schema.simpleString()
        assert written.where("key = X'676f6e65'").count() == 1
    table = out.replace("-", "_")
    options = f"tower '{cluster.tower}', subscribe '{out}', includeHeaders 'true'"
    spark.sql(f"CREATE TABLE {table} USING dafka OPTIONS ({options})")
    try:
        headers = "array(named_struct('key', 'h', 'value', X'31'))"
        spark.sql(f"INSERT INTO {table} (key, value, headers) VALUES (X'6b', NULL, {headers})")
        query = f"SELECT key, value FROM {table} WHERE headers[0].key = 'h'"
        assert [tuple(row) for row in spark.sql(query).collect()] == [(b"k", None)]
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_empty_frames(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    save(spark.range(0).selectExpr("cast(id AS string) AS value"), cluster, topic=topic)
    assert batch(spark, cluster, subscribe=topic, failOnMissingTopic="false").count() == 0


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["id AS value"], {"topic": "T"}, "column 'value': is bigint, must be binary or string"),
        (["'x' AS values"], {"topic": "T"}, "column 'values': cannot be written"),
        (["'x' AS value", "id AS offset"], {"topic": "T"}, "column 'offset': cannot be written"),
        (["'x' AS value"], {}, "each row's with a column 'topic'"),
        (["'x' AS value", "id AS topic"], {}, "column 'topic': is bigint, must be string"),
        (["'x' AS value", "string(null) AS topic"], {}, "column 'topic': .* rows are null"),
        (["'x' AS value", "1 AS partition"], {"topic": "T"}, "'partition': cannot be chosen"),
        (["'x' AS value"], {"topic": "T", "ackss": 1}, "did you mean 'acks'"),
        (["'x' AS value"], {"topic": "T", "subscribe": "t"}, "is an option of reading"),
    ],
)
def test_rows_that_cannot_be_written(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, columns: Any, options: Any, says: str
) -> None:
    options = {key: topic if value == "T" else value for key, value in options.items()}
    frame = spark.range(10).coalesce(1).selectExpr(*columns)
    with pytest.raises(PySparkException, match=says):
        save(frame, cluster, **options)
    assert batch(spark, cluster, subscribe=topic, failOnMissingTopic="false").count() == 0


def test_overwriting_is_refused(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match=r"a topic only grows"):
        save(frame, cluster, mode="overwrite", topic=topic)


def test_too_few_stores_fail_the_write(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match=r"only 1 stores with Arrow Flight after 0\.3 s"):
        save(frame, cluster, topic=topic, acks=2, deliveryTimeoutMs=300)


def test_a_query_keeps_its_partitions(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    source, sink = topic, topic + "-out"
    address = produce(cluster, source, range(50))
    frame = stream(
        spark, cluster, subscribe=source, maxOffsetsPerTrigger=10, maxRecordsPerPartition=5
    ).select("value")
    query = send(frame, cluster, tmp_path, topic=sink)
    assert len(query.recentProgress) == 5
    partitions = batch(spark, cluster, subscribe=sink).select("partition").distinct()
    assert partitions.count() == 2
    produce(cluster, source, range(50, 80), address)
    send(frame, cluster, tmp_path, topic=sink)
    assert partitions.count() == 2
    written = batch(spark, cluster, subscribe=sink).collect()
    assert texts(written) == sorted(map(str, range(80)))


def test_a_complete_result_is_appended_each_time(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(4))
    counts = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=2).groupBy().count()
    query = (
        counts.selectExpr("cast(count AS string) AS value")
        .writeStream.format("dafka")
        .outputMode("complete")
        .options(tower=cluster.tower, topic=topic + "-out", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert texts(batch(spark, cluster, subscribe=topic + "-out").collect()) == ["2", "4"]


def test_output_mode_update_is_refused_by_spark_and_open_to_foreach_batch(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Spark 4.3 has no such sink in Python, whether the query aggregates or not."""
    produce(cluster, topic, range(4))
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=2)
    counts = frame.groupBy().count().selectExpr("cast(count AS string) AS value")
    for number, rows in enumerate([frame.select("value"), counts]):
        query = rows.writeStream.format("dafka").outputMode("update")
        with pytest.raises(PySparkException, match="dafka does not support Update mode"):
            finish(query.options(tower=cluster.tower, topic=topic + "-out"), tmp_path / str(number))
    assert batch(spark, cluster, subscribe=topic + "-out", failOnMissingTopic="false").count() == 0

    def write(rows: DataFrame, number: int) -> None:
        save(rows, cluster, topic=topic + "-out", txnAppId="counts", txnVersion=number)

    finish(counts.writeStream.outputMode("update").foreachBatch(write), tmp_path / "each")
    assert texts(batch(spark, cluster, subscribe=topic + "-out").collect()) == ["2", "4"]


def test_output_mode_append_writes_what_the_watermark_has_passed(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, (0, 5, 10, 40))
    rows = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=2)
    times = rows.selectExpr("timestamp_seconds(int(string(value))) AS time")
    counts = times.withWatermark("time", "1 second").groupBy(window("time", "10 seconds")).count()
    send(counts.selectExpr("string(count) AS value"), cluster, tmp_path, topic=topic + "-out")
    assert texts(batch(spark, cluster, subscribe=topic + "-out").collect()) == ["1", "2"]


def test_a_streams_columns_are_checked_before_anything_is_sent(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(3))
    frame = stream(spark, cluster, subscribe=topic)
    with pytest.raises(PySparkException, match=r"column 'partition': cannot be chosen"):
        send(frame, cluster, tmp_path, topic=topic + "-out")
    assert batch(spark, cluster, subscribe=topic + "-out", failOnMissingTopic="false").count() == 0


def test_writes_in_foreach_batch_keep_their_partitions(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(30))
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=10).select("value")
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: save(rows, cluster, topic=topic + "-out"))
        .options(checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(query.recentProgress) == 3
    written = batch(spark, cluster, subscribe=topic + "-out")
    assert texts(written.collect()) == sorted(map(str, range(30)))
    assert written.select("partition").distinct().count() == 1
