"""The sink: what Spark calls, in the driver and in tasks (docs/delivery.md)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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

from dafka_core.audit.audit_record import (
    AuditedRange,
    AuditRecord,
    chained,
    partition_of,
    read_contents,
    split,
)
from dafka_core.errors import ConfigError, FencedError, OffsetConflictError, ProducerFencedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.names import AUDIT_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.checkpoint import Checkpoint, sync_checkpoint
from dafka_spark.cluster import timing
from dafka_spark.cluster.known_stores import remember, remembered
from dafka_spark.cluster.timing import Deadline
from dafka_spark.cluster.worker_process import settle
from dafka_spark.options import SinkOptions, camel
from dafka_spark.sink import application, commit_coordinator
from dafka_spark.sink.application import Application
from dafka_spark.sink.commit_messages import NOT_PICKED, PickedStore, TaskCommit, WrittenRange
from dafka_spark.sink.rows import check_columns, encoded, own_address, row_codec, write_rows
from dafka_spark.sink.transaction_writer import WriterFactory

_LAST = 2
"""Records to read: that of the batch, if it is repeated, and the one before."""


class _AuditTrail(Application):
    """A query's records, which are versions of one partition."""

    @property
    def _prefixes(self) -> tuple[str, str]:
        partition = partition_of(self.app_id).partition
        return partition, partition


def note(
    options: SinkOptions,
    picked: PickedStore,
    application: Application,
    written: Sequence[WrittenRange],
    checkpoint: str,
) -> None:
    """Write the record of a batch whose rows are visible, exactly once, as the rows themselves.

    Args:
        options: the sink's.
        picked: the store where the batch is committed.
        application: the query, at the batch.
        written: where its rows are, with their digests.
        checkpoint: where it is, if Spark has given that to the sink.

    Raises what writing a transaction raises (``TransactionalWriter``), and committing one.
    """
    query_id, batch = application.app_id, application.version
    tp = partition_of(query_id)
    ranges = sorted(AuditedRange(*each.tp, each.start, each.end, each.digest) for each in written)
    deadline = Deadline(options.delivery_timeout_s)
    with WriterFactory(options, picked=picked, goes_on=True) as factory, factory.open(tp) as writer:

        def last_at(client: StoreClient) -> tuple[int, list[bytes]]:
            ((end, *_),) = client.transaction_states([tp], timeout_s=timing.ANSWER_S)
            start = max(0, end - _LAST)
            return end, [*read_contents(client, tp, start, end, timeout_s=timing.ANSWER_S)]

        _, last = factory.largest(last_at, deadline)
        before, own = split(last, batch)
        source = _source_digest(checkpoint, batch)
        if own and not (own.source and source):  # one run only may have been given the checkpoint
            source = own.source
        rows = sum(each.end - each.start for each in written)
        record = AuditRecord(query_id, batch, rows, tuple(ranges), source, chained(before))
        writer.write(pa.array([record.packed()], pa.binary()))
        staged = writer.finish(deadline)
    trail = _AuditTrail(query_id, batch, AUDIT_TOPIC, application.owner, is_query=True)
    commit_coordinator.commit(options, picked, [staged], trail)


def _source_digest(checkpoint: str, batch: int) -> str:
    """Empty where the checkpoint is not on this machine, or has no source of ours."""
    if not checkpoint:
        return ""
    try:
        return Checkpoint.read(checkpoint).source_digest(batch)
    except ConfigError:
        return ""


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
SPECULATION: Final = "spark.speculation"
"""Local properties of a task, in which Spark hands on the session's settings, the query's id and
its micro-batch's number.  Nothing else that runs before the first row sees the settings."""


