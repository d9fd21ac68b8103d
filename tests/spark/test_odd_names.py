"""Topics of any bytes in Spark: it reads, checkpoints and writes their escaped names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from dafka_core import Reader
from dafka_core.model.names import text_of
from tests.spark.topics import Topics, run, texts


def test_odd_topics_are_read_and_written(topics: Topics, topic: str, tmp_path: Path) -> None:
    odd = {
        topic + rb"-bad\xff".decode(): text_of(topic.encode() + b"-bad\xff"),
        topic + rb"-new\x0aline".decode(): topic + "-new\nline",
        topic + rb"-\x5cxff".decode(): topic + r"-\xff",
        topic + "-plain": topic + "-plain",
    }
    for escaped, name in odd.items():
        topics.produce(name, [escaped], allow_control_characters=True)
    every = topics.batch(subscribePattern=f"{topic}-.*").selectExpr(
        "cast(value AS string) AS value", "topic"
    )
    rows = every.collect()
    assert {row["topic"] for row in rows} == {row["value"] for row in rows} == set(odd)
    escaped = rows[0]["topic"]
    assert texts(topics.batch(escaped).select("value").collect()) == [escaped]

    copies = every.selectExpr("value", "concat('copy-', topic) AS topic")
    with pytest.raises(PySparkException, match="allowControlCharacters"):
        topics.save(copies)
    topics.save(copies, allowControlCharacters=True)
    with Reader(tower=topics.cluster.tower) as reader:
        found = {info.topic for info in reader.partitions(None, timeout_s=30)}
    assert found >= {f"copy-{name}" for name in odd.values()}

    seen: list[Row] = []
    copied = topics.stream(subscribePattern=f"copy-{topic}-.*")
    for _ in range(2):  # the second run continues from the checkpoint
        run(copied, tmp_path / "reading", seen.extend)
        assert texts(seen) == sorted(odd)
    to = f"to-{topic}" + rb"\xff".decode()
    topics.send(copied.select("value"), tmp_path / "w", topic=to, allowControlCharacters=True)
    assert texts(topics.batch(to).collect()) == sorted(odd)
