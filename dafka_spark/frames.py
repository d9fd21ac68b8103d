"""One call to read topics, and one to write them: the same code as batch or as stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def read_dafka(
    spark: SparkSession, *topics: str, stream: bool = False, **options: Any
) -> DataFrame:
    """The records of topics, or what options ``subscribePattern``, ``assign`` or ``metadata`` say.

    Args:
        spark: the session.
        topics: their names, as they are: nothing in them is escaped.
        stream: whether to follow them; else a batch of what there is.
        options: as docs/options.md has them, or with underscores (``starting_offsets``); what is
            JSON or a list with commas there may be a dict or a list.

    Raises what ``load`` raises for wrong options.
    """
    given = option_texts(options)
    if topics:
        given["subscribe"] = _names(topics)
    reader = spark.readStream if stream else spark.read
    return reader.format("dafka").options(**given).load()


def write_dafka(
    frame: DataFrame,
    topic: str | None = None,
    *,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    **options: Any,
) -> StreamingQuery | None:
    """Appends the rows of a DataFrame to a topic, or to those that its column ``topic`` names.

    A streaming one becomes a query, which is started and returned; a batch is written when this
    returns None.

    Args:
        frame: with the columns that docs/spark.md says.
        topic: its name, as it is.
        checkpoint: for a stream, ``checkpointLocation``.
        trigger: for a stream, what ``DataStreamWriter.trigger`` takes: ``{"availableNow": True}``.
        query_name: for a stream, its name in Spark.
        options: as those of ``read_dafka``.
    """
    given = option_texts(options)
    if topic is not None:
        given["topic"] = _names([topic])
    if not frame.isStreaming:
        frame.write.format("dafka").mode("append").options(**given).save()
        return None
    if checkpoint is not None:
        given["checkpointLocation"] = checkpoint
    writer = frame.writeStream.format("dafka").options(**given)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start()


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark takes them; those that are None are left out.

    Raises ConfigError if none names a cluster, and Spark's ``DAFKA_TOWER`` is not Python's.
    """
    from dafka_core.config.node_options import towers_of_environment  # noqa: PLC0415 -- as below
    from dafka_spark.options import camel  # noqa: PLC0415 -- sessions import this module

    given = {camel(name): _text(value) for name, value in options.items() if value is not None}
    if not given.keys() & {"tower", "stores"}:
        towers_of_environment()
    return given


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if hasattr(value, "simpleString"):  # a type of Spark's, as a schema
        return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return _names(value)
    return str(value)


def _names(names: Iterable[str]) -> str:
    from dafka_core.model.names import escape  # noqa: PLC0415 -- the same

    return ",".join(escape(name).replace(",", r"\x2c") for name in names)
