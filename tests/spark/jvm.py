"""The JVMs of Spark in tests: they live for seconds or minutes, and most of that is their start.

``python -m tests.spark.jvm`` makes an archive of Spark's classes as a JVM has them in memory when
it has run a few queries (Java's class data sharing).  A JVM that finds it loads, checks and links
none of them by itself, which is half of what it does until its first query is done.  ``make test``
makes it once; without it, or with that of another Java, everything works and takes longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Compiling well and collecting in parallel is not worth it."""

# Java says on standard output when an archive does not fit, where some programs print results.
SHARED = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable", "-Xlog:all=error:stderr")

QUERIES_ONCE = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)
"""Queries that run once: to compile them costs more than it gives."""

_PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"

CHECKPOINTS = (
    "-Dspark.sql.streaming.checkpointFileManagerClass="
    f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
)
"""Spark's default one starts some sixty processes (``stat``, ``chmod``) for each micro-batch."""

LOCAL_SOCKETS = "-Dspark.python.unix.domain.socket.enabled=true"
"""Spark takes the first connection to a port of its own for the Python it has started.  A node that
still tries a peer that has ended, whose port Spark was given by the system, would be taken for it.
"""

PYTHON_STARTUP = str(Path(__file__).with_name("startup"))
"""On ``PYTHONPATH``, it has the Pythons that a JVM starts begin sooner."""


def start_options() -> tuple[str, ...]:
    """How a JVM starts, in any test."""
    return (*SHORT_LIVED, *(SHARED if ARCHIVE.exists() else ()))


def options() -> str:
    """What ``SPARK_SUBMIT_OPTS`` says to the JVMs of Spark's own tests."""
    return " ".join((*start_options(), *QUERIES_ONCE, CHECKPOINTS, LOCAL_SOCKETS))


def make_archive() -> None:
    """Has spark-submit run this file, in a JVM that writes its classes down as it ends."""
    import pyspark  # not at the top: who only needs the options need not wait for it

    made = ARCHIVE.with_suffix(".new")
    java = (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable", *QUERIES_ONCE)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": " ".join((*java, CHECKPOINTS)),
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master=local[2]", "--conf=spark.ui.enabled=false", __file__],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode or not made.exists():
        print(f"no archive of Spark's classes, tests will take longer: {done.stderr[-2000:]}")
    else:
        made.replace(ARCHIVE)


def run_queries() -> None:
    """A bit of all that the tests' queries do."""
    from pyspark.sql import SparkSession

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    with tempfile.TemporaryDirectory() as directory:
        spark = SparkSession.builder.getOrCreate()
        frame = spark.range(100).selectExpr("id % 7 AS key", "cast(id AS string) AS value")
        frame.groupBy("key").count().orderBy("key").collect()
        frame.mapInArrow(same, frame.schema).write.parquet(f"{directory}/rows")
        spark.read.parquet(f"{directory}/rows").toArrow()
        stream = spark.readStream.schema(frame.schema).parquet(f"{directory}/rows")
        query = (
            stream.groupBy("key")
            .count()
            .writeStream.outputMode("complete")
            .foreachBatch(lambda rows, _: print(rows.collect()))
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    (run_queries if "PYSPARK_GATEWAY_PORT" in os.environ else make_archive)()
