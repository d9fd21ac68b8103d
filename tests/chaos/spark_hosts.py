"""Spark standalone and Dafka, each part on a host that can fail alone.

Where an unprivileged user may create namespaces, hosts are namespaces (``networks.Hosts``).
Elsewhere they are processes of this machine, which can be killed, but have no cables.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

from tests.chaos.harness import wait_until
from tests.chaos.networks import Hosts, namespaces_work
from tests.chaos.nodes import Node, Site, environment, start_store, start_tower
from tests.chaos.query_job import JVM

MASTER, TOWERS, STORES, WORKERS, DRIVER = 0, (1, 2), (3, 4), (5, 6), 7  # the hosts

COUNT = 8
LOCAL = "127.0.0.1"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
MARK = "DAFKA_CHAOS_HOST"

LET_IN = "7070-7099"  # the ports of Spark's hosts

QUICK = {
    "spark.driver.port": "7070",
    "spark.driver.blockManager.port": "7075",
    "spark.blockManager.port": "7080",
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "2s",
    "spark.rpc.lookupTimeout": "12s",
    "spark.shuffle.io.maxRetries": "2",
    "spark.shuffle.io.retryWait": "1s",
}
"""Spark gives up hosts sooner than after two minutes."""


class SparkHosts:
    """The hosts and their programs.

    Attributes:
        hosts: their network; None if they are processes of this machine.
        tower: the option of that name: both towers.
        master: Spark's.
    """

    def __init__(self, stack: contextlib.ExitStack, directory: Path) -> None:
        self.hosts = Hosts(stack, directory, COUNT) if namespaces_work() else None
        self._directory = directory
        self._stack = stack
        self._ports = {each: (_free_port(), _free_port()) for each in (MASTER, *TOWERS)}
        self._spark: dict[int, subprocess.Popen[bytes]] = {}
        self._nodes: dict[int, Node] = {}
        self.tower = ",".join(
            f"{self.host(each)}:{':'.join(map(str, self._ports[each]))}" for each in TOWERS
        )
        self.master = f"spark://{self.host(MASTER)}:{self._ports[MASTER][0]}"
        stack.callback(self._end)

    def start(self) -> None:
        """Start all except drivers, and wait for the stores."""
        for each in (MASTER, *TOWERS, *STORES, *WORKERS):
            self.boot(each)
        for each in STORES:
            self._nodes[each].ready()
        wait_until(
            lambda: self._said(MASTER).count("Registering worker") == len(WORKERS),
            lambda: f"Spark's workers are registered: {self._said(MASTER)[-1000:]}",
        )

    def host(self, host: int) -> str:
        return LOCAL if self.hosts is None else self.hosts.host(host)

    def prefix(self, host: int) -> Sequence[str]:
        inside = () if self.hosts is None else self.hosts.prefix(host)
        own = f"{MARK}={self._mark(host)}", f"SPARK_LOCAL_IP={self.host(host)}"
        return ("env", *own, *inside)

    def options(self, host: int) -> Sequence[str]:
        """Return the options beside ``--tower`` and the first tower."""
        return ("--tower", self.tower.partition(",")[2], "--host", self.host(host))

    def at(self, host: int) -> Site:
        given = self.prefix(host), self.options(host)
        return Site(self._directory, self._stack, self.first_tower, *given)

    @property
    def first_tower(self) -> str:
        return self.tower.partition(",")[0]

    def boot(self, host: int) -> None:
        if host in TOWERS:
            ports = self._ports[host]
            node = start_tower(self._log(host), ports, self.host(host), self.prefix(host))
        elif host in STORES:
            directory, given = self._directory / f"store{host}", self.options(host)
            prefix, log = self.prefix(host), self._log(host)
            node = start_store(directory, self.first_tower, log, prefix, given)
        else:
            self._start_spark(host)
            return
        self._nodes[host] = self._stack.enter_context(node)

    def cut(self, host: int) -> Callable[[], None]:
        """Pull a host's cable, if it has one; return the undo."""
        if self.hosts is None:
            return lambda: None
        self.hosts.pull(host)
        return lambda: None if self.hosts is None else self.hosts.plug(host)

    def kill(self, host: int, program: str = "") -> Callable[[], None]:
        """Kill all processes of a host, or of a program; return the restart."""
        self._kill(host, program)
        return (lambda: None) if program else lambda: self.boot(host)

    def power_off(self, host: int) -> Callable[[], None]:
        """Make the host vanish without notice; return what switches it on."""
        plug = self.cut(host)
        self._kill(host)

        def power_on() -> None:
            plug()
            self.boot(host)

        return power_on

    def _start_spark(self, host: int) -> None:
        at = ["--host", self.host(host), "--webui-port", "0"]
        if host == MASTER:
            command = ["org.apache.spark.deploy.master.Master", *at]
            command += ["--port", str(self._ports[MASTER][0])]
        else:
            command = ["org.apache.spark.deploy.worker.Worker", *at, "--cores", "2"]
            command += ["--port", "7078"] if self.hosts is not None else []
            work = str(self._directory / f"work{host}")
            command += ["--memory", "1g", "--work-dir", work, self.master]
        own = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{JVM} -Dspark.worker.timeout=12",
            "SPARK_LOCAL_DIRS": str(self._directory / f"local{host}"),
        }
        given = {name: text for name, text in environment().items() if "PYSPARK" not in name}
        with self._log(host).open("ab") as log:
            self._spark[host] = subprocess.Popen(
                [*self.prefix(host), str(SPARK_CLASS), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=given | own,
            )

    def _kill(self, host: int, program: str = "") -> None:
        while found := self._processes(host, program):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if host in self._nodes:
                self._nodes[host].close()
            if host in self._spark and not program:
                self._spark[host].wait()
            if program:
                return

    def _processes(self, host: int, program: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    mine = f"{MARK}={self._mark(host)}".encode() in (
                        (entry / "environ").read_bytes().split(b"\0")
                    )
                    if mine and program.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    def _mark(self, host: int) -> str:
        return f"{self._directory}/{host}"

    def _log(self, host: int) -> Path:
        return self._directory / f"host{host}.log"

    def _said(self, host: int) -> str:
        return self._log(host).read_text(errors="replace")

    def _end(self) -> None:
        for host in range(COUNT):
            self._kill(host)
        for process in self._spark.values():
            process.wait()


def _free_port() -> int:
    with socket.create_server((LOCAL, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
