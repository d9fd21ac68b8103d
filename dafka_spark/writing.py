"""The sink: each task puts its rows into a store, and succeeds once stores have them on disk.

Guarantee: at least once.  A row whose task succeeded is stored; a task or a batch that Spark runs
again writes its rows again.

A writer's address is a partition, so that addresses must not be new in each micro-batch: they
are made of what stays the same (the query, the topic, the task's number), and a writer resumes
its partition after the last record the stores have of it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from dafka_core import Producer
from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_spark.errors import ColumnError
from dafka_spark.hosting import HostedPublisher
from dafka_spark.hosts import Hosts
from dafka_spark.options import SinkOptions, parse_name
from dafka_spark.workers import settle

ADDRESSES: Final = uuid.UUID("6f0c2c5e-5d0b-5c0e-9a55-0d6b1c7f3a46")
"""The namespace of the sink's addresses.  Fixed for ever: a query's partitions depend on it."""

MAX_TOPICS: Final = 1000
"""Topics in one task.  Each has a producer with sockets and a thread of its own."""

MIN_WAIT_S: Final = 0.001
"""A flush with no time left still looks once whether all is acknowledged."""

QUERY_ID: Final = "sql.streaming.queryId"
SPECULATION: Final = "spark.speculation"
"""Local properties of a task: Spark hands the session's settings and the query's id on in them."""


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Offsets ``start`` up to, not including, ``end``, written to one partition."""

    topic: str
    partition: str
    start: int
    end: int


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task has written, acknowledged."""

    rows: int
    ranges: tuple[WrittenRange, ...]


class Publisher(Protocol):
    """What writing needs of a partition's writer, as ``dafka_core.Producer`` is one."""

    @property
    def address(self) -> str:
        """The partition."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""

    def publish_many(self, values: pa.Array) -> int:
        """Takes binary or string values without nulls and gives the first one's offset."""

    def flush(self, timeout_s: float) -> None:
        """Waits until all are acknowledged."""

    def __enter__(self) -> Self:
        """Begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the producer."""


Open = Callable[[SinkOptions, str, str], Publisher]
"""Takes the options, a topic and an address."""


def open_publisher(options: SinkOptions, topic: str, address: str) -> Publisher:
    """A publisher that goes on after the last record the stores have of ``address``.

    Stores of ours host the partition, if there are as many as must acknowledge; else it is
    published to the mesh, where stores of any kind do.
    """
    hosts = Hosts(options.via, topic)
    try:
        for find in (hosts.known, hosts.anew):
            known = find()
            if len(known) < options.acks:
                continue
            with suppress(StoreUnreachableError):
                return HostedPublisher(
                    topic,
                    address,
                    known,
                    hosts,
                    acks=options.acks,
                    timeout_s=options.delivery_timeout_ms / 1000,
                )
    except BaseException:
        hosts.close()
        raise
    hosts.close()
    return Producer(
        topic, tower=options.tower, host=options.host, address=address, acks=options.acks
    )


