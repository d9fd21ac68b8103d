"""Measurements of one system in one row, and their medians."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.systems import SYSTEMS, Server


@dataclass(frozen=True, slots=True)
class Taken:
    """One measurement of one system."""

    rate: float
    """Records a second."""
    client_cpu_s: float
    """CPU seconds for a million records."""
    server_cpu_s: float
    client_mb: float
    server_mb: float
    """Peaks: of the client all resident memory, of the server its private memory."""
    disk_bytes: float
    """Growth of the data directory for each record."""
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


def turns(systems: list[str], rounds: int) -> Iterator[str]:
    """Yield the systems round by round, each time in the other order."""
    for number in range(rounds):
        yield from systems[:: -1 if number % 2 else 1]


def summed(
    row: str, system: str, size_bytes: int, partitions: int, records: int, taken: list[Taken]
) -> Result:
    """Return the medians of some measurements."""
    rates = [each.rate for each in taken]

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
    return Result(
        row,
        system,
        size_bytes,
        partitions,
        records,
        len(taken),
        min(rates),
        max(rates),
        Taken(**numbers, latencies_ms=latencies),
    )


def new_topic() -> str:
    """Return a new topic's name."""
    return f"bench-{uuid.uuid4().hex}"
