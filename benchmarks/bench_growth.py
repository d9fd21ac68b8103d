"""Row 27: the growth of a mesh of 2 stores and 2 consumers with its producers, as exponents.

One process has the tower, the stores and the consumers, another one all producers. The exponent is
the slope of a least-squares line through the logarithms of the producers' cost and number: 1 is
linear.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from benchmarks import processes
from benchmarks.figures import Figure, limited, tell
from benchmarks.harness import TOPIC, Bench
from benchmarks.mesh import Child
from dafka_core import Consumer, Producer, Store, Tower

COUNTS = (10, 50, 100, 200)
LINEAR = 1.1
IDLE = 1.2
JOINED_S = 10.0
"""CPU seconds until every consumer has a record of each producer in the largest mesh."""

ANY_PORTS = {"sub_address": "tcp://127.0.0.1:0", "pub_address": "tcp://127.0.0.1:0"}
SETTLING_S = 5.0
WATCHED_S = 10.0
TIMEOUT_S = 300.0


class Load(NamedTuple):
    """The cost of both processes together."""

    files: float
    memory_mb: float
    idle_cpu: float  # CPU seconds a second
    joined_s: float  # CPU seconds until all producers have joined


def run(bench: Bench) -> Iterator[Figure]:
    """Measure the exponents of open files, memory and idle CPU, and the time of joining."""
    counts = COUNTS if bench.warm else COUNTS[:2]
    taken = [{count: measured(bench, count) for count in (0, *counts)} for _ in range(bench.pairs)]
    for name, title, limit in (
        ("files", "files", LINEAR),
        ("memory_mb", "memory", LINEAR),
        ("idle_cpu", "idle processor", IDLE),
    ):
        found = [
            exponent(
                {count: getattr(each[count], name) - getattr(each[0], name) for count in counts}
            )
            for each in taken
        ]
        yield limited(f"mesh growth, {title}", found, limit, "exponent")
    found = [each[counts[-1]].joined_s for each in taken]
    yield limited("mesh growth, processor time to join", found, JOINED_S, "s")


def exponent(values: Mapping[int, float]) -> float:
    """Return the slope of values against keys, both as logarithms."""
    return statistics.linear_regression(
        [math.log(each) for each in values], [math.log(each) for each in values.values()]
    ).slope


def measured(bench: Bench, count: int) -> Load:
    """Return the load of a mesh with ``count`` producers."""
    with tempfile.TemporaryDirectory(dir=bench.directory) as directory:
        others = Child(_others, directory)
        tower = others.pipe.recv()
        producers = Child(_producers, tower, count)
        children = (others, producers)
        pids: list[int] = [child.pid for child in children]
        producers.pipe.recv()
        before_s = sum(map(processes.cpu_s, pids))
        for child in children:
            child.pipe.send(count)
        for child in children:
            child.pipe.recv()
        joined_s = sum(map(processes.cpu_s, pids)) - before_s
        time.sleep(SETTLING_S * bench.warm)
        before_s = sum(map(processes.cpu_s, pids))
        began_s = time.monotonic()
        time.sleep(WATCHED_S if bench.warm else 1)
        idle_cpu = (sum(map(processes.cpu_s, pids)) - before_s) / (time.monotonic() - began_s)
        load = Load(
            sum(map(processes.open_files, pids)),
            sum(processes.memory_mb(pid, "RssAnon") for pid in pids),
            idle_cpu,
            joined_s,
        )
        for child in children:
            child.pipe.send(None)
            child.join()
    tell(
        f"mesh growth, {count} producers: {load.files:.0f} open files, {load.memory_mb:.0f} MB, "
        f"{100 * load.idle_cpu:.1f} % of a core idle, {load.joined_s:.2f} s of processor to join"
    )
    return load


def _others(pipe: Connection, directory: str) -> None:
    with contextlib.ExitStack() as stack:
        tower = stack.enter_context(Tower(**ANY_PORTS)).tower
        for number in range(2):
            stack.enter_context(Store(Path(directory) / str(number), tower=tower))
        consumers = [stack.enter_context(Consumer(tower=tower)) for _ in range(2)]
        for consumer in consumers:
            consumer.subscribe(TOPIC)
        pipe.send(tower)
        count = pipe.recv()
        for consumer in consumers:
            for _ in range(count):
                assert consumer.poll(TIMEOUT_S) is not None
        pipe.send("joined")
        pipe.recv()


def _producers(pipe: Connection, tower: str, count: int) -> None:
    pipe.send("ready")
    pipe.recv()
    with contextlib.ExitStack() as stack:
        producers = [stack.enter_context(Producer(TOPIC, tower=tower)) for _ in range(count)]
        for producer in producers:
            producer.publish(b"joined")
        for producer in producers:
            producer.flush(TIMEOUT_S)
        pipe.send("joined")
        pipe.recv()
