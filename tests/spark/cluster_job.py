"""A program of its own: reads a topic, streams it to another, and says what it saw as JSON.

Then the same with speculation, which must write nothing.

Usage: cluster_job.py MASTER TOWER TOPIC SINK DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.jvm import start_options


def executor_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The process behind a task's worker: the daemon of its executor."""
    for batch in batches:
        yield pa.record_batch({"parent": [os.getppid()], "rows": [batch.num_rows]})


def session(master: str, directory: str, speculation: str) -> SparkSession:
    return (
        SparkSession.builder.master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", " ".join(start_options()))
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.speculation", speculation)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", directory + "/warehouse")
        .getOrCreate()
    )


def copy(spark: SparkSession, options: dict[str, Any], sink: str, checkpoint: str) -> int:
    """Streams a topic to another and counts the batches."""
    query = (
        spark.readStream.format("dafka")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=500)
        .load()
        .select("value")
        .writeStream.format("dafka")
        .options(tower=options["tower"], topic=sink, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(query.recentProgress)


def main(master: str, tower: str, topic: str, sink: str, directory: str) -> None:
    options: dict[str, Any] = {"tower": tower, "subscribe": topic, "maxRecordsPerPartition": 250}
    spark = session(master, directory, "false")
    frame = spark.read.format("dafka").options(**options).load()
    seen = frame.mapInArrow(executor_of, "parent bigint, rows bigint").collect()
    said: dict[str, Any] = {
        "executors": len({row["parent"] for row in seen}),
        "read": sum(row["rows"] for row in seen),
        "batches": copy(spark, options, sink, directory + "/checkpoint"),
    }
    spark.stop()
    spark = session("local[2]", directory, "true")
    try:
        copy(spark, options, sink, directory + "/speculating")
    except StreamingQueryException as error:
        said["speculation"] = "set it false" in str(error)
    spark.stop()
    print("SAID " + json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
