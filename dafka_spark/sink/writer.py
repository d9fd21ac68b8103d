"""The sink: the writers that Spark calls, in the driver and in tasks (docs/delivery.md)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from dafka_core.errors import ConfigError, FencedError, OffsetConflictError
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.names import printable
from dafka_core.model.records import TopicPartition
from dafka_core.queries.checkpoint import sync_checkpoint
from dafka_spark.options import SinkOptions
from dafka_spark.python_workers import hide_frames, settle
from dafka_spark.sink import commit_coordinator
from dafka_spark.sink.commit_coordinator import Application, own_address
from dafka_spark.sink.rows import check_columns, row_codec, write_rows
from dafka_spark.sink.staging import WriterFactory, WrittenRange
from dafka_spark.sink.store_session import PickedStore

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
SPECULATION: Final = "spark.speculation"
APPLICATION: Final = "spark.app.name"
DESCRIPTION: Final = "spark.job.description"
"""Properties of the TaskContext: the driver's writer cannot read them before the first row."""

_NAME_BYTES: Final = 50
"""Of an application and of a query: with a task's number within ``MAX_CLIENT_BYTES``."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The offsets that one task has staged at the picked store, and the id of its query, if any."""

    ranges: tuple[WrittenRange, ...]
    picked: PickedStore = field(compare=False)
    query: str = field(default="", compare=False)


Messages = Sequence[WriterCommitMessage | None]
"""The reports of a batch's tasks; None for a task that failed."""


class _Writer:
    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_columns(schema, options)
        (self._value_kind,) = [each.dataType for each in schema if each.name.lower() == "value"]
        self._options = options
        self._picked: PickedStore | None = None

    def _write(
        self,
        batches: Iterator[pa.RecordBatch],
        address: Callable[[str, int], str],
        query: str = "",
    ) -> TaskCommit:
        assert self._picked is not None  # the driver has picked it on the way to the tasks
        task = _task()
        task_number = task.partitionId()
        codec = row_codec(self._value_kind, self._options)
        with WriterFactory(self._options, self._picked, _client_name(task)) as factory:
            written = write_rows(
                batches,
                self._options,
                lambda topic: address(topic, task_number),
                factory.open,
                codec,
            )
            picked = PickedStore(factory.picked, tuple(factory.session.locations))
        settle()
        return TaskCommit(written, picked, query)


def _task() -> TaskContext:
    """Return the running task; refuse speculation: attempts at the same time fence each other."""
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written by Spark's tasks only")
    if (task.getLocalProperty(SPECULATION) or "").lower() == "true":
        why = "format 'dafka' cannot write with speculative tasks; set it false"
        raise ConfigError(SPECULATION, "true", why)
    return task


def _client_name(task: TaskContext) -> str:
    """Return the name of a task in lists of partitions: application, query and task number."""
    application = task.getLocalProperty(APPLICATION) or "Spark"
    query = ""
    if query_id := task.getLocalProperty(QUERY_ID):
        # Spark's description of a micro-batch: the query's name, if it has one, and its ids.
        first = (task.getLocalProperty(DESCRIPTION) or "").partition("\n")[0]
        query = f"query {query_id[:8]}" if first.startswith("id = ") else first
    number = f"task {task.partitionId()}"
    words = [printable(word).encode()[:_NAME_BYTES] for word in (application, query) if word]
    return ", ".join([*(word.decode("utf-8", "ignore") for word in words), number])


