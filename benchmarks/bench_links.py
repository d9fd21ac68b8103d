"""Row 21: the cost of tamper evidence: ingest with and without hash links of all records.

The store is that of row ``metrics``. Links are made during ingest, and partly after all records are
acknowledged. So the last figure is for a log alone: linking all its records, beside SHA-256 of as
many bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench_metrics import beside_none
from benchmarks.figures import Figure
from benchmarks.harness import Bench
from benchmarks.mesh import full_records
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log

BATCH = 5_000
GOAL = 0.7
INGEST_GOAL = 0.8


def run(bench: Bench) -> Iterator[Figure]:
    """Measure ingest, the store's CPU, and linking, for each size."""
    yield from beside_none(bench, "tamper evidence", 10, "--tamper-evidence", goal=INGEST_GOAL)
    for size_bytes in bench.sizes_bytes:
        count = max(bench.part(full_records(size_bytes)) // BATCH, 1) * BATCH
        name = f"links, {size_bytes} B"
        links = partial(linked, bench.directory, count, size_bytes)
        yield bench.compare(name, links, partial(digested, count * size_bytes), "MB/s", GOAL)


def linked(parent: Path, count: int, size_bytes: int) -> float:
    """Return megabytes of values linked a second."""
    with tempfile.TemporaryDirectory(dir=parent) as directory, Log(directory) as log:
        values = [os.urandom(size_bytes) for _ in range(BATCH)]
        for start in range(0, count, BATCH):
            log.append([RecordBatch.of(TopicPartition("t", "p"), start, values)])
        while log.merge_step():
            pass
        started_s = time.perf_counter()
        while log.linker.step():
            pass
        return count * size_bytes / (time.perf_counter() - started_s) / 1e6


def digested(size_bytes: int) -> float:
    """Return megabytes hashed a second."""
    piece, digest = os.urandom(16 << 20), hashlib.sha256()
    started_s = time.perf_counter()
    for at in range(0, size_bytes, len(piece)):
        digest.update(piece[: size_bytes - at])
    return size_bytes / (time.perf_counter() - started_s) / 1e6
