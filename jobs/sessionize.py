r"""Write the sessions of each key to another topic; a pause ends a session.

    dafka job sessionize --topic clicks --to sessions --checkpoint DIR --gap 30m

The key and the time are those of the record, or those of ``--key`` and ``--time``, in Spark SQL
over the source's columns and ``text``, the value as a string.  A session is written once, when the
watermark has passed its last record by the gap.  Records behind the watermark are dropped and
counted (``late``), and those without key or time, too (``unusable``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from dafka_spark.formats import import_extra
from dafka_spark.job_support import (
    TOPICS,
    JobError,
    JobParser,
    add_option,
    add_query_arguments,
    build_session,
    check_options,
    duration_ms,
    read_topics,
    run_job,
    run_query,
)

SESSION_SCHEMA = "session_key string, first_us bigint, last_us bigint, records bigint"
STATE_SCHEMA = "first_us bigint, last_us bigint, records bigint"

# transformWithState supports no other state store.
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Span = tuple[int, int, int]
"""The times of the first and the last record, in microseconds, and the number of records."""


def merged(spans: Iterable[Span], gap_us: int) -> list[Span]:
    """Merge spans, in any order, that are closer than the gap."""
    found: list[Span] = []
    for first, last, count in sorted(spans):
        if found and first - found[-1][1] < gap_us:
            before = found.pop()
            found.append((before[0], max(before[1], last), before[2] + count))
        else:
            found.append((first, last, count))
    return found


class Sessions(StatefulProcessor):
    """The sessions of one key that may still grow."""

    def __init__(self, gap_us: int) -> None:
        self._gap_us = gap_us

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._handle = handle
        self._open = handle.getListState("open", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Add records to sessions; timers end them."""
        before = self._spans()
        after = merged([*before, *((row.time_us, row.time_us, 1) for row in rows)], self._gap_us)
        self._open.put([*after])
        for end_ms in {*map(self._end_ms, after)} - {*map(self._end_ms, before)}:
            self._handle.registerTimer(end_ms)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Return the sessions that have ended."""
        now_ms = expiredTimerInfo.getExpiryTimeInMs()
        left = []
        for span in self._spans():
            if self._end_ms(span) > now_ms:
                left.append(span)
                self._handle.registerTimer(self._end_ms(span))  # the gap may have been shorter
            else:
                first_us, last_us, records = span
                yield Row(session_key=key[0], first_us=first_us, last_us=last_us, records=records)
        if left:
            self._open.put(left)
        else:
            self._open.clear()

    def _spans(self) -> list[Span]:
        if not self._open.exists():
            return []
        return [(first, last, count) for first, last, count in self._open.get()]

    def _end_ms(self, span: Span) -> int:
        return -(-(span[1] + self._gap_us) // 1_000)


def timed(records: DataFrame, key: str, time: str) -> DataFrame:
    """Add columns ``session_key``, ``time`` and ``time_us``, which may be null.

    Raises:
        AnalysisException: an expression that Spark cannot understand.
    """
    texts = records.withColumn("text", sf.col("value").cast("string"))
    named = texts.select(
        sf.expr(key).cast("string").alias("session_key"),
        sf.expr(time).cast("timestamp").alias("time"),
    )
    return named.withColumn("time_us", sf.unix_micros("time"))


def sessions(records: DataFrame, *, gap_ms: int, delay_ms: int) -> DataFrame:
    """Return the ended sessions of ``timed`` records, as ``SESSION_SCHEMA``."""
    unusable = sf.count_if(sf.col("session_key").isNull() | sf.col("time").isNull())
    return (
        records.observe("sessionize", unusable.alias("unusable"))
        .where("session_key is not null and time is not null")
        .withWatermark("time", f"{delay_ms} milliseconds")
        .groupBy("session_key")
        .transformWithState(Sessions(gap_ms * 1_000), SESSION_SCHEMA, "append", "eventTime")
    )


def to_records(found: DataFrame) -> DataFrame:
    """Return sessions as records with a key, and JSON with times in UTC."""
    value = sf.struct(
        sf.col("session_key").alias("key"),
        sf.timestamp_micros("first_us").alias("start"),
        sf.timestamp_micros("last_us").alias("end"),
        "records",
    )
    return found.select(
        sf.col("session_key").cast("binary").alias("key"),
        sf.to_json(value, {"timeZone": "UTC"}).cast("binary").alias("value"),
    )


def build_writer(session: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    """Return the query, before its start."""
    session.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    records = timed(read_topics(session, arguments), arguments.key, arguments.time)
    found = sessions(records, gap_ms=arguments.gap, delay_ms=arguments.watermark)
    writer = to_records(found).writeStream.queryName("sessionize").format("dafka")
    return writer.options(tower=arguments.tower, topic=arguments.to).outputMode("append")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job; print a line of JSON for every batch."""
    arguments = parse(argv)
    check_options(arguments, tower=arguments.tower, topic=arguments.to)
    try:  # Spark's state needs it
        import_extra("google.protobuf", extra="protobuf")
    except ImportError as error:
        raise JobError(str(error)) from None
    session = build_session("sessionize")
    run_query(build_writer(session, arguments), arguments)
    session.stop()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the job's arguments."""
    parser = JobParser("Write the sessions of each key to a topic, each once, when it has ended.")
    add = partial(add_option, parser)
    add("--topic", "TOPIC", TOPICS, required=True)
    add("--to", "TOPIC", "the topic to write", required=True)
    add("--gap", "TIME", "the pause that ends a session", duration_ms, "30m")
    late = partial(duration_ms, minimum=0)
    add("--watermark", "TIME", "maximum lateness of a record", late, "10m")
    add("--key", "SQL", "the key of a session", default="cast(key as string)")
    add("--time", "SQL", "the time of a record", default="timestamp")
    add_query_arguments(parser)
    return parser.parse(argv)


if __name__ == "__main__":
    run_job(main)
