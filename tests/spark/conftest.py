"""One Spark session and one Dafka cluster for all of Spark's tests."""

import os
import sys
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
from tests.spark import drivers  # noqa: E402
from tests.spark.topics import Topics  # noqa: E402


@pytest.fixture(scope="session")
def worker_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file to which Spark's Python workers log the connector's warnings."""
    return tmp_path_factory.mktemp("workers") / "log"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, worker_log: Path) -> Iterator[SparkSession]:
    """Start Spark in this process, with two task slots."""
    os.environ[jvm.WORKER_LOG] = str(worker_log)  # the JVM hands it on to its workers
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = drivers.session("local[2]", {"spark.sql.warehouse.dir": warehouse})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """Start a tower and one store."""
    with ForkedCluster() as running:
        yield running


@pytest.fixture
def topics(spark: SparkSession, cluster: EmbeddedCluster) -> Topics:
    return Topics(spark, cluster)


@pytest.fixture
def topic(dafka_topic: str) -> str:
    """Return a topic that no other test uses."""
    return dafka_topic
