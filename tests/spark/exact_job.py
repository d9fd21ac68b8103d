"""A streaming query in a driver of its own, for tests that kill it.

``python -m tests.spark.exact_job TOWER TOPIC CHECKPOINT STARTING_OFFSETS`` runs until its standard
input ends.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(tower: str, topic: str, checkpoint: str, starting: str) -> None:
    """Read a topic and drop its records."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("dafka")
        .options(tower=tower, subscribe=topic, startingOffsets=starting)
        .load()
    )
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    sys.stdin.read()
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
