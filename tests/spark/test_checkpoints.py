"""What Spark makes of checkpoints that ``dafka checkpoint`` has made."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.queries.checkpoint_copies import fork
from tests.spark.topics import batch, produce, send, stream


def values(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> list[int]:
    rows = batch(spark, cluster, subscribe=topic).select("value").collect()
    return sorted(int(row["value"]) for row in rows)


def test_a_fork_goes_on_beside_its_query(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    blue, green = tmp_path / "blue", tmp_path / "green"
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4).select("value")
    produce(cluster, topic, range(10))
    send(frame, cluster, blue, topic=f"{topic}-out")
    found = Checkpoint.read(str(blue))
    assert [each.is_committed for each in found.batches()] == [True, True, True]
    assert sum(each.end - each.start for _, each in found.ranges(2)) == 2
    made = fork(found, str(green))
    produce(cluster, topic, range(10, 16))
    send(frame, cluster, green, topic=f"{topic}-green")
    send(frame, cluster, blue, topic=f"{topic}-out")
    send(frame, cluster, green, topic=f"{topic}-green")
    assert values(spark, cluster, f"{topic}-green") == [*range(10, 16)]
    assert values(spark, cluster, f"{topic}-out") == [*range(16)]
    blue_now, green_now = (Checkpoint.read(str(each)) for each in (blue, green))
    assert (blue_now.query_id, green_now.query_id) == (found.query_id, made.query_id)
    assert blue_now.last.own_ends == green_now.last.own_ends
