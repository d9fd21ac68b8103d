"""Row 7: the memory for one large partition, written and read back through Spark.

Each measurement has new workers, so that none keeps earlier memory. A worker's whole resident
memory counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import spark_sessions
from benchmarks.bench_read import source_options
from benchmarks.bench_write import rows
from benchmarks.figures import Figure, compared, tell
from benchmarks.harness import TOPIC, Bench, empty
from benchmarks.processes import Peaks

FULL_BYTES = 5_000_000_000

LIMIT_MB = 400.0


def run(bench: Bench) -> Iterator[Figure]:
    """Measure the peaks of a worker and of the store, for writing and each way of reading."""
    for size_bytes in bench.sizes_bytes:
        records = bench.part(FULL_BYTES // size_bytes)
        with empty() as cluster:
            sink = {"tower": cluster.tower, "topic": TOPIC}
            peaks = writing(records, size_bytes, sink)
            yield figure(f"worker that writes, {size_bytes} B", peaks.worker_mb)
            yield figure(f"store that is written to, {size_bytes} B", peaks.store_private_mb)
            peaks = reading(records, source_options(cluster, fetch="flight"))
            yield figure(f"worker that reads, {size_bytes} B, flight", peaks.worker_mb)
            yield figure(f"store that is read from, {size_bytes} B, flight", peaks.store_private_mb)
            peaks = reading(records, source_options(cluster, fetch="local"))
            yield figure(f"worker that reads, {size_bytes} B, local", peaks.worker_mb)
            tell(f"{peaks.worker_private_mb:.0f} MB of the last one are private")


def writing(records: int, size_bytes: int, sink: dict[str, Any]) -> Peaks:
    """Return the peaks of writing all records in one task."""
    with spark_sessions.session() as spark, Peaks() as peaks:
        written = spark_sessions.rate(
            records, rows(spark, records, size_bytes, tasks=1), "dafka", sink
        )
    tell(f"memory, {size_bytes} B: written at {written:.4g} M rows/s")
    return peaks


def reading(records: int, source: dict[str, Any]) -> Peaks:
    """Return the peaks of reading all records in one task."""
    source = {**source, "maxRecordsPerPartition": records}
    with spark_sessions.session() as spark, Peaks() as peaks:
        read = spark_sessions.read_rate(spark, "dafka", records, source)
    tell(f"memory, {source['fetch']}: read at {read:.4g} M rows/s")
    return peaks


def figure(name: str, measured_mb: float) -> Figure:
    """Make a figure of a limit over a peak, which is measured once."""
    return compared(
        f"memory of a {name}", [measured_mb], [LIMIT_MB], unit="MB", goal=1.0,
        smaller_is_better=True,
    )  # fmt: skip
