"""A batch write without Spark: its writer, and its tasks one by one."""

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
    """What Spark does with a writer."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cluster: EmbeddedCluster,
        topic: str,
        **given: object,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.writer = DafkaBatchWriter(VALUES, options(cluster, topic=topic, **given))
        self.writer.begin()
        self._monkeypatch = monkeypatch

    def task(self, number: int, rows: pa.Array, query: str = "") -> TaskCommit:
        """Runs a task, which has a copy of the writer, as it would in another process."""
        Task(number, {QUERY_ID: query} if query else {}).begin(self._monkeypatch)
        writer: DafkaBatchWriter = pickle.loads(pickle.dumps(self.writer))
        written = writer.write(iter([pa.record_batch({"value": rows})]))
        told: TaskCommit = pickle.loads(pickle.dumps(written))
        return told

    def info(self, written: TaskCommit, store: int = 0) -> TransactionState:
        """What a store has of a task's partition."""
        (only,) = written.ranges
        return held(self.cluster, self.topic, store, only.tp.partition).info

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
