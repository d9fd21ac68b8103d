r"""Report the lag of streaming queries, as a table and as files.

    dafka job lag_report --partitions --output DIR --format json

Each run reads the lag once, and with ``--output`` adds a file: the files of all runs are the lag's
history.  Column ``at`` is the time of the run, by the clock of this machine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dafka_core.model.name_limits import what_there_is
from dafka_core.model.names import QUERIES_TOPIC, escape, quoted
from dafka_spark.job_support import (
    JobError,
    JobParser,
    add_option,
    build_session,
    path,
    print_json,
    run_job,
)
from dafka_spark.metadata import LAG, QUERIES
from dafka_spark.options import SourceOptions

MOST_SHOWN = 10_000


def lags(session: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """Return a row for each query, or for each of its partitions.

    Raises:
        JobError: the query of ``--query`` has not reported.
    """
    found = session.read.format("dafka").options(**_source(arguments)).load()
    at = sf.lit(dt.datetime.now(dt.UTC))
    table = found.withColumn("at", at).sort(*found.columns[:4]).toArrow()
    rows: DataFrame = session.createDataFrame(table)
    if arguments.query is None:
        return rows
    name = escape(arguments.query)
    known = {str(each) for each in table["query"].to_pylist()}
    if name not in known:
        near = what_there_is(name, known, "queries that have")
        raise JobError(f"query {quoted(arguments.query)} has not reported how far it is ({near})")
    return rows.where(sf.col("query") == name)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job: print the table, and write it."""
    arguments = parse(argv)
    SourceOptions.of(_source(arguments))
    session = build_session("lag-report")
    report(lags(session, arguments), arguments)
    session.stop()


def report(rows: DataFrame, arguments: argparse.Namespace) -> None:
    """Print rows, and add them to the files."""
    if arguments.output is not None:
        rows.coalesce(1).write.format(arguments.format).mode("append").save(arguments.output)
    if arguments.json:
        for row in rows.collect():
            print_json({**row.asDict(), "at": row["at"].astimezone(dt.UTC).isoformat()})
    elif rows.isEmpty():
        print("no query has reported how far it is (option queryName)", file=sys.stderr)
    else:
        rows.show(MOST_SHOWN, truncate=False)


def _source(arguments: argparse.Namespace) -> dict[str, str]:
    return {
        "tower": arguments.tower,
        "metadata": LAG if arguments.partitions else QUERIES,
        "progressTopic": arguments.progress_topic,
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the job's arguments."""
    parser = JobParser("Report the lag of streaming queries, as a table and as files.")
    add = partial(add_option, parser)
    add("--query", "NAME", "only this query (default: all)")
    parser.add_argument(
        "--partitions", action="store_true", help="a row for each partition that a query reads"
    )
    add("--output", "DIR", "add a file to this directory, too", path)
    formats = ("parquet", "json")
    add("--format", "{parquet,json}", "the file's format", default="parquet", choices=formats)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each row, and no table"
    )
    add("--progress-topic", "TOPIC", "where queries report", default=QUERIES_TOPIC)
    return parser.parse(argv)


if __name__ == "__main__":
    run_job(main)
