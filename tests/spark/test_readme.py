"""The README: its examples run as they stand, and its options tables are those declared."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster, Producer, Reader
from scripts import options

README = Path(__file__).parents[2] / "README.md"


def example(heading: str) -> str:
    """The first Python example under a heading."""
    section = README.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_options_tables_are_those_declared() -> None:
    text = README.read_text(encoding="utf-8")
    assert options.updated(text) == text


def test_the_example_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("A cluster"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[2:] for line in printed] == [
        ["0", "b'hello'"],
        ["1", "b'brokerless'"],
        ["2", "b'world'"],
    ]


def test_the_example_of_reading(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Producer("flights", tower=cluster.tower) as producer:
        producer.publish_many([b"one", b"two"])
        producer.flush(20)
    names = {"spark": spark, "tower": cluster.tower, "checkpoint": str(tmp_path)}
    exec(example("Reading"), names)
    names["query"].awaitTermination()  # type: ignore[attr-defined]
    counted = {row["partition"]: row["count"] for row in spark.table("counts").collect()}
    assert counted[producer.address] == 2


def test_the_example_of_writing(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    names = {"spark": spark, "tower": cluster.tower, "checkpoint": str(tmp_path)}
    exec(example("Writing"), names)
    with Reader(tower=cluster.tower) as reader:
        held = reader.partitions(["ids", "loud-ids"], timeout_s=20)
    for topic in ("ids", "loud-ids"):
        assert sum(info.end for info in held if info.topic == topic) == 100_000


def test_the_example_of_flight(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedCluster() as cluster:
        with Producer("greetings", tower=cluster.tower) as producer:
            producer.publish_many([b"hello", b"brokerless", b"world"])
            producer.flush(20)
        exec(example("Any Arrow Flight client"), {"location": cluster.locations()[-1]})
    printed = capsys.readouterr().out
    assert "offset: [[0,1,2]]" in printed
    assert re.search(r"│ +3 │ +10 │", printed)


def test_the_example_of_sql(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    topic = f"sql-{uuid.uuid4().hex[:8]}"
    with Producer(topic, tower=cluster.tower) as producer:
        producer.publish(b"row")
        producer.flush(20)
    table = topic.replace("-", "_")
    spark.sql(
        f"CREATE TABLE {table} USING dafka OPTIONS (subscribe '{topic}', tower '{cluster.tower}')"
    )
    try:
        assert [bytes(row.value) for row in spark.table(table).collect()] == [b"row"]
    finally:
        spark.sql(f"DROP TABLE {table}")
