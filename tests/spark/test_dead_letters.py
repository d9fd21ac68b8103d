"""Typed values through a real Spark, and the bad ones among them to a topic of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dafka_core import EmbeddedCluster
from dafka_spark.dead_letters import split_dead_letters
from dafka_spark.errors import ColumnError
from tests.spark.topics import TIMEOUT_S, batch, produce, stream

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
    writer = written.write.format("dafka").mode("append")
    writer.options(tower=cluster.tower, topic=topic, valueFormat="json").save()
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
    rows = stream(
        spark,
        cluster,
        subscribe=topic,
        valueFormat="json",
        valueSchema="id BIGINT",
        mode="PERMISSIVE",
        maxOffsetsPerTrigger=2,
    )
    failed: list[int] = []

    def write(frame: DataFrame, version: int) -> None:
        good, bad = split_dead_letters(frame)
        for part, name in (good.select("value"), f"{topic}-good"), (bad, f"{topic}-bad"):
            writer = part.write.format("dafka").mode("append").options(tower=cluster.tower)
            writer.options(topic=name, valueFormat="json" if part is not bad else "bytes")
            writer.options(txnAppId="letters", txnVersion=version).save()
        if not failed:  # all is written, and Spark does not know of it
            failed.append(version)
            raise RuntimeError("killed")

    writing = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    writing = writing.option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="killed"):
        writing.start().awaitTermination(TIMEOUT_S)
    assert writing.start().awaitTermination(TIMEOUT_S)
    good = batch(spark, cluster, subscribe=f"{topic}-good").collect()
    assert sorted(bytes(row["value"]) for row in good) == [b'{"id":1}', b'{"id":2}']
    bad = batch(spark, cluster, subscribe=f"{topic}-bad", includeHeaders="true").collect()
    found = {
        bytes(row["value"]): {each.key: bytes(each.value) for each in row["headers"]} for row in bad
    }
    assert len(bad) == 2
    assert set(found) == {b"{", b'{"id":"x"}'}
    headers = found[b'{"id":"x"}']
    assert headers.pop("dafka.error.why").startswith(b"JSON parse error: Column(/id) changed")
    assert headers == {
        "dafka.error.topic": topic.encode(),
        "dafka.error.partition": address.encode(),
        "dafka.error.offset": b"3",
    }


def test_rows_without_errors_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ColumnError, match="read with option mode = PERMISSIVE"):
        split_dead_letters(spark.range(1))
