"""Spark as the rows use it: two task slots, all traffic on the loopback, quiet."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from benchmarks.stub_source import StubSource

SLOTS = 2  # tasks that run at a time

_ROOT = str(Path(__file__).parents[1])


@contextlib.contextmanager
def session(
    jars: Iterable[Path] = (),
    master: str = f"local[{SLOTS}]",
    daemon: str = "pyspark.daemon",
    host: str = "127.0.0.1",
) -> Iterator[SparkSession]:
    """Yield a session with its own JVM, Python workers and the stubs; or the shared one."""
    if (there := SparkSession.getActiveSession()) is not None:
        yield there
        return
    # Set for the JVM and its workers, which import the stubs and format "dafka".
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH", "")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spark = (
        SparkSession.builder.master(master)
        .appName("dafka benchmarks")
        .config("spark.driver.bindAddress", host)
        .config("spark.driver.host", host)
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.pyspark.python", sys.executable)
        .config("spark.python.daemon.module", daemon)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(StubSource)
        yield spark
    finally:
        spark.stop()
        _end_jvm()


def _end_jvm() -> None:
    """End Spark's JVM: it would not load the jars of a later session."""
    gateway = SparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def read_rate(spark: SparkSession, form: str, records: int, options: dict[str, Any]) -> float:
    """Return millions of rows a second of a batch query over all columns of a source."""
    frame = spark.read.format(form).options(**options).load()
    return rate(records, frame, "noop", {})


def rate(records: int, frame: DataFrame, form: str, options: dict[str, Any]) -> float:
    """Return millions of rows a second of a batch query."""
    writer = frame.write.format(form).mode("append").options(**options)
    started = time.perf_counter()
    writer.save()
    return records / (time.perf_counter() - started) / 1e6
