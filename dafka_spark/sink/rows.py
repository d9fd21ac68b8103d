"""The writer of a task: it encodes rows and splits them into partitions.

A partition's address must not be new in each micro-batch: it is made of what stays the same (the
query, the topic, the task's number), and a writer goes on after the last record of its partition.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from dafka_core.errors import ConfigError
from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.name_limits import parse_topic
from dafka_core.model.names import octets_of, quoted, unescape
from dafka_core.model.records import TopicPartition
from dafka_core.model.row_digest import RowDigest
from dafka_core.model.values import Values
from dafka_core.security.permissions import Permissions
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ColumnError
from dafka_spark.formats.codecs import BYTES, STRING, Codec, codec_of
from dafka_spark.options import SinkOptions
from dafka_spark.schema import COLUMNS, is_table, plain_strings
from dafka_spark.sink.commit_messages import TaskCommit, WrittenRange


def row_codec(kind: DataType, options: SinkOptions) -> Codec | None:
    """What makes values of a column of this type; None where they are values already.

    Raises:
        ColumnError: the column is of another type than the options say, or cannot be written so.
    """
    kind = plain_strings(kind)
    found = kind.simpleString()
    if options.value_format == BYTES:
        if not isinstance(kind, (BinaryType, StringType)):
            cure = "name a format with option valueFormat, or make one of it with to_json(value)"
            raise ColumnError("value", f"is {found}, must be binary or string; {cure}")
        return None
    if options.value_format == STRING:
        if not isinstance(kind, StringType):
            raise ColumnError("value", f"is {found}, must be string with valueFormat = string")
        return None
    codec = options.codec()
    if codec is None:
        try:
            return codec_of(options.value_format, kind)
        except ValueError as error:
            raise ColumnError("value", str(error)) from None
    if found != (wanted := codec.kind.simpleString()):
        raise ColumnError("value", f"is {found}, and option valueSchema says {wanted}")
    return codec


def encoded(batches: Iterator[pa.RecordBatch], codec: Codec | None) -> Iterator[pa.RecordBatch]:
    """The batches with values in place of the column.

    Raises:
        ColumnError: a row cannot be written so.
    """
    for batch in batches:
        at = [name.lower() for name in batch.schema.names].index("value")
        if codec is None:
            yield batch
            continue
        try:
            values = codec.encode(batch.column(at))
        except ValueError as error:
            raise ColumnError("value", str(error)) from None
        yield batch.set_column(at, batch.schema.names[at], values)


ADDRESSES: Final = uuid.UUID("6f0c2c5e-5d0b-5c0e-9a55-0d6b1c7f3a46")
"""The namespace of the sink's addresses.  Fixed for ever: a query's partitions depend on it."""

WRITTEN: Final = frozenset({"value", "topic", "key", "headers"})
NOT_WRITTEN: Final = (
    "cannot be written: a record is a 'value', with 'key' and 'headers', sent to a 'topic'"
)
OWN_PARTITIONS: Final = (
    "cannot be chosen: each task writes partitions of its own, as only one writer can write a "
    "partition exactly once; leave the column out, and repartition by the key where the rows of a "
    "key must stay in order"
)

NO_ENVELOPES: Final = "cannot be written with option envelope = none, which leaves values alone"

CLOSED: Final = ("value", "key", "headers")
"""The columns that contents are made of, as ``close_columns`` takes them."""

MAX_TOPICS: Final = 1000
"""Topics in one task: each has a writer with rows, and perhaps sockets and threads, of its own."""


class PartitionWriter(Protocol):
    """What writing needs of a partition's writer."""

    def write(self, contents: pa.Array) -> None:
        """Takes binary or string without nulls."""

    def finish(self, deadline: Deadline) -> WrittenRange:
        """Waits until all are acknowledged, or staged; says where."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


def partition_address(*parts: object) -> str:
    """The same address for the same parts: 32 upper-case hexadecimal digits."""
    name = octets_of("\0".join(map(str, parts)))  # uuid5 takes octets from Python 3.12 on
    digest = hashlib.sha1(ADDRESSES.bytes + name, usedforsecurity=False).digest()
    return uuid.UUID(bytes=digest[:16], version=5).hex.upper()


def own_address(owner: Permissions, *parts: object) -> str:
    """The same, and one that the sink's key owns; that from before the key where it is listed."""
    return owner.made_own(partition_address(*parts))


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises ``ColumnError`` or ``ConfigError`` for rows that can never be written.

    Columns are named in any case.  Into a SQL table Spark inserts all of the table's columns, and
    ``by_topic`` sees that the others are null.
    """
    names = [name.lower() for name in schema.fieldNames()]
    for field, name in zip(schema.fields, names, strict=True):
        kind = plain_strings(field.dataType)
        if names.count(name) > 1:
            raise ColumnError(field.name, "is there more than once, in this or another case")
        if name in ("key", "headers") and not options.opens and not is_table(schema):
            raise ColumnError(field.name, NO_ENVELOPES)
        if name == "value":
            row_codec(kind, options)
        elif name == "key":
            if not isinstance(kind, (BinaryType, StringType)):
                why = f"is {kind.simpleString()}, must be binary or string"
                cure = "make one of it, with to_json(struct(...)) for instance"
                raise ColumnError(name, f"{why}; {cure}")
        elif name in ("topic", "headers"):
            wanted = COLUMNS[name].simpleString()
            if kind.simpleString() != wanted:
                raise ColumnError(name, f"is {kind.simpleString()}, must be {wanted}")
        elif not is_table(schema):
            cure = "leave it out, or make it part of 'value'"
            why = OWN_PARTITIONS if name == "partition" else f"{NOT_WRITTEN}; {cure}"
            raise ColumnError(field.name, why)
    if "value" not in names:
        raise ColumnError("value", f"is missing; the columns are {', '.join(names)}")
    if not options.topic and "topic" not in names:
        why = "name the topic with this option, or each row's with a column 'topic'"
        raise ConfigError("topic", None, why)


def by_topic(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[tuple[str, pa.Array]]:
    """The contents of a batch's rows for each topic, in the order of the rows.

    Raises:
        ColumnError: a row has no topic, a topic is no valid name, a header has no name, or a
            column of a SQL table that cannot be written is not null.
    """
    batch = batch.rename_columns([name.lower() for name in batch.schema.names])
    if not WRITTEN.issuperset(batch.schema.names):
        _check_inserted(batch, options)
    contents = _contents(batch, options)
    if options.topic:
        yield options.topic, contents
        return
    topics = _whole(batch, "topic", "every row needs one, as option 'topic' is not given")
    for shown in topics.unique().to_pylist():
        try:
            topic = parse_topic(shown)
        except ValueError as error:
            raise ColumnError("topic", f"'{shown}': {error}") from None
        if why := options.why_not(topic):
            raise ColumnError("topic", f"{quoted(topic)}: {why}")
        yield topic, contents.filter(pc.equal(topics, shown))


def _contents(batch: pa.RecordBatch, options: SinkOptions) -> pa.Array:
    """The contents of the rows: in envelopes where they have keys, headers or null values."""
    if not options.opens:
        return _whole(batch, "value", "coalesce them, or leave out option envelope = none")
    columns = [batch.column(name) if name in batch.schema.names else None for name in CLOSED]
    try:
        return close_columns(*columns)
    except ValueError as error:
        raise ColumnError("headers", str(error)) from None


def _check_inserted(batch: pa.RecordBatch, options: SinkOptions) -> None:
    written = WRITTEN if options.opens else WRITTEN - {"key", "headers"}
    for name in batch.schema.names:
        if name not in written and batch.column(name).null_count < batch.num_rows:
            if name in WRITTEN:
                raise ColumnError(name, NO_ENVELOPES)
            cure = "say what is to be inserted: INSERT INTO table (value) SELECT value ..."
            raise ColumnError(name, f"{NOT_WRITTEN}; {cure}")
    topic = options.topic
    named = set(map(unescape, batch.column("topic").unique().drop_null().to_pylist()))
    if topic and (others := named - {topic}):
        to = quoted(topic)
        why = f"is {quoted(min(others))}, and the table is written to topic {to}; leave it out"
        raise ColumnError("topic", why)


def _whole(batch: pa.RecordBatch, name: str, cure: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise ColumnError(name, f"{column.null_count} of {len(column)} rows are null; {cure}")
    return column


def write_rows(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    address_of: Callable[[str], str],
    open_: Callable[[TopicPartition], PartitionWriter],
) -> TaskCommit:
    """Writes a task's rows, each batch once it is checked, and waits for the stores.

    With exactly-once a topic known beforehand is opened before there are rows: a query that cannot
    be written is refused at once, and a transaction that was written before is found in any case.

    Raises:
        NotAcknowledgedError: stores do not have the rows within ``deliveryTimeoutMs``.
    """
    writers: dict[str, PartitionWriter] = {}
    digests: dict[str, RowDigest] = {}
    row_count = 0
    with ExitStack() as stack:

        def writer_of(topic: str) -> PartitionWriter:
            if topic not in writers:
                if len(writers) == MAX_TOPICS:
                    why = f"a task writes to more than {MAX_TOPICS} topics; repartition by topic"
                    raise ColumnError("topic", why)
                opened = open_(TopicPartition(topic, address_of(topic)))
                writers[topic] = stack.enter_context(opened)
            return writers[topic]

        if options.is_exact and options.topic:
            writer_of(options.topic)
        for batch in batches:
            for topic, contents in list(by_topic(batch, options)):
                if len(contents):
                    writer_of(topic).write(contents)
                    row_count += len(contents)
                    if options.audit:
                        digest = digests.setdefault(topic, RowDigest())
                        digest.add(Values.from_arrow(contents))
        deadline = Deadline(options.delivery_timeout_s)
        ranges = [writer.finish(deadline) for writer in writers.values()]
        if options.audit:
            ranges = [replace(each, digest=str(digests.get(each.tp.topic, ""))) for each in ranges]
    return TaskCommit(row_count, tuple(each for each in ranges if each.end > each.start))
