"""What Spark makes of checkpoints that ``dafka checkpoint`` has made."""

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
from tests.spark.topics import TIMEOUT_S, batch, produce, send, store_client, stream


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


def test_a_sink_takes_no_other_rows_from_a_query_that_was_rewound(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4).select("value")
    produce(cluster, topic, range(10))
    send(frame, cluster, tmp_path / "own", topic=f"{topic}-out")
    made = fork(Checkpoint.read(str(tmp_path / "own")), str(tmp_path / "fork"))
    for path in (tmp_path / "own", made.path):
        rewind(Checkpoint.read(str(path)), 0, is_stopped=True)
    with pytest.raises(StreamingQueryException, match="was rewound"):
        send(frame, cluster, tmp_path / "own", topic=f"{topic}-out")
    assert values(spark, cluster, f"{topic}-out") == [*range(10)]
    send(frame, cluster, made.path, topic=f"{topic}-fork")
    assert values(spark, cluster, f"{topic}-fork") == [*range(4, 10)]


def test_a_stateful_query_goes_on_behind_an_earlier_batch(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    counts: dict[int, int] = {}

    def keep(rows: DataFrame, _: int) -> None:
        counts.update({row["third"]: row["number"] for row in rows.collect()})

    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=3)
    counted = frame.groupBy((frame["offset"] % 3).alias("third")).agg(count("*").alias("number"))
    produce(cluster, topic, range(12))
    for begun in (0, 2):
        query = (
            counted.writeStream.foreachBatch(keep)
            .outputMode("update")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)
        assert counts == {0: 4, 1: 4, 2: 4}
        assert query.recentProgress[0]["batchId"] == begun
        rewind(Checkpoint.read(str(tmp_path / "c")), 1, is_stopped=True)
        counts.clear()


def test_what_a_query_has_written_is_proved_until_somebody_damages_it(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4).select("value")

    def go_on() -> list[tuple[int, str, str, bool]]:
        send(frame, cluster, tmp_path / "c", topic=f"{topic}-out", audit=True)
        own = Checkpoint.read(str(tmp_path / "c"))
        with store_client(cluster) as client:
            recompute = passed_through([client], own, timeout_s=TIMEOUT_S)
            found = [*verified([client], own, recompute, timeout_s=TIMEOUT_S)]
        assert [each.rows for each in found if not each.why] == [4, 4, 2]
        return [(each.batch, each.why, each.source, each.recomputed) for each in found]

    produce(cluster, topic, range(10))
    good = [(number, "", "same", True) for number in range(3)]
    assert go_on() == good
    with store_client(cluster) as client:
        info, *_ = client.heads([f"{topic}-out"], timeout_s=TIMEOUT_S)
        with client.put(info.tp, info.end, timeout_s=TIMEOUT_S) as put:
            put.write(pa.array([b"foreign"]))
            put.finish(TIMEOUT_S)
    produce(cluster, topic, range(10, 13))
    *before, (number, why, *_) = go_on()
    assert (before, number) == (good, 3)
    assert why.endswith(f"begins at {info.end + 1}, and not at {info.end}")
