"""A job that was written for Spark's Kafka connector, ported as docs/from_kafka.md says."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from dafka_core import EmbeddedCluster, Producer
from tests.spark.topics import batch, finish

KAFKAS = {
    "kafka.group.id": "flights",
    "kafka.fetch.max.bytes": "1000000",
    "kafkaConsumer.pollTimeoutMs": "60000",
    "fetchOffset.numRetries": "5",
    "failOnDataLoss": "false",
    "minPartitions": "2",
}
"""Options of such jobs that format ``dafka`` maps or ignores."""


def job(
    spark: SparkSession, server: dict[str, str], source: str, target: str, checkpoint: Path
) -> int:
    """Copy the last hour's records in upper case; return the number of batches.

    Only ``dafka`` and ``server`` differ from the job for Kafka.
    """
    hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    flights = (
        spark.readStream.format("dafka")
        .options(**server, **KAFKAS)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("startingTimestamp", int(hour_ago.timestamp() * 1000))
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", 60)
        .load()
        .selectExpr("key", "CAST(value AS STRING) AS text", "headers", "timestamp")
    )
    batches = 0

    def write(rows: DataFrame, _: int) -> None:
        nonlocal batches
        batches += 1
        (
            rows.selectExpr(
                "key", "concat(upper(text), ' ', unix_seconds(timestamp)) AS value", "headers"
            )
            .write.format("dafka")
            .options(**server)
            .option("topic", target)
            .option("kafka.acks", "all")
            .option("kafka.linger.ms", "5")
            .mode("append")
            .save()
        )

    finish(flights.writeStream.foreachBatch(write), checkpoint)
    return batches


def test_a_job_written_for_kafka(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    now = dt.datetime.now(dt.UTC)
    with Producer(topic, tower=cluster.tower) as producer:
        for ago_minutes, word in ((120, "old"), (30, "new")):
            moment = now - dt.timedelta(minutes=ago_minutes)
            for number in range(100):
                headers = [("n", b"%d" % number), ("none", None)]
                value = f"{word}{number}".encode()
                producer.publish(value, key=b"%d" % (number % 7), headers=headers, timestamp=moment)
        producer.flush(30)
    target = f"{topic}-upper"
    batches = job(spark, {"tower": cluster.tower}, topic, target, tmp_path / "checkpoint")
    assert batches == 2  # of 60 records, and of the other 40
    copied = batch(spark, cluster, subscribe=target, includeHeaders="true").collect()
    found = {
        row["value"].decode(): (row["key"], [tuple(each) for each in row["headers"]])
        for row in copied
    }
    assert len(copied) == 100
    moment_s = int((now - dt.timedelta(minutes=30)).timestamp())
    assert found == {
        f"NEW{number} {moment_s}": (b"%d" % (number % 7), [("n", b"%d" % number), ("none", None)])
        for number in range(100)
    }