class _Writer:
    """What both writers share."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_columns(schema, options)
        (self._value_kind,) = [each.dataType for each in schema if each.name.lower() == "value"]
        self._options = options
        self._picked = NOT_PICKED
        self.hints = remembered(options.mesh_address.name)
        """Where the stores were, for tasks that are the first ones in their processes."""

    def _write(
        self,
        batches: Iterator[pa.RecordBatch],
        address: Callable[[str, int], str],
        factory: WriterFactory,
    ) -> TaskCommit:
        task_number = _task().partitionId()
        rows = encoded(batches, row_codec(self._value_kind, self._options))
        with factory:
            written = write_rows(
                rows, self._options, lambda topic: address(topic, task_number), factory.open
            )
            stores = factory.stores or self._picked.locations
        settle()
        return replace(written, stores=stores, picked=self._picked.store)


def _task() -> TaskContext:
    """The running task; refuses speculation, which runs a task twice at the same time.

    Both attempts would write to one partition, where each would end the other.  In the mesh a store
    keeps the first record that it sees of each offset: rows of one could pass for the other's.
    """
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written by Spark's tasks only")
    if (task.getLocalProperty(SPECULATION) or "").lower() == "true":
        raise ConfigError(
            SPECULATION, "true", "format 'dafka' cannot write with speculative tasks; set it false"
        )
    return task


class DafkaBatchWriter(_Writer, DataSourceArrowWriter):
    """Appends a DataFrame to topics.

    Each write makes partitions of its own, but for those with ``writerId`` or ``txnAppId``, and
    those in ``foreachBatch``: they go on in their query's, as its own sink would.
    """

    def __init__(
        self, schema: StructType, options: SinkOptions, *, overwrite: bool = False
    ) -> None:
        super().__init__(schema, options)
        if overwrite:
            raise ConfigError(
                "mode", "overwrite", "a topic only grows; use mode('append'), or INSERT INTO"
            )
        if options.audit:
            raise ConfigError("audit", "true", "is for streaming queries: it notes micro-batches")
        self._write_id = uuid.uuid4().hex

    def begin(self) -> None:
        """Picks the store where all tasks stage their rows, or refuses (driver)."""
        if self._options.is_exact:
            self._picked = commit_coordinator.pick_store(self._options)
            application.check(self._options, self._picked)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Writes the rows of one task; a second attempt goes on in the first one's partition."""
        application = Application.of(self._options)
        lasting_id = self._lasting_id or _task().getLocalProperty(QUERY_ID)
        factory = WriterFactory(
            self._options,
            picked=self._picked,
            goes_on=bool(lasting_id or application.app_id),
        )
        named = partial(own_address, self._options.mesh_address.owner, lasting_id or self._write_id)
        with self._naming():
            return self._write(
                iterator, application.address if application.app_id else named, factory
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes everything visible at once (driver)."""
        if self._options.is_exact:
            application = Application.of(self._options)
            with self._naming():
                commit_coordinator.commit(
                    self._options, self._picked, _ranges(messages), application
                )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Gives up what tasks have staged, also those that were killed (driver)."""
        if not self._options.is_exact:
            return
        ranges = _ranges(messages)
        topics = {self._options.topic, *(each.tp.topic for each in ranges)} - {""}
        # Not those of a writerId: what a killed task has staged there cannot be told from what
        # another job has.
        owner = self._options.mesh_address.owner
        partitions = [
            TopicPartition(topic, own_address(owner, self._write_id, topic, task_number))
            for topic in sorted(topics)
            for task_number in range(len(messages))
        ]
        commit_coordinator.discard(self._options, self._picked, ranges, partitions)

    @property
    def _lasting_id(self) -> str:
        """What the partitions of ``writerId`` are named for; never the id of a query."""
        name = self._options.writer_id
        return f"writerId\0{name}" if name else ""

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except (
            FencedError,
            OffsetConflictError,
            ProducerFencedError,
            TransactionExistsError,
        ) as error:
            for option in ("writer_id", "txn_app_id"):
                if name := getattr(self._options, option):
                    why = "another job with this name may have written to the topic meanwhile"
                    cure = "let one follow the other"
                    error.add_note(f"option {camel(option)} = {name!r}: {why}; {cure}")
            raise


class DafkaStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Appends micro-batches to topics; all batches of a query write to the same partitions.

    ``checkpoint`` is where the query's checkpoint is, if Spark has told it.

    The driver commits what all tasks of a batch have staged; with at-least-once tasks commit it.
    Spark makes a writer for each batch and sends it to the tasks; and others, in another process of
    the driver, which it sends nobody, to commit and to abort.
    """

    def __init__(self, schema: StructType, options: SinkOptions, checkpoint: str = "") -> None:
        super().__init__(schema, options)
        self._checkpoint = checkpoint
        if options.writer_id:
            why = "is for batch writes: a streaming query has partitions of its own already"
            raise ConfigError("writerId", options.writer_id, why)
        if options.txn_app_id:
            why = (
                "is for batch writes: each micro-batch of a streaming query is written once anyway"
            )
            raise ConfigError("txnAppId", options.txn_app_id, why)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Writes the rows of one task of a micro-batch."""
        task = _task()
        query_id = task.getLocalProperty(QUERY_ID)
        batch_id = task.getLocalProperty(BATCH_ID)
        if not query_id or not batch_id:
            raise RuntimeError("Spark did not tell the task which query and batch it belongs to")
        picked = self._picked
        factory = WriterFactory(
            self._options, picked=picked, goes_on=bool(picked.store), hints=self.hints
        )
        application = Application.of_query(self._options, query_id, int(batch_id))
        written = self._write(iterator, application.address, factory)
        return replace(written, query=query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Makes all of the batch visible, where tasks have not done so (driver).

        Also notes where tasks have found the stores, for those of the next batch.
        """
        picked = _picked_by(messages)
        if picked.locations:
            remember(self._options.mesh_address.name, picked.locations)
        tasks = [each for each in messages if isinstance(each, TaskCommit)]
        if picked.store:
            application = Application.of_query(self._options, tasks[0].query, batchId)
            sync_checkpoint(self._checkpoint, batchId)
            ranges = commit_coordinator.commit(
                self._options, picked, _ranges(messages), application
            )
            if self._options.audit:
                note(self._options, picked, application, ranges, self._checkpoint)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Gives up what tasks have staged, as far as they could say so (driver)."""
        picked = _picked_by(messages)
        if picked.store:
            commit_coordinator.discard(self._options, picked, _ranges(messages), ())

    def __getstate__(self) -> dict[str, Any]:
        """Picks the store where tasks stage their rows, on the way to them (driver).

        Nothing else tells this writer from the one that commits or aborts, which must not look for
        stores anew: a batch whose stores are away is to be given up at once.
        """
        if self._options.is_exact and not self._picked.store:
            self._picked = commit_coordinator.pick_store(self._options)
        return vars(self)


def _picked_by(messages: Sequence[WriterCommitMessage | None]) -> PickedStore:
    """The store where the tasks have staged their rows, if they have; and where the stores were."""
    found = [each for each in messages if isinstance(each, TaskCommit)]
    return PickedStore(found[-1].picked, found[-1].stores) if found else NOT_PICKED


def _ranges(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenRange]:
    written = [message for message in messages if isinstance(message, TaskCommit)]
    return [each for message in written for each in message.ranges]
