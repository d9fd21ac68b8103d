"""One session for all tests of jobs, and a cluster with flights."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Jobs run as processes of their own, and Spark's JVM starts workers: they find the packages too.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "jobs"), *filter(None, [os.environ.get("PYTHONPATH", "")])]
)

from pyspark.sql import SparkSession  # noqa: E402

from dafka_core import EmbeddedCluster  # noqa: E402
from dafka_spark.job_support import build_session  # noqa: E402
from tests.forked import ForkedCluster  # noqa: E402
from tests.spark.jobs.programs import FLIGHTS, job  # noqa: E402


@pytest.fixture(scope="package")
def session() -> Iterator[SparkSession]:
    """Return a session as jobs have it."""
    session = build_session("tests of jobs")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    """Return a cluster with the first flights in topic ``flights``, fed in two runs."""
    with ForkedCluster() as cluster:
        for limit in (1000, FLIGHTS):
            feed = ("--resume", f"--tower={cluster.tower}", f"--limit={limit}")
            *_, done = job("demo/replay_flights.py", *feed)
            assert sum(entry["records"] for entry in done["partitions"]) == limit
        yield cluster
