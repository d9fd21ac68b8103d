"""Writes without Spark: the calls that Spark makes in the driver and in tasks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from dafka_core import EmbeddedCluster
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition, TransactionState
from dafka_core.testing import PATIENCE_S
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.commit_coordinator import Application, pick_store
from dafka_spark.sink.staging import StagingWriter, WriterFactory, WrittenRange
from dafka_spark.sink.store_session import PickedStore, StoreSession
from dafka_spark.sink.writer import (
    BATCH_ID,
    QUERY_ID,
    DafkaBatchWriter,
    DafkaStreamWriter,
    TaskCommit,
)
from tests.integration.cluster.stores import Patch
from tests.unit.dafka_spark.tasks import Task

PARTITION = "0A3F8E1BBB578999443B8818C5851AFC"
VALUES = StructType([StructField("value", StringType())])
ROWS = StructType([StructField(name, StringType()) for name in ("value", "topic")])


class Held(NamedTuple):
    """One store's records of a partition, and its state."""

    values: list[bytes]
    info: TransactionState


class Sink:
    """A topic of a cluster, and the writes to it."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, patch: Patch) -> None:
        self.cluster, self.topic, self.patch = cluster, topic, patch
        self.tp = TopicPartition(topic, PARTITION)

    def options(self, **given: object) -> SinkOptions:
        given = {"tower": self.cluster.tower, "topic": self.topic, **given}
        return SinkOptions.of({name: str(each) for name, each in given.items() if each != ""})

    def session(self) -> StoreSession:
        return StoreSession(self.options().mesh_address)

    def factory(self, store: str = "", /, **given: object) -> WriterFactory:
        """Return a task's writers at a store, by default at the one that a driver picks."""
        options = self.options(**given)
        return WriterFactory(options, PickedStore(store, ()) if store else pick_store(options))

    def open(
        self, store: str = "", partition: str = PARTITION, /, **given: object
    ) -> StagingWriter:
        """Return a writer of one attempt.  The test's process keeps its clients."""
        return self.factory(store, **given).open(TopicPartition(self.topic, partition))

    def commit(self, *written: WrittenRange, store: str = "", **given: object) -> None:
        """Commit at a store, by default the first one, as the driver does after these tasks."""
        options, picked = self.options(**given), store or self.cluster.stores[0]
        application = Application.of(options)
        commit_coordinator.commit(options, PickedStore(picked, ()), written, application)

    def publish(self, values: pa.Array, partition: str = PARTITION, **given: object) -> int:
        """Write and commit one transaction; return the index of the store that was picked."""
        with self.factory(**given) as opened:
            with opened.open(TopicPartition(self.topic, partition)) as writer:
                self.commit(stage(writer, values), store=opened.picked, **given)
            return self.cluster.stores.index(opened.picked)

    def job(self, **given: object) -> Write:
        """Begin a batch write; with an empty ``topic`` to the topics of a column."""
        return Write(self, **given)

    def micro_batch(self, number: int, checkpoint: str = "", **given: object) -> Write:
        """Begin a micro-batch of a query that is named as the topic."""
        return Write(self, number, checkpoint, **{"topic": "", **given})

    def seen(self, topic: str = "") -> int:
        """Return the number of visible records at the store that has most of a topic."""
        with self.session() as session:
            return max(
                sum(i.end for i in client.heads([topic or self.topic], timeout_s=PATIENCE_S))
                for client in session.refresh()
            )

    def held(self, index: int = 0, partition: str = PARTITION, topic: str = "") -> Held:
        """Return what a store has of a partition."""
        store, tp = self.cluster.stores[index], TopicPartition(topic or self.topic, partition)
        with self.session() as session:
            (client,) = [each for each in session.refresh() if store_of(each) == store]
            (info,) = client.transaction_states([tp], timeout_s=PATIENCE_S)
            return Held(read(client, tp, info.end), info)


class Write:
    """A batch write, or a micro-batch with a number."""

    def __init__(
        self, sink: Sink, number: int | None = None, checkpoint: str = "", /, **given: object
    ) -> None:
        options = sink.options(**given)
        self._patch, self._topics = sink.patch, tuple[str, ...]()
        self._properties: dict[str, str] = {}
        self._sent: DafkaBatchWriter | DafkaStreamWriter
        if number is None:
            self._sent = writer = DafkaBatchWriter(VALUES if options.topic else ROWS, options)
            writer.begin()
            self.commit, self.abort = writer.commit, writer.abort
            return

        def in_driver() -> DafkaStreamWriter:  # Spark makes one for each call
            return DafkaStreamWriter(ROWS, options, checkpoint)

        self._sent = pickle.loads(pickle.dumps(in_driver()))
        self._topics = (options.topic or sink.topic,)
        self._properties = {QUERY_ID: sink.topic, BATCH_ID: str(number)}
        self.commit = lambda messages: in_driver().commit(messages, number)
        self.abort = lambda messages: in_driver().abort(messages, number)

    def task(self, number: int, rows: pa.Array, *topics: str, query: str = "") -> TaskCommit:
        """Run a task with a copy of the writer, as in another process.

        The number in a row chooses its topic.
        """
        Task(number, {QUERY_ID: query} if query else self._properties).begin(self._patch)
        batch, topics = pa.record_batch({"value": rows}), topics or self._topics
        if topics:
            names = [topics[int(row) % len(topics)] for row in rows.to_pylist()]
            batch = batch.append_column("topic", pa.array(names, pa.string()))
        copied: DafkaStreamWriter = pickle.loads(pickle.dumps(self._sent))
        message: TaskCommit = pickle.loads(pickle.dumps(copied.write(iter([batch]))))
        return message


def run(write: Write, tasks: Sequence[pa.Array], *topics: str) -> list[TaskCommit]:
    """Run the tasks of a write and commit it."""
    messages = [write.task(number, rows, *topics) for number, rows in enumerate(tasks)]
    write.commit(messages)
    return messages


def stage(writer: StagingWriter, values: pa.Array) -> WrittenRange:
    writer.write(values)
    return writer.finish(soon())


def partition(message: TaskCommit) -> str:
    """Return the address of the only partition that a task has written."""
    (only,) = message.ranges
    return only.tp.partition


def store_of(client: StoreClient) -> str:
    return client.location.store


def soon() -> Deadline:
    """Return a deadline that only a hanging writer misses."""
    return Deadline(PATIENCE_S)


def count_restarts(patch: Patch) -> list[Deadline]:
    """Return a list of the deadlines that are restarted from now on."""
    restart, seen = Deadline.restart, list[Deadline]()

    def counted(deadline: Deadline) -> None:
        seen.append(deadline)
        restart(deadline)

    patch.setattr(Deadline, "restart", counted)
    return seen


def numbers(start: int, stop: int) -> pa.Array:
    return pa.array([b"%d" % number for number in range(start, stop)])


def texts(start: int, stop: int) -> list[bytes]:
    found: list[bytes] = numbers(start, stop).to_pylist()
    return found


def read(client: StoreClient, tp: TopicPartition, end: int) -> list[bytes]:
    found = client.read(
        tp, 0, end, times=False, max_records=1000, max_bytes=1 << 20, timeout_s=PATIENCE_S
    )
    return [value for batch in found for value in batch.values]
