r"""Keep topics as Parquet files, every record exactly once.

    dafka job topic_to_parquet \
        --topic flights --output DIR --checkpoint DIR --available-now

The files hold the source's columns (key, value, topic, partition, offset, timestamp,
timestampType), in one directory per topic.  Read them with Spark: its log in the directory lists
the valid files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dafka_core.errors import ConfigError
from dafka_spark.job_support import (
    TOPICS,
    JobParser,
    add_option,
    add_query_arguments,
    build_session,
    check_options,
    path,
    read_topics,
    run_job,
    run_query,
)


def as_text(records: DataFrame) -> DataFrame:
    """Return the records with ``value`` as a string."""
    return records.withColumn("value", sf.col("value").cast("string"))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job; print a line of JSON for every batch."""
    arguments = _parser().parse(argv)
    check_options(arguments)
    session = build_session("topic-to-parquet")
    _check_output(session, arguments)
    records = read_topics(session, arguments)
    if arguments.text:
        records = as_text(records)
    writer = (
        records.writeStream.queryName("topic-to-parquet")
        .format("parquet")
        .partitionBy("topic")
        .option("path", arguments.output)
    )
    run_query(writer, arguments)
    session.stop()


def _check_output(session: SparkSession, arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a directory with files of another checkpoint.

    Spark skips batches with the numbers of those that a directory has, without a message.
    """
    written = _last_batch(session, arguments.output, "_spark_metadata")
    if written > _last_batch(session, arguments.checkpoint, "offsets"):
        why = (
            f"has batches up to {written} that this checkpoint lacks, and Spark would skip those "
            "numbers: use the checkpoint that they were written with, or another directory"
        )
        raise ConfigError("output", arguments.output, why, "argument")


def _last_batch(session: SparkSession, directory: str, log: str) -> int:
    """Return the number of the last batch in one of Spark's logs, in any file system; or -1."""
    context: Any = session.sparkContext
    where = context._jvm.org.apache.hadoop.fs.Path(directory, log)  # noqa: SLF001
    files = where.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    found = files.listStatus(where) if files.exists(where) else []
    names = [each.getPath().getName().partition(".")[0] for each in found]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _parser() -> JobParser:
    parser = JobParser("Keep topics as parquet files, every record exactly once.")
    add_option(parser, "--topic", "TOPIC", TOPICS, required=True)
    add_option(parser, "--output", "DIR", "the parquet directory to write", path, required=True)
    parser.add_argument(
        "--text", action="store_true", help="write values as strings (default: as bytes)"
    )
    add_query_arguments(parser)
    return parser


if __name__ == "__main__":
    run_job(main)
