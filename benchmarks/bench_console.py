"""Row 18: the console with 1,000 topics and 10,000 partitions: its slowest answer."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, limited, tell
from benchmarks.harness import TOPIC, Bench
from dafka_console.server import Console
from dafka_core import EmbeddedCluster, Producer
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import wait_until

TOPICS = 1_000
FULL_PARTITIONS = 10_000
STORES = 2
RECORDS = 5

LOOKS = 20
LIMIT_S = 0.05
"""Limit of an answer, below what users notice."""

ANSWERS = (
    "/",
    "/api/overview",
    "/api/map",
    "/api/topics?sort=rate&down=1&most=60",
    "/api/topics?find=7&sort=bytes&down=1&start=200&most=60",
    f"/api/topic?topic={TOPIC}-7",
    f"/api/partitions?topic={TOPIC}-7&sort=last_us&down=1",
    "/api/partitions?sort=rate&down=1&start=9000&most=60",
    f"/api/records?topic={TOPIC}-7",
    f"/api/records?topic={TOPIC}-7&partition={7:032X}",
    f"/api/records?topic={TOPIC}-7&partition={7:032X}&offset=0&find=5",
    "/api/queries",
)
"""The requests of the pages."""


def run(bench: Bench) -> Iterator[Figure]:
    """Measure the slowest answer while records are written, beside the limit."""
    count = bench.part(FULL_PARTITIONS, TOPICS)
    for index in range(STORES):
        fill(bench.directory / "console" / f"store-{index}", count)
    with (
        EmbeddedCluster(STORES, bench.directory / "console") as cluster,
        Producer(f"{TOPIC}-7", tower=cluster.tower) as producer,
        Console({"tower": cluster.tower}, listen="127.0.0.1:0") as console,
    ):
        wait_until(lambda: len(console.view.snapshot.partitions.tps) >= count, "all partitions")
        wait_until(lambda: min(console.view.snapshot.partitions.bytes) > 0, "their sizes")

        def slowest() -> float:
            took: dict[str, float] = {}
            for _ in range(LOOKS):  # while the view also polls
                producer.publish_many([b"%d" % number for number in range(1_000)])
                for path in ANSWERS:
                    took[path] = max(took.get(path, 0.0), seconds(console.port, path))
                time.sleep(0.1)
            path = max(took, key=lambda each: took[each])
            look_s = console.view.snapshot.took_s
            tell(f"  the slowest of {len(took)}: {path}; the last look took {look_s:.3f} s")
            return took[path]

        times = bench.in_turns("the console", {"console": slowest}, warm_ups=1)
    name = f"an answer of the console of {count:,} partitions"
    yield limited(name, times["console"], LIMIT_S, "s")


def fill(directory: Path, count: int) -> None:
    """Write a store's log before it starts: a few records in each partition."""
    values = [b"%d" % number for number in range(RECORDS)]
    with Log(directory) as log:
        for start in range(0, count, 1_000):
            log.append(
                [
                    RecordBatch.of(TopicPartition(f"{TOPIC}-{n % TOPICS}", f"{n:032X}"), 0, values)
                    for n in range(start, min(start + 1_000, count))
                ]
            )


def seconds(port: int, path: str) -> float:
    """Return the duration of an answer."""
    began = time.perf_counter()
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        asking.request("GET", path)
        found = asking.getresponse()
        body = found.read()
    finally:
        asking.close()
    if found.status != 200:
        raise RuntimeError(f"{path}: {found.status} {body[:300]!r}")
    return time.perf_counter() - began
