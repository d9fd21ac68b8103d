"""Spark on hosts of their own, which are network namespaces: one has the driver and a store.

Each of the others has a worker of one core. The driver's program is
``python -m benchmarks.spark_hosts HOST DIRECTORY RECORDS WORKERS``.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from benchmarks import spark_sessions
from benchmarks.harness import TOPIC, fill
from dafka_core import Store, Tower
from tests.chaos.networks import Hosts
from tests.chaos.nodes import environment

PARTITIONS: Final = 4

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_PORT: Final = 7077
"""Of the master, in its own namespace."""


def seconds_to_read(directory: Path, records: int, size_bytes: int, workers: int) -> float:
    """Return the time of a batch query over Flight; ``workers`` hosts share it."""
    store = directory / "store-0"
    fill(store, records, size_bytes, PARTITIONS)
    with contextlib.ExitStack() as stack:
        hosts = Hosts(stack, directory, workers + 1)
        first = hosts.host(0)
        _start(stack, hosts, 0, [_MASTER, "--host", first, "--port", str(_PORT)], directory)
        for each in range(1, workers + 1):
            place = ["--host", hosts.host(each), "--work-dir", str(directory / f"work{each}")]
            worker = [_WORKER, *place, "--cores", "1", "--memory", "2g", _url(first)]
            _start(stack, hosts, each, worker, directory)
        program = [sys.executable, "-m", "benchmarks.spark_hosts", first, str(store)]
        done = subprocess.run(
            [*hosts.prefix(0), *program, str(records), str(workers)],
            env=_environment(first),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return float(done.stdout)


def _start(
    stack: contextlib.ExitStack, hosts: Hosts, host: int, command: Sequence[str], directory: Path
) -> None:
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with (directory / f"spark{host}.log").open("w") as log:
        process = subprocess.Popen(
            [*hosts.prefix(host), spark_class, *command],
            env=_environment(hosts.host(host)),
            stdout=log,
            stderr=log,
        )
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _environment(host: str) -> dict[str, str]:
    return environment() | {"SPARK_LOCAL_IP": host, "PYSPARK_PYTHON": sys.executable}


def _url(host: str) -> str:
    return f"spark://{host}:{_PORT}"


def main() -> None:
    """Print the seconds of the second read, when all workers have an executor."""
    host, directory, records, workers = sys.argv[1:]
    ports = {"sub_address": f"tcp://{host}:0", "pub_address": f"tcp://{host}:0"}
    with (
        Tower(**ports) as tower,
        Store(directory, tower=tower.tower, host=host),
        spark_sessions.session(master=_url(host), host=host) as spark,
    ):
        executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus  # noqa: SLF001
        while executors().size() <= int(workers):  # and the driver
            time.sleep(0.1)
        options = {"tower": tower.tower, "subscribe": TOPIC, "fetch": "flight"}
        spark_sessions.read_rate(spark, "dafka", int(records), options)
        rate = spark_sessions.read_rate(spark, "dafka", int(records), options)
    print(int(records) / rate / 1e6)


if __name__ == "__main__":
    main()
