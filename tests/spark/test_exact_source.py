"""A batch that is run again gives the same rows in the same tasks, by a real Spark.

Whatever has become of the stores, of the partitions and of the driver meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dafka_core import EmbeddedCluster, Producer
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.spark import exact_job
from tests.spark.topics import TIMEOUT_S, produce, run, stream

Rows = list[tuple[int, str, int, str]]
"""Of a batch: task, partition, offset, value; in order."""


class Batches:
    """What each run of each batch has read."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, Rows]] = []

    def take(self, frame: DataFrame, number: int) -> None:
        tasks = sf.spark_partition_id().alias("task")
        found = frame.select(tasks, "partition", "offset", "value").collect()
        rows = [(r["task"], r["partition"], r["offset"], bytes(r["value"]).decode()) for r in found]
        self.runs.append((number, sorted(rows)))

    def go(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> None:
        query = (
            frame.writeStream.foreachBatch(self.take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            assert query.awaitTermination(TIMEOUT_S)
        finally:
            query.stop()


@pytest.fixture
def mesh() -> Iterator[EmbeddedCluster]:
    """A tower and two stores."""
    with ForkedCluster(2) as running:
        yield running


def forget_commits(checkpoint: Path) -> None:
    """As if the driver had died before the last batch was through; its offsets are written."""
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    last = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    for number in range(last):
        (checkpoint / "commits" / str(number)).write_text(
            'v1\n{"nextBatchWatermarkMs":0}', encoding="ascii"
        )


def produce_to_all(cluster: EmbeddedCluster, topic: str, values: Any, address: str = "") -> str:
    """As ``produce``, and every store has the records."""
    acks = len(cluster.stores)
    with Producer(topic, tower=cluster.tower, address=address or None, acks=acks) as producer:
        producer.publish_many([str(value).encode() for value in values])
        producer.flush(30)
        return producer.address


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_batch_zero_again_with_new_partitions_and_stores(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path, starting: str
) -> None:
    """Its first run has read nothing or something; nothing of it was committed."""
    address = produce_to_all(mesh, topic, range(40))
    given = {"subscribe": topic, "startingOffsets": starting, "maxRecordsPerPartition": 15}
    batches = Batches()
    batches.go(stream(spark, mesh, **given), tmp_path)
    forget_commits(tmp_path)
    produce_to_all(mesh, topic, range(40, 60), address)
    new = produce_to_all(mesh, topic, range(5))
    mesh.start_store(2)
    batches.go(stream(spark, mesh, **given), tmp_path)
    (_, first), *others = batches.runs
    assert others[0] == (0, first)
    assert len(first) == (40 if starting == "earliest" else 0)
    assert {row[0] for row in first} == ({0, 1, 2} if starting == "earliest" else set())
    later = [row[1:3] for _, rows in others[1:] for row in rows]
    assert sorted(later) == sorted(
        [(address, n) for n in range(40, 60)] + [(new, n) for n in range(5)]
    )


def test_the_first_offset_is_fixed_before_there_is_anything_to_read(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """A query that has read nothing yet is killed; what comes meanwhile is not passed over."""
    address = produce(mesh, topic, range(10))
    job = [sys.executable, "-m", exact_job.__name__, mesh.tower, topic, str(tmp_path / "c")]
    with subprocess.Popen(
        [*job, "latest"], stdin=subprocess.PIPE, start_new_session=True
    ) as driver:
        try:
            wait_until((tmp_path / "c" / "offsets" / "0").exists, timeout_s=TIMEOUT_S)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    for path in (tmp_path / "c").glob("commits/*"):
        path.unlink()
    produce(mesh, topic, range(10, 25), address)
    batches = Batches()
    batches.go(stream(spark, mesh, subscribe=topic, startingOffsets="latest"), tmp_path / "c")
    assert [row[2] for _, rows in batches.runs for row in rows] == list(range(10, 25))


def test_the_same_tasks_after_a_store_has_died(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """One store has only the first part of the partition, the other one dies in the batch."""
    address = produce_to_all(mesh, topic, range(100))
    mesh.kill_store(1)
    produce(mesh, topic, range(100, 200), address, resume_missing="ignore")
    mesh.start_store(1)
    given = {"subscribe": topic, "maxRecordsPerPartition": 70, "fetchTimeoutMs": 30_000}

    batches = Batches()
    batches.go(stream(spark, mesh, **given), tmp_path)
    assert [len(rows) for _, rows in batches.runs] == [200]
    forget_commits(tmp_path)
    wait_until_caught_up(mesh.locations(1), topic, address, 200)
    mesh.kill_store(0)
    batches.go(stream(spark, mesh, **given), tmp_path)
    assert batches.runs[1] == batches.runs[0]
    assert {row[0] for row in batches.runs[0][1]} == {0, 1, 2}


def wait_until_caught_up(locations: tuple[str, ...], topic: str, address: str, wanted: int) -> None:
    """A store has all records: they are not lost with another one."""
    with StoreClient(StoreLocation("", locations)) as client:
        assert client.wait(TopicPartition(topic, address), wanted, timeout_s=TIMEOUT_S) == wanted


def test_a_store_that_restarts_does_not_stop_a_query(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """The other store has less for as long as that takes."""
    mesh.kill_store(1)
    address = produce(mesh, topic, range(30))
    given = {"subscribe": topic, "fetchTimeoutMs": 60_000}
    batches = Batches()
    batches.go(stream(spark, mesh, **given), tmp_path)
    mesh.kill_store(0)
    mesh.start_store(1)
    timer = threading.Timer(3, mesh.start_store, (0,))
    timer.start()
    batches.go(stream(spark, mesh, **given), tmp_path)
    timer.join()
    produce(mesh, topic, range(30, 40), address)
    batches.go(stream(spark, mesh, **given), tmp_path)
    assert [row[2] for _, rows in batches.runs for row in rows] == list(range(40))


def test_a_partition_that_vanished(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    mesh.kill_store(1)
    produce(mesh, topic, range(30))
    run(stream(spark, mesh, subscribe=topic), tmp_path, print)
    mesh.kill_store(0)
    mesh.start_store(1)
    produce(mesh, topic, range(5))
    frame = stream(spark, mesh, subscribe=topic, fetchTimeoutMs=2000)
    with pytest.raises(PySparkException, match=r"\[DAFKA_PARTITION_VANISHED\] .* no store has the"):
        run(frame, tmp_path, print)
    seen: list[Any] = []
    lenient = stream(spark, mesh, subscribe=topic, fetchTimeoutMs=2000, failOnDataLoss=False)
    run(lenient, tmp_path, seen.extend)
    assert len(seen) == 5


def test_retention_that_ran_ahead(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    mesh.kill_store(1)
    address = produce(mesh, topic, range(30))
    run(stream(spark, mesh, subscribe=topic, maxOffsetsPerTrigger=10), tmp_path, print, once=True)
    produce(mesh, topic, range(30, 50), address, resume_missing="ignore")
    mesh.kill_store(0)
    log = Log(mesh.store_directory(0))
    log.trim(TopicPartition(topic, address), 40)
    log.close()
    mesh.start_store(0)
    for fetch in ("flight", "auto"):
        frame = stream(spark, mesh, subscribe=topic, fetchTimeoutMs=3000, fetch=fetch)
        with pytest.raises(PySparkException, match=r"\[DAFKA_RETENTION_AHEAD\] .* offset 40 on is"):
            run(frame, tmp_path, print)
    # The batch that failed is run again; of what it was to read only the end is there.
    seen: list[Any] = []
    run(
        stream(spark, mesh, subscribe=topic, fetchTimeoutMs=3000, failOnDataLoss=False),
        tmp_path,
        seen.extend,
    )
    assert [row["offset"] for row in seen] == list(range(40, 50))


@pytest.mark.parametrize("fetch", [pytest.param("flight", marks=pytest.mark.nightly), "auto"])
def test_a_store_that_has_lost_what_a_batch_was_to_read(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path, fetch: str
) -> None:
    """The batch's offsets are written, and a producer has begun anew at the store that is there."""
    mesh.kill_store(1)
    address = produce(mesh, topic, range(30))
    run(stream(spark, mesh, subscribe=topic), tmp_path, print)
    forget_commits(tmp_path)
    mesh.kill_store(0)
    mesh.start_store(1)
    produce(mesh, topic, range(12), address, resume_timeout_s=30, resume_missing="ignore")
    given: dict[str, Any] = {"subscribe": topic, "fetchTimeoutMs": 3000, "fetch": fetch}
    with pytest.raises(PySparkException, match=r"\[DAFKA_HISTORY_CHANGED\] .* a newer producer"):
        run(stream(spark, mesh, **given), tmp_path, print)
    seen: list[Any] = []
    run(stream(spark, mesh, failOnDataLoss=False, **given), tmp_path, seen.extend)
    assert [row["offset"] for row in seen] == list(range(12))


def test_offsets_that_were_edited_are_refused(
    spark: SparkSession, mesh: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    address = produce(mesh, topic, range(30))
    frame = stream(spark, mesh, subscribe=topic, maxOffsetsPerTrigger=20)
    run(frame, tmp_path, print)
    forget_commits(tmp_path)
    path = tmp_path / "offsets" / "1"
    *head, offset = path.read_text().splitlines()
    edited = json.loads(offset)
    edited["topics"][topic][address] = 15
    path.write_text("\n".join([*head, json.dumps(edited)]))
    (tmp_path / "offsets" / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(PySparkException, match=r"starts at offset 20 and ends before it, at 15"):
        run(frame, tmp_path, print)
