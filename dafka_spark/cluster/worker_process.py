"""Spark's Python workers, between their tasks."""

from __future__ import annotations

import gc
import os
from typing import Final

from pyspark import TaskContext

_settled: Final[set[int]] = set()
"""This process, once it has settled; a forked child has to settle for itself."""


def settle() -> None:
    """Has the garbage collector pass over what this worker has loaded for good.

    Spark's daemon collects all garbage after each task.  With Arrow, Flight and ZeroMQ loaded that
    takes longer than the task itself needs to start.  Does nothing outside of tasks, and only the
    first time in each process.
    """
    if os.getpid() not in _settled and TaskContext.get() is not None:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()
