"""A batch that Spark repeats is written once, however it is cut into tasks then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dafka_core import EmbeddedCluster
from dafka_core.testing import wait_until
from tests.integration.cluster.batch_job import seen
from tests.spark import repartitioned_job
from tests.spark.test_exactly_once import forget_commit
from tests.spark.topics import TIMEOUT_S, batch, produce, send, store_client, stream, texts


@pytest.mark.nightly
def test_a_driver_dies_and_comes_back_with_other_cores(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """With default options and adaptive execution, while one task works and others are done."""
    sink = topic + "-out"
    # Random, as what compresses well is cut into one task.
    wanted = [f"{number:04d}{os.urandom(2_500).hex()}" for number in range(3_000)]
    produce(cluster, topic, wanted)
    job = [sys.executable, "-m", repartitioned_job.__name__, cluster.tower, topic, sink]
    (tmp_path / "hold").touch()
    with subprocess.Popen([*job, str(tmp_path), "6"], start_new_session=True) as driver:
        try:
            wait_until((tmp_path / "held").exists, timeout_s=TIMEOUT_S)
            with store_client(cluster) as client:

                def others_are_done() -> bool:
                    staged = client.staged(timeout_s=TIMEOUT_S)
                    visible = client.heads([sink], timeout_s=TIMEOUT_S)
                    return len(visible) + sum(each.topic == sink for each in staged) >= 3

                wait_until(others_are_done, timeout_s=TIMEOUT_S)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert seen(cluster, sink) == 0
    (tmp_path / "hold").unlink()
    for cores in ("2", "5", "1"):
        subprocess.run([*job, str(tmp_path), cores], check=True, timeout=TIMEOUT_S)
        assert texts(batch(spark, cluster, subscribe=sink).collect()) == wanted
        forget_commit(tmp_path / "checkpoint", 0)


@pytest.mark.parametrize(("before", "after"), [(2, 7), (7, 2), (3, 1), (1, 4)])
def test_a_committed_batch_is_recognised(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path, before: int,
    after: int,
) -> None:  # fmt: skip
    address = produce(cluster, topic, range(100))
    frame = stream(spark, cluster, subscribe=topic).selectExpr(
        "value", f"concat('{topic}-', cast(cast(value AS string) AS int) % 2) AS topic"
    )
    sinks = f"{topic}-0,{topic}-1"
    send(frame.repartition(before, "value"), cluster, tmp_path, audit=True)
    forget_commit(tmp_path, 0)
    send(frame.repartition(after), cluster, tmp_path, audit=True)
    produce(cluster, topic, range(100, 110), address)
    send(frame.repartition(before), cluster, tmp_path, audit=True)
    assert texts(batch(spark, cluster, subscribe=sinks).collect()) == sorted(map(str, range(110)))


def test_other_rows_are_refused_whatever_the_tasks(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(10))
    frame = stream(spark, cluster, subscribe=topic).select("value")
    sink = topic + "-out"
    send(frame.repartition(3), cluster, tmp_path, topic=sink)
    forget_commit(tmp_path, 0)
    doubled = frame.selectExpr("value", "explode(array(1, 2))").select("value")
    for other in (frame.where("value <> '3'"), frame.where("value = 'x'"), doubled):
        with pytest.raises(StreamingQueryException, match="10 rows of it are committed to 3 of 3"):
            send(other.repartition(5), cluster, tmp_path, topic=sink)
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == sorted(map(str, range(10)))


def test_two_writes_with_one_version_are_told_apart(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Rows below and above a limit, in one ``foreachBatch``."""
    produce(cluster, topic, range(10))
    sink = topic + "-out"
    given = {"topic": sink, "txnAppId": "split"}

    def save(frame: DataFrame, **options: Any) -> None:
        frame.write.format("dafka").mode("append").options(tower=cluster.tower, **options).save()

    def write(rows: DataFrame, batch_id: int) -> None:
        rows = rows.select("value")
        save(rows.where("value < '4'"), **given, txnVersion=batch_id)
        save(rows.where("value >= '4'"), **given, txnVersion=batch_id)

    query = (
        stream(spark, cluster, subscribe=topic)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="4 rows of it are committed"):
        query.awaitTermination(TIMEOUT_S)
    rows = batch(spark, cluster, subscribe=topic).select("value")
    for again in (rows.where("value < '4'").repartition(3), rows.where("value < '4'").coalesce(1)):
        save(again, **given, txnVersion=0)
    with pytest.raises(PySparkException, match="it has 4 others now"):
        save(rows.where("value > '5'"), **given, txnVersion=0)
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == ["0", "1", "2", "3"]
