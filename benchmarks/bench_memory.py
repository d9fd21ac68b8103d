"""Row 7: the memory for one large partition, written and read back through Spark.

Each measurement has new workers, so that none keeps earlier memory. A worker's whole resident
memory counts. Last, several workers at once, each with its share of the memory that they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import spark_sessions
from benchmarks.bench_read import source_options
from benchmarks.bench_write import rows
from benchmarks.figures import Figure, compared, limited, tell
from benchmarks.harness import TOPIC, Bench, empty
from benchmarks.processes import WORKER, Peaks, below_this_one, shared_mb

FULL_BYTES = 5_000_000_000

LIMIT_MB = 400.0

TASKS = 4
RECORDS = 400_000
TASK_WORKER = f"{WORKER}worker"


def run(bench: Bench) -> Iterator[Figure]:
    """Measure the peaks of a worker and of the store, for writing and each way of reading."""
    for size_bytes in bench.sizes_bytes:
        records = bench.part(FULL_BYTES // size_bytes)
        with empty() as cluster:
            sink = {"tower": cluster.tower, "topic": TOPIC}
            peaks = writing(records, size_bytes, sink)
            size = f"{size_bytes} B"
            yield figure(f"worker that writes, {size}", peaks.worker_mb)
            yield figure(f"store that is written to, {size}", peaks.store_private_mb)
            peaks = reading(records, source_options(cluster, fetch="flight"))
            yield figure(f"worker that reads, {size}, flight", peaks.worker_mb)
            yield figure(f"store that is read from, {size}, flight", peaks.store_private_mb)
            peaks = reading(records, source_options(cluster, fetch="local"))
            yield figure(f"worker that reads, {size}, local", peaks.worker_mb)
            tell(f"{peaks.worker_private_mb:.0f} MB of the last one are private")
    yield shared_modules()


def shared_modules() -> Figure:
    """Measure the memory of a query's workers with the connector's daemon, beside Spark's."""
    used_mb: dict[str, float] = {}
    for daemon in ("dafka_spark.daemon", "pyspark.daemon"):
        master = f"local[{TASKS}]"
        with empty() as cluster, spark_sessions.session(master=master, daemon=daemon) as spark:
            sink = {"tower": cluster.tower, "topic": TOPIC}
            spark_sessions.rate(RECORDS, rows(spark, RECORDS, 100, tasks=TASKS), "dafka", sink)
            of_tasks = [each.pid for each in below_this_one() if TASK_WORKER in each.command]
            used_mb[daemon] = sum(map(shared_mb, of_tasks))
            tell(f"memory, {daemon}: {len(of_tasks)} processes have {used_mb[daemon]:.0f} MB")
    own, spark_own = ([each] for each in used_mb.values())
    name = f"memory of {TASKS} workers and their daemon, with the connector's daemon"
    return compared(name, own, spark_own, "MB", goal=2.0)


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
    return limited(f"memory of a {name}", [measured_mb], LIMIT_MB, "MB")
