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
        run(frame, tmp_path / "1", seen.extend)
        assert texts(seen) == ["0", "1", "2", "3", "4", "5", "6"]
        seen.clear()
        query = f"SELECT VALUE AS value FROM STREAM {table} WITH (startingOffsets = 'earliest')"
        run(spark.sql(query), tmp_path / "2", seen.extend)
        assert texts(seen) == ["0", "1", "2", "3", "4", "5", "6"]
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_rows_are_inserted_into_a_table(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, table: str
) -> None:
    produce(cluster, topic, range(2))
    where = f"tower '{cluster.tower}', subscribe '{topic}', deliveryTimeoutMs '60000'"
    spark.sql(f"CREATE TABLE {table} USING dafka OPTIONS ({where})")
    try:
        spark.sql(f"INSERT INTO {table} (value) VALUES (X'61'), (X'62')")
        spark.sql(f"INSERT INTO {table} (value) SELECT value FROM {table} WHERE value > X'61'")
        spark.createDataFrame([(b"c",)], "value binary").writeTo(table).append()
        found = spark.sql(f"SELECT value FROM {table} WHERE value > X'39'").collect()
        assert sorted(texts(found)) == ["a", "b", "b", "c"]
        for said, insert in {
            "'partition': cannot be written": f"INTO {table} SELECT * FROM {table}",
            f"'other', and the table is written to topic '{topic}'": (
                f"INTO {table} (value, topic) VALUES (X'61', 'other')"
            ),
            "a topic only grows; .*INSERT INTO": f"OVERWRITE {table} SELECT * FROM {table}",
        }.items():
            with pytest.raises(PySparkException, match=said):
                spark.sql(f"INSERT {insert}")
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
