"""Functions that read and write topics in one call, and write in threads of a pool."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


Given = ParamSpec("Given")
Result = TypeVar("Result")


def read_dafka(
    spark: SparkSession, *topics: str, stream: bool = False, **options: Any
) -> DataFrame:
    """Read topics as a batch or a stream.

    Args:
        spark: the session.
        topics: their names, not escaped; none with option ``subscribePattern``, ``assign`` or
            ``metadata``.
        stream: read a stream instead of a batch.
        options: those of docs/options.md, also with underscores (``starting_offsets``).  Dicts
            become JSON, and lists are joined with commas.
    """
    reader = spark.readStream if stream else spark.read
    texts = spark_options({**options, "subscribe": topics or options.get("subscribe")})
    return reader.format("dafka").options(**texts).load()


def write_dafka(
    frame: DataFrame,
    topic: str | None = None,
    *,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    **options: Any,
) -> StreamingQuery | None:
    """Append a DataFrame to a topic: write a batch, or start and return a stream's query.

    Args:
        frame: with the columns of docs/spark.md.
        topic: its name, not escaped; None if column ``topic`` has it.
        checkpoint: a stream's ``checkpointLocation``.
        trigger: arguments of a stream's ``trigger``, as ``{"availableNow": True}``.
        query_name: a stream's name in Spark.
        options: as for ``read_dafka``.
    """
    texts = spark_options({**options, "topic": None if topic is None else [topic]})
    if not frame.isStreaming:
        frame.write.format("dafka").mode("append").options(**texts).save()
        return None
    if checkpoint is not None:
        texts["checkpointLocation"] = checkpoint
    writer = frame.writeStream.format("dafka").options(**texts)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start(queryName=query_name)


def spark_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark takes them, without those that are None.

    Raises ``ConfigError`` if none names a cluster, and Spark's ``DAFKA_TOWER`` is not Python's.
    """
    # Imported here as every session imports this module.
    from dafka_core.config.node_options import towers_of_environment  # noqa: PLC0415
    from dafka_spark.options import camel  # noqa: PLC0415

    texts = {camel(name): _text(value) for name, value in options.items() if value is not None}
    if not texts.keys() & {"tower", "stores"}:
        towers_of_environment()
    return texts


def _text(value: Any) -> str:
    from dafka_core.model.names import escape  # noqa: PLC0415

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if hasattr(value, "simpleString"):  # a schema
        return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ",".join(escape(name).replace(",", r"\x2c") for name in value)
    return str(value)


def in_session(session: SparkSession, function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return the function so that it may write in any thread: ``pool.map(in_session(...), ...)``.

    Spark looks up the format of a write in the session that is active in the thread, and PySpark
    activates none in a new thread: a Python source is ``DATA_SOURCE_NOT_FOUND`` there.  With Spark
    Connect the function is returned unchanged.
    """
    if not hasattr(session, "_jsparkSession"):
        return function

    @wraps(function)
    def active(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        jvm = session._jvm  # noqa: SLF001
        assert jvm is not None
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
        try:
            return function(*args, **kwargs)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    return active
