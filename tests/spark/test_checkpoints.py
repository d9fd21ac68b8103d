"""Spark runs from the checkpoints that ``dafka checkpoint`` writes, and after a power cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count

from dafka_core import EmbeddedCluster
from dafka_core.audit.verification import passed_through, verified
from dafka_core.queries.checkpoint import Checkpoint, fork, rewind
from tests.spark.topics import TIMEOUT_S, batch, finish, produce, send, store_client, stream


def values(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> list[int]:
    rows = batch(spark, cluster, subscribe=topic).select("value").collect()
    return sorted(int(row["value"]) for row in rows)


def test_a_fork_runs_beside_its_query(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    blue, green = tmp_path / "blue", tmp_path / "green"
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4).select("value")
    produce(cluster, topic, range(10))
    send(frame, cluster, blue, topic=f"{topic}-blue")
    found = Checkpoint.read(str(blue))
    assert [each.is_committed for each in found.batches()] == [True, True, True]
    assert sum(each.end - each.start for _, each in found.ranges(2)) == 2
    made = fork(found, str(green))
    produce(cluster, topic, range(10, 16))
    for path in (green, blue, green):
        send(frame, cluster, path, topic=f"{topic}-{path.name}")
    assert values(spark, cluster, f"{topic}-green") == [*range(10, 16)]
    assert values(spark, cluster, f"{topic}-blue") == [*range(16)]
    now = [Checkpoint.read(str(each)) for each in (blue, green)]
    assert [each.query_id for each in now] == [found.query_id, made.query_id]
    assert now[0].last.own_ends == now[1].last.own_ends


def test_a_sink_takes_no_other_rows_from_a_query_that_was_rewound(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4).select("value")
    produce(cluster, topic, range(10))
    send(frame, cluster, tmp_path / "own", topic=f"{topic}-own")
    fork(Checkpoint.read(str(tmp_path / "own")), str(tmp_path / "fork"))
    for name in ("own", "fork"):
        rewind(Checkpoint.read(str(tmp_path / name)), 0, is_stopped=True)
    with pytest.raises(StreamingQueryException, match="was rewound"):
        send(frame, cluster, tmp_path / "own", topic=f"{topic}-own")
    assert values(spark, cluster, f"{topic}-own") == [*range(10)]
    send(frame, cluster, tmp_path / "fork", topic=f"{topic}-fork")
    assert values(spark, cluster, f"{topic}-fork") == [*range(4, 10)]


def test_a_commit_that_a_power_cut_has_torn(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """The sink has synced all earlier files."""
    frame = stream(spark, cluster, subscribe=topic).select("value")
    for rows in (range(4), range(4, 8)):
        produce(cluster, topic, rows)
        send(frame, cluster, tmp_path, topic=f"{topic}-out")
    produce(cluster, topic, range(8, 12))
    torn = tmp_path / "commits" / "1"
    torn.write_bytes(b"")
    torn.with_name(".1.crc").unlink()
    with pytest.raises(StreamingQueryException, match="Incomplete log file"):
        send(frame, cluster, tmp_path, topic=f"{topic}-out")
    torn.unlink()
    send(frame, cluster, tmp_path, topic=f"{topic}-out")
    assert values(spark, cluster, f"{topic}-out") == [*range(12)]


def test_a_stateful_query_is_rewound(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    counts: dict[int, int] = {}

    def keep(rows: DataFrame, _: int) -> None:
        counts.update({row["third"]: row["number"] for row in rows.collect()})

    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=3)
    counted = frame.groupBy((frame["offset"] % 3).alias("third")).agg(count("*").alias("number"))
    produce(cluster, topic, range(12))
    for first in (0, 2):
        query = finish(counted.writeStream.foreachBatch(keep).outputMode("update"), tmp_path / "c")
        assert counts == {0: 4, 1: 4, 2: 4}
        assert query.recentProgress[0]["batchId"] == first
        rewind(Checkpoint.read(str(tmp_path / "c")), 1, is_stopped=True)
        counts.clear()


def states(cluster: EmbeddedCluster, checkpoint: Path) -> list[tuple[str, int, str]]:
    """Return the state, the number of rows and the error of each batch."""
    own = Checkpoint.read(str(checkpoint))
    with store_client(cluster) as client:
        found = [*verified([client], own, timeout_s=TIMEOUT_S)]
    return [(each.state, each.rows, each.why) for each in found]


def test_a_query_is_proved_after_its_state_was_repartitioned(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, subscribe=topic)
    counts = frame.groupBy("value").count().selectExpr("string(count) AS value")
    writing = counts.writeStream.format("dafka").outputMode("complete")
    writing = writing.options(tower=cluster.tower, topic=f"{topic}-out", audit=True)
    provider = "spark.sql.streaming.stateStore.providerClass"
    package = "org.apache.spark.sql.execution.streaming.state"
    spark.conf.set(provider, f"{package}.RocksDBStateStoreProvider")
    try:
        for rows in (4, 5):
            produce(cluster, topic, range(rows))
            finish(writing, tmp_path)
            spark._streamingCheckpointManager.repartition(str(tmp_path), rows)
        expected = [("proved", 4, ""), ("repartitioned", 0, ""), ("proved", 5, "")]
        assert states(cluster, tmp_path) == [*expected, ("repartitioned", 0, "")]
    finally:
        spark.conf.unset(provider)


def test_foreign_rows_in_a_partition_of_the_sink_are_named(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4).select("value")

    def write_more() -> list[tuple[int, str, str, bool]]:
        send(frame, cluster, tmp_path / "c", topic=f"{topic}-out", audit=True)
        own = Checkpoint.read(str(tmp_path / "c"))
        with store_client(cluster) as client:
            recompute = passed_through([client], own, timeout_s=TIMEOUT_S)
            found = [*verified([client], own, recompute, timeout_s=TIMEOUT_S)]
        assert [each.rows for each in found if not each.why] == [4, 4, 2]
        return [(each.batch, each.why, each.source, each.recomputed) for each in found]

    produce(cluster, topic, range(10))
    good = [(number, "", "same", True) for number in range(3)]
    assert write_more() == good
    with store_client(cluster) as client:
        info, *_ = client.heads([f"{topic}-out"], timeout_s=TIMEOUT_S)
        with client.put(info.tp, info.end, timeout_s=TIMEOUT_S) as put:
            put.write(pa.array([b"foreign"]))
            put.finish(TIMEOUT_S)
    produce(cluster, topic, range(10, 13))
    *before, (number, why, *_) = write_more()
    assert (before, number) == (good, 3)
    assert why.endswith(f"begins at {info.end + 1}, and not at {info.end}")
