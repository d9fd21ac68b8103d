"""Jobs as processes, and what they have written."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core import EmbeddedCluster, Reader
from dafka_spark.job_support import batch_facts

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "jobs"

FLIGHTS = 3000

# A Spark driver starts, runs and stops in a tenth of this time.
JOB_TIMEOUT_S = 280


def run(*command: str, **settings: Any) -> list[dict[str, Any]]:
    """Run a program to its end; return the lines of JSON that it printed."""
    done = finished(*command, **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    # spark-submit puts the program's warnings among its output.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def finished(*command: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code."""
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, **settings
    )


def job(name: str, *arguments: str) -> list[dict[str, Any]]:
    return run(sys.executable, str(JOBS / name), *arguments)


def read_topic(session: SparkSession, cluster: EmbeddedCluster, topic: str) -> DataFrame:
    reader = session.read.format("dafka").option("tower", cluster.tower)
    return reader.option("subscribe", topic).load()


def values_of(records: DataFrame) -> list[bytes]:
    """The values, sorted."""
    return sorted(bytes(row.value) for row in records.select("value").collect())


def count(reader: Reader, topic: str) -> int:
    return sum(each.end for each in reader.partitions([topic], timeout_s=30))


def until_done(writer: DataStreamWriter, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a job's query to its end in this process; return the facts that it would print."""
    writer = writer.option("checkpointLocation", arguments.checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [batch_facts(each) for each in query.recentProgress if "addBatch" in each.durationMs]
