"""How a job ends: with an exit code of docs/cluster.md's table, and one sentence if it fails."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dafka_core.errors import ConfigError, DafkaError

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

# Where the programs are that spark-submit is given.
_JOBS = Path(__file__).resolve().parents[1]

# What comes before a job's name where ``dafka job`` runs it.
_COMMAND = "dafka job "

_USAGE = ("ConfigError", "ColumnError", "AnalysisException", "ParseException")


class JobError(Exception):
    """A job that cannot go on, for a reason that is a sentence."""


class Stopped(BaseException):
    """SIGINT or SIGTERM, ``number``, before all was done."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_without_a_word() -> None:
    """Has Ctrl-C end the process, as long as a job has nothing to close.

    Python's own handler, and PySpark's, would print a traceback of whatever runs.
    """
    if sys.argv[0].startswith(_COMMAND) or Path(sys.argv[0]).resolve().parent == _JOBS:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


end_without_a_word()


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


def run_named() -> NoReturn:
    """Runs the job that the process's first argument names, with the others: for ``dafka job``."""
    name = sys.argv[1]
    sys.argv[:2] = [f"{_COMMAND}{name}"]
    run_job(import_module(f"dafka_spark.jobs.{name}").main)


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
