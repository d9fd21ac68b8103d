"""Row 21: what tamper evidence costs a store: ingest with links of all records, and without them.

The store is that of the row ``metrics``.  Links are made while records come in, and a run ends when
all are acknowledged: the last links may be made later.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench_metrics import beside_none
from benchmarks.figures import Figure
from benchmarks.harness import Bench


def run(bench: Bench) -> Iterator[Figure]:
    """Ingest, and the store's processor time for it, of each size."""
    yield from beside_none(bench, "tamper evidence", 20, "--tamper-evidence")
