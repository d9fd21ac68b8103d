"""What the Spark jobs in ``jobs/`` share: arguments, session, query, and how a job ends.

A job is a script.  ``dafka job NAME`` runs it on this machine, and ``dafka job NAME
--print-submit`` prints how spark-submit does.  Where the packages are not installed, spark-submit
takes them as a zip, named twice: Spark 4.3 starts the workers of a data source without what
``--py-files`` says, but with the environment's path.

    PYTHONPATH=dist/dafka_spark.zip spark-submit --py-files dist/dafka_spark.zip jobs/NAME.py ...

Spark pickles the functions and classes of a script by value, so executors need this package only.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core.config.node_options import NodeOptions
from dafka_core.errors import ConfigError, DafkaError
from dafka_spark.datasource import DafkaDataSource
from dafka_spark.option_types import parse_duration_ms
from dafka_spark.options import SinkOptions, SourceOptions

EXIT_CODES = (
    "Exit codes: 0 done, or told to stop; 1 failed; 2 cannot be done as it was asked for; 130 or "
    "143 stopped before it was done."
)


class JobParser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description, epilog=EXIT_CODES)
        self.add_argument(
            "--tower",
            metavar="HOST[:SUB:PUB]",
            help="the tower, or several separated by commas (default: environment DAFKA_TOWER, or "
            "else 127.0.0.1:5556:5557)",
        )

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        self.exit(2, f"{self.prog}: {message} (see '{self.prog} --help')\n")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments; ``tower`` is written out, wherever it comes from.

        Raises:
            ConfigError: no tower can have such a name.
        """
        arguments = self.parse_args(argv)
        given = {} if arguments.tower is None else {"tower": arguments.tower}
        arguments.tower = ",".join(map(str, NodeOptions.build(given).tower))
        topics = (getattr(arguments, "topic", None) or "").split(",")
        if "to" in arguments and arguments.to in topics:
            self.error(
                f"--to {arguments.to}: the job would read what it writes; name another topic"
            )
        return arguments


def add_query_arguments(parser: argparse.ArgumentParser, query_name: str | None = None) -> None:
    """Adds the options of every job that is a streaming query reading a topic.

    ``query_name`` is the default under which it reports how far it is.
    """
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="where the query keeps its progress; started again with the same one, it goes on",
    )
    parser.add_argument(
        "--starting-offsets",
        default="earliest",
        metavar="WHERE",
        help="earliest, latest, latest-100, a time, so long ago (--starting-offsets=-10m) or JSON, "
        "for a new checkpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--max-offsets-per-trigger",
        type=positive,
        metavar="N",
        help="the most records one batch reads (default: what 4 GiB have)",
    )
    parser.add_argument(
        "--query-name",
        default=query_name,
        metavar="NAME",
        help="report under this name how far the query is, to dafka lag and the console "
        f"(default: {query_name or 'it does not report'})",
    )
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="stop when everything that was there at the start is done "
        "(default: run until SIGINT or SIGTERM)",
    )


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a job that reads topics by their names, or by a pattern."""
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", help="the topic to read, or several separated by commas")
    topics.add_argument(
        "--topic-pattern",
        metavar="REGEX",
        help="all topics whose names match, also those that come later",
    )


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def directory(text: str) -> Path:
    """An argument that must be a directory, whether it is there or not; its whole path."""
    path = Path(text).absolute()
    if not text or "://" in text or (path.exists() and not path.is_dir()):
        raise argparse.ArgumentTypeError(f"must be a directory of this machine, not {text!r}")
    return path


def duration_ms(text: str) -> int:
    """An argument that must be a length of time, such as 30m; in milliseconds."""
    length_ms = delay_ms(text)
    if length_ms < 1:
        raise argparse.ArgumentTypeError(f"must be longer than nothing, not {text!r}")
    return length_ms


def delay_ms(text: str) -> int:
    """An argument that must be a length of time, or 0s; in milliseconds."""
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}") from None


def rate(text: str) -> float:
    """An argument that must be a number of 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, not {text!r}")
    return number


