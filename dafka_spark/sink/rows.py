"""A task's rows: checks their columns, encodes them, and splits them by topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from dafka_core.errors import ConfigError
from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.name_limits import nearest_name, parse_topic
from dafka_core.model.names import quoted, unescape
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import RowDigest, Values
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ColumnError
from dafka_spark.formats.codecs import BYTES, STRING, Codec, codec_of
from dafka_spark.options import SinkOptions
from dafka_spark.schema import COLUMNS, is_table, plain_strings
from dafka_spark.sink.staging import StagingWriter, WrittenRange

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
"""The columns that an envelope contains, as ``close_columns`` takes them."""

MAX_TOPICS: Final = 1000  # topics of one task: each has a writer, with rows in memory


def row_codec(kind: DataType, options: SinkOptions) -> Codec | None:
    """Return the codec for column ``value``; None if its bytes are written unchanged."""
    kind = plain_strings(kind)
    found = kind.simpleString()
    if options.value_format == BYTES:
        if not isinstance(kind, (BinaryType, StringType)):
            cure = "name a format with option valueFormat, or convert it with to_json(value)"
            raise ColumnError("value", f"is {found}, must be binary or string; {cure}")
        return None
    if options.value_format == STRING:
        if not isinstance(kind, StringType):
            raise ColumnError("value", f"is {found}, must be string with valueFormat = string")
        return None
    codec = options.codec()
    try:
        codec = codec or codec_of(options.value_format, kind)
    except ValueError as error:
        raise ColumnError("value", str(error)) from None
    if codec and found != (wanted := codec.kind.simpleString()):
        needs = (
            f"and option valueSchema is {wanted}" if options.value_schema else f"must be {wanted}"
        )
        raise ColumnError("value", f"is {found}, {needs}")
    return codec


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise ``ColumnError`` or ``ConfigError`` if rows of this schema can't be written.

    Column names match in any case.  INSERT fills all columns of a SQL table; ``by_topic`` checks
    that those without a meaning are null.
    """
    names = [name.lower() for name in schema.fieldNames()]
    for field, name in zip(schema.fields, names, strict=True):
        kind = plain_strings(field.dataType)
        if names.count(name) > 1:
            raise ColumnError(field.name, "exists more than once, in this or another case")
        if name in ("key", "headers") and not options.opens_envelopes and not is_table(schema):
            raise ColumnError(field.name, NO_ENVELOPES)
        if name == "value":
            row_codec(kind, options)
        elif name == "key":
            if not isinstance(kind, (BinaryType, StringType)):
                why = f"is {kind.simpleString()}, must be binary or string"
                cure = "convert it, with to_json(struct(...)) for instance"
                raise ColumnError(name, f"{why}; {cure}")
        elif name in ("topic", "headers"):
            wanted = COLUMNS[name].simpleString()
            if kind.simpleString() != wanted:
                raise ColumnError(name, f"is {kind.simpleString()}, must be {wanted}")
        elif not is_table(schema):
            near = nearest_name(name, WRITTEN.difference(names))
            cure = f"did you mean {near!r}?" if near else "leave it out, or make it part of 'value'"
            why = OWN_PARTITIONS if name == "partition" else f"{NOT_WRITTEN}; {cure}"
            raise ColumnError(field.name, why)
    if "value" not in names:
        raise ColumnError("value", f"is missing; the columns are {', '.join(names)}")
    if not options.topic and "topic" not in names:
        why = "name the topic with this option, or each row's with a column 'topic'"
        raise ConfigError("topic", None, why)


