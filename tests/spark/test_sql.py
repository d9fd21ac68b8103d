"""Format ``dafka`` in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from dafka_core import EmbeddedCluster
from tests.spark.topics import produce, run, texts


@pytest.fixture
def table(topic: str) -> Any:
    return topic.replace("-", "_")


def test_a_table(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, table: str, tmp_path: Path
) -> None:
    """Spark does not hand a table's options to a Python source; they travel in the schema."""
    produce(cluster, topic, range(5))
    spark.sql(
        f"CREATE TABLE {table} USING dafka OPTIONS (tower '{cluster.tower}', subscribe '{topic}')"
    )
    try:
        assert spark.sql(f"SELECT offset FROM {table} WHERE offset > 2").count() == 2
        assert spark.sql(f"SELECT * FROM {table} WITH (minPartitions = 5)").count() == 5
        seen: list[Row] = []
        produce(cluster, topic, range(5, 7))
        frame = spark.readStream.option("startingOffsets", "earliest").table(table)
        run(frame, tmp_path, seen.extend)
        assert texts(seen) == ["0", "1", "2", "3", "4", "5", "6"]
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_a_view(spark: SparkSession, cluster: EmbeddedCluster, topic: str, table: str) -> None:
    produce(cluster, topic, range(5))
    spark.sql(
        f"CREATE TEMPORARY VIEW {table} USING dafka "
        f"OPTIONS (tower '{cluster.tower}', subscribe '{topic}')"
    )
    assert spark.sql(f"SELECT * FROM {table}").count() == 5


def test_wrong_options_are_refused_when_the_table_is_made(spark: SparkSession, table: str) -> None:
    with pytest.raises(PySparkException, match=r"did you mean 'subscribe'"):
        spark.sql(f"CREATE TABLE {table} USING dafka OPTIONS (subscribes 't')")


def test_a_table_with_columns_says_why_it_has_no_options(spark: SparkSession, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING dafka OPTIONS (subscribe 't')")
    try:
        with pytest.raises(PySparkException, match=r"when CREATE TABLE lists columns"):
            spark.sql(f"SELECT * FROM {table}").collect()
    finally:
        spark.sql(f"DROP TABLE {table}")
