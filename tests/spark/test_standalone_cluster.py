"""Executors in processes of their own, and settings that only a new Spark can have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from tests.spark.topics import batch, produce, texts

JOB = Path(__file__).with_name("cluster_job.py")


@pytest.mark.nightly
def test_executors_in_their_own_processes(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Speculation is refused: two attempts of a task would write to one partition."""
    produce(cluster, topic, range(1000))
    arguments = ["local-cluster[2,1,1024]", cluster.tower, topic, topic + "-out", str(tmp_path)]
    # Else the child uses the JVM of the other tests' session.
    environment = {
        name: value for name, value in os.environ.items() if "PYSPARK_GATEWAY" not in name
    }
    done = subprocess.run(
        [sys.executable, str(JOB), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("SAID "))
    assert json.loads(line.removeprefix("SAID ")) == {
        "executors": 2,
        "read": 1000,
        "batches": 2,
        "speculation": True,
    }
    written = batch(spark, cluster, subscribe=topic + "-out")
    assert texts(written.collect()) == sorted(map(str, range(1000)))
    assert written.select("partition").distinct().count() == 2
