"""Row 15: Kafka's clients through a gateway, against the same ones and an Apache Kafka broker.

Both keep records on the same disk.  librdkafka is a process of its own, with its defaults, so that
everything is acknowledged by all that must; Spark uses its connector for Kafka.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import kafka_broker, spark_sessions
from benchmarks.bench_write import rows
from benchmarks.figures import Figure, compared, in_turns
from benchmarks.harness import Bench
from dafka_core import EmbeddedCluster

FULL_RECORDS = 2_000_000

SIZE_BYTES = 100

PARTITIONS = 2

GOALS = {"produce": 0.5, "consume": 0.7}

SPARKS_GOAL = 0.5

SERVERS = "kafka.bootstrap.servers"


def run(bench: Bench) -> Iterator[Figure]:
    """Producing, then consuming what is there."""
    records = bench.part(FULL_RECORDS)
    with gateway() as ours, kafka_broker.broker(partitions=PARTITIONS) as theirs:
        servers = {"gateway": ours, "broker": theirs}
        full = {side: topic() for side in servers}
        for side, server in servers.items():
            rate("produce", server, full[side], records)
        for what, goal in GOALS.items():
            sides = {
                side: partial(rate, what, server, full[side] if what == "consume" else "", records)
                for side, server in servers.items()
            }
            name = f"librdkafka, {what}, {SIZE_BYTES} B"
            rates = in_turns(name, sides, bench.pairs, warm_ups=bench.warm)
            yield compared(name, rates["gateway"], rates["broker"], unit="M records/s", goal=goal)
        with spark_sessions.session(kafka_broker.sparks_jars()) as spark:
            yield from sparks(spark, bench, servers, full, records)


def sparks(
    spark: SparkSession,
    bench: Bench,
    servers: dict[str, str],
    full: dict[str, str],
    records: int,
) -> Iterator[Figure]:
    """Spark's connector reads what is there, and writes as many rows."""
    frame = rows(spark, records, SIZE_BYTES, tasks=PARTITIONS)
    kinds = {
        "read": lambda side: sparks_read(spark, servers[side], full[side], records),
        "write": lambda side: spark_sessions.rate(
            records, frame, "kafka", {SERVERS: servers[side], "topic": topic()}
        ),
    }
    for what, measure in kinds.items():
        sides = {side: partial(measure, side) for side in servers}
        name = f"Spark's connector for Kafka, batch {what}, {SIZE_BYTES} B"
        rates = in_turns(name, sides, bench.pairs, warm_ups=bench.warm)
        yield compared(name, rates["gateway"], rates["broker"], unit="M rows/s", goal=SPARKS_GOAL)


def sparks_read(spark: SparkSession, server: str, name: str, records: int) -> float:
    """Millions of rows a second."""
    return spark_sessions.read_rate(spark, "kafka", records, {SERVERS: server, "subscribe": name})


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    """A cluster of one store with a gateway; gives its address."""
    with EmbeddedCluster(kafka={"num_partitions": PARTITIONS}) as cluster:
        yield cluster.bootstrap_servers


def topic() -> str:
    """One that is not there yet."""
    return f"bench-{uuid.uuid4().hex}"


def rate(what: str, servers: str, name: str, records: int) -> float:
    """Millions of records a second, of a new topic unless one is named."""
    arguments = [what, servers, name or topic(), str(records), str(SIZE_BYTES), str(PARTITIONS)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka_client", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    os.sync()
    return records / float(done.stdout) / 1e6
