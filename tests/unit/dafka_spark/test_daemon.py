"""The daemon of Spark's workers: what it imports can be forked."""

from __future__ import annotations

import os
import subprocess
import sys

THREADS = """\
import os
import sys
import dafka_spark.daemon
print("dafka_spark.source.partition_reader" in sys.modules)
for thread in os.listdir("/proc/self/task"):
    print(open(f"/proc/self/task/{thread}/comm").read().strip())
"""


def test_its_modules_start_no_threads_that_a_fork_would_lose() -> None:
    """But those of jemalloc, which starts them again after a fork."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    is_loaded, *threads = done.stdout.splitlines()
    assert is_loaded == "True"
    assert len([each for each in threads if each != "jemalloc_bg_thd"]) == 1
