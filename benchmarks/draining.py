"""Row 3: a backlog drained in micro-batches, against the same read by one batch query."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from benchmarks import sparks
from benchmarks.bench import Bench
from benchmarks.figures import Figure, compared, in_turns, tell
from benchmarks.reading import UNIT, source_options, stub_options
from benchmarks.stubs import FORM

FULL_LIMIT = 1_000_000
"""Rows in a micro-batch; ten of them are the backlog."""


def run(bench: Bench) -> Iterator[Figure]:
    """Each size; beside it, on standard error, how fast Spark drains a stub."""
    limit = bench.part(FULL_LIMIT)
    with sparks.session() as spark:
        for size_bytes in bench.sizes_bytes:
            with bench.backlog(size_bytes) as cluster:
                batch = source_options(cluster)
                stream = {**batch, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
                stub = {**stub_options(batch, bench.records, size_bytes), "limit": limit}
                records = bench.records
                sides = {
                    "drain": partial(drain_rate, spark, "dafka", records, stream),
                    "read": partial(sparks.read_rate, spark, "dafka", records, batch),
                    "stub": partial(drain_rate, spark, FORM, records, stub),
                }
                name = f"backlog drained, {size_bytes} B"
                rates = in_turns(name, sides, bench.pairs, warm_up=True)
            share = statistics.median(
                stub / read for stub, read in zip(rates["stub"], rates["read"], strict=True)
            )
            tell(f"{name}: a stub source is drained at {share:.3f} of the batch query's rate")
            yield compared(name, rates["drain"], rates["read"], unit=UNIT, goal=0.7)


def drain_rate(spark: SparkSession, form: str, records: int, options: dict[str, Any]) -> float:
    """Millions of rows a second of a query that stops when it has read all there is."""
    frame = spark.readStream.format(form).options(**options).load()
    with tempfile.TemporaryDirectory(prefix="dafka-bench-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        started = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        elapsed_s = time.perf_counter() - started
        batches = query.recentProgress
    seen = sum(batch["numInputRows"] for batch in batches)
    if seen != records:
        raise RuntimeError(f"the query has read {seen} rows, not {records}")
    tell(f"{form}: {elapsed_s:.2f} s, {_parts(batches)}")
    return records / elapsed_s / 1e6


def _parts(batches: list[StreamingQueryProgress]) -> str:
    """How long the steps of all micro-batches took; what they leave out is the query's start."""
    steps: Counter[str] = Counter()
    for batch in batches:
        steps.update(batch["durationMs"])
    return ", ".join(f"{step} {duration_ms / 1000:.2f}" for step, duration_ms in steps.items())
