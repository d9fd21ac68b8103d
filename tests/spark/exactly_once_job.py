"""A program of its own: a Spark that tries failed tasks again, with tasks that fail.

Usage: exactly_once_job.py TOWER TOPIC SINK DIRECTORY
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tests.spark.faults import changed, failing_at_first


def main(tower: str, topic: str, sink: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.python.daemon.module", "tests.spark.daemon")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", directory + "/warehouse")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("dafka")
        .options(tower=tower, subscribe=topic, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=4000, maxRecordsPerPartition=2000)
        .load()
        .selectExpr("value", f"concat('{sink}-', cast(cast(value AS string) AS int) % 3) AS topic")
    )
    query = (
        changed(frame, failing_at_first)
        .writeStream.format("dafka")
        .options(tower=tower, checkpointLocation=directory + "/checkpoint", audit=True)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.format("dafka").options(tower=tower, subscribe=topic).load().select("value")
    (
        changed(rows.repartition(3), failing_at_first)
        .write.format("dafka")
        .mode("append")
        .options(tower=tower, topic=sink + "-batch")
        .save()
    )
    print(f"BATCHES {len(query.recentProgress)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
