"""A batch write is seen as a whole, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, FencedError
from dafka_core.records import TopicPartition, TransactionState
from dafka_spark.cluster.store_session import StoreSession
from dafka_spark.sink import commit_coordinator, writers
from dafka_spark.sink.commit_messages import TaskCommit
from dafka_spark.sink.task_writer import partition_address
from dafka_spark.sink.writer_factory import WriterFactory
from dafka_spark.sink.writers import BATCH_ID, QUERY_ID, DafkaBatchWriter
from tests.integration.cluster.transactions import (
    PATIENCE_S,
    held,
    numbers,
    options,
    soon,
    texts_of,
)
from tests.spark.faults import Gate, changed
from tests.spark.topics import batch, texts

VALUES = StructType([StructField("value", StringType())])


class Task:
    """What a writer asks a task's context."""

    def __init__(self, number: int, **properties: str) -> None:
        self._number = number
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 -- Spark's name
        return self._number

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 -- Spark's name
        return self._properties.get(name)


class Job:
    """A batch write without Spark: the writer, and its tasks one by one."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedCluster, topic: str, **given: Any
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.writer = DafkaBatchWriter(VALUES, options(cluster, topic=topic, **given))
        self.writer.begin()
        self._monkeypatch = monkeypatch

    def task(self, number: int, rows: pa.Array, query: str = "") -> TaskCommit:
        task = Task(number, **({QUERY_ID: query} if query else {}))
        self._monkeypatch.setattr(writers, "_task", lambda: task)
        return self.writer.write(iter([pa.record_batch({"value": rows})]))

    def info(self, number: int) -> TransactionState:
        """What the picked store has of a task's partition."""
        store = self.cluster.stores.index(self.writer._picked.store)
        partition = partition_address(self.writer._write_id, self.topic, number)
        return held(self.cluster, self.topic, store, partition).info

    def seen(self) -> int:
        """How many records of the topic there are to be seen."""
        return seen(self.cluster, self.topic)


def seen(cluster: EmbeddedCluster, topic: str) -> int:
    """How many records of a topic the store that has most of it shows."""
    with StoreSession(options(cluster).mesh_address) as session:
        return max(
            sum(info.end for info in client.heads([topic], timeout_s=PATIENCE_S))
            for client in session.refresh()
        )


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


def save(frame: DataFrame, cluster: EmbeddedCluster, **given: Any) -> None:
    frame.write.format("dafka").mode("append").options(tower=cluster.tower, **given).save()


def text_rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("cast(id AS string) AS value").repartition(2)


def test_rows_appear_at_once(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    meanwhile = []

    def look() -> None:
        gate.wait_reached()
        meanwhile.append(seen(cluster, topic))
        gate.open()

    looking = threading.Thread(target=look)
    looking.start()
    save(changed(text_rows(spark, 20_000), gate), cluster, topic=topic)
    looking.join()
    assert meanwhile == [0]
    assert batch(spark, cluster, subscribe=topic).count() == 20_000


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "cast(if(id = 99, assert_true(id <> 99, 'not this one'), id) AS string) AS value"
    )
    with pytest.raises(PySparkException, match="not this one"):
        save(frame, cluster, topic=topic)
    assert batch(spark, cluster, subscribe=topic).count() == 0
    save(text_rows(spark, 10), cluster, topic=topic)
    assert texts(batch(spark, cluster, subscribe=topic).collect()) == list("0123456789")


