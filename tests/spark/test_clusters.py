"""Executors in processes of their own, and settings that only a new Spark can have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.spark.topics import batch, produce

JOB = Path(__file__).with_name("cluster_job.py")


def submit(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the job; the session of the other tests keeps its own Spark."""
    command = [sys.executable, str(JOB), *map(str, arguments)]
    environment = {
        name: value for name, value in os.environ.items() if "PYSPARK_GATEWAY" not in name
    }
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env=environment
    )


def test_executors_in_their_own_processes(spark, cluster, topic, tmp_path):
    produce(cluster, topic, range(1000))
    done = submit(
        "local-cluster[2,1,1024]", "false", cluster.tower, topic, topic + "-out", tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("SAID "))
    assert json.loads(line.removeprefix("SAID ")) == {
        "executors": 2,
        "read": 1000,
        "batches": 2,
        "written": sorted(map(str, range(1000))),
        "partitions": 2,
    }


def test_speculation_is_refused(spark, cluster, topic, tmp_path):
    """Both attempts of a task would be one producer's address; acknowledged rows could be lost."""
    produce(cluster, topic, range(3))
    done = submit("local[2]", "true", cluster.tower, topic, topic + "-out", tmp_path)
    assert done.returncode != 0
    assert "cannot write with speculative tasks; set it false" in done.stderr
    assert batch(spark, cluster, subscribe=topic + "-out").count() == 0
