"""Typed values, and records with invalid ones."""

from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dafka_spark import write_dafka
from dafka_spark.dead_letters import split_dead_letters
from dafka_spark.errors import ColumnError
from tests.spark.topics import Topics, finish, texts

DDL = "id BIGINT, name STRING, tags ARRAY<STRING>, at STRUCT<x: DOUBLE, day: DATE, t TIMESTAMP>"


def test_structs_are_written_and_read_as_from_json_reads_them(topics: Topics, topic: str) -> None:
    rows = topics.spark.range(1000).selectExpr(
        "struct(id, if(id % 3 = 0, null, concat('n', char(10), char(34), id)) AS name, "
        "array(string(id), null) AS tags, struct(id / 7 AS x, date_add(date'2026-01-01', "
        "cast(id AS INT)) AS day, timestamp_millis(id * 86400001) AS t) AS at) AS value"
    )
    written = rows.union(rows.limit(1).selectExpr("null AS value"))
    topics.save(written, topic=topic, valueFormat="json")
    plain = topics.batch(topic)
    typed = topics.batch(topic, valueFormat="json", valueSchema=DDL)
    expected = plain.withColumn("value", F.from_json(plain["value"].cast("string"), DDL))
    order = ["partition", "offset"]
    assert_df_equality(typed.orderBy(order), expected.orderBy(order), ignore_nullable=True)
    assert typed.where("value.id = 999 AND value.tags[0] = '999'").count() == 1
    assert typed.where("value IS NULL").count() == 1


def test_dead_letters_are_written_once_like_the_rows(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    address = topics.produce(topic, ['{"id":1}', "{", '{"id":2}', '{"id":"x"}'])
    typed = {"valueFormat": "json", "valueSchema": "id BIGINT", "mode": "PERMISSIVE"}
    rows = topics.stream(topic, maxOffsetsPerTrigger=2, **typed)
    failed: list[int] = []

    def write(frame: DataFrame, version: int) -> None:
        valid, letters = split_dead_letters(frame)
        once: dict[str, Any] = {**topics.options, "txnAppId": "letters", "txnVersion": version}
        write_dafka(valid.select("value"), f"{topic}-valid", valueFormat="json", **once)
        write_dafka(letters, f"{topic}-letters", **once)
        if not failed:  # before Spark commits the batch
            failed.append(version)
            raise RuntimeError("killed")

    with pytest.raises(StreamingQueryException, match="killed"):
        finish(rows.writeStream.foreachBatch(write), tmp_path)
    finish(rows.writeStream.foreachBatch(write), tmp_path)
    assert texts(topics.batch(f"{topic}-valid").collect()) == ['{"id":1}', '{"id":2}']
    letters = topics.batch(f"{topic}-letters", includeHeaders=True).collect()
    assert texts(letters) == ["{", '{"id":"x"}']
    [last] = [row for row in letters if bytes(row["value"]) == b'{"id":"x"}']
    headers = {each.key: bytes(each.value) for each in last["headers"]}
    assert headers.pop("dafka.error.why").startswith(b"JSON parse error: Column(/id) changed")
    position = {"topic": topic.encode(), "partition": address.encode(), "offset": b"3"}
    assert headers == {f"dafka.error.{name}": value for name, value in position.items()}


def test_rows_without_errors_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ColumnError, match="read with option mode = PERMISSIVE"):
        split_dead_letters(spark.range(1))