def test_what_is_staged_is_seen_on_commit(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = Job(monkeypatch, shared, topic)
    messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
    assert (job.info(0).staged_end, job.info(1).staged_end, job.seen()) == (10, 20, 0)
    job.writer.commit(messages)
    assert job.seen() == 30
    job.writer.commit(messages)  # Spark may not have heard of it
    assert job.seen() == 30
    assert job.info(0).transaction is None


def test_what_an_aborted_job_has_staged_is_discarded(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = Job(monkeypatch, shared, topic)
    done = job.task(0, numbers(0, 10))
    job.task(1, numbers(0, 20))  # killed before Spark heard of it
    assert job.info(1).staged_end == 20
    job.writer.abort([done, None, None])
    assert all(job.info(number) == TransactionState(0, 0, "", None) for number in range(3))
    assert job.seen() == 0


def test_a_task_run_twice_is_seen_once(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = Job(monkeypatch, shared, topic)
    job.task(0, numbers(0, 10))
    second = job.task(0, numbers(0, 10)[::-1])
    job.writer.commit([second])
    partition = partition_address(job.writer._write_id, topic, 0)
    assert held(shared, topic, 0, partition).values == texts_of(numbers(0, 10)[::-1])


def test_one_stage_that_is_gone_is_the_whole_jobs_failure(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = Job(monkeypatch, shared, topic)
    messages = [job.task(number, numbers(0, 10)) for number in range(3)]
    job.task(1, numbers(0, 10))  # another attempt, of which the driver knows nothing
    with pytest.raises(FencedError):
        job.writer.commit(messages)
    assert job.seen() == 0


def test_more_partitions_than_can_appear_at_once(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    monkeypatch.setattr(commit_coordinator, "MAX_TRANSACTIONS", 2)
    job = Job(monkeypatch, shared, topic)
    messages = [job.task(number, numbers(0, 10)) for number in range(3)]
    with pytest.raises(ConfigError, match="3 partitions cannot appear at once"):
        job.writer.commit(messages)
    assert job.seen() == 0


def test_no_rows_need_no_commit(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    job = Job(monkeypatch, shared, topic)
    assert job.task(0, numbers(0, 0)) == TaskCommit(0, ())
    job.writer.commit([TaskCommit(0, ()), None])
    assert job.seen() == 0


def test_writes_of_one_query_go_on_in_its_partitions(
    monkeypatch: pytest.MonkeyPatch, shared: EmbeddedCluster, topic: str
) -> None:
    for start in (0, 10):
        job = Job(monkeypatch, shared, topic)
        job.writer.commit([job.task(0, numbers(start, start + 10), query="q")])
    found = held(shared, topic, 0, partition_address("q", topic, 0))
    assert found.values == texts_of(numbers(0, 20))
    assert found.info.transaction is None


def test_all_stores_have_it_and_the_picked_one_catches_up(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    with EmbeddedCluster(stores=2) as own:
        job = Job(monkeypatch, own, topic, acks="all")
        job.writer.commit([job.task(0, numbers(0, 10), query="q")])
        partition = partition_address("q", topic, 0)
        for index in range(2):
            assert held(own, topic, index, partition).values == texts_of(numbers(0, 10))
        picked = own.stores.index(job.writer._picked.store)
        own.kill_store(picked)
        tp = TopicPartition(topic, partition)
        with WriterFactory(options(own), 0) as factory, factory.open(tp) as writer:
            writer.write(numbers(10, 20))
            writer.finish(soon())
        own.start_store(picked)
        with StoreSession(options(own).mesh_address) as session:
            session.refresh()  # the store is at another port now
        job.writer.commit([job.task(0, numbers(20, 30), query="q")])
        assert held(own, topic, picked, partition).values == texts_of(numbers(0, 30))


def test_the_store_is_started_again_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    with EmbeddedCluster() as own:
        job = Job(monkeypatch, own, topic)
        messages = [job.task(0, numbers(0, 10)), job.task(1, numbers(10, 30))]
        own.kill_store(0)
        own.start_store(0)
        job.writer.commit(messages)
        assert job.seen() == 30


def test_speculation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(0, **{"spark.speculation": "true", BATCH_ID: "0"})
    monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: task))
    with pytest.raises(ConfigError, match="set it false"):
        writers._task()


def test_a_job_needs_a_store_with_flight(topic: str) -> None:
    with EmbeddedCluster(stores=0) as cluster:
        cluster.start_store(0, flight_port="off")
        writer = DafkaBatchWriter(VALUES, options(cluster, topic=topic))
        with pytest.raises(ConfigError, match="set delivery = at-least-once"):
            writer.begin()
        DafkaBatchWriter(VALUES, options(cluster, topic=topic, delivery="at-least-once")).begin()
