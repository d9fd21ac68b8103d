"""CPU time of a process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.processes import cpu_s

WORKS = """
import threading, time
thread = threading.Thread(target=lambda: sum(range(10**6)))
thread.start()
thread.join()
print(time.process_time(), flush=True)
input()
"""


def test_threads_that_have_ended_count_and_all_of_less_than_a_hundredth_of_a_second() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKS], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said_s = float(process.stdout.readline())
        assert said_s <= cpu_s(process.pid) < said_s + 0.05  # what it does to wait for more
        process.communicate("\n")
    assert cpu_s(process.pid) == 0.0
