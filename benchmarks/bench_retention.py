"""Row 20: what retention costs a store: ingest with a rule by which most goes, and without one.

The store is that of the row ``metrics``.  What comes goes again, by size, each ten seconds: a run
takes some twenty.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench_metrics import beside_none
from benchmarks.figures import Figure
from benchmarks.harness import Bench

RULE = "*=32MiB"


def run(bench: Bench) -> Iterator[Figure]:
    """Ingest, and the store's processor time for it, of each size."""
    yield from beside_none(bench, f"retain {RULE}", 20, "--retain", RULE)
