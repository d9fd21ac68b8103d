"""Row 25: what keys cost: everything encrypted, proved and asked for, beside the same in the open.

The mesh by CURVE, Arrow Flight by TLS, and what should cost nothing: records read from the log's
file on the same machine, and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import bench_ingest, spark_sessions
from benchmarks.bench_micro_batch import FULL_BATCHES, LIMIT, WARM_UP, trigger_ms
from benchmarks.bench_read import UNIT as ROWS
from benchmarks.bench_read import WARM_UPS, source_options
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.harness import Bench, filled
from benchmarks.mesh import UNIT, full_records
from dafka_core import EmbeddedCluster

CURVE_GOAL = 0.6
TLS_GOAL = 0.6
SAME_GOAL = 0.95

KEYS, OPEN = "with keys", "in the open"


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
        whole = f"{name} with keys, {size_bytes} B"
        sides = {each: partial(side, count, size_bytes, keys=each == KEYS) for each in (KEYS, OPEN)}
        rates = in_turns(whole, sides, bench.pairs)
        yield compared(whole, rates[KEYS], rates[OPEN], unit=UNIT, goal=CURVE_GOAL)


def reads(spark: SparkSession, bench: Bench, size_bytes: int) -> Iterator[Figure]:
    """A batch query, both ways to fetch."""
    both = {each: bench.directory / f"{each}-{size_bytes}" for each in (KEYS, OPEN)}
    whole = partial(filled, records=bench.records, size_bytes=size_bytes, partitions=2)
    with whole(both[KEYS], keys=True) as locked, whole(both[OPEN]) as in_the_open:
        for fetch, goal in (("flight", TLS_GOAL), ("local", SAME_GOAL)):
            name = f"batch read with keys, {size_bytes} B, {fetch}"
            sides = {
                each: partial(
                    spark_sessions.read_rate,
                    spark,
                    "dafka",
                    bench.records,
                    source_options(cluster, fetch=fetch, **key_of(cluster)),
                )
                for each, cluster in ((KEYS, locked), (OPEN, in_the_open))
            }
            rates = in_turns(name, sides, bench.pairs, warm_ups=WARM_UPS * bench.warm)
            yield compared(name, rates[KEYS], rates[OPEN], unit=ROWS, goal=goal)


def micro_batches(spark: SparkSession, bench: Bench, size_bytes: int) -> Iterator[Figure]:
    """One micro-batch from topic to topic, each exactly once."""
    warm_up = WARM_UP * bench.warm
    records = LIMIT * (warm_up + bench.part(FULL_BATCHES))
    both = {each: bench.directory / f"{each}-batches-{size_bytes}" for each in (KEYS, OPEN)}
    whole = partial(filled, records=records, size_bytes=size_bytes)
    with whole(both[KEYS], keys=True) as locked, whole(both[OPEN]) as in_the_open:
        sides = {}
        for each, cluster in ((KEYS, locked), (OPEN, in_the_open)):
            source = source_options(cluster, **key_of(cluster))
            source |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": LIMIT}
            sink = {"tower": cluster.tower, **key_of(cluster)}
            sides[each] = partial(trigger_ms, spark, "dafka", source, sink, warm_up)
        name = f"one micro-batch with keys, {size_bytes} B"
        times = in_turns(name, sides, bench.pairs)
    yield compared(
        name, times[KEYS], times[OPEN], unit="ms", goal=SAME_GOAL, smaller_is_better=True
    )


def key_of(cluster: EmbeddedCluster) -> dict[str, Any]:
    """Options of a query that has a key where the cluster asks for one."""
    return {f"dafka.{name}": value for name, value in cluster.key().items()}
