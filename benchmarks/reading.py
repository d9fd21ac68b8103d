"""Row 1: a batch query reads a store, against one that reads batches which are there already.

Beside them, a Flight server with nothing to do but to send batches, one that copies and checks them
as a store must, and a file that is mapped and checked: what Flight costs, and reading in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import flights, mapped, sparks
from benchmarks.bench import TOPIC, Bench
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.stubs import FORM
from dafka_core import EmbeddedCluster
from dafka_core.storage.failures import DATA_FILE
from dafka_spark import DafkaDataSource

GOALS = {"flight": 0.8, "local": 0.9}
"""By value of option ``fetch``."""

BARE = {
    "bare Flight server": "flight",
    "bare Flight server that copies and checks": "flight",
    "bare mapped file": "local",
}
"""No stores, so not ours: whether the goals can be reached at all.  With the value of ``fetch``."""

UNIT = "M rows/s"


def run(bench: Bench) -> Iterator[Figure]:
    """Both ways to fetch beside the reference."""
    with sparks.session() as spark:
        for size_bytes in bench.sizes_bytes:
            with bench.backlog(size_bytes) as cluster:
                yield from compare(spark, bench, cluster, size_bytes)


def compare(
    spark: SparkSession, bench: Bench, cluster: EmbeddedCluster, size_bytes: int
) -> Iterator[Figure]:
    """Figures of one size."""
    sides, references, stubs = {}, {}, {}
    for fetch in GOALS:
        options = source_options(cluster, fetch=fetch)
        sides[fetch] = partial(sparks.read_rate, spark, "dafka", bench.records, options)
        stub = stubs[fetch] = stub_options(options, bench.records, size_bytes)
        references[fetch] = reference = f"batches of {stub['batch']} rows"
        sides[reference] = partial(sparks.read_rate, spark, FORM, bench.records, stub)
    name = f"batch read, {size_bytes} B"
    batch = stubs["flight"]["batch"]
    with flights.serving(bench.directory, batch, size_bytes) as location:
        served = {**stubs["flight"], "location": location}
        forms: list[tuple[str, dict[str, Any]]] = [
            (flights.FORM, served),
            (flights.FORM, {**served, "checked": True}),
            (mapped.FORM, {**stubs["local"], "file": data_file(cluster)}),
        ]
        for side, (form, options) in zip(BARE, forms, strict=True):
            sides[side] = partial(sparks.read_rate, spark, form, bench.records, options)
        rates = in_turns(name, sides, bench.pairs, warm_up=True)
    for fetch, goal in GOALS.items():
        theirs = rates[references[fetch]]
        for side in (fetch, *(bare for bare, of in BARE.items() if of == fetch)):
            yield compared(f"{name}, {side}", rates[side], theirs, unit=UNIT, goal=goal)


def data_file(cluster: EmbeddedCluster) -> str:
    """Where the store has its records."""
    return str(cluster.store_directory() / DATA_FILE)


def source_options(cluster: EmbeddedCluster, **more: Any) -> dict[str, Any]:
    """Options of a query that reads the backlog."""
    return {"tower": cluster.tower, "subscribe": TOPIC, **more}


def stub_options(options: dict[str, Any], records: int, size_bytes: int) -> dict[str, Any]:
    """Options of a query that reads as many rows of the stub, in batches like ours.

    It has a task for each slot.  Ours may have more; what they cost is part of our time.
    """
    rows = batch_rows(options)
    return {"rows": records, "batch": rows, "size": size_bytes, "tasks": sparks.SLOTS}


def batch_rows(options: dict[str, Any]) -> int:
    """How many rows our source has in a batch."""
    source = DafkaDataSource({name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    return int(next(reader.read(reader.partitions()[0])).num_rows)
