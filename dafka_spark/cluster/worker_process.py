"""Spark's Python workers: a warning about reused plans, and the garbage collector's settings."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from pathlib import Path
from typing import Final
from uuid import UUID

from pyspark import TaskContext

OLD_PLAN_S: Final = 60.0
"""Age from which the reuse of a plan is logged: many records may have been written since."""

_REUSED: Final = (
    "%s: this query reads the records of %.0f s before it began, no newer ones. Spark 4.3 keeps "
    "one plan for each load(): call load() again for each query (docs/spark.md)"
)

_log = logging.getLogger("dafka_spark")

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
