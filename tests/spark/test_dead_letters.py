"""Typed values, and records with invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dafka_core import EmbeddedCluster
from dafka_spark import write_dafka
from dafka_spark.dead_letters import split_dead_letters
from dafka_spark.errors import ColumnError
from tests.spark.topics import batch, finish, produce, stream, texts

DDL = "id BIGINT, name STRING, tags ARRAY<STRING>, at STRUCT<x: DOUBLE, day: DATE, t TIMESTAMP>"


def test_structs_are_written_and_read_as_from_json_reads_them(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    rows = spark.range(1000).selectExpr(
        "struct(id, if(id % 3 = 0, null, concat('n', char(10), char(34), id)) AS name, "
        "array(string(id), null) AS tags, struct(id / 7 AS x, date_add(date'2026-01-01', "
        "cast(id AS INT)) AS day, timestamp_millis(id * 86400001) AS t) AS at) AS value",
    )
    written = rows.union(rows.limit(1).selectExpr("null AS value"))
    write_dafka(written, topic, tower=cluster.tower, valueFormat="json")
    plain = batch(spark, cluster, subscribe=topic)
    typed = batch(spark, cluster, subscribe=topic, valueFormat="json", valueSchema=DDL)
    expected = plain.withColumn("value", F.from_json(plain["value"].cast("string"), DDL))
    order = ["partition", "offset"]
    assert_df_equality(typed.orderBy(order), expected.orderBy(order), ignore_nullable=True)
    assert typed.where("value.id = 999 AND value.tags[0] = '999'").count() == 1
    assert typed.where("value IS NULL").count() == 1


def test_dead_letters_are_written_once_as_the_rows_are(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    address = produce(cluster, topic, ['{"id":1}', "{", '{"id":2}', '{"id":"x"}'])
    typed = {"valueFormat": "json", "valueSchema": "id BIGINT", "mode": "PERMISSIVE"}
    rows = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=2, **typed)
    failed: list[int] = []

    def write(frame: DataFrame, version: int) -> None:
        valid, letters = split_dead_letters(frame)
        given: dict[str, Any] = {
            "tower": cluster.tower,
            "txnAppId": "letters",
            "txnVersion": version,
        }
        write_dafka(valid.select("value"), f"{topic}-valid", valueFormat="json", **given)
        write_dafka(letters, f"{topic}-letters", **given)
        if not failed:  # before Spark commits the batch
            failed.append(version)
            raise RuntimeError("killed")

    with pytest.raises(StreamingQueryException, match="killed"):
        finish(rows.writeStream.foreachBatch(write), tmp_path)
    finish(rows.writeStream.foreachBatch(write), tmp_path)
    valid = batch(spark, cluster, subscribe=f"{topic}-valid").collect()
    assert texts(valid) == ['{"id":1}', '{"id":2}']
    letters = batch(spark, cluster, subscribe=f"{topic}-letters", includeHeaders="true").collect()
    assert texts(letters) == ["{", '{"id":"x"}']
    headers = {
        bytes(row["value"]): {each.key: bytes(each.value) for each in row["headers"]}
        for row in letters
    }[b'{"id":"x"}']
    assert headers.pop("dafka.error.why").startswith(b"JSON parse error: Column(/id) changed")
    position = {"topic": topic.encode(), "partition": address.encode(), "offset": b"3"}
    assert headers == {f"dafka.error.{name}": value for name, value in position.items()}


def test_rows_without_errors_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ColumnError, match="read with option mode = PERMISSIVE"):
        split_dead_letters(spark.range(1))
