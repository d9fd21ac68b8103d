"""Shared code of the Spark jobs in ``jobs/``: arguments, session, query, and exit codes.

A job is a script.  ``dafka job NAME`` runs it on this machine, and ``dafka job NAME
--print-submit`` prints the command for spark-submit.  Where the packages are not installed,
spark-submit needs them as a zip, named twice: Spark 4.3 starts the workers of a data source without
``--py-files``, but with the environment's path.

    PYTHONPATH=dist/dafka_spark.zip spark-submit --py-files dist/dafka_spark.zip jobs/NAME.py ...

Spark pickles the functions and classes of a script by value, so executors need this package only.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core.config.node_options import NodeOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_core.model.names import unescape
from dafka_spark.datasource import DafkaDataSource
from dafka_spark.option_types import parse_duration_ms
from dafka_spark.options import SinkOptions, SourceOptions

# Arguments

TOPICS = "the topic to read, or several separated by commas"


class JobParser(argparse.ArgumentParser):
    """A parser that reports errors in one line, and whose ``parse`` fills in the tower."""

    def __init__(self, description: str) -> None:
        epilog = (
            "Exit codes: 0 done or stopped; 1 failed; 2 invalid arguments; 130 or 143 stopped "
            "before the end of --available-now."
        )
        super().__init__(description=description, epilog=epilog)
        self.add_argument(
            "--tower",
            metavar="HOST[:SUB:PUB]",
            help="the tower, or several separated by commas (default: environment DAFKA_TOWER, or "
            "else 127.0.0.1:5556:5557)",
        )

    def error(self, message: str) -> NoReturn:
        """End the process with one line, without the usage."""
        self.exit(2, f"{self.prog}: {message} (see '{self.prog} --help')\n")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the arguments, and fill in the tower."""
        arguments = self.parse_args(argv)
        given = {} if arguments.tower is None else {"tower": arguments.tower}
        arguments.tower = ",".join(map(str, NodeOptions.build(given).tower))
        topics = [unescape(t.strip()) for t in (getattr(arguments, "topic", None) or "").split(",")]
        if "to" in arguments and unescape(arguments.to) in topics:
            self.error(f"--to {arguments.to}: the job would read its own output; use another topic")
        return arguments


def add_option(
    parser: argparse.ArgumentParser,
    flag: str,
    metavar: str,
    meaning: str,
    parse: Callable[[str], Any] = str,
    default: Any = None,
    **more: Any,
) -> None:
    """Add an option with a value; its help shows the default."""
    shown = meaning if default is None else f"{meaning} (default: %(default)s)"
    parser.add_argument(flag, metavar=metavar, help=shown, type=parse, default=default, **more)


