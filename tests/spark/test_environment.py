"""Variables of the environment in a driver: the workers' Python and the cluster."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dafka_spark.python_workers import use_this_python
from tests.spark import drivers, jvm
from tests.spark.topics import Topics

SESSION = """
    import multiprocessing, os, sys
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
"""

READ = """
    from dafka_core import Reader
    with Reader():
        print(dafka_spark.read_dafka(spark, sys.argv[1]).count())
"""

SET_TOO_LATE = """
    from dafka_core import Producer, Reader
    from dafka_core.errors import ConfigError
    from dafka_spark import read_dafka, write_dafka
    tower, topic = sys.argv[1:]
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    def join():
        with Reader():
            pass
    os.environ["DAFKA_TOWER"] = tower
    for use in (
        lambda: Producer(topic),
        join,
        lambda: read_dafka(spark, topic),
        lambda: write_dafka(frame, topic),
    ):
        try:
            use()
        except ConfigError as error:
            print(error)
    print(read_dafka(spark, topic, tower=tower).count())
    child = multiprocessing.get_context("fork").Process(target=join)
    child.start()
    child.join()
    print(child.exitcode)
    spark.stop()
    join()
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set an environment in which the first Python on the path has no packages."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", jvm.options())
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "DAFKA_TOWER"):
        monkeypatch.delenv(name, raising=False)


def run(
    *parts: str, arguments: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    program = "".join(textwrap.dedent(part) for part in parts)
    return drivers.done([sys.executable, "-c", program, *arguments], variables=variables)


@pytest.mark.nightly
@pytest.mark.usefixtures("elsewhere")
def test_variables_before_the_session_are_used_by_python_and_spark(
    topics: Topics, topic: str
) -> None:
    """Importing the package sets the Python of Spark's workers."""
    topics.produce(topic, range(3))
    parts = ("import dafka_spark\n", SESSION, READ)
    done = run(*parts, arguments=(topic,), DAFKA_TOWER=topics.cluster.tower)
    assert done.stdout.strip() == "3"
    assert "RuntimeWarning" not in done.stderr


@pytest.mark.usefixtures("elsewhere")
def test_an_import_after_the_session_warns_that_it_is_too_late(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    lacks = "Spark runs Python as 'python3', which lacks zmq, pyarrow, lmdb"
    with pytest.warns(RuntimeWarning, match=f"{lacks}.*set PYSPARK_PYTHON to '{sys.executable}'"):
        use_this_python()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ("python3", "which lacks zmq, pyarrow, lmdb"),
        ("python-4", "which does not exist"),
        (str(Path(sys.executable).with_name("python")), ""),
    ],
)
def test_the_users_choice_of_a_python_is_kept(chosen: str, why: str) -> None:
    program = "import dafka_spark, os; print(os.environ['PYSPARK_PYTHON'])"
    done = run(program, PYSPARK_PYTHON=chosen)
    assert done.stdout.strip() == chosen
    warning = f"Spark runs Python as {chosen!r}, {why}: format 'dafka' does not work"
    assert warning in done.stderr if why else done.stderr == ""


@pytest.mark.nightly
def test_a_tower_that_is_set_after_the_session_started_is_refused(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that names the tower, a forked child and a node after the session may use it."""
    monkeypatch.delenv("DAFKA_TOWER", raising=False)
    topics.produce(topic, range(3))
    done = run(SESSION, SET_TOO_LATE, arguments=(topics.cluster.tower, topic))
    error = (
        f"environment variable 'DAFKA_TOWER' = '{topics.cluster.tower}': the Spark session has "
        "'127.0.0.1:5556:5557', with which its JVM started. Set it before the session starts, "
        "or name the tower with option 'tower'"
    )
    assert done.stdout.splitlines()[-6:] == [error] * 4 + ["3", "0"]
