"""A driver with one query: it counts a topic's records by key and writes the counts to another
topic, or saves a topic as Parquet files.

It prints BATCH and a number for each batch. When its standard input ends, it continues to the end
of the topic, prints ANSWER and the counts of a batch query, and exits.

Usage: query_job.py JSON, an object with the fields of ``queries.Plan``
"""

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.spark.jvm import start_options

SEPARATOR = "="
JVM = " ".join(start_options())

LOOK_S = 0.05
COPY_TASKS = 4

SAVED = "saved"  # the query that saves a topic as Parquet files


def say(*words: object) -> None:
    """Print a whole line, under the output's lock."""
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
        # Each query runs for seconds: compiling costs more than it saves.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": plan["directory"] + "/warehouse",
        # The checkpoint must keep every batch until the end.
        "spark.sql.streaming.minBatchesToRetain": "1000000",
        # Faults are more frequent here than in practice; tolerated failures are not tested.
        "spark.task.maxFailures": "100",
        "spark.stage.maxConsecutiveAttempts": "100",
        "spark.deploy.maxExecutorRetries": "-1",
        **plan["settings"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def keyed(records: DataFrame) -> DataFrame:
    """Return the key of each record: the part before the first hyphen."""
    return records.select(sf.substring_index(sf.col("value").cast("string"), "-", 1).alias("key"))


def count_on(
    key: tuple[str], rows: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Return each key's count so far, one row for each batch that contains it."""
    count = (state.get[0] if state.exists else 0) + sum(map(len, rows))
    state.update((count,))
    yield pd.DataFrame({"value": [f"{key[0]}{SEPARATOR}{count}"]})


class Counter(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count bigint")

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame] | Iterator[Row],
        timerValues: Any,  # noqa: N803 -- likewise
    ) -> Iterator[Row]:
        before = self._count.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(value=f"{key[0]}{SEPARATOR}{count}")

    def close(self) -> None:
        """Nothing to close."""


def counted(records: DataFrame) -> DataFrame:
    groups = keyed(records).groupBy("key")
    return groups.applyInPandasWithState(
        count_on, "value string", "count bigint", "append", "NoTimeout"
    )


def processed(records: DataFrame) -> DataFrame:
    groups = keyed(records).groupBy("key")
    return groups.transformWithState(Counter(), "value string", "append", "None")


def texts(records: DataFrame) -> DataFrame:
    return records.select(sf.col("value").cast("string").alias("value"))


QUERIES = {"counted": counted, "processed": processed, SAVED: texts}


def start(spark: SparkSession, plan: dict[str, Any]) -> StreamingQuery:
    records = (
        spark.readStream.format("dafka")
        .options(tower=plan["tower"], subscribe=plan["source"], startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", plan["batch_records"])
        .load()
    )
    writer = QUERIES[plan["query"]](records).writeStream
    if plan["query"] == SAVED:
        writer = writer.format("parquet").option("path", plan["sink"])
    else:
        writer = writer.format("dafka").option("topic", plan["sink"])
        writer = writer.options(**plan["sink_options"], tower=plan["tower"])
    return writer.option("checkpointLocation", plan["directory"] + "/checkpoint").start()


def follow(query: StreamingQuery, ended: threading.Event) -> None:
    """Print each batch until the input ends or the query fails."""
    last = -1
    while True:
        progress = query.lastProgress
        if progress is not None and progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            say("BATCH", last)
        if ended.wait(LOOK_S):
            return
        if not query.isActive:
            query.awaitTermination()  # raises its error


def copy(spark: SparkSession, plan: dict[str, Any]) -> None:
    """Copy the source to another topic by a batch query, which is visible whole or not at all.

    An earlier driver, or an earlier failed job, may have done it.
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


def answer(spark: SparkSession, plan: dict[str, Any]) -> dict[str, int]:
    """Return a batch query's answer: records of each key, or how often each value is saved."""
    if plan["query"] == SAVED:
        rows = spark.read.parquet(plan["sink"]).withColumnRenamed("value", "key")
    else:
        records = spark.read.format("dafka").options(tower=plan["tower"], subscribe=plan["source"])
        rows = keyed(records.load())
    return {row["key"]: row["count"] for row in rows.groupBy("key").count().collect()}


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
    say("ANSWER", json.dumps(answer(spark, plan)))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
