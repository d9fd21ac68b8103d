"""The Python of Spark's workers without an activated environment."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dafka_core import EmbeddedCluster
from tests.spark import jvm
from tests.spark.topics import produce

ROOT = Path(__file__).parents[2]

SESSION = """
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """An environment in which the first Python on the path has no packages."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "SPARK_SUBMIT_OPTS": jvm.options(),
    }
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    return environment


def run(environment: dict[str, str], *parts: str) -> subprocess.CompletedProcess[str]:
    program = "".join(textwrap.dedent(part) for part in parts)
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment
    )


def test_an_import_before_the_session_is_enough(
    elsewhere: dict[str, str], cluster: EmbeddedCluster, topic: str
) -> None:
    produce(cluster, topic, range(3))
    options = {"tower": cluster.tower, "subscribe": topic}
    count = f"print(spark.read.format('dafka').options(**{options}).load().count())"
    done = run(elsewhere, "import dafka_spark\n", SESSION, count)
    assert done.stdout.strip() == "3", done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_an_import_after_the_session_says_that_it_is_too_late(elsewhere: dict[str, str]) -> None:
    done = run(elsewhere, SESSION, "import dafka_spark")
    [said] = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert "Spark runs Python as 'python3', which lacks zmq, pyarrow, lmdb" in said
    assert f"set PYSPARK_PYTHON to {sys.executable!r}" in said


@pytest.mark.parametrize(
    ("chosen", "why"),
    [("python3", "which lacks zmq, pyarrow, lmdb"), ("python-4", "which does not exist")],
)
def test_another_python_that_somebody_chose(
    elsewhere: dict[str, str], chosen: str, why: str
) -> None:
    environment = {**elsewhere, "PYSPARK_PYTHON": chosen}
    done = run(environment, "import dafka_spark, os; print(os.environ['PYSPARK_PYTHON'])")
    assert done.stdout.strip() == chosen
    assert f"Spark runs Python as {chosen!r}, {why}: format 'dafka' does not work" in done.stderr


def test_nothing_is_said_of_this_python(elsewhere: dict[str, str]) -> None:
    environment = {**elsewhere, "PYSPARK_PYTHON": str(Path(sys.executable).with_name("python"))}
    assert run(environment, "import dafka_spark").stderr == ""
