"""Row 19: the cost of watching a store: ingest with a scrape each second, and without.

The store already has a thousand partitions of a hundred topics. Its CPU is a better measure
than the rate where other programs use the machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench_ingest import publish_watched
from benchmarks.figures import Figure, compared
from benchmarks.harness import Bench
from benchmarks.mesh import UNIT, full_records, in_child, up
from benchmarks.processes import repeated
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log

PARTITIONS = 1_000
TOPICS = 100
SCRAPE_S = 1.0
GOAL = 0.97


def run(bench: Bench) -> Iterator[Figure]:
    """Measure ingest and the store's CPU for each size."""
    yield from beside_none(bench, "scraped each second", 10, "--metrics", "0")


def beside_none(
    bench: Bench, what: str, times: int, *flags: str, goal: float = GOAL
) -> Iterator[Figure]:
    """Compare a store with flags to one without them, over ``times`` a row's usual records."""
    for size_bytes in bench.sizes_bytes:
        count = bench.part(times * full_records(size_bytes))
        used: list[float] = []
        used_without: list[float] = []
        run = partial(ingest, bench.directory, count, size_bytes)
        name = f"ingest, {what}, {size_bytes} B"
        ours, theirs = partial(run, flags, used), partial(run, (), used_without)
        yield bench.compare(name, ours, theirs, UNIT, goal)
        yield compared(f"{name}, processor", used, used_without, "s/M records", goal)


def ingest(
    parent: Path, count: int, size_bytes: int, flags: Sequence[str], used: list[float]
) -> float:
    """Return millions of records a second; add the store's seconds for a million to ``used``."""
    with (
        tempfile.TemporaryDirectory(dir=parent) as directory,
        running(Path(directory), flags) as (pid, ready),
        scraping(ready.get("metrics")),
    ):
        rate, used_s = in_child(publish_watched, ready["tower"], count, size_bytes, pid)
    used.append(used_s)
    os.sync()
    return rate


@contextlib.contextmanager
def running(directory: Path, flags: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Start a tower and a store in a process; yield its id and its ready line."""
    with Log(directory) as log:
        log.append(
            [
                RecordBatch.of(TopicPartition(f"t{number % TOPICS}", f"{number:032X}"), 0, [b"v"])
                for number in range(PARTITIONS)
            ]
        )
    with up(directory, flags) as running:
        yield running


@contextlib.contextmanager
def scraping(url: str | None) -> Iterator[None]:
    """Scrape all metrics each second meanwhile, if there is an address."""

    def scrape() -> None:
        with urllib.request.urlopen(f"{url}/metrics") as found:
            assert b"dafka_store_appended_records_total" in found.read()

    with contextlib.nullcontext() if url is None else repeated(scrape, SCRAPE_S):
        yield
