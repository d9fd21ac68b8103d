"""Row 5: our consumer replays from our store, beside a bare pyzmq loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Figure, compared
from benchmarks.harness import TOPIC, Bench, filled
from benchmarks.mesh import UNIT, bare_loop, full_records, in_child
from dafka_core import Consumer

LEAST_RECORDS = 50_000  # fewer would arrive as one run, with nothing left to measure


def run(bench: Bench) -> Iterator[Figure]:
    """Measure record by record, and as Arrow arrays, for each size."""
    for size_bytes in bench.sizes_bytes:
        count = bench.part(full_records(size_bytes), least=LEAST_RECORDS)
        directory = bench.directory / f"replay-{size_bytes}"
        # One more than measured: after the first one everything is connected.
        with filled(directory, count + 1, size_bytes) as cluster:
            sides = {
                "records": partial(in_child, replay_records, cluster.tower, count),
                "arrow": partial(in_child, replay_arrow, cluster.tower, count),
                "loop": partial(bare_loop, count, size_bytes),
            }
            name = f"replay, {size_bytes} B"
            rates = bench.in_turns(name, sides)
        for way, side, goal in (("record by record", "records", 1.0), ("as Arrow", "arrow", 3.0)):
            yield compared(f"{name}, {way}", rates[side], rates["loop"], UNIT, goal)


def replay_records(tower: str, count: int) -> float:
    """Return millions of records a second that our consumer iterates over."""
    with Consumer(tower=tower) as consumer:
        consumer.subscribe(TOPIC)
        records: Iterator[object] = iter(consumer)
        next(records)
        started = time.perf_counter()
        for _, _record in zip(range(count), records, strict=False):
            pass
        return count / (time.perf_counter() - started) / 1e6


def replay_arrow(tower: str, count: int) -> float:
    """Return the rate as Arrow arrays, without the first batch and its time."""
    with Consumer(tower=tower) as consumer:
        consumer.subscribe(TOPIC)
        arrays = (run.values.to_arrow() for run in consumer.batches())
        seen = first = len(next(arrays))
        started = time.perf_counter()
        while seen <= count:
            seen += len(next(arrays))
        return (seen - first) / (time.perf_counter() - started) / 1e6
