"""Row 10: queries of very many small partitions: batches, and the offsets of a stream."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks import spark_sessions
from benchmarks.bench_read import WARM_UPS, source_options
from benchmarks.figures import Figure, compared, limited
from benchmarks.harness import TOPIC, Bench, filled
from dafka_core import EmbeddedCluster, Producer
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full as all_columns
from dafka_spark.source.micro_batch_stream import PAUSE_S, DafkaMicroBatchStream

RECORDS = 10  # records of each partition
FEW = 10  # partitions of the reference

SIZE_BYTES = 100

MOST = 10_000

GOALS = {1_000: 0.33, MOST: 0.1}
"""Goals by number of partitions in one topic. Spark takes 50 to 70 ms for each task: the reference
has ten, a thousand partitions have 17. A partition costs its place in the plan, its range in a
request, and its answer."""


def run(bench: Bench) -> Iterator[Figure]:
    """Return the seconds of a query that reads all columns."""
    with spark_sessions.session() as spark:
        for full, goal in GOALS.items():
            yield compare(spark, bench, full, goal)
        yield metadata(spark, bench)
    yield from offsets(bench)


def compare(spark: SparkSession, bench: Bench, full: int, goal: float) -> Figure:
    """Measure one number of partitions."""
    count = bench.part(full, least=2 * FEW)
    name = f"batch read of {full:,} partitions"
    whole = partial(filled, records=count * RECORDS, size_bytes=SIZE_BYTES)
    with (
        whole(bench.directory / f"many-{full}-many", partitions=count) as many,
        whole(bench.directory / f"many-{full}-few", partitions=FEW) as few,
    ):
        ours, theirs = (partial(seconds, spark, each, count * RECORDS) for each in (many, few))
        return bench.compare(name, ours, theirs, "s", goal, warm_ups=WARM_UPS)


TRIGGERS = 9  # triggers, of which the median counts
LIMIT_S = 0.15  # limit of a trigger, whatever the number of partitions
NAME_BYTES = 16  # random part of a partition's name, the reference of a checkpointed offset


def offsets(bench: Bench) -> Iterator[Figure]:
    """Measure the seconds of ``latestOffset``, and the bytes of Spark's offset.

    A trigger with ten times the partitions may take ten times as long, and at most ``LIMIT_S``.
    """
    taken: dict[int, dict[str, list[float]]] = {}
    for full in (10, 100, 1_000, MOST):
        count = max(bench.part(full), FEW)
        directory = bench.directory / f"many-{full}-offsets"
        with filled(directory, count * RECORDS, SIZE_BYTES, partitions=count) as cluster:
            taken[full] = {"nothing": [], "one": [], "bytes": []}
            for _ in range(bench.pairs):
                for name, figure in trigger(cluster).items():
                    taken[full][name].append(figure)
        for name in ("nothing", "one"):
            title = f"latestOffset of {full:,} partitions, {name} changed"
            limit = [LIMIT_S] * bench.pairs
            if full > 10:
                limit = [min(10 * each, LIMIT_S) for each in taken[full // 10][name]]
            yield compared(title, taken[full][name], limit, "s", goal=0.9)
        title = f"checkpointed offset of {full:,} partitions"
        yield limited(title, taken[full]["bytes"], count * NAME_BYTES, "B", goal=0.75)


def trigger(cluster: EmbeddedCluster) -> dict[str, float]:
    """Return the median triggers without and with a changed partition, and the offset's size."""
    given = {"tower": cluster.tower, "subscribe": TOPIC, "startingOffsets": "earliest"}
    stream = DafkaMicroBatchStream(all_columns(), SourceOptions.of(given))
    seconds: dict[str, list[float]] = {"nothing": [], "one": []}
    with Producer(TOPIC, tower=cluster.tower) as producer:
        _, offset = timed(stream, stream.initialOffset())
        for _ in range(TRIGGERS):
            # A trigger interval cuts an idle query's pause, which is no work.
            time.sleep(PAUSE_S)
            seconds["nothing"].append(timed(stream, offset)[0])
            producer.publish(b"x")
            producer.flush(20)
            time.sleep(PAUSE_S)
            taken_s, offset = timed(stream, offset)
            seconds["one"].append(taken_s)
    stream.stop()
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {**medians, "bytes": float(len(json.dumps(offset)))}


def timed(stream: DafkaMicroBatchStream, offset: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the seconds of ``latestOffset``, and its answer as Spark passes it back."""
    started = time.perf_counter()
    found = stream.latestOffset(offset, ReadAllAvailable())
    return time.perf_counter() - started, json.loads(json.dumps(found))


def metadata(spark: SparkSession, bench: Bench) -> Figure:
    """Measure a table of 10,000 partitions, beside reading their records."""
    count = bench.part(MOST, least=2 * FEW)
    name = f"metadata of {MOST:,} partitions"
    directory = bench.directory / f"many-{MOST}-many"
    with filled(directory, count * RECORDS, SIZE_BYTES, partitions=count) as cluster:
        table = partial(metadata_seconds, spark, cluster, count)
        records = partial(seconds, spark, cluster, count * RECORDS)
        return bench.compare(name, table, records, "s", goal=0.5, warm_ups=WARM_UPS)


def metadata_seconds(spark: SparkSession, cluster: EmbeddedCluster, count: int) -> float:
    """Return the seconds for all rows and columns of the table."""
    options = {"tower": cluster.tower, "metadata": "partitions"}
    started = time.perf_counter()
    rows = spark.read.format("dafka").options(**options).load().collect()
    taken_s = time.perf_counter() - started
    assert sum(row["records"] for row in rows) == count * RECORDS
    return taken_s


def seconds(spark: SparkSession, cluster: EmbeddedCluster, records: int) -> float:
    """Return the seconds of one query."""
    rate = spark_sessions.read_rate(spark, "dafka", records, source_options(cluster))
    return records / 1e6 / rate