class DafkaBatchWriter(_Writer, DataSourceArrowWriter):
    """Appends a DataFrame to topics.

    Each write makes partitions of its own, unless ``writerId``, ``txnAppId`` or the query of a
    ``foreachBatch`` names partitions that all of its writes share.
    """

    def __init__(
        self, schema: StructType, options: SinkOptions, *, overwrite: bool = False
    ) -> None:
        super().__init__(schema, options)
        if overwrite:
            why = "a topic only grows; use mode('append'), or INSERT INTO"
            raise ConfigError("mode", "overwrite", why)
        if options.audit:
            raise ConfigError("audit", "true", "is for streaming queries: it notes micro-batches")
        self._write_id = uuid.uuid4().hex

    def begin(self) -> None:
        """Pick the store where all tasks stage their rows (driver)."""
        self._picked = commit_coordinator.pick_store(self._options)
        commit_coordinator.check_version(self._options, self._picked)

    @hide_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Stage the rows of one task."""
        numbered = Application.of(self._options)
        # Not the bare name, which could be the id of a query.
        writer_id = self._options.writer_id and f"writerId\0{self._options.writer_id}"
        name = writer_id or _task().getLocalProperty(QUERY_ID) or self._write_id
        named = partial(own_address, self._options.mesh_address.owner, name)
        with self._naming():
            return self._write(iterator, numbered.address if numbered.app_id else named)

    @hide_frames
    def commit(self, messages: Messages) -> None:
        """Make all rows visible at once (driver)."""
        assert self._picked is not None
        numbered = Application.of(self._options)
        with self._naming():
            commit_coordinator.commit(self._options, self._picked, _ranges(messages), numbered)

    @hide_frames
    def abort(self, messages: Messages) -> None:
        """Discard the rows that tasks have staged, including those of killed tasks (driver)."""
        assert self._picked is not None
        ranges = _ranges(messages)
        topics = {self._options.topic, *(each.tp.topic for each in ranges)} - {""}
        # Not those of a writerId: another job may have staged rows in these.
        owner = self._options.mesh_address.owner
        partitions = [
            TopicPartition(topic, own_address(owner, self._write_id, topic, task_number))
            for topic in sorted(topics)
            for task_number in range(len(messages))
        ]
        commit_coordinator.discard(self._options, self._picked, ranges, partitions)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Add a note to errors of two writes under one name at the same time."""
        try:
            yield
        except (FencedError, OffsetConflictError, TransactionExistsError) as error:
            option = "writerId" if self._options.writer_id else "txnAppId"
            if name := self._options.writer_id or self._options.txn_app_id:
                why = "another job with this name may have written to the topic meanwhile"
                error.add_note(f"option {option} = {name!r}: {why}; run one job after the other")
            else:  # only writes of a foreachBatch share a name otherwise: that of its query
                why = "another write of this query to the topic may run at the same time"
                error.add_note(f"{why}; give each write of a foreachBatch its own writerId")
            raise


class DafkaStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Appends micro-batches to topics; all batches of a query write to the same partitions.

    Spark makes a writer for each batch and sends it to the tasks; and others, in another process of
    the driver, to commit and to abort.  ``checkpoint`` is the path of the query's checkpoint, if
    Spark has given it to the sink.
    """

    def __init__(self, schema: StructType, options: SinkOptions, checkpoint: str = "") -> None:
        super().__init__(schema, options)
        self._checkpoint = checkpoint
        for name, value, why in (
            ("writerId", options.writer_id, "a streaming query has partitions of its own already"),
            ("txnAppId", options.txn_app_id, "each micro-batch of a query is written once anyway"),
        ):
            if value:
                raise ConfigError(name, value, f"is for batch writes: {why}")

    @hide_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Stage the rows of one task of a micro-batch."""
        task = _task()
        query_id = task.getLocalProperty(QUERY_ID)
        batch_id = task.getLocalProperty(BATCH_ID)
        if not query_id or not batch_id:
            raise RuntimeError("Spark has given the task no query id or no batch id")
        query = Application.of_query(self._options, query_id, int(batch_id))
        return self._write(iterator, query.address, query_id)

    @hide_frames
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Make all rows of the batch visible at once (driver)."""
        if not (tasks := _tasks(messages)):
            return
        picked = tasks[-1].picked
        query = Application.of_query(self._options, tasks[-1].query, batchId)
        sync_checkpoint(self._checkpoint, batchId)
        ranges = commit_coordinator.commit(self._options, picked, _ranges(messages), query)
        if self._options.audit:
            commit_coordinator.write_audit_record(
                self._options, picked, query, ranges, self._checkpoint
            )

    @hide_frames
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Discard the rows that tasks have staged, as far as they reported them (driver)."""
        if tasks := _tasks(messages):
            commit_coordinator.discard(self._options, tasks[-1].picked, _ranges(messages), ())

    def __getstate__(self) -> dict[str, Any]:
        """Pick the store where tasks stage their rows (driver).

        Only the writer that Spark sends to the tasks is pickled.  The one that aborts must not
        search for stores: if they are away, Spark should give the batch up at once.
        """
        if self._picked is None:
            self._picked = commit_coordinator.pick_store(self._options)
        return vars(self)


def _tasks(messages: Messages) -> list[TaskCommit]:
    return [each for each in messages if isinstance(each, TaskCommit)]


def _ranges(messages: Messages) -> list[WrittenRange]:
    return [each for message in _tasks(messages) for each in message.ranges]
