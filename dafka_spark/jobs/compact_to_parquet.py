r"""Keeps topics as Parquet files, one for each topic and day (UTC), every record exactly once.

    dafka job compact_to_parquet --topic flights --output DIR --checkpoint DIR --available-now

A record's timestamp says to which day it belongs, whenever it comes.  The files can be read at any
time, by whatever reads Parquet, and hold the columns of an archive's files (docs/archive.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core.archive.record_files import SCHEMA
from dafka_core.names import unescape
from dafka_spark.jobs.support.day_file import DayFile
from dafka_spark.jobs.support.grouped_batches import grouped
from dafka_spark.jobs.support.job_arguments import (
    JobParser,
    add_query_arguments,
    add_topic_arguments,
    directory,
    duration_ms,
    print_json,
)
from dafka_spark.jobs.support.job_exit import run_job
from dafka_spark.jobs.support.job_session import (
    build_session,
    check_options,
    read_topic,
    run_query,
)

# Whatever the session's time zone.
_DAY = "date_from_unix_date(cast(floor(unix_micros(timestamp) / 86400000000) as int))"

_DONE_SCHEMA = "topic string, day date, records bigint"

Merge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def merge_into(output: str) -> Callable[[DataFrame, int], None]:
    """What to do with each micro-batch: one task adds to a day's file what is not there yet."""

    def merge(records: DataFrame, batch: int) -> None:
        columns = [sf.expr(_DAY).alias("day"), "topic", *SCHEMA.names]
        days = records.select(*columns).repartition("topic", "day")
        ordered = days.sortWithinPartitions("topic", "day", "partition", "offset")
        ordered.mapInArrow(_merger(output), _DONE_SCHEMA).collect()

    return merge


def _merger(output: str) -> Merge:
    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = pa.schema([("topic", pa.string()), ("day", pa.date32()), ("records", pa.int64())])
        for (topic, day), found in grouped(batches, ("topic", "day")):
            name = None if day is None else day.isoformat()
            with DayFile(Path(output), unescape(topic), name) as file:
                for records in found:
                    file.add(records)
                count = file.finish()
            row = {"topic": [topic], "day": [day], "records": [count]}
            yield pa.RecordBatch.from_pydict(row, done)

    return merge


def build_writer(session: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    """The query, not started yet."""
    records = read_topic(session, arguments.topic, arguments, includeHeaders="true")
    writer = records.writeStream.queryName("compact-to-parquet")
    writer = writer.trigger(processingTime=f"{arguments.every} milliseconds")
    return writer.foreachBatch(merge_into(str(arguments.output)))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the job; prints a line of JSON for every batch."""
    arguments = parse(argv)
    check_options(arguments)
    session = build_session("compact-to-parquet")
    run_query(build_writer(session, arguments), arguments, print_json)
    session.stop()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The job's arguments.

    Raises:
        ConfigError: no tower can have such a name.
    """
    parser = JobParser(
        "Keep topics as Parquet files, one for each topic and day, every record exactly once."
    )
    add_topic_arguments(parser)
    parser.add_argument(
        "--output",
        required=True,
        type=directory,
        metavar="DIR",
        help="where the files go: a directory that the executors have in common",
    )
    parser.add_argument(
        "--every",
        type=duration_ms,
        default="10m",
        metavar="TIME",
        help="how often files are written, each time those of the days that records came for "
        "(default: %(default)s)",
    )
    add_query_arguments(parser)
    return parser.parse(argv)


if __name__ == "__main__":
    run_job(main)
