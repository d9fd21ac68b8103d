"""Row 10: a batch query of very many small partitions, against one of as many records in ten."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from pyspark.sql import SparkSession

from benchmarks import spark_sessions
from benchmarks.bench_read import WARM_UPS, source_options
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.harness import Bench, filled
from dafka_core import EmbeddedCluster

RECORDS = 10
"""Of each partition."""

FEW = 10
"""Partitions of the reference."""

SIZE_BYTES = 100

MOST = 10_000

GOALS = {1_000: 0.33, MOST: 0.1}
"""By how many partitions there are, all in one topic.  Spark takes 50 to 70 ms for each task: the
reference has ten, a thousand partitions have 17.  A partition costs its place in the plan, its
range in a request, and its answer."""


def run(bench: Bench) -> Iterator[Figure]:
    """Seconds of a query that reads all columns."""
    with spark_sessions.session() as spark:
        for full, goal in GOALS.items():
            yield compare(spark, bench, full, goal)
        yield metadata(spark, bench)


def compare(spark: SparkSession, bench: Bench, full: int, goal: float) -> Figure:
    """The figure of so many partitions."""
    count = bench.part(full, least=2 * FEW)
    name = f"batch read of {full:,} partitions"
    with contextlib.ExitStack() as running:
        clusters = {
            side: running.enter_context(
                filled(
                    bench.directory / f"many-{full}-{side}",
                    count * RECORDS,
                    SIZE_BYTES,
                    partitions=partitions,
                )
            )
            for side, partitions in (("many", count), ("few", FEW))
        }
        sides = {
            side: partial(seconds, spark, cluster, count * RECORDS)
            for side, cluster in clusters.items()
        }
        times = in_turns(name, sides, bench.pairs, warm_ups=WARM_UPS * bench.warm)
    return compared(name, times["many"], times["few"], unit="s", goal=goal, smaller_is_better=True)


def metadata(spark: SparkSession, bench: Bench) -> Figure:
    """Seconds of a table of 10,000 partitions, against those of reading their records."""
    count = bench.part(MOST, least=2 * FEW)
    name = f"metadata of {MOST:,} partitions"
    directory = bench.directory / f"many-{MOST}-many"
    with filled(directory, count * RECORDS, SIZE_BYTES, partitions=count) as cluster:
        sides = {
            "table": partial(metadata_seconds, spark, cluster, count),
            "records": partial(seconds, spark, cluster, count * RECORDS),
        }
        times = in_turns(name, sides, bench.pairs, warm_ups=WARM_UPS * bench.warm)
    return compared(
        name, times["table"], times["records"], unit="s", goal=0.5, smaller_is_better=True
    )


def metadata_seconds(spark: SparkSession, cluster: EmbeddedCluster, count: int) -> float:
    """How long it takes to have all rows of the table, with all columns."""
    options = {"tower": cluster.tower, "metadata": "partitions"}
    started = time.perf_counter()
    rows = spark.read.format("dafka").options(**options).load().collect()
    taken_s = time.perf_counter() - started
    assert sum(row["records"] for row in rows) == count * RECORDS
    return taken_s


def seconds(spark: SparkSession, cluster: EmbeddedCluster, records: int) -> float:
    """How long one query takes."""
    rate = spark_sessions.read_rate(spark, "dafka", records, source_options(cluster))
    return records / 1e6 / rate
