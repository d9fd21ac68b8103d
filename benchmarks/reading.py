"""Row 1: a batch query reads a store, against one that reads batches which are there already."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import sparks
from benchmarks.bench import SIZES_BYTES, TOPIC, Bench
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.stubs import FORM
from dafka_core import EmbeddedCluster
from dafka_spark import DafkaDataSource
from dafka_spark.options import SourceOptions

GOALS = {"flight": 0.8, "local": 0.9}
"""By value of option ``fetch``."""

UNIT = "M rows/s"


def run(bench: Bench) -> Iterator[Figure]:
    """Both ways to fetch beside the reference."""
    with sparks.session() as spark:
        for size_bytes in SIZES_BYTES:
            with bench.backlog(size_bytes) as cluster:
                yield from compare(spark, bench, cluster, size_bytes)


def compare(
    spark: SparkSession, bench: Bench, cluster: EmbeddedCluster, size_bytes: int
) -> Iterator[Figure]:
    """Figures of one size."""
    sides, references = {}, {}
    for fetch in GOALS:
        options = source_options(cluster, fetch=fetch)
        sides[fetch] = partial(sparks.read_rate, spark, "dafka", bench.records, options)
        stub = stub_options(options, bench.records, size_bytes)
        references[fetch] = reference = f"batches of {stub['batch']} rows"
        sides[reference] = partial(sparks.read_rate, spark, FORM, bench.records, stub)
    name = f"batch read, {size_bytes} B"
    rates = in_turns(name, sides, bench.pairs, warm_up=True)
    for fetch, goal in GOALS.items():
        theirs = rates[references[fetch]]
        yield compared(f"{name}, {fetch}", rates[fetch], theirs, unit=UNIT, goal=goal)


def source_options(cluster: EmbeddedCluster, **more: Any) -> dict[str, Any]:
    """Options of a query that reads the backlog."""
    known = {row.name for row in SourceOptions.table()}
    more = {name: value for name, value in more.items() if name in known}
    return {"tower": cluster.tower, "subscribe": TOPIC, **more}


def stub_options(options: dict[str, Any], records: int, size_bytes: int) -> dict[str, Any]:
    """Options of a query that reads as many rows of the stub, in batches and tasks like ours."""
    batch, tasks = shape(options)
    return {"rows": records, "batch": batch, "size": size_bytes, "tasks": tasks}


def shape(options: dict[str, Any]) -> tuple[int, int]:
    """How many rows our source has in a batch, and how many tasks it asks for."""
    source = DafkaDataSource({name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    batches = reader.read(partitions[0])
    return next(batches).num_rows, len(partitions)
