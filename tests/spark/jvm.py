"""Options that make the JVMs of Spark start faster in tests.

``python -m tests.spark.jvm`` runs a few queries and archives the loaded classes of Spark (Java's
class data sharing).  Loading, verifying and linking classes is half of the time until a JVM has run
its first query; a JVM with the archive skips it.  ``make test`` makes the archive once.  Without
one, or with that of another Java version, tests only take longer.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A short-lived JVM gains nothing from optimised code and parallel collection."""

# Java warns about an unsuitable archive on standard output, where some programs print results.
SHARED = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable", "-Xlog:all=error:stderr")

QUERIES_ONCE = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)
"""For a query that runs once, code generation costs more than it saves."""

_PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"

CHECKPOINTS = (
    "-Dspark.sql.streaming.checkpointFileManagerClass="
    f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
)
"""Spark's default manager starts about 60 processes (``stat``, ``chmod``) per micro-batch."""

LOCAL_SOCKETS = "-Dspark.python.unix.domain.socket.enabled=true"
"""Spark accepts the first connection to its port as that of the Python worker it started.  A node
that retries a peer which has ended may reach that port first.
"""

WORKER_LOG = "DAFKA_TEST_WORKER_LOG"
"""The variable with the file to which Python workers log (``daemon.py``)."""

PYTHON_STARTUP = str(Path(__file__).with_name("startup"))
"""Added to ``PYTHONPATH``, it makes the Python processes of a JVM start faster."""


def start_options() -> tuple[str, ...]:
    """Return the options of a JVM in any test."""
    return (*SHORT_LIVED, *(SHARED if ARCHIVE.exists() else ()))


def options() -> str:
    """Return ``SPARK_SUBMIT_OPTS`` for the tests in this directory."""
    return " ".join((*start_options(), *QUERIES_ONCE, CHECKPOINTS, LOCAL_SOCKETS))


def make_archive() -> None:
    """Run this file by spark-submit, in a JVM that archives its classes when it ends."""
    import pyspark  # here, because callers of options() do not need it

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
    """Run a sample of the queries that tests run."""
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
