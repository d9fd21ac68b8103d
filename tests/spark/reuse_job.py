"""Batches that several queries read: prints how many records each of them has found.

Usage: reuse_job.py TOWER TOPIC, with eight records in topic TOPIC-PART for each part of the program
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dafka_core import Producer
from dafka_core.testing import wait_until

BATCHES = 2


class Part:
    """One way to read a topic; each query is followed by one more record."""

    def __init__(self, spark: SparkSession, tower: str, topic: str) -> None:
        self.spark, self.given = spark, {"tower": tower, "subscribe": topic}
        self.found: list[int] = []

    def load(self, **options: Any) -> DataFrame:
        """A new frame."""
        return self.spark.read.format("dafka").options(**self.given, **options).load()

    def note(self, count: int) -> None:
        """Keeps what a query has found, and publishes."""
        self.found.append(count)
        with Producer(self.given["subscribe"], tower=self.given["tower"]) as producer:
            producer.publish(b"more")

    def actions(self) -> None:
        """Several actions on one frame, of several tasks."""
        frame = self.load(minPartitions=4)
        self.note(frame.count())
        self.note(frame.count())
        self.note(len(frame.collect()))
        self.note(frame.where("offset >= 0").count())

    def collected(self) -> None:
        """One action twice."""
        frame = self.load()
        self.note(len(frame.collect()))
        self.note(len(frame.collect()))

    def views(self) -> None:
        """A temporary view, and its replacement."""
        self.load().createOrReplaceTempView("records")
        self.note(self.spark.sql("SELECT * FROM records").count())
        self.note(self.spark.table("records").count())
        self.load().createOrReplaceTempView("records")
        self.note(self.spark.sql("SELECT * FROM records").count())

    def metadata(self) -> None:
        """A table of what stores say."""
        frame = self.load(metadata="topics")
        self.note(frame.collect()[0]["records"])
        self.note(frame.collect()[0]["records"])

    def joined(self) -> None:
        """The static side of a stream's join, in each micro-batch."""
        static = self.load().groupBy().count()
        self.each_batch(
            lambda rows: rows.crossJoin(static), lambda rows: rows.collect()[0]["count"]
        )

    def tables(self) -> None:
        """A table of SQL in each query."""
        options = ", ".join(f"{name} '{value}'" for name, value in self.given.items())
        self.spark.sql(f"CREATE TABLE flights USING dafka OPTIONS ({options})")
        self.note(self.spark.table("flights").count())
        self.note(self.spark.table("flights").count())
        self.note(self.spark.sql("SELECT * FROM flights").count())

    def loaded_anew(self) -> None:
        """A frame for each query, which reads it twice, in stages, and in ``foreachBatch``."""

        def count() -> int:
            frame = self.load(minPartitions=4)
            return frame.repartition(3).join(frame, ["partition", "offset"]).count()

        self.note(count())
        self.note(count())
        self.each_batch(
            lambda rows: rows,
            lambda rows: rows.limit(1).crossJoin(self.load()).count(),
        )

    def each_batch(
        self, made: Callable[[DataFrame], DataFrame], count: Callable[[DataFrame], int]
    ) -> None:
        """The action in some micro-batches."""
        rows = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        before = len(self.found)

        def note(batch: DataFrame, _: int) -> None:
            if len(self.found) < before + BATCHES:
                self.note(count(batch))

        query = made(rows).writeStream.foreachBatch(note).start()
        wait_until(lambda: len(self.found) >= before + BATCHES or not query.isActive)
        query.stop()


PARTS = ("actions", "collected", "views", "metadata", "joined", "tables", "loaded_anew")


def main(tower: str, topic: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.python.daemon.module", "tests.spark.reuse_daemon")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(Path.cwd() / "warehouse"))
        .getOrCreate()
    )
    found = {}
    for name in PARTS:
        part = Part(spark, tower, f"{topic}-{name}")
        getattr(part, name)()
        found[name] = part.found
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