def by_topic(
    batch: pa.RecordBatch, options: SinkOptions, codec: Codec | None = None
) -> Iterator[tuple[str, pa.Array]]:
    """Yield the contents of a batch's records for each topic, in the order of the rows."""
    batch = batch.rename_columns([name.lower() for name in batch.schema.names])
    if codec is not None:
        try:
            values = codec.encode(batch["value"])
        except ValueError as error:
            raise ColumnError("value", str(error)) from None
        batch = batch.set_column(batch.schema.get_field_index("value"), "value", values)
    if not WRITTEN.issuperset(batch.schema.names):
        _check_inserted(batch, options)
    contents = _contents(batch, options)
    if options.topic:
        yield options.topic, contents
        return
    whole = _whole(batch, "topic", "every row needs one, as option 'topic' is not given")
    topics = whole.dictionary_encode()
    codes = topics.indices.to_numpy()
    ends = np.cumsum(np.bincount(codes))
    parts = np.split(np.argsort(codes, kind="stable"), ends)  # and an empty one
    for shown, rows in zip(topics.dictionary.to_pylist(), parts, strict=False):
        try:
            topic = parse_topic(shown)
        except ValueError as error:
            raise ColumnError("topic", f"'{shown}': {error}") from None
        if why := options.topic_error(topic):
            raise ColumnError("topic", f"{quoted(topic)}: {why}")
        yield topic, contents.take(rows)


def _contents(batch: pa.RecordBatch, options: SinkOptions) -> pa.Array:
    if not options.opens_envelopes:
        return _whole(batch, "value", "coalesce them, or leave out option envelope = none")
    columns = [batch.column(name) if name in batch.schema.names else None for name in CLOSED]
    try:
        return close_columns(*columns)
    except ValueError as error:
        raise ColumnError("headers", str(error)) from None


def _check_inserted(batch: pa.RecordBatch, options: SinkOptions) -> None:
    written = WRITTEN if options.opens_envelopes else WRITTEN - {"key", "headers"}
    for name in batch.schema.names:
        if name not in written and batch.column(name).null_count < batch.num_rows:
            if name in WRITTEN:
                raise ColumnError(name, NO_ENVELOPES)
            cure = "name the columns to insert: INSERT INTO table (value) SELECT value ..."
            raise ColumnError(name, f"{NOT_WRITTEN}; {cure}")
    topic = options.topic
    named = set(map(unescape, batch.column("topic").unique().drop_null().to_pylist()))
    if topic and (others := named - {topic}):
        why = f"is {quoted(min(others))}, and the table is written to topic {quoted(topic)}"
        raise ColumnError("topic", f"{why}; leave it out")


def _whole(batch: pa.RecordBatch, name: str, cure: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise ColumnError(name, f"{column.null_count} of {len(column)} rows are null; {cure}")
    return column


def write_rows(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    address_of: Callable[[str], str],
    open_: Callable[[TopicPartition], StagingWriter],
    codec: Codec | None = None,
) -> tuple[WrittenRange, ...]:
    """Stage a task's rows, each batch after its check, and wait until they are on disk.

    A topic from option ``topic`` is opened before the first row, so that a query that can't be
    written fails early.
    """
    writers: dict[str, StagingWriter] = {}
    digests: dict[str, RowDigest] = {}
    with ExitStack() as stack:

        def writer_of(topic: str) -> StagingWriter:
            if topic not in writers:
                if len(writers) == MAX_TOPICS:
                    why = f"a task writes to more than {MAX_TOPICS} topics; repartition by topic"
                    raise ColumnError("topic", why)
                opened = open_(TopicPartition(topic, address_of(topic)))
                writers[topic] = stack.enter_context(opened)
            return writers[topic]

        if options.topic:
            writer_of(options.topic)
        for batch in batches:
            for topic, contents in list(by_topic(batch, options, codec)):
                if len(contents):
                    writer_of(topic).write(contents)
                    if options.audit:
                        digest = digests.setdefault(topic, RowDigest())
                        digest.add(Values.from_arrow(contents))
        deadline = Deadline(options.delivery_timeout_s)
        ranges = [writer.finish(deadline) for writer in writers.values()]
        if options.audit:
            ranges = [replace(each, digest=str(digests.get(each.tp.topic, ""))) for each in ranges]
    return tuple(each for each in ranges if each.end > each.start)
