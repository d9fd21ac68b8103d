"""Spark runs from checkpoints that ``dafka checkpoint`` has changed, and their rows are proved."""

from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import count, lit

from dafka_core.audit import verified
from dafka_core.cli.app import app
from dafka_core.errors import DafkaError
from dafka_core.queries.checkpoint import Checkpoint, copied, rewind
from dafka_spark.recompute import recomputed
from tests.spark.topics import TIMEOUT_S, Topics, finish


def copy(topics: Topics, topic: str) -> DataFrame:
    return topics.stream(topic, maxOffsetsPerTrigger=4).select("value")


def test_a_fork_runs_beside_its_query(topics: Topics, topic: str, tmp_path: Path) -> None:
    blue, green = tmp_path / "blue", tmp_path / "green"
    topics.produce(topic, range(10))
    topics.send(copy(topics, topic), blue, topic=f"{topic}-blue")
    found = Checkpoint.read(str(blue))
    assert [each.is_committed for each in map(found.batch, found.planned)] == [True, True, True]
    assert sum(each.end - each.start for _, each in found.ranges(2)) == 2
    made = copied(found, str(green), is_fork=True)
    topics.produce(topic, range(10, 16))
    for path in (green, blue, green):
        topics.send(copy(topics, topic), path, topic=f"{topic}-{path.name}")
    assert topics.numbers(f"{topic}-green") == [*range(10, 16)]
    assert topics.numbers(f"{topic}-blue") == [*range(16)]
    now = [Checkpoint.read(str(each)) for each in (blue, green)]
    assert [each.query_id for each in now] == [found.query_id, made.query_id]
    assert now[0].last.own_ends == now[1].last.own_ends


def test_a_sink_refuses_other_rows_of_a_query_that_was_rewound(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.produce(topic, range(10))
    topics.send(copy(topics, topic), tmp_path / "own", topic=f"{topic}-own")
    copied(Checkpoint.read(str(tmp_path / "own")), str(tmp_path / "fork"), is_fork=True)
    for name in ("own", "fork"):
        rewind(Checkpoint.read(str(tmp_path / name)), 0, is_stopped=True)
    with pytest.raises(StreamingQueryException, match="was rewound"):
        topics.send(copy(topics, topic), tmp_path / "own", topic=f"{topic}-own")
    assert topics.numbers(f"{topic}-own") == [*range(10)]
    topics.send(copy(topics, topic), tmp_path / "fork", topic=f"{topic}-fork")
    assert topics.numbers(f"{topic}-fork") == [*range(4, 10)]


def test_a_stateful_query_is_rewound(topics: Topics, topic: str, tmp_path: Path) -> None:
    counts: dict[int, int] = {}

    def keep(rows: DataFrame, _: int) -> None:
        counts.update({row["third"]: row["number"] for row in rows.collect()})

    frame = topics.stream(topic, maxOffsetsPerTrigger=3)
    counted = frame.groupBy((frame["offset"] % 3).alias("third")).agg(count("*").alias("number"))
    topics.produce(topic, range(12))
    for first in (0, 2):
        query = finish(counted.writeStream.foreachBatch(keep).outputMode("update"), tmp_path / "c")
        assert counts == {0: 4, 1: 4, 2: 4}
        assert query.recentProgress[0]["batchId"] == first
        rewind(Checkpoint.read(str(tmp_path / "c")), 1, is_stopped=True)
        counts.clear()


def test_a_query_is_proved_after_its_state_was_repartitioned(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    counts = topics.stream(topic).groupBy("value").count().selectExpr("string(count) AS value")
    writer = topics.writer(counts, topic=f"{topic}-out", audit=True).outputMode("complete")
    conf, provider = topics.spark.conf, "spark.sql.streaming.stateStore.providerClass"
    package = "org.apache.spark.sql.execution.streaming.state"
    conf.set(provider, f"{package}.RocksDBStateStoreProvider")
    try:
        for rows in (4, 5):
            topics.produce(topic, range(rows))
            finish(writer, tmp_path)
            topics.spark._streamingCheckpointManager.repartition(str(tmp_path), rows)
    finally:
        conf.unset(provider)
    with topics.store() as client:
        own = Checkpoint.read(str(tmp_path))
        found = [*verified([client], own, timeout_s=TIMEOUT_S)]
    repartitioned = ("repartitioned", 0, "")
    assert [(each.state, each.rows, each.why) for each in found] == [
        ("proved", 4, ""), repartitioned, ("proved", 5, ""), repartitioned
    ]  # fmt: skip


def even(rows: DataFrame, key: str = "even") -> DataFrame:
    kept = rows.where("int(string(value)) % 2 = 0")
    return kept.select("value", lit(key.encode()).alias("key"))


def test_rows_are_compared_with_those_that_the_query_makes_now(
    topics: Topics, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topics.produce(topic, range(10))
    topics.send(even(copy(topics, topic)), tmp_path, topic=f"{topic}-out", audit=True)
    own = Checkpoint.read(str(tmp_path))
    other = "recomputed from its source are 2 rows, but stores have 2 others"
    for function, whys in ((even, [""] * 3), (partial(even, key="odd"), [other])):
        recompute = recomputed(topics.spark, own, function, topics.options, {})
        with topics.store() as client:
            found = verified([client], own, recompute, timeout_s=TIMEOUT_S)
            assert [each.why for each in found] == whys
    failing = recomputed(topics.spark, own, even, {**topics.options, "fetch": "no"}, {})
    with pytest.raises(DafkaError, match="the rows of batch 1 cannot be recomputed"):
        failing(1)
    words = ["verify", str(tmp_path), "--query", f"{__name__}:even"]
    app.main(["checkpoint", *words, "--tower", topics.cluster.tower], standalone_mode=False)
    assert "5 rows of 3 batches are unchanged" in capfd.readouterr().err
