"""Row 13: 1 % of a topic: by time beside all of it, by `where` beside Spark's filter."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks import spark_sessions
from benchmarks.bench_read import WARM_UPS, source_options
from benchmarks.figures import Figure
from benchmarks.harness import TOPIC, Bench
from benchmarks.page_cache import kept
from dafka_core import EmbeddedCluster
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Longs, Values
from dafka_core.storage import Log
from dafka_core.storage.block import MAX_BLOCK_RECORDS
from dafka_core.storage.storage_errors import DATA_FILE

FULL_RECORDS = 30_000_000

SIZE_BYTES = 100
PARTITIONS = 2

FIRST_US = 1_735_689_600_000_000
YEAR_US = 365 * 86_400_000_000
SINCE = "2025-12-28T08:24:00Z"
"""The records' times cover the year 2025, of which the last hundredth begins then."""
BY_TIME = f"timestamp >= '{SINCE}'"
BY_VALUE = "value LIKE 'event-07%'"

TIME_GOAL = 20.0
WHERE_GOAL = 3.0


def run(bench: Bench) -> Iterator[Figure]:
    """Compare the last hundredth of the year with all of it, and one in a hundred values."""
    records = bench.part(FULL_RECORDS)
    with spark_sessions.session() as spark, year(bench.directory / "year", records) as cluster:
        read = partial(seconds, spark, cluster)
        compare = partial(bench.compare, unit="s", warm_ups=WARM_UPS)
        name = "batch read of the last 1 % by time, where"
        yield compare(name, partial(read, where=BY_TIME), read, goal=TIME_GOAL)
        for fetch in "local", "flight":
            ours = partial(read, fetch=fetch, where=BY_VALUE)
            spark_filter = partial(read, BY_VALUE, fetch=fetch)
            name = f"batch read of 1 % by value, {fetch}"
            yield compare(name, ours, spark_filter, goal=WHERE_GOAL)


def seconds(
    spark: SparkSession, cluster: EmbeddedCluster, condition: str = "", **more: str
) -> float:
    """Return the seconds of a query with a plan of its own; Spark filters by the condition."""
    frame = spark.read.format("dafka").options(**source_options(cluster, **more)).load()
    if condition:
        frame = frame.where(condition)
    started = time.perf_counter()
    frame.write.format("noop").mode("append").save()
    return time.perf_counter() - started


@contextlib.contextmanager
def year(directory: Path, records: int) -> Iterator[EmbeddedCluster]:
    """Yield a cluster whose store has a year of records."""
    store = directory / "store-0"
    with Log(store) as log:
        for number in range(PARTITIONS):
            tp = TopicPartition(TOPIC, f"{number:032X}")
            count = records // PARTITIONS
            for start in range(0, count, MAX_BLOCK_RECORDS):
                rows = min(MAX_BLOCK_RECORDS, count - start)
                batch = RecordBatch(tp, start, values(rows), times=times(start, rows, count))
                log.append([batch])
    with EmbeddedCluster(directory=directory) as cluster, kept(store / DATA_FILE):
        yield cluster


def values(rows: int) -> Values:
    """Return records of a hundred kinds, equally many of each."""
    kinds = np.frombuffer(b"".join(b"event-%02d " % kind for kind in range(100)), np.uint8)
    data = np.random.default_rng(rows).integers(97, 123, (rows, SIZE_BYTES), np.uint8)
    data[:, :9] = kinds.reshape(100, 9)[np.arange(rows) % 100]
    return Values.from_columns(np.arange(0, data.size + 1, SIZE_BYTES), data.tobytes())


def times(start: int, rows: int, count: int) -> Longs:
    """Return their times: a few hundred records at once."""
    at = np.arange(start, start + rows, 100)
    counts = np.diff(at, append=start + rows)
    return np.column_stack((counts, FIRST_US + at * (YEAR_US // count)))
