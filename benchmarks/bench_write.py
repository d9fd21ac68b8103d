"""Row 2: a batch query writes synced and acknowledged records, beside the floor.

That is the slower of two: the same query into a Python writer that only counts, and the same bytes
written to a plain file and synced.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import spark_sessions
from benchmarks.figures import Figure, compared, slower
from benchmarks.harness import TOPIC, Bench, empty
from benchmarks.stub_source import FORM

FULL_RECORDS = 5_000_000

NUMBER_BYTES = 20  # each value begins with its row's number
BUFFER_BYTES = 8 << 20  # bytes written to the plain file at a time

REST_S = 6
"""Memory touched before each measurement at full size, so that each finds memory as on a machine at
rest.

A virtual machine may return free memory to its host after two seconds (free page reporting), and
faults it in anew: a file of 500 MB took 1.6 s then, but 0.35 s in the pages of a file that was
deleted just before.
"""


def run(bench: Bench) -> Iterator[Figure]:
    """Measure each size beside its references."""
    records = bench.part(FULL_RECORDS)
    with spark_sessions.session() as spark:
        for size_bytes in bench.sizes_bytes:
            frame = rows(spark, records, size_bytes, tasks=spark_sessions.SLOTS)
            sides = {
                "dafka": partial(write_rate, frame, records),
                "counting": partial(spark_sessions.rate, records, frame, FORM, {}),
                "file": partial(file_rate, records, size_bytes),
            }
            name = f"batch write, acknowledged, {size_bytes} B"
            rest_s = bench.part(REST_S, least=0)
            rates = bench.in_turns(name, sides, warm_ups=1, rest_s=rest_s)
            reference = slower(rates["counting"], rates["file"])
            yield compared(name, rates["dafka"], reference, "M rows/s", goal=0.5)


def rows(spark: SparkSession, records: int, size_bytes: int, *, tasks: int) -> DataFrame:
    """Return rows that differ and are cheap for Spark to make.

    Spark pads strings byte by byte, which would cost more than everything else.
    """
    rest = size_bytes - NUMBER_BYTES
    value = f"concat(lpad(string(id), {NUMBER_BYTES}, '0'), repeat('0', {rest}))"
    return spark.range(0, records, 1, tasks).selectExpr(f"cast({value} AS binary) AS value")


def write_rate(frame: DataFrame, records: int) -> float:
    """Return millions of rows a second into a new store."""
    with empty() as cluster:
        return spark_sessions.rate(
            records, frame, "dafka", {"tower": cluster.tower, "topic": TOPIC}
        )


def file_rate(records: int, size_bytes: int) -> float:
    """Return millions of records a second that the disk takes, as a plain file synced once."""
    buffer = os.urandom(BUFFER_BYTES)
    left = records * size_bytes
    with tempfile.TemporaryDirectory(prefix="dafka-bench-") as directory:
        started = time.perf_counter()
        with (Path(directory) / "file").open("wb", buffering=0) as file:
            while left > 0:
                left -= file.write(buffer[:left] if left < BUFFER_BYTES else buffer)
            os.fsync(file.fileno())
        elapsed_s = time.perf_counter() - started
    os.sync()
    return records / elapsed_s / 1e6
