"""Row 6: records through the mesh, to a store and to a consumer.

The reference is a bare pyzmq loop. A live consumer is measured like the loop, with one sending and
one receiving process: without a store, the producer keeps everything.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from benchmarks.figures import Figure, compared
from benchmarks.harness import Bench, empty
from benchmarks.mesh import UNIT, Child, bare_loop, full_records, in_child, values_of
from benchmarks.processes import cpu_s
from dafka_core import Consumer, EmbeddedCluster, Producer
from dafka_core.errors import NotAcknowledgedError

FLUSH_TIMEOUT_S = 300.0


def run(bench: Bench) -> Iterator[Figure]:
    """Measure ingest and live delivery for each size."""
    for size_bytes in bench.sizes_bytes:
        count = bench.part(full_records(size_bytes))
        sides = {
            "ingest": partial(ingest, count, size_bytes),
            "live": partial(live, count, size_bytes),
            "loop": partial(bare_loop, count, size_bytes),
        }
        rates = bench.in_turns(f"mesh, {size_bytes} B", sides)
        for side, what, goal in (
            ("ingest", "ingest, acknowledged", 0.5),
            ("live", "live delivery", 0.7),
        ):
            yield compared(f"{what}, {size_bytes} B", rates[side], rates["loop"], UNIT, goal)


def ingest(count: int, size_bytes: int, *, keys: bool = False) -> float:
    """Return millions of records a second that a new store syncs and acknowledges."""
    with empty(keys=keys) as cluster:
        arguments = (cluster.tower, count, size_bytes, cluster.key())
        return in_child(publish_acknowledged, *arguments)


def publish_acknowledged(
    tower: str, count: int, size_bytes: int, key: Mapping[str, str] = MappingProxyType({})
) -> float:
    """Return millions of records a second that one producer gets acknowledged."""
    return publish_watched(tower, count, size_bytes, os.getpid(), key)[0]


def publish_watched(
    tower: str, count: int, size_bytes: int, pid: int, key: Mapping[str, str] = MappingProxyType({})
) -> tuple[float, float]:
    """Return that rate, and a process's seconds for a million records."""
    values = values_of(count, size_bytes)
    with Producer("bench", tower=tower, **key) as producer:
        producer.publish(b"first")
        producer.flush(FLUSH_TIMEOUT_S)
        started, before_s = time.perf_counter(), cpu_s(pid)
        producer.publish_many(values)
        producer.flush(FLUSH_TIMEOUT_S)
        millions = count / 1e6
        taken_s, used_s = time.perf_counter() - started, cpu_s(pid) - before_s
        return millions / taken_s, used_s / millions


def live(count: int, size_bytes: int, *, keys: bool = False) -> float:
    """Return millions of records a second that reach a consumer while they are published."""
    topic = f"live-{uuid.uuid4().hex}"
    with (
        EmbeddedCluster(stores=0, keys=keys) as cluster,
        Consumer(tower=cluster.tower, **dict[str, Any](cluster.key())) as consumer,
    ):
        consumer.subscribe(topic)
        producer = Child(_publish, cluster.tower, topic, count, size_bytes, cluster.key())
        records: Iterator[object] = iter(consumer)
        next(records)
        producer.pipe.send("begin")
        started = time.perf_counter()
        for _, _record in zip(range(count), records, strict=False):
            pass
        elapsed_s = time.perf_counter() - started
        producer.pipe.send("end")
        producer.join()
    return count / elapsed_s / 1e6


def _publish(
    pipe: Connection, tower: str, topic: str, count: int, size_bytes: int, key: dict[str, str]
) -> None:
    values = values_of(count, size_bytes)
    keeps_all: dict[str, Any] = {
        "max_unacked_records": count + 1,
        "max_unacked_bytes": (count + 1) * size_bytes,
        "close_timeout_s": 0,
    }
    # Without a store nothing is acknowledged.
    with (
        contextlib.suppress(NotAcknowledgedError),
        Producer(topic, tower=tower, **keeps_all, **key) as producer,
    ):
        producer.publish(b"first")
        pipe.recv()
        producer.publish_many(values)
        pipe.recv()
