"""Spark's Python workers: which Python runs them, errors, garbage collection, reused plans.

Spark plans, reads and writes in Python processes of its own.  It starts them with the value of
``PYSPARK_PYTHON``, by default the first ``python3`` on the path, whichever Python the driver runs.
The JVM knows the variable as it was when the JVM started.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast
from uuid import UUID

from pyspark import SparkContext, TaskContext

_log = logging.getLogger("dafka_spark")

# -- which Python ----------------------------------------------------------------------------------

VARIABLE: Final = "PYSPARK_PYTHON"

_STARTED_BY_SPARK: Final = ("PYTHON_WORKER_FACTORY_", "PYSPARK_GATEWAY_PORT")
"""Prefixes of variables that workers and programs of spark-submit have."""

_NEEDED: Final = ("dafka_spark", "zmq", "pyarrow", "lmdb")
_MISSING: Final = f"""\
import importlib.util
print(*(name for name in {_NEEDED} if not importlib.util.find_spec(name)))"""


def use_this_python() -> None:
    """Set ``PYSPARK_PYTHON`` if it is unset, and warn of a Python that lacks the packages.

    Do nothing in Spark's own Python processes and under spark-submit, which has already chosen.
    """
    if any(name.startswith(_STARTED_BY_SPARK) for name in os.environ):
        return
    if SparkContext._gateway is None:  # noqa: SLF001
        used = {os.environ.setdefault(VARIABLE, sys.executable)}
    else:
        used = _used_by_spark()
    for name in sorted(used):
        if why := _unfit(name):
            warnings.warn(
                f"Spark runs Python as {name!r}, {why}: format 'dafka' does not work there. Before "
                f"the first session starts, set {VARIABLE} to {sys.executable!r} or 'import "
                "dafka_spark', which sets it if it is unset; if a session runs, restart Python",
                RuntimeWarning,
                stacklevel=3,
            )


def _used_by_spark() -> set[str]:
    """Return the Pythons that the JVM runs on this machine; a cluster's executors have theirs."""
    jvm, context = SparkContext._jvm, SparkContext._active_spark_context  # noqa: SLF001
    assert jvm is not None
    utils = getattr(jvm.org.apache.spark.api.python, "PythonUtils$")
    used = {getattr(utils, "MODULE$").defaultPythonExec()}
    if context is not None and str(context.master).startswith("local"):
        used.add(context.pythonExec)
    return used


def _unfit(name: str) -> str:
    """Return why a Python cannot run the package; empty if it can."""
    path = shutil.which(name)
    if path is None:
        return "which does not exist"
    if Path(path).parent == Path(sys.executable).parent:
        return ""  # python, python3 and python3.11 of one environment
    command, no_input = [path, "-c", _MISSING], subprocess.DEVNULL
    done = subprocess.run(command, stdin=no_input, capture_output=True, text=True, check=False)
    missing = "a Python" if done.returncode else done.stdout.strip()
    return f"which lacks {missing.replace(' ', ', ')}" if missing else ""


# -- errors without frames -------------------------------------------------------------------------

Given = ParamSpec("Given")
Result = TypeVar("Result")


def hide_frames(method: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a method that Spark calls: errors of this package reach Spark without our frames.

    Spark prints the traceback, and those of all causes, above the sentence that helps the user.
    Other errors are defects, and keep their frames.  A generator's errors are handled as it yields.
    """

    @wraps(method)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            _cut(error)
            raise  # which, unlike "raise error", adds no frame

    @wraps(method)
    def generate(*args: Given.args, **kwargs: Given.kwargs) -> Any:
        try:
            yield from cast("Iterator[object]", method(*args, **kwargs))
        except Exception as error:
            _cut(error)
            raise

    return generate if inspect.isgeneratorfunction(method) else call


def _cut(error: Exception) -> None:
    from dafka_core.errors import DafkaError, NodeFailedError  # noqa: PLC0415 -- as in datasource.py

    if isinstance(error, DafkaError) and not isinstance(error, NodeFailedError):
        error.__traceback__ = error.__cause__ = None


# -- long-lived workers and plans ------------------------------------------------------------------

OLD_PLAN_S: Final = 60.0
"""Age from which the reuse of a plan is logged: many records may have been written since."""

_REUSED: Final = (
    "%s: this query reads the records of %.0f s before it began, no newer ones. Spark 4.3 keeps "
    "one plan for each load(): call load() again for each query (docs/spark.md)"
)

_settled: Final[set[int]] = set()
"""The ids of settled processes; a forked child inherits its parent's."""


def settle() -> None:
    """Exclude what this worker has loaded from garbage collection, once in each process.

    Spark's daemon collects all garbage after each task, which takes longer than starting the task
    when Arrow, Flight and ZeroMQ are loaded.  Outside of tasks this does nothing.
    """
    if os.getpid() not in _settled and TaskContext.get() is not None:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()


def warn_if_reused(planned_ns: int, source: str) -> None:
    """Log, once in each executor, that the query of this task is much younger than its plan."""
    context = TaskContext.get()
    query = context.getLocalProperty("spark.sql.execution.query.id") if context else None
    # A UUID of version 7 begins with the driver's time in ms; the plan's time is the driver's, too.
    age_s = (UUID(query).int >> 80) / 1e3 - planned_ns / 1e9 if query else 0.0
    if age_s >= OLD_PLAN_S:
        place = Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0], f"dafka-reused-{planned_ns}")
        with contextlib.suppress(OSError):  # FileExistsError: another task has logged it
            place.touch(exist_ok=False)
            _log.warning(_REUSED, source, age_s)
