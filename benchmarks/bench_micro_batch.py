"""Row 4: one micro-batch of a few rows from topic to topic, against stubs with nothing to do.

And what delivering exactly once, and going to two stores, costs it.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import spark_sessions
from benchmarks.bench_read import source_options
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.harness import Bench, filled
from benchmarks.stub_source import FORM
from dafka_core import EmbeddedCluster
from dafka_spark.options import AT_LEAST_ONCE, DELIVERY, EXACTLY_ONCE

LIMIT = 100
"""Rows in a micro-batch."""

STUB_GOAL = 0.87
DELIVERY_GOAL = 0.9
STORES_GOAL = 0.8

BOTH_STORES = "acks=all of two stores"
ONE_STORE = "acks=1 of two stores"

WARM_UP = 5
FULL_BATCHES = 20
"""Micro-batches that are not counted, and that are."""


def run(bench: Bench) -> Iterator[Figure]:
    """Each size, both ways to deliver."""
    batches = bench.part(FULL_BATCHES)
    warm_up = WARM_UP * bench.warm
    with spark_sessions.session() as spark:
        for size_bytes in bench.sizes_bytes:
            records = LIMIT * (warm_up + batches)
            directory = bench.directory / f"triggers-{size_bytes}"
            with (
                filled(directory, records, size_bytes) as cluster,
                EmbeddedCluster(stores=2) as two,
            ):
                source = source_options(cluster)
                ours = {**source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": LIMIT}
                stub = {"rows": records, "batch": LIMIT, "limit": LIMIT, "size": size_bytes}
                stub["tasks"] = 1
                sides = {"stub": partial(trigger_ms, spark, FORM, stub, {}, warm_up)}
                for delivery in DELIVERY:
                    sink = {"tower": cluster.tower, "delivery": delivery}
                    sides[delivery] = partial(trigger_ms, spark, "dafka", ours, sink, warm_up)
                for name, acks in ((BOTH_STORES, "all"), (ONE_STORE, "1")):
                    sink = {"tower": two.tower, "acks": acks}
                    sides[name] = partial(trigger_ms, spark, "dafka", ours, sink, warm_up)
                times = in_turns(f"one micro-batch, {size_bytes} B", sides, bench.pairs)
            yield from compare(size_bytes, times)


def compare(size_bytes: int, times: dict[str, list[float]]) -> Iterator[Figure]:
    """The stub's time over ours, at-least-once's over exactly-once's, one store's over both's."""
    name = f"one micro-batch, {size_bytes} B"
    for what, ours, reference, goal in (
        *((delivery, delivery, "stub", STUB_GOAL) for delivery in DELIVERY),
        ("exactly-once beside at-least-once", EXACTLY_ONCE, AT_LEAST_ONCE, DELIVERY_GOAL),
        (BOTH_STORES, BOTH_STORES, ONE_STORE, STORES_GOAL),
    ):
        yield compared(
            f"{name}, {what}",
            times[ours],
            times[reference],
            unit="ms",
            goal=goal,
            smaller_is_better=True,
        )


def trigger_ms(
    spark: SparkSession, form: str, source: dict[str, Any], sink: dict[str, Any], warm_up: int
) -> float:
    """The median time of a micro-batch after the first ``warm_up``.

    The query is not told that it is to stop at the end: it looks for more before each batch, as
    one that runs for ever does.
    """
    frame = spark.readStream.format(form).options(**source).load().select("value")
    topic = f"sink-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="dafka-bench-") as checkpoint:
        writer = frame.writeStream.format(form).options(**sink, topic=topic)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()
            batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        finally:
            query.stop()
    if any(batch["numInputRows"] != LIMIT for batch in batches):
        raise RuntimeError(f"a micro-batch had not {LIMIT} rows")
    return float(
        statistics.median(batch["durationMs"]["triggerExecution"] for batch in batches[warm_up:])
    )