def print_json(facts: dict[str, object]) -> None:
    """One JSON object a line on standard output, at once."""
    print(json.dumps(facts), flush=True)


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
    on_interrupt = signal.getsignal(signal.SIGINT)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)  # PySpark has set a handler of its own
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


Key = tuple[Any, ...]


def grouped(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[Key, Iterator[pa.RecordBatch]]]:
    """Each value of the columns with its rows, which are to be taken before the next one is."""
    pieces = (piece for batch in batches for piece in _pieces(batch, columns))
    for key, found in groupby(pieces, itemgetter(0)):
        yield key, (rows for _, rows in found)


def _pieces(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    start = 0
    keys = zip(*(batch[name].to_pylist() for name in columns), strict=True)
    for key, rows in groupby(keys):
        count = sum(1 for _ in rows)
        yield key, batch.slice(start, count)
        start += count


EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNAL = 128

# What Spark makes of an error that was raised in a process of its own ends with its name and
# sentence.
_SENTENCE = re.compile(r"^dafka_(?:core|spark)\.(?:\w+\.)+(\w+Error): (.+)$", re.MULTILINE)

# What Java says, of which Python knows only the call that failed.
_CAUSE = re.compile(r"^(?:: |Caused by: )(.+)$", re.MULTILINE)

# Two runs make a checkpoint at once.  Later Spark says what the matter is, here it does not.
_MADE_TWICE = re.compile(r"/metadata\b.*already exists")
_RUNS_TWICE = (
    "the query runs twice at once: another run has just made its checkpoint. One of them is enough"
)

# The other has gone so far as to write a batch.  Spark says the same of what somebody copied.
_HAS_OFFSETS = re.compile(r"(\S+)/offsets should be empty on batch 0")

# Both write the same batch, and the other has begun to, or has written it, in between.
_OTHER_WRITER = ("FencedError", "OffsetConflictError", "TransactionExistsError")
_OTHER_RUN = "perhaps the query runs twice at once: one run is enough"

_USAGE = ("ConfigError", "ColumnError", "AnalysisException", "ParseException")


class JobError(Exception):
    """A job that cannot go on, for a reason that is a sentence."""


class Stopped(BaseException):
    """SIGINT or SIGTERM, ``number``, before all was done."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def on_stop_signals(stop: Callable[[int], None]) -> None:
    """Has the first SIGINT or SIGTERM call ``stop(number)``; a second one ends the process."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def raise_stopped(number: int) -> None:
    """For a job that has something to close, and to say, when it is stopped."""
    raise Stopped(number)


def run_job(main: Callable[[], None]) -> NoReturn:
    """Runs a job to its end, which is the process's.

    What is no error of Dafka's or Spark's is a defect, and keeps its traceback.
    """
    # Python's own handler would print a traceback, as long as the job has nothing to close.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main()
    except Stopped as stopped:
        sys.exit(EXIT_SIGNAL + stopped.number)
    except Exception as error:
        name, sentence = _told(error)
        if not sentence:
            raise
        print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
        sys.exit(EXIT_USAGE if name in _USAGE else EXIT_FAILED)
    sys.exit(0)


def _told(error: Exception) -> tuple[str, str]:
    """The name of an error, and its sentence; empty if it is none that people are told of."""
    name = type(error).__name__
    if isinstance(error, DafkaError | JobError):
        return "ConfigError" if isinstance(error, ConfigError) else name, str(error)
    if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
        return name, ""
    for found in reversed([*_SENTENCE.finditer(str(error))]):
        other_run = f" ({_OTHER_RUN})" if found[1] in _OTHER_WRITER else ""
        return found[1], found[2] + other_run
    if _MADE_TWICE.search(str(error)):
        return name, _RUNS_TWICE
    if checkpoint := _HAS_OFFSETS.search(str(error)):
        alone = f"If none runs, checkpoint {checkpoint[1]} is part of another: name a new one"
        return name, f"{_RUNS_TWICE}. {alone}"
    causes = _CAUSE.findall(str(error)) if name == "Py4JJavaError" else []
    return name, [str(error).strip().splitlines()[0], *causes][-1]
