"""One ``load()`` and several queries: Spark executes one plan, and a warning is logged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from dafka_core import EmbeddedCluster
from tests.spark.reuse_job import PARTS
from tests.spark.topics import produce

JOB = Path(__file__).with_name("reuse_job.py")


def test_a_plan_that_later_queries_execute_is_reported_once(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    for part in PARTS:
        produce(cluster, f"{topic}-{part}", range(8))
    done = subprocess.run(
        [sys.executable, str(JOB), cluster.tower, topic],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "actions": [8, 8, 8, 8],
        "collected": [8, 8],
        "views": [8, 8, 10],
        "metadata": [8, 8],
        "joined": [8, 8],
        "tables": [8, 9, 10],
        "loaded_anew": [8, 9, 10, 11],
    }
    warned = rf"dafka: {topic}-(\w+) at \S+: this query reads .*call load\(\) again"
    assert Counter(re.findall(warned, done.stderr)) == dict.fromkeys(
        ("actions", "collected", "views", "metadata", "joined"), 1
    )
