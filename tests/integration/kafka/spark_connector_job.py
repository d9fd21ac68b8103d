"""Spark's own Kafka connector in its own session: ``spark_connector_job.py JARS SERVERS DIR``.

It writes rows to a topic as a batch, copies them to another topic as a stream, reads both as
batches, and prints a summary as JSON.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

ROWS = 20_000


def copied(spark: SparkSession, servers: str, directory: Path) -> dict[str, list[list[object]]]:
    """Summarize both topics: a row for each partition."""
    to = {"kafka.bootstrap.servers": servers}
    rows = spark.range(ROWS).selectExpr(
        "if(id % 3 = 0, NULL, encode(string(id), 'utf-8')) AS key",
        "if(id % 5 = 0, NULL, encode(concat('value ', id), 'utf-8')) AS value",
        "if(id % 7 = 0, array(struct('n' AS key, encode(string(id), 'utf-8') AS value)), NULL) "
        "AS headers",
    )
    rows.write.format("kafka").options(**to, topic="first", includeHeaders="true").save()
    stream = (
        spark.readStream.format("kafka")
        .options(**to, subscribe="first", startingOffsets="earliest", includeHeaders="true")
        .option("maxOffsetsPerTrigger", ROWS // 3)
        .load()
        .select("key", "value", "headers")
        .writeStream.format("kafka")
        .options(**to, topic="second", includeHeaders="true")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination(120)
    if stream.isActive:
        raise TimeoutError("the stream does not end")
    return {topic: summary(read(spark, to, topic)) for topic in ("first", "second")}


def read(spark: SparkSession, to: dict[str, str], topic: str) -> DataFrame:
    options = {**to, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("kafka").options(**options).load()


def summary(frame: DataFrame) -> list[list[object]]:
    """Summarize a topic: counts, an order-independent digest, and holes in offsets."""
    of_all = frame.agg(
        sf.count("*"),
        sf.count("key"),
        sf.count("value"),
        sf.count("headers"),
        sf.sum(sf.xxhash64("key", "value", "headers").cast("decimal(38)")).cast("string"),
        sf.min("timestamp") > sf.lit("2020-01-01").cast("timestamp"),
    )
    by_partition = frame.groupBy("partition").agg(
        sf.min("offset"), sf.max("offset") + 1 - sf.count("*")
    )
    found = sorted(map(list, by_partition.collect()))
    return [*map(list, of_all.collect()), *found]


def main() -> None:
    jars, servers, directory = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        print(json.dumps(copied(spark, servers, Path(directory))))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
