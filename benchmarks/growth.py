"""The growth of costs: ``python -m benchmarks.growth [--only AXIS ...] [--rounds N]``.

Each axis is measured at some sizes.  A line of JSON has the median cost at each size and the
exponent, the slope of a least-squares line through the logarithms: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import bench_many, processes, spark_sessions
from benchmarks.bench_growth import exponent
from benchmarks.bench_partitions import seconds_until_all
from benchmarks.bench_read import source_options
from benchmarks.figures import tell
from benchmarks.harness import TOPIC, empty, filled
from benchmarks.mesh import Child, in_child
from benchmarks.processes import Cost
from benchmarks.spark_hosts import seconds_to_read
from dafka_core import EmbeddedCluster, Producer

SIZE_BYTES: Final = 100

WAIT_S: Final = 300.0

Costs = dict[str, float]  # costs by name and unit


class Axis(NamedTuple):
    """Sizes to measure, the unit of a size, and a function that returns the costs at one."""

    sizes: tuple[int, ...]
    unit: str
    costs: Callable[[int], Costs]


def of_stores() -> Cost:
    """Return a measurement of the running stores."""
    pids = processes.stores()
    return Cost(lambda: pids)


def records(count: int) -> Costs:
    """Read one partition of ``count`` records by Spark over Flight, and replay it."""
    with (
        tempfile.TemporaryDirectory(prefix="dafka-bench-") as made,
        filled(Path(made), count, SIZE_BYTES) as cluster,
        spark_sessions.session() as spark,
    ):
        read = partial(spark_sessions.read_rate, spark, "dafka", count)
        options = source_options(cluster, fetch="flight")
        read(options)
        with of_stores() as reading:
            seconds = count / read(options) / 1e6
        with of_stores() as replay:
            replay_s = in_child(seconds_until_all, cluster.tower, count)
    return {
        "bulk read, s": seconds,
        "bulk read, CPU s of the store": reading.cpu_s,
        "replay, s": replay_s,
        "replay, CPU s of the store": replay.cpu_s,
    }


def record_size(size_bytes: int) -> Costs:
    """Publish 100 MB, or 20 records, of one size."""
    count = max(100_000_000 // max(size_bytes, 100), 20)
    with empty() as cluster, of_stores() as cost:
        seconds = in_child(_published_s, cluster.tower, count, size_bytes)
    return {
        "publish, us a record": seconds / count * 1e6,
        "publish, CPU us of the store a record": cost.cpu_s / count * 1e6,
    }


def partitions(count: int) -> Costs:
    """Plan a stream's batch of ``count`` partitions, and join as a consumer."""
    with (
        tempfile.TemporaryDirectory(prefix="dafka-bench-") as made,
        filled(Path(made), count * 10, SIZE_BYTES, partitions=count) as cluster,
    ):
        found = bench_many.trigger(cluster)
        return {
            "latestOffset, s": found["nothing"],
            "offset, bytes": found["bytes"],
            "new consumer, s": in_child(seconds_until_all, cluster.tower, count * 10),
        }


def producers(count: int) -> Costs:
    """Publish a million records by ``count`` producers in one process."""
    each = 1_000_000 // count
    with empty() as cluster:
        child = Child(_published_by_many, cluster.tower, count, each)
        child.pipe.recv()
        with of_stores() as cost:
            began_s = time.perf_counter()
            child.pipe.send("begin")
            cpu_s = child.pipe.recv()
            seconds = time.perf_counter() - began_s
        child.join()
    return {
        "a million records, s": seconds,
        "a million records, CPU s of the producers": cpu_s,
        "a million records, CPU s of the store": cost.cpu_s,
    }


def stores(count: int) -> Costs:
    """Publish half a million records that each of ``count`` stores acknowledges."""
    with EmbeddedCluster(stores=count) as cluster, of_stores() as cost:
        seconds = in_child(_published_s, cluster.tower, 500_000, SIZE_BYTES, count)
    os.sync()
    return {"half a million records, s": seconds, "CPU s of all stores": cost.cpu_s}


def executors(count: int) -> Costs:
    """Read two million records by Spark processes of one core each (``local-cluster``)."""
    total = 2_000_000
    with (
        tempfile.TemporaryDirectory(prefix="dafka-bench-") as made,
        filled(Path(made), total, SIZE_BYTES, partitions=4) as cluster,
        spark_sessions.session(master=f"local-cluster[{count},1,1024]") as spark,
    ):
        options = source_options(cluster)
        spark_sessions.read_rate(spark, "dafka", total, options)
        return {
            "batch read, s": total / spark_sessions.read_rate(spark, "dafka", total, options) / 1e6
        }


def hosts(count: int) -> Costs:
    """Read two million records over Flight by ``count`` hosts, each with one core of Spark."""
    with tempfile.TemporaryDirectory(prefix="dafka-bench-") as made:
        return {
            "batch read over Flight, s": seconds_to_read(Path(made), 2_000_000, SIZE_BYTES, count)
        }


AXES: Final = {
    "records": Axis(
        (100_000, 1_000_000, 10_000_000, 30_000_000), "records of a partition", records
    ),
    "record_size": Axis(
        (10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000), "bytes", record_size
    ),
    "partitions": Axis((10, 100, 1_000, 10_000), "partitions of a topic", partitions),
    "producers": Axis((1, 10, 50, 200), "producers", producers),
    "stores": Axis((1, 2, 3, 4), "stores, acks of all", stores),
    "executors": Axis((1, 2, 4), "executors", executors),
    "hosts": Axis((1, 2, 4), "hosts with an executor", hosts),
}


def _published_s(tower: str, count: int, size_bytes: int, acks: int = 1) -> float:
    values = [os.urandom(size_bytes)] * count
    with Producer(f"t-{uuid.uuid4().hex}", tower=tower, acks=acks) as producer:
        producer.publish(b"first")
        producer.flush(WAIT_S)
        began_s = time.perf_counter()
        producer.publish_many(values)
        producer.flush(WAIT_S)
        return time.perf_counter() - began_s


def _published_by_many(pipe: Connection, tower: str, count: int, each: int) -> None:
    nodes = [Producer(TOPIC, tower=tower) for _ in range(count)]
    values = [os.urandom(SIZE_BYTES)] * each
    for node in nodes:
        node.publish(b"first")
        node.flush(WAIT_S)
    pipe.send("ready")
    pipe.recv()
    before_s = time.process_time()
    for node in nodes:
        node.publish_many(values)
    for node in nodes:
        node.flush(WAIT_S)
    pipe.send(time.process_time() - before_s)
    for node in nodes:
        node.close()


def measured(name: str, axis: Axis, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield each cost of an axis: its medians by size, and their exponent."""
    taken: dict[int, list[Costs]] = {size: [] for size in axis.sizes}
    for _ in range(rounds):
        for size in axis.sizes:
            taken[size].append(axis.costs(size))
            tell(f"{name} {size}: {taken[size][-1]}")
    for cost in taken[axis.sizes[0]][0]:
        medians = {
            size: statistics.median(each[cost] for each in found) for size, found in taken.items()
        }
        yield {
            "axis": name,
            "unit": axis.unit,
            "cost": cost,
            "exponent": round(exponent(medians), 2),
            "medians": {size: float(f"{median:.4g}") for size, median in medians.items()},
        }


def main() -> None:
    """Measure the axes."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=AXES, default=list(AXES), metavar="AXIS")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for name in given.only:
        for found in measured(name, AXES[name], given.rounds):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
