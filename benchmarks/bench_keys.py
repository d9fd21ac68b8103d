"""Row 25: what keys cost: everything encrypted, proved and asked for, beside the same in the open.

The mesh by CURVE, Arrow Flight by TLS, and what should cost nothing: records read from the log's
file on the same machine, and micro-batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import bench_ingest, spark_sessions
from benchmarks.bench_micro_batch import FULL_BATCHES, LIMIT, WARM_UP, trigger_ms
from benchmarks.bench_read import UNIT as ROWS
from benchmarks.bench_read import WARM_UPS, source_options
from benchmarks.figures import Figure
from benchmarks.harness import Bench, filled
from benchmarks.mesh import UNIT, full_records
from dafka_core import EmbeddedCluster

CURVE_GOAL = 0.6
TLS_GOAL = 0.6
SAME_GOAL = 0.95


def run(bench: Bench) -> Iterator[Figure]:
    """Each size."""
    for size_bytes in bench.sizes_bytes:
        yield from mesh(bench, size_bytes)
    with spark_sessions.session() as spark:
        for size_bytes in bench.sizes_bytes:
            yield from reads(spark, bench, size_bytes)
            yield from micro_batches(spark, bench, size_bytes)


def mesh(bench: Bench, size_bytes: int) -> Iterator[Figure]:
    """Ingest and live delivery."""
    count = bench.part(full_records(size_bytes))
    for name, side in (("ingest", bench_ingest.ingest), ("live delivery", bench_ingest.live)):
        locked, in_the_open = (
            partial(side, count, size_bytes, keys=keys) for keys in (True, False)
        )
        whole = f"{name} with keys, {size_bytes} B"
        yield bench.compare(whole, locked, in_the_open, UNIT, CURVE_GOAL)


def reads(spark: SparkSession, bench: Bench, size_bytes: int) -> Iterator[Figure]:
    """A batch query, both ways to fetch."""
    with both(bench, "reads", bench.records, size_bytes, partitions=2) as clusters:
        for fetch, goal in (("flight", TLS_GOAL), ("local", SAME_GOAL)):
            options = [source_options(each, fetch=fetch, **key_of(each)) for each in clusters]
            locked, in_the_open = (
                partial(spark_sessions.read_rate, spark, "dafka", bench.records, each)
                for each in options
            )
            name = f"batch read with keys, {size_bytes} B, {fetch}"
            yield bench.compare(name, locked, in_the_open, ROWS, goal, warm_ups=WARM_UPS)


def micro_batches(spark: SparkSession, bench: Bench, size_bytes: int) -> Iterator[Figure]:
    """One micro-batch from topic to topic, each exactly once."""
    warm_up = WARM_UP * bench.warm
    records = LIMIT * (warm_up + bench.part(FULL_BATCHES))
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": LIMIT}
    with both(bench, "batches", records, size_bytes) as clusters:
        locked, in_the_open = (
            partial(
                trigger_ms,
                spark,
                "dafka",
                source_options(each, **limit, **key_of(each)),
                {"tower": each.tower, **key_of(each)},
                warm_up,
            )
            for each in clusters
        )
        name = f"one micro-batch with keys, {size_bytes} B"
        yield bench.compare(name, locked, in_the_open, "ms", SAME_GOAL)


@contextlib.contextmanager
def both(
    bench: Bench, name: str, records: int, size_bytes: int, partitions: int = 1
) -> Iterator[tuple[EmbeddedCluster, EmbeddedCluster]]:
    """Yield two clusters with the same records: one with keys, and one in the open."""
    place = bench.directory / f"{name}-{size_bytes}"
    whole = partial(filled, records=records, size_bytes=size_bytes, partitions=partitions)
    with whole(place / "locked", keys=True) as locked, whole(place / "open") as in_the_open:
        yield locked, in_the_open


def key_of(cluster: EmbeddedCluster) -> dict[str, Any]:
    """Options of a query that has a key where the cluster asks for one."""
    return {f"dafka.{name}": value for name, value in cluster.key().items()}
