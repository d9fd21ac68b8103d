r"""Copy topics to another topic, all records or some, unchanged or changed.

    dafka job topic_to_topic \
        --topic flights --to late --checkpoint DIR \
        --where "get_json_object(text, '$.dep_delay_min') > 60"

``--where`` and ``--value`` are Spark SQL over the source's columns and ``text``, the value as a
string.  Each record is copied once, also if a batch is repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from dafka_spark.job_support import (
    TOPICS,
    JobParser,
    add_option,
    add_query_arguments,
    build_session,
    check_options,
    read_topics,
    run_job,
    run_query,
)


def transform(records: DataFrame, where: str | None, value: str | None) -> DataFrame:
    """Return key, value and headers of records that satisfy ``where``, with another ``value``.

    Raises:
        AnalysisException: an expression that Spark cannot understand.
    """
    records = records.withColumn("text", sf.col("value").cast("string"))
    if where is not None:
        records = records.where(where)
    if value is not None:
        records = records.withColumn("value", sf.expr(value).cast("binary"))
    return records.select("key", "value", "headers")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job; print a line of JSON for every batch."""
    arguments = _parser().parse(argv)
    sink = {"tower": arguments.tower, "topic": arguments.to, "acks": arguments.acks}
    check_options(arguments, **sink)
    session = build_session("topic-to-topic")
    records = read_topics(session, arguments, includeHeaders="true")
    writer = (
        transform(records, arguments.where, arguments.value)
        .writeStream.queryName("topic-to-topic")
        .format("dafka")
        .options(**sink)
    )
    run_query(writer, arguments)
    session.stop()


def _parser() -> JobParser:
    parser = JobParser("Copy topics to another topic, all records or some, as they are or changed.")
    add = partial(add_option, parser)
    add("--topic", "TOPIC", TOPICS, required=True)
    add("--to", "TOPIC", "the topic to write", required=True)
    add("--where", "SQL", "copy only records for which this holds (default: all)")
    add("--value", "SQL", "the value to write (default: the value as it is)")
    acks = "stores that must have a record before it counts as written, a number or all"
    add("--acks", "N", acks, default="all")
    add_query_arguments(parser)
    return parser


if __name__ == "__main__":
    run_job(main)
