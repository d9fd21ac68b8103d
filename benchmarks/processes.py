"""Programs and threads that run during a context; memory and CPU of processes from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).parents[1]

WORKER = "spark.daemon pyspark."
STORE = "dafka_core.cli store"

_OF_ALL_THREADS = 2  # Linux's ``CPUCLOCK_SCHED``
INTERVAL_S = 0.05  # sampling interval: little work, and growth in between is small beside the limit


class Process(NamedTuple):
    """A descendant of this process."""

    pid: int
    parent: int
    command: str


def below_this_one() -> list[Process]:
    """Return the children, their children, and so on."""
    found: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name in brackets may have spaces; the parent is the second word after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = Process(int(entry.name), parent, command)

    def is_below(process: Process | None) -> bool:
        while process is not None and process.parent != os.getpid():
            process = found.get(process.parent)
        return process is not None

    return [process for process in found.values() if is_below(process)]


def workers() -> list[int]:
    """Return Spark's Python workers: forks of a daemon with the same command line."""
    alike = {process.pid: process for process in below_this_one() if WORKER in process.command}
    return [pid for pid, process in alike.items() if process.parent in alike]


def stores() -> list[int]:
    """Return the stores of embedded clusters."""
    return [process.pid for process in below_this_one() if STORE in process.command]


def named(text: str) -> list[int]:
    """Return the processes whose command contains a text."""
    return [process.pid for process in below_this_one() if text in process.command]


def cpu_s(pid: int) -> float:
    """Return a process's CPU time with its ended threads; 0 if it has ended.

    By its clock, as named by glibc's ``clock_getcpuclockid``: ``/proc`` has hundredths of a second,
    without ended threads.
    """
    with contextlib.suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | _OF_ALL_THREADS) / 1e9
    return 0.0


def memory_mb(pid: int, field: str, file: str = "status") -> float:
    """Return a field of ``/proc/PID/status`` in MB; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) * 1024 / 1e6
    return 0.0


def shared_mb(pid: int) -> float:
    """Return a process's memory in MB; of shared memory, its share."""
    return memory_mb(pid, "Pss", "smaps_rollup")


def open_files(pid: int) -> int:
    """Return the number of a process's open descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextlib.contextmanager
def started(command: Sequence[str], stderr: int | None = None) -> Iterator[tuple[int, str]]:
    """Run a program meanwhile; yield its process id and the first line that it prints."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline()
        finally:
            process.terminate()


@contextlib.contextmanager
def repeated(work: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do some work again and again in a thread meanwhile."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause_s):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Sampler(ABC):
    """Looks at processes at intervals during the context."""

    @abstractmethod
    def look(self) -> None:
        """Sample all processes."""

    def __enter__(self) -> Self:
        self.look()
        self._looking = contextlib.ExitStack()
        self._looking.callback(self.look)
        self._looking.enter_context(repeated(self.look, INTERVAL_S))
        return self

    def __exit__(self, *error: object) -> None:
        self._looking.close()


class Peaks(Sampler):
    """Samples the memory of workers and stores.

    ``worker_mb`` is the largest peak of resident memory of any worker, as the system keeps it;
    ``worker_private_mb`` and ``store_private_mb`` are the most private memory seen.
    """

    def __init__(self) -> None:
        self.worker_mb = 0.0
        self.worker_private_mb = 0.0
        self.store_private_mb = 0.0

    def look(self) -> None:
        """Sample all processes."""
        for pid in workers():
            self.worker_mb = max(self.worker_mb, memory_mb(pid, "VmHWM"))
            self.worker_private_mb = max(self.worker_private_mb, memory_mb(pid, "RssAnon"))
        for pid in stores():
            self.store_private_mb = max(self.store_private_mb, memory_mb(pid, "RssAnon"))


class Cost(Sampler):
    """CPU seconds and the peak of private memory of processes together.

    ``pids`` names those that run now: Spark starts and ends Python workers meanwhile.
    """

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._cpu_s: dict[int, float] = {}
        self._before_s: float | None = None
        self.peak_mb = 0.0

    @property
    def cpu_s(self) -> float:
        """The seconds since the first look, also of processes that have ended."""
        return sum(self._cpu_s.values()) - (self._before_s or 0.0)

    def look(self) -> None:
        """Sample all processes."""
        pids = self._pids()
        for pid in pids:
            if used_s := cpu_s(pid):  # otherwise it has just ended
                self._cpu_s[pid] = used_s
        if self._before_s is None:
            self._before_s = sum(self._cpu_s.values())
        self.peak_mb = max(self.peak_mb, sum(memory_mb(pid, "RssAnon") for pid in pids))
