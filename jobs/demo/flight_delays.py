"""Departure delays per carrier and airport in event-time windows, from a topic of flights.

One streaming query reads the flights, and writes each window that changed both to a topic (through
the batch sink) and to parquet, once per micro-batch.  Run it so, or with spark-submit:

    python jobs/demo/flight_delays.py --checkpoint DIR --output DIR

A window may be written several times as flights arrive; the row with the highest ``batch`` holds
(``latest_results``).  A batch that is repeated after a crash replaces its parquet directory, and
repeats its rows on the topic under the same number, so both tell the same after any restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from dafka_spark.job_support import (
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

QUERY = "flight-delays"

# The schema of replay_flights.py; "scheduled" is the wall clock at the airport, read as UTC.
FLIGHT_SCHEMA = (
    "scheduled timestamp, origin string, dest string, carrier string, flight int, tailnum string, "
    "dep_delay_min int, arr_delay_min int, distance_mi int"
)

RESULT_SCHEMA = (
    "window_start timestamp, window_end timestamp, origin string, carrier string, flights bigint, "
    "cancelled bigint, delayed bigint, mean_delay_min double, max_delay_min int, "
    "checksum bigint, batch bigint"
)

RESULT_KEY = ("window_start", "window_end", "origin", "carrier")

# The US Department of Transportation counts a flight as delayed from 15 minutes on.
DELAYED_FROM_MIN = 15

# Airports are partitions, read side by side and not in step: a backlog of the whole year may bring
# the quietest airport's spring together with the busiest one's summer.  The state of 60 days is
# about 2000 rows.
DEFAULT_WATERMARK = "60 days"


def parse_flights(records: DataFrame) -> DataFrame:
    """Return the flights of records: the columns of ``FLIGHT_SCHEMA`` and ``value``.

    A value that is not a flight gives a row whose ``scheduled`` is null.
    """
    flight = sf.from_json(sf.col("value").cast("string"), FLIGHT_SCHEMA)
    return records.select("value", flight.alias("flight")).select("value", "flight.*")


def delays(flights: DataFrame, window: str = "1 day") -> DataFrame:
    """Departure delays per window, airport and carrier: ``RESULT_SCHEMA`` without ``batch``.

    ``checksum`` is the exclusive or of all values' xxHash64: with ``flights`` it shows that each
    record was counted once, whatever the order and however often the query was restarted.
    """
    gone = sf.col("dep_delay_min").isNotNull()
    return (
        flights.where(sf.col("scheduled").isNotNull())
        .groupBy(sf.window("scheduled", window), "origin", "carrier")
        .agg(
            sf.count("*").alias("flights"),
            _count_if(~gone).alias("cancelled"),
            _count_if(sf.col("dep_delay_min") >= DELAYED_FROM_MIN).alias("delayed"),
            sf.avg("dep_delay_min").alias("mean_delay_min"),
            sf.max("dep_delay_min").alias("max_delay_min"),
            sf.bit_xor(sf.xxhash64("value")).alias("checksum"),
        )
        .select(
            sf.col("window.start").alias("window_start"),
            sf.col("window.end").alias("window_end"),
            "origin",
            "carrier",
            "flights",
            "cancelled",
            "delayed",
            "mean_delay_min",
            "max_delay_min",
            "checksum",
        )
    )


def latest_results(results: DataFrame) -> DataFrame:
    """One row per window, airport and carrier: the last one written."""
    others = [name for name in results.columns if name not in RESULT_KEY]
    last = sf.max_by(sf.struct(*others), "batch").alias("last")
    return results.groupBy(*RESULT_KEY).agg(last).select(*RESULT_KEY, "last.*")


def to_records(results: DataFrame) -> DataFrame:
    """Return results as records: one column ``value`` of JSON."""
    return results.select(sf.to_json(sf.struct(*results.columns)).cast("binary").alias("value"))


def from_records(records: DataFrame) -> DataFrame:
    """The inverse of ``to_records``: ``RESULT_SCHEMA``."""
    result = sf.from_json(sf.col("value").cast("string"), RESULT_SCHEMA)
    return records.select(result.alias("result")).select("result.*")


def write_both(tower: str, topic: str, path: str) -> Callable[[DataFrame, int], None]:
    """Return the function that writes each micro-batch to the topic and to Parquet."""

    def write(results: DataFrame, batch: int) -> None:
        # One task writes all: a few hundred rows, one more partition of the topic, one file.
        results = results.withColumn("batch", sf.lit(batch).cast("bigint")).coalesce(1)
        # Kept for the second write, which would otherwise run the whole batch again.
        results.persist()
        try:
            results.drop("batch").write.mode("overwrite").parquet(f"{path}/batch={batch}")
            sink = to_records(results).write.format("dafka").mode("append")
            sink.option("tower", tower).option("topic", topic).save()
        finally:
            results.unpersist()

    return write


def main(argv: Sequence[str] | None = None) -> None:
    """Run the pipeline; print a line of JSON for every batch."""
    arguments = _parser().parse(argv)
    check_options(arguments, tower=arguments.tower, topic=arguments.to)
    session = build_session(QUERY)
    records = read_topics(session, arguments)
    malformed = _count_if(sf.col("scheduled").isNull()).alias("malformed")
    flights = (
        parse_flights(records)
        .observe("flights", malformed)
        .withWatermark("scheduled", arguments.watermark)
    )
    writer = (
        delays(flights, arguments.window)
        .writeStream.queryName(QUERY)
        .outputMode("update")
        .foreachBatch(write_both(arguments.tower, arguments.to, arguments.output))
    )
    run_query(writer, arguments)
    session.stop()


def _count_if(condition: Column) -> Column:
    return sf.count_if(sf.coalesce(condition, sf.lit(False)))


def _parser() -> JobParser:
    parser = JobParser(
        "Departure delays per carrier and airport in event-time windows: one "
        "streaming query from a topic of flights to a topic and to parquet."
    )
    add_query_arguments(parser, QUERY)
    add = partial(add_option, parser)
    add("--topic", "TOPIC", "the topic to read", default="flights")
    add("--to", "TOPIC", "the topic to write", default="delays")
    add("--output", "DIR", "the parquet directory to write", path, required=True)
    add("--window", "TIME", "a window's length", default="1 day")
    late = "how late a flight may be read, in event time"
    add("--watermark", "TIME", late, default=DEFAULT_WATERMARK)
    return parser


if __name__ == "__main__":
    run_job(main)
