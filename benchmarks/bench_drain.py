"""Row 3: a backlog drained in micro-batches, beside the same read by one batch query.

Spark itself needs a good part of the time, to start a query and to write two files for each
micro-batch. So one figure is for the whole time, one for the micro-batches alone, and standard
error shows the floor, a stub with nothing to do.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import spark_sessions
from benchmarks.bench_read import UNIT, source_options, stub_options
from benchmarks.figures import Figure, Side, compared, tell
from benchmarks.harness import Bench
from benchmarks.stub_source import FORM
from dafka_core import EmbeddedCluster

FULL_LIMIT = 1_000_000  # rows in a micro-batch; the backlog has ten times as many
LEAST_LIMIT = 10_000  # with fewer, Spark's own work dominates

GOAL = 0.7


class Drain:
    """A query that stops at the end of the backlog; a call returns its rate.

    ``batch_rates`` collects the rates of the micro-batches, without the query's start.
    """

    def __init__(
        self, spark: SparkSession, form: str, records: int, options: dict[str, Any]
    ) -> None:
        self._spark = spark
        self._form = form
        self._records = records
        self._options = options
        self.batch_rates: list[float] = []

    def __call__(self) -> float:
        """Return millions of rows a second."""
        frame = self._spark.readStream.format(self._form).options(**self._options).load()
        with tempfile.TemporaryDirectory(prefix="dafka-bench-") as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            started = time.perf_counter()
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            elapsed_s = time.perf_counter() - started
            batches = query.recentProgress
        seen = sum(batch["numInputRows"] for batch in batches)
        if seen != self._records:
            raise RuntimeError(f"the query has read {seen} rows, not {self._records}")
        steps_ms: Counter[str] = Counter()
        for batch in batches:
            steps_ms.update(batch["durationMs"])
        parts = ", ".join(f"{step} {spent_ms}" for step, spent_ms in steps_ms.items())
        tell(f"{self._form}: {elapsed_s * 1e3:.0f} ms, of which {parts}")
        self.batch_rates.append(self._records / steps_ms["triggerExecution"] / 1e3)
        return self._records / elapsed_s / 1e6


def run(bench: Bench) -> Iterator[Figure]:
    """Measure two figures for each size."""
    with spark_sessions.session() as spark:
        for size_bytes in bench.sizes_bytes:
            with bench.backlog(size_bytes) as cluster:
                yield from compare(spark, bench, cluster, size_bytes)


def compare(
    spark: SparkSession, bench: Bench, cluster: EmbeddedCluster, size_bytes: int
) -> Iterator[Figure]:
    """Measure one size."""
    limit = bench.part(FULL_LIMIT, LEAST_LIMIT)
    batch = source_options(cluster)
    stream = {**batch, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    stub = {**stub_options(batch, bench.records, size_bytes), "limit": limit}
    drain = Drain(spark, "dafka", bench.records, stream)
    sides: dict[str, Side] = {
        "drain": drain,
        "read": partial(spark_sessions.read_rate, spark, "dafka", bench.records, batch),
        "stub": Drain(spark, FORM, bench.records, stub),
    }
    name = f"backlog drained, {size_bytes} B"
    rates = bench.in_turns(name, sides, warm_ups=1)
    read = rates["read"]
    share = statistics.median(
        mine / theirs for mine, theirs in zip(rates["stub"], read, strict=True)
    )
    tell(f"{name}: a stub source is drained at {share:.3f} of the batch query's rate")
    yield compared(name, rates["drain"], read, UNIT, GOAL)
    # The first rate is the warm-up's.
    alone = drain.batch_rates[-bench.pairs :]
    yield compared(f"{name}, micro-batches alone", alone, read, UNIT, GOAL)