def address(*parts: object) -> str:
    """The same address for the same parts: 32 upper-case hexadecimal digits."""
    return uuid.uuid5(ADDRESSES, "\0".join(map(str, parts))).hex.upper()


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises ``ColumnError`` or ``ConfigError`` for rows that can never be written."""
    for field in schema.fields:
        kind = field.dataType
        if field.name == "value":
            if not isinstance(kind, (BinaryType, StringType)):
                raise ColumnError(
                    "value",
                    f"is {kind.simpleString()}, must be binary or string; "
                    "make one of it, with to_json(struct(...)) for instance",
                )
        elif field.name != "topic":
            raise ColumnError(
                field.name,
                "cannot be written: a record is a 'value', sent to a 'topic'; leave it out, or "
                "make it part of 'value'",
            )
        elif not isinstance(kind, StringType):
            raise ColumnError("topic", f"is {kind.simpleString()}, must be string")
    names = schema.fieldNames()
    if "value" not in names:
        raise ColumnError("value", f"is missing; the columns are {', '.join(names)}")
    if not options.topic and "topic" not in names:
        raise ConfigError(
            "topic", None, "name the topic with this option, or each row's with a column 'topic'"
        )


def by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.Array]]:
    """The values of a batch for each topic, in the order of the rows.

    Raises:
        ColumnError: a row has no value or no topic, or a topic is no valid name.
    """
    values = _whole(batch, "value", "coalesce them, or leave such rows out")
    if topic:
        yield topic, values
        return
    topics = _whole(batch, "topic", "every row needs one, as option 'topic' is not given")
    for name in topics.unique().to_pylist():
        try:
            parse_name(name)
        except ValueError as error:
            raise ColumnError("topic", f"{name!r} {error}") from None
        yield name, values.filter(pc.equal(topics, name))


def _whole(batch: pa.RecordBatch, name: str, cure: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise ColumnError(name, f"{column.null_count} of {len(column)} rows are null; {cure}")
    return column


class Producers:
    """The producers of one task, by topic; ``stack`` closes them."""

    def __init__(
        self,
        options: SinkOptions,
        open_: Open,
        address_of: Callable[[str], str],
        stack: ExitStack,
    ) -> None:
        self._options = options
        self._stack = stack
        self._open = open_
        self._address_of = address_of
        self._producers: dict[str, Publisher] = {}
        self._starts: dict[str, int] = {}
        self._rows = 0

    def publish(self, topic: str, values: pa.Array) -> None:
        """Hands rows to the topic's producer, which is started when it has none."""
        if not len(values):
            return
        producer = self._producers.get(topic)
        if producer is None:
            if len(self._producers) == MAX_TOPICS:
                raise ColumnError(
                    "topic", f"a task writes to more than {MAX_TOPICS} topics; repartition by topic"
                )
            opened = self._open(self._options, topic, self._address_of(topic))
            producer = self._stack.enter_context(opened)
            self._producers[topic] = producer
        first = producer.publish_many(values)
        self._starts.setdefault(topic, first)
        self._rows += len(values)

    def finish(self) -> Written:
        """Waits until everything is acknowledged.

        Raises:
            NotAcknowledgedError: it is not within ``deliveryTimeoutMs``.
        """
        deadline = time.monotonic() + self._options.delivery_timeout_ms / 1000
        for producer in self._producers.values():
            producer.flush(max(deadline - time.monotonic(), MIN_WAIT_S))
        ranges = (
            WrittenRange(topic, producer.address, self._starts[topic], producer.next_offset)
            for topic, producer in self._producers.items()
        )
        return Written(self._rows, tuple(ranges))


def write_rows(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    address_of: Callable[[str], str],
    open_: Open,
) -> Written:
    """Publishes a task's rows, each batch once it is checked, and waits for the stores."""
    with ExitStack() as stack:
        producers = Producers(options, open_, address_of, stack)
        for batch in batches:
            for topic, values in list(by_topic(batch, options.topic)):
                producers.publish(topic, values)
        return producers.finish()


class _Writer:
    """What both writers share.  Commit and abort have nothing to do: what is sent is stored."""

    def __init__(
        self, schema: StructType, options: SinkOptions, open_: Open = open_publisher
    ) -> None:
        check_columns(schema, options)
        self._options = options
        self._open = open_

    def _write(self, batches: Iterator[pa.RecordBatch], writer_id: str) -> Written:
        task = _task()
        number = task.partitionId()
        written = write_rows(
            batches, self._options, lambda topic: address(writer_id, topic, number), self._open
        )
        settle()
        return written


def _task() -> TaskContext:
    """The running task; refuses speculation, which runs a task twice at the same time.

    Both attempts would be one producer's address, and a store keeps the first record it sees of
    each offset: acknowledged rows of one attempt could be the other's.
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

    Each write makes partitions of its own, but for those in ``foreachBatch``: they go on in their
    query's, as its own sink would.
    """

    def __init__(
        self,
        schema: StructType,
        options: SinkOptions,
        *,
        overwrite: bool = False,
        open_: Open = open_publisher,
    ) -> None:
        super().__init__(schema, options, open_)
        if overwrite:
            raise ConfigError("mode", "overwrite", "a topic only grows; use mode('append')")
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes the rows of one task; a second attempt goes on in the first one's partition."""
        return self._write(iterator, _task().getLocalProperty(QUERY_ID) or self._write_id)


class DafkaStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Appends micro-batches to topics; all batches of a query write to the same partitions."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes the rows of one task of a micro-batch."""
        query_id = _task().getLocalProperty(QUERY_ID)
        if not query_id:
            raise RuntimeError("Spark did not tell the task which streaming query it belongs to")
        return self._write(iterator, query_id)
