"""A client of Spark Connect, without a JVM, reads and writes as any session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from dafka_core import EmbeddedCluster
from tests.spark.topics import produce

JOB = Path(__file__).with_name("connect_job.py")
COUNT = 100


def environment() -> dict[str, str]:
    """Return variables for a server at a port that the system chooses."""
    return {**os.environ, "SPARK_TESTING": "1"}


def test_a_client_reads_and_writes_batches_and_streams(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(COUNT))
    done = subprocess.run(
        [sys.executable, str(JOB), cluster.tower, topic, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["client"] == "pyspark.sql.connect.session"
    assert found["counts"] == dict.fromkeys(("batch", "stream", "each"), COUNT)
    assert "did you mean 'subscribe'?" in found["refusal"]
