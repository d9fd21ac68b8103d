"""Writes without Spark: the calls that Spark makes in the driver and in tasks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.model.records import TransactionState
from dafka_core.testing import PATIENCE_S
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import (
    BATCH_ID,
    QUERY_ID,
    DafkaBatchWriter,
    DafkaStreamWriter,
    TaskCommit,
)
from tests.integration.cluster.transactions import held, options
from tests.unit.dafka_spark.tasks import Task

VALUES = StructType([StructField("value", StringType())])
ROWS = StructType([StructField(name, StringType()) for name in ("value", "topic")])


class BatchJob:
    """A batch write to one topic, or to those of column ``topic`` if it is empty."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedCluster, topic: str, **given: object
    ) -> None:
        self.cluster, self.topic = cluster, topic
        given = {"topic": topic, **given} if topic else given
        self.writer = DafkaBatchWriter(VALUES if topic else ROWS, options(cluster, **given))
        self.writer.begin()
        self._monkeypatch = monkeypatch

    def task(self, number: int, rows: pa.Array, *topics: str, query: str = "") -> TaskCommit:
        """Run a task with a copy of the writer, as in another process."""
        properties = {QUERY_ID: query} if query else {}
        Task(number, properties).begin(self._monkeypatch)
        return written(self.writer, rows, topics)

    def commit(self, messages: Sequence[TaskCommit | None]) -> None:
        self.writer.commit(messages)

    def info(self, message: TaskCommit, store: int = 0) -> TransactionState:
        """Return a store's state of the only partition that a task has written."""
        return held(self.cluster, self.topic, store, partition(message)).info

    def seen(self) -> int:
        return seen(self.cluster, self.topic)


class MicroBatch:
    """A micro-batch of a query, to the topics that each task names or to option ``topic``."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cluster: EmbeddedCluster,
        number: int,
        query: str,
        checkpoint: str = "",
        **given: object,
    ) -> None:
        self._number, self._query = number, query
        self._monkeypatch = monkeypatch
        self._options = options(cluster, **given)
        self._checkpoint = checkpoint
        self._sent: DafkaStreamWriter = pickle.loads(pickle.dumps(self._writer()))

    def _writer(self) -> DafkaStreamWriter:
        # Spark makes a writer for each call in the driver.
        return DafkaStreamWriter(ROWS, self._options, self._checkpoint)

    def task(self, number: int, rows: pa.Array, *topics: str) -> TaskCommit:
        properties = {QUERY_ID: self._query, BATCH_ID: str(self._number)}
        Task(number, properties).begin(self._monkeypatch)
        return written(self._sent, rows, topics or (self._options.topic,))

    def commit(self, messages: Sequence[TaskCommit | None]) -> None:
        self._writer().commit(messages, self._number)

    def abort(self, messages: Sequence[TaskCommit | None]) -> None:
        self._writer().abort(messages, self._number)


def written(
    writer: DafkaBatchWriter | DafkaStreamWriter, rows: pa.Array, topics: Sequence[str]
) -> TaskCommit:
    """Write the rows with a copy of the writer; the number in a row chooses its topic."""
    batch = pa.record_batch({"value": rows})
    if topics:
        names = pa.array([topics[int(row) % len(topics)] for row in rows.to_pylist()], pa.string())
        batch = batch.append_column("topic", names)
    copied: DafkaStreamWriter = pickle.loads(pickle.dumps(writer))
    message: TaskCommit = pickle.loads(pickle.dumps(copied.write(iter([batch]))))
    return message


def run(write: BatchJob | MicroBatch, tasks: Sequence[pa.Array], *topics: str) -> list[TaskCommit]:
    """Run the tasks of a write and commit it."""
    messages = [write.task(number, rows, *topics) for number, rows in enumerate(tasks)]
    write.commit(messages)
    return messages


def partition(message: TaskCommit) -> str:
    """Return the address of the only partition that a task has written."""
    (only,) = message.ranges
    return only.tp.partition


def seen(cluster: EmbeddedCluster, topic: str) -> int:
    """Return the number of visible records of a topic at the store that has most of it."""
    with StoreSession(options(cluster).mesh_address) as session:
        return max(
            sum(info.end for info in client.heads([topic], timeout_s=PATIENCE_S))
            for client in session.refresh()
        )
