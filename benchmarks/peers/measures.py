"""Measurements of one system in one row, and their medians."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import tell
from benchmarks.peers.systems import CLIENTS, SYSTEMS, Server, disk_bytes
from benchmarks.processes import ROOT, Cost

PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Taken:
    """One measurement of one system."""

    rate: float  # records a second
    client_cpu_s: float  # CPU seconds for a million records
    server_cpu_s: float
    client_mb: float
    server_mb: float  # peaks: of the client all resident memory, of the server its private memory
    disk_bytes: float  # growth of the data directory for each record
    latencies_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """The medians of one system's measurements in one row."""

    row: str
    system: str
    size_bytes: int
    partitions: int
    records: int
    rounds: int
    rate_low: float
    rate_high: float
    median: Taken


@contextlib.contextmanager
def served(system: str, partitions: int) -> Iterator[Server]:
    """Yield a new server of a system in its own directory."""
    with (
        tempfile.TemporaryDirectory(prefix="dafka-bench-", ignore_cleanup_errors=True) as made,
        SYSTEMS[system](Path(made), partitions) as server,
    ):
        yield server


class Rounds:
    """The measurements of one size of values and one number of partitions."""

    def __init__(self, size_bytes: int, partitions: int) -> None:
        self._size = size_bytes, partitions
        self._taken: dict[tuple[str, str, int], list[Taken]] = {}

    def add(self, row: str, system: str, records: int, one: Taken) -> None:
        """Add a measurement of a system in a row, and report it."""
        self._taken.setdefault((row, system, records), []).append(one)
        size_bytes, partitions = self._size
        size = f"{size_bytes} B, partitions: {partitions}"
        tell(f"{row}, {size}: {system} {one.rate:.4g}/s {one.latencies_ms or ''}")

    def results(self) -> Iterator[Result]:
        """Yield the medians of each row and system."""
        for (row, system, records), taken in self._taken.items():
            rates = [each.rate for each in taken]
            low, high, median = min(rates), max(rates), _medians(taken)
            yield Result(row, system, *self._size, records, len(taken), low, high, median)


def _medians(taken: list[Taken]) -> Taken:
    def median(values: list[float]) -> float:
        return float(f"{statistics.median(values):.4g}")

    numbers = {
        name: median([getattr(each, name) for each in taken])
        for name in Taken.__slots__
        if name != "latencies_ms"
    }
    latencies = {
        name: median([each.latencies_ms[name] for each in taken]) for name in taken[0].latencies_ms
    }
    return Taken(**numbers, latencies_ms=latencies)


def new_topic() -> str:
    """Return a new topic's name."""
    return f"bench-{uuid.uuid4().hex}"


class Client:
    """A client in its own process, connected and waiting."""

    def __init__(self, system: str, what: str, address: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.clients", CLIENTS[system], what]
        command += [address, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "READY\n":
            raise RuntimeError(f"the client of {system} did not start: {' '.join(command)}")

    def begin(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for its end; return its measures."""
        out, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"a client ended with {self._process.returncode}")
        found: dict[str, Any] = json.loads(out)
        return found


def run_client(system: str, what: str, server: Server, *arguments: Any) -> Taken:
    """Measure one client: topic, records, size, partitions."""
    records = arguments[1]
    client = Client(system, what, server.address, *arguments)
    before = disk_bytes(server.directory)
    with Cost(lambda: server.pids) as cost:
        client.begin()
        found = client.result()
    millions = records / 1e6
    return Taken(
        rate=records / found["seconds"],
        client_cpu_s=found["cpu_s"] / millions,
        server_cpu_s=cost.cpu_s / millions,
        client_mb=found["peak_mb"],
        server_mb=cost.peak_mb,
        disk_bytes=max(disk_bytes(server.directory) - before, 0) / records,
        latencies_ms=percentiles("acknowledged", found["latencies_ms"]),
    )


def paced(
    system: str,
    server: Server,
    per_second: float,
    seconds: float,
    size_bytes: int,
    *,
    acks: int = 1,
    through: Callable[[str], str] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Taken:
    """Publish at a rate while another process receives.

    Args:
        acks: of Dafka's producer; the defaults of other systems.
        through: copies a topic to the one that it returns, which is received.
        meanwhile: runs during the measurement.
    """
    topic, records = new_topic(), int(per_second * seconds)
    numbers = (records, size_bytes, 1)
    paces: list[object] = ["--per-second", per_second]
    if acks != 1:
        paces += ["--acks", acks]
    producer = Client(system, "paced", server.address, topic, *numbers, *paces)
    received = topic if through is None else through(topic)
    consumer = Client(system, "receive", server.address, received, *numbers)
    with Cost(lambda: server.pids) as cost:
        consumer.begin()
        producer.begin()
        if meanwhile is not None:
            meanwhile()
        sent, got = producer.result(), consumer.result()
    return Taken(
        rate=records / sent["seconds"],
        client_cpu_s=(sent["cpu_s"] + got["cpu_s"]) / records * 1e6,
        server_cpu_s=cost.cpu_s / records * 1e6,
        client_mb=max(sent["peak_mb"], got["peak_mb"]),
        server_mb=cost.peak_mb,
        disk_bytes=0.0,
        latencies_ms={
            **percentiles("acknowledged", sent["latencies_ms"]),
            **percentiles("received", got["latencies_ms"]),
        },
    )


def percentiles(what: str, values: list[float]) -> dict[str, float]:
    """Return named percentiles of values; none without values."""
    ordered = sorted(values)
    return {
        f"{what} {name}": round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3)
        for name, share in PERCENTILES.items()
        if ordered
    }
