"""A job that was written for Spark's Kafka connector, ported as docs/from_kafka.md describes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from dafka_core import Producer
from tests.spark.topics import Topics, finish

KAFKA_OPTIONS = {
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
        .options(**server, **KAFKA_OPTIONS)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("startingTimestamp", int(hour_ago.timestamp() * 1000))
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", 60)
        .load()
        .selectExpr("key", "CAST(value AS STRING) AS text", "headers", "timestamp")
    )

    def write(rows: DataFrame, _: int) -> None:
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

    return len(finish(flights.writeStream.foreachBatch(write), checkpoint).recentProgress)


def test_a_job_written_for_kafka(topics: Topics, topic: str, tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    with Producer(topic, tower=topics.cluster.tower) as producer:
        for ago_minutes, word in ((120, "old"), (30, "new")):
            moment = now - dt.timedelta(minutes=ago_minutes)
            for number in range(100):
                headers = [("n", b"%d" % number), ("none", None)]
                value = f"{word}{number}".encode()
                producer.publish(value, key=b"%d" % (number % 7), headers=headers, timestamp=moment)
        producer.flush(30)
    batches = job(topics.spark, topics.options, topic, f"{topic}-upper", tmp_path)
    assert batches == 2  # of 60 records, and of the other 40
    copied = topics.batch(f"{topic}-upper", includeHeaders=True).collect()
    assert len(copied) == 100
    second = int(moment.timestamp())
    assert {
        row["value"].decode(): (row["key"], [tuple(each) for each in row["headers"]])
        for row in copied
    } == {
        f"NEW{number} {second}": (b"%d" % (number % 7), [("n", b"%d" % number), ("none", None)])
        for number in range(100)
    }
