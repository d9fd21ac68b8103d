"""Row 1: a batch query reads a store, beside one that reads precomputed batches.

Further references are a Flight server that only sends batches, one that also copies and hashes them
as a store must, a file that is mapped, and one that is copied and hashed as by our reader: the
floors of Flight, and of reading the log's file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import bare_flight_server, spark_sessions
from benchmarks.figures import Figure, compared
from benchmarks.harness import TOPIC, Bench
from benchmarks.stub_source import FORM
from dafka_core import EmbeddedCluster
from dafka_core.storage.storage_errors import DATA_FILE
from dafka_spark import DafkaDataSource

GOALS = {"flight": 0.8, "local": 0.9}  # by value of option ``fetch``
WARM_UPS = 3  # the JVM compiles during the first turns, whose sides would pay for it

UNIT = "M rows/s"

Sources = dict[str, dict[str, Any]]  # options of sources of one format, by side


def run(bench: Bench) -> Iterator[Figure]:
    """Measure both ways to fetch beside the reference."""
    with spark_sessions.session() as spark:
        for size_bytes in bench.sizes_bytes:
            with bench.backlog(size_bytes) as cluster:
                yield from compare(spark, bench, cluster, size_bytes)


def compare(
    spark: SparkSession, bench: Bench, cluster: EmbeddedCluster, size_bytes: int
) -> Iterator[Figure]:
    """Measure one size, with few sides at a time.

    Spark ends Python workers that are idle for a minute, and then a side's turn would start with
    new ones.
    """
    for fetch, goal in GOALS.items():
        options = source_options(cluster, fetch=fetch)
        stub = stub_options(options, bench.records, size_bytes)
        yield from beside(spark, bench, stub, "dafka", {fetch: options}, goal)
        with bare(fetch, bench, cluster, stub) as sources:
            yield from beside(spark, bench, stub, FORM, sources, goal)


def beside(
    spark: SparkSession,
    bench: Bench,
    stub: dict[str, Any],
    form: str,
    sources: Sources,
    goal: float,
) -> Iterator[Figure]:
    """Measure sources of a format in turns with the stub."""
    name = f"batch read, {stub['size']} B"
    reference = f"batches of {stub['batch']} rows"
    read = partial(spark_sessions.read_rate, spark)
    sides = {side: partial(read, form, bench.records, options) for side, options in sources.items()}
    sides[reference] = partial(read, FORM, bench.records, stub)
    rates = bench.in_turns(name, sides, warm_ups=WARM_UPS)
    for side in sources:
        yield compared(f"{name}, {side}", rates[side], rates[reference], UNIT, goal)


@contextlib.contextmanager
def bare(
    fetch: str, bench: Bench, cluster: EmbeddedCluster, stub: dict[str, Any]
) -> Iterator[Sources]:
    """Yield sources without a store: the floors.

    They return the stub's rows by the means that option ``fetch`` names.
    """
    if fetch == "local":
        read = {**stub, "file": cluster.store_directory() / DATA_FILE}
        copied = {**read, "copied": True}
        yield {"bare mapped file": read, "bare file that is copied and checked": copied}
        return
    with bare_flight_server.serving(bench.directory, stub["batch"], stub["size"]) as location:
        served = {**stub, "location": location}
        checked = {**served, "checked": True}
        yield {"bare Flight server": served, "bare Flight server that copies and checks": checked}


def source_options(cluster: EmbeddedCluster, **more: Any) -> dict[str, Any]:
    """Return the options of a query that reads the backlog."""
    return {"tower": cluster.tower, "subscribe": TOPIC, **more}


def stub_options(options: dict[str, Any], records: int, size_bytes: int) -> dict[str, Any]:
    """Return the options of a query that reads as many rows of the stub, in similar batches.

    It has a task for each slot. Ours may have more; they are part of our time.
    """
    rows = batch_rows(options)
    return {"rows": records, "batch": rows, "size": size_bytes, "tasks": spark_sessions.SLOTS}


def batch_rows(options: dict[str, Any]) -> int:
    """Return the rows in a batch of our source."""
    source = DafkaDataSource({name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    return int(next(reader.read(reader.partitions()[0])).num_rows)
