"""Each row of a streaming query is in its topic once, whatever fails and is tried again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dafka_core import EmbeddedCluster
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_coordinator import pick_store
from tests.forked import ForkedCluster
from tests.integration.cluster.batch_job import seen
from tests.spark.faults import Gate, changed, shuffled
from tests.spark.topics import TIMEOUT_S, batch, produce, proved, send, stream, texts

JOB = Path(__file__).with_name("exactly_once_job.py")


@pytest.fixture
def sinks() -> Iterator[EmbeddedCluster]:
    """Two stores to write to, which can be killed without the source's."""
    with ForkedCluster(stores=2) as running:
        yield running


def started(
    frame: DataFrame, cluster: EmbeddedCluster, checkpoint: Path, **options: Any
) -> StreamingQuery:
    """A query that runs meanwhile."""
    return (
        frame.writeStream.format("dafka")
        .options(tower=cluster.tower, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()


def forget_commit(checkpoint: Path, number: int) -> None:
    """As if the driver had died between the sink's commit of a batch and Spark's own."""
    (checkpoint / "commits" / str(number)).unlink()
    (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)


def forget_offsets(checkpoint: Path, number: int) -> None:
    (checkpoint / "offsets" / str(number)).unlink()
    (checkpoint / "offsets" / f".{number}.crc").unlink(missing_ok=True)


def test_tasks_that_fail_and_are_tried_again(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Each task twice, at some row, with rows in another order each time, to three topics."""
    produce(cluster, topic, range(10_000))
    environment = {
        name: value for name, value in os.environ.items() if "PYSPARK_GATEWAY" not in name
    }
    arguments = [cluster.tower, topic, topic + "-out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(JOB), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "BATCHES 3" in done.stdout
    sinks = ",".join(f"{topic}-out-{index}" for index in range(3))
    written = batch(spark, cluster, subscribe=sinks)
    assert texts(written.collect()) == sorted(map(str, range(10_000)))
    assert written.select("topic", "partition").distinct().count() == 6
    assert proved(cluster, tmp_path / "checkpoint", passes_through=True) == [0, 1, 2]
    rows = batch(spark, cluster, subscribe=topic + "-out-batch").collect()
    assert texts(rows) == sorted(map(str, range(10_000)))


def test_a_batch_that_spark_forgot_is_not_written_again(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    address = produce(cluster, topic, range(30))
    options = {"subscribe": topic, "maxOffsetsPerTrigger": 10, "maxRecordsPerPartition": 5}
    frame = changed(stream(spark, cluster, **options).select("value"), shuffled)
    sink = topic + "-out"
    send(frame, cluster, tmp_path, topic=sink, audit=True)
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == sorted(map(str, range(30)))
    forget_commit(tmp_path, 2)
    produce(cluster, topic, range(30, 40), address)
    query = send(frame, cluster, tmp_path, topic=sink, audit=True)
    assert proved(cluster, tmp_path, passes_through=True) == [0, 1, 2, 3]
    assert [progress.batchId for progress in query.recentProgress][:2] == [2, 3]
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == sorted(map(str, range(40)))


def test_a_batch_that_appears_at_once(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Nothing of it while a task runs; and once when the driver dies before Spark's commit."""
    produce(cluster, topic, range(30))
    options = {"subscribe": topic, "maxOffsetsPerTrigger": 10, "maxRecordsPerPartition": 5}
    gate = Gate(tmp_path, batch=1)
    columns = ["value", f"concat('{topic}-', cast(cast(value AS string) AS int) % 2) AS topic"]
    frame = changed(stream(spark, cluster, **options).selectExpr(*columns), gate)
    sinks = [f"{topic}-0", f"{topic}-1"]
    written = {"audit": True}
    query = started(frame, cluster, tmp_path / "checkpoint", **written)
    gate.wait_reached()
    assert [seen(cluster, sink) for sink in sinks] == [5, 5]
    gate.open()
    finish(query)
    assert [seen(cluster, sink) for sink in sinks] == [15, 15]
    forget_commit(tmp_path / "checkpoint", 2)
    send(changed(frame, shuffled), cluster, tmp_path / "checkpoint", **written)
    assert proved(cluster, tmp_path / "checkpoint", passes_through=True) == [0, 1, 2]
    rows = batch(spark, cluster, subscribe=",".join(sinks)).collect()
    assert texts(rows) == sorted(map(str, range(30)))


def test_a_batch_with_other_rows_than_before_is_refused(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(10))
    frame = stream(spark, cluster, subscribe=topic).select("value")
    sink = topic + "-out"
    send(frame, cluster, tmp_path, topic=sink)
    forget_commit(tmp_path, 0)
    for where in ("cast(value AS string) <> '3'", "value IS NULL"):
        with pytest.raises(StreamingQueryException, match="10 rows of it are committed"):
            send(frame.where(where), cluster, tmp_path, topic=sink)
    copied = tmp_path.with_suffix(".copy")
    shutil.copytree(tmp_path, copied)
    with pytest.raises(StreamingQueryException, match="it has 10 others now"):
        send(frame.selectExpr("hex(value) AS value"), cluster, copied, topic=sink)
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == sorted(map(str, range(10)))


def test_an_older_checkpoint_is_refused(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(30))
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=10).select("value")
    sink = topic + "-out"
    send(frame, cluster, tmp_path, topic=sink)
    forget_commit(tmp_path, 2)
    forget_commit(tmp_path, 1)
    forget_offsets(tmp_path, 2)
    with pytest.raises(StreamingQueryException, match="its checkpoint is an older copy"):
        send(frame, cluster, tmp_path, topic=sink)
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == sorted(map(str, range(30)))


def test_batches_without_rows(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(40))
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=10).select("value")
    some = frame.where("cast(cast(value AS string) AS int) BETWEEN 10 AND 14")
    sink = topic + "-out"
    send(some, cluster, tmp_path, topic=sink, audit=True)
    assert texts(batch(spark, cluster, subscribe=sink).collect()) == ["10", "11", "12", "13", "14"]
    forget_commit(tmp_path, 3)
    send(some, cluster, tmp_path, topic=sink, audit=True)
    assert proved(cluster, tmp_path) == [0, 1, 2, 3]
    assert batch(spark, cluster, subscribe=sink).count() == 5


def test_the_store_dies_in_the_middle_and_is_started_again(
    spark: SparkSession, cluster: EmbeddedCluster, sinks: EmbeddedCluster, topic: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    sinks.kill_store(1)
    produce(cluster, topic, range(3000))
    gate = Gate(tmp_path, batch=1)
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=1000).select("value")
    query = started(changed(frame, gate), sinks, tmp_path / "checkpoint", topic=topic)
    gate.wait_reached()
    sinks.kill_store(0)
    sinks.start_store(0)
    gate.open()
    finish(query)
    assert texts(batch(spark, sinks, subscribe=topic).collect()) == sorted(map(str, range(3000)))


def test_the_store_dies_for_good_and_another_goes_on(
    spark: SparkSession, cluster: EmbeddedCluster, sinks: EmbeddedCluster, topic: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    produce(cluster, topic, range(3000))
    gate = Gate(tmp_path, batch=1)
    frame = stream(
        spark, cluster, subscribe=topic, maxOffsetsPerTrigger=1000, maxRecordsPerPartition=500
    ).select("value")
    checkpoint = tmp_path / "checkpoint"
    query = started(changed(frame, gate), sinks, checkpoint, topic=topic, acks="all")
    gate.wait_reached()
    picked = pick_store(SinkOptions.of({"tower": sinks.tower, "topic": topic})).store
    sinks.kill_store(sinks.stores.index(picked))
    gate.open()
    # A task that had not begun to write yet finds no store with the rows of the others.
    with pytest.raises(StreamingQueryException, match=r"not acknowledged|it alone had rows"):
        finish(query)
    send(changed(frame, gate), sinks, checkpoint, topic=topic, acks="all")
    whole = sorted(map(str, range(3000)))
    assert texts(batch(spark, sinks, subscribe=topic).collect()) == whole
    forget_commit(checkpoint, 2)
    send(changed(frame, gate), sinks, checkpoint, topic=topic, acks="all")
    assert texts(batch(spark, sinks, subscribe=topic).collect()) == whole


def test_stores_without_flight_are_refused(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(10))
    frame = stream(spark, cluster, subscribe=topic).select("value")
    with ForkedCluster(stores=0) as others:
        others.start_store(0, flight_port="off")
        with pytest.raises(StreamingQueryException, match="with 'dafka store"):
            send(frame, others, tmp_path / "exact", topic=topic)
        offsets = json.loads((tmp_path / "exact" / "offsets" / "0").read_text().splitlines()[-1])
        assert offsets["topics"][topic]  # the batch is planned, and will be the same one
        assert batch(spark, others, subscribe=topic, failOnMissingTopic="false").count() == 0
