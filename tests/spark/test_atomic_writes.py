"""A batch write is seen as a whole, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dafka_core import EmbeddedCluster
from tests.integration.cluster.batch_job import seen
from tests.spark.faults import Gate, changed
from tests.spark.topics import batch, texts


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
