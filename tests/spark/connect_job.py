"""A client of Spark Connect that reads and writes topics in each way, and prints the counts.

Usage: connect_job.py TOWER TOPIC CHECKPOINT, with records in the topic
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dafka_spark import read_dafka, write_dafka

TIMEOUT_S = 60


def main(tower: str, topic: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    given = {"tower": tower, "starting_offsets": "earliest"}
    write_dafka(
        read_dafka(spark, topic, tower=tower).select("value"), f"{topic}-batch", tower=tower
    )

    def write(rows: DataFrame, batch_id: int) -> None:
        writer = rows.select("value").write.format("dafka").mode("append")
        writer.option("txnAppId", "each").option("txnVersion", batch_id).options(
            tower=tower, topic=f"{topic}-each"
        ).save()

    in_two = read_dafka(spark, topic, stream=True, max_offsets_per_trigger=60, **given)
    streams = [
        write_dafka(
            read_dafka(spark, topic, stream=True, **given).select("value"),
            f"{topic}-stream",
            tower=tower,
            checkpoint=f"{checkpoint}/stream",
            trigger={"availableNow": True},
        ),
        in_two.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{checkpoint}/each")
        .trigger(availableNow=True)
        .start(),
    ]
    for stream in streams:
        assert stream is not None
        assert stream.awaitTermination(TIMEOUT_S)
    found = {"client": type(spark).__module__}
    try:
        spark.read.format("dafka").options(
            tower=tower, subscribe=topic, subscribed="x"
        ).load().count()
    except PySparkException as error:
        found["refusal"] = str(error)
    counts = {
        name: read_dafka(spark, f"{topic}-{name}", tower=tower).count()
        for name in ("batch", "stream", "each")
    }
    print(json.dumps({**found, "counts": counts}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
