"""Row 8: a new consumer of very many partitions, beside one that reads as many records of one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Figure
from benchmarks.harness import TOPIC, Bench, filled
from benchmarks.mesh import in_child
from dafka_core import Consumer

FULL_PARTITIONS = 150_000

SIZE_BYTES = 100

GOAL = 0.02
"""A partition costs its heads, its request and its answer; a record in a block next to nothing."""


def run(bench: Bench) -> Iterator[Figure]:
    """Return the seconds until the consumer has the only record of each partition."""
    count = bench.part(FULL_PARTITIONS)
    many, one = bench.directory / "partitions-many", bench.directory / "partitions-one"
    name = "a new consumer of many partitions"
    with (
        filled(many, count, SIZE_BYTES, partitions=count) as ours,
        filled(one, count, SIZE_BYTES) as reference,
    ):
        seconds = partial(in_child, seconds_until_all)
        of_many, of_one = (partial(seconds, each.tower, count) for each in (ours, reference))
        yield bench.compare(name, of_many, of_one, "s", GOAL)


def seconds_until_all(tower: str, count: int) -> float:
    """From the consumer's construction on."""
    started = time.perf_counter()
    with Consumer(tower=tower) as consumer:
        consumer.subscribe(TOPIC)
        batches = consumer.batches()
        while count > 0:
            count -= next(batches).count
    return time.perf_counter() - started