def add_query_arguments(parser: argparse.ArgumentParser, query_name: str | None = None) -> None:
    """Add the arguments of all jobs that are streaming queries; ``query_name`` is a default."""
    add = partial(add_option, parser)
    progress = "directory of the query's progress, from which the next run continues"
    add("--checkpoint", "DIR", progress, path, required=True)
    where = "where a new checkpoint starts: earliest, latest, latest-100, a time, an age "
    where += "(--starting-offsets=-10m) or JSON"
    add("--starting-offsets", "WHERE", where, default="earliest")
    most = "maximum number of records in a batch (default: those in 4 GiB)"
    add("--max-offsets-per-trigger", "N", most, positive)
    report = "report the query's progress under this name, to dafka lag and the console"
    report += "" if query_name else " (default: no report)"
    add("--query-name", "NAME", report, default=query_name)
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="stop after the records that exist at the start (default: run until SIGINT or "
        "SIGTERM)",
    )


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--topic`` and ``--topic-pattern``, of which a job needs one."""
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", help=TOPICS)
    topics.add_argument(
        "--topic-pattern", metavar="REGEX", help="all topics with matching names, later ones too"
    )


def path(text: str) -> str:
    """Parse a path, in any file system; an unset variable of the shell leaves none."""
    if not text:
        raise argparse.ArgumentTypeError("must name a directory")
    return text


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def duration_ms(text: str, minimum: int = 1) -> int:
    """Parse a duration, such as 30m, into milliseconds."""
    try:
        length_ms = parse_duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}") from None
    if length_ms < minimum:
        raise argparse.ArgumentTypeError(f"must be longer than 0, not {text!r}")
    return length_ms


# Sessions and queries

POLL_INTERVAL_S = 0.3  # between two checks of a running query: often enough for a progress bar

_LOCAL_DEFAULTS = {
    "spark.master": "local[*]",
    # No port is open to the network.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Each partition of a shuffle costs a file per batch in the state store.
    "spark.sql.shuffle.partitions": "2",
    "spark.pyspark.python": sys.executable,
    "spark.python.daemon.module": "dafka_spark.daemon",
    # A node that still contacts a stopped peer could reach one of Spark's ports instead.
    "spark.python.unix.domain.socket.enabled": "true",
}

# Spark logs errors only, unless SPARK_SUBMIT_OPTS names another log4j configuration.
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def build_session(name: str) -> SparkSession:
    """Start the job's session; spark-submit's settings override the defaults here."""
    java = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" not in java:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{java} {_QUIET}".strip()
    # A SparkConf has spark-submit's settings only after the JVM has started.
    SparkContext._ensure_initialized()  # noqa: SLF001
    conf = SparkConf().setAppName(name)
    conf.setIfMissing("spark.sql.session.timeZone", "UTC")
    if conf.get("spark.master", "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for key, value in _LOCAL_DEFAULTS.items():
            conf.setIfMissing(key, value)
    # spark-submit enables its progress bar for each program started as ``python NAME.py``.
    conf.set("spark.ui.showConsoleProgress", "false")
    # This logger reports errors that are also raised.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    on_interrupt = signal.getsignal(signal.SIGINT)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)  # PySpark has replaced it
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit may look up formats with a Python that lacks the packages.
        session.dataSource.register(DafkaDataSource)
    return session


def read_topics(session: SparkSession, arguments: argparse.Namespace, **options: str) -> DataFrame:
    """Read the topics of the arguments as a stream, with further options."""
    given = _source_options(arguments) | options
    return session.readStream.format("dafka").options(**given).load()


def check_options(arguments: argparse.Namespace, **sink: str) -> None:
    """Check the options of the source, and those of a sink if any, before Spark starts."""
    SourceOptions.of(_source_options(arguments)).for_stream()
    if sink:
        SinkOptions.of(sink)


def _source_options(arguments: argparse.Namespace) -> dict[str, str]:
    given = {
        "tower": arguments.tower,
        "startingOffsets": arguments.starting_offsets,
        "subscribe": arguments.topic,
        "subscribePattern": getattr(arguments, "topic_pattern", None),
        "queryName": arguments.query_name,
        "maxOffsetsPerTrigger": arguments.max_offsets_per_trigger,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def run_query(writer: DataStreamWriter, arguments: argparse.Namespace) -> None:
    """Run the query until it ends, fails, or a signal stops it; print the facts of each batch.

    Raises:
        StreamingQueryException: the query failed.
        Stopped: a signal stopped the query before the end of ``--available-now``.
    """
    writer = writer.option("checkpointLocation", arguments.checkpoint)
    if arguments.available_now:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    signals: list[int] = []
    on_stop_signals(signals.append)
    next_batch = 0

    def report_batches() -> None:
        nonlocal next_batch
        last = query.lastProgress
        if last is None or last.batchId < next_batch:
            return
        for progress in query.recentProgress:
            # A trigger without new records has the number of the batch after it.
            if progress.batchId >= next_batch and "addBatch" in progress.durationMs:
                next_batch = progress.batchId + 1
                print_json(batch_facts(progress))

    try:
        _watch(query, signals, report_batches)
    except Exception as error:
        if not signals:
            raise
        # A service manager sends the signal to Spark's JVM, too.
        print(f"after the signal: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        if not arguments.available_now:
            sys.exit(0)
    if signals and arguments.available_now:
        raise Stopped(signals[0])
    if arguments.available_now and not next_batch:
        why = f"checkpoint {arguments.checkpoint} has no record left to read"
        print(f"{why}; another output needs a checkpoint of its own", file=sys.stderr)


def _watch(query: StreamingQuery, signals: Sequence[int], report: Callable[[], None]) -> None:
    try:
        while query.isActive and not signals:
            time.sleep(POLL_INTERVAL_S)
            report()
        if not signals:
            query.awaitTermination()  # raises the error of a query that has failed
    finally:
        query.stop()
        report()


def batch_facts(progress: StreamingQueryProgress) -> dict[str, object]:
    """Return the facts of a finished batch that a job prints."""
    facts: dict[str, object] = {
        "event": "batch",
        "batch": progress.batchId,
        "records": progress.numInputRows,
        "late": sum(state.numRowsDroppedByWatermark for state in progress.stateOperators),
        "took_ms": progress.durationMs["triggerExecution"],
        "offsets": ends(progress.sources[0].endOffset),
    }
    for metrics in progress.observedMetrics.values():
        facts.update(metrics.asDict())
    return facts


def ends(offset: str) -> dict[str, Any]:
    """Return the end offsets by topic and partition; of very many their number and sum."""
    tree = json.loads(offset)
    if "topics" in tree:
        return dict(tree["topics"])
    return {name: tree[name] for name in ("partitions", "records")}


def print_json(facts: dict[str, object]) -> None:
    """Print a JSON object as one line; end the job if nothing reads it, as in ``| head``."""
    try:
        print(json.dumps(facts), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would report the rest at its exit
        sys.exit(0)


Key = tuple[Any, ...]


def for_each_group(
    rows: DataFrame,
    columns: Sequence[str],
    order: Sequence[str],
    work: Callable[[Key, Iterator[pa.RecordBatch]], None],
) -> None:
    """Call ``work`` with each group of rows that share ``columns``, each group in one task.

    The rows of a group come as Arrow batches, sorted by the columns ``order``.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for key, found in grouped(batches, columns):
            work(key, found)
        yield from ()

    ordered = rows.repartition(*columns).sortWithinPartitions(*columns, *order)
    ordered.mapInArrow(run, "none boolean").collect()


