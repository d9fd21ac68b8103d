"""Row 4: one micro-batch of a few rows from topic to topic, beside stubs that do nothing.

Into 1, 8 and 64 tasks, and to two stores beside one.
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
from benchmarks.figures import Figure, compared
from benchmarks.harness import Bench, filled
from benchmarks.stub_source import FORM
from dafka_core import EmbeddedCluster

LIMIT = 100  # rows in a micro-batch

TASKS = (1, 8, 64)
STUB_GOAL = 0.87

STORES_GOAL = 0.8

WARM_UP = 5
FULL_BATCHES = 20
"""Micro-batches that are not counted, and that are."""


def run(bench: Bench) -> Iterator[Figure]:
    """Each size, each number of tasks."""
    batches = bench.part(FULL_BATCHES)
    warm_up = WARM_UP * bench.warm
    with spark_sessions.session() as spark:
        for size_bytes in bench.sizes_bytes:
            name = f"one micro-batch, {size_bytes} B"
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
                trigger = partial(trigger_ms, spark)
                sides = {}
                for tasks in TASKS:
                    sink = {"tower": cluster.tower}
                    sides[f"stub {tasks}"] = partial(trigger, FORM, stub, {}, warm_up, tasks)
                    sides[f"ours {tasks}"] = partial(trigger, "dafka", ours, sink, warm_up, tasks)
                for acks in ("all", "1"):
                    sink = {"tower": two.tower, "acks": acks}
                    sides[acks] = partial(trigger, "dafka", ours, sink, warm_up)
                times = bench.in_turns(name, sides)
            for tasks in TASKS:
                label = f"{name}, {tasks} task{'s' * (tasks > 1)}"
                with_stub = times[f"stub {tasks}"]
                yield compared(label, times[f"ours {tasks}"], with_stub, "ms", STUB_GOAL)
            label = f"{name}, acks=all of two stores"
            yield compared(label, times["all"], times["1"], "ms", STORES_GOAL)


def trigger_ms(
    spark: SparkSession,
    form: str,
    source: dict[str, Any],
    sink: dict[str, Any],
    warm_up: int,
    tasks: int = 1,
) -> float:
    """Return the median time of a micro-batch after the first ``warm_up``.

    The trigger is not ``availableNow``: the query asks for new records before each batch.
    """
    frame = spark.readStream.format(form).options(**source).load().select("value")
    if tasks > 1:
        frame = frame.repartition(tasks)
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
