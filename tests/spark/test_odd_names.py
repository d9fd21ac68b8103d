"""Topics of any octets in Spark: read, matched, checkpointed and written as they are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from dafka_core import EmbeddedCluster, Reader
from dafka_core.model.names import text_of
from tests.spark.topics import batch, produce, run, send, stream, texts


def test_odd_topics_are_read_and_written(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    odd = {
        topic + rb"-bad\xff".decode(): text_of(topic.encode() + b"-bad\xff"),
        topic + rb"-new\x0aline".decode(): topic + "-new\nline",
        topic + rb"-\x5cxff".decode(): topic + r"-\xff",
        topic + "-plain": topic + "-plain",
    }
    for shown, name in odd.items():
        produce(cluster, name, [shown], allow_control_characters=True)
    every = batch(spark, cluster, subscribePattern=f"{topic}-.*").selectExpr(
        "cast(value AS string) AS value", "topic", "partition"
    )
    rows = every.collect()
    assert {row["topic"] for row in rows} == {row["value"] for row in rows} == set(odd)
    for row in rows[:1]:  # the others, and each way, without Spark: tests/integration/cluster
        named = batch(spark, cluster, subscribe=row["topic"])
        assert texts(named.collect()) == [row["topic"]]
        start = json.dumps({row["topic"]: {row["partition"]: 1}})
        assert batch(spark, cluster, subscribe=row["topic"], startingOffsets=start).count() == 0

    copies = every.selectExpr("value", "concat('copy-', topic) AS topic")
    writing = copies.write.format("dafka").mode("append").option("tower", cluster.tower)
    with pytest.raises(PySparkException, match="allowControlCharacters"):
        writing.save()
    writing.option("allowControlCharacters", "true").save()
    with Reader(tower=cluster.tower) as reader:
        held = {info.topic for info in reader.partitions(None, timeout_s=30)}
    assert {name for name in held if name.startswith("copy-")} >= {
        f"copy-{n}" for n in odd.values()
    }

    got: list[Row] = []
    copied = stream(spark, cluster, subscribePattern=f"copy-{topic}-.*")
    run(copied, tmp_path / "reading", got.extend)
    assert texts(got) == sorted(odd)
    assert json.loads((tmp_path / "reading/offsets/0").read_text().splitlines()[-1])["version"] == 4
    run(copied, tmp_path / "reading", got.extend)  # goes on from its checkpoint
    assert texts(got) == sorted(odd)
    to = f"to-{topic}" + rb"\xff".decode()
    send(copied.select("value"), cluster, tmp_path / "w", topic=to, allowControlCharacters="true")
    assert texts(batch(spark, cluster, subscribe=to).collect()) == sorted(odd)
