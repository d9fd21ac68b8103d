"""The Python that Spark runs data sources with: this one, unless the user chose another.

Spark plans, reads and writes in Python processes of its own.  It starts them with the value of
``PYSPARK_PYTHON``, by default the first ``python3`` on the path, whichever Python the driver runs.
The JVM knows the variable as it was when the JVM started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Final

from pyspark import SparkContext

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
