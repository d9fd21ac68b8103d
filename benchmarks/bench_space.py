"""Row 8: the growth of a store's file because of its readers, and the reuse of that space.

Blocks are appended and trimmed: without readers; then while readers take a lease before each append
and return none, as if all were stopped; then once more. The reference of the growth is the lease
budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.figures import Figure, limited, tell
from benchmarks.harness import TOPIC, Bench
from dafka_core.flight.requests import LeaseRequest, RecordRange
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage.leases import LEASE_WRITTEN_BYTES
from dafka_core.testing import PATIENCE_S, StoreDouble

FULL_BYTES: Final = 4_000_000_000

APPEND: Final = [bytes(1_000_000)] * 16

TP: Final = TopicPartition(TOPIC, "A" * 32)


def run(bench: Bench) -> Iterator[Figure]:
    """Measure the growth, and the file after as much again."""
    rounds = bench.part(FULL_BYTES // sum(map(len, APPEND)), least=4)
    with TemporaryDirectory(dir=bench.directory) as path, StoreDouble(Path(path)) as store:
        client = store.client()

        def take() -> None:
            last = RecordRange(*TP, store.log.end(TP) - 1, store.log.end(TP))
            client.lease(LeaseRequest((last,)), timeout_s=PATIENCE_S)

        without_mb = churned(store, rounds, lambda: None)
        with_mb = churned(store, rounds, take)
        again_mb = churned(store, rounds, take)
        tell(f"space: {store.log.space()}")
    grown_mb, limit_mb = max(with_mb - without_mb, 1.0), LEASE_WRITTEN_BYTES / 1e6
    yield limited("growth of a store's file by its readers", [grown_mb], limit_mb, "MB", goal=0.9)
    yield limited("a store's file after as much again", [again_mb], with_mb, "MB", goal=0.9)


def churned(store: StoreDouble, rounds: int, take: Callable[[], None]) -> float:
    """Append and trim, with a lease in between; return the file's size in MB."""
    for _ in range(rounds):
        start = store.log.end(TP)
        store.log.append([RecordBatch.of(TP, start, APPEND)])
        take()
        store.log.trim(TP, start + len(APPEND) // 2)
    return store.log.space().file_bytes / 1e6