def grouped(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[Key, Iterator[pa.RecordBatch]]]:
    """Group sorted rows by columns, as ``itertools.groupby`` does."""

    def pieces() -> Iterator[tuple[Key, pa.RecordBatch]]:
        for batch in batches:
            of_columns = (pc.run_end_encode(batch[name]).run_ends for name in columns)
            ends = np.unique(np.concatenate([[0], *of_columns])).tolist()
            for start, end in pairwise(ends):
                key = tuple(batch[name][start].as_py() for name in columns)
                yield key, batch.slice(start, end - start)

    for key, found in groupby(pieces(), itemgetter(0)):
        yield key, (rows for _, rows in found)


# The end of a job

EXIT_FAILED, EXIT_USAGE, EXIT_SIGNAL = 1, 2, 128

# Spark ends the message of an error in another process with the error's class and message.
_SENTENCE = re.compile(r"^dafka_(?:core|spark)\.(?:\w+\.)+(\w+Error): (.+)$", re.MULTILINE)

# A Java error; Python has only the call that failed.
_CAUSE = re.compile(r"^(?:: |Caused by: )(.+)$", re.MULTILINE)

# Another run has just created the checkpoint, or has already written a batch to it.
_MADE_TWICE = re.compile(r"/metadata\b.*already exists")
_HAS_OFFSETS = re.compile(r"(\S+)/offsets should be empty on batch 0")
_RUNS_TWICE = (
    "the query runs twice at once: another run has just created its checkpoint. Stop one of them"
)

# Another run has begun or written the same batch.
_OTHER_WRITER = ("FencedError", "OffsetConflictError", "TransactionExistsError")
_OTHER_RUN = " (perhaps the query runs twice at once: stop one of the runs)"

_USAGE = ("ConfigError", "ColumnError", "AnalysisException", "ParseException")


class JobError(Exception):
    """A job that cannot continue; the message is a sentence for the user."""


class Stopped(BaseException):
    """A signal, which is the argument, stopped the job before its end."""


def on_stop_signals(stop: Callable[[int], None]) -> None:
    """Call ``stop(number)`` at the first SIGINT or SIGTERM; a second one ends the process."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def run_job(main: Callable[[], None]) -> NoReturn:
    """Run a job and exit; errors of Dafka and Spark are one line, others keep their traceback."""
    # Python's own handler prints a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main()
    except Stopped as stopped:
        sys.exit(EXIT_SIGNAL + stopped.args[0])
    except Exception as error:
        name, sentence = describe_error(error)
        if not sentence:
            raise
        print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
        sys.exit(EXIT_USAGE if name in _USAGE else EXIT_FAILED)
    sys.exit(0)


def describe_error(error: Exception) -> tuple[str, str]:
    """Return the name and the sentence of an error; a defect has no sentence."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, DafkaError | JobError):
        return "ConfigError" if isinstance(error, ConfigError) else name, text
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return name, ""
    if sentences := _SENTENCE.findall(text):
        name, sentence = sentences[-1]
        return name, sentence + (_OTHER_RUN if name in _OTHER_WRITER else "")
    if _MADE_TWICE.search(text):
        return name, _RUNS_TWICE
    if checkpoint := _HAS_OFFSETS.search(text):
        alone = f"If no other runs, checkpoint {checkpoint[1]} is part of a copy: name a new one"
        return name, f"{_RUNS_TWICE}. {alone}"
    causes = _CAUSE.findall(text) if name == "Py4JJavaError" else []
    return name, [text.strip().splitlines()[0], *causes][-1]
