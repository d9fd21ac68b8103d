"""A batch write without Spark: a writer and its tasks."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.model.records import TransactionState
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.writer import QUERY_ID, DafkaBatchWriter, TaskCommit
from tests.integration.cluster.transactions import PATIENCE_S, held, options
from tests.unit.dafka_spark.tasks import Task

VALUES = StructType([StructField("value", StringType())])


class BatchJob:
    """Calls a writer as Spark does."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cluster: EmbeddedCluster, topic: str, **given: object
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.writer = DafkaBatchWriter(VALUES, options(cluster, topic=topic, **given))
        self.writer.begin()
        self._monkeypatch = monkeypatch

    def task(self, number: int, rows: pa.Array, query: str = "") -> TaskCommit:
        """Run a task with a copy of the writer, as in another process."""
        Task(number, {QUERY_ID: query} if query else {}).begin(self._monkeypatch)
        writer: DafkaBatchWriter = pickle.loads(pickle.dumps(self.writer))
        written = writer.write(iter([pa.record_batch({"value": rows})]))
        received: TaskCommit = pickle.loads(pickle.dumps(written))
        return received

    def info(self, written: TaskCommit, store: int = 0) -> TransactionState:
        """Return a store's state of a task's partition."""
        (only,) = written.ranges
        return held(self.cluster, self.topic, store, only.tp.partition).info

    def seen(self) -> int:
        """Return the number of the topic's visible records."""
        return seen(self.cluster, self.topic)


def seen(cluster: EmbeddedCluster, topic: str) -> int:
    """Return the number of a topic's visible records in the store with most of them."""
    with StoreSession(options(cluster).mesh_address) as session:
        return max(
            sum(info.end for info in client.heads([topic], timeout_s=PATIENCE_S))
            for client in session.refresh()
        )
