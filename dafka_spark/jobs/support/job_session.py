"""What the Spark jobs share: their session, and how a query reads, runs and stops.

``dafka job NAME`` runs a job on this machine, and ``dafka job NAME --print-submit`` says how
spark-submit does it.  Where the packages are not installed, spark-submit takes them as a zip, named
twice: Spark 4.3 starts the workers of a data source without what ``--py-files`` says, but with the
environment's path.

    PYTHONPATH=dist/dafka_spark.zip spark-submit --py-files dist/dafka_spark.zip NAME.py ...
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_spark import DafkaDataSource
from dafka_spark.jobs.support.job_exit import Stopped, end_without_a_word, on_stop_signals
from dafka_spark.options import SinkOptions, SourceOptions

# Between two looks at a running query: soon enough for a progress bar, rare enough to cost nothing.
POLL_INTERVAL_S = 0.3

# On one machine: no port is opened to the network, no web page is served, and a few partitions are
# enough (each costs a file per batch in the state store).
_LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.pyspark.python": sys.executable,
    # A node that still tries a peer which has ended may reach a port of Spark's instead.
    "spark.python.unix.domain.socket.enabled": "true",
}

# Windows are days of the wall clock the flights carry, wherever the job runs.
_DEFAULTS = {"spark.sql.session.timeZone": "UTC"}

# Spark says what matters; SPARK_SUBMIT_OPTS with another configuration of log4j has it say more.
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"

Report = Callable[[dict[str, object]], None]


def build_session(name: str) -> SparkSession:
    """The job's session; what spark-submit was told wins over the defaults here."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    java = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" not in java:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{java} {_QUIET}".strip()
    # A SparkConf knows spark-submit's settings only once the JVM is there.
    SparkContext._ensure_initialized()  # noqa: SLF001
    conf = SparkConf().setAppName(name)
    defaults = dict(_DEFAULTS)
    if conf.get("spark.master", "local[*]").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf.setIfMissing("spark.master", "local[*]")
        defaults.update(_LOCAL_DEFAULTS)
    for key, value in defaults.items():
        conf.setIfMissing(key, value)
    # spark-submit switches its progress line on for everything started as ``python NAME.py``.
    conf.set("spark.ui.showConsoleProgress", "false")
    # What it logs is raised, too.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    end_without_a_word()  # PySpark has set a handler of its own
    if submitted:
        # spark-submit's JVM was started before anyone could say which Python has the packages.
        session.dataSource.register(DafkaDataSource)
    return session


def read_topic(
    session: SparkSession, topic: str | None, arguments: argparse.Namespace, **options: str
) -> DataFrame:
    """The topic as a stream, as the options of ``add_query_arguments`` say.

    Without one it is that of ``add_topic_arguments``; ``options`` are more of the source's.
    """
    reader = session.readStream.format("dafka").options(**_source(topic, arguments))
    return reader.options(**options).load()


def check_options(arguments: argparse.Namespace, **sink: str) -> None:
    """Refuses what the source, or a sink with these options, would: before Spark takes seconds.

    Raises:
        ConfigError: an option cannot be used.
    """
    SourceOptions.of(_source(arguments.topic, arguments)).for_stream()
    if sink:
        SinkOptions.of(sink)


def _source(topic: str | None, arguments: argparse.Namespace) -> dict[str, str]:
    options = {"tower": arguments.tower, "startingOffsets": arguments.starting_offsets}
    if topic is None:
        options["subscribePattern"] = arguments.topic_pattern
    else:
        options["subscribe"] = topic
    if arguments.query_name is not None:
        options["queryName"] = arguments.query_name
    if arguments.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(arguments.max_offsets_per_trigger)
    return options


def run_query(writer: DataStreamWriter, arguments: argparse.Namespace, report: Report) -> None:
    """Starts the query and stays until it is done, failed, or a signal asks to stop.

    ``report`` is given a dictionary for every finished batch.

    Raises:
        StreamingQueryException: the query failed.
        Stopped: a signal came before all was done that ``--available-now`` asks for.
    """
    stopping = threading.Event()
    seen: list[int] = []

    def stop(number: int) -> None:
        seen.append(number)
        stopping.set()

    writer = writer.option("checkpointLocation", arguments.checkpoint)
    if arguments.available_now:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    on_stop_signals(stop)
    progress = _Progress(query, report)
    try:
        while query.isActive and not stopping.wait(POLL_INTERVAL_S):
            progress.tell()
        if not stopping.is_set():
            query.awaitTermination()  # it has ended; this raises if it has failed
    finally:
        query.stop()
        progress.tell()
    if seen and arguments.available_now:
        raise Stopped(seen[0])


class _Progress:
    """Reports every batch of a query once."""

    def __init__(self, query: StreamingQuery, report: Report) -> None:
        self._query = query
        self._report = report
        self._next_batch = 0

    def tell(self) -> None:
        last = self._query.lastProgress
        if last is None or last.batchId < self._next_batch:
            return
        for progress in self._query.recentProgress:
            # A trigger that found nothing new carries the number of the batch to come.
            if progress.batchId < self._next_batch or "addBatch" not in progress.durationMs:
                continue
            self._next_batch = progress.batchId + 1
            self._report(_summary(progress))


def _summary(progress: StreamingQueryProgress) -> dict[str, object]:
    late = sum(state.numRowsDroppedByWatermark for state in progress.stateOperators)
    facts: dict[str, object] = {
        "event": "batch",
        "batch": progress.batchId,
        "records": progress.numInputRows,
        "late": late,
        "took_ms": progress.durationMs["triggerExecution"],
        "offsets": ends(progress.sources[0].endOffset),
    }
    for metrics in progress.observedMetrics.values():
        facts.update(metrics.asDict())
    return facts


def ends(offset: str) -> dict[str, Any]:
    """How far a batch has read: by topic and partition, or, of very many, their number and sum."""
    tree = json.loads(offset)
    if "topics" in tree:
        return dict(tree["topics"])
    return {name: tree[name] for name in ("partitions", "records")}
