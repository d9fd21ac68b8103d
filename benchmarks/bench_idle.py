"""Row 9: the cost of an idle query, with one partition and with many.

CPU of each process as a share of one core: the JVM beside the same JVM with an idle stub; Spark's
Python process of the source, and the store, beside their limits. Also how soon a record starts a
batch.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import processes, spark_sessions
from benchmarks.bench_read import source_options
from benchmarks.figures import Figure, compared, limited, tell
from benchmarks.harness import TOPIC, Bench, filled
from benchmarks.stub_source import FORM
from dafka_core import Producer

PARTITIONS = {1: 1.0, 1_000: 3.0}  # limits in percent of a core, by number of partitions
STUB_GOAL = 1.0  # the JVM has less to do than with a source that answers at once
LATENCY_MS = 100.0  # from publishing a record to the start of its batch

SETTLING_S = 10.0
"""A query needs up to five seconds until its pauses are longest; the rest is for the JVM's
compiler."""

FULL_MS = 20_000  # time for which processes are watched
FULL_RECORDS = 20  # records sent one by one

TIMEOUT_S = 60

SIZE_BYTES = 100

STUB = {"rows": 0, "batch": 1, "size": SIZE_BYTES, "tasks": 1, "limit": 1}


def run(bench: Bench) -> Iterator[Figure]:
    """Measure each process, and the latency, by number of partitions."""
    seconds = bench.part(FULL_MS, least=200) / 1000
    settling_s = SETTLING_S * bench.warm
    records = bench.part(FULL_RECORDS)
    with spark_sessions.session() as spark:
        for partitions, most in PARTITIONS.items():
            name = f"idle query, {partitions:,} partition{'s' * (partitions > 1)}"
            directory = bench.directory / f"idle-{partitions}"
            with filled(directory, partitions, SIZE_BYTES, partitions=partitions) as cluster:
                ours = {**source_options(cluster), "startingOffsets": "earliest"}
                used: list[dict[str, float]] = []
                sides = {
                    "ours": partial(idle, spark, "dafka", ours, used, settling_s, seconds),
                    "stub": partial(idle, spark, FORM, STUB, [], settling_s, seconds),
                }
                jvm = bench.in_turns(name, sides)
                latencies = [latency_ms(spark, ours, records) for _ in range(bench.pairs)]
            yield compared(f"{name}, JVM", jvm["ours"], jvm["stub"], "% core", STUB_GOAL)
            for process in ("Python", "store"):
                found = [each[process] for each in used]
                yield limited(f"{name}, {process}", found, most, "% core")
            yield limited(f"{name}, a record", latencies, LATENCY_MS, "ms")


@contextlib.contextmanager
def running(spark: SparkSession, form: str, source: dict[str, Any]) -> Iterator[StreamingQuery]:
    """Start a query without a trigger interval that has read everything."""
    frame = spark.readStream.format(form).options(**source).load()
    query = frame.writeStream.format("noop").start()
    try:
        query.processAllAvailable()
        yield query
    finally:
        query.stop()


def idle(
    spark: SparkSession,
    form: str,
    source: dict[str, Any],
    used: list[dict[str, float]],
    settling_s: float,
    seconds: float,
) -> float:
    """Return the JVM's share of a core in percent; ``used`` collects the processes'."""
    with running(spark, form, source):
        time.sleep(settling_s)
        pids = {
            "JVM": processes.named("org.apache.spark.deploy.SparkSubmit"),
            "Python": processes.named("python_streaming_source_runner"),
            "store": processes.stores(),
        }
        before = {name: sum(map(processes.cpu_s, each)) for name, each in pids.items()}
        time.sleep(seconds)
        shares = {
            name: 100 * (sum(map(processes.cpu_s, each)) - before[name]) / seconds
            for name, each in pids.items()
        }
    tell(", ".join(f"{name} {share:.2f} %" for name, share in shares.items()))
    used.append(shares)
    return shares["JVM"]


def latency_ms(spark: SparkSession, source: dict[str, Any], records: int) -> float:
    """Return the median time from publishing a record to the start of its batch."""
    found: list[float] = []
    with (
        running(spark, "dafka", source) as query,
        Producer(TOPIC, tower=source["tower"]) as producer,
    ):
        producer.publish(b"x")  # the partition is new
        producer.flush(TIMEOUT_S)
        for _ in range(records):
            query.processAllAvailable()
            query.processAllAvailable()  # has found nothing, and waits
            published_s = time.time()
            producer.publish(b"x")
            producer.flush(TIMEOUT_S)
            query.processAllAvailable()
            batch = next(each for each in query.recentProgress[::-1] if each["numInputRows"])
            asked_s = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
            begun_s = asked_s + batch["durationMs"]["latestOffset"] / 1000
            found.append(1000 * (begun_s - published_s))
    return statistics.median(found)
