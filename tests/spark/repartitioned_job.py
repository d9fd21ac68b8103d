"""A streaming query that shuffles, in a driver of its own that a test kills and starts again.

``python -m tests.spark.repartitioned_job TOWER TOPIC SINK DIRECTORY CORES`` writes all of a topic.
Adaptive execution cuts its batches by size and by the number of cores.  Its first task waits as
long as file ``hold`` is in the directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.spark.faults import changed, wait_for


def main(tower: str, topic: str, sink: str, directory: str, cores: str) -> None:
    hold, held = Path(directory, "hold"), Path(directory, "held")

    def holding(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 0 and hold.exists():
            held.touch()
            wait_for(lambda: not hold.exists())
        yield from batches

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("dafka")
        .options(tower=tower, subscribe=topic, startingOffsets="earliest")
        .load()
        .selectExpr("value", "substring(value, 1, 4) AS key")
        .repartition("key")
    )
    query = (
        changed(frame, holding)
        .writeStream.format("dafka")
        .options(tower=tower, topic=sink, checkpointLocation=f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
