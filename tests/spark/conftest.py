"""One Spark session and one Dafka cluster for all of Spark's tests."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark import jvm

# Set before Spark's JVM starts: Spark looks up sources by name with this Python and ignores
# spark.pyspark.python.
os.environ["PYSPARK_PYTHON"] = sys.executable
_ROOT = str(Path(__file__).parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join(
    [jvm.PYTHON_STARTUP, _ROOT, *filter(None, [os.environ.get("PYTHONPATH", "")])]
)
os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm.options())

from pyspark.sql import SparkSession  # noqa: E402

from dafka_core import EmbeddedCluster  # noqa: E402
from tests.forked import ForkedCluster  # noqa: E402


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark in this process, with two task slots."""
    session = (
        SparkSession.builder.master("local[2]")
        .appName("dafka tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.python.daemon.module", "tests.spark.daemon")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """Start a tower and one store."""
    with ForkedCluster() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"
