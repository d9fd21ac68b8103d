"""A program of its own: reads a topic, streams it to another, and says what it saw as JSON.

Usage: cluster_job.py MASTER SPECULATION TOWER TOPIC SINK DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys

import pyarrow as pa
from pyspark.sql import SparkSession


def executor_of(batches):
    """The process behind a task's worker: the daemon of its executor."""
    for batch in batches:
        yield pa.record_batch({"parent": [os.getppid()], "rows": [batch.num_rows]})


def main(master: str, speculation: str, tower: str, topic: str, sink: str, directory: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.executor.memory", "512m")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.speculation", speculation)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", directory + "/warehouse")
        .getOrCreate()
    )
    options = {"tower": tower, "subscribe": topic, "maxRecordsPerPartition": 250}
    frame = spark.read.format("dafka").options(**options).load()
    seen = frame.mapInArrow(executor_of, "parent bigint, rows bigint").collect()
    query = (
        spark.readStream.format("dafka")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=500)
        .load()
        .select("value")
        .writeStream.format("dafka")
        .options(tower=tower, topic=sink, checkpointLocation=directory + "/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = len(query.recentProgress)
    written = spark.read.format("dafka").options(tower=tower, subscribe=sink).load()
    said = {
        "executors": len({row["parent"] for row in seen}),
        "read": sum(row["rows"] for row in seen),
        "batches": batches,
        "written": sorted(bytes(row["value"]).decode() for row in written.collect()),
        "partitions": written.select("partition").distinct().count(),
    }
    spark.stop()
    print("SAID " + json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
