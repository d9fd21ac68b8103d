"""Jobs are programs: their directory is on the path as it is when one of them runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "jobs"))

# Jobs run as processes of their own, and Spark's JVM starts workers: they find the packages too.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
)

from job_session import build_session  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402


@pytest.fixture(scope="package")
def session() -> Iterator[SparkSession]:
    """The session a job has, in this process."""
    session = build_session("tests of jobs")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
