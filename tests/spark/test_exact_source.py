"""A repeated batch has the same rows in the same tasks, whatever stores and producers did."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.spark import drivers
from tests.spark.topics import (
    TIMEOUT_S,
    Topics,
    finish,
    forget_last_commit,
    run,
)

Rows = list[tuple[int, str, int, str]]
"""Task, partition, offset and value of each row of a batch, in order."""


@pytest.fixture
def two(spark: SparkSession) -> Iterator[Topics]:
    """A tower and two stores."""
    with ForkedCluster(2) as running:
        yield Topics(spark, running)


def batches(frame: DataFrame, checkpoint: Path) -> list[tuple[int, Rows]]:
    """Run a query to its end and return the number and the rows of each batch."""
    found: list[tuple[int, Rows]] = []

    def take(frame: DataFrame, number: int) -> None:
        tasks = sf.spark_partition_id().alias("task")
        rows = frame.select(tasks, "partition", "offset", "value").collect()
        found.append((number, sorted((*row[:3], bytes(row["value"]).decode()) for row in rows)))

    finish(frame.writeStream.foreachBatch(take), checkpoint)
    return found


@pytest.mark.parametrize(
    ("starting", "count", "tasks"),
    [("latest", 0, set()), ("latest-25", 25, {0, 1}), ("earliest", 40, {0, 1, 2})],
)
def test_the_first_batch_is_repeated_beside_new_partitions_and_stores(
    two: Topics, topic: str, tmp_path: Path, starting: str, count: int, tasks: set[int]
) -> None:
    """Trap: Spark keeps no initial offset of a Python source; a repetition requests it again."""
    address = two.produce(topic, range(40), acks=2)
    frame = two.stream(topic, startingOffsets=starting, maxRecordsPerPartition=15)
    [first] = batches(frame, tmp_path)
    assert len(first[1]) == count
    assert {row[0] for row in first[1]} == tasks
    forget_last_commit(tmp_path)
    two.produce(topic, range(40, 60), address, acks=2)
    new = two.produce(topic, range(5), acks=2)
    two.cluster.start_store(2)
    repeated, *others = batches(frame, tmp_path)
    assert repeated == first
    later = [row[1:3] for _, rows in others for row in rows]
    wanted = [(address, n) for n in range(40, 60)] + [(new, n) for n in range(5)]
    assert sorted(later) == sorted(wanted)


def test_the_first_offset_is_fixed_before_there_are_records(
    two: Topics, topic: str, tmp_path: Path
) -> None:
    """A query that has read no record is killed; it reads those that come meanwhile."""
    address = two.produce(topic, range(10))
    (tmp_path / "hold").touch()
    command = drivers.command(drivers.repartition, two.cluster.tower, topic, "latest", tmp_path, 1)
    checkpoint = tmp_path / "checkpoint"
    with subprocess.Popen(command, start_new_session=True) as driver:
        try:
            wait_until((checkpoint / "offsets" / "0").exists, timeout_s=TIMEOUT_S)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    for path in checkpoint.glob("commits/*"):
        path.unlink()
    two.produce(topic, range(10, 25), address)
    found = batches(two.stream(topic, startingOffsets="latest"), checkpoint)
    assert [row[2] for _, rows in found for row in rows] == [*range(10, 25)]


def test_a_batch_has_the_same_tasks_after_a_store_has_died(
    two: Topics, topic: str, tmp_path: Path
) -> None:
    """At first, the other store has only the first part of the partition."""
    address = two.produce(topic, range(100), acks=2)
    two.cluster.kill_store(1)
    two.produce(topic, range(100, 200), address, resume_missing="ignore")
    two.cluster.start_store(1)
    frame = two.stream(topic, maxRecordsPerPartition=70, fetchTimeoutMs=30_000)
    [first] = batches(frame, tmp_path)
    assert len(first[1]) == 200
    assert {row[0] for row in first[1]} == {0, 1, 2}
    forget_last_commit(tmp_path)
    with StoreClient(StoreLocation("", two.cluster.locations(1))) as client:
        assert client.wait(TopicPartition(topic, address), 200, timeout_s=TIMEOUT_S) == 200
    two.cluster.kill_store(0)
    assert batches(frame, tmp_path) == [first]


def trim(two: Topics, topic: str, address: str) -> None:
    """Let retention of the only store go beyond the query's position."""
    two.produce(topic, range(30, 50), address, resume_missing="ignore")
    two.cluster.kill_store(0)
    log = Log(two.cluster.store_directory(0))
    log.trim(TopicPartition(topic, address), 40)
    log.close()
    two.cluster.start_store(0)


def replace_history(two: Topics, topic: str, address: str) -> None:
    """Replace the store by one at which the producer has begun anew."""
    two.cluster.kill_store(0)
    two.cluster.start_store(1)
    two.produce(topic, range(12), address, resume_timeout_s=30, resume_missing="ignore")


@pytest.mark.parametrize("fetch", [pytest.param("flight", marks=pytest.mark.nightly), "auto"])
@pytest.mark.parametrize(
    ("lose", "error", "left"),
    [
        (trim, r"\[DAFKA_RETENTION_AHEAD\] .* offset 40 on is", range(40, 50)),
        (replace_history, r"\[DAFKA_HISTORY_CHANGED\] .* a newer producer", range(12)),
    ],
)
def test_lost_records_fail_a_query_unless_an_option_allows_them(
    two: Topics, topic: str, tmp_path: Path, lose: Callable[[Topics, str, str], None], error: str,
    left: range, fetch: str,
) -> None:  # fmt: skip
    """The failed batch is repeated with the records that are left of it."""
    two.cluster.kill_store(1)
    address = two.produce(topic, range(30))
    run(two.stream(topic), tmp_path, len)
    if lose is replace_history:
        forget_last_commit(tmp_path)
    lose(two, topic, address)
    options = {"fetchTimeoutMs": 3000, "fetch": fetch}
    with pytest.raises(PySparkException, match=error):
        run(two.stream(topic, **options), tmp_path, len)
    [found] = batches(two.stream(topic, failOnDataLoss=False, **options), tmp_path)
    assert [row[2] for row in found[1]] == [*left]
