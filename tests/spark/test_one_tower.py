"""``DAFKA_TOWER`` in a program with a Spark session: Python and Spark use the same cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from dafka_core import EmbeddedCluster
from tests.spark.topics import produce

SESSION = """
    import json, multiprocessing, os, sys
    from pyspark.sql import SparkSession
    from dafka_core import Consumer, Producer, Reader
    from dafka_core.errors import ConfigError
    from dafka_spark import read_dafka, write_dafka
    tower, topic = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    def refused(do):
        try:
            do()
        except ConfigError as error:
            return str(error)
        return ""
    def join():
        with Reader():
            pass
"""

DOORS = """
    os.environ["DAFKA_TOWER"] = tower
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    doors = {
        "producer": lambda: Producer(topic),
        "consumer": Consumer,
        "reader": Reader,
        "read_dafka": lambda: read_dafka(spark, topic),
        "write_dafka": lambda: write_dafka(frame, topic),
    }
    found = {name: refused(do) for name, do in doors.items()}
    with Reader(tower=tower):
        found["named"] = read_dafka(spark, topic, tower=tower).count()
    child = multiprocessing.get_context("fork").Process(target=join)
    child.start()
    child.join()
    found["child"] = child.exitcode
    del os.environ["DAFKA_TOWER"]
    found["as the JVM"] = refused(lambda: read_dafka(spark, topic, tower=None))
    os.environ["DAFKA_TOWER"] = tower
    spark.stop()
    join()
    print(json.dumps(found))
"""

BEFORE = """
    join()
    print(json.dumps(read_dafka(spark, topic).count()))
"""


def run(cluster: EmbeddedCluster, topic: str, program: str, **variables: str) -> object:
    environment = {name: value for name, value in os.environ.items() if name != "DAFKA_TOWER"}
    text = textwrap.dedent(SESSION) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text, cluster.tower, topic],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment | variables,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_a_variable_that_is_set_after_the_session_started_is_refused(
    cluster: EmbeddedCluster, topic: str
) -> None:
    produce(cluster, topic, range(3))
    found = run(cluster, topic, DOORS)
    assert isinstance(found, dict)
    for door in ("producer", "consumer", "reader", "read_dafka", "write_dafka"):
        assert found.pop(door) == (
            f"environment variable 'DAFKA_TOWER' = '{cluster.tower}': the Spark session has "
            "'127.0.0.1:5556:5557', with which its JVM started. Set it before the session starts, "
            "or name the tower with option 'tower'"
        )
    assert found == {"named": 3, "child": 0, "as the JVM": ""}


def test_a_variable_that_is_set_before_the_session_started_is_used_by_both(
    cluster: EmbeddedCluster, topic: str
) -> None:
    produce(cluster, topic, range(3))
    assert run(cluster, topic, BEFORE, DAFKA_TOWER=cluster.tower) == 3
