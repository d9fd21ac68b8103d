"""A batch write is seen as a whole, or not at all."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dafka_core import EmbeddedCluster
from tests.integration.cluster.batch_job import seen
from tests.spark.faults import Gate, InjectedError, changed
from tests.spark.topics import TIMEOUT_S, batch, stream, texts


def save(frame: DataFrame, cluster: EmbeddedCluster, **given: Any) -> None:
    frame.write.format("dafka").mode("append").options(tower=cluster.tower, **given).save()


def text_rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id AS string) AS value").repartition(2)


def test_rows_appear_at_once(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    meanwhile = []

    def look() -> None:
        gate.wait_reached()
        meanwhile.append(seen(cluster, topic))
        gate.open()

    looking = threading.Thread(target=look)
    looking.start()
    save(changed(text_rows(spark, 20_000), gate), cluster, topic=topic)
    looking.join()
    assert meanwhile == [0]
    assert batch(spark, cluster, subscribe=topic).count() == 20_000


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "cast(if(id = 99, assert_true(id <> 99, 'not this one'), id) AS string) AS value"
    )
    with pytest.raises(PySparkException, match="not this one"):
        save(frame, cluster, topic=topic)
    assert batch(spark, cluster, subscribe=topic, failOnMissingTopic="false").count() == 0
    save(text_rows(spark, 10), cluster, topic=topic)
    assert texts(batch(spark, cluster, subscribe=topic).collect()) == list("0123456789")


def test_a_job_that_is_run_again_writes_nothing_twice(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    nightly = {"topic": topic, "txnAppId": "nightly", "txnVersion": 1}
    save(text_rows(spark, 100_000), cluster, **nightly)
    started = time.monotonic()
    for _ in range(3):  # rows that no task takes
        save(text_rows(spark, 100_000), cluster, **nightly)
    assert batch(spark, cluster, subscribe=topic).count() == 100_000
    assert time.monotonic() - started < TIMEOUT_S

    sink = topic + "-out"

    def write(rows: DataFrame, batch_id: int) -> None:
        for number in range(2):
            save(rows, cluster, topic=f"{sink}-{number}", txnAppId="q", txnVersion=batch_id)
        if batch_id == 1 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise InjectedError

    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=35_000).select("value")
    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    for fails in (True, False):
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with pytest.raises(StreamingQueryException) if fails else nullcontext():
            assert query.awaitTermination(TIMEOUT_S)
    for number in range(2):
        rows = batch(spark, cluster, subscribe=f"{sink}-{number}")
        assert rows.select("value").distinct().count() == rows.count() == 100_000
