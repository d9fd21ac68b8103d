"""Row 26: what an honest producer reaches beside a greedy peer, beside what it reaches alone.

The greedy one takes processor time of the same machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench_ingest import publish_acknowledged
from benchmarks.bench_metrics import running
from benchmarks.figures import Figure
from benchmarks.greedy import beside
from benchmarks.harness import Bench
from benchmarks.mesh import UNIT, full_records, in_child

KINDS = ("records", "requests", "beacons")
GOAL = 0.5


def run(bench: Bench) -> Iterator[Figure]:
    """Ingest beside each kind of greedy peer, of each size."""
    for size_bytes in bench.sizes_bytes:
        count = bench.part(full_records(size_bytes))
        for kind in KINDS:
            name = f"ingest beside greedy {kind}, {size_bytes} B"
            beside_one = partial(ingest, bench.directory, count, size_bytes, kind)
            alone = partial(ingest, bench.directory, count, size_bytes, "")
            yield bench.compare(name, beside_one, alone, UNIT, GOAL)


def ingest(parent: Path, count: int, size_bytes: int, greedy: str) -> float:
    """Millions of records a second, beside a greedy peer of a kind if one is named."""
    with (
        tempfile.TemporaryDirectory(dir=parent) as directory,
        running(Path(directory), ()) as (_, ready),
        beside(greedy, ready["tower"], "") if greedy else contextlib.nullcontext(),
    ):
        rate = in_child(publish_acknowledged, ready["tower"], count, size_bytes)
    os.sync()
    return rate
