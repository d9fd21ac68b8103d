"""A streaming query in a driver of its own, and its expected output."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.chaos.harness import PATIENCE_S, Chaos, ChaosError, wait_until
from tests.chaos.nodes import ROOT, Site
from tests.chaos.query_job import JVM, SEPARATOR
from tests.spark.jvm import PYTHON_STARTUP

JOB = Path(__file__).with_name("query_job.py")

END_S = 4 * PATIENCE_S
"""The rest of a topic, and a batch query; Spark alone takes ten seconds to start and stop."""

KEYS = 40


class Plan(NamedTuple):
    master: str
    tower: str
    source: str
    sink: str
    directory: str
    batch_records: int
    sink_options: dict[str, str]
    host: str = "127.0.0.1"
    settings: Mapping[str, str] = MappingProxyType({})
    copy: str = ""  # a topic to which a batch query finally copies the source; empty for none
    query: str = "counted"  # the name in ``query_job.QUERIES``


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


class Driver:
    """A running query, which may be killed and restarted on its checkpoint repeatedly.

    Its messages go to the file ``log``.
    """

    def __init__(self, stack: ExitStack, plan: Plan, log: Path, prefix: Sequence[str] = ()) -> None:
        self._plan = plan
        self._prefix = prefix
        self.is_copying = False
        self.log = log
        self.batch = -1  # the last completed batch
        self.restarts = -1
        self.answer: dict[str, int] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._reading: threading.Thread | None = None
        self._groups: list[int] = []
        stack.callback(self.close)

    def start(self) -> None:
        self.restarts += 1
        self._leave()
        self.batch = max(self.batch, self._committed())
        environment = {
            name: text for name, text in os.environ.items() if "PYSPARK_GATEWAY" not in name
        }
        path = os.pathsep.join((PYTHON_STARTUP, str(ROOT)))
        environment |= {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
        environment["DAFKA_INSECURE"] = "true"
        environment["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options '{JVM}' pyspark-shell"
        plan = self._plan._asdict() | {"settings": dict(self._plan.settings)}
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, str(JOB), json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._groups.append(self._process.pid)
        self._reading = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reading.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_batch(self, after: int) -> None:
        """Wait for a batch beyond ``after``, restarting the driver whenever it ends.

        Raises:
            ChaosError: the batch does not come.
        """
        limit = self.restarts + 10

        def done() -> bool:
            if not self.running:
                if self.restarts == limit:
                    raise ChaosError(f"the driver fails again and again: {self.tail()}")
                self.start()
            return self.batch > after

        wait_until(done, lambda: f"a batch after {after} is done; {self.tail(3)}", END_S)

    def finish(self) -> dict[str, int]:
        """Let it reach the topic's end; return the batch query's answer.

        Raises:
            ChaosError: it does not.
        """
        for _ in range(5):
            self.end()
            assert self._process is not None
            assert self._reading is not None
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                raise ChaosError(f"the driver does not end: {self.tail()}") from None
            self._reading.join(PATIENCE_S)
            if self.answer is not None:
                return self.answer
        raise ChaosError(f"the driver does not come to its end: {self.tail()}")

    def end(self) -> None:
        """Let it reach the topic's end, without waiting."""
        if not self.running:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def below(self) -> list[Process]:
        """Return its processes: JVMs, executors and Python workers."""
        return [] if self._process is None else list(_below(self._process.pid))

    def kill(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill the driver, Python and JVM; executors must notice by themselves."""
        assert self._process is not None
        jvms = [each.pid for each in self.below() if each.parent == self._process.pid]
        self.kill([self._process.pid, *jvms])
        self._process.wait()

    def close(self) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._leave()

    def _committed(self) -> int:
        """Return the last batch in the checkpoint: the driver may have died before reporting it."""
        commits = Path(self._plan.directory) / "checkpoint" / "commits"
        return max((int(each.name) for each in commits.glob("[0-9]*")), default=-1)

    def _leave(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.wait()
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def tail(self, lines: int = 15) -> str:
        said = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(said[-lines:])

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "BATCH":
                    self.batch = max(self.batch, int(rest))
                elif word == "COPYING":
                    self.is_copying = True
                elif word == "ANSWER":
                    self.answer = json.loads(rest)


def _below(pid: int) -> Iterator[Process]:
    found: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = Process(int(entry.name), parent, command)
    parents = {pid}
    while parents:
        children = [each for each in found.values() if each.parent in parents]
        yield from children
        parents = {each.pid for each in children}


def value(number: int) -> str:
    return f"key{(number * 7919) % KEYS}-{number}"


def expected(checkpoint: Path, topic: str, records: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the expected output: in each batch the new count of every key in it.

    The checkpoint has the records of each batch; ``records`` are those of the partitions.
    """
    counts: Counter[str] = Counter()
    written: list[str] = []
    before: dict[str, int] = {}
    for number in range(
        len([each for each in (checkpoint / "offsets").iterdir() if each.name.isdecimal()])
    ):
        lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
        ends: dict[str, int] = json.loads(lines[2])["topics"].get(topic, {})
        keys: Counter[str] = Counter()
        for partition, end in ends.items():
            part = records[partition][before.get(partition, 0) : end]
            keys.update(each.partition("-")[0] for each in part)
        counts += keys
        written += [f"{key}{SEPARATOR}{counts[key]}" for key in keys]
        before = ends
    return written


def check(
    chaos: Chaos, where: str, wanted: Sequence[str], found: Sequence[str], answer: dict[str, int]
) -> None:
    """Compare the topic with the expected output, and its last counts with the batch query's."""
    chaos.compare(where, wanted, found)
    last: dict[str, int] = {}
    for each in found:
        key, _, count = each.partition(SEPARATOR)
        last[key] = max(int(count), last.get(key, 0))
    if last != answer:
        raise ChaosError(f"{where}: the batch answer is {answer}, the stream came to {last}")


def check_topic(
    chaos: Chaos, site: Site, topic: str, wanted: Sequence[str], answer: dict[str, int]
) -> None:
    """Wait until a query's topic has as many records as expected, and check it."""
    chaos.outcome.records += len(wanted)
    listener = site.listener(topic, f"consumer-{topic}")
    listener.wait_for(len(wanted))
    check(chaos, f"the topic {topic}", wanted, listener.values(1), answer)
