"""Which Python Spark runs a data source with: this one, unless somebody chose another.

Spark looks for a format, and reads and writes, in processes of their own.  It starts them with what
``PYSPARK_PYTHON`` names, otherwise with the first ``python3`` on the path, whichever Python the
driver is; its JVM knows the variable as it was when that started.
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

_CHOSEN_BEFORE: Final = ("PYTHON_WORKER_FACTORY_", "PYSPARK_GATEWAY_PORT")
"""Set in what Spark starts as a worker, and by spark-submit."""

_NEEDED: Final = ("dafka_spark", "zmq", "pyarrow", "lmdb")
_MISSING: Final = f"""\
import importlib.util
print(*(name for name in {_NEEDED} if not importlib.util.find_spec(name)))"""


def use_this_python() -> None:
    """Has Spark use this Python where nobody chose one; warns of one that lacks the package.

    Not in Spark's own Python processes, and not under spark-submit: that chose before.
    """
    if any(name.startswith(_CHOSEN_BEFORE) for name in os.environ):
        return
    if SparkContext._gateway is None:  # noqa: SLF001
        used = {os.environ.setdefault(VARIABLE, sys.executable)}
    else:
        used = _used_by_spark()
    for name in sorted(used):
        if why := _unfit(name):
            warnings.warn(
                f"Spark runs Python as {name!r}, {why}: format 'dafka' does not work there. Before "
                f"the first session is made, set {VARIABLE} to {sys.executable!r} (what 'import "
                "dafka_spark' does where nobody has); where there is a session, start again",
                RuntimeWarning,
                stacklevel=3,
            )


def _used_by_spark() -> set[str]:
    """What the JVM runs on this machine; executors of a cluster have Pythons of their own."""
    jvm, context = SparkContext._jvm, SparkContext._active_spark_context  # noqa: SLF001
    assert jvm is not None
    python = jvm.org.apache.spark.api.python
    chosen = getattr(getattr(python, "PythonUtils$"), "MODULE$").defaultPythonExec()
    if context is not None and str(context.master).startswith("local"):
        return {chosen, context.pythonExec}
    return {chosen}


def _unfit(name: str) -> str:
    """Why a Python cannot run the package; empty if it can."""
    path = shutil.which(name)
    if path is None:
        return "which is not there"
    if Path(path).parent == Path(sys.executable).parent:
        return ""  # python, python3 and python3.11 of one environment
    command, no_input = [path, "-c", _MISSING], subprocess.DEVNULL
    done = subprocess.run(command, stdin=no_input, capture_output=True, text=True, check=False)
    missing = "a Python" if done.returncode else done.stdout.strip()
    return f"which lacks {missing.replace(' ', ', ')}" if missing else ""
