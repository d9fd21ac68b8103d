"""A driver of its own: counts the records of a topic by key and writes the counts to another one.

It says BATCH and a number for each batch, and, when its standard input ends, goes on to
the end of the topic, says ANSWER and the counts that a batch query finds, and ends.

Usage: query_job.py JSON, an object with the members of ``queries.Plan``
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState

from tests.spark.jvm import start_options

SEPARATOR = "="
JVM = " ".join(start_options())

LOOK_S = 0.05
COPY_TASKS = 4


def say(*words: object) -> None:
    """One line, whole: threads take turns with the lock of the output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def session(plan: dict[str, Any]) -> SparkSession:
    builder = SparkSession.builder.master(plan["master"]).appName("chaos")
    settings = {
        "spark.driver.bindAddress": plan["host"],
        "spark.driver.host": plan["host"],
        "spark.pyspark.python": sys.executable,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # Each query runs for seconds: to compile it costs more than it gives.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": plan["directory"] + "/warehouse",
        # Every batch must be told from the checkpoint at the end.
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        # Faults come faster here than anywhere else; how many are borne is not what is tested.
        "spark.task.maxFailures": "100",
        "spark.stage.maxConsecutiveAttempts": "100",
        "spark.deploy.maxExecutorRetries": "-1",
        **plan["settings"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def keyed(records: DataFrame) -> DataFrame:
    """The key of each record: what is before the first hyphen."""
    return records.select(sf.substring_index(sf.col("value").cast("string"), "-", 1).alias("key"))


def count_on(
    key: tuple[str], rows: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The key and how many records it has by now, in one row for each batch that has some."""
    count = (state.get[0] if state.exists else 0) + sum(map(len, rows))
    state.update((count,))
    yield pd.DataFrame({"value": [f"{key[0]}{SEPARATOR}{count}"]})


def start(spark: SparkSession, plan: dict[str, Any]) -> StreamingQuery:
    records = (
        spark.readStream.format("dafka")
        .options(tower=plan["tower"], subscribe=plan["source"], startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", plan["batch_records"])
        .load()
    )
    return (
        keyed(records)
        .groupBy("key")
        .applyInPandasWithState(count_on, "value string", "count bigint", "append", "NoTimeout")
        .writeStream.format("dafka")
        .options(**plan["sink_options"], tower=plan["tower"], topic=plan["sink"])
        .option("checkpointLocation", plan["directory"] + "/checkpoint")
        .start()
    )


def follow(query: StreamingQuery, ended: threading.Event) -> None:
    """Says each batch until the input ends or the query fails."""
    last = -1
    while True:
        progress = query.lastProgress
        if progress is not None and progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            say("BATCH", last)
        if ended.wait(LOOK_S):
            return
        if not query.isActive:
            query.awaitTermination()  # raises what it has ended with


def copy(spark: SparkSession, plan: dict[str, Any]) -> None:
    """Copies the source's topic to another one by a batch query, which is seen whole or not at all.

    A driver before this one, or a job before this one that failed, may have done it.
    """
    source, target = (
        spark.read.format("dafka").options(tower=plan["tower"], subscribe=topic)
        for topic in (plan["source"], plan["copy"])
    )
    target = target.option("failOnMissingTopic", "false")
    while target.load().count() == 0:
        rows = source.load().select("value").repartition(COPY_TASKS)
        try:
            rows.write.format("dafka").mode("append").options(
                **plan["sink_options"], tower=plan["tower"], topic=plan["copy"]
            ).save()
        except PySparkException as error:
            print(f"the copy failed: {error}", file=sys.stderr, flush=True)


def main(plan: dict[str, Any]) -> None:
    ended = threading.Event()

    def watch() -> None:
        while sys.stdin.read(4096):
            continue
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    spark = session(plan)
    query = start(spark, plan)
    follow(query, ended)
    query.processAllAvailable()
    query.stop()
    if plan["copy"]:
        say("COPYING")
        copy(spark, plan)
    records = spark.read.format("dafka").options(tower=plan["tower"], subscribe=plan["source"])
    rows = keyed(records.load()).groupBy("key").count().collect()
    say("ANSWER", json.dumps({row["key"]: row["count"] for row in rows}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
